package worker

import (
	"github.com/hibiken/asynq"

	"legwork/mcp"
)

// The states in which a step ends.
const (
	statusSucceeded = "succeeded"
	statusFailed    = "failed"
	statusCancelled = "cancelled"
)

// verdict is what a failure means for the row and for the queue.
type verdict struct {
	status  string // of the row
	archive bool   // whether asynq archives the task with the sentence; otherwise the task is done
}

// verdicts is the one place that decides it. No kind is repeated by the queue: what could be repeated safely is for the
// backend to say, and what could not even be claimed never gets as far as a kind.
var verdicts = map[mcp.Kind]verdict{
	mcp.KindBudgetSpent:            {statusFailed, true},
	mcp.KindNoAnswer:               {statusFailed, true},
	mcp.KindUnreachable:            {statusFailed, true},
	mcp.KindConnectionLost:         {statusFailed, true},
	mcp.KindHTTPStatus:             {statusFailed, true},
	mcp.KindMalformedResponse:      {statusFailed, true},
	mcp.KindUnsupportedContentType: {statusFailed, true},
	mcp.KindResponseTooLarge:       {statusFailed, true},
	mcp.KindRPCError:               {statusFailed, true},
	mcp.KindToolError:              {statusFailed, false}, // an answer: the server did what it was asked
	mcp.KindRefusedHost:            {statusFailed, true},
	mcp.KindMissingCredential:      {statusFailed, true},
	mcp.KindInvalidRequest:         {statusFailed, true},
	mcp.KindInterrupted:            {statusFailed, true},
	mcp.KindCancelled:              {statusCancelled, false}, // somebody wanted it so
}

// settledFailure tells asynq that a task is settled and must not be repeated. Its text, the operator's sentence, is what
// the dashboard shows as the last error.
type settledFailure struct{ sentence string }

func (e settledFailure) Error() string { return e.sentence }

func (settledFailure) Unwrap() error { return asynq.SkipRetry }

// forQueue is what the queue is told of a settled failure.
func forQueue(kind mcp.Kind, sentence string) error {
	if v, known := verdicts[kind]; known && !v.archive {
		return nil
	}
	return settledFailure{sentence}
}
