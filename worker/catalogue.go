package worker

import (
	"context"
	"errors"
	"fmt"

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
		err = w.joinLane(ctx, payload.Server)
	} else {
		err = w.enterLane(ctx, payload.Server, job)
	}
	if err != nil {
		return err
	}
	defer w.leaveLane(payload.Server)
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

	server := w.tokens.lend(ServerOf(*claim.Server))
	budget := w.budgetFor(claim.Server, job)
	w.metrics.begun(payload.Server)
	found, spent, failure := contained(w, payload.Server, budget, func() (mcp.Catalogue, mcp.Spent, error) {
		return w.client.ListTools(ctx, server, budget)
	})
	w.metrics.ended(payload.Server, "import", spent, failure)
	w.tokens.keep(server, spent)
	if failure != nil {
		return w.failImport(ctx, task, job, payload.Server, claim.Claim, spent, failure)
	}
	w.contacts.note(payload.Server, spent)
	return w.settleImport(ctx, task, job, payload.Server, claim.Claim, found, spent)
}

func (w *Worker) claimImport(ctx context.Context, server string, job job) (store.ImportClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, ClaimTime)
	defer cancel()
	claim, err := w.store.ClaimImport(ctx, store.ImportRequest{
		Server: server, Worker: w.name, Budget: w.budget, Job: job.left, Margin: LeaseMargin,
	})
	w.claims.note(w.log, err)
	if err != nil {
		return store.ImportClaim{}, unclaimedError{fmt.Errorf("the import of server %q could not be claimed, so it was not begun: %w", server, err)}
	}
	return claim, nil
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
	err := persist(ctx, fmt.Sprintf("import of server %q", server), func(ctx context.Context) (err error) {
		report, err = w.store.SettleImport(ctx, server, claim, tools, skipped, importSpent(job, spent))
		return err
	})
	if errors.Is(err, store.ErrClaimLost) {
		return busy(fmt.Sprintf("the import of server %q was taken over by another worker", server), nil, nil)
	}
	if err != nil {
		w.logUnsettled(job.id, fmt.Sprintf("the import of server %q", server), nil, err)
		return err
	}
	w.logImport(job, server, spent, nil)
	w.logUntyped(job.id, server, found.Untyped)
	w.leave(task, taskResult{Status: statusSucceeded, Legs: encodeLegs(spent.Legs), Report: &report})
	return nil
}

// failImport leaves the catalogue as it was and writes down why.
func (w *Worker) failImport(ctx context.Context, task *asynq.Task, job job, server string, claim int64, spent mcp.Spent, failure *mcp.Failure) error {
	err := persist(ctx, fmt.Sprintf("import of server %q", server), func(ctx context.Context) error {
		return w.store.FailImport(ctx, server, claim, rowFailure(failure), importSpent(job, spent))
	})
	if errors.Is(err, store.ErrClaimLost) {
		return busy(fmt.Sprintf("the import of server %q was taken over by another worker", server), nil, nil)
	}
	if err != nil {
		w.logUnsettled(job.id, fmt.Sprintf("the import of server %q", server), failure, err)
		return err
	}
	w.logImport(job, server, spent, failure)
	w.leave(task, taskResult{Status: statusFailed, Kind: string(failure.Kind), Sentence: failure.Message, Legs: encodeLegs(spent.Legs)})
	return forQueue(failure.Kind, failure.Message)
}

// expireImport writes down that an import's deadline passed in the queue.
func (w *Worker) expireImport(ctx context.Context, task *asynq.Task, job job) {
	var payload ImportPayload
	_ = decode(task.Payload(), &payload, "server") // an unusable payload names no server; the sentence stands all the same
	server := clip(payload.Server)
	err := w.failImport(ctx, task, job, server, 0, mcp.Spent{}, mcp.SpentBeforeStart(server))
	if err != nil && !errors.Is(err, asynq.SkipRetry) {
		w.log.WithError(err).Error("an import whose deadline passed in the queue could not be settled")
	}
}

func importSpent(job job, spent mcp.Spent) store.ImportSpent {
	return store.ImportSpent{BudgetMS: spent.Budget.Total.Milliseconds(), Legs: encodeLegs(spent.Legs), TaskID: job.id}
}

func (w *Worker) logImport(job job, server string, spent mcp.Spent, failure *mcp.Failure) {
	w.logOperation(operationLine{task: job.id, server: server, legs: spent.Legs, elapsed: spent.Elapsed}, "import", failure)
}
