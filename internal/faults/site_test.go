package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"legwork/internal/proctest"
	"legwork/internal/scratch"
	"legwork/store"
	"legwork/worker"
)

const (
	// bound is how long a test waits for what must come soon; it says nothing about how fast it should.
	bound = 2 * time.Minute

	// asynqBound is for what may have to wait for asynq to notice that a worker is gone.
	asynqBound = 6 * time.Minute

	// noticed is what is promised of a dead worker's step: that it is looked after so soon after its lease is over.
	noticed = 10 * time.Second

	// slack is for a machine that is busy.
	slack = 5 * time.Second
)

// site is an installation: a Postgres and a Redis of its own, and what a backend needs to use them.
type site struct {
	t           *testing.T
	postgres    *scratch.Postgres
	redis       *scratch.Redis
	databaseURL string
	store       *store.Store
	sql         *pgxpool.Pool
	queue       *asynq.Client
	inspect     *asynq.Inspector
}

func newSite(t *testing.T) *site {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // they may have to be installed
	defer cancel()
	if err := scratch.Ensure(ctx, os.Stderr, scratch.PostgresProgram, scratch.RedisProgram); err != nil {
		t.Fatal(err)
	}
	s := &site{t: t}
	var err error
	if s.postgres, err = scratch.StartPostgres(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.check(s.postgres.Stop()) })
	if s.redis, err = scratch.StartRedis(ctx, scratch.Durable); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.check(s.redis.Stop()) })
	s.databaseURL = s.postgres.URL
	if _, err := store.MigrateUp(ctx, s.databaseURL); err != nil {
		t.Fatal(err)
	}
	if s.store, err = store.Open(ctx, s.databaseURL, store.Options{MaxConns: 8}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.store.Close)
	if s.sql, err = pgxpool.New(ctx, s.databaseURL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.sql.Close)
	redis, err := asynq.ParseRedisURI(s.redis.URL)
	if err != nil {
		t.Fatal(err)
	}
	s.queue, s.inspect = asynq.NewClient(redis), asynq.NewInspector(redis)
	t.Cleanup(func() {
		s.queue.Close()
		s.inspect.Close()
	})
	return s
}

func (s *site) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Error(err)
	}
}

func (s *site) exec(statement string, values ...any) {
	s.t.Helper()
	if _, err := s.sql.Exec(context.Background(), statement, values...); err != nil {
		s.t.Fatal(err)
	}
}

// cutInFront puts a proxy in front of what a URL leads to, and returns it with the URL that leads through it.
func (s *site) cutInFront(of string) (*cut, string) {
	s.t.Helper()
	u, err := url.Parse(of)
	if err != nil {
		s.t.Fatal(err)
	}
	c, err := newCut(u.Host)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.close)
	u.Host = c.address()
	return c, u.String()
}

// The three effects that a tool can have, which are the names of the tools that have them.
const (
	writes = "non_idempotent_write"
	puts   = "idempotent_write"
	reads  = "read_only"
)

// add configures a server that may be asked, with a tool of each effect. limit is of its operations under way.
func (s *site) add(identifier, url string, budget time.Duration, limit int) {
	s.t.Helper()
	err := s.store.AddServer(context.Background(), store.Server{
		Identifier: identifier, Name: identifier, URL: url, AuthPlacement: "none", DataClass: "test", Enabled: true,
		OperationTimeoutSeconds: int(budget / time.Second),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.exec(`update mcp_server set protocol_version = '2025-11-25', protocol_version_at = now(), max_in_flight = nullif($2, 0)
		where identifier = $1`, identifier, limit)
	for _, effect := range []string{writes, puts, reads} {
		s.exec(`insert into mcp_tool (name, server, remote_name, effect) values ($1, $2, $3, $3)`,
			"mcp_"+identifier+"_"+effect, identifier, effect)
	}
}

func arguments(id uuid.UUID) json.RawMessage { return json.RawMessage(fmt.Sprintf(`{"step":%q}`, id)) }

// step enqueues a step as a Go backend does.
func (s *site) step(server, tool string, opts ...asynq.Option) uuid.UUID {
	s.t.Helper()
	id := uuid.New()
	s.enqueue(id, server, tool, opts...)
	return id
}

func (s *site) enqueue(id uuid.UUID, server, tool string, opts ...asynq.Option) {
	s.t.Helper()
	task, _, err := worker.NewStepTask(worker.StepPayload{Server: server, Tool: tool, StepID: id.String(), Arguments: arguments(id)})
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.queue.Enqueue(task, opts...); err != nil {
		s.t.Fatal(err)
	}
}

// row inserts a step as a backend does that has its rows first.
func (s *site) row(server, tool string) uuid.UUID {
	s.t.Helper()
	id := uuid.New()
	s.exec(`insert into agent_step (id, server, tool, arguments) values ($1, $2, $3, $4)`, id, server, tool, arguments(id))
	return id
}

// steps enqueues many.
func (s *site) steps(n int, server, tool string, opts ...asynq.Option) []uuid.UUID {
	s.t.Helper()
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = s.step(server, tool, opts...)
	}
	return ids
}

// read is a step's row, and false while there is none.
func (s *site) read(id uuid.UUID) (store.Step, bool) {
	s.t.Helper()
	step, err := s.store.Step(context.Background(), id)
	if errors.Is(err, store.ErrNotFound) {
		return store.Step{}, false
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return step, true
}

// await waits until a step's row is as it should be, and returns it.
func (s *site) await(id uuid.UUID, within time.Duration, what string, is func(store.Step) bool) store.Step {
	s.t.Helper()
	var step store.Step
	until(s.t, within, func() string { return fmt.Sprintf("step %s to be %s; it is %s", id, what, brief(step)) }, func() bool {
		var found bool
		step, found = s.read(id)
		return found && is(step)
	})
	return step
}

func (s *site) awaitEnd(id uuid.UUID) store.Step {
	s.t.Helper()
	return s.await(id, bound, "over", store.Step.Terminal)
}

// awaitAll waits until all of these have ended, and returns their rows.
func (s *site) awaitAll(ids []uuid.UUID, within time.Duration) map[uuid.UUID]store.Step {
	s.t.Helper()
	var left []string
	until(s.t, within, func() string { return fmt.Sprintf("%d steps to end; these have not: %s", len(ids), some(left)) }, func() bool {
		left = s.unended(ids)
		return len(left) == 0
	})
	rows, err := s.sql.Query(context.Background(), `select id from agent_step where id = any($1)`, ids)
	if err != nil {
		s.t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		s.t.Fatal(err)
	}
	all := map[uuid.UUID]store.Step{}
	for _, id := range found {
		all[id], _ = s.read(id)
	}
	return all
}

// awaitRows waits until there are so many steps.
func (s *site) awaitRows(n int) {
	s.t.Helper()
	var have int
	until(s.t, bound, func() string { return fmt.Sprintf("%d steps to have rows; %d have", n, have) }, func() bool {
		if err := s.sql.QueryRow(context.Background(), `select count(*) from agent_step`).Scan(&have); err != nil {
			s.t.Fatal(err)
		}
		return have >= n
	})
}

// unended describes those that have not ended.
func (s *site) unended(ids []uuid.UUID) []string {
	s.t.Helper()
	rows, err := s.sql.Query(context.Background(), `
		select format('%s %s claim %s by %s lease %s woken %s created %s', i.id, coalesce(s.status, 'no row'), s.claim, s.claimed_by,
			s.lease_expires_at, s.woken_at, s.created_at)
		from unnest($1::uuid[]) as i (id) left join agent_step s using (id)
		where s.finished_at is null`, ids)
	if err != nil {
		s.t.Fatal(err)
	}
	left, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		s.t.Fatal(err)
	}
	return left
}

func some(lines []string) string {
	if len(lines) > 5 {
		return strings.Join(lines[:5], "; ") + fmt.Sprintf("; and %d more", len(lines)-5)
	}
	return strings.Join(lines, "; ")
}

func brief(s store.Step) string {
	return strings.TrimSpace(fmt.Sprintf("%s, claim %d by %s, %s %s", s.Status, s.Claim, s.ClaimedBy, s.FailureKind, s.FailureMessage))
}

// awaitQuietQueue waits until asynq has nothing left to deliver.
func (s *site) awaitQuietQueue() {
	s.t.Helper()
	var info *asynq.QueueInfo
	until(s.t, asynqBound, func() string { return fmt.Sprintf("the queue to be empty: %+v", info) }, func() bool {
		var err error
		info, err = s.inspect.GetQueueInfo(worker.QueueAgent)
		return err == nil && info.Active+info.Pending+info.Scheduled+info.Retry == 0
	})
}

// until waits for a condition.
func until(t testing.TB, within time.Duration, what func() string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %s in vain for %s", within, what())
		}
	}
}

func text(s string) func() string { return func() string { return s } }

// process is a worker at work.
type process struct {
	*proctest.Process
	t testing.TB
}

// settings change a worker's environment.
type settings map[string]string

// worker starts a worker and waits until it takes tasks. It is killed when the test ends.
func (s *site) worker(change settings) *process {
	s.t.Helper()
	env := settings{
		"LEGWORK_DATABASE_URL": s.databaseURL, "LEGWORK_REDIS_URL": s.redis.URL, "LEGWORK_ALLOW_PRIVATE_NETWORKS": "1",
		"LEGWORK_LOG_FORMAT": "json",
	}
	for name, value := range change {
		env[name] = value
	}
	p := &process{proctest.Start(s.t, env, binary, "worker"), s.t}
	p.AwaitSaying("the worker is taking tasks")
	return p
}

// stop asks a worker to stop, and returns how long that took.
func (p *process) stop() time.Duration {
	p.t.Helper()
	began := time.Now()
	p.Signal(syscall.SIGTERM)
	if code := p.End(); code != 0 {
		p.t.Errorf("exit code %d, want 0:\n%s", code, p.Tail(20))
	}
	took := time.Since(began)
	p.t.Logf("the worker was gone %s after it was asked to", took.Round(time.Millisecond))
	return took
}

// wantStopped asks a worker to stop, and wants it gone in time.
func (p *process) wantStopped(within time.Duration) {
	p.t.Helper()
	if took := p.stop(); took > within {
		p.t.Errorf("it took %s to stop, want at most %s", took, within)
	}
}

// besides is what a worker has logged that is not about one operation.
func (p *process) besides() []string {
	var lines []string
	for line := range strings.Lines(p.Output()) {
		var entry struct{ Step string }
		if json.Unmarshal([]byte(line), &entry) != nil || entry.Step == "" {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// status reads a number out of /proc/PID/status, such as VmRSS in kB.
func (p *process) status(field string) int {
	p.t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if value, found := strings.CutPrefix(line, field+":"); found {
			n, err := strconv.Atoi(strings.Fields(value)[0])
			if err != nil {
				p.t.Fatal(err)
			}
			return n
		}
	}
	p.t.Fatalf("/proc/PID/status has no %s", field)
	return 0
}

// files is how many files and connections a process has open.
func (p *process) files() int {
	p.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
	if err != nil {
		p.t.Fatal(err)
	}
	return len(entries)
}

// freeAddress is one that nobody listens on at this moment.
func freeAddress(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
