package store_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"legwork/store"
	"legwork/store/storetest"
)

func TestClaimInsertsTheStep(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	r := request("docs", "search")
	run := uuid.New()
	r.RunID = &run
	claim := b.claim(r)
	if claim.Outcome != store.Claimed || claim.Server == nil || claim.Server.URL != "https://docs.example/mcp" ||
		claim.Run == nil || claim.Run.ID != run || claim.Run.Status != "running" {
		t.Fatalf("claim %+v, want it claimed with its server and run", claim)
	}
	step := claim.Step
	if step.StartedAt == nil || step.LeaseExpiresAt == nil {
		t.Fatalf("step %+v, want it started under a lease", step)
	}
	diff(t, "step", store.Step{
		ID: r.ID, RunID: &run, Kind: "tool", Server: "docs", Tool: "search", Arguments: json.RawMessage(`{"q":1}`),
		Status: "running", Claim: 1, ClaimedBy: "w1", LeaseExpiresAt: step.LeaseExpiresAt, Legs: json.RawMessage(`[]`),
		CreatedAt: step.CreatedAt, StartedAt: step.StartedAt,
	}, step)
	diff(t, "row", step, b.step(r.ID))
}

func TestClaimTakesAPendingStepAsItsRowSays(t *testing.T) {
	b := newBench(t)
	b.addServer("docs", func(s *store.Server) { s.OperationTimeoutSeconds = 300 })
	b.addServer("crm")
	r := request("crm", "delete")
	stray := uuid.New()
	r.RunID = &stray
	b.exec(`insert into agent_step (id, server, tool, arguments) values ($1, 'docs', 'search', '{"q":"row"}')`, r.ID)
	claim := b.claim(r)
	if claim.Outcome != store.Claimed || claim.Step.Server != "docs" || claim.Step.Tool != "search" ||
		string(claim.Step.Arguments) != `{"q":"row"}` || claim.Step.RunID != nil || claim.Run != nil || claim.Server.Identifier != "docs" {
		t.Errorf("claim %+v, want what the row says", claim)
	}
	wantLease(b, claim.Step.ID, 315)
	if runs := ask[int](b, `select count(*) from agent_run`); runs != 0 {
		t.Errorf("%d runs, want none of the request's", runs)
	}
}

func TestClaimOfAnUnknownServer(t *testing.T) {
	b := newBench(t)
	if claim := b.claim(request("nobody", "search")); claim.Outcome != store.Claimed || claim.Server != nil || claim.Step.Server != "nobody" {
		t.Errorf("claim %+v, want it claimed without a server", claim)
	}
	if claim := b.claim(request("", "")); claim.Outcome != store.Claimed || claim.Server != nil || claim.Step.Server != "" {
		t.Errorf("claim %+v, want it claimed without a server", claim)
	}
}

func TestClaimsAtOnceHaveOneWinner(t *testing.T) {
	for name, prepare := range map[string]func(*bench, store.StepRequest){
		"nobody has inserted the row": func(*bench, store.StepRequest) {},
		"the row is pending": func(b *bench, r store.StepRequest) {
			b.exec(`insert into agent_step (id, server, tool) values ($1, 'docs', 'search')`, r.ID)
		},
		"the lease is over and the tool may be called again": func(b *bench, r store.StepRequest) {
			b.addTool("docs", "search", "read_only")
			b.claim(r)
			b.endLease(r.ID)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.addServer("docs")
			r := request("docs", "search")
			prepare(b, r)
			run := uuid.New()
			r.RunID = &run
			const workers = 8
			outcomes := make([]store.ClaimOutcome, workers)
			var wg sync.WaitGroup
			for i := range workers {
				wg.Go(func() {
					claim, err := b.ClaimStep(t.Context(), r)
					if err != nil {
						t.Error(err)
					}
					outcomes[i] = claim.Outcome
				})
			}
			wg.Wait()
			count := map[store.ClaimOutcome]int{}
			for _, outcome := range outcomes {
				count[outcome]++
			}
			diff(t, "outcomes", map[store.ClaimOutcome]int{store.Claimed: 1, store.Busy: workers - 1}, count)
		})
	}
}

func TestStepsOfANewRunClaimedAtOnce(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	run := uuid.New()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			r := request("docs", "search")
			r.RunID = &run
			claim, err := b.ClaimStep(t.Context(), r)
			if err != nil {
				t.Error(err)
			} else if claim.Outcome != store.Claimed || claim.Run == nil || claim.Run.ID != run {
				t.Errorf("claim %+v, want it claimed with its run", claim)
			}
		})
	}
	wg.Wait()
}

func TestClaimOfAStepThatIsNotToBeRun(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	run := uuid.New()
	r := request("docs", "search")
	r.RunID = &run
	first := b.claim(r)

	busy := b.claim(r)
	if busy.Outcome != store.Busy || busy.Step.LeaseExpiresAt == nil || !busy.Step.LeaseExpiresAt.Equal(*first.Step.LeaseExpiresAt) {
		t.Errorf("a step that runs: %+v, want it busy until its lease ends", busy)
	}
	settled := b.settle(first, succeeded)
	again := b.claim(r)
	if again.Outcome != store.Settled || again.Run == nil || again.Server == nil {
		t.Errorf("a step that has ended: %+v, want it settled, with server and run", again)
	}
	diff(t, "the settled step", settled, again.Step)

	waiting := request("docs", "search")
	b.exec(`insert into agent_step (id, status) values ($1, 'awaiting_approval')`, waiting.ID)
	if claim := b.claim(waiting); claim.Outcome != store.AwaitingApproval || claim.Step.Status != "awaiting_approval" {
		t.Errorf("a step that waits for a person: %+v", claim)
	}
}

// wantLease checks how many seconds the step's lease is, within what the statement took.
func wantLease(b *bench, id uuid.UUID, want float64) {
	b.t.Helper()
	got := ask[float64](b, `select extract(epoch from lease_expires_at - started_at)::float8 from agent_step where id = $1`, id)
	if got < want-1 || got > want+1 {
		b.t.Errorf("the lease is %v s, want %v s", got, want)
	}
}

func TestLease(t *testing.T) {
	five, spent := 5*time.Second, -5*time.Second
	hundredYears := centuries.Seconds()
	for name, test := range map[string]struct {
		own            int // the server's
		budget, margin time.Duration
		job            *time.Duration
		want           float64
	}{
		"the installation's budget":          {budget: 20 * time.Second, margin: 15 * time.Second, want: 35},
		"the server's own wins":              {own: 60, budget: 20 * time.Second, margin: 15 * time.Second, want: 75},
		"the server's own wins when smaller": {own: 2, budget: 20 * time.Second, margin: 15 * time.Second, want: 17},
		"a job tightens":                     {own: 60, budget: 20 * time.Second, margin: 15 * time.Second, job: &five, want: 20},
		"a job never widens":                 {own: 2, budget: 20 * time.Second, margin: 15 * time.Second, job: &five, want: 17},
		"a job whose time is over":           {budget: 20 * time.Second, margin: 15 * time.Second, job: &spent, want: 15},
		"a budget that is never spent":       {budget: centuries, margin: centuries, want: 2 * hundredYears},
		"a job in centuries":                 {budget: centuries, margin: time.Second, job: ptr(centuries), want: hundredYears + 1},
		"the longest of a server's own":      {own: 1<<31 - 1, budget: time.Second, margin: centuries, want: 1<<31 - 1 + hundredYears},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.addServer("docs", func(s *store.Server) { s.OperationTimeoutSeconds = test.own })
			r := request("docs", "search")
			r.Budget, r.Margin, r.Job = test.budget, test.margin, test.job
			b.claim(r)
			wantLease(b, r.ID, test.want)

			b.exec(`update agent_step set status = 'pending', lease_expires_at = null where id = $1`, r.ID)
			b.claim(r) // the row is there already
			wantLease(b, r.ID, test.want)

			claim, err := b.ClaimImport(t.Context(), store.ImportRequest{Server: "docs", Worker: "w1", Budget: test.budget, Margin: test.margin, Job: test.job})
			if err != nil || claim.Claim != 1 {
				t.Fatalf("import claim %+v, %v", claim, err)
			}
			got := ask[float64](b, `select extract(epoch from import_lease_expires_at - now())::float8 from mcp_server`)
			if got > test.want+1 || got < test.want-300 { // the clock has gone on since
				t.Errorf("the import's lease is %v s, want %v s", got, test.want)
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

func TestSettleStep(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	claim := b.claim(request("docs", "search"))
	step := b.settle(claim, failed("tool_error", "yes"))
	want := claim.Step
	want.Status, want.FailureKind, want.FailureMessage, want.Asked = "failed", "tool_error", `server "docs": tool_error`, "yes"
	want.LeaseExpiresAt, want.FinishedAt, want.BudgetMS = nil, step.FinishedAt, ptr(int64(20000))
	want.Legs = json.RawMessage(`[{"method":"initialize","granted_ms":20000,"elapsed_ms":4000,"outcome":"ok","status":200}]`)
	diff(t, "step", want, step)
	if step.FinishedAt == nil || !step.Terminal() {
		t.Errorf("step %+v, want it finished", step)
	}
}

func TestSettleWithoutLegsOrBudget(t *testing.T) {
	b := newBench(t)
	for _, legs := range []json.RawMessage{nil, json.RawMessage(`null`)} {
		step := b.settle(b.claim(request("docs", "search")), store.StepOutcome{Status: "cancelled",
			Failure: &store.Failure{Kind: "cancelled", Message: "by ada", Asked: "no"}, Legs: legs})
		if string(step.Legs) != "[]" || step.BudgetMS != nil || step.Result != nil {
			t.Errorf("legs %s, budget %v, result %s; want no legs, no budget, no result", step.Legs, step.BudgetMS, step.Result)
		}
	}
}

func TestSettleAgainAfterALostReply(t *testing.T) {
	b := newBench(t)
	claim := b.claim(request("docs", "search"))
	first := b.settle(claim, succeeded)
	diff(t, "settled again", first, b.settle(claim, failed("no_answer", "unknown")))
}

func TestOnlyTheLatestClaimSettles(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	b.addTool("docs", "search", "idempotent_write")
	r := request("docs", "search")
	first := b.claim(r)
	b.endLease(r.ID)
	r.Worker = "w2"
	second := b.claim(r)
	if second.Outcome != store.Claimed || second.Step.Claim != 2 || second.Step.ClaimedBy != "w2" {
		t.Fatalf("claim %+v, want it taken over", second)
	}
	_, err := b.SettleStep(t.Context(), first.Step, failed("no_answer", "unknown"))
	wantError(t, err, store.ErrClaimLost)
	if step := b.step(r.ID); step.Status != "running" {
		t.Errorf("the step is %s, want it still running for w2", step.Status)
	}
	b.settle(second, succeeded)
	_, err = b.SettleStep(t.Context(), first.Step, failed("no_answer", "unknown"))
	wantError(t, err, store.ErrClaimLost)
	_, err = b.SettleStep(t.Context(), store.Step{ID: uuid.New(), Claim: 1, ClaimedBy: "w1"}, succeeded)
	wantError(t, err, store.ErrClaimLost)
}

// A worker that lost the reply to its claim takes the step all the same, and what it did with it counts whatever other claim
// of its own Postgres finds later. Nobody else may.
func TestAClaimThatWasNotHeardOf(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	r := request("docs", "search")
	b.claim(r) // and nobody hears of it
	if again := b.claim(r); again.Outcome != store.Busy {
		t.Errorf("claimed again: %s, want busy: it may run", again.Outcome)
	}
	r.Unheard = true
	other := r
	other.Worker = "w2"
	if theirs := b.claim(other); theirs.Outcome != store.Busy {
		t.Errorf("another worker's claim: %s, want busy", theirs.Outcome)
	}
	claim := b.claim(r)
	if claim.Outcome != store.Claimed || claim.Step.Claim != 2 || claim.Step.ClaimedBy != "w1" {
		t.Fatalf("claim %+v, want it the worker's own", claim)
	}
	b.claim(r) // one that was on its way all the time
	told, err := b.SettleStep(t.Context(), claim.Step, succeeded)
	if err != nil || told.Status != "succeeded" || told.Claim != 3 {
		t.Errorf("the outcome: %+v, %v, want it written down", told, err)
	}
	told, err = b.SettleStep(t.Context(), claim.Step, failed("no_answer", "unknown"))
	if err != nil || told.Status != "succeeded" {
		t.Errorf("settled again: %+v, %v, want to hear how it was settled", told, err)
	}
	if late := b.claim(r); late.Outcome != store.Settled {
		t.Errorf("a claim after the end: %s, want settled", late.Outcome)
	}

	refused := request("docs", "search")
	b.claim(refused)
	refused.Unheard = true
	step, now, err := b.RefuseStep(t.Context(), refused, store.Failure{Kind: "budget_spent", Message: "too late", Asked: "no"})
	if err != nil || !now || step.FailureKind != "budget_spent" || step.LeaseExpiresAt != nil {
		t.Errorf("refused: %+v, %v, want it settled, because it was not begun", step, err)
	}
}

func TestAWorkerThatOutlivesItsLeaseStillSettles(t *testing.T) {
	b := newBench(t)
	claim := b.claim(request("docs", "search"))
	b.endLease(claim.Step.ID)
	if step := b.settle(claim, succeeded); step.Status != "succeeded" {
		t.Errorf("the step is %s, want it succeeded: nobody else has claimed it", step.Status)
	}
}

func TestInterrupted(t *testing.T) {
	for effect, want := range map[string]store.ClaimOutcome{
		"read_only":            store.Claimed,
		"idempotent_write":     store.Claimed,
		"non_idempotent_write": store.Interrupted,
		"":                     store.Interrupted, // the tool was never imported
	} {
		t.Run("effect "+effect, func(t *testing.T) {
			b := newBench(t)
			b.addServer("docs")
			b.addServer("other")
			b.addTool("other", "search", "read_only") // another server's tool of this name decides nothing
			if effect != "" {
				b.addTool("docs", "search", effect)
			}
			r := request("docs", "search")
			first := b.claim(r)
			b.endLease(r.ID)
			r.Worker = "w2"
			r.Interrupted = func(step store.Step) store.Failure {
				return store.Failure{Kind: "interrupted", Asked: "unknown", Message: fmt.Sprintf("%s stopped while %s ran", step.ClaimedBy, step.Tool)}
			}
			claim := b.claim(r)
			if claim.Outcome != want {
				t.Fatalf("outcome %s, want %s", claim.Outcome, want)
			}
			if want == store.Claimed {
				return
			}
			step := claim.Step
			if step.Status != "failed" || step.FailureKind != "interrupted" || step.FailureMessage != "w1 stopped while search ran" ||
				step.Asked != "unknown" || step.Claim != first.Step.Claim || step.ClaimedBy != "w1" || step.FinishedAt == nil {
				t.Errorf("step %+v, want it interrupted with its claim and worker kept", step)
			}
			diff(t, "row", step, b.step(r.ID))
			if again := b.claim(r); again.Outcome != store.Settled {
				t.Errorf("claimed again: %s, want settled", again.Outcome)
			}

			// The worker turns up after all: known beats unknown, once.
			late := b.settle(first, succeeded)
			if late.Status != "succeeded" || late.FailureKind != "" || late.Asked != "" || string(late.Result) != `{"text":"found"}` {
				t.Errorf("late outcome: %+v, want it to replace the interruption", late)
			}
			diff(t, "later still", late, b.settle(first, failed("no_answer", "unknown")))
		})
	}
}

func TestInterruptedByManyAtOnce(t *testing.T) {
	b := newBench(t)
	r := request("docs", "search")
	b.claim(r)
	b.endLease(r.ID)
	count := map[store.ClaimOutcome]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			claim, err := b.ClaimStep(t.Context(), r)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			count[claim.Outcome]++
		})
	}
	wg.Wait()
	diff(t, "outcomes", map[store.ClaimOutcome]int{store.Interrupted: 1, store.Settled: 7}, count)
}

func TestClaimAndSettleAreOneStatementEach(t *testing.T) {
	t.Parallel()
	var count counter
	s, err := store.OpenTraced(t.Context(), storetest.URL(t), store.Options{}, &count)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.AddServer(t.Context(), store.Server{Identifier: "docs", URL: "https://docs.example", Enabled: true, DataClass: "x"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a new run", "a run that is there"} {
		r := request("docs", "search")
		run := uuid.MustParse("6b8f6c1e-5d0f-4a52-9b1f-111111111111")
		r.RunID = &run
		before := count.statements.Load()
		claim, err := s.ClaimStep(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if claim.Server == nil || claim.Run == nil {
			t.Errorf("%s: claim %+v, want server and run", name, claim)
		}
		if n := count.statements.Load() - before; n != 1 {
			t.Errorf("%s: a claim took %d statements, want 1", name, n)
		}
		before = count.statements.Load()
		if _, err := s.SettleStep(t.Context(), claim.Step, succeeded); err != nil {
			t.Fatal(err)
		}
		if n := count.statements.Load() - before; n != 1 {
			t.Errorf("%s: settling took %d statements, want 1", name, n)
		}
	}
}

func TestRefuseStep(t *testing.T) {
	b := newBench(t)
	invalid := store.Failure{Kind: "invalid_request", Message: "the payload is no JSON", Asked: "no"}
	refuse := func(r store.StepRequest) store.Step {
		t.Helper()
		step, _, err := b.RefuseStep(t.Context(), r, invalid)
		if err != nil {
			t.Fatal(err)
		}
		diff(t, "row", step, b.step(r.ID))
		return step
	}
	run := uuid.New()
	undecodable := store.StepRequest{ID: uuid.New(), RunID: &run, Arguments: []byte("\x00{"), Worker: "w1"}
	step := refuse(undecodable)
	diff(t, "a row that nobody inserted", store.Step{
		ID: undecodable.ID, RunID: &run, Kind: "tool", Arguments: json.RawMessage("\"\uFFFD{\""), Status: "failed", ClaimedBy: "w1",
		FailureKind: "invalid_request", FailureMessage: "the payload is no JSON", Asked: "no", Legs: json.RawMessage(`[]`),
		CreatedAt: step.CreatedAt, FinishedAt: step.FinishedAt,
	}, step)
	diff(t, "refused again", step, refuse(undecodable))

	pending := request("docs", "search")
	b.exec(`insert into agent_step (id, server, tool) values ($1, 'docs', 'search')`, pending.ID)
	if step := refuse(pending); step.Status != "failed" || step.Server != "docs" {
		t.Errorf("a row that waited: %+v, want it failed", step)
	}

	running := request("docs", "search")
	claim := b.claim(running)
	diff(t, "a row that runs", claim.Step, refuse(running))
	settled := b.settle(claim, succeeded)
	diff(t, "a row that has ended", settled, refuse(running))
}

func TestStepNotFound(t *testing.T) {
	b := newBench(t)
	_, err := b.Step(t.Context(), uuid.New())
	wantError(t, err, store.ErrNotFound)
}

func TestSteps(t *testing.T) {
	b := newBench(t)
	run := uuid.New()
	var ids []uuid.UUID
	for i, server := range []string{"docs", "crm", "docs"} {
		r := request(server, "search")
		if i > 0 {
			r.RunID = &run
		}
		claim := b.claim(r)
		b.exec(`update agent_step set created_at = now() + make_interval(secs => $2) where id = $1`, r.ID, i)
		if i == 2 {
			b.settle(claim, succeeded)
		}
		ids = append(ids, r.ID)
	}
	for name, test := range map[string]struct {
		filter store.StepFilter
		want   []uuid.UUID
	}{
		"all, newest first": {store.StepFilter{}, []uuid.UUID{ids[2], ids[1], ids[0]}},
		"the newest":        {store.StepFilter{Limit: 1}, []uuid.UUID{ids[2]}},
		"those that run":    {store.StepFilter{Status: "running"}, []uuid.UUID{ids[1], ids[0]}},
		"of a server":       {store.StepFilter{Server: "docs"}, []uuid.UUID{ids[2], ids[0]}},
		"of a run":          {store.StepFilter{Run: &run}, []uuid.UUID{ids[2], ids[1]}},
		"of all three":      {store.StepFilter{Run: &run, Server: "crm", Status: "running"}, []uuid.UUID{ids[1]}},
		"none":              {store.StepFilter{Server: "nobody"}, nil},
	} {
		steps, err := b.Steps(t.Context(), test.filter)
		if err != nil {
			t.Fatal(err)
		}
		var got []uuid.UUID
		for _, step := range steps {
			got = append(got, step.ID)
		}
		diff(t, name, test.want, got)
	}
}

// nasty is text that Postgres cannot store, or that a careless reader changes.
var nasty = map[string]string{
	"NUL":                  "a\x00b",
	"bad UTF-8":            "a\xff\xfe\xc0\x80b",
	"surrogate in UTF-8":   "\xed\xa0\xbd",
	"only NULs":            "\x00\x00",
	"quotes":               `'"\"; drop table agent_step; --`,
	"control characters":   "\x01\x1b[31m\u0085\u2028",
	"beyond the last rune": "\xf7\xbf\xbf\xbf",
	"a letter cut in half": "größe\xc3",
}

var nastyJSON = map[string]string{
	"escaped NUL":             `{"text":"a\u0000b"}`,
	"escaped NUL in a name":   `{"\u0000":1}`,
	"a lone surrogate":        `{"text":"\ud83d"}`,
	"surrogates swapped":      `{"text":"\ude00\ud83d"}`,
	"bad UTF-8":               "{\"text\":\"\xff\"}",
	"no JSON at all":          "<html>\x00",
	"cut off":                 `{"text":"a`,
	"a raw control character": "{\"text\":\"a\nb\"}",
	"nested a thousand times": strings.Repeat(`[`, 1000) + strings.Repeat(`]`, 1000),
	"nested without end":      strings.Repeat(`{"a":`, 20000) + `1` + strings.Repeat(`}`, 20000),
	"deep in a result":        `{"text":"found","structured":` + strings.Repeat(`[`, 9000) + strings.Repeat(`]`, 9000) + `}`,
	"nested as deep as taken": strings.Repeat(`[`, 500) + strings.Repeat(`]`, 500),
	"numbers":                 `[12345678901234567890123456789012345678901234567890,-0,1e400,1E-400,0.10]`,
	"doubled names":           `{"a":1,"a":2}`,
	"blank space":             " \t\r\n{ } \n",
	"a scalar":                `null`,
}

func TestNastyTextLosesNoStep(t *testing.T) {
	b := newBench(t)
	for name, text := range nasty {
		r := request(text, text)
		r.Worker = text
		claim := b.claim(r)
		step, err := b.SettleStep(t.Context(), claim.Step, store.StepOutcome{Status: "failed",
			Failure: &store.Failure{Kind: "rpc_error", Message: text, Asked: "yes"}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if step.FailureMessage != store.CleanText(text) || step.Server != store.CleanText(text) {
			t.Errorf("%s: message %q, want %q", name, step.FailureMessage, store.CleanText(text))
		}
	}
	for name, raw := range nastyJSON {
		r := request("docs", "search")
		r.Arguments = []byte(raw)
		claim := b.claim(r)
		if string(claim.Step.Arguments) != string(store.KeepJSON([]byte(raw))) {
			t.Errorf("%s: arguments %q", name, claim.Step.Arguments)
		}
		step := b.settle(claim, store.StepOutcome{Status: "succeeded", Result: []byte(raw), Legs: []byte(raw)})
		if string(step.Result) != string(store.CleanResult([]byte(raw))) {
			t.Errorf("%s: result %.200q, want it cleaned and nothing else", name, step.Result)
		}
		// What it was cleaned for: a reader in SQL can take it apart.
		if _, err := b.hand.Exec(t.Context(), `select result::jsonb, result #>> '{}' from agent_step where id = $1`, r.ID); err != nil {
			t.Errorf("%s: the result cannot be read in SQL: %v", name, err)
		}
	}
}

func TestNumbersAndOrderSurvive(t *testing.T) {
	b := newBench(t)
	const sent = `{ "z":9007199254740993, "a":123456789012345678901234567890.10, "m":1.0 }`
	r := request("docs", "search")
	r.Arguments = []byte(sent)
	claim := b.claim(r)
	if string(claim.Step.Arguments) != sent {
		t.Errorf("arguments %s, want %s", claim.Step.Arguments, sent)
	}
	step := b.settle(claim, store.StepOutcome{Status: "succeeded", Result: []byte(sent)})
	if string(step.Result) != sent {
		t.Errorf("result %s, want %s", step.Result, sent)
	}
}

func TestAResultThatPostgresRefusesIsNotLost(t *testing.T) {
	for name, test := range map[string]struct {
		refuse string // what Postgres is made to find fault with
		want   string
	}{
		"as it is nested": {`json_typeof(new.result->'structured') = 'object'`, `{"structured":"{\"a\":[1]}","text":"found"}`},
		"in any form":     {`new.result is not null`, ``},
	} {
		for _, code := range []string{"22P02", "54001"} {
			t.Run(name+" with "+code, func(t *testing.T) {
				b := newBench(t)
				b.exec(fmt.Sprintf(`create function refuse() returns trigger language plpgsql as
					$$ begin if %s then raise exception 'no' using errcode = '%s'; end if; return new; end $$`, test.refuse, code))
				b.exec(`create trigger refuse before update on agent_step for each row execute function refuse()`)
				claim := b.claim(request("docs", "search"))
				step := b.settle(claim, store.StepOutcome{Status: "succeeded", Result: []byte(`{"text":"found","structured":{"a":[1]}}`)})
				if step.Status != "succeeded" || string(step.Result) != test.want {
					t.Errorf("status %s, result %s, want succeeded with %q", step.Status, step.Result, test.want)
				}
			})
		}
	}
}

func TestTheSchemaRefusesStatesThatCannotBe(t *testing.T) {
	b := newBench(t)
	b.exec(`insert into agent_step (id) values (gen_random_uuid())`)
	for name, values := range map[string]string{
		"failed for no reason":          `status = 'failed', finished_at = now()`,
		"succeeded with a failure":      `status = 'succeeded', finished_at = now(), failure_kind = 'no_answer', failure_message = ''`,
		"running without a lease":       `status = 'running', claim = 1, claimed_by = 'w1'`,
		"running for nobody":            `status = 'running', claim = 1, lease_expires_at = now()`,
		"running without a claim":       `status = 'running', claimed_by = 'w1', lease_expires_at = now()`,
		"pending under a lease":         `lease_expires_at = now()`,
		"pending and finished":          `finished_at = now()`,
		"ended without a time":          `status = 'succeeded'`,
		"a failure without a sentence":  `status = 'failed', finished_at = now(), failure_kind = 'no_answer'`,
		"asked perhaps":                 `status = 'failed', finished_at = now(), failure_kind = 'no_answer', failure_message = '', asked = 'perhaps'`,
		"asked, and no failure":         `asked = 'yes'`,
		"of a run that is not there":    `run_id = gen_random_uuid()`,
		"of a kind that does not exist": `kind = 'thought'`,
	} {
		if _, err := b.hand.Exec(t.Context(), `update agent_step set `+values); err == nil || !strings.Contains(err.Error(), "constraint") {
			t.Errorf("%s: error %v, want a constraint's", name, err)
		}
	}
}

func TestSettleInterrupted(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	b.addTool("docs", "look", "read_only")
	dead, repeatable, alive := request("docs", "charge"), request("docs", "look"), request("docs", "charge")
	for _, r := range []store.StepRequest{dead, repeatable, alive} {
		b.claim(r)
	}
	b.endLease(dead.ID)
	b.endLease(repeatable.ID)
	sentence := func(s store.Step) store.Failure {
		return store.Failure{Kind: "interrupted", Message: s.ClaimedBy + " died", Asked: "unknown"}
	}

	// A row that somebody has locked is left for later, and holds up none of the others, even where one is settled at a time.
	locked := request("docs", "charge")
	b.claim(locked)
	b.exec(`update agent_step set lease_expires_at = now() - interval '1 minute' where id = $1`, locked.ID)
	unlock := b.lock(locked.ID)
	settled, err := b.SettleInterrupted(t.Context(), 1, sentence)
	if err != nil || len(settled) != 1 || settled[0].ID != dead.ID || settled[0].Arguments != nil {
		t.Fatalf("settled %+v, %v, want the one that is not locked, without its arguments", settled, err)
	}
	unlock()
	if later, err := b.SettleInterrupted(t.Context(), 10, sentence); err != nil || len(later) != 1 || later[0].ID != locked.ID {
		t.Fatalf("settled %+v, %v, want the one that was locked", later, err)
	}
	if step := b.step(dead.ID); step.Status != "failed" || step.FailureKind != "interrupted" || step.FailureMessage != "w1 died" || step.Asked != "unknown" || step.Claim != 1 {
		t.Errorf("the dead worker's step is %+v", step)
	}
	for _, r := range []store.StepRequest{repeatable, alive} {
		if step := b.step(r.ID); step.Status != "running" {
			t.Errorf("the step of %s is %s", step.Tool, step.Status)
		}
	}
	if again, err := b.SettleInterrupted(t.Context(), 10, sentence); err != nil || len(again) != 0 {
		t.Errorf("a second look settled %+v, %v", again, err)
	}
	if late := b.settle(store.Claim{Step: settled[0]}, succeeded); late.Status != "succeeded" || late.FailureKind != "" {
		t.Errorf("the outcome of a worker that turned up after all: %+v", late)
	}
}

// What is sent to the tool is what stands in the row.
func TestArgumentsAreKeptAsTheyWereSent(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	r := request("docs", "search")
	r.Arguments = []byte(`{"a":"x\u0000y", "b":"\ud800", "c":1e400000}`)
	diff(t, "arguments", string(r.Arguments), string(b.claim(r).Step.Arguments))
	diff(t, "arguments read back", string(r.Arguments), string(b.step(r.ID).Arguments))
}

func TestClaimTellsThatAToolCannotBeCalled(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	b.addServer("crm")
	slow := tool("docs", "slow")
	slow.NotOffered, slow.NotCallable = "it runs only as a task", "it runs only as a task"
	b.importTools("docs", slow, tool("docs", "quick"))
	b.importTools("crm", tool("crm", "slow"))
	told := func(r store.StepRequest) string {
		t.Helper()
		claim := b.claim(r)
		if claim.Outcome != store.Claimed {
			t.Fatalf("claim %+v, want it claimed", claim)
		}
		return claim.NotCallable
	}
	diff(t, "a tool that cannot be called", "it runs only as a task", told(request("docs", "slow")))
	diff(t, "one that can", "", told(request("docs", "quick")))
	diff(t, "one of another server", "", told(request("crm", "slow")))
	diff(t, "one that nobody knows", "", told(request("docs", "unknown")))

	pending := request("docs", "quick")
	b.exec(`insert into agent_step (id, server, tool) values ($1, 'docs', 'slow')`, pending.ID)
	diff(t, "the tool that the row names", "it runs only as a task", told(pending))

	slow.NotOffered, slow.NotCallable = "", ""
	b.importTools("docs", slow, tool("docs", "quick"))
	diff(t, "after the server has changed", "", told(request("docs", "slow")))
}

func TestClaimTellsTheSchemaThatPutsArgumentsIntoHeaders(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	schema := `{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}`
	b.importTools("docs", store.ImportedTool{Name: "mcp_docs_search", RemoteName: "search", InputSchema: []byte(schema)},
		store.ImportedTool{Name: "mcp_docs_plain", RemoteName: "plain", InputSchema: []byte(`{"type":"object"}`)})
	if claim := b.claim(request("docs", "search")); claim.HeaderSchema != nil {
		t.Errorf("a server of the handshake's era has no such headers: %s", claim.HeaderSchema)
	}
	contact := store.Contact{Server: "docs", At: time.Now(), ProtocolVersion: "2026-07-28"}
	if err := b.RecordContacts(t.Context(), []store.Contact{contact}); err != nil {
		t.Fatal(err)
	}
	diff(t, "schema", schema, string(b.claim(request("docs", "search")).HeaderSchema))
	if claim := b.claim(request("docs", "plain")); claim.HeaderSchema != nil {
		t.Errorf("a schema without such annotations was told: %s", claim.HeaderSchema)
	}
}
