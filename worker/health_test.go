package worker_test

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"legwork/internal/scratch/redistest"
	"legwork/worker"
)

// healthy runs a worker that has no servers and waits until it is ready.
func (b *bench) healthy() *worker.Health {
	b.t.Helper()
	w := worker.New(b.store, nil, worker.Options{Redis: b.redis, Logger: b.log, Name: "tested"})
	if report := w.Health().Ready(); report.OK || report.Checks["worker"] != "the worker has not begun to take jobs" {
		b.t.Errorf("before it began: %+v", report)
	}
	if report := w.Health().Live(); !report.OK {
		b.t.Errorf("before it began: %+v", report)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	b.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("the worker ended with %v", err)
		}
		if report := w.Health().Ready(); report.OK || report.Checks["worker"] != "the worker has stopped" {
			b.t.Errorf("after it ended: %+v", report)
		}
	})
	b.awaitReady(w.Health())
	return w.Health()
}

func (b *bench) awaitReady(h *worker.Health) {
	b.t.Helper()
	b.await("the worker to be ready", func() bool {
		report := h.Ready()
		return report.OK && report.Status == "ok" && len(report.Checks) == 4
	})
}

// awaitSays waits until a check says something: the worker is alive then all the same, and not ready.
func (b *bench) awaitSays(h *worker.Health, check string, parts ...string) {
	b.t.Helper()
	var says string
	defer func() {
		if b.t.Failed() {
			b.t.Logf("check %s says %q", check, says)
		}
	}()
	b.await("check "+check+" to say "+strings.Join(parts, " … "), func() bool {
		says = h.Ready().Checks[check]
		for _, part := range parts {
			if !strings.Contains(says, part) {
				return false
			}
		}
		return true
	})
	if report := h.Ready(); report.OK || report.Status != "not ready" {
		b.t.Errorf("ready: %+v", report)
	}
	if report := h.Live(); !report.OK || report.Status != "degraded" {
		b.t.Errorf("live: %+v", report)
	}
}

func TestHealthFollowsRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := newBenchOn(t, server.URL)
	h := b.healthy()
	client := b.redis.MakeRedisClient().(redis.UniversalClient)
	t.Cleanup(func() { client.Close() })
	ctx := t.Context()
	set := func(name, value string) {
		t.Helper()
		if err := client.ConfigSet(ctx, name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if ttl := client.TTL(ctx, "legwork:health:tested").Val(); ttl <= 0 || ttl > time.Minute {
		t.Errorf("the key stays for %s", ttl)
	}

	set("maxmemory", "1")
	b.awaitSays(h, "redis", "Redis answers but refuses what a worker writes", "OOM command not allowed")
	set("maxmemory", "0")
	b.awaitReady(h)

	set("min-replicas-to-write", "1")
	b.awaitSays(h, "redis", "refuses what a worker writes", "NOREPLICAS")
	set("min-replicas-to-write", "0")
	b.awaitReady(h)

	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	b.awaitSays(h, "redis", "Redis cannot be reached", "connection refused")
	if err := server.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	b.awaitReady(h)

	if err := syscall.Kill(server.Pid(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	b.awaitSays(h, "redis", "Redis did not answer within 2 s")
	if err := syscall.Kill(server.Pid(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	b.awaitReady(h)
}

// A user that may write asynq's keys only is enough for a worker.
func TestHealthWithoutTheRightToWriteAKeyOfItsOwn(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	opt, err := asynq.ParseRedisURI(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	client := opt.MakeRedisClient().(redis.UniversalClient)
	defer client.Close()
	if err := client.Do(t.Context(), "ACL", "SETUSER", "narrow", "on", ">pw", "~asynq:*", "&asynq:*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	b := newBenchOn(t, server.URL)
	narrow := opt.(asynq.RedisClientOpt)
	narrow.Username, narrow.Password = "narrow", "pw"
	b.redis = narrow
	b.healthy()
	if n := client.Exists(t.Context(), "legwork:health:tested").Val(); n != 0 {
		t.Error("the key could be written, so nothing was tried")
	}
}

func TestHealthFollowsPostgres(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	h := b.healthy()
	var newest int64
	if err := b.sql.QueryRow(t.Context(), `delete from legwork_schema_version where version_id = (select max(version_id) from legwork_schema_version) returning version_id`).Scan(&newest); err != nil {
		t.Fatal(err)
	}
	b.awaitSays(h, "postgres", "the schema is at version", `run "legwork migrate up"`)
	b.exec(`insert into legwork_schema_version (version_id, is_applied) values ($1, true)`, newest)
	b.awaitReady(h)

	restore := b.cutOff()
	b.awaitSays(h, "postgres", "Postgres at ", "not currently accepting connections")
	restore()
	b.awaitReady(h)
}
