package faults

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"legwork/mcp"
	"legwork/store"
)

// What a server has answered is in the row in the end, whatever Postgres does between the answer and the settling.
func TestAnOutcomeSurvivesPostgres(t *testing.T) {
	t.Parallel()
	t.Run("a restart", func(t *testing.T) {
		t.Parallel()
		s := newHeldCall(t, direct)
		s.check(s.postgres.Kill())
		close(s.release)
		s.asking.AwaitSaying("could not be written down yet")
		s.check(s.postgres.Restart(context.Background()))
		s.wantOutcome()
	})
	t.Run("a minute of silence", func(t *testing.T) {
		t.Parallel()
		s := newHeldCall(t, behindCut)
		s.link.hang()
		end := time.Now().Add(time.Minute)
		close(s.release)
		s.asking.AwaitSaying("could not be written down yet")
		s.worker(nil) // to this one Postgres talks
		row := s.awaitEnd(s.held)
		if row.FailureKind != string(mcp.KindInterrupted) {
			t.Errorf("got %s, want it interrupted as far as anybody knows", brief(row))
		}
		time.Sleep(time.Until(end))
		s.link.restore()
		s.wantOutcome()
	})
	t.Run("a reply that is lost", func(t *testing.T) {
		t.Parallel()
		s := newHeldCall(t, behindCut)
		s.link.loseRepliesTo(s.held[:])
		close(s.release)
		s.wantOutcome()
		if s.asking.Said("step succeeded") {
			t.Error("the worker has the reply: nothing was tried")
		}
		s.link.breakAll()
		s.link.restore()
		s.asking.AwaitSaying("step succeeded")
		s.awaitQuietQueue()
		s.wantOutcome()
	})
	t.Run("a failover", func(t *testing.T) {
		t.Parallel()
		s := newHeldCall(t, behindCut)
		s.link.breakAll()
		close(s.release)
		s.asking.AwaitSaying("could not be written down yet")
		s.link.restore()
		s.wantOutcome()
	})
	t.Run("a full disk", func(t *testing.T) {
		t.Parallel()
		s := newHeldCall(t, direct)
		// As Postgres answers then.
		s.exec(`create function full_disk() returns trigger language plpgsql as
			$$ begin raise exception 'could not extend file: No space left on device' using errcode = '53100'; end $$`)
		s.exec(`create trigger full_disk before insert or update on agent_step execute function full_disk()`)
		close(s.release)
		s.asking.AwaitSaying("could not be written down yet")
		s.exec(`drop trigger full_disk on agent_step`)
		s.wantOutcome()
	})
}

// heldCall is a site with a step whose call the server has, and answers when release is closed.
type heldCall struct {
	*site
	server  *server
	release chan struct{}
	asking  *process // the worker that called
	link    *cut     // between it and Postgres; nil where it is direct
	held    uuid.UUID
}

const (
	direct    = false
	behindCut = true
)

func newHeldCall(t *testing.T, cutInBetween bool) heldCall {
	t.Helper()
	s := heldCall{site: newSite(t), release: make(chan struct{})}
	s.server = newServer(t, held(s.release))
	s.add("docs", s.server.URL, 20*time.Second, 40)
	var change settings
	if cutInBetween {
		var databaseURL string
		s.link, databaseURL = s.cutInFront(s.databaseURL)
		change = settings{"LEGWORK_DATABASE_URL": databaseURL}
	}
	s.asking = s.worker(change)
	s.held = s.step("docs", writes)
	s.server.awaitCalls(t, 1)
	return s
}

func (s heldCall) wantOutcome() {
	s.t.Helper()
	s.await(s.held, bound, "succeeded", func(row store.Step) bool { return row.Status == "succeeded" })
	if n := s.server.called(s.held); n != 1 {
		s.t.Errorf("the tool was called %d times", n)
	}
}
