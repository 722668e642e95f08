package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"legwork/config"
)

// queue is the sending and the looking side of Redis.
type queue struct {
	client    *asynq.Client
	inspector *asynq.Inspector
}

// withQueue lends a queue on a Redis that was checked.
func (a *app) withQueue(ctx context.Context, cfg config.Config, use func(*queue) error) error {
	if err := checkRedis(ctx, cfg); err != nil {
		return err
	}
	q := &queue{client: asynq.NewClient(cfg.Redis), inspector: asynq.NewInspector(cfg.Redis)}
	defer q.client.Close()
	defer q.inspector.Close()
	return use(q)
}

// enqueue sends a task that has an id of our own. Where a reply was lost and the command was sent again, the task is there
// already: that is what was wanted.
func (q *queue) enqueue(ctx context.Context, task *asynq.Task) error {
	if _, err := q.client.EnqueueContext(ctx, task); err != nil && !errors.Is(err, asynq.ErrTaskIDConflict) {
		return fmt.Errorf("enqueue the job: %w", err)
	}
	return nil
}

// roomFor is the job's own limit for an operation with this budget: asynq gives a job that names none 30 minutes, which
// would tighten a longer budget.
func roomFor(budget time.Duration) []asynq.Option {
	const asynqDefault, most = 30 * time.Minute, 100 * 365 * 24 * time.Hour
	if budget < asynqDefault-time.Minute {
		return nil
	}
	return []asynq.Option{asynq.Timeout(min(budget, most) + time.Minute)}
}

// served tells whether a worker is there that takes tasks from the queue.
func (q *queue) served(name string) (bool, error) {
	servers, err := q.inspector.Servers()
	if err != nil {
		return false, err
	}
	for _, s := range servers {
		if _, takes := s.Queues[name]; takes && s.Status == "active" {
			return true, nil
		}
	}
	return false, nil
}

// standing is how a task stands in the queue.
type standing struct {
	text    string // for a reader
	untaken bool   // no worker has had it
	over    bool   // no worker will take it up again
	lastErr string
	result  []byte
}

// look asks the queue how a task stands.
func (q *queue) look(name, id string) standing {
	info, err := q.inspector.GetTaskInfo(name, id)
	switch {
	case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		return standing{text: "gone from the queue", over: true, lastErr: "somebody removed the job from the queue"}
	case err != nil:
		return standing{text: "Redis does not answer: " + err.Error()}
	}
	s := standing{lastErr: info.LastErr, result: info.Result}
	switch info.State {
	case asynq.TaskStateActive:
		s.text = "a worker has it"
	case asynq.TaskStateRetry:
		s.text = "to be tried again: " + info.LastErr
	case asynq.TaskStateArchived, asynq.TaskStateCompleted:
		s.text, s.over = "done", true
	default:
		s.text, s.untaken = "in the queue", info.Retried == 0
	}
	return s
}

// waiter waits for jobs, and shows how they stand.
type waiter struct {
	queue    *queue
	name     string // of the queue that the jobs are in
	progress *progress
	limit    time.Duration
	later    string // what to run to look later
}

const (
	// waitSlack is what a wait is given beyond the operation's own budget: the time in the queue.
	waitSlack = 5 * time.Minute
	// patience is how long a job may lie in the queue before somebody is told that no worker is there.
	patience = 3 * time.Second
)

// waitLimit is how long is waited for an operation with this budget, unless the operator says otherwise.
func waitLimit(budget time.Duration) time.Duration { return max(budget+waitSlack, budget) }

// until looks until it is done. The error says why the wait ended otherwise; the jobs go on.
func (w *waiter) until(ctx context.Context, look func(context.Context) (now standing, done bool, err error)) error {
	defer w.progress.end()
	limit := time.NewTimer(w.limit)
	defer limit.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	told := false
	for {
		now, done, err := look(ctx)
		if ctx.Err() == nil {
			if done || err != nil {
				return err
			}
			w.progress.state(now.text)
			if now.untaken && !told && time.Since(w.progress.began) > patience {
				told = true
				if served, err := w.queue.served(w.name); err == nil && !served {
					w.progress.note(`no worker has taken it yet: is "legwork worker" running?`)
				}
			}
		}
		select {
		case <-tick.C:
		case <-limit.C:
			return fmt.Errorf("it was not done within %s; it goes on without being waited for: look later with %q", duration(w.limit), w.later)
		case <-ctx.Done():
			return fmt.Errorf("no longer waiting; it goes on: look later with %q", w.later)
		}
	}
}
