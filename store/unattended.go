package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Unattended finds tool steps that may have no task in the queue: those that have waited for longer than after since
// somebody last looked, and those that dead workers left running and whose tools may be called again. Each is marked as
// looked after and returned without its arguments and result, the longest without that first, at most limit of each sort.
// Any worker may ask at any time: two never get the same step within after.
func (s *Store) Unattended(ctx context.Context, after time.Duration, limit int) ([]Step, error) {
	// now() rather than clock_timestamp(): the planner can look it up in the indexes.
	rows, err := s.pool.Query(ctx, `
		with waiting as (
			select id from agent_step
			where status = 'pending' and kind = 'tool' and coalesce(woken_at, created_at) < now() - $1::interval
			order by coalesce(woken_at, created_at)
			limit $2
			for update skip locked
		), left_behind as (
			select s.id from agent_step s
			where s.status = 'running' and s.lease_expires_at <= now()
				and (s.woken_at is null or s.woken_at < greatest(s.lease_expires_at, now() - $1::interval))
				and `+mayRepeat+`
			order by s.lease_expires_at
			limit $2
			for update of s skip locked
		)
		update agent_step s
		set woken_at = clock_timestamp()
		where s.id in (select id from waiting union all select id from left_behind)
		returning `+lightColumns, after, limit)
	if err != nil {
		return nil, fmt.Errorf("find unattended steps: %w", err)
	}
	steps, err := pgx.CollectRows(rows, scanStep)
	if err != nil {
		return nil, fmt.Errorf("find unattended steps: %w", err)
	}
	slices.SortFunc(steps, func(a, b Step) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return steps, nil
}
