package worker_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"legwork/mcp/mcptest"
	"legwork/store"
	"legwork/worker"
)

// A server that hangs takes as many places of the worker's as it may have. What waits for it is neither lost nor failed, and
// holds nobody up.
func TestOneServerDoesNotTakeTheWorker(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	hung, healthy := mcptest.New(t, mcptest.Options{}), mcptest.New(t, mcptest.Options{})
	var underWay, most atomic.Int64
	release := make(chan struct{})
	hold := mcptest.Hold(release)
	hung.On("tools/call", func(x *mcptest.Exchange) {
		if n := underWay.Add(1); n > most.Load() {
			most.Store(n)
		}
		hold(x)
		underWay.Add(-1)
	})
	b.addServer("hung", hung.URL, func(s *store.Server) { s.MaxInFlight = 2 })
	b.addServer("healthy", healthy.URL)
	b.start(worker.Options{Concurrency: 4})

	var waiting []uuid.UUID
	for i := range 12 {
		var opts []asynq.Option
		if i%2 == 1 {
			opts = append(opts, asynq.MaxRetry(0)) // asynq archives it when it is put off
		}
		id, _ := b.step(worker.StepPayload{Server: "hung"}, opts...)
		waiting = append(waiting, id)
	}
	hung.Await(t, "tools/call", 2)
	for range 10 {
		id, _ := b.step(worker.StepPayload{Server: "healthy"})
		if step := b.awaitStep(id); step.Status != "succeeded" {
			t.Errorf("a step of the healthy server is %s: %s", step.Status, step.FailureMessage)
		}
	}
	b.await("the others to be seen to wait", func() bool {
		steps, err := b.store.Steps(t.Context(), store.StepFilter{Server: "hung", Status: "pending"})
		if err != nil {
			t.Fatal(err)
		}
		return len(steps) == len(waiting)-2
	})
	if got := len(hung.Sent("tools/call")); got != 2 {
		t.Errorf("%d operations are under way", got)
	}
	close(release)
	for _, id := range waiting {
		if step := b.awaitStep(id); step.Status != "succeeded" || step.Claim != 1 {
			t.Errorf("a step that waited is %s with claim %d: %s", step.Status, step.Claim, step.FailureMessage)
		}
	}
	if got := len(hung.Sent("tools/call")); got != len(waiting) || most.Load() != 2 {
		t.Errorf("the server was called %d times, at most %d at once", got, most.Load())
	}
}

// A limit that an operator changes holds though every place is taken.
func TestALimitThatIsRaised(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	h := b.heldCall(worker.Options{Concurrency: 5}) // a fifth of it: one
	defer close(h.release)
	for range 3 {
		id, _ := b.step(worker.StepPayload{Server: "docs"})
		b.awaitWaiting(id)
	}
	if _, err := b.store.UpdateServer(t.Context(), "docs", func(s *store.Server) error { s.MaxInFlight = 3; return nil }); err != nil {
		t.Fatal(err)
	}
	h.server.Await(t, "tools/call", 3)
	b.await("one to wait still", func() bool {
		return b.count(`select count(*) from agent_step where status = 'pending'`) == 1
	})
}

// asynq would put away an import that waits and is not to be tried again. No row would bring it back.
func TestAnImportThatCannotComeAgainDoesNotWait(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	h := b.heldCall(worker.Options{Concurrency: 5})
	waits := b.catalogue("docs")
	b.awaitTask(waits, asynq.TaskStateRetry)
	if info := b.settledTask(b.catalogue("docs", asynq.MaxRetry(0))); info.State != asynq.TaskStateCompleted {
		t.Errorf("the import is %s: %s", info.State, info.LastErr)
	}
	close(h.release)
	b.awaitStep(h.step)
	if info := b.settledTask(waits); info.State != asynq.TaskStateCompleted {
		t.Errorf("the import that waited is %s: %s", info.State, info.LastErr)
	}
}

// The sweep looks for the task that a step waits with, whatever its id.
func TestAStepThatWaitsHasOneTask(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	h := b.heldCall(worker.Options{Concurrency: 5})
	id, _ := b.step(worker.StepPayload{Server: "docs"}, asynq.TaskID("nightly"))
	if step := b.awaitWaiting(id); step.TaskID != "nightly" {
		t.Errorf("the row names task %q", step.TaskID)
	}
	b.exec(`update agent_step set created_at = now() - interval '1 minute' where id = $1`, id)
	b.awaitLook(id)
	close(h.release)
	if step := b.awaitStep(id); step.Status != "succeeded" || step.Claim != 1 {
		t.Errorf("the step is %s with claim %d: %s", step.Status, step.Claim, step.FailureMessage)
	}
	if n := b.said("had no task"); n != 0 {
		t.Errorf("the log says %d times that a step had no task", n)
	}
	if info, err := b.inspect.GetTaskInfo(worker.QueueAgent, id.String()); err == nil {
		t.Errorf("the step has a second task: %+v", info)
	}
}

// What waits comes back when its own time is up, and is settled then.
func TestWaitingEndsAtTheDeadline(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	h := b.heldCall(worker.Options{Concurrency: 5})
	defer close(h.release)
	deadline := time.Now().Add(8 * time.Second)
	dated, info := b.step(worker.StepPayload{Server: "docs"}, asynq.Deadline(deadline))
	b.awaitWaiting(dated)
	if next := b.awaitTask(info, asynq.TaskStateRetry).NextProcessAt; next.After(deadline.Add(time.Second)) {
		t.Errorf("it comes back at %s, its time is up at %s", next, deadline)
	}
	// asynq counts a Timeout anew with each delivery.
	timed, info := b.step(worker.StepPayload{Server: "docs"}, asynq.Timeout(2*time.Second))
	b.awaitWaiting(timed)
	if next := b.awaitTask(info, asynq.TaskStateRetry).NextProcessAt; time.Until(next) < 10*time.Second {
		t.Errorf("it comes back in %s", time.Until(next))
	}
	if step := b.awaitStep(dated); step.FailureKind != "budget_spent" || step.Asked != "no" {
		t.Errorf("the step is %s, %s, asked %s: %s", step.Status, step.FailureKind, step.Asked, step.FailureMessage)
	}
}

// A waiting step keeps the limits of its job, whoever makes its next task.
func TestAStepThatWaitsKeepsItsLimits(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	h := b.heldCall(worker.Options{Concurrency: 5})
	deadline := time.Now().Add(time.Hour).Truncate(time.Second)
	// asynq archives it when it is put off.
	id, info := b.step(worker.StepPayload{Server: "docs"}, asynq.MaxRetry(0), asynq.Timeout(7*time.Minute), asynq.Deadline(deadline))
	b.awaitWaiting(id)
	b.awaitTask(info, asynq.TaskStateArchived)
	if err := b.inspect.DeleteTask(info.Queue, info.ID); err != nil { // as a Redis does that loses what it has
		t.Fatal(err)
	}
	b.exec(`update agent_step set created_at = now() - interval '1 minute' where id = $1`, id)
	var now *asynq.TaskInfo
	b.await("a new task", func() bool {
		var err error
		now, err = b.inspect.GetTaskInfo(info.Queue, info.ID)
		return err == nil
	})
	if now.Timeout != 7*time.Minute || !now.Deadline.Equal(deadline) {
		t.Errorf("the new task has a timeout of %s and ends at %s, want 7 minutes and %s", now.Timeout, now.Deadline, deadline)
	}
	close(h.release)
	b.awaitStep(id)
}

// What waits for a worker that stops is there for the others at once.
func TestAWorkerThatStopsLetsGoOfWhatWaits(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	h := b.heldCall(worker.Options{Concurrency: 5})
	var waiting []*asynq.TaskInfo
	for i := range 3 {
		id, info := b.step(worker.StepPayload{Server: "docs"}, asynq.MaxRetry(i))
		b.awaitWaiting(id)
		waiting = append(waiting, b.awaitTask(info, asynq.TaskStateRetry, asynq.TaskStateArchived))
	}
	go h.stop()
	for _, info := range waiting {
		b.awaitTask(info, asynq.TaskStatePending)
	}
	close(h.release)
	b.awaitStep(h.step)
}

// Jobs that name servers which there are not wait for nothing, and leave no series behind.
func TestJobsForServersThatThereAreNot(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	metrics := worker.NewMetrics("test")
	b.start(worker.Options{Concurrency: 5, Metrics: metrics}) // a fifth of it: one
	hold, err := b.sql.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Rollback(t.Context())
	if _, err := hold.Exec(t.Context(), `lock table agent_step`); err != nil {
		t.Fatal(err)
	}
	var ids []uuid.UUID
	for range 3 {
		id, _ := b.step(worker.StepPayload{Server: "ghost"})
		ids = append(ids, id)
	}
	b.await("all of them to be under way", func() bool {
		info, err := b.inspect.GetQueueInfo(worker.QueueAgent)
		return err == nil && info.Active == 3
	})
	if err := hold.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if step := b.awaitStep(id); step.FailureKind != "invalid_request" {
			t.Errorf("the step is %s, %s", step.Status, step.FailureKind)
		}
	}
	answer := httptest.NewRecorder()
	metrics.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if strings.Contains(answer.Body.String(), "ghost") {
		t.Error("a server that there is not has series")
	}
}
