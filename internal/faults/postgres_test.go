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
		s, counting, release := holding(t)
		p := s.worker(nil)
		id := s.step("docs", writes)
		counting.awaitCalls(t, 1)
		s.check(s.postgres.Kill())
		close(release)
		p.awaitSaying("could not be written down yet")
		s.check(s.postgres.Restart(context.Background()))
		s.wantOutcome(counting, id)
	})
	t.Run("a minute of silence", func(t *testing.T) {
		t.Parallel()
		s, counting, release := holding(t)
		link, databaseURL := s.cutInFront(s.databaseURL)
		p := s.worker(settings{"LEGWORK_DATABASE_URL": databaseURL})
		id := s.step("docs", writes)
		counting.awaitCalls(t, 1)
		link.hang()
		end := time.Now().Add(time.Minute)
		close(release)
		p.awaitSaying("could not be written down yet")
		s.worker(nil) // to this one Postgres talks
		row := s.awaitEnd(id)
		if row.FailureKind != string(mcp.KindInterrupted) {
			t.Errorf("got %s, want it interrupted as far as anybody knows", brief(row))
		}
		time.Sleep(time.Until(end))
		link.restore()
		s.wantOutcome(counting, id)
	})
	t.Run("a reply that is lost", func(t *testing.T) {
		t.Parallel()
		s, counting, release := holding(t)
		link, databaseURL := s.cutInFront(s.databaseURL)
		p := s.worker(settings{"LEGWORK_DATABASE_URL": databaseURL})
		id := s.step("docs", writes)
		counting.awaitCalls(t, 1)
		link.loseRepliesTo(id[:])
		close(release)
		s.wantOutcome(counting, id)
		if p.said("step succeeded") {
			t.Error("the worker has the reply: nothing was tried")
		}
		link.breakAll()
		link.restore()
		p.awaitSaying("step succeeded")
		s.awaitQuietQueue()
		s.wantOutcome(counting, id)
	})
	t.Run("a failover", func(t *testing.T) {
		t.Parallel()
		s, counting, release := holding(t)
		link, databaseURL := s.cutInFront(s.databaseURL)
		p := s.worker(settings{"LEGWORK_DATABASE_URL": databaseURL})
		id := s.step("docs", writes)
		counting.awaitCalls(t, 1)
		link.breakAll()
		close(release)
		p.awaitSaying("could not be written down yet")
		link.restore()
		s.wantOutcome(counting, id)
	})
	t.Run("a full disk", func(t *testing.T) {
		t.Parallel()
		s, counting, release := holding(t)
		p := s.worker(nil)
		id := s.step("docs", writes)
		counting.awaitCalls(t, 1)
		// As Postgres answers then.
		s.exec(`create function full_disk() returns trigger language plpgsql as
			$$ begin raise exception 'could not extend file: No space left on device' using errcode = '53100'; end $$`)
		s.exec(`create trigger full_disk before insert or update on agent_step execute function full_disk()`)
		close(release)
		p.awaitSaying("could not be written down yet")
		s.exec(`drop trigger full_disk on agent_step`)
		s.wantOutcome(counting, id)
	})
}

// holding is a site whose server answers when release is closed.
func holding(t *testing.T) (s *site, counting *server, release chan struct{}) {
	t.Helper()
	s, release = newSite(t), make(chan struct{})
	counting = newServer(t, held(release))
	s.add("docs", counting.URL, 20*time.Second, 40)
	return s, counting, release
}

func (s *site) wantOutcome(counting *server, id uuid.UUID) {
	s.t.Helper()
	s.await(id, bound, "succeeded", func(row store.Step) bool { return row.Status == "succeeded" })
	if n := counting.called(id); n != 1 {
		s.t.Errorf("the tool was called %d times", n)
	}
}
