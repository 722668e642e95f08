package faults

import (
	"context"
	"strings"
	"testing"
	"time"
)

// Redis goes away while operations run and at the moment their tasks end: each is settled, nothing is called twice when
// asynq delivers again, and the worker goes on by itself and says so.
func TestRedisGoesAway(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		away time.Duration // at least
		// begin lets Redis fail and returns what ends that.
		begin func(*site, *cut) func()
	}{
		{"a restart", 15 * time.Second, func(s *site, _ *cut) func() {
			s.check(s.redis.Kill())
			return func() { s.check(s.redis.Restart(context.Background())) }
		}},
		{"45 seconds of silence", 45 * time.Second, func(_ *site, link *cut) func() {
			link.hang()
			return link.restore
		}},
		{"a blip when tasks end", 3 * time.Second, func(_ *site, link *cut) func() {
			link.hang()
			return link.restore
		}},
		{"connections that break when tasks end", 3 * time.Second, func(_ *site, link *cut) func() {
			link.breakAll()
			return link.restore
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			redisGoesAway(t, tt.away, tt.begin)
		})
	}
}

func redisGoesAway(t *testing.T, away time.Duration, begin func(*site, *cut) func()) {
	s := newSite(t)
	release := make(chan struct{})
	counting := newServer(t, held(release))
	s.add("docs", counting.URL, 60*time.Second, 40)
	link, redisURL := s.cutInFront(s.redis.URL)
	var workers []*process
	for range 2 {
		workers = append(workers, s.worker(settings{"LEGWORK_REDIS_URL": redisURL}))
	}
	ids := s.steps(30, "docs", writes)
	counting.awaitCalls(t, len(ids))

	end := begin(s, link)
	began := time.Now()
	close(release)
	s.allSucceed(counting, ids) // while Redis is away
	time.Sleep(away - time.Since(began))
	end()

	ids = append(ids, s.steps(30, "docs", writes)...) // the workers take tasks again
	s.allSucceed(counting, ids)
	s.awaitQuietQueue() // what asynq brings again is not sent again
	s.allSucceed(counting, ids)

	for i, p := range workers {
		if p.Ended() {
			t.Errorf("worker %d has ended", i)
		}
		lines := p.besides()
		t.Logf("worker %d logged %d lines that are not about a step:\n%s", i, len(lines), strings.Join(lines[:min(len(lines), 30)], "\n"))
		if len(lines) > 12 {
			t.Errorf("worker %d logged %d lines that are not about a step, want a handful", i, len(lines))
		}
		gone, back := 0, 0
		for _, line := range lines {
			if strings.Contains(line, "does not do what it is asked") {
				gone++
			}
			if strings.Contains(line, "does what it is asked again") {
				back++
			}
		}
		if gone > 2 || back > gone || away > 10*time.Second && gone == 0 {
			t.Errorf("worker %d said %d times that Redis was away and %d times that it was back", i, gone, back)
		}
		if gone > 0 {
			p.AwaitSaying("does what it is asked again")
		}
	}
}
