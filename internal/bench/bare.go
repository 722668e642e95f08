package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5/pgxpool"

	"legwork/worker"
)

// The environment of the bare worker. The database, Redis and the concurrency come by legwork's own variables.
const (
	variableDatabase    = "LEGWORK_DATABASE_URL"
	variableRedis       = "LEGWORK_REDIS_URL"
	variableConcurrency = "LEGWORK_CONCURRENCY"
)

// serveBare is the process of a worker that does what legwork's does where nothing goes wrong, and nothing else: two statements
// and a call. It works until SIGTERM.
func serveBare(withSDK bool) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := bare(ctx, withSDK); err != nil {
		fmt.Fprintln(os.Stderr, "bare worker:", err)
		return 1
	}
	return 0
}

func bare(ctx context.Context, withSDK bool) error {
	redis, err := asynq.ParseRedisURI(os.Getenv(variableRedis))
	if err != nil {
		return err
	}
	concurrency, err := strconv.Atoi(os.Getenv(variableConcurrency))
	if err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(os.Getenv(variableDatabase))
	if err != nil {
		return err
	}
	config.MaxConns = worker.StoreOptions().MaxConns // or the pools' sizes are what is measured
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	client := newFloor(revisionHandshake)
	if withSDK {
		client = newSDK(revisionHandshake)
	}
	server := asynq.NewServer(redis, asynq.Config{
		Concurrency: concurrency, Queues: map[string]int{worker.QueueAgent: 6, worker.QueueImport: 2, "default": 2},
		TaskCheckInterval: 20 * time.Millisecond, LogLevel: asynq.ErrorLevel,
	})
	err = server.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		return bareStep(context.WithoutCancel(ctx), pool, client, task)
	}))
	if err != nil {
		return err
	}
	<-ctx.Done()
	server.Shutdown()
	return nil
}

var errNotClaimed = errors.New("the step was not claimed")

func bareStep(ctx context.Context, pool *pgxpool.Pool, client client, task *asynq.Task) error {
	var payload worker.StepPayload
	if err := json.Unmarshal(task.Payload(), &payload); err != nil {
		return err
	}
	var claim int64
	var url string
	err := pool.QueryRow(ctx, `
		insert into agent_step as s (id, kind, server, tool, arguments, status, claim, claimed_by, lease_expires_at, started_at)
		values ($1, 'tool', $2, $3, $4::json, 'running', 1, 'bare', clock_timestamp() + interval '35 seconds', clock_timestamp())
		on conflict (id) do update
		set status = 'running', claim = s.claim + 1, claimed_by = excluded.claimed_by, lease_expires_at = excluded.lease_expires_at,
			started_at = excluded.started_at
		where s.status = 'pending'
		returning s.claim, (select url from mcp_server v where v.identifier = s.server)`,
		payload.StepID, payload.Server, payload.Tool, payload.Arguments).Scan(&claim, &url)
	if err != nil {
		return err
	}
	if _, err := client.call(ctx, url, ample); err != nil {
		return err
	}
	tag, err := pool.Exec(ctx, `
		update agent_step
		set status = 'succeeded', result = $3, legs = $4, budget_ms = 20000, lease_expires_at = null, finished_at = clock_timestamp()
		where id = $1 and claim = $2 and status = 'running'`,
		payload.StepID, claim, json.RawMessage(`{"text":"done"}`), json.RawMessage(`[{"method":"initialize"},{"method":"notifications/initialized"},{"method":"tools/call"}]`))
	if err == nil && tag.RowsAffected() != 1 {
		err = errNotClaimed
	}
	return err
}
