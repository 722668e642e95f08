package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/sirupsen/logrus"

	"legwork/mcp"
	"legwork/store"
)

const (
	// ClaimTime is what claiming a row may take. A claim that fails is no loss: nothing was sent, and asynq brings the
	// task again.
	ClaimTime = 10 * time.Second

	// SettleTime is what settling a row may take after the operation, tries included.
	SettleTime = 10 * time.Second

	// DefaultConcurrency is how many operations a worker has under way at most. They wait for servers most of the time. A
	// fifth of them, which is what one server may have, should still be worth having.
	DefaultConcurrency = 40

	// LeaseMargin is what a lease holds beyond the operation's budget: the grant's rounding up and the time to settle.
	LeaseMargin = SettleTime + 5*time.Second

	// goodbyeTime is what Redis may take, twice while a worker stops: to have no more tasks taken, and to be told of the last.
	goodbyeTime = 5 * time.Second
)

// lockTime is how long a statement of a worker's waits for a row that somebody else has locked. It has a connection all that
// time, which others need.
const lockTime = 500 * time.Millisecond

// StoreOptions are how a worker's store is best opened. A dozen connections is more than the steps of one server can hold
// while somebody has locked their rows, where neither concurrency nor max_in_flight were raised.
func StoreOptions() store.Options {
	return store.Options{
		ApplicationName: "legwork worker", PlanOnce: true, LockTimeout: lockTime, MaxConns: int32(max(12, runtime.NumCPU())),
	}
}

// Options are what a worker can be told. The zero value of each field but Redis stands for its default.
type Options struct {
	Redis       asynq.RedisConnOpt
	Concurrency int           // operations at once; default DefaultConcurrency
	Budget      time.Duration // of one operation, where the server's row has none; default mcp.DefaultBudget
	// ShutdownTimeout is how long asynq gives running jobs, once the worker stops, before it puts their tasks back into the
	// queue. The worker itself waits until its last operation has ended, so this should be the longest budget of any server
	// plus SettleTime. Default: Budget plus LeaseMargin.
	ShutdownTimeout time.Duration
	// PollInterval is how long an idle worker waits between looks into the queues; a task starts within that time.
	// Default 20 ms.
	PollInterval time.Duration
	// RetentionDays is after how many days what has ended is removed: steps, runs and import errors. Default: never.
	RetentionDays int
	Logger        *logrus.Logger // default: logrus's standard logger
	Metrics       *Metrics       // nil: nothing is counted
	Name          string         // of this worker alone, in claimed_by; default: host, process id and a random part
}

// Worker takes tasks from the queues and carries them out.
type Worker struct {
	store    *store.Store
	client   *mcp.Client
	contacts *contacts
	tokens   tokens
	lanes    *lanes
	claims   outage
	locks    seldom // that a row is locked by somebody else
	metrics  *Metrics
	health   *Health
	log      logrus.FieldLogger
	name     string
	budget   time.Duration
	redis    asynq.RedisConnOpt
	config   asynq.Config
	queue    *queue // while it runs

	attempts   attempts       // at steps
	door       *door          // of the handlers: asynq can be done with one before it returns
	background sync.WaitGroup // what goes on beside the handlers, and ends with the worker

	retention int            // after how many days rows are removed; 0: never
	unsettled sync.WaitGroup // outcomes that could not be written down yet
	kept      atomic.Int64   // how many those are
	stopping  chan struct{}  // closed when no handler is left: those outcomes have one more try
}

// New builds a worker, which can be run once. It starts nothing.
func New(s *store.Store, client *mcp.Client, opts Options) *Worker {
	logger := cmp.Or(opts.Logger, logrus.StandardLogger())
	budget := cmp.Or(opts.Budget, mcp.DefaultBudget)
	poll := cmp.Or(opts.PollInterval, 20*time.Millisecond)
	shutdown := opts.ShutdownTimeout
	if shutdown <= 0 {
		shutdown = max(budget+LeaseMargin, budget) // a budget of centuries stays one
	}
	w := &Worker{
		store: s, client: client, contacts: newContacts(s, logger), log: logger,
		name: cmp.Or(opts.Name, defaultName()), budget: budget, redis: opts.Redis,
		door: newDoor(), stopping: make(chan struct{}),
		metrics: opts.Metrics, retention: opts.RetentionDays,
		claims: outage{cannot: "no job can be begun, because its row cannot be claimed", canAgain: "jobs are begun again"},
	}
	concurrency := cmp.Or(opts.Concurrency, DefaultConcurrency)
	w.lanes = newLanes(concurrency)
	w.health = newHealth(s, w.name, concurrency)
	w.metrics.watch(w.health)
	toLog := &queueLog{log: logger}
	w.config = asynq.Config{
		Concurrency:              concurrency,
		Queues:                   queues,
		BaseContext:              func() context.Context { return context.WithValue(context.Background(), begunKey{}, new(atomic.Bool)) },
		TaskCheckInterval:        poll,
		DelayedTaskCheckInterval: time.Second,
		RetryDelayFunc:           retryDelay,
		IsFailure:                isFailure,
		ErrorHandler:             asynq.ErrorHandlerFunc(w.ended),
		ShutdownTimeout:          shutdown,
		HealthCheckFunc:          toLog.health,
		HealthCheckInterval:      redisCheckInterval,
		Logger:                   toLog,
		LogLevel:                 asynqLevel(logger.GetLevel()),
	}
	return w
}

func defaultName() string {
	host, err := os.Hostname()
	if err != nil {
		host = runtime.GOOS
	}
	return fmt.Sprintf("%s:%d:%s", host, os.Getpid(), uuid.NewString()[:8])
}

// asynqLevel keeps asynq's own lines to what an operator should look at: what it says of each failed task is said
// better in the operation's line, and its debug lines come at every look into an empty queue.
func asynqLevel(level logrus.Level) asynq.LogLevel {
	if level >= logrus.TraceLevel {
		return asynq.DebugLevel
	}
	return asynq.ErrorLevel
}

// Run checks Postgres, the schema and Redis, and then works until ctx is done: it stops taking tasks, waits for the
// operations that run, settles them, and returns nil. An error says what is wrong with what was checked.
func (w *Worker) Run(ctx context.Context) error {
	if err := errors.Join(w.store.Check(ctx), CheckRedis(ctx, w.redis)); err != nil {
		return err
	}
	var err error
	if w.queue, err = openQueue(w.redis); err != nil {
		return err
	}
	defer w.queue.close()
	w.health.open(w.redis)
	defer w.health.close()
	server := asynq.NewServer(w.redis, w.config)
	if err := server.Start(asynq.HandlerFunc(w.handle)); err != nil {
		return fmt.Errorf("start taking tasks: %w", err)
	}
	w.health.enter(phaseWorking)
	// What goes on beside the tasks goes on until the last handler is done, whatever ctx says.
	beside, stopBeside := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBeside()
	w.background.Go(func() { w.contacts.run(beside) })
	w.background.Go(func() { w.sweep(beside) })
	w.background.Go(func() { w.callWaiting(beside) })
	w.background.Go(func() { w.watchLanes(beside) })
	if w.retention > 0 {
		w.background.Go(func() { w.retain(beside) })
	}
	w.log.WithFields(logrus.Fields{
		"worker": w.name, "concurrency": w.config.Concurrency, "budget": w.budget.String(),
	}).Info("the worker is taking tasks")

	<-ctx.Done()
	w.health.enter(phaseStopping)
	w.log.WithField("worker", w.name).Info("the worker is stopping")
	taken, told := make(chan struct{}), make(chan struct{})
	go func() {
		server.Stop() // waits for a Redis that hangs while a task is asked for
		close(taken)
		server.Shutdown()
		close(told)
	}()
	within(goodbyeTime, taken)
	w.door.shut()
	w.log.WithField("worker", w.name).Info("no more tasks are taken; the operations that run are waited for")
	w.background.Go(w.callAll)
	w.door.wait()
	w.background.Go(w.callAll) // those that were sent away meanwhile
	close(w.stopping)
	w.unsettled.Wait()
	stopBeside()
	if !within(goodbyeTime, told) { // asynq ends by itself once its Redis answers, or with the process
		w.log.WithField("worker", w.name).Warn("Redis does not answer, so it is not told of the last operations: their tasks come again, and their rows say how they ended")
		w.queue.close() // breaks off what waits for it
	}
	w.background.Wait()
	w.log.WithField("worker", w.name).Info("the worker has stopped: no operation of its is under way")
	return nil
}

// Health tells how the worker does, from New on and until after Run.
func (w *Worker) Health() *Health { return w.health }

func (w *Worker) stopped() bool {
	select {
	case <-w.stopping:
		return true
	default:
		return false
	}
}

// job is what asynq knows about a task.
type job struct {
	id, queue string
	// end is when its own Timeout or Deadline is over. asynq sets 30 minutes where a backend sets neither; zero: there is none.
	end  time.Time
	last bool // asynq delivers it this once: its tries are used up, or it was to have none
	// given ends when asynq gives the task up: its time is over, or this worker has taken too long to stop.
	given context.Context
}

// left is what the job's own limit leaves of it now; nil: it has none.
func (j job) left() *time.Duration {
	if j.end.IsZero() {
		return nil
	}
	left := time.Until(j.end)
	return &left
}

// over tells whether the job's own limit has passed.
func (j job) over() bool { return !j.end.IsZero() && time.Until(j.end) <= 0 }

func jobOf(ctx context.Context) job {
	j := job{given: ctx}
	j.id, _ = asynq.GetTaskID(ctx)
	j.queue, _ = asynq.GetQueueName(ctx)
	j.end, _ = ctx.Deadline()
	retried, _ := asynq.GetRetryCount(ctx)
	most, ok := asynq.GetMaxRetry(ctx)
	j.last = ok && retried >= most
	return j
}

type begunKey struct{}

// handle is what asynq calls. The operation does not hang on asynq's context, which ends for reasons of asynq's own: a
// Redis that hangs, a button on the dashboard, a shutdown. From here on only budgets and limits of ours count.
func (w *Worker) handle(ctx context.Context, task *asynq.Task) error {
	if begun, ok := ctx.Value(begunKey{}).(*atomic.Bool); ok {
		begun.Store(true)
	}
	job := jobOf(ctx)
	if !w.door.enter() { // a Redis that hung has let it out late
		if job.last {
			<-ctx.Done() // asynq puts it back when it gives up waiting; sent back, it would be put away
		}
		return busyError{why: "this worker is stopping"}
	}
	defer w.door.leave()
	w.health.began()
	defer w.health.settledNow()
	err := w.uncrashed(context.WithoutCancel(ctx), task, job)
	var unclaimed unclaimedError
	if errors.As(err, &unclaimed) && unclaimed.kept && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		w.expire(context.WithoutCancel(ctx), task, job)
	}
	if err != nil && !errors.Is(err, asynq.SkipRetry) { // what is settled has its own line; asynq itself is quiet about the rest
		goes := "a task goes back into the queue"
		switch {
		case !job.last || ctx.Err() != nil:
		case unclaimed.kept: // and asynq puts it away
			w.onceAsynqIsDone(func() error { return w.queue.run(job.queue, job.id) })
		default:
			goes = "a task is archived, because its tries are used up"
		}
		w.log.WithError(err).WithField("task", job.id).Log(w.levelOf(err), goes)
	}
	return err
}

func (w *Worker) levelOf(err error) logrus.Level {
	switch {
	case store.Locked(err) && w.locks.now():
		return logrus.WarnLevel
	case parked(err), errors.As(err, new(unclaimedError)):
		return logrus.DebugLevel // there may be thousands, and a line of its own tells of them all
	case errors.As(err, new(busyError)):
		return logrus.InfoLevel
	}
	return logrus.ErrorLevel
}

func (w *Worker) carryOut(ctx context.Context, task *asynq.Task, job job) error {
	switch task.Type() {
	case TypeStep:
		return w.step(ctx, task, job)
	case TypeImport:
		return w.catalogue(ctx, task, job)
	}
	return settledFailure{fmt.Sprintf("Invalid request: task type %q is none of legwork's, which are %s and %s.", clip(task.Type()), TypeStep, TypeImport)}
}

// ended hears of every task that did not succeed. One that asynq ended before its handler began, because its deadline
// passed in the queue, is settled here: nobody else would.
func (w *Worker) ended(ctx context.Context, task *asynq.Task, err error) {
	begun, ok := ctx.Value(begunKey{}).(*atomic.Bool)
	if !ok || begun.Load() || !errors.Is(err, context.DeadlineExceeded) || !w.door.enter() {
		return
	}
	defer w.door.leave()
	w.expire(context.WithoutCancel(ctx), task, jobOf(ctx))
}

// expire settles a task whose own limit passed before its operation began.
func (w *Worker) expire(ctx context.Context, task *asynq.Task, job job) {
	var told error // what asynq would be, had it not ended the task itself
	switch task.Type() {
	case TypeStep:
		told = w.expireStep(ctx, task, job)
	case TypeImport:
		told = w.expireImport(ctx, task, job)
	}
	putAway := w.queue.archive
	if told == nil {
		putAway = w.queue.remove // another task of its step's, or the row, says what there is to say
	}
	w.onceAsynqIsDone(func() error { return putAway(job.queue, job.id) })
}

// onceAsynqIsDone does something to a task that asynq still has: it moves it to where it waits, or is put away, right after
// its handler has returned, or it has told that the task failed.
func (w *Worker) onceAsynqIsDone(do func() error) {
	w.background.Go(func() {
		for end := time.Now().Add(goodbyeTime); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if err := do(); err == nil || errors.Is(err, redis.ErrClosed) || errors.Is(err, asynq.ErrTaskNotFound) {
				return
			}
		}
	})
}

// isFailure tells what counts as a try of a task: not what comes back because nothing could be begun.
func isFailure(err error) bool {
	return !errors.As(err, new(busyError)) && !errors.As(err, new(unclaimedError))
}

// retryDelay is how long a task stays away. One that asynq ended while its handler went on comes back to be told what the
// row says.
func retryDelay(n int, err error, task *asynq.Task) time.Duration {
	var busy busyError
	if errors.As(err, &busy) {
		return busy.after
	}
	var unclaimed unclaimedError
	if errors.As(err, &unclaimed) {
		return unclaimed.after
	}
	if errors.As(err, new(crashError)) {
		return crashPause
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, asynq.ErrLeaseExpired) {
		return min(time.Duration(n+1)*5*time.Second, time.Minute)
	}
	return asynq.DefaultRetryDelayFunc(n, err, task)
}

// BudgetOf is what an operation against a server may take: the server's own number where it has one, or else the
// installation's. A job may tighten it.
func BudgetOf(server store.Server, installation time.Duration) mcp.Budget {
	if server.OperationTimeoutSeconds > 0 {
		return mcp.Budget{Total: time.Duration(server.OperationTimeoutSeconds) * time.Second, Owner: mcp.OwnerServer}
	}
	return mcp.Budget{Total: installation, Owner: mcp.OwnerInstallation}
}

// ServerOf is a server's row as an operation needs it.
func ServerOf(s store.Server) mcp.Server {
	server := mcp.Server{
		Identifier: s.Identifier, URL: s.URL, Revision: s.ProtocolVersion,
		Credential: mcp.Credential{
			Reference: s.Credential, Placement: mcp.Placement(s.AuthPlacement), HeaderName: s.AuthHeaderName,
			OAuth: mcp.OAuth{
				TokenURL: s.OAuthTokenURL, ClientID: s.OAuthClientID, Scope: s.OAuthScope,
				Parameters: s.OAuthParameters, SecretInBody: s.OAuthSecretInBody,
			},
		},
		TLS: mcp.TLS{CA: s.TLSCA, Certificate: s.TLSCertificate, Key: s.TLSKey},
	}
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) { // in an order that stays
		server.Headers = append(server.Headers, mcp.Header{Name: name, Value: s.Headers[name]})
	}
	return server
}

// budgetFor is the budget of a job's operation. A server that is unknown has none of its own.
func (w *Worker) budgetFor(server *store.Server, job job) mcp.Budget {
	var row store.Server
	if server != nil {
		row = *server
	}
	budget := BudgetOf(row, w.budget)
	if left := job.left(); left != nil {
		budget = budget.Tighten(*left)
	}
	return budget
}

// unusable is the failure for a server that is unknown or inert; nil when it can be asked.
func unusable(server *store.Server, identifier string) *mcp.Failure {
	if server == nil {
		return mcp.InvalidRequest(identifier, fmt.Sprintf(
			"Invalid request: there is no server %q, so nothing was sent. Add it with \"legwork server add\", or correct the name in the job.", clip(identifier)))
	}
	if why := server.Inert(); why != "" {
		return mcp.InvalidRequest(identifier, fmt.Sprintf("Invalid request: nothing was sent to server %q, because %s.", identifier, why))
	}
	return nil
}

func asFailure(err error) *mcp.Failure {
	var failure *mcp.Failure
	if err != nil && !errors.As(err, &failure) {
		panic(err) // mcp promises it
	}
	return failure
}
