package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// ErrRunOver means that the run has ended: there is nothing left to cancel.
var ErrRunOver = errors.New("the run is over")

// Run is a row of agent_run.
type Run struct {
	ID          uuid.UUID  `json:"id"`
	Status      string     `json:"status"` // running, succeeded, failed, cancelled
	CancelledBy string     `json:"cancelled_by,omitempty"`
	CreatedAt   time.Time  `json:"created_at"`
	FinishedAt  *time.Time `json:"finished_at"`
}

// Cancelled tells whether the run's steps may no longer begin.
func (r Run) Cancelled() bool { return r.Status == "cancelled" }

// runColumns are read into [Run.columns]. They may come from the empty side of a left join.
const runColumns = `r.id, r.status, r.cancelled_by, r.created_at, r.finished_at`

func (r *Run) columns() []any {
	return []any{
		(*zeronull.UUID)(&r.ID), (*zeronull.Text)(&r.Status), (*zeronull.Text)(&r.CancelledBy),
		(*zeronull.Timestamptz)(&r.CreatedAt), &r.FinishedAt,
	}
}

func scanRun(row pgx.CollectableRow) (Run, error) {
	var r Run
	err := row.Scan(r.columns()...)
	return r, err
}

// orNil is the run, or nil when the left join found none.
func (r *Run) orNil() *Run {
	if r.Status == "" {
		return nil
	}
	return r
}

// Run returns one run; [ErrNotFound].
func (s *Store) Run(ctx context.Context, id uuid.UUID) (Run, error) {
	rows, err := s.pool.Query(ctx, `select `+runColumns+` from agent_run r where r.id = $1`, id)
	run, err := one(rows, err, scanRun)
	if err != nil {
		return Run{}, fmt.Errorf("read run %s: %w", id, err)
	}
	return run, nil
}

// Runs returns the newest runs, newest first: at most so many, or [DefaultLimit] for zero.
func (s *Store) Runs(ctx context.Context, most int) ([]Run, error) {
	rows, err := s.pool.Query(ctx, `select `+runColumns+` from agent_run r order by r.created_at desc, r.id limit $1`, limit(most))
	if err != nil {
		return nil, fmt.Errorf("list runs: %w", err)
	}
	runs, err := pgx.CollectRows(rows, scanRun)
	if err != nil {
		return nil, fmt.Errorf("list runs: %w", err)
	}
	return runs, nil
}

// CancelRun ends the run, and settles its steps that have not begun as cancelled: kind "cancelled", asked "no", and the
// sentence that the caller makes for each (nil makes a plain one). A step that runs is left to run out; a step of the run
// that arrives later finds the run cancelled in its [Claim]. The error is [ErrNotFound], or [ErrRunOver] in a sentence that
// says how the run ended.
func (s *Store) CancelRun(ctx context.Context, id uuid.UUID, by string, sentence func(Step) string) (Run, error) {
	by = cleanText(by)
	if sentence == nil {
		sentence = func(step Step) string { return cancelledSentence(step, by) }
	}
	var run Run
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var err error
		if run, err = endRun(ctx, tx, id, by); err != nil {
			return err
		}
		waiting, err := lockWaitingSteps(ctx, tx, id)
		if err != nil {
			return err
		}
		return cancelSteps(ctx, tx, waiting, sentence)
	})
	if err != nil {
		return Run{}, fmt.Errorf("cancel run %s: %w", id, err)
	}
	return run, nil
}

func cancelledSentence(step Step, by string) string {
	if step.Server == "" {
		return fmt.Sprintf("the run was cancelled by %s before this step began", by)
	}
	return fmt.Sprintf("server %q was not asked: the run was cancelled by %s before this step began", step.Server, by)
}

func endRun(ctx context.Context, tx pgx.Tx, id uuid.UUID, by string) (Run, error) {
	rows, err := tx.Query(ctx, `
		update agent_run r
		set status = 'cancelled', cancelled_by = $2, finished_at = clock_timestamp()
		where r.id = $1 and r.status = 'running'
		returning `+runColumns, id, by)
	run, err := one(rows, err, scanRun)
	if !errors.Is(err, ErrNotFound) {
		return run, err
	}
	rows, err = tx.Query(ctx, `select `+runColumns+` from agent_run r where r.id = $1`, id)
	switch run, err = one(rows, err, scanRun); {
	case err != nil:
		return Run{}, err
	case run.Cancelled():
		return Run{}, fmt.Errorf("%w: it was cancelled by %s before", ErrRunOver, run.CancelledBy)
	}
	return Run{}, fmt.Errorf("%w: it has %s", ErrRunOver, run.Status)
}

func lockWaitingSteps(ctx context.Context, tx pgx.Tx, run uuid.UUID) ([]Step, error) {
	rows, err := tx.Query(ctx, `
		select `+stepColumns+`
		from agent_step s
		where s.run_id = $1 and s.status in ('pending', 'awaiting_approval')
		order by s.id
		for no key update`, run)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanStep)
}

func cancelSteps(ctx context.Context, tx pgx.Tx, steps []Step, sentence func(Step) string) error {
	if len(steps) == 0 {
		return nil
	}
	ids := make([]uuid.UUID, len(steps))
	sentences := make([]string, len(steps))
	for i, step := range steps {
		ids[i], sentences[i] = step.ID, cleanText(sentence(step))
	}
	_, err := tx.Exec(ctx, `
		update agent_step s
		set status = 'cancelled', failure_kind = 'cancelled', failure_message = c.sentence, asked = 'no',
			finished_at = clock_timestamp()
		from unnest($1::uuid[], $2::text[]) as c (id, sentence)
		where s.id = c.id`, ids, sentences)
	return err
}

// runMissing reads the run that a claim's own snapshot could not see yet: another claim created it at the same moment.
func (s *Store) runMissing(ctx context.Context, claim *Claim) error {
	if claim.Run != nil || claim.Step.RunID == nil {
		return nil
	}
	rows, err := s.pool.Query(ctx, `select `+runColumns+` from agent_run r where r.id = $1`, *claim.Step.RunID)
	run, err := one(rows, err, scanRun)
	if err != nil {
		return takenError{err}
	}
	claim.Run = &run
	return nil
}

// takenError is that a claim was taken, and that not all could be read that belongs to it.
type takenError struct{ error }

func (e takenError) Unwrap() error { return e.error }
