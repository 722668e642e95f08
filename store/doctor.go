package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// StepClaim is a step as it stood under its latest claim. Another claim, or another status, says that somebody has taken it
// since.
type StepClaim struct {
	ID     uuid.UUID
	Status string
	Claim  int64
}

// String is the step's id.
func (c StepClaim) String() string { return c.ID.String() }

// StepsPastLease finds the steps that run although their leases ended longer ago than that, the oldest first: those whose
// tools may be called again, and those whose may not.
func (s *Store) StepsPastLease(ctx context.Context, longer time.Duration) (repeatable, final []StepClaim, err error) {
	repeatable, final, err = s.sorted(ctx, `
		select s.id, s.status, s.claim, `+mayRepeat+`
		from agent_step s
		where s.status = 'running' and s.lease_expires_at <= now() - $1::interval
		order by s.lease_expires_at`, longer)
	if err != nil {
		return nil, nil, fmt.Errorf("find steps past their leases: %w", err)
	}
	return repeatable, final, nil
}

// StepsWaiting finds the tool steps that have been pending for longer than that, the oldest first: those whose servers
// there are, and those whose there are not.
func (s *Store) StepsWaiting(ctx context.Context, longer time.Duration) (known, unknown []StepClaim, err error) {
	known, unknown, err = s.sorted(ctx, `
		select s.id, s.status, s.claim, exists (select from mcp_server v where v.identifier = s.server)
		from agent_step s
		where s.status = 'pending' and s.kind = 'tool' and s.created_at < now() - $1::interval
		order by s.created_at`, longer)
	if err != nil {
		return nil, nil, fmt.Errorf("find steps that wait: %w", err)
	}
	return known, unknown, nil
}

// sorted reads steps in two heaps.
func (s *Store) sorted(ctx context.Context, sql string, args ...any) (yes, no []StepClaim, err error) {
	rows, err := s.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, nil, err
	}
	var step StepClaim
	var is bool
	_, err = pgx.ForEachRow(rows, []any{&step.ID, &step.Status, &step.Claim, &is}, func() error {
		if is {
			yes = append(yes, step)
		} else {
			no = append(no, step)
		}
		return nil
	})
	return yes, no, err
}

// ImportsPastLease finds the servers of which an import was begun and never settled, whose lease ended longer ago than that.
func (s *Store) ImportsPastLease(ctx context.Context, longer time.Duration) ([]string, error) {
	rows, err := s.pool.Query(ctx, `
		select identifier from mcp_server where import_lease_expires_at <= now() - $1::interval order by identifier`, longer)
	if err != nil {
		return nil, fmt.Errorf("find imports past their leases: %w", err)
	}
	servers, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("find imports past their leases: %w", err)
	}
	return servers, nil
}

// ReleaseImports takes the claims of such imports off the servers. An import that turns up after all can no longer settle.
func (s *Store) ReleaseImports(ctx context.Context, longer time.Duration) error {
	_, err := s.pool.Exec(ctx, `
		update mcp_server
		set import_claimed_by = null, import_lease_expires_at = null
		where import_lease_expires_at <= now() - $1::interval`, longer)
	if err != nil {
		return fmt.Errorf("release imports past their leases: %w", err)
	}
	return nil
}

// IdleRuns finds runs that have not been ended although nothing of them is left to do, and nothing has happened in them
// for longer than that: the oldest, at most limit, and how many there are.
func (s *Store) IdleRuns(ctx context.Context, longer time.Duration, limit int) (oldest []uuid.UUID, total int, err error) {
	rows, err := s.pool.Query(ctx, `
		select r.id, count(*) over ()
		from agent_run r
		where r.status = 'running' and r.created_at < now() - $1::interval and not exists (
			select from agent_step s
			where s.run_id = r.id and (s.finished_at is null or s.finished_at >= now() - $1::interval))
		order by r.created_at
		limit $2`, longer, limit)
	if err != nil {
		return nil, 0, fmt.Errorf("find idle runs: %w", err)
	}
	var id uuid.UUID
	if _, err = pgx.ForEachRow(rows, []any{&id, &total}, func() error {
		oldest = append(oldest, id)
		return nil
	}); err != nil {
		return nil, 0, fmt.Errorf("find idle runs: %w", err)
	}
	return oldest, total, nil
}
