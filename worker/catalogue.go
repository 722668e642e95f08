package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hibiken/asynq"

	"legwork/mcp"
	"legwork/store"
)

// catalogue carries out one catalogue:import task: decode, claim the server's catalogue, walk it, write it down as a
// whole or leave it as it was, tell asynq.
func (w *Worker) catalogue(ctx context.Context, task *asynq.Task, job job) error {
	var payload ImportPayload
	err := decode(task.Payload(), &payload, "server")
	if err == nil {
		err = payload.check()
	}
	if err != nil {
		server := clip(payload.Server)
		return w.failImport(ctx, task, job, server, 0, mcp.Spent{}, mcp.InvalidRequest(server, fmt.Sprintf(
			"Invalid request: %s. No server was asked; enqueue it again with that corrected.", err)))
	}

	if job.last { // asynq would put it away if it waited, and no row brings it back
		err = w.joinLane(ctx, payload.Server, job)
	} else {
		var place entry
		place, err = w.enterLane(ctx, payload.Server, job)
		if err == nil && !place.ok {
			err = sentAway(payload.Server, place, w.queue.limits(job.queue, job.id))
		}
	}
	if err != nil {
		return err
	}
	leaveLane := sync.OnceFunc(func() { w.leaveLane(payload.Server) })
	defer leaveLane()
	claim, err := w.claimImport(ctx, payload.Server, job)
	if err != nil {
		return err
	}
	if claim.Busy {
		return busy(fmt.Sprintf("the catalogue of server %q is being imported already", payload.Server), nil, claim.LeaseExpiresAt)
	}
	if failure := unusable(claim.Server, payload.Server); failure != nil {
		return w.failImport(ctx, task, job, payload.Server, claim.Claim, mcp.Spent{}, failure)
	}

	if job.over() {
		return w.failImport(ctx, task, job, payload.Server, claim.Claim, mcp.Spent{}, mcp.SpentBeforeStart(payload.Server))
	}

	server := w.tokens.lend(ServerOf(*claim.Server))
	budget := w.budgetFor(claim.Server, job)
	w.metrics.begun(payload.Server)
	found, spent, failure := contained(w, payload.Server, budget, func() (mcp.Catalogue, mcp.Spent, error) {
		return w.client.ListTools(ctx, server, budget)
	})
	leaveLane() // what is left to do may have to wait, and not for the server
	w.metrics.ended(payload.Server, "import", spent, failure)
	w.tokens.keep(server, spent)
	if failure != nil {
		return w.failImport(ctx, task, job, payload.Server, claim.Claim, spent, failure)
	}
	w.contacts.note(payload.Server, spent)
	return w.settleImport(ctx, task, job, payload.Server, claim.Claim, found, spent)
}

func (w *Worker) claimImport(ctx context.Context, server string, job job) (claim store.ImportClaim, err error) {
	err = w.beforehand(ctx, job, importOf(server)+" could not be claimed, so it was not begun", func(ctx context.Context) (err error) {
		claim, err = w.store.ClaimImport(ctx, store.ImportRequest{
			Server: server, Worker: w.name, Budget: w.budget, Job: job.left(), Margin: LeaseMargin,
		})
		return err
	})
	return claim, err
}

func (w *Worker) settleImport(ctx context.Context, task *asynq.Task, job job, server string, claim int64, found mcp.Catalogue, spent mcp.Spent) error {
	tools := make([]store.ImportedTool, len(found.Tools))
	for i, tool := range found.Tools {
		tools[i] = store.ImportedTool{
			Name:        mcp.LocalToolName(server, tool.Name, false),
			HashedName:  mcp.LocalToolName(server, tool.Name, true),
			RemoteName:  tool.Name,
			Title:       tool.Title,
			Description: tool.Description,
			InputSchema: tool.InputSchema,
			Annotations: tool.Annotations,
			NotOffered:  tool.NotCallable, // what nobody can call, no model is offered
			NotCallable: tool.NotCallable,
		}
		if tool.NotCallable != "" {
			continue
		}
		schema, err := mcp.ModelSchema(tool.InputSchema)
		if err != nil {
			tools[i].NotOffered = err.Error()
		}
		tools[i].ModelSchema = schema
	}
	skipped := make([]store.SkippedTool, len(found.Skipped))
	for i, tool := range found.Skipped {
		skipped[i] = store.SkippedTool{Name: tool.Name, Reason: tool.Reason}
	}

	var report store.ImportReport
	err := w.settle(ctx, settlement{
		what: importOf(server), task: job.id, stay: true,
		write: func(ctx context.Context) (err error) {
			report, err = w.store.SettleImport(ctx, server, claim, tools, skipped, importSpent(job, spent))
			return err
		},
		wrote: func() {
			w.logImport(job, server, spent, nil)
			w.logUntyped(job.id, server, found.Untyped)
		},
	})
	switch {
	case errors.Is(err, store.ErrClaimLost):
		return takenOver(server)
	case store.Refused(err):
		return err
	case err != nil: // this worker stops, and the next one imports once more
		return busy(fmt.Sprintf("the outcome could not be written down yet: %s", err), nil, nil)
	}
	w.leave(task, taskResult{Status: statusSucceeded, Legs: encodeLegs(spent.Legs), Report: &report})
	return nil
}

// failImport leaves the catalogue as it was and writes down why. Where Postgres is away the queue is told all the same, and
// the row follows.
func (w *Worker) failImport(ctx context.Context, task *asynq.Task, job job, server string, claim int64, spent mcp.Spent, failure *mcp.Failure) error {
	err := w.settle(ctx, settlement{
		what: importOf(server), task: job.id, failure: failure,
		write: func(ctx context.Context) error {
			return w.store.FailImport(ctx, server, claim, rowFailure(failure), importSpent(job, spent))
		},
		wrote: func() { w.logImport(job, server, spent, failure) },
	})
	if errors.Is(err, store.ErrClaimLost) {
		return takenOver(server)
	}
	w.leave(task, taskResult{Status: statusFailed, Kind: string(failure.Kind), Sentence: failure.Message, Legs: encodeLegs(spent.Legs)})
	return forQueue(failure.Kind, failure.Message)
}

func importOf(server string) string { return fmt.Sprintf("the import of server %q", server) }

func takenOver(server string) error {
	return busy(importOf(server)+" was taken over by another worker", nil, nil)
}

// expireImport writes down that an import's own limit passed before its operation began, and returns what the queue would be
// told.
func (w *Worker) expireImport(ctx context.Context, task *asynq.Task, job job) error {
	var payload ImportPayload
	_ = decode(task.Payload(), &payload, "server") // an unusable payload names no server; the sentence stands all the same
	server := clip(payload.Server)
	return w.failImport(ctx, task, job, server, 0, mcp.Spent{}, mcp.SpentBeforeStart(server))
}

func importSpent(job job, spent mcp.Spent) store.ImportSpent {
	return store.ImportSpent{BudgetMS: spent.Budget.Total.Milliseconds(), Legs: encodeLegs(spent.Legs), TaskID: job.id}
}

func (w *Worker) logImport(job job, server string, spent mcp.Spent, failure *mcp.Failure) {
	w.logOperation(operationLine{task: job.id, server: server, legs: spent.Legs, elapsed: spent.Elapsed}, "import", failure)
}
