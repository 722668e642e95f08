package store_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"legwork/store"
)

var horizon = time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC)

// old inserts a step that was created an hour before it ended; a step that has not ended was created then too.
func (b *bench) old(status string, ended time.Time, run *uuid.UUID) uuid.UUID {
	b.t.Helper()
	id := uuid.New()
	b.exec(`
		insert into agent_step (id, run_id, server, tool, status, created_at, finished_at, claim, claimed_by, lease_expires_at,
			failure_kind, failure_message)
		values ($1, $2, 'docs', 'search', $3, $4::timestamptz - interval '1 hour',
			case when $3 in ('succeeded', 'failed', 'cancelled') then $4::timestamptz end, 1, 'w1',
			case when $3 = 'running' then $4::timestamptz end,
			case when $3 in ('failed', 'cancelled') then 'cancelled' end, case when $3 in ('failed', 'cancelled') then 'why' end)`,
		id, run, status, ended)
	return id
}

func (b *bench) oldRun(status string, ended time.Time) *uuid.UUID {
	b.t.Helper()
	id := uuid.New()
	b.exec(`
		insert into agent_run (id, status, created_at, finished_at, cancelled_by)
		values ($1, $2, $3::timestamptz - interval '1 hour', case when $2 <> 'running' then $3::timestamptz end,
			case when $2 = 'cancelled' then 'ada' end)`, id, status, ended)
	return &id
}

func (b *bench) oldImportError(at time.Time) {
	b.t.Helper()
	b.exec(`insert into import_error (server, kind, message, occurred_at) values ('docs', 'no_answer', 'why', $1)`, at)
}

func (b *bench) prune(batch int) store.Pruned {
	b.t.Helper()
	pruned, err := b.Prune(b.t.Context(), horizon, batch, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return pruned
}

func (b *bench) wantOld(want store.Pruned) {
	b.t.Helper()
	got, err := b.CountOld(b.t.Context(), horizon)
	if err != nil {
		b.t.Fatal(err)
	}
	diff(b.t, "what is counted as old", want, got)
}

func TestPruneTakesWhatEndedBefore(t *testing.T) {
	b := newBench(t)
	before, after := horizon.Add(-time.Second), horizon.Add(time.Second)
	gone, stay := map[string]uuid.UUID{}, map[string]uuid.UUID{}
	for _, status := range []string{"succeeded", "failed", "cancelled"} {
		gone[status+" before"] = b.old(status, before, nil)
		stay[status+" at that moment"] = b.old(status, horizon, nil)
		stay[status+" after"] = b.old(status, after, nil)
	}
	for _, status := range []string{"pending", "awaiting_approval", "running"} {
		stay[status+" for years"] = b.old(status, horizon.AddDate(-5, 0, 0), nil)
	}
	// A run goes with the last of its steps, when it has ended itself.
	for _, status := range []string{"succeeded", "failed", "cancelled"} {
		gone["a run that "+status] = *b.oldRun(status, before)
	}
	ended := b.oldRun("succeeded", before)
	gone["a run whose step goes"], gone["its step"] = *ended, b.old("succeeded", before, ended)
	kept := b.oldRun("cancelled", before)
	stay["a run with a step that stays"], stay["its step"] = *kept, b.old("succeeded", after, kept)
	gone["another step of it"] = b.old("failed", before, kept)
	waiting := b.oldRun("failed", before)
	stay["a run with a step that waits"], stay["its waiting step"] = *waiting, b.old("pending", before, waiting)
	stay["a run that ended later"] = *b.oldRun("succeeded", after)
	open := b.oldRun("running", before)
	stay["a run that runs"], gone["the step of a run that runs"] = *open, b.old("succeeded", before, open)
	b.oldImportError(before)
	b.oldImportError(horizon)

	want := store.Pruned{Steps: 6, Runs: 4, ImportErrors: 1}
	b.wantOld(want)
	diff(t, "removed", want, b.prune(100))
	exists := func(id uuid.UUID) bool {
		return ask[bool](b, `select exists (select from agent_step where id = $1) or exists (select from agent_run where id = $1)`, id)
	}
	for what, id := range gone {
		if exists(id) {
			t.Errorf("%s is still there", what)
		}
	}
	for what, id := range stay {
		if !exists(id) {
			t.Errorf("%s is gone", what)
		}
	}
	if n := ask[int](b, `select count(*) from import_error`); n != 1 {
		t.Errorf("%d import errors are left, want 1", n)
	}
	b.wantOld(store.Pruned{})
	diff(t, "removed the second time", store.Pruned{}, b.prune(100))
}

func TestPruneOfNothing(t *testing.T) {
	b := newBench(t)
	pruned := b.prune(10)
	if pruned.Any() || pruned.String() != "0 steps, 0 runs and 0 import errors" {
		t.Errorf("removed %s from nothing", pruned)
	}
	if one := (store.Pruned{Steps: 1, Runs: 1, ImportErrors: 1}).String(); one != "1 step, 1 run and 1 import error" {
		t.Errorf("got %q", one)
	}
}

func TestPruneTakesABatch(t *testing.T) {
	b := newBench(t)
	for range 5 {
		b.old("succeeded", horizon.Add(-time.Hour), nil)
		b.oldRun("succeeded", horizon.Add(-time.Hour))
		b.oldImportError(horizon.Add(-time.Hour))
	}
	// Runs are looked through as a whole, so they wait until no batch of steps is left.
	for i, want := range []store.Pruned{{2, 0, 0}, {2, 0, 0}, {1, 2, 2}, {0, 2, 2}, {0, 1, 1}, {}} {
		diff(t, fmt.Sprintf("call %d", i), want, b.prune(2))
	}
}

// What waits stands at the head of what is old.
func TestPrunePassesWhatWaits(t *testing.T) {
	b := newBench(t)
	b.exec(`
		insert into agent_step (id, server, tool, status, created_at)
		select gen_random_uuid(), 'docs', 'search', case when n % 2 = 0 then 'pending' else 'awaiting_approval' end, $1::timestamptz - interval '1 year'
		from generate_series(1, 4000) n`, horizon)
	b.old("succeeded", horizon.Add(-time.Hour), nil)
	diff(t, "removed", store.Pruned{Steps: 1}, b.prune(10))
	if n := ask[int](b, `select count(*) from agent_step`); n != 4000 {
		t.Errorf("%d steps are left, want 4000", n)
	}
}

// The order of the statement is by an index that bounds what is looked at.
func TestPruneLooksAtNoYoungSteps(t *testing.T) {
	b := newBench(t)
	b.exec(`
		insert into agent_step (id, server, tool, status, created_at, finished_at)
		select gen_random_uuid(), 'docs', 'search', 'succeeded', $1::timestamptz + n * interval '1 second', $1::timestamptz + n * interval '2 seconds'
		from generate_series(1, 20000) n`, horizon)
	b.exec(`update agent_step set created_at = $1::timestamptz - interval '2 days', finished_at = $1::timestamptz - interval '1 day'
		where id in (select id from agent_step limit 50)`, horizon)
	if _, err := b.hand.Exec(t.Context(), `analyze agent_step`); err != nil {
		t.Fatal(err)
	}
	before := ask[int64](b, `select pg_stat_get_tuples_returned('agent_step_created'::regclass)`)
	diff(t, "removed", store.Pruned{Steps: 50}, b.prune(500))
	// What Postgres counts arrives a little later.
	var after int64
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if after = ask[int64](b, `select pg_stat_get_tuples_returned('agent_step_created'::regclass)`); after > before || time.Now().After(end) {
			break
		}
	}
	if got := after - before; got < 50 || got > 200 {
		t.Errorf("%d index entries were looked at for 50 steps", got)
	}
}

// Claims, settles and prunes of several at once get along.
func TestPruneBesideWorkers(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	const old, young = 600, 60
	b.exec(`
		insert into agent_step (id, server, tool, status, created_at, finished_at)
		select gen_random_uuid(), 'docs', 'search', 'succeeded', $1::timestamptz - interval '2 days', $1::timestamptz - interval '1 day'
		from generate_series(1, $2)`, horizon, old)
	// A step that is old by now and still runs.
	late := b.claim(request("docs", "search"))
	b.exec(`update agent_step set created_at = $2::timestamptz - interval '2 days' where id = $1`, late.Step.ID, horizon)
	var pruned [3]store.Pruned
	var wg sync.WaitGroup
	for i := range pruned {
		wg.Go(func() {
			for {
				more, err := b.Prune(t.Context(), horizon, 20, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if pruned[i].Add(more); !more.Any() {
					return
				}
			}
		})
	}
	for range 3 {
		wg.Go(func() {
			for range young / 3 {
				claim, err := b.ClaimStep(t.Context(), request("docs", "search"))
				if err == nil {
					_, err = b.SettleStep(t.Context(), claim.Step, succeeded)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	b.settle(late, succeeded)
	var total store.Pruned
	for _, p := range pruned {
		total.Add(p)
	}
	total.Add(b.prune(old)) // what each left to the others
	diff(t, "removed", store.Pruned{Steps: old}, total)
	if n := ask[int](b, `select count(*) from agent_step where status = 'succeeded'`); n != young+1 {
		t.Errorf("%d steps are left, want %d", n, young+1)
	}
}

// A row that somebody holds is left for later; nobody waits for it.
func TestPruneWaitsForNobody(t *testing.T) {
	b := newBench(t)
	held := b.old("failed", horizon.Add(-time.Hour), nil)
	free := b.old("failed", horizon.Add(-time.Hour), nil)
	run := b.oldRun("succeeded", horizon.Add(-time.Hour))
	tx, err := b.hand.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`select from agent_step where id = '` + held.String() + `' for update`,
		`select from agent_run where id = '` + run.String() + `' for key share`, // as who inserts a step of it does
	} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	diff(t, "removed", store.Pruned{Steps: 1}, b.prune(10))
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ask[bool](b, `select exists (select from agent_step where id = $1)`, free) {
		t.Error("the step that nobody held is still there")
	}
	diff(t, "removed later", store.Pruned{Steps: 1, Runs: 1}, b.prune(10))
}
