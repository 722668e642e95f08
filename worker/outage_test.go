package worker_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/sirupsen/logrus"

	"legwork/mcp/mcptest"
	"legwork/worker"
)

// Jobs that come while Postgres is away are not lost, however few tries they have: what cannot be begun is no try.
func TestNoJobIsLostWhilePostgresIsAway(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	b.addServer("docs", server.URL)
	b.start(worker.Options{Concurrency: 20})
	restore := b.cutOff()

	never, neverTask := b.step(worker.StepPayload{Server: "docs"}, asynq.MaxRetry(0))
	imported := b.catalogue("docs", asynq.MaxRetry(0))
	once, onceTask := b.step(worker.StepPayload{Server: "docs"}, asynq.MaxRetry(1))
	short, _ := b.step(worker.StepPayload{Server: "docs"}, asynq.MaxRetry(0), asynq.Timeout(2*time.Second))
	unusable := uuid.New()
	refused := b.enqueue(asynq.NewTask(worker.TypeStep, json.RawMessage(`{"server":"docs","step_id":"`+unusable.String()+`"}`)), asynq.MaxRetry(0))
	var many []uuid.UUID
	for range 50 {
		id, _ := b.step(worker.StepPayload{Server: "docs"})
		many = append(many, id)
	}

	for range 4 { // more often than asynq is to try it
		info := b.awaitTask(onceTask, asynq.TaskStateRetry)
		if info.Retried != 0 {
			t.Errorf("asynq counts %d tries", info.Retried)
		}
		if err := b.inspect.RunTask(onceTask.Queue, onceTask.ID); err != nil && !errors.Is(err, asynq.ErrTaskNotFound) {
			t.Logf("it was run by itself: %v", err)
		}
	}
	for _, info := range []*asynq.TaskInfo{neverTask, imported} {
		if now := b.awaitTask(info, asynq.TaskStateActive, asynq.TaskStateArchived); now.State != asynq.TaskStateActive {
			t.Errorf("a job without further tries is %s: %s", now.State, now.LastErr)
		}
	}
	if info := b.settledTask(refused); info.State != asynq.TaskStateArchived || !strings.Contains(info.LastErr, "tool must name a tool") {
		t.Errorf("the unusable job is %s: %s", info.State, info.LastErr)
	}
	if got := len(server.Sent("tools/call")); got != 0 {
		t.Errorf("%d tools were called without a row", got)
	}
	var loud []string
	for _, e := range b.lines.AllEntries() {
		if e.Level <= logrus.InfoLevel && !strings.Contains(e.Message, "worker is taking tasks") {
			loud = append(loud, e.Message)
		}
	}
	if len(loud) > 3 { // that jobs cannot be begun, and that steps cannot be looked after
		t.Errorf("the log has %d lines about it:\n%s", len(loud), strings.Join(loud, "\n"))
	}

	restore()
	for _, id := range append(many, never, once) {
		if step := b.awaitStep(id); step.Status != "succeeded" || step.Claim != 1 {
			t.Errorf("a step is %s with claim %d: %s", step.Status, step.Claim, step.FailureMessage)
		}
	}
	if info := b.settledTask(imported); info.State != asynq.TaskStateCompleted {
		t.Errorf("the import is %s: %s", info.State, info.LastErr)
	}
	if step := b.awaitStep(short); step.FailureKind != "budget_spent" || step.Asked != "no" {
		t.Errorf("the step whose own time ran out is %s, %s, asked %s", step.Status, step.FailureKind, step.Asked)
	}
	if step := b.awaitStep(unusable); step.FailureKind != "invalid_request" {
		t.Errorf("the unusable step is %s, %s", step.Status, step.FailureKind)
	}
	if got := len(server.Sent("tools/call")); got != len(many)+2 {
		t.Errorf("the server was called %d times, want once for each of %d steps", got, len(many)+2)
	}
}

// The end of an outage is told where no job comes any more, because something else sees it.
func TestTheEndOfAnOutageIsToldWithoutAJob(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	b.addServer("docs", server.URL)
	b.start(worker.Options{})
	restore := b.cutOff()
	id, task := b.step(worker.StepPayload{Server: "docs"}, asynq.MaxRetry(0), asynq.Timeout(12*time.Second))
	b.await("the log to say that no job can be begun", func() bool { return b.said("no job can be begun") == 1 })
	b.awaitTask(task, asynq.TaskStateArchived)
	restore()
	if step := b.awaitStep(id); step.FailureKind != "budget_spent" {
		t.Errorf("the step is %s, %s", step.Status, step.FailureKind)
	}
	b.await("the log to say that jobs are begun again", func() bool { return b.said("jobs are begun again") == 1 })
}
