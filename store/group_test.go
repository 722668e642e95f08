package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"legwork/store"
)

// together makes these calls go in one group, as far as they fit, and returns their errors when all are done.
func (b *bench) together(calls ...func() error) []error {
	errs := make([]error, len(calls))
	send := b.Gather()
	var all sync.WaitGroup
	for i, call := range calls {
		all.Go(func() { errs[i] = call() })
	}
	send(len(calls))
	all.Wait()
	return errs
}

// claims claims so many new steps.
func (b *bench) claims(n int) []store.Claim {
	b.t.Helper()
	claims := make([]store.Claim, n)
	for i := range claims {
		claims[i] = b.claim(request("docs", "search"))
	}
	return claims
}

func (b *bench) settling(claim store.Claim, outcome store.StepOutcome) func() error {
	return func() error {
		_, err := b.SettleStep(b.t.Context(), claim.Step, outcome)
		return err
	}
}

// commits is in how many transactions the rows were written that now stand.
func (b *bench) commits() int {
	b.t.Helper()
	return ask[int](b, `select count(distinct xmin::text) from agent_step`)
}

func TestStepsThatBeginTogetherShareACommit(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	run := uuid.New()
	var calls []func() error
	got := make([]store.Claim, 20)
	asked := make([]store.StepRequest, len(got))
	for i := range got {
		asked[i] = request("docs", fmt.Sprint("tool", i))
		if i%2 == 0 {
			asked[i].RunID = &run
		}
		calls = append(calls, func() (err error) {
			got[i], err = b.ClaimStep(t.Context(), asked[i])
			return err
		})
	}
	for i, err := range b.together(calls...) {
		if err != nil {
			t.Fatal(err)
		}
		r, claim := asked[i], got[i]
		if claim.Outcome != store.Claimed || claim.Step.ID != r.ID || claim.Step.Tool != r.Tool || claim.Server == nil || (claim.Run != nil) != (r.RunID != nil) {
			t.Errorf("claim %+v, want that of %+v", claim, r)
		}
		diff(t, "row", claim.Step, b.step(r.ID))
	}
	if commits := b.commits(); commits != 1 {
		t.Errorf("%d commits, want one", commits)
	}
}

func TestStepsThatEndTogetherShareACommit(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	claims := b.claims(20)
	var calls []func() error
	for i, claim := range claims {
		outcome := succeeded
		outcome.Result = fmt.Appendf(nil, `{"text":"%d"}`, i)
		calls = append(calls, b.settling(claim, outcome))
	}
	if err := errors.Join(b.together(calls...)...); err != nil {
		t.Fatal(err)
	}
	for i, claim := range claims {
		if step := b.step(claim.Step.ID); step.Status != "succeeded" || string(step.Result) != fmt.Sprintf(`{"text":"%d"}`, i) {
			t.Errorf("step %d: %s %s", i, step.Status, step.Result)
		}
	}
	if commits := b.commits(); commits != 1 {
		t.Errorf("%d commits, want one", commits)
	}
}

func TestBigOutcomesDoNotGoTogether(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	outcome := succeeded
	outcome.Result = fmt.Appendf(nil, `{"text":%q}`, strings.Repeat("x", 200<<10))
	var calls []func() error
	for _, claim := range b.claims(4) {
		calls = append(calls, b.settling(claim, outcome))
	}
	if err := errors.Join(b.together(calls...)...); err != nil {
		t.Fatal(err)
	}
	if commits := b.commits(); commits != len(calls) {
		t.Errorf("%d commits, want one for each of %d", commits, len(calls))
	}
}

// What is wrong with one of a group is its own affair.
func TestEachOfAGroupHasItsOwnError(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	claims := b.claims(6)
	nonsense := succeeded
	nonsense.Status = "nonsense" // no row may say so
	lost := claims[1]
	lost.Step.ClaimedBy = "somebody else"
	errs := b.together(
		b.settling(claims[0], nonsense),
		b.settling(lost, succeeded),
		b.settling(claims[2], succeeded),
		b.settling(claims[3], failed("tool_error", "yes")),
		b.settling(claims[4], nonsense),
		b.settling(claims[5], succeeded),
	)
	for i, want := range []string{"refused", "lost", "", "", "refused", ""} {
		got := ""
		switch {
		case store.Refused(errs[i]):
			got = "refused"
		case errors.Is(errs[i], store.ErrClaimLost):
			got = "lost"
		case errs[i] != nil:
			got = errs[i].Error()
		}
		if got != want {
			t.Errorf("outcome %d: %q, want %q (%v)", i, got, want, errs[i])
		}
	}
	var rows []string
	for _, claim := range claims {
		rows = append(rows, b.step(claim.Step.ID).Status)
	}
	diff(t, "rows", []string{"running", "running", "succeeded", "failed", "running", "succeeded"}, rows)
}

func TestALockedRowDoesNotKeepItsGroup(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	waits, err := store.Open(t.Context(), b.url, store.Options{LockTimeout: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(waits.Close)
	claims := b.claims(4)
	b.Store = waits
	unlock := b.lock(claims[1].Step.ID)
	var calls []func() error
	for _, claim := range claims {
		calls = append(calls, b.settling(claim, succeeded))
	}
	for i, err := range b.together(calls...) {
		if locked := i == 1; store.Locked(err) != locked || !locked && err != nil {
			t.Errorf("outcome %d: %v", i, err)
		}
	}
	unlock()
	b.settle(claims[1], succeeded)

	// As long as there may be more of them, nobody goes together.
	more := []func() error{}
	b.exec(`truncate agent_step`)
	for _, claim := range b.claims(3) {
		more = append(more, b.settling(claim, succeeded))
	}
	if err := errors.Join(b.together(more...)...); err != nil {
		t.Fatal(err)
	}
	if commits := b.commits(); commits != len(more) {
		t.Errorf("%d commits, want one for each of %d", commits, len(more))
	}
}

// A connection that ends leaves nobody in doubt about more than it must.
func TestAGroupWhoseConnectionEnds(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	claims := b.claims(3)
	unlock := b.lock(claims[2].Step.ID)
	var calls []func() error
	for _, claim := range claims {
		calls = append(calls, b.settling(claim, succeeded))
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i, err := range b.together(calls...) {
			if !store.Unheard(err) {
				t.Errorf("outcome %d: %v, want that nobody knows", i, err)
			}
		}
	}()
	const waits = `from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`
	b.awaits(`select count(*) = 1 ` + waits)
	b.exec(`select pg_terminate_backend(pid) ` + waits)
	<-ended
	unlock()
	for _, claim := range claims {
		if step := b.step(claim.Step.ID); step.Status != "running" {
			t.Errorf("step is %s, want it as it was", step.Status)
		}
		b.settle(claim, succeeded)
	}
}

// A group that hangs holds up nobody but its own.
func TestOthersOvertakeAGroupThatHangs(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	claims := b.claims(4)
	unlock := b.lock(claims[0].Step.ID)
	ctx, giveUp := context.WithCancel(t.Context())
	hung := make(chan []error)
	go func() {
		hung <- b.together(
			func() error { _, err := b.SettleStep(ctx, claims[0].Step, succeeded); return err },
			func() error { _, err := b.SettleStep(ctx, claims[1].Step, succeeded); return err },
		)
	}()
	b.awaits(`select count(*) = 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
	for _, claim := range claims[2:] {
		b.settle(claim, succeeded)
	}
	// Nor does it hold its connection when nobody waits for it any more.
	giveUp()
	for _, err := range <-hung {
		if !errors.Is(err, context.Canceled) || !store.Unheard(err) {
			t.Errorf("error %v, want that it was given up and nobody knows", err)
		}
	}
	b.awaits(`select count(*) = 0 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
	unlock()
	for _, claim := range claims[:2] {
		b.settle(claim, succeeded)
	}
}

// Workers whose groups write the same rows do not wait for each other in a circle, out of which each would have to write its
// own by itself.
func TestGroupsOfTheSameRows(t *testing.T) {
	for _, test := range []struct {
		name    string
		same    func(*store.StepRequest, uuid.UUID)
		commits int // of so many groups
	}{
		{"runs", func(r *store.StepRequest, id uuid.UUID) { r.RunID = &id }, 3},
		{"steps", func(r *store.StepRequest, id uuid.UUID) { r.ID = id }, 1}, // whoever was first has them all
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t)
			b.addServer("docs")
			var stores []*store.Store
			for range 3 {
				s, err := store.Open(t.Context(), b.url, store.Options{})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(s.Close)
				stores = append(stores, s)
			}
			const rounds, size = 20, 20
			for range rounds {
				var sends []func(int)
				var all sync.WaitGroup
				ids := make([]uuid.UUID, size)
				for i := range ids {
					ids[i] = uuid.New()
				}
				for _, s := range stores {
					sends = append(sends, s.Gather())
					for _, id := range ids {
						r := request("docs", "search")
						test.same(&r, id)
						all.Go(func() {
							if _, err := s.ClaimStep(t.Context(), r); err != nil {
								t.Error(err)
							}
						})
					}
				}
				for _, send := range sends {
					all.Go(func() { send(size) })
				}
				all.Wait()
			}
			if got := b.commits(); got != rounds*test.commits {
				t.Errorf("%d commits, want %d", got, rounds*test.commits)
			}
		})
	}
}

func TestWhatWasNotSentIsNotInDoubt(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	send := b.Gather()
	r := request("docs", "search")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.ClaimStep(ctx, r); !errors.Is(err, context.Canceled) || store.Unheard(err) {
		t.Errorf("error %v, want that it was given up and never sent", err)
	}
	send(0)
	b.claim(request("docs", "search"))
	if n := ask[int](b, `select count(*) from agent_step`); n != 1 {
		t.Errorf("%d steps, want the other alone", n)
	}
}

// awaits waits until a query says yes.
func (b *bench) awaits(sql string) {
	b.t.Helper()
	for end := time.Now().Add(time.Minute); !ask[bool](b, sql); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("not within a minute: %s", sql)
		}
	}
}
