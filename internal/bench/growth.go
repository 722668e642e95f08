package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"legwork/store"
)

// grown is a database with so many steps.
type grown struct {
	name  string
	url   string
	rows  int
	store *store.Store
	conn  *pgx.Conn
}

// task is one thing that is done to the rows, so many times in a round, and told for each.
type task struct {
	name  string
	times int
	do    func(ctx context.Context, g *grown, n int) error
}

// growthTasks are what workers, operators and the retention do.
var growthTasks = []task{
	{"claim and settle", 50, func(ctx context.Context, g *grown, n int) error {
		for range n {
			claim, err := g.store.ClaimStep(ctx, store.StepRequest{
				ID: uuid.New(), Server: "docs", Tool: toolName, Arguments: []byte(toolArguments), Worker: "bench", Budget: 20 * time.Second, Margin: 15 * time.Second,
			})
			if err != nil {
				return err
			}
			_, err = g.store.SettleStep(ctx, claim.Step, store.StepOutcome{Status: "succeeded", Result: []byte(`{"text":"done"}`), BudgetMS: 20_000})
			if err != nil {
				return err
			}
		}
		return nil
	}},
	{"sweep", 300, func(ctx context.Context, g *grown, n int) error {
		for range n {
			if _, err := g.store.SettleInterrupted(ctx, 100, nil); err != nil {
				return err
			}
			if _, err := g.store.Unattended(ctx, 30*time.Second, 100); err != nil {
				return err
			}
		}
		return nil
	}},
	{"list the newest", 20, lists(store.StepFilter{})},
	{"list what failed", 20, lists(store.StepFilter{Status: "failed"})},
	{"list a busy server's", 20, lists(store.StepFilter{Server: "docs"})},
	{"list a rare server's", 100, lists(store.StepFilter{Server: "rare"})},
	{"list what runs", 100, lists(store.StepFilter{Status: "running"})},
	{"list runs", 100, func(ctx context.Context, g *grown, n int) error {
		for range n {
			if _, err := g.store.Runs(ctx, 0); err != nil {
				return err
			}
		}
		return nil
	}},
	{"prune", 1, func(ctx context.Context, g *grown, _ int) error {
		_, err := g.store.Prune(ctx, time.Now().AddDate(0, 0, -200), 100, nil)
		return err
	}},
}

func lists(filter store.StepFilter) func(ctx context.Context, g *grown, n int) error {
	return func(ctx context.Context, g *grown, n int) error {
		for range n {
			if _, err := g.store.Steps(ctx, filter); err != nil {
				return err
			}
		}
		return nil
	}
}

// growth measures what is done to few and to many rows, and shows the plans at the largest number.
func growth(ctx context.Context, b *bench) error {
	postgres, _, stop, err := b.startServers(ctx, false)
	if err != nil {
		return err
	}
	defer stop()
	// The plans below are of the statements that Postgres says were sent; by default it keeps too little of them.
	if err := execute(ctx, postgres.URL, `alter system set track_activity_query_size = 16384`); err != nil {
		return err
	}
	if err := postgres.Restart(ctx); err != nil {
		return err
	}
	sizes := []int{10_000, 100_000, 1_000_000}
	if b.large {
		sizes = append(sizes, 5_000_000)
	}
	if b.short {
		sizes = []int{200, 400}
	}
	var all []*grown
	for _, rows := range sizes {
		g, err := grow(ctx, postgres.URL, rows)
		if err != nil {
			return err
		}
		defer g.store.Close()
		defer g.conn.Close(context.WithoutCancel(ctx))
		all = append(all, g)
	}
	for _, task := range growthTasks {
		n := b.pick(task.times, min(task.times, 2))
		var contenders []contender
		for _, g := range all {
			contenders = append(contenders, contender{g.name, func(ctx context.Context) (sample, error) {
				started := time.Now()
				err := task.do(ctx, g, n)
				return sample{timeEach: float64(time.Since(started)) / float64(n)}, err
			}})
		}
		var bounds []bound
		for _, g := range all[1:] {
			bounds = append(bounds, bound{measure: timeEach, of: g.name, over: all[0].name, atMost: 2})
		}
		if err := b.compare(ctx, task.name, []string{timeEach}, contenders, bounds); err != nil {
			return err
		}
	}
	return b.explain(ctx, all[len(all)-1])
}

func execute(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

// grow makes a database with so many steps that have ended over the last 400 days, a few that wait and a few that run.
func grow(ctx context.Context, url string, rows int) (*grown, error) {
	g := &grown{name: fmt.Sprintf("%d steps", rows), rows: rows}
	name := fmt.Sprintf("steps_%d", rows)
	if err := execute(ctx, url, "create database "+name); err != nil {
		return nil, err
	}
	g.url = strings.Replace(url, "/postgres?", "/"+name+"?", 1)
	if _, err := store.MigrateUp(ctx, g.url); err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, g.url)
	if err != nil {
		return nil, err
	}
	for _, sql := range []string{
		`insert into mcp_server (identifier, name, url, auth_placement, data_class, enabled)
		select s, s, 'http://127.0.0.1/', 'none', 'internal', true from unnest(array['docs', 'rare']) s`,
		fmt.Sprintf(`insert into agent_run (id, status, created_at, finished_at)
		select md5('run' || i)::uuid, 'succeeded', t, t + interval '1 minute'
		from (select i, now() - interval '400 days' * (1 - i::float8 * 10 / %[1]d) as t from generate_series(1, %[1]d / 10) i) x`, rows),
		fmt.Sprintf(`insert into agent_step (id, run_id, position, server, tool, arguments, status, claim, claimed_by, failure_kind, failure_message, asked,
			result, budget_ms, legs, created_at, started_at, finished_at)
		select gen_random_uuid(), case when i %% 2 = 0 then md5('run' || (i / 10 + 1))::uuid end, i %% 10, case when i %% (%[1]d / 20) = 0 then 'rare' else 'docs' end,
			'search', '{"query":"how long does a leg take","limit":10}', case when f then 'failed' else 'succeeded' end, 1, 'host:1',
			case when f then 'no_answer' end, case when f then 'it did not answer' end, case when f then 'unknown' end,
			case when not f then '{"text":"done"}'::json end, 20000, '[{"method":"tools/call","granted_ms":20000,"elapsed_ms":41,"outcome":"ok","status":200}]',
			t, t, t + interval '1 second'
		from (select i, i %% 50 = 0 as f, now() - interval '400 days' * (1 - i::float8 / %[1]d) as t from generate_series(1, %[1]d - 10) i) x`, rows),
		`insert into agent_step (id, server, tool, arguments, created_at, woken_at)
		select gen_random_uuid(), 'docs', 'search', '{}', now() - interval '1 hour', now() + interval '1 day' from generate_series(1, 100)`,
		`insert into agent_step (id, server, tool, arguments, status, claim, claimed_by, lease_expires_at, started_at)
		select gen_random_uuid(), 'docs', 'search', '{}', 'running', 1, 'host:1', now() + interval '1 day', now() from generate_series(1, 50)`,
		`vacuum (analyze)`,
	} {
		// Every step's run is there: no need to look up each.
		if _, err := conn.Exec(ctx, `set session_replication_role = replica`); err != nil {
			return nil, err
		}
		if _, err := conn.Exec(ctx, sql); err != nil {
			return nil, fmt.Errorf("fill %s: %w", name, err)
		}
	}
	if err := conn.Close(ctx); err != nil {
		return nil, err
	}
	if g.conn, err = pgx.Connect(ctx, g.url); err != nil {
		return nil, err
	}
	// One connection, so that the last statement on it is the last one that was sent.
	g.store, err = store.Open(ctx, g.url, store.Options{ApplicationName: "plans", MaxConns: 1})
	return g, err
}

// explain prints the plans of the statements as the store sends them.
func (b *bench) explain(ctx context.Context, g *grown) error {
	id := uuid.New()
	var claim store.Claim
	for _, statement := range []struct {
		name string
		send func() error
		args []any
	}{
		{"claim", func() (err error) {
			claim, err = g.store.ClaimStep(ctx, store.StepRequest{ID: id, Server: "docs", Tool: toolName, Worker: "bench", Budget: 20 * time.Second, Margin: 15 * time.Second})
			return err
		}, []any{uuid.New(), nil, "docs", toolName, []byte(`{}`), "bench", 20 * time.Second, nil, 15 * time.Second, nil, false}},
		{"settle", func() error {
			_, err := g.store.SettleStep(ctx, claim.Step, store.StepOutcome{Status: "succeeded"})
			return err
		}, []any{id, 1, "succeeded", nil, nil, nil, nil, nil, nil, "bench"}},
		{"sweep: interrupted", func() error { _, err := g.store.SettleInterrupted(ctx, 100, nil); return err }, []any{100}},
		{"sweep: unattended", func() error { _, err := g.store.Unattended(ctx, 30*time.Second, 100); return err }, []any{30 * time.Second, 100}},
		{"list the newest", func() error { _, err := g.store.Steps(ctx, store.StepFilter{}); return err }, []any{nil, nil, nil, 100}},
		{"list what failed", func() error { _, err := g.store.Steps(ctx, store.StepFilter{Status: "failed"}); return err }, []any{"failed", nil, nil, 100}},
		{"list a rare server's", func() error { _, err := g.store.Steps(ctx, store.StepFilter{Server: "rare"}); return err }, []any{nil, "rare", nil, 100}},
		{"list runs", func() error { _, err := g.store.Runs(ctx, 0); return err }, []any{100}},
	} {
		if err := statement.send(); err != nil {
			return err
		}
		var sql string
		err := g.conn.QueryRow(ctx, `select query from pg_stat_activity where application_name = 'plans' and datname = current_database()`).Scan(&sql)
		if err != nil {
			return err
		}
		if err := b.plan(ctx, g, statement.name, sql, statement.args); err != nil {
			return fmt.Errorf("explain %s: %w", statement.name, err)
		}
	}
	return nil
}

// plan prints how Postgres carries a statement out, and takes back what it did.
func (b *bench) plan(ctx context.Context, g *grown, name, sql string, args []any) error {
	tx, err := g.conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	rows, err := tx.Query(ctx, "explain (analyze, buffers, costs off) "+sql, args...)
	if err != nil {
		return err
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	fmt.Fprintf(b.out, "\n  plan at %s: %s\n", g.name, name)
	for _, line := range lines {
		fmt.Fprintf(b.out, "    %s\n", line)
	}
	return nil
}
