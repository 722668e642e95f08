package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"legwork/store"
)

const (
	// parkTime is how long a task that waits for its server stays away where nobody calls it back before.
	parkTime = 30 * time.Second

	// arrivalTime is what a task may take from its handler to where asynq keeps those that wait.
	arrivalTime = 2 * time.Second

	// maxParked is how many tasks are called back for one server. What waits beyond that comes back by itself.
	maxParked = 10000

	// callInterval is how often it is seen to that jobs which were called have come.
	callInterval = 50 * time.Millisecond

	// comingTime is how long a job that was called may take to come while there are tasks that no worker has taken yet.
	comingTime = time.Second

	// quietTime is for how long no job has waited for a server before that is said: on a busy one they come and go.
	quietTime = 10 * time.Second
)

// lanes keep one server from taking the whole worker: each has so many operations under way at most. A task that finds
// its server's lane full goes back into the queue and is called back when there is room, in the order in which they came;
// so what waits takes no place of the worker's, and the tasks of other servers pass it.
type lanes struct {
	share int // of a server without a limit of its own

	mu      sync.Mutex
	servers map[string]*lane
}

type lane struct {
	limit    int
	underWay int
	parked   []parkedJob // that wait
	called   []parkedJob // that were called and have not come; another worker may take them
	spare    int         // so many more are called, for the places that other workers seem to have
	nobody   bool        // there is no such server

	said   bool      // it is in the log that jobs wait
	waited time.Time // when one was last noted
}

// places are those that jobs can be called into.
func (l *lane) places() int { return l.limit - l.underWay + l.spare - len(l.called) }

// parkedJob waits for a place. It was sent back, or called, at that time.
type parkedJob struct {
	id, queue string
	at        time.Time
}

// find is where a job stands among others, or -1.
func find(jobs []parkedJob, queue, id string) int {
	return slices.IndexFunc(jobs, func(p parkedJob) bool { return p.queue == queue && p.id == id })
}

// without takes a job out, if it is there.
func without(jobs []parkedJob, queue, id string) []parkedJob {
	at := find(jobs, queue, id)
	if at < 0 {
		return jobs
	}
	return slices.Delete(jobs, at, at+1)
}

func newLanes(concurrency int) *lanes {
	return &lanes{share: max(1, concurrency/5), servers: map[string]*lane{}}
}

// entry is how a job was met at its server's lane.
type entry struct {
	ok       bool // it has a place; otherwise it is noted, to be called when there is one
	waited   bool // it was noted before
	news     bool // it waits, and the log does not say yet that jobs do
	waiting  int  // jobs that are noted now
	underWay int  // operations, its own with them
}

// enter takes a place in a server's lane. Where there is none the job is noted, in the place that it had if it comes again;
// both at once, so that no place becomes free in between.
func (l *lanes) enter(server string, job job) entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	lane := l.of(server)
	wasCalled := find(lane.called, job.queue, job.id) >= 0
	lane.called = without(lane.called, job.queue, job.id)
	at := find(lane.parked, job.queue, job.id)
	e := entry{ok: lane.underWay < lane.limit, waited: at >= 0}
	switch {
	case e.ok:
		lane.underWay++
		if e.waited {
			lane.parked = slices.Delete(lane.parked, at, at+1)
		}
	case e.waited:
		lane.parked[at].at = time.Now()
	case len(lane.parked) < maxParked:
		lane.parked = append(lane.parked, parkedJob{job.id, job.queue, time.Now()})
	}
	if !e.ok {
		if wasCalled { // no other had a place for it
			lane.spare = max(0, lane.spare-1)
		}
		e.news = !lane.said
		lane.said, lane.waited = true, time.Now()
	}
	e.waiting, e.underWay = len(lane.parked), lane.underWay
	return e
}

// join takes a place in a server's lane though there may be none: for an operation that is already the worker's to run.
func (l *lanes) join(server string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(server).underWay++
}

// knows tells whether a server's limit is known.
func (l *lanes) knows(server string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	lane := l.servers[server]
	return lane != nil && !lane.nobody
}

// learn sets a server's limit; 0 is that it has none of its own.
func (l *lanes) learn(server string, limit int) {
	if limit < 1 {
		limit = l.share
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	lane := l.of(server)
	lane.limit, lane.nobody = limit, false
}

// of is a server's lane. One that nobody has learned the limit of is made for a server that there may not be, and goes with
// its last job: jobs may name anything.
func (l *lanes) of(server string) *lane {
	if l.servers[server] == nil {
		l.servers[server] = &lane{limit: l.share, nobody: true}
	}
	return l.servers[server]
}

// leave gives a place back, and tells whether jobs wait.
func (l *lanes) leave(server string) (wait bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lane := l.servers[server]
	lane.underWay--
	if lane.nobody && lane.underWay == 0 && len(lane.parked) == 0 {
		delete(l.servers, server)
	}
	return len(lane.parked) > 0
}

// next takes the job that has waited longest for a server, where there is a place for it, which is then kept for it until it
// comes or is missed. It tells how many still wait.
func (l *lanes) next(server string) (next parkedJob, waiting int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lane := l.servers[server]
	if lane == nil || len(lane.parked) == 0 || lane.places() <= 0 {
		return parkedJob{}, 0, false
	}
	next, lane.parked = lane.parked[0], lane.parked[1:]
	lane.called = append(lane.called, parkedJob{next.id, next.queue, time.Now()})
	return next, len(lane.parked), true
}

// gone gives the place up that is kept for a job that was called: it will not come.
func (l *lanes) gone(server string, job parkedJob) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lane := l.servers[server]; lane != nil {
		lane.called = without(lane.called, job.queue, job.id)
	}
}

// putBack has a job that was called wait in front of all others.
func (l *lanes) putBack(server string, job parkedJob) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lane := l.of(server)
	lane.called = without(lane.called, job.queue, job.id)
	if find(lane.parked, job.queue, job.id) < 0 { // it may have come again meanwhile
		lane.parked = slices.Insert(lane.parked, 0, job)
	}
}

// miss gives the places up that are kept for jobs which were called so long ago. Those that were taken by other workers
// tell that these have places.
func (l *lanes) miss(ago time.Duration, taken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lane := range l.servers {
		called := len(lane.called)
		lane.called = slices.DeleteFunc(lane.called, func(p parkedJob) bool { return time.Since(p.at) >= ago })
		if taken {
			lane.spare = min(lane.spare+called-len(lane.called), lane.limit)
		}
	}
}

// room tells which servers have jobs that wait, and places that nobody has, here or elsewhere; and from which queues jobs were
// called that have not come.
func (l *lanes) room() (servers, queues []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for server, lane := range l.servers {
		if len(lane.parked) == 0 || lane.underWay >= lane.limit+lane.spare {
			continue
		}
		servers = append(servers, server)
		for _, job := range lane.called {
			if !slices.Contains(queues, job.queue) {
				queues = append(queues, job.queue)
			}
		}
	}
	return servers, queues
}

// quiet tells for which servers jobs waited, and have not for as long as that.
func (l *lanes) quiet(since time.Duration) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var servers []string
	for server, lane := range l.servers {
		if lane.said && len(lane.parked) == 0 && time.Since(lane.waited) >= since {
			lane.said = false
			servers = append(servers, server)
		}
	}
	return servers
}

// takeAll takes every job that waits, those of one server in the order in which they came.
func (l *lanes) takeAll() (jobs []parkedJob) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lane := range l.servers {
		jobs, lane.parked = append(jobs, lane.parked...), nil
	}
	return jobs
}

// crowded tells for which servers jobs wait.
func (l *lanes) crowded() (servers []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for server, lane := range l.servers {
		if len(lane.parked) > 0 {
			servers = append(servers, server)
		}
	}
	return servers
}

// enterLane takes a place in the server's lane, if there is one.
func (w *Worker) enterLane(ctx context.Context, server string, job job) (entry, error) {
	found, err := w.learnLimit(ctx, server, job)
	if err != nil {
		return entry{}, err
	}
	if !found { // it will be refused in no time
		w.lanes.join(server)
		return entry{ok: true}, nil
	}
	e := w.lanes.enter(server, job)
	if !e.ok || e.waited {
		w.metrics.waiting(server, e.waiting)
	}
	if e.news {
		w.log.WithField("server", server).Warnf(
			"server %q has %d operations of this worker under way, as many as it may have: further jobs wait (max_in_flight)", server, e.underWay)
	}
	return e, nil
}

// sentAway is the error that sends a job back which has no place, to be called when there is one.
func sentAway(server string, e entry, limits store.JobLimits) error {
	// Called back long before that, but for a worker that dies. Not all at once, and the later the more there are.
	after := parkTime * time.Duration(1+e.waiting/1000)
	after += rand.N(after / 2)
	if limits.Deadline != nil {
		after = min(after, time.Until(*limits.Deadline)) // it is settled when its time is up
	}
	return busyError{
		why:    fmt.Sprintf("it waits for a place: server %q has %d operations of this worker under way, as many as it may have", server, e.underWay),
		after:  max(after, 0),
		parked: true,
	}
}

// joinLane takes a place in the server's lane whether there is one or not.
func (w *Worker) joinLane(ctx context.Context, server string, job job) error {
	_, err := w.learnLimit(ctx, server, job)
	if err == nil {
		w.lanes.join(server)
	}
	return err
}

// learnLimit reads the limit of a server that this worker has not met before, and tells whether there is one. From then on
// each claim brings it.
func (w *Worker) learnLimit(ctx context.Context, server string, job job) (found bool, err error) {
	if w.lanes.knows(server) {
		return true, nil
	}
	var limits map[string]int
	err = w.beforehand(ctx, job, fmt.Sprintf("the limit of server %q could not be read", server), func(ctx context.Context) (err error) {
		limits, err = w.store.MaxInFlight(ctx, []string{server})
		return err
	})
	limit, found := limits[server]
	if found {
		w.lanes.learn(server, limit)
	}
	return found, err
}

// leaveLane gives the place back and calls the task that has waited longest for it.
func (w *Worker) leaveLane(server string) {
	if w.lanes.leave(server) {
		w.background.Go(func() { w.callUp(server) })
	}
}

// callUp calls waiting jobs into a server's places, and passes over those that need no call any more.
func (w *Worker) callUp(server string) {
	for {
		next, waiting, ok := w.lanes.next(server)
		if !ok {
			return
		}
		called, err := w.callBack(next)
		if err != nil {
			// Redis is away. The job comes back by itself; nobody waits here for each of perhaps thousands.
			w.lanes.putBack(server, next)
			return
		}
		w.metrics.waiting(server, waiting)
		if !called {
			w.lanes.gone(server, next)
		}
	}
}

// callAll has every job that waits delivered at once, to whoever takes it: this worker stops. Where Redis is slow or away,
// those that are left come back by themselves.
func (w *Worker) callAll() {
	end := time.Now().Add(goodbyeTime)
	for _, job := range w.lanes.takeAll() {
		if _, err := w.callBack(job); err != nil || time.Now().After(end) {
			return
		}
	}
}

// callWaiting fills places that no operation of this worker gave back: a limit was raised, or another worker took the
// tasks that were called. Where no task is left in their queues, they have been taken: the other has places to spare, for which
// more are called, so that none of this one's stay empty for it.
func (w *Worker) callWaiting(ctx context.Context) {
	tick := time.NewTicker(callInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		servers, queues := w.lanes.room()
		if len(servers) == 0 {
			continue
		}
		if left, err := w.queue.pending(ctx, queues); err == nil && left == 0 {
			w.lanes.miss(callInterval, true)
		} else {
			w.lanes.miss(comingTime, false)
		}
		for _, server := range servers {
			w.callUp(server)
		}
	}
}

// watchLanes learns of limits that were changed, and says where no job waits any more.
func (w *Worker) watchLanes(ctx context.Context) {
	for wait(ctx, time.Second) {
		w.learnLimits(ctx)
		for _, server := range w.lanes.quiet(quietTime) {
			w.log.WithField("server", server).Infof("no job has waited for server %q for %s", server, quietTime)
		}
	}
}

// learnLimits reads the limits of servers that jobs wait for: what an operator raises must not have to wait for a place.
// Where Postgres is away, they stay as they are.
func (w *Worker) learnLimits(ctx context.Context) {
	servers := w.lanes.crowded()
	if len(servers) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, ClaimTime)
	defer cancel()
	limits, err := w.store.MaxInFlight(ctx, servers)
	if err != nil {
		w.log.WithError(err).Debug("the limits of servers that jobs wait for could not be read")
	}
	for server, limit := range limits {
		w.lanes.learn(server, limit)
	}
}

// callBack makes a task that waits its turn deliverable at once, and tells whether it did. A task that has just been sent
// away may not have arrived yet where asynq keeps those that wait; one that has been delivered meanwhile, or is gone, needs
// nothing. An error is Redis'.
func (w *Worker) callBack(job parkedJob) (called bool, err error) {
	for {
		if err := w.queue.run(job.queue, job.id); err == nil {
			return true, nil
		}
		task, err := w.queue.find(job.queue, job.id)
		if err != nil {
			return false, err
		}
		if task == nil || task.State == asynq.TaskStatePending || task.State == asynq.TaskStateCompleted || time.Since(job.at) > arrivalTime {
			return false, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
}
