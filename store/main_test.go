package store_test

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"legwork/store"
	"legwork/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }

// bench is one database, seen through the store and by hand.
type bench struct {
	*store.Store
	t    *testing.T
	url  string
	hand *pgx.Conn
}

func newBench(t *testing.T) *bench {
	t.Helper()
	t.Parallel()
	databaseURL := storetest.URL(t)
	s, err := store.Open(t.Context(), databaseURL, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	hand, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hand.Close(context.Background()) })
	return &bench{Store: s, t: t, url: databaseURL, hand: hand}
}

// exec changes rows behind the store's back.
func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	tag, err := b.hand.Exec(b.t.Context(), sql, args...)
	if err != nil {
		b.t.Fatal(err)
	}
	if (tag.Update() || tag.Delete()) && tag.RowsAffected() == 0 {
		b.t.Fatalf("no row was changed by %s", sql)
	}
}

// ask reads one value.
func ask[T any](b *bench, sql string, args ...any) T {
	b.t.Helper()
	var value T
	if err := b.hand.QueryRow(b.t.Context(), sql, args...).Scan(&value); err != nil {
		b.t.Fatal(err)
	}
	return value
}

// addServer adds a server that is usable.
func (b *bench) addServer(identifier string, change ...func(*store.Server)) {
	b.t.Helper()
	server := store.Server{
		Identifier: identifier, URL: "https://" + identifier + ".example/mcp", DataClass: "internal",
		RequiresApproval: true, Enabled: true,
	}
	for _, c := range change {
		c(&server)
	}
	if err := b.AddServer(b.t.Context(), server); err != nil {
		b.t.Fatal(err)
	}
}

// addTool imports one tool for a server and declares its effect.
func (b *bench) addTool(server, remoteName, effect string) {
	b.t.Helper()
	b.importTools(server, tool(server, remoteName))
	if err := b.SetToolEffect(b.t.Context(), "mcp_"+server+"_"+remoteName, effect); err != nil {
		b.t.Fatal(err)
	}
}

func request(server, tool string) store.StepRequest {
	return store.StepRequest{
		ID: uuid.New(), Server: server, Tool: tool, Arguments: []byte(`{"q":1}`), Worker: "w1",
		Budget: 20 * time.Second, Margin: 15 * time.Second,
	}
}

func (b *bench) claim(request store.StepRequest) store.Claim {
	b.t.Helper()
	claim, err := b.ClaimStep(b.t.Context(), request)
	if err != nil {
		b.t.Fatal(err)
	}
	return claim
}

// settle returns the row as it then stands.
func (b *bench) settle(claim store.Claim, outcome store.StepOutcome) store.Step {
	b.t.Helper()
	told, err := b.SettleStep(b.t.Context(), claim.Step, outcome)
	if err != nil {
		b.t.Fatal(err)
	}
	step := b.step(claim.Step.ID)
	want := step
	want.Arguments, want.Result = nil, nil
	diff(b.t, "what the settling told", want, told)
	return step
}

func (b *bench) step(id uuid.UUID) store.Step {
	b.t.Helper()
	step, err := b.Step(b.t.Context(), id)
	if err != nil {
		b.t.Fatal(err)
	}
	return step
}

// lock holds the lock of a step's row, as somebody else's transaction does, until it is told to let go.
func (b *bench) lock(id uuid.UUID) (unlock func()) {
	b.t.Helper()
	tx, err := b.hand.Begin(b.t.Context())
	if err == nil {
		_, err = tx.Exec(b.t.Context(), `select from agent_step where id = $1 for update`, id)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return func() {
		b.t.Helper()
		if err := tx.Rollback(b.t.Context()); err != nil {
			b.t.Error(err)
		}
	}
}

// endLease makes the step look as if its worker had died.
func (b *bench) endLease(id uuid.UUID) {
	b.t.Helper()
	b.exec(`update agent_step set lease_expires_at = now() - interval '1 second' where id = $1`, id)
}

var succeeded = store.StepOutcome{Status: "succeeded", Result: []byte(`{"text":"found"}`), Legs: []byte(`[]`), BudgetMS: 20000}

func failed(kind, asked string) store.StepOutcome {
	return store.StepOutcome{
		Status:   "failed",
		Failure:  &store.Failure{Kind: kind, Message: "server \"docs\": " + kind, Asked: asked},
		Legs:     []byte(`[{"method":"initialize","granted_ms":20000,"elapsed_ms":4000,"outcome":"ok","status":200}]`),
		BudgetMS: 20000,
	}
}

func wantError(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}

func diff(t *testing.T, what string, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// counter counts the statements that go to Postgres.
type counter struct{ statements atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.statements.Add(1)
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

const centuries = time.Duration(math.MaxInt64)
