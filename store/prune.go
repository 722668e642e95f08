package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Pruned counts the rows that a removal took, or would take.
type Pruned struct {
	Steps        int
	Runs         int
	ImportErrors int
}

// Any tells whether there was anything to remove.
func (p Pruned) Any() bool { return p != Pruned{} }

// Add counts further rows.
func (p *Pruned) Add(more Pruned) {
	p.Steps += more.Steps
	p.Runs += more.Runs
	p.ImportErrors += more.ImportErrors
}

// String is the count in words: 1200 steps, 30 runs and 4 import errors.
func (p Pruned) String() string {
	return fmt.Sprintf("%s, %s and %s", counted(p.Steps, "step"), counted(p.Runs, "run"), counted(p.ImportErrors, "import error"))
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// OldStep is a step that is about to be removed.
type OldStep struct {
	ID     uuid.UUID
	TaskID string // of its task, where that is not the step's id
	Claim  int64  // how often it was claimed
}

// Prune removes what ended before that time, one batch at most of each: steps that are settled; once those are less than a
// batch, runs that have ended and have no steps left, and import errors. It is done once a call removes less than a batch of
// each. What waits, awaits approval or runs stays, however old it is. Several may prune at once, beside workers: rows that
// somebody else has locked are left for later. The count is of what was removed, beside an error too.
//
// forget is told of the steps before they are gone for good; with an error of its they stay. nil forgets nothing.
func (s *Store) Prune(ctx context.Context, before time.Time, batch int, forget func([]OldStep) error) (Pruned, error) {
	var pruned Pruned
	var err error
	if pruned.Steps, err = s.pruneSteps(ctx, before, batch, forget); err != nil {
		return Pruned{}, fmt.Errorf("remove old steps: %w", err)
	}
	if pruned.Steps == batch {
		return pruned, nil // another call follows, and runs are looked through as a whole
	}
	for _, part := range []struct {
		what    string
		removed *int
		sql     string
	}{
		{"runs", &pruned.Runs, `
			with old as (
				select id from agent_run r
				where created_at < $1 and finished_at < $1 and not exists (select from agent_step s where s.run_id = r.id)
				order by created_at
				limit $2
				for update skip locked
			)
			delete from agent_run r using old where r.id = old.id`},
		{"import errors", &pruned.ImportErrors, `
			with old as (
				select id from import_error
				where occurred_at < $1
				order by id
				limit $2
				for update skip locked
			)
			delete from import_error e using old where e.id = old.id`},
	} {
		tag, err := s.pool.Exec(ctx, part.sql, before, batch)
		if err != nil {
			return pruned, fmt.Errorf("remove old %s: %w", part.what, err)
		}
		*part.removed = int(tag.RowsAffected())
	}
	return pruned, nil
}

func (s *Store) pruneSteps(ctx context.Context, before time.Time, batch int, forget func([]OldStep) error) (removed int, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		// A step is created before it ends, so that the index of created_at bounds what is looked at.
		rows, err := tx.Query(ctx, `
			with old as (
				select id from agent_step
				where created_at < $1 and finished_at < $1 and status in ('succeeded', 'failed', 'cancelled')
				order by created_at
				limit $2
				for update skip locked
			)
			delete from agent_step s using old where s.id = old.id
			returning s.id, coalesce(s.task_id, ''), s.claim`, before, batch)
		if err != nil {
			return err
		}
		old, err := pgx.CollectRows(rows, pgx.RowToStructByPos[OldStep])
		if err != nil {
			return err
		}
		if removed = len(old); forget != nil && removed > 0 {
			return forget(old)
		}
		return nil
	})
	return removed, err
}

// CountOld counts what [Store.Prune] would remove in all.
func (s *Store) CountOld(ctx context.Context, before time.Time) (Pruned, error) {
	var old Pruned
	err := s.pool.QueryRow(ctx, `
		select
			(select count(*) from agent_step where created_at < $1 and finished_at < $1),
			(select count(*) from agent_run r where finished_at < $1 and not exists (
				select from agent_step s where s.run_id = r.id and (s.finished_at is null or s.finished_at >= $1))),
			(select count(*) from import_error where occurred_at < $1)`, before).
		Scan(&old.Steps, &old.Runs, &old.ImportErrors)
	if err != nil {
		return Pruned{}, fmt.Errorf("count old rows: %w", err)
	}
	return old, nil
}
