package worker_test

import (
	"sync/atomic"
	"testing"

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

// A limit that an operator changes holds from the next operation on.
func TestALimitThatIsRaised(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	h := b.heldCall(worker.Options{Concurrency: 5}) // a fifth of it: one
	_, _ = b.step(worker.StepPayload{Server: "docs"})
	b.await("the second to wait", func() bool {
		steps, err := b.store.Steps(t.Context(), store.StepFilter{Status: "pending"})
		if err != nil {
			t.Fatal(err)
		}
		return len(steps) == 1
	})
	if _, err := b.store.UpdateServer(t.Context(), "docs", func(s *store.Server) error { s.MaxInFlight = 3; return nil }); err != nil {
		t.Fatal(err)
	}
	close(h.release)
	b.awaitStep(h.step)
	h.server.Await(t, "tools/call", 2) // its claim tells the worker of the limit

	release := make(chan struct{})
	defer close(release)
	h.server.On("tools/call", mcptest.Hold(release))
	for range 3 {
		b.step(worker.StepPayload{Server: "docs"})
	}
	h.server.Await(t, "tools/call", 5)
}
