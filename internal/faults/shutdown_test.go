package faults

import (
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"legwork/mcp"
)

func TestShutdown(t *testing.T) {
	t.Parallel()
	t.Run("SIGTERM under full load", func(t *testing.T) {
		t.Parallel()
		sigtermUnderLoad(t)
	})
	t.Run("SIGTERM while Redis hangs", func(t *testing.T) {
		t.Parallel()
		sigtermWhileRedisHangs(t)
	})
	t.Run("a second SIGTERM", func(t *testing.T) {
		t.Parallel()
		secondSigterm(t)
	})
	t.Run("a rolling restart", func(t *testing.T) {
		t.Parallel()
		rollingRestart(t)
	})
}

// A worker that is asked to stop loses nothing, repeats nothing, and is gone soon after its longest operation.
func sigtermUnderLoad(t *testing.T) {
	const budget = 5 * time.Second
	s, random := newSite(t), newChance(t)
	counting := newServer(t, after(func() time.Duration { return random.upTo(2 * time.Second) }))
	hung := newServer(t, hang)
	s.add("docs", counting.URL, budget, 30)
	s.add("hung", hung.URL, budget, 5)
	environment := settings{"LEGWORK_CONCURRENCY": "30"}
	p := s.worker(environment)
	ids := s.steps(500, "docs", writes)
	counting.awaitCalls(t, 20)
	slow := s.steps(3, "hung", writes, asynq.Queue("default")) // they need not wait for the other queue
	hung.awaitCalls(t, 3)

	took := p.stop()
	called := len(counting.counts())
	t.Logf("%d steps were called by then", called)
	if called == len(ids) {
		t.Error("every step was called before the worker stopped: nothing was tried")
	}
	if took > budget+time.Second+slack {
		t.Errorf("the worker took %s to stop, want the longest budget (%s) and a few seconds", took, budget)
	}
	for _, line := range s.unended(ids) {
		if strings.Contains(line, " running ") {
			t.Errorf("left running: %s", line)
		}
	}
	s.worker(environment)
	s.allSucceed(counting, ids)
	s.awaitQuietQueue()
	s.allSucceed(counting, ids)
	for _, id := range slow {
		if row := s.awaitEnd(id); row.FailureKind != string(mcp.KindNoAnswer) || hung.called(id) != 1 {
			t.Errorf("called %d times and %s, want one call without an answer", hung.called(id), brief(row))
		}
	}
}

// A worker that is asked to stop is gone soon after its longest operation though Redis hangs, and jobs wait.
func sigtermWhileRedisHangs(t *testing.T) {
	const budget = 5 * time.Second
	s := newSite(t)
	release := make(chan struct{})
	counting := newServer(t, held(release))
	s.add("docs", counting.URL, budget, 2)
	link, redisURL := s.cutInFront(s.redis.URL)
	p := s.worker(settings{"LEGWORK_REDIS_URL": redisURL})
	ids := s.steps(20, "docs", writes)
	counting.awaitCalls(t, 2)
	s.awaitRows(len(ids))

	link.hang()
	p.Signal(syscall.SIGTERM)
	p.AwaitSaying("the worker is stopping")
	close(release)
	stopping := time.Now()
	if code := p.End(); code != 0 {
		t.Errorf("exit code %d, want 0:\n%s", code, p.Tail(20))
	}
	took := time.Since(stopping)
	t.Logf("the worker was gone %s after it was asked to", took.Round(time.Millisecond))
	if took > budget+10*time.Second+slack { // twice 5 s for Redis to answer after all
		t.Errorf("the worker took %s to stop, want the longest budget (%s) and a few seconds", took, budget)
	}
	for _, line := range s.unended(ids) {
		if strings.Contains(line, " running ") {
			t.Errorf("left running: %s", line)
		}
	}
	link.restore()
	s.worker(nil)
	s.allSucceed(counting, ids)
}

// A worker that is told twice ends at once. What it leaves is settled by others.
func secondSigterm(t *testing.T) {
	s := newSite(t)
	release := make(chan struct{})
	defer close(release)
	counting := newServer(t, func(c call) {
		if c.nth == 1 {
			held(release)(c)
			return
		}
		c.answer()
	})
	s.add("docs", counting.URL, 4*time.Second, 40)
	p := s.worker(nil)
	ids, repeatable := s.steps(10, "docs", writes), s.steps(10, "docs", puts)
	counting.awaitCalls(t, 20)
	p.Signal(syscall.SIGTERM)
	p.AwaitSaying("the worker is stopping")
	p.Signal(syscall.SIGTERM)
	if code := p.End(); code == 0 {
		t.Error("exit code 0 although its operations were not over")
	}
	s.worker(nil)
	for id, row := range s.awaitAll(ids, bound) {
		if n := counting.called(id); row.FailureKind != string(mcp.KindInterrupted) || n != 1 {
			t.Errorf("called %d times and %s, want it interrupted", n, brief(row))
		}
	}
	for id, row := range s.awaitAll(repeatable, bound) {
		if n := counting.called(id); row.Status != "succeeded" || n != 2 {
			t.Errorf("called %d times and %s, want it carried out again", n, brief(row))
		}
	}
}

// Workers that are restarted one after the other fail no step.
func rollingRestart(t *testing.T) {
	s, random := newSite(t), newChance(t)
	counting := newServer(t, after(func() time.Duration { return random.upTo(2 * time.Second) }))
	s.add("docs", counting.URL, 20*time.Second, 10)
	environment := settings{"LEGWORK_CONCURRENCY": "10"}
	workers := make([]*process, 3)
	for i := range workers {
		workers[i] = s.worker(environment)
	}
	var ids []uuid.UUID
	over := make(chan struct{})
	var backend sync.WaitGroup
	backend.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(50 * time.Millisecond):
				ids = append(ids, s.step("docs", writes))
			}
		}
	})
	for range 2 {
		for i := range workers {
			counting.awaitCalls(t, len(counting.counts())+20) // the load is on
			workers[i].stop()
			workers[i] = s.worker(environment)
		}
	}
	close(over)
	backend.Wait()
	s.allSucceed(counting, ids)
	s.awaitQuietQueue()
	s.allSucceed(counting, ids)
	t.Logf("%d steps", len(ids))
}
