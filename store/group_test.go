package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
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
	return b.settlingWithin(b.t.Context(), claim, outcome)
}

func (b *bench) settlingWithin(ctx context.Context, claim store.Claim, outcome store.StepOutcome) func() error {
	return func() error {
		_, err := b.SettleStep(ctx, claim.Step, outcome)
		return err
	}
}

// settlings is the settling of each.
func (b *bench) settlings(claims []store.Claim, outcome store.StepOutcome) []func() error {
	var calls []func() error
	for _, claim := range claims {
		calls = append(calls, b.settling(claim, outcome))
	}
	return calls
}

const waitsForALock = `from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`

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
	calls := b.settlings(b.claims(4), outcome)
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
	calls := b.settlings(claims, succeeded)
	for i, err := range b.together(calls...) {
		if locked := i == 1; store.Locked(err) != locked || !locked && err != nil {
			t.Errorf("outcome %d: %v", i, err)
		}
	}
	unlock()
	b.settle(claims[1], succeeded)

	// As long as there may be more of them, nobody goes together.
	b.exec(`truncate agent_step`)
	more := b.settlings(b.claims(3), succeeded)
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
	calls := b.settlings(claims, succeeded)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i, err := range b.together(calls...) {
			if !store.Unheard(err) {
				t.Errorf("outcome %d: %v, want that nobody knows", i, err)
			}
		}
	}()
	b.awaits(`select count(*) = 1 ` + waitsForALock)
	b.exec(`select pg_terminate_backend(pid) ` + waitsForALock)
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
	claims := b.claims(6)
	unlock := b.lock(claims[0].Step.ID)
	ctx, giveUp := context.WithCancel(t.Context())
	hung := make(chan []error)
	go func() {
		hung <- b.together(b.settlingWithin(ctx, claims[0], succeeded), b.settlingWithin(ctx, claims[1], succeeded))
	}()
	b.awaits(`select count(*) = 1 ` + waitsForALock)
	for _, claim := range claims[2:4] {
		b.settle(claim, succeeded)
	}
	// Nor does it hold its connection when nobody waits for it any more.
	giveUp()
	for _, err := range <-hung {
		if !errors.Is(err, context.Canceled) || !store.Unheard(err) {
			t.Errorf("error %v, want that it was given up and nobody knows", err)
		}
	}
	b.awaits(`select count(*) = 0 ` + waitsForALock)
	unlock()
	// What made it hang may make others hang, so nobody goes together for a while.
	if err := errors.Join(b.together(b.settling(claims[4], succeeded), b.settling(claims[5], succeeded))...); err != nil {
		t.Error(err)
	}
	if xmin := `select xmin::text from agent_step where id = $1`; ask[string](b, xmin, claims[4].Step.ID) == ask[string](b, xmin, claims[5].Step.ID) {
		t.Error("they went together")
	}
	for _, claim := range claims[:2] {
		b.settle(claim, succeeded)
	}
}

// One that is sent by itself is given up by itself, and its connection with it.
func TestWhatIsSentApartIsGivenUp(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	claims := b.claims(3)
	slices.SortFunc(claims, func(a, b store.Claim) int { return bytes.Compare(a.Step.ID[:], b.Step.ID[:]) })
	nonsense := succeeded
	nonsense.Status = "nonsense"
	unlock := b.lock(claims[2].Step.ID) // behind what Postgres refuses, which has them sent apart
	ctx, giveUp := context.WithCancel(t.Context())
	errs := make(chan []error)
	go func() {
		errs <- b.together(b.settling(claims[0], nonsense), b.settling(claims[1], succeeded), b.settlingWithin(ctx, claims[2], succeeded))
	}()
	b.awaits(`select count(*) = 1 ` + waitsForALock)
	giveUp()
	if all := <-errs; !store.Refused(all[0]) || all[1] != nil || !errors.Is(all[2], context.Canceled) {
		t.Errorf("errors %v, want the first refused, the second well, the third given up", all)
	}
	b.awaits(`select count(*) = 0 ` + waitsForALock)
	unlock()
	if step := b.step(claims[2].Step.ID); step.Status != "running" {
		t.Errorf("the step is %s, want it as it was", step.Status)
	}
	b.settle(claims[2], succeeded)
}

// A row that cannot be read, as an outside hand may leave one, costs its own claim alone.
func TestARowThatCannotBeReadDoesNotSpoilItsGroup(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	var calls []func() error
	var ids []uuid.UUID
	for range 5 {
		r := request("docs", "search")
		ids = append(ids, r.ID)
		calls = append(calls, func() error { _, err := b.ClaimStep(t.Context(), r); return err })
	}
	b.exec(`insert into agent_step (id, server, tool, job_deadline) values ($1, 'docs', 'search', 'infinity')`, ids[2])
	calls = append(calls, func() error { return b.ReadCrash(t.Context()) })
	for i, err := range b.together(calls...) {
		if bad := i == 2 || i == 5; (err != nil) != bad {
			t.Errorf("claim %d: %v", i, err)
		}
	}
	if n := ask[int](b, `select count(*) from agent_step where status = 'running' and claim = 1`); n != len(ids) {
		t.Errorf("%d steps run under their first claim, want %d", n, len(ids))
	}
}

// Nothing is told before its group is committed.
func TestAGroupThatCannotBeCommitted(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	claims := b.claims(4)
	b.exec(`update agent_step set tool = 'full' where id = $1`, claims[2].Step.ID)
	b.exec(`create function no_space() returns trigger language plpgsql as $$ begin
		if new.tool = 'full' then raise 'no space left' using errcode = 'disk_full'; end if;
		return null;
	end $$`)
	b.exec(`create constraint trigger no_space after update on agent_step deferrable initially deferred for each row execute function no_space()`)
	calls := b.settlings(claims, succeeded)
	for i, err := range b.together(calls...) {
		full := i == 2
		if full && (err == nil || !strings.Contains(err.Error(), "no space left")) || !full && err != nil {
			t.Errorf("outcome %d: %v", i, err)
		}
		want := "succeeded"
		if full {
			want = "running"
		}
		if step := b.step(claims[i].Step.ID); step.Status != want {
			t.Errorf("step %d is %s, want %s", i, step.Status, want)
		}
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
		b.exec(`select pg_stat_clear_snapshot()`) // or a transaction sees the backends of its first look alone
		if time.Now().After(end) {
			b.t.Fatalf("not within a minute: %s", sql)
		}
	}
}
