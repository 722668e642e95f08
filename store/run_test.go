package store_test

import (
	"sync"
	"testing"

	"github.com/google/uuid"

	"legwork/store"
)

func TestCancelRun(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	run := uuid.New()
	r := request("docs", "search")
	r.RunID = &run
	running := b.claim(r)
	pending, awaiting, elsewhere := uuid.New(), uuid.New(), uuid.New()
	b.exec(`insert into agent_step (id, run_id, server, status) values
		($1, $4, 'docs', 'pending'), ($2, $4, null, 'awaiting_approval'), ($3, null, 'docs', 'pending')`, pending, awaiting, elsewhere, run)

	got, err := b.CancelRun(t.Context(), run, "ada", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.Status != "cancelled" || got.CancelledBy != "ada" || got.FinishedAt == nil || !got.Cancelled() {
		t.Errorf("run %+v, want it cancelled by ada", got)
	}
	if again, err := b.Run(t.Context(), run); err != nil {
		t.Error(err)
	} else {
		diff(t, "row", got, again)
	}
	for id, sentence := range map[uuid.UUID]string{
		pending:  `server "docs" was not asked: the run was cancelled by ada before this step began`,
		awaiting: `the run was cancelled by ada before this step began`,
	} {
		step := b.step(id)
		if step.Status != "cancelled" || step.FailureKind != "cancelled" || step.Asked != "no" || step.FailureMessage != sentence || step.FinishedAt == nil {
			t.Errorf("step %+v, want it cancelled, not asked: %s", step, sentence)
		}
	}
	if step := b.step(elsewhere); step.Status != "pending" {
		t.Errorf("a step of no run is %s, want it untouched", step.Status)
	}

	// What runs runs out; what arrives later is told.
	if step := b.settle(running, succeeded); step.Status != "succeeded" {
		t.Errorf("the step that ran is %s, want succeeded", step.Status)
	}
	r.ID = uuid.New()
	if claim := b.claim(r); claim.Outcome != store.Claimed || claim.Run == nil || !claim.Run.Cancelled() || claim.Run.CancelledBy != "ada" {
		t.Errorf("claim %+v, want it to say that the run was cancelled by ada", claim)
	}
	r.ID = pending
	if claim := b.claim(r); claim.Outcome != store.Settled {
		t.Errorf("claim of the cancelled step: %s, want settled", claim.Outcome)
	}
}

func TestCancelRunWithASentenceOfTheCallers(t *testing.T) {
	b := newBench(t)
	run, step := uuid.New(), uuid.New()
	b.exec(`insert into agent_run (id) values ($1)`, run)
	b.exec(`insert into agent_step (id, run_id, tool) values ($1, $2, 'search')`, step, run)
	if _, err := b.CancelRun(t.Context(), run, "ada", func(s store.Step) string { return "no " + s.Tool + "\x00" }); err != nil {
		t.Fatal(err)
	}
	if got := b.step(step).FailureMessage; got != "no search\uFFFD" {
		t.Errorf("sentence %q", got)
	}
}

func TestRuns(t *testing.T) {
	b := newBench(t)
	if runs, err := b.Runs(t.Context(), 0); err != nil || len(runs) != 0 {
		t.Errorf("got %v, %v, want no runs", runs, err)
	}
	oldest, middle, newest := uuid.New(), uuid.New(), uuid.New()
	b.exec(`insert into agent_run (id, status, cancelled_by, created_at, finished_at) values
		($1, 'running', null, now() - interval '1 hour', null), ($2, 'cancelled', 'ada', now() - interval '2 hours', now()),
		($3, 'succeeded', null, now() - interval '3 hours', now())`, newest, middle, oldest)
	for most, want := range map[int][]uuid.UUID{0: {newest, middle, oldest}, 2: {newest, middle}} {
		runs, err := b.Runs(t.Context(), most)
		if err != nil {
			t.Fatal(err)
		}
		var got []uuid.UUID
		for _, run := range runs {
			got = append(got, run.ID)
			one, err := b.Run(t.Context(), run.ID)
			if err != nil {
				t.Fatal(err)
			}
			diff(t, "run", one, run)
		}
		diff(t, "runs", want, got)
	}
}

func TestCancelRunThatIsOver(t *testing.T) {
	b := newBench(t)
	_, err := b.CancelRun(t.Context(), uuid.New(), "ada", nil)
	wantError(t, err, store.ErrNotFound)

	cancelled, done := uuid.New(), uuid.New()
	b.exec(`insert into agent_run (id, status, cancelled_by, finished_at) values ($1, 'cancelled', 'bob', now()), ($2, 'succeeded', null, now())`, cancelled, done)
	for id, want := range map[uuid.UUID]string{
		cancelled: "cancel run " + cancelled.String() + ": the run is over: it was cancelled by bob before",
		done:      "cancel run " + done.String() + ": the run is over: it has succeeded",
	} {
		_, err := b.CancelRun(t.Context(), id, "ada", nil)
		wantError(t, err, store.ErrRunOver)
		if err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

func TestCancelRunWhileItsStepsAreClaimed(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	run := uuid.New()
	b.exec(`insert into agent_run (id) values ($1)`, run)
	requests := make([]store.StepRequest, 12)
	for i := range requests {
		requests[i] = request("docs", "search")
		requests[i].RunID = &run
		b.exec(`insert into agent_step (id, run_id, server, tool) values ($1, $2, 'docs', 'search')`, requests[i].ID, run)
	}
	var wg sync.WaitGroup
	for _, r := range requests {
		wg.Go(func() {
			claim, err := b.ClaimStep(t.Context(), r)
			if err != nil || claim.Outcome != store.Claimed && claim.Outcome != store.Settled {
				t.Errorf("claim %s, %v", claim.Outcome, err)
			}
		})
	}
	wg.Go(func() {
		if _, err := b.CancelRun(t.Context(), run, "ada", nil); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	for _, r := range requests {
		if step := b.step(r.ID); step.Status != "running" && step.Status != "cancelled" {
			t.Errorf("a step is %s, want it claimed or cancelled", step.Status)
		}
	}
}
