package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// kindInterrupted is the one failure kind that the rules for claims and settling look at.
const kindInterrupted = "interrupted"

// Failure is how an operation ended without an answer, as the rows keep it.
type Failure struct {
	Kind    string
	Message string // the operator's sentence
	Asked   string // no, unknown, yes: whether the server was asked; empty is kept as null
}

// Step is a row of agent_step. Columns that are null read as the zero value.
type Step struct {
	ID             uuid.UUID       `json:"id"`
	RunID          *uuid.UUID      `json:"run_id"`
	Position       *int            `json:"position"`
	Kind           string          `json:"kind"` // tool, model
	Server         string          `json:"server,omitempty"`
	Tool           string          `json:"tool,omitempty"` // the remote name
	Arguments      json.RawMessage `json:"arguments,omitempty"`
	Status         string          `json:"status"` // pending, awaiting_approval, running, succeeded, failed, cancelled
	Claim          int64           `json:"claim"`
	ClaimedBy      string          `json:"claimed_by,omitempty"` // the worker that runs it, or ran it last
	LeaseExpiresAt *time.Time      `json:"lease_expires_at"`     // while it runs
	FailureKind    string          `json:"failure_kind,omitempty"`
	FailureMessage string          `json:"failure_message,omitempty"`
	Asked          string          `json:"asked,omitempty"`
	Result         json.RawMessage `json:"result,omitempty"`
	BudgetMS       *int64          `json:"budget_ms"`
	Legs           json.RawMessage `json:"legs"`
	CreatedAt      time.Time       `json:"created_at"`
	StartedAt      *time.Time      `json:"started_at"`
	FinishedAt     *time.Time      `json:"finished_at"`
	TaskID         string          `json:"task_id,omitempty"` // of the task that brought it last, where that is not the step's id
	JobLimits      `json:"-"`
}

// JobLimits are what a job may take by its own word, as it was enqueued. They are kept for a step that waits.
type JobLimits struct {
	Timeout  *time.Duration // once it is begun; nil: it has none
	Deadline *time.Time     // when it must be over; nil: it has none
}

// Terminal tells whether the step is settled.
func (s Step) Terminal() bool {
	return s.Status == "succeeded" || s.Status == "failed" || s.Status == "cancelled"
}

const stepColumns = `s.id, s.run_id, s.position, s.kind, s.server, s.tool, s.arguments, s.status, s.claim, s.claimed_by,
	s.lease_expires_at, s.failure_kind, s.failure_message, s.asked, s.result, s.budget_ms, s.legs, s.created_at,
	s.started_at, s.finished_at, s.task_id, s.job_timeout, s.job_deadline`

// lightColumns are stepColumns for one who has no use for what was asked and what came, either of which may be megabytes.
var lightColumns = strings.NewReplacer("s.arguments", "null::json", "s.result", "null::json").Replace(stepColumns)

// mayRepeat is whether the tool of a step, which goes by s, may be called a second time, as its operator declared.
const mayRepeat = `exists (
	select from mcp_tool t
	where t.server = s.server and t.remote_name = s.tool and t.effect in ('read_only', 'idempotent_write'))`

// newRun inserts the run ($2) of a step ($1) that has no row yet, unless it is there or there is none. What inserts the step
// reads from it first, so that all who do take the two rows in one order and cannot deadlock.
const newRun = `run as (
	insert into agent_run (id)
	select $2::uuid
	where $2::uuid is not null and not exists (select from agent_step where id = $1)
	on conflict (id) do nothing
	returning *
)`

func (s *Step) columns() []any {
	return []any{
		(*zeronull.UUID)(&s.ID), &s.RunID, &s.Position, &s.Kind, (*zeronull.Text)(&s.Server), (*zeronull.Text)(&s.Tool),
		(*[]byte)(&s.Arguments), &s.Status, &s.Claim, (*zeronull.Text)(&s.ClaimedBy), &s.LeaseExpiresAt,
		(*zeronull.Text)(&s.FailureKind), (*zeronull.Text)(&s.FailureMessage), (*zeronull.Text)(&s.Asked),
		(*[]byte)(&s.Result), &s.BudgetMS, (*[]byte)(&s.Legs), &s.CreatedAt, &s.StartedAt, &s.FinishedAt,
		(*zeronull.Text)(&s.TaskID), &s.Timeout, &s.Deadline,
	}
}

func scanStep(row pgx.CollectableRow) (Step, error) {
	var s Step
	err := row.Scan(s.columns()...)
	return s, err
}

// StepRequest is a job as it was delivered.
type StepRequest struct {
	ID        uuid.UUID
	RunID     *uuid.UUID // nil: the step belongs to no run
	Server    string
	Tool      string // the remote name
	Arguments json.RawMessage
	TaskID    string    // of the task that brought it, where that is not the step's id
	JobLimits JobLimits // kept where the step has to wait, see [Store.AddStep]

	Worker string         // who claims
	Budget time.Duration  // the installation's, per operation
	Job    *time.Duration // what the job's own deadline leaves; nil: it has none
	Margin time.Duration  // what settling may take beyond the operation

	// Unheard says that an earlier claim of this worker's may stand in the row without its having heard so, because the reply
	// was lost ([Unheard]). Such a claim is taken over: nothing was done with it. The worker must have nothing else under way
	// for this step.
	Unheard bool

	// Interrupted makes the sentence for a step whose worker died while it ran. It is asked only when this claim settles
	// the step so; nil makes a plain one.
	Interrupted func(Step) Failure
}

// ClaimOutcome is what became of a claim.
type ClaimOutcome string

const (
	// Claimed means that the step is the caller's to run and to settle.
	Claimed ClaimOutcome = "claimed"
	// Busy means that another worker runs the step, until Step.LeaseExpiresAt at the latest.
	Busy ClaimOutcome = "busy"
	// Settled means that the step had ended before: nothing is left to do.
	Settled ClaimOutcome = "settled"
	// AwaitingApproval means that a person has to decide first.
	AwaitingApproval ClaimOutcome = "awaiting_approval"
	// Interrupted means that this very claim settled the step: its worker had died, and its tool may not be called again.
	Interrupted ClaimOutcome = "interrupted"
)

// Claim is the answer to [Store.ClaimStep].
type Claim struct {
	Outcome ClaimOutcome
	Step    Step    // as it now stands; Step.Claim is the number to settle with
	Server  *Server // nil: there is no such server
	Run     *Run    // nil: the step belongs to no run
	// HeaderSchema is the tool's input schema where it says that arguments stand in headers ("x-mcp-header"); else nil.
	// It is told to whoever claims, and to nobody else.
	HeaderSchema json.RawMessage
	// NotCallable says why the step's tool cannot be called at all, as an import found; empty when it can, or nobody knows.
	// It too is told to whoever claims.
	NotCallable string
}

// claimRounds bounds how often a claim looks again because the row changed under it.
const claimRounds = 8

// ClaimStep takes the step for this worker, inserting its row (and its run's) if nobody has yet. The row wins over the
// request: what it says about server, tool, arguments and run is what the claim returns. Of several claims at once exactly
// one is [Claimed].
//
// A step that runs under a lease that is over is taken over when its tool's declared effect allows a second call, and
// settled as interrupted otherwise.
//
// The lease is the operation's budget (the server's own or the installation's, or what the job leaves where that is less)
// and the margin, counted from now on the clock of Postgres.
func (s *Store) ClaimStep(ctx context.Context, request StepRequest) (Claim, error) {
	for range claimRounds {
		claim, err := s.claimStep(ctx, request)
		if errors.Is(err, ErrNotFound) { // the guard let nothing through
			claim, err = s.unclaimed(ctx, request)
		}
		if errors.Is(err, errAgain) {
			continue
		}
		if err != nil {
			return Claim{}, fmt.Errorf("claim step %s: %w", request.ID, err)
		}
		return claim, nil
	}
	return Claim{}, fmt.Errorf("claim step %s: its row changed %d times meanwhile", request.ID, claimRounds)
}

// errAgain means that the row has changed since the guard looked at it.
var errAgain = errors.New("look again")

// claimStep is the hot path: one statement, which goes with others'. No row back is [ErrNotFound].
func (s *Store) claimStep(ctx context.Context, request StepRequest) (Claim, error) {
	// What the insert decides on a conflict, it decides on the row as it stands then, not on the statement's snapshot.
	const sql = `
		with ` + newRun + `, claimed as (
			insert into agent_step as s (id, run_id, kind, server, tool, arguments, status, claim, claimed_by,
				lease_expires_at, started_at, task_id)
			select $1, $2::uuid, 'tool', $3::text, $4::text, $5::json, 'running', 1, $6::text,
				clock_timestamp() + $9::interval + greatest(interval '0', least($8::interval, coalesce(
					make_interval(secs => v.operation_timeout_seconds), $7::interval))),
				clock_timestamp(), $10::text
			from (select count(*) from run) as created
			left join mcp_server v on v.identifier = $3::text
			on conflict (id) do update
			set status = 'running', claim = s.claim + 1, claimed_by = excluded.claimed_by,
				lease_expires_at = clock_timestamp() + $9::interval + greatest(interval '0', least($8::interval, coalesce(
					(select make_interval(secs => v.operation_timeout_seconds) from mcp_server v where v.identifier = s.server),
					$7::interval))),
				started_at = clock_timestamp(), task_id = coalesce(excluded.task_id, s.task_id)
			where s.status = 'pending'
				or s.status = 'running' and s.lease_expires_at <= clock_timestamp() and ` + mayRepeat + `
				or s.status = 'running' and $11::boolean and s.claimed_by = excluded.claimed_by
			returning s.*
		)
		select ` + stepColumns + `, ` + serverColumns + `, ` + runColumns + `, t.not_callable,
			case when v.protocol_version >= '2026-07-28' and t.input_schema::text like '%x-mcp-header%' then t.input_schema end
		from claimed s
		left join mcp_server v on v.identifier = s.server
		left join mcp_tool t on t.server = s.server and t.remote_name = s.tool
		left join lateral (
			select * from agent_run where id = s.run_id union all select * from run where id = s.run_id
		) r on true`
	claim, err := groupedOne(ctx, &s.steps, request.RunID, request.ID, len(request.Arguments), scanTaken, sql,
		key(request.ID), request.RunID, text(request.Server), text(request.Tool), keepJSON(request.Arguments),
		cmp.Or(cleanText(request.Worker), "unnamed worker"), request.Budget, request.Job, max(request.Margin, 0),
		text(request.TaskID), request.Unheard)
	if err != nil {
		return Claim{}, err
	}
	return claim, s.runMissing(ctx, &claim)
}

// scanTaken reads a claim that was taken, with what is told to whoever takes one.
func scanTaken(row pgx.CollectableRow) (Claim, error) {
	var schema []byte
	var notCallable zeronull.Text
	claim, err := scanClaim(alsoScan{row, []any{&notCallable, &schema}})
	claim.Outcome, claim.HeaderSchema, claim.NotCallable = Claimed, schema, string(notCallable)
	return claim, err
}

func scanClaim(row pgx.CollectableRow) (Claim, error) {
	var claim Claim
	var server Server
	var run Run
	targets := append(claim.Step.columns(), server.columns()...)
	if err := row.Scan(append(targets, run.columns()...)...); err != nil {
		return Claim{}, err
	}
	claim.Server, claim.Run = server.orNil(), run.orNil()
	return claim, nil
}

// unclaimed tells why a step could not be claimed, or settles it as interrupted. It is errAgain when a claim may well
// succeed by now.
func (s *Store) unclaimed(ctx context.Context, request StepRequest) (Claim, error) {
	var over, repeatable bool
	rows, err := s.pool.Query(ctx, `
		select `+stepColumns+`, `+serverColumns+`, `+runColumns+`,
			coalesce(s.lease_expires_at <= clock_timestamp(), false),
			`+mayRepeat+`
		from agent_step s
		left join mcp_server v on v.identifier = s.server
		left join agent_run r on r.id = s.run_id
		where s.id = $1`, request.ID)
	claim, err := one(rows, err, func(row pgx.CollectableRow) (Claim, error) {
		return scanClaim(alsoScan{row, []any{&over, &repeatable}})
	})
	switch {
	case errors.Is(err, ErrNotFound):
		return Claim{}, errAgain
	case err != nil:
		return Claim{}, err
	case claim.Step.Terminal():
		claim.Outcome = Settled
		return claim, nil
	case claim.Step.Status == "awaiting_approval":
		claim.Outcome = AwaitingApproval
		return claim, nil
	case claim.Step.Status == "running" && !over:
		claim.Outcome = Busy
		return claim, nil
	case claim.Step.Status == "running" && !repeatable:
		settled, err := s.settleInterrupted(ctx, claim.Step, request.Interrupted)
		settled.Arguments, settled.Result = claim.Step.Arguments, claim.Step.Result
		claim.Step, claim.Outcome = settled, Interrupted
		return claim, err
	}
	return Claim{}, errAgain
}

// alsoScan is a row with more columns than its reader knows.
type alsoScan struct {
	pgx.CollectableRow
	more []any
}

func (a alsoScan) Scan(targets ...any) error {
	return a.CollectableRow.Scan(append(targets, a.more...)...)
}

// settleInterrupted returns the row without its arguments and result, or errAgain when it has changed since it was read or
// somebody has locked it.
func (s *Store) settleInterrupted(ctx context.Context, step Step, sentence func(Step) Failure) (Step, error) {
	failure := Failure{
		Message: "the worker stopped while this step ran; it was not repeated, because nobody knows whether the server acted",
		Asked:   "unknown",
	}
	if sentence != nil {
		failure = sentence(step)
	}
	rows, err := s.pool.Query(ctx, `
		with interrupted as (
			select id from agent_step
			where id = $1 and claim = $2 and status = 'running' and lease_expires_at <= clock_timestamp()
			for update skip locked
		)
		update agent_step s
		set status = 'failed', failure_kind = $3, failure_message = $4, asked = $5, lease_expires_at = null,
			finished_at = clock_timestamp()
		from interrupted
		where s.id = interrupted.id
		returning `+lightColumns,
		step.ID, step.Claim, kindInterrupted, cleanText(failure.Message), text(failure.Asked))
	settled, err := one(rows, err, scanStep)
	if errors.Is(err, ErrNotFound) {
		return Step{}, errAgain
	}
	return settled, err
}

// StepOutcome is how a step ended.
type StepOutcome struct {
	Status   string          // succeeded, failed, cancelled
	Failure  *Failure        // nil exactly when it succeeded
	Result   json.RawMessage // empty: there is none
	Legs     json.RawMessage // a JSON array; empty: no leg was sent
	BudgetMS int64           // 0: no operation was begun
}

// SettleStep writes how a step ended, which is given as its claim returned it, and returns the row without its arguments and
// result. Only the latest claim may settle, and only once, except that an outcome that is known after all replaces
// "interrupted": known beats unknown. Settling again with the same claim, after a reply that was lost, returns the row as it
// was settled. A later claim of the same worker's is one that it never heard of, see [StepRequest].Unheard, and settled as
// well.
//
// The error is [ErrClaimLost] when another worker has claimed the step since, or its row is gone. A result that Postgres
// refuses as data is kept as a string, and dropped before the outcome itself would be lost.
func (s *Store) SettleStep(ctx context.Context, claimed Step, outcome StepOutcome) (Step, error) {
	outcome.Legs = cleanLegs(outcome.Legs)
	result := outcome.Result
	outcome.Result = cleanResult(result)
	step, err := s.settleStep(ctx, claimed, outcome)
	if refusedAsData(err) {
		outcome.Result = flatResult(result)
		step, err = s.settleStep(ctx, claimed, outcome)
	}
	if refusedAsData(err) {
		outcome.Result = nil
		step, err = s.settleStep(ctx, claimed, outcome)
	}
	if errors.Is(err, ErrNotFound) {
		step, err = s.settledBefore(ctx, claimed)
	}
	if err != nil {
		return Step{}, fmt.Errorf("settle step %s: %w", claimed.ID, err)
	}
	return step, nil
}

// refusedAsData tells whether Postgres found fault with a value (SQLSTATE class 22, "data exception") or with its size or
// depth (class 54, "program limit exceeded").
func refusedAsData(err error) bool {
	state := sqlState(err)
	return strings.HasPrefix(state, "22") || strings.HasPrefix(state, "54")
}

// settleStep is the hot path: one statement, which goes with others'. No row back is [ErrNotFound].
func (s *Store) settleStep(ctx context.Context, claimed Step, outcome StepOutcome) (Step, error) {
	var failure Failure
	if outcome.Failure != nil {
		failure = *outcome.Failure
	}
	const sql = `
		update agent_step s
		set status = $3, failure_kind = $4, failure_message = $5, asked = $6, result = $7,
			legs = coalesce($8::json, '[]'), budget_ms = $9, lease_expires_at = null, finished_at = clock_timestamp()
		where s.id = $1 and s.claim >= $2 and s.claimed_by = $10 and (s.status = 'running' or s.failure_kind = 'interrupted')
		returning s.claim, s.created_at, s.started_at, s.finished_at, s.task_id`
	scan := func(row pgx.CollectableRow) (Step, error) {
		step := claimed.ended(outcome)
		err := row.Scan(&step.Claim, &step.CreatedAt, &step.StartedAt, &step.FinishedAt, (*zeronull.Text)(&step.TaskID))
		return step, err
	}
	return groupedOne(ctx, &s.steps, claimed.RunID, claimed.ID, len(outcome.Result)+len(outcome.Legs), scan, sql,
		key(claimed.ID), claimed.Claim, outcome.Status, text(failure.Kind), message(outcome.Failure), text(failure.Asked),
		outcome.Result, outcome.Legs, zeronull.Int8(outcome.BudgetMS), claimed.ClaimedBy)
}

// ended is a claimed step as its outcome leaves its row, without what the row alone knows: all of it need not come back.
func (s Step) ended(outcome StepOutcome) Step {
	s.Status, s.LeaseExpiresAt, s.Arguments, s.Result = outcome.Status, nil, nil, nil
	s.FailureKind, s.FailureMessage, s.Asked = "", "", ""
	if failure := outcome.Failure; failure != nil {
		s.FailureKind, s.FailureMessage, s.Asked = cleanText(failure.Kind), cleanText(failure.Message), cleanText(failure.Asked)
	}
	s.BudgetMS = nil
	if outcome.BudgetMS != 0 {
		s.BudgetMS = &outcome.BudgetMS
	}
	s.Legs = outcome.Legs
	if len(s.Legs) == 0 {
		s.Legs = json.RawMessage("[]")
	}
	return s
}

// message keeps a failure's sentence even when it is empty, as the row requires.
func message(failure *Failure) *string {
	if failure == nil {
		return nil
	}
	clean := cleanText(failure.Message)
	return &clean
}

func (s *Store) settledBefore(ctx context.Context, claimed Step) (Step, error) {
	step, err := s.step(ctx, claimed.ID)
	step.Arguments, step.Result = nil, nil
	switch {
	case errors.Is(err, ErrNotFound):
		return Step{}, ErrClaimLost
	case err != nil:
		return Step{}, err
	case step.Claim < claimed.Claim || step.ClaimedBy != claimed.ClaimedBy || !step.Terminal():
		return Step{}, ErrClaimLost
	}
	return step, nil
}

// AddStep inserts the row of a step that has to wait, and its run's, unless they are there, and notes the task that it waits
// with and the limits of its job: from now on it is looked after, whatever becomes of that task.
func (s *Store) AddStep(ctx context.Context, request StepRequest) error {
	_, err := s.pool.Exec(ctx, `
		with `+newRun+`
		insert into agent_step as s (id, run_id, kind, server, tool, arguments, status, task_id, job_timeout, job_deadline)
		select $1, $2::uuid, 'tool', $3::text, $4::text, $5::json, 'pending', $6::text, $7::interval, $8::timestamptz
		from (select count(*) from run) as created
		on conflict (id) do update
		set task_id = coalesce(excluded.task_id, s.task_id), job_timeout = coalesce(excluded.job_timeout, s.job_timeout),
			job_deadline = coalesce(excluded.job_deadline, s.job_deadline)
		where s.status = 'pending' and (s.task_id, s.job_timeout, s.job_deadline) is distinct from (
			coalesce(excluded.task_id, s.task_id), coalesce(excluded.job_timeout, s.job_timeout),
			coalesce(excluded.job_deadline, s.job_deadline))`,
		request.ID, request.RunID, text(request.Server), text(request.Tool), keepJSON(request.Arguments), text(request.TaskID),
		request.JobLimits.Timeout, request.JobLimits.Deadline)
	if err != nil {
		return fmt.Errorf("add step %s: %w", request.ID, err)
	}
	return nil
}

// RefuseStep settles a job that is unusable from the start, such as a payload that does not decode: it inserts a failed
// row, or fails the one that waits. Server, tool and arguments may be empty; arguments that are no JSON are kept as a
// string. A row that runs (but see [StepRequest].Unheard), has ended or awaits approval is left alone. The row as it then
// stands is returned, and whether it was this call that settled it.
func (s *Store) RefuseStep(ctx context.Context, request StepRequest, failure Failure) (Step, bool, error) {
	rows, err := s.pool.Query(ctx, `
		with `+newRun+`
		insert into agent_step as s (id, run_id, kind, server, tool, arguments, status, claimed_by, failure_kind,
			failure_message, asked, finished_at, task_id)
		select $1, $2::uuid, 'tool', $3::text, $4::text, $5::json, 'failed', $6::text, $7::text, $8::text, $9::text,
			clock_timestamp(), $10::text
		from (select count(*) from run) as created
		on conflict (id) do update
		set status = 'failed', claimed_by = excluded.claimed_by, failure_kind = excluded.failure_kind,
			failure_message = excluded.failure_message, asked = excluded.asked, finished_at = excluded.finished_at,
			lease_expires_at = null, task_id = coalesce(excluded.task_id, s.task_id)
		where s.status = 'pending' or s.status = 'running' and $11::boolean and s.claimed_by = excluded.claimed_by
		returning `+stepColumns,
		request.ID, request.RunID, text(request.Server), text(request.Tool), keepJSON(request.Arguments),
		text(request.Worker), text(failure.Kind), cleanText(failure.Message), text(failure.Asked), text(request.TaskID),
		request.Unheard)
	step, err := one(rows, err, scanStep)
	refused := err == nil
	if errors.Is(err, ErrNotFound) {
		step, err = s.step(ctx, request.ID)
	}
	if err != nil {
		return Step{}, false, fmt.Errorf("refuse step %s: %w", request.ID, err)
	}
	return step, refused, nil
}

// SettleInterrupted settles the steps whose workers died: those that still run although their leases are over, and whose
// tools may not be called again. It returns them without their arguments and results, at most limit, beside an error too.
// Any worker may do so at any time: each row is checked again as it is written, one that somebody else has locked is left for
// later, and the outcome of a worker that turns up after all still replaces this one.
func (s *Store) SettleInterrupted(ctx context.Context, limit int, sentence func(Step) Failure) ([]Step, error) {
	// Locked for this statement alone, so that those that are locked do not take the places of others.
	rows, err := s.pool.Query(ctx, `
		select `+lightColumns+`
		from agent_step s
		where s.status = 'running' and s.lease_expires_at <= now() and not `+mayRepeat+`
		order by s.lease_expires_at
		limit $1
		for update of s skip locked`, limit)
	if err != nil {
		return nil, fmt.Errorf("find interrupted steps: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanStep)
	if err != nil {
		return nil, fmt.Errorf("find interrupted steps: %w", err)
	}
	var settled []Step
	for _, step := range found {
		step, err := s.settleInterrupted(ctx, step, sentence)
		if errors.Is(err, errAgain) {
			continue // somebody was faster
		}
		if err != nil {
			return settled, fmt.Errorf("settle an interrupted step: %w", err)
		}
		settled = append(settled, step)
	}
	return settled, nil
}

// Step returns one step; [ErrNotFound].
func (s *Store) Step(ctx context.Context, id uuid.UUID) (Step, error) {
	step, err := s.step(ctx, id)
	if err != nil {
		return Step{}, fmt.Errorf("read step %s: %w", id, err)
	}
	return step, nil
}

func (s *Store) step(ctx context.Context, id uuid.UUID) (Step, error) {
	rows, err := s.pool.Query(ctx, `select `+stepColumns+` from agent_step s where s.id = $1`, id)
	return one(rows, err, scanStep)
}

// DefaultLimit is how many rows a filter without a limit returns at most.
const DefaultLimit = 100

// StepFilter chooses steps. Its zero value chooses the newest [DefaultLimit].
type StepFilter struct {
	Status string
	Server string
	Run    *uuid.UUID
	Limit  int
}

// Steps returns the steps that fit every part of the filter that is set, newest first.
func (s *Store) Steps(ctx context.Context, filter StepFilter) ([]Step, error) {
	rows, err := s.pool.Query(ctx, `
		select `+stepColumns+`
		from agent_step s
		where ($1::text is null or s.status = $1) and ($2::text is null or s.server = $2)
			and ($3::uuid is null or s.run_id = $3)
		order by s.created_at desc, s.id
		limit $4`,
		text(filter.Status), text(filter.Server), filter.Run, limit(filter.Limit))
	if err != nil {
		return nil, fmt.Errorf("list steps: %w", err)
	}
	steps, err := pgx.CollectRows(rows, scanStep)
	if err != nil {
		return nil, fmt.Errorf("list steps: %w", err)
	}
	return steps, nil
}

func limit(asked int) int {
	if asked <= 0 {
		return DefaultLimit
	}
	return asked
}

// text is cleaned for a row; empty text is null.
func text(s string) pgtype.Text {
	clean := cleanText(s)
	return pgtype.Text{String: clean, Valid: clean != ""}
}

// key is an id in the form that pgx sends as it is: a uuid.UUID it would write as text and read again.
func key(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }
