package faults

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"legwork/mcp"
	"legwork/store"
)

// A claim that Postgres has taken, and whose reply never came, leaves no step that nobody carries out.
func TestAClaimThatNobodyHeardOf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		opts  []asynq.Option
		calls int
		ended func(store.Step) bool
	}{
		{"a job", nil, 1, func(step store.Step) bool { return step.Status == "succeeded" }},
		{"a job without further tries", []asynq.Option{asynq.MaxRetry(0)}, 1, func(step store.Step) bool { return step.Status == "succeeded" }},
		{"a job whose own time is over before it is begun", []asynq.Option{asynq.Timeout(5 * time.Second)}, 0, func(step store.Step) bool {
			return step.FailureKind == string(mcp.KindBudgetSpent) && step.Asked == "no"
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			counting := newServer(t, answer)
			s.add("docs", counting.URL, 20*time.Second, 40)
			link, databaseURL := s.cutInFront(s.databaseURL)
			asking := s.worker(settings{"LEGWORK_DATABASE_URL": databaseURL})
			s.worker(nil) // which may not take it: as far as it knows, the other runs it
			s.awaitEnd(s.step("docs", writes))

			var id uuid.UUID
			for claimed := false; !claimed; { // the other worker may have taken it
				id = uuid.New()
				link.loseRepliesTo(id[:])
				s.enqueue(id, "docs", writes, tt.opts...)
				row := s.await(id, bound, "claimed", func(step store.Step) bool { return step.Claim > 0 })
				claimed = row.Status == "running"
			}
			time.Sleep(12 * time.Second) // for as long as a claim may take, and longer than the shortest job
			link.restore()
			row := s.awaitEnd(id)
			if n := counting.called(id); !tt.ended(row) || n != tt.calls {
				t.Errorf("called %d times, want %d, and %s, asked %q", n, tt.calls, brief(row), row.Asked)
			}
			if asking.Ended() {
				t.Error("the worker has ended")
			}
			s.awaitQuietQueue()
			if n := counting.called(id); n != tt.calls {
				t.Errorf("called %d times in the end, want %d", n, tt.calls)
			}
		})
	}
}

// Postgres stops in the middle of the work and goes on, with all that it was asked meanwhile: what it does with that then,
// calls nothing twice and leaves no step that nobody called.
func TestPostgresHangs(t *testing.T) {
	t.Parallel()
	const hang = 25 * time.Second // longer than a claim may take, and than a settling
	s := newSite(t)
	counting := newServer(t, after(func() time.Duration { return 300 * time.Millisecond }))
	s.add("docs", counting.URL, 5*time.Second, 10)
	workers := []*process{s.worker(nil), s.worker(nil)}
	var ids []uuid.UUID
	load := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			ids = append(ids, s.step("docs", writes))
		}
	}
	load(3 * time.Second)
	counting.awaitCalls(t, 10)
	s.signalPostgres(syscall.SIGSTOP)
	load(hang)
	s.signalPostgres(syscall.SIGCONT)
	load(3 * time.Second)

	interrupted := 0
	for id, row := range s.awaitAll(ids, 2*bound) {
		if row.FailureKind == string(mcp.KindInterrupted) { // its lease was over before Postgres went on, and its worker knows better
			interrupted++
			row = s.await(id, bound, "succeeded after all", func(step store.Step) bool { return step.Status == "succeeded" })
		}
		if n := counting.called(id); row.Status != "succeeded" || n != 1 {
			t.Errorf("step %s was called %d times and is %s", id, n, brief(row))
		}
	}
	t.Logf("%d steps, of which %d were called interrupted for a while", len(ids), interrupted)
	for i, p := range workers {
		if p.Ended() {
			t.Errorf("worker %d has ended", i)
		}
		said := 0
		for _, line := range p.besides() {
			if strings.Contains(line, "no job can be begun") {
				said++
			}
		}
		if said > 1 {
			t.Errorf("worker %d said %d times of one outage that no job can be begun:\n%s", i, said, strings.Join(p.besides(), "\n"))
		}
	}
}

// signalPostgres signals every process of Postgres.
func (s *site) signalPostgres(signal syscall.Signal) {
	s.t.Helper()
	pid := s.postgres.Pid()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		s.t.Fatal(err)
	}
	pids := []int{pid}
	for _, field := range strings.Fields(string(children)) {
		var child int
		if _, err := fmt.Sscan(field, &child); err != nil {
			s.t.Fatal(err)
		}
		pids = append(pids, child)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, signal); err != nil && err != syscall.ESRCH {
			s.t.Fatal(err)
		}
	}
}
