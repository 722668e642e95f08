package worker

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/hibiken/asynq"
	"github.com/sirupsen/logrus"

	"legwork/mcp"
)

const (
	// maxCrashes is how often a task is handled that makes its handler panic, before it is settled.
	maxCrashes = 3

	crashPause = 2 * time.Second
)

// crashError sends a task back whose handler panicked.
type crashError struct{ what string }

func (e crashError) Error() string { return "legwork failed while it handled the task: " + e.what }

// contained runs an operation that may panic on what a server sends. The panic becomes its failure: nobody knows how far it
// got, so it is as if the worker had died, without the other operations dying with it.
func contained[T any](w *Worker, server string, budget mcp.Budget, operation func() (T, mcp.Spent, error)) (result T, spent mcp.Spent, failure *mcp.Failure) {
	defer func() {
		if reason := recover(); reason != nil {
			var none T
			result, spent, failure = none, mcp.Spent{Budget: budget}, mcp.Crashed(server, w.crashed(reason, logrus.Fields{"server": server}))
		}
	}()
	result, spent, err := operation()
	return result, spent, asFailure(err)
}

// uncrashed handles a task. One that makes its handler panic again and again, before or after its operation, is settled
// in the end.
func (w *Worker) uncrashed(ctx context.Context, task *asynq.Task, job job) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = w.afterCrash(ctx, task, job, w.crashed(reason, logrus.Fields{"task": job.id}))
		}
	}()
	return w.carryOut(ctx, task, job)
}

func (w *Worker) afterCrash(ctx context.Context, task *asynq.Task, job job, what string) error {
	if tries, _ := asynq.GetRetryCount(ctx); tries+1 < maxCrashes {
		return crashError{what}
	}
	sentence := fmt.Sprintf("Invalid request: legwork failed %d times while it handled this job (%s), and gave it up. The log has where; no other job is harmed.", maxCrashes, what)
	switch task.Type() {
	case TypeStep:
		request, invalid := w.stepRequest(task, job)
		if invalid == nil {
			invalid = mcp.InvalidRequest(request.Server, sentence)
		}
		return w.refuseStep(ctx, task, job, request, invalid)
	case TypeImport:
		var payload ImportPayload
		_ = decode(task.Payload(), &payload, "server") // one that is unusable has been refused before
		return w.failImport(ctx, task, job, payload.Server, 0, mcp.Spent{}, mcp.InvalidRequest(payload.Server, sentence))
	}
	return settledFailure{sentence}
}

// crashed counts a panic, logs where it happened and says it in few words.
func (w *Worker) crashed(reason any, fields logrus.Fields) string {
	w.metrics.crashed()
	what := clip(fmt.Sprintf("panic: %v", reason))
	w.log.WithFields(fields).WithField("stack", string(debug.Stack())).Error("legwork itself failed; the worker goes on: " + what)
	return what
}
