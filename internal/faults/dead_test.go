package faults

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"legwork/mcp"
	"legwork/store"
)

// The steps of a worker that is gone are settled or carried out again soon after their leases are over, by any other.
func TestADeadWorkerIsNoticed(t *testing.T) {
	t.Parallel()
	for name, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			deadWorker(t, signal)
		})
	}
}

func deadWorker(t *testing.T, signal syscall.Signal) {
	s := newSite(t)
	release := make(chan struct{})
	counting := newServer(t, func(c call) {
		if c.nth == 1 {
			held(release)(c)
			return
		}
		c.answer()
	})
	s.add("docs", counting.URL, 5*time.Second, 40)
	link, databaseURL := s.cutInFront(s.databaseURL)
	doomed := s.worker(settings{"LEGWORK_DATABASE_URL": databaseURL})
	write, read := s.step("docs", writes), s.step("docs", reads)
	counting.awaitCalls(t, 2)
	running := func(step store.Step) bool { return step.Status == "running" }
	leaseOfWrite := *s.await(write, bound, "running", running).LeaseExpiresAt
	leaseOfRead := *s.await(read, bound, "running", running).LeaseExpiresAt

	s.worker(nil) // the one that has to notice; nothing is left to do for it yet
	if signal == syscall.SIGSTOP {
		// It has its answers, and is stopped before they are in the rows.
		link.breakAll()
		close(release)
		for _, id := range []uuid.UUID{write, read} {
			doomed.AwaitSaying(fmt.Sprintf("the outcome of step %s could not be written down yet", id))
		}
	}
	doomed.Signal(signal)
	if signal == syscall.SIGSTOP {
		link.restore()
	}

	within := func(what string, at *time.Time, lease time.Time) {
		t.Helper()
		after := at.Sub(lease)
		t.Logf("%s %s after the lease was over", what, after.Round(time.Millisecond))
		if after < 0 || after > noticed+slack {
			t.Errorf("%s %s after the lease was over, want that within %s", what, after, noticed)
		}
	}
	row := s.awaitEnd(write)
	if row.FailureKind != string(mcp.KindInterrupted) || row.Asked != "unknown" || !strings.Contains(row.FailureMessage, "nobody knows") {
		t.Errorf("got %s, want it interrupted", brief(row))
	}
	within("settled", row.FinishedAt, leaseOfWrite)
	row = s.awaitEnd(read)
	if row.Status != "succeeded" || row.Claim != 2 || counting.called(read) != 2 {
		t.Errorf("got %s after %d calls, want it carried out again", brief(row), counting.called(read))
	}
	within("taken over", row.StartedAt, leaseOfRead)

	if signal == syscall.SIGSTOP {
		doomed.Signal(syscall.SIGCONT)
		row := s.await(write, bound, "succeeded after all", func(step store.Step) bool { return step.Status == "succeeded" })
		if row.FailureKind != "" || row.Claim != 1 {
			t.Errorf("got %s, want the outcome that was known", brief(row))
		}
		doomed.AwaitSaying("was not written down") // the other step is not its own any more
		if row, _ := s.read(read); row.Claim != 2 || !strings.Contains(string(row.Result), "call 2 of") {
			t.Errorf("got %s with %s, want it as the other worker settled it", brief(row), row.Result)
		}
	}
	if n := counting.called(write); n != 1 {
		t.Errorf("the tool that may not be repeated was called %d times", n)
	}
	if signal == syscall.SIGKILL {
		close(release)
	}
}
