package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"legwork/store"
)

const (
	// unattendedAfter is how long a step may wait before somebody makes sure that it has a task.
	unattendedAfter = 30 * time.Second

	// wakeTime bounds one look for such steps: a worker that has just lost a queue of many must not do nothing else.
	wakeTime = 2 * time.Second

	// noLimit stands in place of asynq's own, half an hour, which would tighten longer budgets.
	noLimit = 365 * 24 * time.Hour
)

// queues are those that a worker takes tasks from.
var queues = map[string]int{QueueAgent: 6, QueueImport: 2, "default": 2}

// wakeAll makes sure that the steps that wait have tasks, and gives new ones to those that dead workers left behind and
// that may be carried out again. It returns how many were given one.
func (w *Worker) wakeAll(ctx context.Context) (woken int, err error) {
	// Steps are marked as looked after before Redis is asked for their tasks: not while it cannot be asked.
	if _, err := w.queue.Queues(); err != nil {
		return 0, fmt.Errorf("ask Redis for the queues: %w", err)
	}
	for end := time.Now().Add(wakeTime); time.Now().Before(end) && ctx.Err() == nil; {
		steps, err := w.store.Unattended(ctx, unattendedAfter, sweepBatch)
		if err != nil {
			return woken, err
		}
		for _, step := range steps {
			did, err := wake(w.queue, w.tasks, step)
			if err != nil {
				return woken, err
			}
			if did {
				woken++
			}
		}
		if len(steps) < sweepBatch {
			break
		}
	}
	return woken, nil
}

// wake gives a step a task unless it has one, and tells whether it did. Of several that wake a step at once one succeeds.
func wake(queue *asynq.Inspector, tasks *asynq.Client, step store.Step) (bool, error) {
	id := wakingID(step)
	for name := range queues {
		attended, err := attends(queue, name, id)
		if attended || err != nil {
			return false, err
		}
		if step.TaskID == "" || step.Status != "pending" {
			continue
		}
		task, err := liveTask(queue, name, step.TaskID)
		if task != nil || err != nil {
			return false, err
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
	// Not by NewStepTask: what is wrong with a row is for the worker that takes the task to say, in the row.
	_, err = tasks.Enqueue(asynq.NewTask(TypeStep, data), asynq.Queue(QueueAgent), asynq.TaskID(id), asynq.Retention(Retention), asynq.Timeout(noLimit))
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		return false, nil // somebody was faster
	}
	if err != nil {
		return false, fmt.Errorf("enqueue step %s: %w", step.ID, err)
	}
	return true, nil
}

// wakingID is the id of the task that brings a step to a worker. Where the step runs, its first task is still its dead
// worker's, as far as asynq knows; this one is for this takeover alone.
func wakingID(step store.Step) string {
	if step.Status == "running" {
		return fmt.Sprintf("%s:%d", step.ID, step.Claim)
	}
	return step.ID.String()
}

// attends tells whether a queue holds a task of this id that will be delivered. One that will not is removed: it keeps the
// id from being used.
func attends(queue *asynq.Inspector, name, id string) (bool, error) {
	task, err := findTask(queue, name, id)
	if task == nil || err != nil {
		return false, err
	}
	if !done(task) {
		return true, nil
	}
	err = queue.DeleteTask(name, id)
	if err != nil && !errors.Is(err, asynq.ErrTaskNotFound) {
		return false, fmt.Errorf("remove task %s, which is done with: %w", id, err)
	}
	return false, nil
}

// liveTask is a task that will be delivered, or nil when there is none of this id.
func liveTask(queue *asynq.Inspector, name, id string) (*asynq.TaskInfo, error) {
	task, err := findTask(queue, name, id)
	if task == nil || err != nil || done(task) {
		return nil, err
	}
	return task, nil
}

// findTask is nil when there is none.
func findTask(queue *asynq.Inspector, name, id string) (*asynq.TaskInfo, error) {
	task, err := queue.GetTaskInfo(name, id)
	if errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for task %s: %w", id, err)
	}
	return task, nil
}

// done tells whether a task will not be delivered any more.
func done(task *asynq.TaskInfo) bool {
	return task.State == asynq.TaskStateArchived || task.State == asynq.TaskStateCompleted
}
