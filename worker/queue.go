package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"legwork/store"
)

// queues are those that a worker takes tasks from.
var queues = map[string]int{QueueAgent: 6, QueueImport: 2, "default": 2}

// knownQueues is where asynq keeps the names of the queues there are. Each of its clients writes a name there once, when it
// first enqueues, so what a Redis has lost is not written again, and asynq then denies the tasks that are there.
const knownQueues = "asynq:queues"

// queue looks at the tasks in Redis, and changes them one by one. Safe for concurrent use.
type queue struct {
	redis   redis.UniversalClient
	inspect *asynq.Inspector
	client  *asynq.Client
}

// openQueue connects when it is used.
func openQueue(opt asynq.RedisConnOpt) (*queue, error) {
	client, err := openRedis(opt)
	if err != nil {
		return nil, err
	}
	return &queue{redis: client, inspect: asynq.NewInspectorFromRedisClient(client), client: asynq.NewClientFromRedisClient(client)}, nil
}

// close breaks off what waits for Redis.
func (q *queue) close() error { return q.redis.Close() }

// publish makes the queues known to asynq, which costs one write where they are.
func (q *queue) publish(ctx context.Context) error {
	names := make([]any, 0, len(queues))
	for name := range queues {
		names = append(names, name)
	}
	if err := q.redis.SAdd(ctx, knownQueues, names...).Err(); err != nil {
		return fmt.Errorf("make the queues known: %w", err)
	}
	return nil
}

// known does something to a queue of ours. One that asynq does not know has lost its name only.
func (q *queue) known(do func() error) error {
	err := do()
	if errors.Is(err, asynq.ErrQueueNotFound) {
		if err = q.publish(context.Background()); err == nil {
			err = do()
		}
	}
	return err
}

// pending counts the tasks of these queues that no worker has taken yet.
func (q *queue) pending(ctx context.Context, names []string) (n int64, err error) {
	for _, name := range names {
		in, err := q.redis.LLen(ctx, "asynq:{"+name+"}:pending").Result()
		if err != nil {
			return 0, fmt.Errorf("count the tasks of queue %s: %w", name, err)
		}
		n += in
	}
	return n, nil
}

// find is nil when there is no task of this id.
func (q *queue) find(name, id string) (task *asynq.TaskInfo, err error) {
	err = q.known(func() (err error) {
		task, err = q.inspect.GetTaskInfo(name, id)
		return err
	})
	if errors.Is(err, asynq.ErrTaskNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for task %s: %w", id, err)
	}
	return task, nil
}

// run makes a task that waits, or is done with, deliverable at once.
func (q *queue) run(name, id string) error {
	return q.known(func() error { return q.inspect.RunTask(name, id) })
}

// remove removes a task unless a worker has it. One that is not there is removed.
func (q *queue) remove(name, id string) error {
	err := q.known(func() error { return q.inspect.DeleteTask(name, id) })
	if err != nil && !errors.Is(err, asynq.ErrTaskNotFound) {
		return fmt.Errorf("remove task %s: %w", id, err)
	}
	return nil
}

// archive puts a task away unless a worker has it. One that is not there needs nothing.
func (q *queue) archive(name, id string) error {
	err := q.known(func() error { return q.inspect.ArchiveTask(name, id) })
	if err != nil && !errors.Is(err, asynq.ErrTaskNotFound) {
		return fmt.Errorf("archive task %s: %w", id, err)
	}
	return nil
}

// done tells whether a task will not be delivered any more. What somebody enqueued into a group never is: legwork's jobs are
// not put together.
func done(task *asynq.TaskInfo) bool {
	switch task.State {
	case asynq.TaskStateArchived, asynq.TaskStateCompleted, asynq.TaskStateAggregating:
		return true
	}
	return false
}

// live is a task that will be delivered, or nil when there is none of this id.
func (q *queue) live(name, id string) (*asynq.TaskInfo, error) {
	task, err := q.find(name, id)
	if task == nil || err != nil || done(task) {
		return nil, err
	}
	return task, nil
}

// limits are what a task has by its own word, as far as Redis tells.
func (q *queue) limits(name, id string) store.JobLimits {
	task, err := q.find(name, id)
	if err != nil || task == nil {
		return store.JobLimits{}
	}
	return limitsOf(task)
}

func limitsOf(task *asynq.TaskInfo) (limits store.JobLimits) {
	if task.Timeout > 0 {
		limits.Timeout = &task.Timeout
	}
	if !task.Deadline.IsZero() {
		limits.Deadline = &task.Deadline
	}
	return limits
}

// wakingID is the id of the task that brings a step to a worker. Where the step runs, its first task is still its dead
// worker's, as far as asynq knows; this one is for this takeover alone.
func wakingID(step store.Step) string {
	if step.Status == "running" {
		return takeoverID(step.ID.String(), step.Claim)
	}
	return step.ID.String()
}

// taskIDs are those that a task of a step may have: first the one that brings it to a worker, then those that brought it.
func taskIDs(step store.Step) []string {
	ids := []string{wakingID(step)}
	for _, id := range []string{step.ID.String(), step.TaskID} {
		if id != "" && id != ids[0] {
			ids = append(ids, id)
		}
	}
	return ids
}

func takeoverID(step string, claim int64) string { return fmt.Sprintf("%s:%d", step, claim) }

// isTakeover tells whether a task is one that legwork itself made, to have a step taken over.
func isTakeover(task, step string) bool { return strings.HasPrefix(task, step+":") }

// wake gives a step a task unless it has one, and tells whether it did. Of several that wake a step at once one succeeds.
func (q *queue) wake(step store.Step) (bool, error) {
	limits := step.JobLimits
	ids := taskIDs(step)
	id := ids[0]
	for name := range queues {
		for _, known := range ids {
			task, err := q.find(name, known)
			if err != nil {
				return false, err
			}
			if task == nil {
				continue
			}
			if limits == (store.JobLimits{}) {
				limits = limitsOf(task)
			}
			brings := known == id || step.Status == "pending" // a running step's other tasks are its dead worker's
			if brings && !done(task) {
				return false, nil
			}
			if known != id {
				continue
			}
			// It keeps the id from being used.
			if err := q.remove(name, id); err != nil {
				return false, err
			}
		}
	}
	payload := StepPayload{Server: step.Server, Tool: step.Tool, StepID: step.ID.String()}
	if step.RunID != nil {
		payload.RunID = step.RunID.String()
	}
	data, err := encode(payload)
	if err != nil {
		return false, fmt.Errorf("encode the payload of step %s: %w", step.ID, err)
	}
	opts := []asynq.Option{asynq.Queue(QueueAgent), asynq.TaskID(id), asynq.Retention(Retention)}
	if limits.Deadline != nil {
		opts = append(opts, asynq.Deadline(*limits.Deadline))
	}
	if limits.Timeout != nil {
		opts = append(opts, asynq.Timeout(*limits.Timeout))
	}
	if limits == (store.JobLimits{}) {
		opts = append(opts, asynq.Timeout(noLimit))
	}
	// Not by NewStepTask: what is wrong with a row is for the worker that takes the task to say, in the row.
	_, err = q.client.Enqueue(asynq.NewTask(TypeStep, data), opts...)
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		return false, nil // somebody was faster
	}
	if err != nil {
		return false, fmt.Errorf("enqueue step %s: %w", step.ID, err)
	}
	return true, nil
}

// forgetAtOnce is how many steps' tasks are removed at once.
const forgetAtOnce = 8

// forget removes every task of steps that are about to be removed themselves: asynq keeps some for months, and one that is
// run again when its row is gone would be carried out anew.
func (q *queue) forget(steps []store.OldStep) error {
	var all sync.WaitGroup
	errs := make([]error, forgetAtOnce)
	for i := range errs {
		all.Go(func() {
			for n := i; n < len(steps) && errs[i] == nil; n += forgetAtOnce {
				errs[i] = q.forgetStep(steps[n])
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (q *queue) forgetStep(step store.OldStep) error {
	ids := []string{step.ID.String()}
	if step.TaskID != "" {
		ids = append(ids, step.TaskID)
	}
	for claim := range step.Claim { // each may have been about to be taken over
		ids = append(ids, takeoverID(step.ID.String(), claim+1))
	}
	for name := range queues {
		for _, id := range ids {
			if err := q.remove(name, id); err != nil {
				return err
			}
		}
	}
	return nil
}
