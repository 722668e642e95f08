package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"legwork/store"
)

const (
	// lookTime bounds one look at Postgres and Redis.
	lookTime = 2 * time.Second

	// lookAge is how long the answer of one look is given to whoever asks.
	lookAge = time.Second

	// idleTime is how long a worker may begin nothing although jobs wait and it has places for them.
	idleTime = 60 * time.Second

	// healthKeyTTL is how long the key stays that is written to see whether Redis takes writes.
	healthKeyTTL = time.Minute
)

// The checks, as they are named in the answers and metrics.
const (
	checkWorker   = "worker"   // whether it takes jobs
	checkPostgres = "postgres" // whether it can be reached and has the schema that is needed
	checkRedis    = "redis"    // whether it answers and takes writes
	checkJobs     = "jobs"     // whether jobs that wait are begun

	checkIsOK = "ok"
)

type phase int32

const (
	phaseNew phase = iota
	phaseWorking
	phaseStopping
	phaseStopped
)

func (p phase) says() string {
	switch p {
	case phaseNew:
		return "the worker has not begun to take jobs"
	case phaseStopping:
		return "the worker is stopping"
	case phaseStopped:
		return "the worker has stopped"
	}
	return checkIsOK
}

// HealthReport is what a probe is told.
type HealthReport struct {
	OK     bool              `json:"-"`      // the probe's question, answered
	Status string            `json:"status"` // "ok"; "degraded" where it is alive, but not all is well; "not working"; "not ready"
	Checks map[string]string `json:"checks"` // of each check "ok" or a sentence; what cannot be known at the moment is not there
}

// Health tells whether a worker does what it is there for. Its methods may be called at once; probes share one look at
// Postgres and Redis, which is bounded and a second old at most.
type Health struct {
	store       *store.Store
	key         string
	concurrency int
	fresh, idle time.Duration // lookAge and idleTime, but in tests

	phase    atomic.Int32
	underWay atomic.Int64 // handlers
	moved    atomic.Int64 // when a job was last begun or done with, since start
	start    time.Time

	going sync.WaitGroup
	mu    sync.Mutex
	redis redis.UniversalClient // nil while the worker does not run
	last  healthSeen
	now   *healthLook // under way; nil when none is

	// Of the look that is under way, so never used by two at once.
	asking chan redisSeen
	dials  *dialHook
	watch  idleWatch
}

// healthSeen is what one look saw.
type healthSeen struct {
	at     time.Time
	checks map[string]string
	idle   bool                        // jobs wait and nothing is begun
	queues map[string]*asynq.QueueInfo // nil when Redis does not say
}

type healthLook struct {
	done chan struct{}
	seen healthSeen // once done is closed
}

func newHealth(s *store.Store, worker string, concurrency int) *Health {
	return &Health{
		store: s, key: "legwork:health:" + worker, concurrency: concurrency, fresh: lookAge, idle: idleTime, start: time.Now(),
	}
}

// Live tells whether the process does its work. It is not OK where jobs wait, there are places for them and none is begun
// for a minute, which is what a restart may mend. What a restart does not mend is said beside it.
func (h *Health) Live() HealthReport {
	seen, _ := h.look()
	report := HealthReport{OK: !seen.idle, Status: "ok", Checks: seen.checks}
	switch {
	case seen.idle:
		report.Status = "not working"
	case !allOK(seen.checks):
		report.Status = "degraded"
	}
	return report
}

// Ready tells whether the worker takes jobs and everything that it needs is there.
func (h *Health) Ready() HealthReport {
	seen, _ := h.look()
	report := HealthReport{OK: allOK(seen.checks), Status: "ok", Checks: seen.checks}
	if !report.OK {
		report.Status = "not ready"
	}
	return report
}

func allOK(checks map[string]string) bool {
	for _, says := range checks {
		if says != checkIsOK {
			return false
		}
	}
	return true
}

// began hears of a job that was taken.
func (h *Health) began() {
	if h == nil {
		return
	}
	h.underWay.Add(1)
	h.move()
}

// settledNow hears that a job is done with, whichever way.
func (h *Health) settledNow() {
	if h == nil {
		return
	}
	h.underWay.Add(-1)
	h.move()
}

func (h *Health) move() { h.moved.Store(int64(time.Since(h.start))) }

func (h *Health) enter(p phase) {
	h.phase.Store(int32(p))
	h.move()
}

// open begins to look at Redis and Postgres on behalf of whoever asks; close ends it and waits for a look that is under way.
func (h *Health) open(opt asynq.RedisConnOpt) {
	client, err := openRedis(opt)
	if err != nil {
		return // CheckRedis has refused it
	}
	dials := new(dialHook)
	client.AddHook(dials)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.redis, h.dials = client, dials
}

func (h *Health) close() {
	h.enter(phaseStopped)
	h.mu.Lock()
	client := h.redis
	h.redis = nil
	h.mu.Unlock()
	if client != nil {
		client.Close() // which breaks off what waits for it
	}
	h.going.Wait()
}

// look is what was seen a moment ago, or else what is seen now. Where the worker does not run, only that is known.
func (h *Health) look() (seen healthSeen, ok bool) {
	seen, ok = h.lookAround()
	checks := map[string]string{checkWorker: phase(h.phase.Load()).says()} // as it is at this moment
	maps.Copy(checks, seen.checks)
	seen.checks = checks
	return seen, ok
}

func (h *Health) lookAround() (healthSeen, bool) {
	h.mu.Lock()
	if h.redis == nil {
		h.mu.Unlock()
		return healthSeen{}, false
	}
	if h.last.checks != nil && time.Since(h.last.at) < h.fresh {
		defer h.mu.Unlock()
		return h.last, true
	}
	look := h.now
	if look == nil {
		look = &healthLook{done: make(chan struct{})}
		h.now = look
		client := h.redis
		h.going.Go(func() {
			look.seen = h.see(client)
			h.mu.Lock()
			h.last, h.now = look.seen, nil
			h.mu.Unlock()
			close(look.done)
		})
	}
	h.mu.Unlock()
	<-look.done
	return look.seen, true
}

func (h *Health) see(client redis.UniversalClient) healthSeen {
	postgres := make(chan error, 1)
	h.going.Go(func() { postgres <- h.seePostgres() })
	queue := h.askRedis(client)
	seen := healthSeen{checks: map[string]string{checkPostgres: says(<-postgres), checkRedis: says(queue.err)}, queues: queue.queues}
	seen.at = time.Now()
	if queue.err != nil {
		h.watch = idleWatch{} // nothing is taken from such a Redis; a restart would not help
		return seen
	}
	waiting := 0
	for _, info := range queue.queues {
		if !info.Paused {
			waiting += info.Pending
		}
	}
	moved := h.start.Add(time.Duration(h.moved.Load()))
	places := phase(h.phase.Load()) == phaseWorking && h.underWay.Load() < int64(h.concurrency)
	seen.checks[checkJobs] = checkIsOK
	if h.watch.note(seen.at, moved, waiting > 0 && places, h.idle) {
		seen.idle = true
		seen.checks[checkJobs] = fmt.Sprintf("no job was begun for %.0f s although %d wait", seen.at.Sub(moved).Seconds(), waiting)
	}
	return seen
}

func says(err error) string {
	if err != nil {
		return err.Error()
	}
	return checkIsOK
}

func (h *Health) seePostgres() error {
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
	defer cancel()
	err := h.store.Check(ctx)
	if err != nil && ctx.Err() != nil {
		//lint:ignore ST1005 Postgres is a name
		return fmt.Errorf("Postgres did not answer within %.0f s, or every connection to it was taken", lookTime.Seconds())
	}
	return err
}

// redisSeen is what Redis said.
type redisSeen struct {
	queues map[string]*asynq.QueueInfo
	err    error
}

// askRedis waits for Redis as long as a look may take. Its client does not end in time where Redis hangs, so one question
// at a time is asked, and what comes late is not heard.
func (h *Health) askRedis(client redis.UniversalClient) redisSeen {
	select {
	case <-h.asking: // the answer to an earlier look
		h.asking = nil
	default:
	}
	if h.asking == nil {
		asking := make(chan redisSeen, 1)
		h.asking = asking
		h.dials.note(nil)
		h.going.Go(func() { asking <- seeRedis(client, h.key) })
	}
	late := time.NewTimer(lookTime)
	defer late.Stop()
	select {
	case seen := <-h.asking:
		h.asking = nil
		return seen
	case <-late.C:
	}
	if err := h.dials.last(); err != nil {
		return redisSeen{err: redisAway(err)}
	}
	//lint:ignore ST1005 Redis is a name
	return redisSeen{err: fmt.Errorf("Redis did not answer within %.0f s", lookTime.Seconds())}
}

// seeRedis writes a key of our own, because a Redis that answers may still refuse to write, and looks at the queues.
func seeRedis(client redis.UniversalClient, key string) redisSeen {
	var refused redis.Error
	err := client.Set(context.Background(), key, time.Now().UTC().Format(time.RFC3339), healthKeyTTL).Err()
	if redis.IsPermissionError(err) {
		err = nil // it may write asynq's keys only, which says nothing about those
	}
	if err != nil && !errors.As(err, &refused) {
		return redisSeen{err: redisAway(err)}
	}
	var seen redisSeen
	if err != nil {
		//lint:ignore ST1005 Redis is a name
		seen.err = fmt.Errorf("Redis answers but refuses what a worker writes, so no job is taken: %s", refused)
	}
	found, err := queueInfos(asynq.NewInspectorFromRedisClient(client))
	if err != nil && seen.err == nil {
		return redisSeen{err: redisAway(err)}
	}
	seen.queues = found
	return seen
}

// queueInfos asks about each queue of ours; nil beside an error.
func queueInfos(inspector *asynq.Inspector) (map[string]*asynq.QueueInfo, error) {
	there, err := inspector.Queues()
	if err != nil {
		return nil, err
	}
	infos := map[string]*asynq.QueueInfo{}
	for queue := range queues {
		infos[queue] = &asynq.QueueInfo{Queue: queue} // nothing was ever enqueued there
		if !slices.Contains(there, queue) {
			continue
		}
		if infos[queue], err = inspector.GetQueueInfo(queue); err != nil {
			return nil, fmt.Errorf("look at queue %s: %w", queue, err)
		}
	}
	return infos, nil
}

func redisAway(err error) error {
	//lint:ignore ST1005 Redis is a name
	return fmt.Errorf("Redis cannot be reached: %w", err)
}

// dialHook remembers why the last connection could not be made. Redis's client tries for longer than a look may take.
type dialHook struct{ why atomic.Pointer[error] }

func (d *dialHook) note(err error) { d.why.Store(&err) }

func (d *dialHook) last() error {
	if why := d.why.Load(); why != nil {
		return *why
	}
	return nil
}

func (d *dialHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := next(ctx, network, address)
		d.note(err)
		return conn, err
	}
}

func (d *dialHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (d *dialHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// idleWatch finds a worker that begins nothing. A job that waits while nothing was begun for long is not enough: it may
// have come this moment. So it takes looks that see it again and again.
type idleWatch struct {
	since time.Time // from when on each look saw jobs wait, and places for them, and nothing move
	last  time.Time // the latest look
}

// note takes what one look saw and tells whether it has been so for long. Looks that are further apart than that tell nothing.
func (w *idleWatch) note(now, moved time.Time, waits bool, long time.Duration) bool {
	apart := now.Sub(w.last)
	w.last = now
	switch {
	case !waits:
		w.since = time.Time{}
	case w.since.IsZero(), moved.After(w.since), apart > long:
		w.since = now
	}
	return waits && now.Sub(w.since) >= long
}
