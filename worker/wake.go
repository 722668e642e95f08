package worker

import (
	"context"
	"time"
)

const (
	// unattendedAfter is how long a step may wait before somebody makes sure that it has a task.
	unattendedAfter = 30 * time.Second

	// wakeTime bounds one look for such steps: a worker that has just lost a queue of many must not do nothing else.
	wakeTime = 2 * time.Second

	// noLimit stands in place of asynq's own, half an hour, which would tighten longer budgets.
	noLimit = 365 * 24 * time.Hour
)

// wakeAll makes sure that the steps that wait have tasks, and gives new ones to those that dead workers left behind and
// that may be carried out again. It returns how many were given one.
func (w *Worker) wakeAll(ctx context.Context) (woken int, err error) {
	// Steps are marked as looked after before Redis is asked for their tasks: not while it cannot be asked.
	if err := w.queue.publish(ctx); err != nil {
		return 0, err
	}
	for end := time.Now().Add(wakeTime); time.Now().Before(end) && ctx.Err() == nil; {
		steps, err := w.store.Unattended(ctx, unattendedAfter, sweepBatch)
		if err != nil {
			return woken, err
		}
		for _, step := range steps {
			if ctx.Err() != nil {
				return woken, nil // the others are looked at again later
			}
			did, err := w.queue.wake(step)
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
