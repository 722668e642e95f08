package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"legwork/store"
	"legwork/worker"
)

const (
	stepRate     = "steps/s"
	cpuWorkers   = "CPU, worker"
	cpuPostgres  = "CPU, Postgres"
	cpuRedis     = "CPU, Redis"
	cpuStub      = "CPU, stub"
	startMedian  = "start, p50"
	startLate    = "start, p95"
	idleShare    = "share of a core, idle"
	stepsAtOnce  = 32
	bareName     = "bare"
	bareSDKName  = "bare with the Go SDK"
	stepPatience = 2 * time.Minute
)

var stepMeasures = []string{stepRate, cpuWorkers, cpuPostgres, cpuRedis, cpuStub}

// plant is what a worker needs: Postgres, Redis, a server, and the program.
type plant struct {
	b           *bench
	databaseURL string
	redisURL    string
	binary      string
	conn        *pgx.Conn
	redis       *redis.Client
	tasks       *asynq.Client
	services    map[string]family // by what their CPU is called
	closers     []func()
}

func (p *plant) close() {
	for i := len(p.closers) - 1; i >= 0; i-- {
		p.closers[i]()
	}
}

func (b *bench) newPlant(ctx context.Context) (p *plant, err error) {
	p = &plant{b: b}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	folder, err := os.MkdirTemp("", "legwork-bench-")
	if err != nil {
		return nil, err
	}
	p.closers = append(p.closers, func() { os.RemoveAll(folder) })
	p.binary = filepath.Join(folder, "legwork")
	build := exec.CommandContext(ctx, "go", "build", "-o", p.binary, "legwork/cmd/legwork")
	if output, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build legwork: %w: %s", err, output)
	}
	postgres, server, stop, err := b.startServers(ctx, true)
	if err != nil {
		return nil, err
	}
	p.closers = append(p.closers, stop)
	p.databaseURL, p.redisURL = postgres.URL, server.URL
	if _, err := store.MigrateUp(ctx, p.databaseURL); err != nil {
		return nil, err
	}
	if p.conn, err = pgx.Connect(ctx, p.databaseURL); err != nil {
		return nil, err
	}
	p.closers = append(p.closers, func() { p.conn.Close(context.WithoutCancel(ctx)) })
	// Known by its revision, and without a limit that would be felt.
	_, err = p.conn.Exec(ctx, `
		insert into mcp_server (identifier, name, url, auth_placement, data_class, enabled, protocol_version, max_in_flight)
		values ('stub', 'stub', $1, 'none', 'internal', true, $2, 10000)`, b.stub.url(pathPlain), revisionHandshake)
	if err != nil {
		return nil, err
	}
	options, err := redis.ParseURL(p.redisURL)
	if err != nil {
		return nil, err
	}
	p.redis = redis.NewClient(options)
	p.closers = append(p.closers, func() { p.redis.Close() })
	p.tasks = asynq.NewClientFromRedisClient(p.redis)
	p.services, err = p.findServices(ctx)
	return p, err
}

// findServices finds the processes of what the workers share.
func (p *plant) findServices(ctx context.Context) (map[string]family, error) {
	var backend int
	if err := p.conn.QueryRow(ctx, `select pg_backend_pid()`).Scan(&backend); err != nil {
		return nil, err
	}
	info, err := p.redis.InfoMap(ctx, "server").Result()
	if err != nil {
		return nil, err
	}
	server, err := strconv.Atoi(info["Server"]["process_id"])
	if err != nil {
		return nil, fmt.Errorf("redis does not say what process it is: %w", err)
	}
	return map[string]family{cpuPostgres: family(parentOf(backend)), cpuRedis: family(server), cpuStub: family(p.b.stub.command.Process.Pid)}, nil
}

// clear leaves neither rows nor tasks.
func (p *plant) clear(ctx context.Context) error {
	_, err := p.conn.Exec(ctx, `truncate agent_step`)
	return errors.Join(err, p.redis.FlushDB(ctx).Err())
}

func (p *plant) enqueue(ctx context.Context) (uuid.UUID, error) {
	task, id, err := worker.NewStepTask(worker.StepPayload{Server: "stub", Tool: toolName, Arguments: []byte(toolArguments)})
	if err != nil {
		return uuid.Nil, err
	}
	_, err = p.tasks.EnqueueContext(ctx, task)
	return uuid.MustParse(id), err
}

// start starts a worker of this name as a process; stop ends it and waits for it.
func (p *plant) start(name string) (pid int, stop func() error, err error) {
	command := exec.Command(p.binary, "worker")
	if name != nameLegwork {
		if command, err = self(name); err != nil {
			return 0, nil, err
		}
	} else {
		command.Env = os.Environ()
	}
	command.Env = append(command.Env, variableDatabase+"="+p.databaseURL, variableRedis+"="+p.redisURL,
		variableConcurrency+"="+strconv.Itoa(stepsAtOnce), "LEGWORK_ALLOW_PRIVATE_NETWORKS=true")
	var said strings.Builder
	log, err := os.CreateTemp(filepath.Dir(p.binary), "log-") // a file: what reads a pipe would cost the worker's cores something
	if err != nil {
		return 0, nil, err
	}
	command.Stderr = log
	if err := command.Start(); err != nil {
		log.Close()
		return 0, nil, err
	}
	return command.Process.Pid, func() error {
		defer log.Close()
		if err := command.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		if err := command.Wait(); err != nil {
			if text, readErr := os.ReadFile(log.Name()); readErr == nil {
				said.Write(text[max(0, len(text)-1000):])
			}
			return fmt.Errorf("%s: %w: %s", name, err, said.String())
		}
		return nil
	}, nil
}

// settled waits until so many steps have ended, and returns how many went well.
func (p *plant) settled(ctx context.Context, n int) (int, error) {
	var ended, well int
	for end := time.Now().Add(stepPatience); ; time.Sleep(50 * time.Millisecond) {
		err := p.conn.QueryRow(ctx, `
			select count(*) filter (where finished_at is not null), count(*) filter (where status = 'succeeded') from agent_step`).Scan(&ended, &well)
		if err != nil || ended >= n {
			return well, err
		}
		if time.Now().After(end) {
			return well, fmt.Errorf("only %d of %d steps ended", ended, n)
		}
	}
}

// run is how quickly so many workers get through the steps that wait when they start: from the first start to the last end,
// as the rows tell. CPU is told for each step, with the workers' own start.
func (p *plant) run(ctx context.Context, name string, workers, n int) (sample, error) {
	if err := p.clear(ctx); err != nil {
		return nil, err
	}
	for range n {
		if _, err := p.enqueue(ctx); err != nil {
			return nil, err
		}
	}
	cpu := map[string]time.Duration{}
	for measure, service := range p.services {
		cpu[measure] -= service.cpu()
	}
	var pids []int
	var stops []func() error
	for range workers {
		pid, stop, err := p.start(name)
		if err != nil {
			return nil, err
		}
		pids, stops = append(pids, pid), append(stops, stop)
	}
	well, err := p.settled(ctx, n)
	if err == nil && well != n {
		err = fmt.Errorf("%d of %d steps did not succeed", n-well, n)
	}
	var seconds float64
	if err == nil {
		err = p.conn.QueryRow(ctx, `select extract(epoch from max(finished_at) - min(started_at))::float8 from agent_step`).Scan(&seconds)
	}
	s := sample{stepRate: float64(n) / seconds}
	for _, pid := range pids {
		cpu[cpuWorkers] += family(pid).cpu()
	}
	for measure, service := range p.services {
		cpu[measure] += service.cpu()
	}
	for measure, spent := range cpu {
		if spent > 0 {
			s[measure] = float64(spent) / float64(n)
		}
	}
	for _, stop := range stops {
		err = errors.Join(err, stop())
	}
	return s, err
}

// steps compares the whole worker with bare ones, and with several of its own.
func steps(ctx context.Context, b *bench) error {
	p, err := b.newPlant(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	n := b.pick(3000, 40)
	var contenders []contender
	add := func(name, program string, workers int) {
		contenders = append(contenders, contender{name, func(ctx context.Context) (sample, error) { return p.run(ctx, program, workers, n) }})
	}
	add(nameLegwork, nameLegwork, 1)
	add(bareName, bareName, 1)
	add(bareSDKName, bareSDKName, 1)
	add("2 workers", nameLegwork, 2)
	add("4 workers", nameLegwork, 4)
	return b.compare(ctx, fmt.Sprintf("%d steps that wait, %d at once in each worker", n, stepsAtOnce), stepMeasures, contenders, []bound{
		{measure: stepRate, of: nameLegwork, over: bareName, atLeast: 0.9},
		{measure: stepRate, of: nameLegwork, over: bareSDKName, atLeast: 1.3},
		{measure: stepRate, of: "2 workers", over: nameLegwork},
		{measure: stepRate, of: "4 workers", over: nameLegwork},
	})
}

// start measures how soon an idle worker begins with a step, and what it costs to be idle.
func start(ctx context.Context, b *bench) error {
	p, err := b.newPlant(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	n := b.pick(100, 5)
	var contenders []contender
	for _, name := range []string{nameLegwork, bareName} {
		contenders = append(contenders, contender{name, func(ctx context.Context) (s sample, err error) {
			if err := p.clear(ctx); err != nil {
				return nil, err
			}
			pid, stop, err := p.start(name)
			if err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, stop()) }()
			return p.latency(ctx, pid, n)
		}})
	}
	return b.compare(ctx, fmt.Sprintf("%d steps, one after the other", n), []string{startMedian, startLate, idleShare}, contenders, []bound{
		{measure: startMedian, of: nameLegwork, atMost: float64(20 * time.Millisecond)},
		{measure: startLate, of: nameLegwork, atMost: float64(50 * time.Millisecond)},
		{measure: idleShare, of: nameLegwork, atMost: 0.05},
	})
}

// latency is the time from before a step is enqueued until its row says that it was started. Postgres' clock is this machine's.
func (p *plant) latency(ctx context.Context, pid, n int) (sample, error) {
	if _, err := p.enqueue(ctx); err != nil { // the first one waits for the worker to be there
		return nil, err
	}
	if _, err := p.settled(ctx, 1); err != nil {
		return nil, err
	}
	var waits []float64
	for i := range n {
		time.Sleep(60*time.Millisecond + time.Duration(i%20)*time.Millisecond) // at every moment between two looks into the queues
		before := time.Now()
		id, err := p.enqueue(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := p.settled(ctx, i+2); err != nil {
			return nil, err
		}
		var started time.Time
		if err := p.conn.QueryRow(ctx, `select started_at from agent_step where id = $1`, id).Scan(&started); err != nil {
			return nil, err
		}
		waits = append(waits, float64(started.Sub(before)))
	}
	s := sample{startMedian: median(waits), startLate: quantile(waits, 0.95)}
	idle := time.Duration(p.b.pick(5, 1)) * time.Second
	if before := family(pid).cpu(); before > 0 {
		time.Sleep(idle)
		s[idleShare] = float64(family(pid).cpu()-before) / float64(idle)
	}
	return s, nil
}
