package worker_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/sirupsen/logrus"

	"legwork/mcp/mcptest"
	"legwork/store"
	"legwork/worker"
)

// ended inserts steps that were settled so long ago.
func (b *bench) ended(steps int, ago string) {
	b.t.Helper()
	b.exec(`
		insert into agent_step (id, server, tool, status, created_at, finished_at)
		select gen_random_uuid(), 'docs', 'echo', 'succeeded', now() - $2::interval, now() - $2::interval from generate_series(1, $1)`, steps, ago)
}

func (b *bench) count(sql string) int {
	b.t.Helper()
	var n int
	if err := b.sql.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

func TestWorkersRemoveWhatIsTooOld(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ended(1100, "9 days")
	b.ended(3, "6 days")
	b.start(worker.Options{RetentionDays: 7})
	b.start(worker.Options{RetentionDays: 7})
	b.await("the old steps to go", func() bool { return b.count(`select count(*) from agent_step`) == 3 })
	b.await("the log to say so", func() bool {
		return slices.ContainsFunc(b.lines.AllEntries(), func(e *logrus.Entry) bool {
			return e.Level == logrus.InfoLevel && strings.HasPrefix(e.Message, "removed ") &&
				strings.HasSuffix(e.Message, " that ended before "+worker.Horizon(7).Format(time.DateOnly))
		})
	})
}

func TestPruneRemovesAllInBatches(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ended(1100, "9 days")
	b.ended(3, "6 days")
	pruned, err := worker.Prune(t.Context(), b.store, b.redis, worker.Horizon(7))
	if want := (store.Pruned{Steps: 1100}); err != nil || pruned != want {
		t.Errorf("removed %s (%v), want %s", pruned, err, want)
	}
}

// Who is told to stop ends after a batch, and says what it removed.
func TestPruneEndsBetweenBatches(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ended(1100, "9 days")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	pruned, err := worker.Prune(ctx, b.store, b.redis, worker.Horizon(7))
	if want := (store.Pruned{Steps: 500}); !errors.Is(err, context.Canceled) || pruned != want {
		t.Errorf("removed %s (%v), want %s", pruned, err, want)
	}
	if left := b.count(`select count(*) from agent_step`); left != 600 {
		t.Errorf("%d steps are left, want 600", left)
	}
}

func TestHorizon(t *testing.T) {
	t.Parallel()
	for _, days := range []int{1, 30, 36500} {
		at := worker.Horizon(days)
		if at.Location() != time.UTC || at.Hour() != 0 || at.Minute() != 0 || at.Nanosecond() != 0 {
			t.Errorf("%d days: %s is no midnight", days, at)
		}
		if age := time.Since(at); age < time.Duration(days)*24*time.Hour || age > time.Duration(days+1)*24*time.Hour+time.Hour {
			t.Errorf("%d days: what ended before %s is older than %s", days, at, age)
		}
	}
}

// What Redis has of a step goes with its row: run again afterwards, a task would carry the step out anew.
func TestTasksGoWithTheirRows(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	server.On("tools/call", mcptest.Status(http.StatusInternalServerError, nil, "broken"))
	b.addServer("docs", server.URL)
	b.start(worker.Options{})
	failed, plain := b.step(worker.StepPayload{Server: "docs"})
	b.awaitStep(failed)
	named, nightly := b.step(worker.StepPayload{Server: "docs"}, asynq.TaskID("nightly"), asynq.Queue("default"))
	b.awaitStep(named)
	gone := []*asynq.TaskInfo{plain, nightly}
	for _, info := range gone {
		b.awaitTask(info, asynq.TaskStateArchived)
	}
	gone = append(gone, b.enqueue(asynq.NewTask(worker.TypeStep, nil), asynq.Queue(worker.QueueAgent), asynq.TaskID(failed.String()+":1"), asynq.ProcessIn(time.Hour)))
	// A second task for the step, of which its row knows nothing, is not kept to be run again.
	_, twin := b.step(worker.StepPayload{Server: "docs", StepID: failed.String()}, asynq.TaskID("twin"))
	if info := b.awaitTask(twin, asynq.TaskStateCompleted, asynq.TaskStateArchived); info.State != asynq.TaskStateCompleted || !strings.Contains(string(info.Result), "http_status") {
		t.Errorf("the second task of a failed step is %s with result %s", info.State, info.Result)
	}
	recent, kept := b.step(worker.StepPayload{Server: "docs"})
	b.awaitStep(recent)
	b.awaitTask(kept, asynq.TaskStateArchived)

	b.exec(`update agent_step set created_at = now() - interval '9 days', finished_at = now() - interval '9 days' where id <> $1`, recent)
	_, err := worker.Prune(t.Context(), b.store, asynq.RedisClientOpt{Addr: "127.0.0.1:1"}, worker.Horizon(7))
	if rows := b.count(`select count(*) from agent_step`); err == nil || rows != 3 {
		t.Errorf("without Redis: %v, and %d rows are left of 3", err, rows)
	}
	pruned, err := worker.Prune(t.Context(), b.store, b.redis, worker.Horizon(7))
	if want := (store.Pruned{Steps: 2}); err != nil || pruned != want {
		t.Errorf("removed %s (%v), want %s", pruned, err, want)
	}
	for _, info := range gone {
		if _, err := b.inspect.GetTaskInfo(info.Queue, info.ID); !errors.Is(err, asynq.ErrTaskNotFound) {
			t.Errorf("task %s: %v, want it gone", info.ID, err)
		}
	}
	b.awaitTask(kept, asynq.TaskStateArchived)
}

// A second task for a step is never archived, from where somebody might run it when the row is gone.
func TestASecondTaskIsNotArchived(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	h := b.heldCall(worker.Options{Concurrency: 10})
	defer close(h.release)
	_, last := b.step(worker.StepPayload{Server: "docs", StepID: h.step.String()}, asynq.TaskID("last"), asynq.MaxRetry(0))
	if info := b.settledTask(last); info.State != asynq.TaskStateCompleted {
		t.Errorf("one that may not be tried again is %s: %s", info.State, info.LastErr)
	}
	failed := uuid.New()
	b.exec(`insert into agent_step (id, server, tool, status, failure_kind, failure_message, finished_at) values ($1, 'docs', 'echo', 'failed', 'no_answer', 'why', now())`, failed)
	_, late := b.step(worker.StepPayload{Server: "docs", StepID: failed.String()}, asynq.TaskID("late"), asynq.Deadline(time.Now().Add(-time.Minute)))
	b.await("one whose time is up to be gone", func() bool {
		_, err := b.inspect.GetTaskInfo(late.Queue, late.ID)
		return errors.Is(err, asynq.ErrTaskNotFound)
	})
}

// What stands in a group is never delivered: the row gets another task.
func TestATaskInAGroupIsNoTask(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.addServer("docs", mcptest.New(t, mcptest.Options{}).URL)
	id := b.insert("echo")
	b.step(worker.StepPayload{Server: "docs", StepID: id.String()}, asynq.Group("docs"))
	b.start(worker.Options{})
	if step := b.awaitStep(id); step.Status != "succeeded" {
		t.Errorf("the step is %s: %s", step.Status, step.FailureMessage)
	}
}
