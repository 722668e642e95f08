package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"legwork/mcp"
	"legwork/store"
)

const stepFields = "server, tool, arguments, run_id and step_id"

// stepNamespace makes step ids of task ids that are no UUIDs: the same task is the same step however often it comes.
var stepNamespace = uuid.MustParse("6f1a2c52-5d5e-4c2e-9f0b-2f6a4c1d7e90")

// step carries out one agent:step task: decode, claim the row, ask the server, settle the row, tell asynq.
func (w *Worker) step(ctx context.Context, task *asynq.Task, job job) error {
	request, invalid := w.stepRequest(task, job)
	if invalid != nil {
		return w.refuseStep(ctx, task, job, request, invalid)
	}

	lane := request.Server
	if err := w.enterLane(ctx, lane, job); err != nil {
		if parked(err) {
			// So that it is there to be seen, and to be woken should its task be lost meanwhile.
			err = cmp.Or(w.addStep(ctx, request), err)
		}
		return err
	}
	defer func() { w.leaveLane(lane) }()
	claim, err := w.claimStep(ctx, request)
	if err != nil {
		return err
	}
	if claim.Server != nil {
		w.lanes.learn(claim.Server.Identifier, claim.Server.MaxInFlight)
		if claim.Server.Identifier != lane { // the row wins over the job
			w.leaveLane(lane)
			lane = claim.Server.Identifier
			w.lanes.join(lane)
		}
	}
	switch claim.Outcome {
	case store.Busy:
		return busy(fmt.Sprintf("step %s is being carried out by worker %s", claim.Step.ID, claim.Step.ClaimedBy), claim.Step.StartedAt, claim.Step.LeaseExpiresAt)
	case store.AwaitingApproval:
		w.leave(task, taskResult{Step: claim.Step.ID.String(), Status: claim.Step.Status})
		return nil
	case store.Settled:
		return w.tellStep(task, claim.Step)
	case store.Interrupted:
		w.logStep(job, claim.Step, mcp.Spent{}, storedFailure(claim.Step))
		return w.tellStep(task, claim.Step)
	}

	result, spent, failure := w.callTool(ctx, claim, job)
	ended := time.Now()
	outcome := outcomeOf(result, spent, failure)
	settled, err := w.settleStep(ctx, claim.Step, outcome)
	switch {
	case err == nil:
		w.metrics.settled(time.Since(ended))
		w.logStep(job, claim.Step, spent, failure)
		return w.tellStep(task, settled)
	case errors.Is(err, store.ErrClaimLost), store.Refused(err):
		w.logUnsettled(job.id, "step "+claim.Step.ID.String(), failure, err)
	default:
		w.settleLater(claim.Step, outcome, func() {
			w.metrics.settled(time.Since(ended))
			w.logStep(job, claim.Step, spent, failure)
		}, func(err error) {
			w.logUnsettled(job.id, "step "+claim.Step.ID.String(), failure, err)
		})
	}
	return busy(fmt.Sprintf("the outcome of step %s could not be written down yet: %s", claim.Step.ID, err), nil, nil)
}

// settleLater keeps an outcome that could not be written down, and goes on trying for as long as the worker lives. A step
// that was called interrupted meanwhile gets it all the same: known beats unknown. There are never more of these than
// operations at once, because nothing can be claimed while nothing can be written.
func (w *Worker) settleLater(step store.Step, outcome store.StepOutcome, settled func(), lost func(error)) {
	w.unsettled.Go(func() {
		for {
			select {
			case <-w.stopping:
			case <-time.After(time.Second):
			}
			ctx, cancel := context.WithTimeout(context.Background(), SettleTime)
			_, err := w.store.SettleStep(ctx, step.ID, step.Claim, outcome)
			cancel()
			if err == nil {
				settled()
				return
			}
			if errors.Is(err, store.ErrClaimLost) || store.Refused(err) || w.stopped() {
				lost(err)
				return
			}
		}
	})
}

// stepRequest decodes the payload. The request has an id even when the payload is unusable, so that there is a row to
// read: the payload's, or the task's, or one made of the task's.
func (w *Worker) stepRequest(task *asynq.Task, job job) (store.StepRequest, *mcp.Failure) {
	request := store.StepRequest{
		Worker: w.name, Budget: w.budget, Job: job.left, Margin: LeaseMargin,
		Interrupted: interrupted,
	}
	var err error
	if request.ID, err = uuid.Parse(job.id); err != nil {
		request.ID = uuid.NewSHA1(stepNamespace, []byte(job.queue+"\x00"+job.id))
	}

	var payload StepPayload
	var ids stepIDs
	if err = decode(task.Payload(), &payload, stepFields); err == nil {
		ids, err = payload.check()
	}
	request.Server, request.Tool, request.RunID = payload.Server, payload.Tool, ids.run
	if ids.step != uuid.Nil {
		request.ID = ids.step
	}
	if job.id != request.ID.String() {
		request.TaskID = job.id
	}
	if err != nil {
		return request, mcp.InvalidRequest(payload.Server, fmt.Sprintf("Invalid request: %s. No server was asked; enqueue it again with that corrected.", err))
	}
	request.Arguments = payload.Arguments
	return request, nil
}

func (w *Worker) addStep(ctx context.Context, request store.StepRequest) error {
	ctx, cancel := context.WithTimeout(ctx, ClaimTime)
	defer cancel()
	return w.store.AddStep(ctx, request)
}

func (w *Worker) claimStep(ctx context.Context, request store.StepRequest) (store.Claim, error) {
	ctx, cancel := context.WithTimeout(ctx, ClaimTime)
	defer cancel()
	claim, err := w.store.ClaimStep(ctx, request)
	w.claims.note(w.log, err)
	if err != nil {
		return store.Claim{}, unclaimedError{fmt.Errorf("step %s could not be claimed, so it was not begun: %w", request.ID, err)}
	}
	return claim, nil
}

// unclaimedError sends a task back whose row could not be claimed. Nothing was sent.
type unclaimedError struct{ error }

func (e unclaimedError) Unwrap() error { return e.error }

// callTool is the operation itself. What makes the step impossible is found before anything is sent.
func (w *Worker) callTool(ctx context.Context, claim store.Claim, job job) (mcp.ToolResult, mcp.Spent, *mcp.Failure) {
	step := claim.Step
	budget := w.budgetFor(claim.Server, job)
	refused := func(failure *mcp.Failure) (mcp.ToolResult, mcp.Spent, *mcp.Failure) {
		return mcp.ToolResult{}, mcp.Spent{Budget: budget}, failure
	}
	if claim.Run != nil && claim.Run.Status == statusCancelled {
		return refused(mcp.Cancelled(step.Server, claim.Run.CancelledBy))
	}
	if step.Kind != "tool" {
		return refused(mcp.InvalidRequest(step.Server, fmt.Sprintf("Invalid request: the step is of kind %q, and this legwork carries out tool steps only.", step.Kind)))
	}
	if failure := unusable(claim.Server, step.Server); failure != nil {
		return refused(failure)
	}
	if claim.NotCallable != "" {
		return refused(mcp.NotCallable(step.Server, step.Tool, claim.NotCallable))
	}
	call := mcp.ToolCall{Name: step.Tool, Arguments: step.Arguments, InputSchema: claim.HeaderSchema}
	server := w.tokens.lend(ServerOf(*claim.Server))
	w.metrics.begun(step.Server)
	result, spent, failure := contained(w, step.Server, budget, func() (mcp.ToolResult, mcp.Spent, error) {
		return w.client.CallTool(ctx, server, call, budget)
	})
	w.metrics.ended(step.Server, "step", spent, failure)
	w.tokens.keep(server, spent)
	if failure == nil || failure.Kind == mcp.KindToolError {
		w.contacts.note(step.Server, spent)
	}
	return result, spent, failure
}

// outcomeOf is what goes into the row.
func outcomeOf(result mcp.ToolResult, spent mcp.Spent, failure *mcp.Failure) store.StepOutcome {
	outcome := store.StepOutcome{Status: statusSucceeded, Legs: encodeLegs(spent.Legs), BudgetMS: spent.Budget.Total.Milliseconds()}
	if failure != nil {
		row := rowFailure(failure)
		outcome.Status, outcome.Failure = verdicts[failure.Kind].status, &row
	}
	if failure == nil || failure.Kind == mcp.KindToolError {
		data, err := encode(result)
		if err != nil {
			panic(err) // what was decoded from JSON can be encoded
		}
		outcome.Result = data
	}
	return outcome
}

// settleStep writes the outcome, on a time limit of its own: the operation is over and what it brought must not be lost
// to whatever ended meanwhile.
func (w *Worker) settleStep(ctx context.Context, step store.Step, outcome store.StepOutcome) (store.Step, error) {
	var settled store.Step
	err := persist(ctx, "step "+step.ID.String(), func(ctx context.Context) (err error) {
		settled, err = w.store.SettleStep(ctx, step.ID, step.Claim, outcome)
		return err
	})
	return settled, err
}

// refuseStep settles a job that is unusable from the start.
func (w *Worker) refuseStep(ctx context.Context, task *asynq.Task, job job, request store.StepRequest, failure *mcp.Failure) error {
	var settled store.Step
	var refused bool
	err := persist(ctx, "step "+request.ID.String(), func(ctx context.Context) error {
		row, now, err := w.store.RefuseStep(ctx, request, rowFailure(failure))
		settled, refused = row, refused || now
		return err
	})
	if err != nil {
		return err
	}
	if refused {
		w.logStep(job, settled, mcp.Spent{}, failure)
	}
	if settled.FinishedAt == nil { // the row was running already when this unusable twin of its task came
		return settledFailure{failure.Message}
	}
	return w.tellStep(task, settled)
}

// expireStep settles a step whose job's deadline passed in the queue.
func (w *Worker) expireStep(ctx context.Context, task *asynq.Task, job job) {
	request, failure := w.stepRequest(task, job)
	if failure == nil {
		failure = mcp.SpentBeforeStart(request.Server)
	}
	// What the queue is told is asynq's to say here; the row says the rest.
	if err := w.refuseStep(ctx, task, job, request, failure); err != nil && !errors.Is(err, asynq.SkipRetry) {
		w.log.WithError(err).Error("a step whose deadline passed in the queue could not be settled")
	}
}

// tellStep tells the queue what the row says.
func (w *Worker) tellStep(task *asynq.Task, step store.Step) error {
	w.leave(task, taskResult{
		Step: step.ID.String(), Status: step.Status, Kind: step.FailureKind, Sentence: step.FailureMessage, Legs: step.Legs,
	})
	if step.FailureKind == "" {
		return nil
	}
	return forQueue(mcp.Kind(step.FailureKind), step.FailureMessage)
}

func (w *Worker) logStep(job job, step store.Step, spent mcp.Spent, failure *mcp.Failure) {
	run := ""
	if step.RunID != nil {
		run = step.RunID.String()
	}
	w.logOperation(operationLine{
		task: job.id, run: run, step: step.ID.String(), server: step.Server, tool: step.Tool, legs: spent.Legs, elapsed: spent.Elapsed,
	}, "step", failure)
}

func interrupted(step store.Step) store.Failure {
	return rowFailure(mcp.Interrupted(step.Server, step.ClaimedBy))
}

func storedFailure(step store.Step) *mcp.Failure {
	return &mcp.Failure{Kind: mcp.Kind(step.FailureKind), Asked: mcp.Asked(step.Asked), Server: step.Server, Message: step.FailureMessage}
}

// busyError sends a task back to come again later. It is no failure and does not count as a try.
type busyError struct {
	why    string
	after  time.Duration
	parked bool // it waits for a place in its server's lane
}

func parked(err error) bool {
	var busy busyError
	return errors.As(err, &busy) && busy.parked
}

func (e busyError) Error() string { return e.why }

const (
	soonest = time.Second      // that a task comes back to a busy row
	latest  = 30 * time.Second // so that its outcome is on the dashboard soon after it is in the row
)

// busy says when to look again: after as long as the other has been at it, which is soon for what is quick and seldom for
// what is slow, but when the lease is over at the latest.
func busy(why string, started, lease *time.Time) error {
	after := soonest
	if started != nil {
		after = min(max(time.Since(*started), soonest), latest)
	}
	if lease != nil {
		after = max(min(after, time.Until(*lease)+soonest), soonest)
	}
	return busyError{why: why, after: after}
}
