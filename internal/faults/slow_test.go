package faults

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"legwork/mcp"
)

// deadStep inserts a step that a dead worker left running, whose lease is over in a second, and returns when that is.
func (s *site) deadStep(server string) (id uuid.UUID, lease time.Time) {
	s.t.Helper()
	id = uuid.New()
	err := s.sql.QueryRow(context.Background(), `
		insert into agent_step (id, server, tool, arguments, status, claim, claimed_by, lease_expires_at, started_at)
		values ($1, $2, $3, $4, 'running', 1, 'the dead one', now() + interval '1 second', now())
		returning lease_expires_at`, id, server, writes, arguments(id)).Scan(&lease)
	if err != nil {
		s.t.Fatal(err)
	}
	return id, lease
}

// wantNoticed wants a dead worker's step settled as soon as is promised.
func (s *site) wantNoticed(id uuid.UUID, lease time.Time) {
	s.t.Helper()
	after := s.awaitEnd(id).FinishedAt.Sub(lease)
	s.t.Logf("settled %s after the lease was over", after.Round(time.Millisecond))
	if after > noticed+slack {
		s.t.Errorf("settled %s after the lease was over, want that within %s", after, noticed)
	}
}

// A Redis that answers slowly holds up neither the reaper nor a worker that stops, whatever waits in it.
func TestASlowRedis(t *testing.T) {
	t.Parallel()
	const slowly = 100 * time.Millisecond
	s := newSite(t)
	counting := newServer(t, after(func() time.Duration { return time.Second }))
	s.add("docs", counting.URL, 10*time.Second, 2)
	link, redisURL := s.cutInFront(s.redis.URL)
	slow := s.worker(settings{"LEGWORK_REDIS_URL": redisURL})
	ids := s.steps(300, "docs", writes)
	s.awaitRows(len(ids)) // all wait for a place
	for range 200 {       // and these for their time
		s.enqueue(s.row("docs", writes), "docs", writes, asynq.ProcessIn(time.Hour))
	}
	s.exec(`update agent_step set created_at = now() - interval '1 hour' where status = 'pending'`) // so they are looked after
	link.slow(slowly)
	for range 3 {
		s.wantNoticed(s.deadStep("docs"))
	}
	slow.wantStopped(30 * time.Second)
	link.restore()
	s.worker(nil)
	s.exec(`update mcp_server set max_in_flight = 40`)
	s.allSucceed(counting, ids)
}

// Connections to Postgres that have died without a word cost a worker a while, and no more: it goes on with new ones, and it
// stops in time.
func TestPostgresConnectionsThatDiedSilently(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	counting := newServer(t, answer)
	s.add("docs", counting.URL, 5*time.Second, 40)
	link, databaseURL := s.cutInFront(s.databaseURL)
	p := s.worker(settings{"LEGWORK_DATABASE_URL": databaseURL})
	s.allSucceed(counting, s.steps(50, "docs", writes)) // which opens connections
	link.swallow()
	dead, _ := s.deadStep("docs")
	ids := s.steps(50, "docs", writes)
	ids = append(ids, s.row("docs", writes))
	s.allSucceed(counting, ids)
	s.awaitEnd(dead)

	s.allSucceed(counting, s.steps(50, "docs", writes))
	link.swallow()
	p.wantStopped(45 * time.Second)
}

// Rows that somebody has locked hold up nothing but themselves: not the steps of other servers, not the reaper, and what
// waits for them is carried out once they are free. The log says whose lock it is about, not that no job can be begun.
func TestLockedRows(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	counting := newServer(t, answer)
	for _, server := range []string{"docs", "locked"} {
		s.add(server, counting.URL, 5*time.Second, 0)
	}
	p := s.worker(nil)
	s.allSucceed(counting, s.steps(20, "docs", writes))
	var locked []uuid.UUID
	for range 30 {
		locked = append(locked, s.row("locked", writes))
	}
	lockedDead, _ := s.deadStep("docs")
	tx, err := s.sql.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(context.Background(), `select from agent_step where id = any($1) for update`, append(locked, lockedDead)); err != nil {
		t.Fatal(err)
	}
	for _, id := range locked {
		s.enqueue(id, "locked", writes)
	}
	p.AwaitSaying("has held the lock of its row")
	s.wantNoticed(s.deadStep("docs"))
	s.allSucceed(counting, s.steps(200, "docs", writes))
	for _, id := range append(locked, lockedDead) {
		if step, _ := s.read(id); step.Terminal() {
			t.Errorf("a locked row was written: nothing was tried: %s", brief(step))
		}
	}
	for _, line := range p.besides() {
		if strings.Contains(line, "no job can be begun") || strings.Contains(line, "cannot be settled") {
			t.Errorf("the log says more than is the matter: %s", line)
		}
	}
	if err := tx.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	s.allSucceed(counting, locked)
	s.awaitEnd(lockedDead)
}

// Jobs that asynq would put away are kept while their rows are locked, before they are begun and when they end; they take the
// places of their own servers alone, and a worker that stops does not wait for the locks.
func TestLockedRowsOfJobsWithoutTries(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	release := make(chan struct{})
	counting := newServer(t, answer)
	holding := newServer(t, held(release))
	s.add("docs", counting.URL, 5*time.Second, 0)
	s.add("locked", counting.URL, 5*time.Second, 0)
	s.add("ending", holding.URL, 60*time.Second, 2)
	p := s.worker(settings{"LEGWORK_SHUTDOWN_TIMEOUT": "120"})
	s.allSucceed(counting, s.steps(20, "docs", writes))

	ending := s.steps(2, "ending", writes, asynq.MaxRetry(0))
	holding.awaitCalls(t, 2)
	var waiting []uuid.UUID
	for range 30 {
		waiting = append(waiting, s.row("locked", writes))
	}
	tx, err := s.sql.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(context.Background(), `select from agent_step where id = any($1) for update`, append(waiting, ending...)); err != nil {
		t.Fatal(err)
	}
	for _, id := range waiting {
		s.enqueue(id, "locked", writes, asynq.MaxRetry(0))
	}
	close(release)
	p.AwaitSaying("a task is kept here until it can be begun")
	p.AwaitSaying("a task is kept here until its outcome is written down")
	s.allSucceed(counting, s.steps(100, "docs", writes))
	s.allSucceed(holding, s.steps(10, "ending", writes))

	p.wantStopped(60 * time.Second)
	if err := tx.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	s.worker(nil)
	s.allSucceed(counting, waiting)
	for id, row := range s.awaitAll(ending, bound) { // what came of them was with the worker that stopped
		if n := holding.called(id); n != 1 || row.Status != "succeeded" && row.FailureKind != string(mcp.KindInterrupted) {
			t.Errorf("step %s was called %d times and is %s", id, n, brief(row))
		}
	}
}

// Steps that wait are looked after without being read as a whole: their arguments may be megabytes each.
func TestBigRowsThatWait(t *testing.T) {
	t.Parallel()
	const (
		rows = 100
		size = 4 << 20
		most = rows * size / 3 >> 10 // kB
	)
	s := newSite(t)
	counting := newServer(t, hang)
	s.add("docs", counting.URL, 60*time.Second, 1)
	p := s.worker(nil)
	idle := p.status("VmHWM")
	for i := range rows {
		s.exec(`insert into agent_step (id, server, tool, arguments, status, claim, claimed_by, lease_expires_at, created_at)
			select $1, 'docs', $2, json_build_object('big', repeat('x', $3)), s.status, s.claim, s.by, s.lease, now() - interval '1 hour'
			from (values ('pending', 0, null, null), ('running', 1, 'the dead one', now())) as s (status, claim, by, lease)
			offset $4 limit 1`, uuid.New(), writes, size, i%2)
	}
	until(t, bound, text("every row to be looked after"), func() bool {
		var left int
		err := s.sql.QueryRow(context.Background(), `select count(*) from agent_step where woken_at is null and finished_at is null`).Scan(&left)
		if err != nil {
			t.Fatal(err)
		}
		return left == 0
	})
	var reaped int
	if err := s.sql.QueryRow(context.Background(), `select count(*) from agent_step where failure_kind = 'interrupted'`).Scan(&reaped); err != nil || reaped != rows/2 {
		t.Errorf("%d steps were settled as interrupted (%v), want %d", reaped, err, rows/2)
	}
	peak := p.status("VmHWM")
	t.Logf("at most %d kB, %d before", peak, idle)
	if peak-idle > most {
		t.Errorf("the worker took %d kB to look after %d rows of %d kB", peak-idle, rows, size>>10)
	}
}
