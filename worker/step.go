package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
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

	before, began := w.attempts.begin(request.ID)
	if !began {
		return w.underWay(ctx, task, job, request.ID)
	}
	leaves := before
	end := func() { w.attempts.end(request.ID, leaves) }
	settling := false
	defer func() {
		if !settling {
			end()
		}
	}()

	lane, place := request.Server, entry{ok: true}
	var err error
	if before.unheard { // no other worker can take it
		err = w.joinLane(ctx, lane, job)
	} else {
		place, err = w.enterLane(ctx, lane, job)
	}
	if err != nil {
		return err
	}
	if !place.ok {
		// Its row is added so that it is there to be seen, and to be woken should its task be lost meanwhile.
		request.JobLimits = w.queue.limits(job.queue, job.id)
		return cmp.Or(w.addStep(ctx, request, job), sentAway(lane, place, request.JobLimits))
	}
	leaveLane := sync.OnceFunc(func() { w.leaveLane(lane) })
	defer leaveLane()
	claim, err := w.claimStep(ctx, request, job, &leaves)
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
		return w.tellBusy(task, job, claim.Step)
	case store.AwaitingApproval:
		w.leave(task, taskResult{Step: claim.Step.ID.String(), Status: claim.Step.Status})
		return nil
	case store.Settled:
		leaves = attempt{}
		return w.tellStep(task, job, claim.Step)
	case store.Interrupted:
		leaves = attempt{}
		w.logStep(job, claim.Step, mcp.Spent{}, storedFailure(claim.Step))
		return w.tellStep(task, job, claim.Step)
	}

	leaves.acted = true
	result, spent, failure := w.callTool(ctx, claim, job)
	ended := time.Now()
	leaveLane() // what is left to do may have to wait, and not for the server
	outcome := outcomeOf(result, spent, failure)
	var settled store.Step
	settling = true
	s := settlement{
		what: "step " + claim.Step.ID.String(), task: job.id, failure: failure, over: end, stay: job.last,
		write: func(ctx context.Context) (err error) {
			settled, err = w.store.SettleStep(ctx, claim.Step, outcome)
			leaves.acted = err != nil && !errors.Is(err, store.ErrClaimLost)
			return err
		},
		wrote: func() {
			w.metrics.settled(time.Since(ended))
			w.logStep(job, claim.Step, spent, failure)
		},
	}
	err = w.settle(ctx, s)
	switch {
	case err == nil:
		return w.tellStep(task, job, settled)
	case errors.Is(err, store.ErrClaimLost):
		w.logUnsettled(s, err)
		if _, err := w.store.Step(ctx, claim.Step.ID); errors.Is(err, store.ErrNotFound) {
			return settledFailure{fmt.Sprintf("The row of %s was removed while it was carried out, so what came of it is in the worker's log alone. It is not repeated.", s.what)}
		}
	}
	return busy(fmt.Sprintf("the outcome of %s could not be written down yet: %s", s.what, err), nil, nil)
}

// stepRequest decodes the payload. The request has an id even when the payload is unusable, so that there is a row to
// read: the payload's, or the task's, or one made of the task's.
func (w *Worker) stepRequest(task *asynq.Task, job job) (store.StepRequest, *mcp.Failure) {
	request := store.StepRequest{
		Worker: w.name, Budget: w.budget, Job: job.left(), Margin: LeaseMargin,
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
	if request.ID.String() != job.id && !isTakeover(job.id, request.ID.String()) {
		request.TaskID = job.id
	}
	if err != nil {
		return request, mcp.InvalidRequest(payload.Server, fmt.Sprintf("Invalid request: %s. No server was asked; enqueue it again with that corrected.", err))
	}
	request.Arguments = payload.Arguments
	return request, nil
}

func (w *Worker) addStep(ctx context.Context, request store.StepRequest, job job) error {
	return w.beforehand(ctx, job, fmt.Sprintf("the row of step %s, which has to wait, could not be added", request.ID), func(ctx context.Context) error {
		return w.store.AddStep(ctx, request)
	})
}

// claimStep claims a step. leaves is what the attempt leaves: its claim may have been taken without a reply. Then it is tried
// again here, because no other worker can take the step, and once the lease of that claim is over nobody would.
func (w *Worker) claimStep(ctx context.Context, request store.StepRequest, job job, leaves *attempt) (claim store.Claim, err error) {
	cannot := fmt.Sprintf("step %s could not be claimed, so it was not begun", request.ID)
	ask := func(ctx context.Context) (err error) {
		request.Job, request.Unheard = job.left(), leaves.takenUnheard()
		claim, err = w.store.ClaimStep(ctx, request)
		leaves.unheard = err != nil && (leaves.unheard || store.Unheard(err))
		return err
	}
	err = w.beforehand(ctx, job, cannot, ask)
	if leaves.unheard && !job.last {
		job.last = true // as good as: it must not go back either
		if !w.again(job.given) {
			return claim, keptInVain(err)
		}
		err = w.beforehand(ctx, job, cannot, ask)
	}
	return claim, err
}

// underWay tells the queue of a step that this worker has under way already, by another of its tasks.
func (w *Worker) underWay(ctx context.Context, task *asynq.Task, job job, id uuid.UUID) error {
	step := store.Step{ID: id, Status: "pending", ClaimedBy: w.name} // as long as it has no row
	err := w.beforehand(ctx, job, fmt.Sprintf("step %s could not be read", id), func(ctx context.Context) error {
		found, err := w.store.Step(ctx, id)
		switch {
		case err == nil:
			step = found
		case errors.Is(err, store.ErrNotFound):
			return nil
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case step.Terminal():
		return w.tellStep(task, job, step)
	}
	return w.tellBusy(task, job, step)
}

// tellBusy has a task come back when the worker that runs its step may be done.
func (w *Worker) tellBusy(task *asynq.Task, job job, step store.Step) error {
	if job.last && !owns(job, step) { // asynq would put it away, and nobody knows of it once the row is gone
		w.leave(task, taskResult{Step: step.ID.String(), Status: step.Status})
		return nil
	}
	return busy(fmt.Sprintf("step %s is being carried out by worker %s", step.ID, step.ClaimedBy), step.StartedAt, step.LeaseExpiresAt)
}

// beforehand asks Postgres for what must be known before a job is begun. Where Postgres is away, or somebody has locked the
// row, the error is an unclaimedError, and a job that asynq would put away is kept here and tried again; what Postgres refuses
// for the job's own sake is the job's failure. cannot says what could not be done.
func (w *Worker) beforehand(ctx context.Context, job job, cannot string, ask func(context.Context) error) error {
	for said := false; ; said = true {
		err := w.askBeforehand(ctx, cannot, ask)
		if !job.last || !errors.As(err, new(unclaimedError)) {
			return err
		}
		if !said {
			w.log.WithError(err).WithField("task", job.id).Log(w.levelOf(err), "a task is kept here until it can be begun")
		}
		if !w.again(job.given) {
			return keptInVain(err)
		}
	}
}

func (w *Worker) askBeforehand(ctx context.Context, cannot string, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, ClaimTime)
	defer cancel()
	err := ask(ctx)
	switch {
	case store.Refused(err):
		return fmt.Errorf("%s: %w", cannot, err)
	case store.Locked(err): // which says nothing about other rows
		err = fmt.Errorf("%s: somebody else has held the lock of its row for more than %s: %w", cannot, lockTime, err)
		return unclaimedError{error: err, after: w.claims.pause()}
	}
	w.claims.note(w.log, err)
	if err != nil {
		return unclaimedError{error: fmt.Errorf("%s: %w", cannot, err), after: w.claims.pause()}
	}
	return nil
}

// again waits a moment before something is tried once more, and tells whether it may be: not when asynq has given the task up,
// and not for long where the worker stops.
func (w *Worker) again(given context.Context) bool {
	return wait(given, time.Second) && w.door.openUntil(goodbyeTime)
}

// unclaimedError sends a job back for which Postgres could not be asked. Nothing was sent. It does not count as a try.
type unclaimedError struct {
	error
	after time.Duration
	kept  bool // until asynq gave it up, or the worker stopped
}

func (e unclaimedError) Unwrap() error { return e.error }

func keptInVain(err error) error {
	var unclaimed unclaimedError
	if !errors.As(err, &unclaimed) {
		return err
	}
	unclaimed.kept = true
	return unclaimed
}

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
	if job.over() {
		return refused(mcp.SpentBeforeStart(step.Server))
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

// refuseStep settles a job that is unusable from the start. Where Postgres is away the queue is told all the same, and the
// row follows.
func (w *Worker) refuseStep(ctx context.Context, task *asynq.Task, job job, request store.StepRequest, failure *mcp.Failure) error {
	var settled store.Step
	var refused, unheard bool // unheard: the reply of a try was lost
	leaves, began := w.attempts.begin(request.ID)
	request.Unheard = leaves.takenUnheard()
	err := w.settle(ctx, settlement{
		what: "step " + request.ID.String(), task: job.id, failure: failure,
		over: func() {
			if began {
				w.attempts.end(request.ID, leaves)
			}
		},
		write: func(ctx context.Context) error {
			row, now, err := w.store.RefuseStep(ctx, request, rowFailure(failure))
			switch {
			case err == nil:
				ours := unheard && row.ClaimedBy == w.name && row.FailureMessage == failure.Message
				settled, refused = row, refused || now || ours
			case store.Unheard(err):
				unheard = true
			}
			return err
		},
		wrote: func() {
			if settled.Terminal() {
				leaves = attempt{}
			}
			if refused {
				w.logStep(job, settled, mcp.Spent{}, failure)
			}
		},
	})
	if err != nil {
		return settledFailure{failure.Message}
	}
	if settled.FinishedAt == nil { // the row was running already when this unusable twin of its task came
		return settledFailure{failure.Message}
	}
	return w.tellStep(task, job, settled)
}

// expireStep settles a step whose job's own limit passed before its operation began, and returns what the queue would be told.
func (w *Worker) expireStep(ctx context.Context, task *asynq.Task, job job) error {
	request, failure := w.stepRequest(task, job)
	if failure == nil {
		failure = mcp.SpentBeforeStart(request.Server)
	}
	return w.refuseStep(ctx, task, job, request, failure)
}

// tellStep tells the queue what the row says.
func (w *Worker) tellStep(task *asynq.Task, job job, step store.Step) error {
	w.leave(task, taskResult{
		Step: step.ID.String(), Status: step.Status, Kind: step.FailureKind, Sentence: step.FailureMessage, Legs: step.Legs,
	})
	if step.FailureKind == "" || !owns(job, step) {
		return nil
	}
	return forQueue(mcp.Kind(step.FailureKind), step.FailureMessage)
}

// owns tells whether a job's task goes with the step's row when that is removed. A second task for the step does not, so it
// is never archived: running it afterwards would carry the step out anew.
func owns(job job, step store.Step) bool {
	id := step.ID.String()
	return job.id == id || job.id == step.TaskID || isTakeover(job.id, id)
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
