package worker_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"

	"legwork/internal/scratch/redistest"
	"legwork/mcp"
	"legwork/mcp/mcptest"
	"legwork/store"
	"legwork/store/storetest"
	"legwork/worker"
)

func TestMain(m *testing.M) { storetest.Main(m) }

// bound is how long a test waits for what must come; it says nothing about how fast it should.
const bound = 60 * time.Second

// bench is what a backend, a worker and an operator have: a queue, a database and the worker's log.
type bench struct {
	t       *testing.T
	url     string // of the database
	store   *store.Store
	sql     *pgxpool.Pool // as somebody who uses the tables without legwork
	redis   asynq.RedisConnOpt
	queue   *asynq.Client
	inspect *asynq.Inspector
	log     *logrus.Logger
	lines   *logtest.Hook
	clock   mcp.Clock                                 // of the operations
	wire    func(http.RoundTripper) http.RoundTripper // what stands between the client and the network; nil: nothing
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return newBenchOn(t, redistest.New(t))
}

// newBenchOn uses a Redis of this URL.
func newBenchOn(t *testing.T, redisURL string) *bench {
	t.Helper()
	queue, err := asynq.ParseRedisURI(redisURL)
	if err != nil {
		t.Fatal(err)
	}
	url := storetest.URL(t)
	rows, err := store.Open(context.Background(), url, worker.StoreOptions())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, url: url, store: rows, sql: conn, redis: queue, queue: asynq.NewClient(queue), inspect: asynq.NewInspector(queue), clock: mcp.MonotonicClock()}
	b.log, b.lines = logtest.NewNullLogger()
	b.log.SetOutput(io.Discard)
	t.Cleanup(func() {
		b.queue.Close()
		b.inspect.Close()
		b.sql.Close()
		b.store.Close()
	})
	return b
}

// start runs a worker until stop is called or the test ends. stop waits for it.
func (b *bench) start(opts worker.Options) (stop func()) {
	b.t.Helper()
	return b.startWith(mcp.GateOptions{AllowPrivateNetworks: true}, opts)
}

func (b *bench) startWith(gateOptions mcp.GateOptions, opts worker.Options) (stop func()) {
	b.t.Helper()
	gate, err := mcp.NewGate(gateOptions)
	if err != nil {
		b.t.Fatal(err)
	}
	network := mcp.NewHTTPTransport(gate)
	var wire http.RoundTripper = network
	if b.wire != nil {
		wire = b.wire(network)
	}
	client := mcp.NewClient(mcp.NewTransport(wire, b.clock), b.clock, "test")
	opts.Redis, opts.Logger = b.redis, b.log
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- worker.New(b.store, client, opts).Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				b.t.Errorf("the worker ended with %v", err)
			}
		case <-time.After(bound):
			b.t.Error("the worker did not stop")
		}
		client.Close()
		network.CloseIdleConnections()
	}
	b.t.Cleanup(stop)
	return stop
}

// addServer adds a server that may be asked, and of which it is known that it wants a handshake.
func (b *bench) addServer(identifier, url string, change ...func(*store.Server)) {
	b.t.Helper()
	b.addUnknownServer(identifier, url, change...)
	b.exec(`update mcp_server set protocol_version = '2025-11-25', protocol_version_at = now() where identifier = $1`, identifier)
}

// addUnknownServer adds a server that may be asked and that nobody has asked yet.
func (b *bench) addUnknownServer(identifier, url string, change ...func(*store.Server)) {
	b.t.Helper()
	server := store.Server{
		Identifier: identifier, Name: identifier, URL: url, AuthPlacement: "none", DataClass: "internal", Enabled: true, RequiresApproval: true,
	}
	for _, c := range change {
		c(&server)
	}
	if err := b.store.AddServer(context.Background(), server); err != nil {
		b.t.Fatal(err)
	}
}

func budget(seconds int) func(*store.Server) {
	return func(s *store.Server) { s.OperationTimeoutSeconds = seconds }
}

func (b *bench) enqueue(task *asynq.Task, opts ...asynq.Option) *asynq.TaskInfo {
	b.t.Helper()
	info, err := b.queue.Enqueue(task, opts...)
	if err != nil {
		b.t.Fatal(err)
	}
	return info
}

// step enqueues a step as a Go backend does.
func (b *bench) step(payload worker.StepPayload, opts ...asynq.Option) (id uuid.UUID, info *asynq.TaskInfo) {
	b.t.Helper()
	payload.Tool = cmp.Or(payload.Tool, "echo")
	task, step, err := worker.NewStepTask(payload, opts...)
	if err != nil {
		b.t.Fatal(err)
	}
	return uuid.MustParse(step), b.enqueue(task)
}

// catalogue enqueues an import as a Go backend does.
func (b *bench) catalogue(server string, opts ...asynq.Option) *asynq.TaskInfo {
	b.t.Helper()
	task, err := worker.NewImportTask(worker.ImportPayload{Server: server}, opts...)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.enqueue(task)
}

// heldCall starts a worker and enqueues a step whose call the server has, and answers when release is closed.
func (b *bench) heldCall(opts worker.Options) (h heldCall) {
	b.t.Helper()
	h.server, h.release = mcptest.New(b.t, mcptest.Options{}), make(chan struct{})
	h.server.On("tools/call", mcptest.Hold(h.release))
	b.addServer("docs", h.server.URL)
	h.stop = b.start(opts)
	h.step, h.task = b.step(worker.StepPayload{Server: "docs"})
	h.server.Await(b.t, "tools/call", 1)
	return h
}

type heldCall struct {
	server  *mcptest.Server
	release chan struct{}
	stop    func() // of the worker
	step    uuid.UUID
	task    *asynq.TaskInfo
}

// awaitStep waits until a step's row is terminal.
func (b *bench) awaitStep(id uuid.UUID) store.Step {
	b.t.Helper()
	return b.awaitStepTo(id, "end", func(step store.Step) bool { return step.FinishedAt != nil })
}

// awaitWaiting waits until a step is seen to wait for a place.
func (b *bench) awaitWaiting(id uuid.UUID) store.Step {
	b.t.Helper()
	return b.awaitStepTo(id, "wait", func(step store.Step) bool { return step.Status == "pending" })
}

func (b *bench) awaitStepTo(id uuid.UUID, what string, does func(store.Step) bool) (step store.Step) {
	b.t.Helper()
	b.await("step "+id.String()+" to "+what, func() bool {
		var err error
		step, err = b.store.Step(context.Background(), id)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			b.t.Fatal(err)
		}
		return err == nil && does(step)
	})
	return step
}

// awaitTask waits until asynq has a task in one of these states.
func (b *bench) awaitTask(info *asynq.TaskInfo, states ...asynq.TaskState) *asynq.TaskInfo {
	b.t.Helper()
	var now *asynq.TaskInfo
	b.await("task "+info.ID+" to get to its state", func() bool {
		var err error
		now, err = b.inspect.GetTaskInfo(info.Queue, info.ID)
		if err != nil {
			b.t.Fatal(err)
		}
		return slices.Contains(states, now.State)
	})
	return now
}

// settledTask waits until asynq is done with a task, one way or the other.
func (b *bench) settledTask(info *asynq.TaskInfo) *asynq.TaskInfo {
	b.t.Helper()
	return b.awaitTask(info, asynq.TaskStateCompleted, asynq.TaskStateArchived)
}

func (b *bench) await(what string, met func() bool) {
	b.t.Helper()
	for end := time.Now().Add(bound); !met(); {
		if time.Now().After(end) {
			b.t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// said counts the lines of the log that hold this.
func (b *bench) said(text string) (n int) {
	for _, e := range b.lines.AllEntries() {
		if strings.Contains(e.Message, text) {
			n++
		}
	}
	return n
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.sql.Exec(context.Background(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

// cutOff keeps everybody out of the database until restore is called, as a Postgres that is gone does.
func (b *bench) cutOff() (restore func()) {
	b.t.Helper()
	config, err := pgx.ParseConfig(b.url)
	if err != nil {
		b.t.Fatal(err)
	}
	name := pgx.Identifier{config.Database}.Sanitize()
	config.Database = "postgres"
	conn, err := pgx.ConnectConfig(context.Background(), config)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close(context.Background()) })
	run := func(sql string, args ...any) {
		b.t.Helper()
		if _, err := conn.Exec(context.Background(), sql, args...); err != nil {
			b.t.Fatal(err)
		}
	}
	run("alter database " + name + " with allow_connections false")
	run("select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", strings.Trim(name, `"`))
	return func() { run("alter database " + name + " with allow_connections true") }
}

func legsOf(t *testing.T, raw json.RawMessage) []mcp.Leg {
	t.Helper()
	var legs []mcp.Leg
	if err := json.Unmarshal(raw, &legs); err != nil {
		t.Fatalf("legs %s: %v", raw, err)
	}
	return legs
}

func TestStartRefusesWhatCannotKeepItsPromises(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := func(s *store.Store, queue asynq.RedisConnOpt) error {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		return worker.New(s, nil, worker.Options{Redis: queue, Logger: b.log}).Run(ctx)
	}

	t.Run("Redis that is not there", func(t *testing.T) {
		err := run(b.store, asynq.RedisClientOpt{Addr: strings.TrimPrefix(strings.TrimSuffix(mcptest.Nowhere(t), "/mcp"), "http://")})
		if err == nil || !strings.Contains(err.Error(), "cannot reach Redis") || !strings.Contains(err.Error(), "LEGWORK_REDIS_URL") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("Redis that evicts", func(t *testing.T) {
		private := redistest.Start(t)
		opt, err := asynq.ParseRedisURI(private.URL)
		if err != nil {
			t.Fatal(err)
		}
		client := opt.MakeRedisClient().(redis.UniversalClient)
		defer client.Close()
		if err := client.ConfigSet(context.Background(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
			t.Fatal(err)
		}
		if err := run(b.store, opt); err == nil || !strings.Contains(err.Error(), "set maxmemory-policy to noeviction") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a database without the schema", func(t *testing.T) {
		bare, err := store.Open(context.Background(), storetest.Empty(t), store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer bare.Close()
		if err := run(bare, b.redis); err == nil || !strings.Contains(err.Error(), `run "legwork migrate up"`) {
			t.Errorf("got %v", err)
		}
	})
}

func TestShutdownSettlesWhatRuns(t *testing.T) {
	t.Run("with time enough", func(t *testing.T) { shutDownInACall(t, worker.Options{}) })
	// asynq gives a handler up then, but the call is at the server, and its outcome is not to be lost.
	t.Run("when asynq does not wait", func(t *testing.T) { shutDownInACall(t, worker.Options{ShutdownTimeout: time.Millisecond}) })
}

func shutDownInACall(t *testing.T, opts worker.Options) {
	b := newBench(t)
	before := goleak.IgnoreCurrent()
	held := b.heldCall(opts)
	stopped := make(chan struct{})
	go func() {
		held.stop()
		close(stopped)
	}()
	b.await("no more tasks to be taken", func() bool { return b.said("no more tasks are taken") == 1 })
	late, _ := b.step(worker.StepPayload{Server: "docs"})
	select {
	case <-stopped:
		t.Fatal("the worker stopped while an operation ran")
	default:
	}
	close(held.release)
	<-stopped

	if step := b.awaitStep(held.step); step.Status != "succeeded" {
		t.Errorf("the step that ran ended as %s: %s", step.Status, step.FailureMessage)
	}
	if _, err := b.store.Step(context.Background(), late); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a step that came while the worker was stopping was begun (%v)", err)
	}
	row, err := b.store.Server(context.Background(), "docs")
	if err != nil || row.LastContactAt == nil || row.LastLatencyMS == nil {
		t.Errorf("the last contact was lost at shutdown: %+v, %v", row, err)
	}
	// The database's own pool and the asynq client of the test live on.
	goleak.VerifyNone(t, before, goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgxpool.(*Pool).backgroundHealthCheck"),
		goleak.IgnoreAnyFunction("net/http/httptest.(*Server).goServe.func1"), goleak.IgnoreAnyFunction("net/http.(*conn).serve"),
		goleak.IgnoreAnyFunction("net/http.(*connReader).backgroundRead"), goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).reaper"),
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/maintnotifications.(*CircuitBreakerManager).cleanupLoop"))
}

// Postgres is away between the answer and the settling, for longer than a settle is tried for.
func TestAnOutcomeIsKeptUntilItCanBeWrittenDown(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	held := b.heldCall(worker.Options{})
	restore := b.cutOff()
	close(held.release)
	later, _ := b.step(worker.StepPayload{Server: "docs"}) // which cannot even be claimed
	b.log.SetLevel(logrus.DebugLevel)
	said := func(text string) func() bool {
		return func() bool {
			return slices.ContainsFunc(b.lines.AllEntries(), func(e *logrus.Entry) bool {
				err, _ := e.Data[logrus.ErrorKey].(error)
				return err != nil && strings.Contains(err.Error(), text)
			})
		}
	}
	b.await("the log to say that a step could not be claimed", said("step "+later.String()+" could not be claimed, so it was not begun"))
	b.await("the log to say that no job can be begun", func() bool { return b.said("no job can be begun") == 1 })
	b.await("the log to say that the outcome could not be written down", said("the outcome of step "+held.step.String()+" could not be written down yet"))
	if slices.ContainsFunc(b.lines.AllEntries(), func(e *logrus.Entry) bool { return strings.Contains(e.Message, "succeeded") }) {
		t.Error("the log calls a step succeeded whose row does not")
	}
	restore()
	b.await("the log to say that jobs are begun again", func() bool { return b.said("jobs are begun again") == 1 })
	if step := b.awaitStep(held.step); step.Status != "succeeded" || step.Claim != 1 {
		t.Errorf("the step is %s with claim %d: %s", step.Status, step.Claim, step.FailureMessage)
	}
	b.awaitStep(later)
	if got := len(held.server.Sent("tools/call")); got != 2 {
		t.Errorf("the server was called %d times, want once for each step", got)
	}
	b.await("the contact to be written, which could not be at first", func() bool {
		row, err := b.store.Server(context.Background(), "docs")
		return err == nil && row.LastContactAt != nil
	})
}

func TestOneLogLineForEachOperation(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	b.addServer("docs", server.URL)
	b.addServer("fax", mcptest.Nowhere(t))
	b.start(worker.Options{})

	run := uuid.NewString()
	good, _ := b.step(worker.StepPayload{Server: "docs", RunID: run})
	bad, _ := b.step(worker.StepPayload{Server: "fax"})
	imported := b.catalogue("docs")
	b.awaitStep(good)
	b.awaitStep(bad)
	b.settledTask(imported)

	lineOf := func(field, value string) *logrus.Entry {
		t.Helper()
		var found []*logrus.Entry
		b.await("the line of "+value, func() bool {
			found = found[:0]
			for _, e := range b.lines.AllEntries() {
				if e.Data[field] == value {
					found = append(found, e)
				}
			}
			return len(found) > 0
		})
		if len(found) != 1 {
			t.Errorf("%d lines about %s %s, want one", len(found), field, value)
		}
		for _, name := range []string{"task", "run", "step", "server", "tool", "kind", "asked", "legs", "elapsed"} {
			if _, ok := found[0].Data[name]; !ok {
				t.Errorf("the line of %s %s has no field %s", field, value, name)
			}
		}
		return found[0]
	}
	if e := lineOf("step", good.String()); e.Level != logrus.InfoLevel || e.Data["run"] != run || e.Data["kind"] != "" || e.Data["asked"] != "yes" ||
		!strings.Contains(e.Data["legs"].(string), "tools/call ") {
		t.Errorf("the line of a step that succeeded: %s %v", e.Message, e.Data)
	}
	if e := lineOf("step", bad.String()); e.Level != logrus.WarnLevel || e.Data["kind"] != "unreachable" || e.Data["asked"] != "no" || !strings.Contains(e.Message, "Unreachable: ") {
		t.Errorf("the line of a step that failed: %s %v", e.Message, e.Data)
	}
	if e := lineOf("task", imported.ID); e.Data["server"] != "docs" || !strings.Contains(e.Data["legs"].(string), "tools/list ") {
		t.Errorf("the line of an import: %s %v", e.Message, e.Data)
	}
}

func TestServerOfTakesEveryField(t *testing.T) {
	t.Parallel()
	row := store.Server{
		Identifier: "docs", URL: "https://docs.example/mcp", Credential: "env:SECRET", AuthPlacement: "header", AuthHeaderName: "X-Key",
		Headers:       map[string]string{"B": "2", "C": "3", "A": "env:A"},
		OAuthTokenURL: "https://login.example/token", OAuthClientID: "legwork", OAuthScope: "read write",
		OAuthParameters: map[string]string{"audience": "docs"}, OAuthSecretInBody: true,
		TLSCA: "env:CA", TLSCertificate: "env:CERT", TLSKey: "env:KEY", ProtocolVersion: "2025-11-25",
	}
	want := mcp.Server{
		Identifier: "docs", URL: "https://docs.example/mcp", Revision: "2025-11-25",
		Credential: mcp.Credential{Reference: "env:SECRET", Placement: mcp.PlaceHeader, HeaderName: "X-Key", OAuth: mcp.OAuth{
			TokenURL: "https://login.example/token", ClientID: "legwork", Scope: "read write",
			Parameters: map[string]string{"audience": "docs"}, SecretInBody: true,
		}},
		Headers: []mcp.Header{{Name: "A", Value: "env:A"}, {Name: "B", Value: "2"}, {Name: "C", Value: "3"}},
		TLS:     mcp.TLS{CA: "env:CA", Certificate: "env:CERT", Key: "env:KEY"},
	}
	got := worker.ServerOf(row)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// A field that comes later is to be taken too. The token is none of the row's.
	var every func(path string, value reflect.Value)
	every = func(path string, value reflect.Value) {
		if value.IsZero() && path != "Server.Token" {
			t.Errorf("%s is left out", path)
		}
		if value.Kind() == reflect.Struct && path != "Server.Token" {
			for i := range value.NumField() {
				every(path+"."+value.Type().Field(i).Name, value.Field(i))
			}
		}
	}
	every("Server", reflect.ValueOf(got))
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
}
