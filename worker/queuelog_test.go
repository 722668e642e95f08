package worker_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"legwork/internal/scratch/redistest"
	"legwork/mcp/mcptest"
	"legwork/worker"
)

// Work in flight goes on without Redis, and the log says once that it is away and once that it is back.
func TestRedisGoesAwayAndComesBack(t *testing.T) {
	t.Parallel()
	private := redistest.Start(t)
	b := newBenchOn(t, private.URL)
	server, release := mcptest.New(t, mcptest.Options{}), make(chan struct{})
	server.On("tools/call", mcptest.Hold(release))
	b.addServer("docs", server.URL)
	b.start(worker.Options{})
	under, _ := b.step(worker.StepPayload{Server: "docs"})
	server.Await(t, "tools/call", 1)

	if err := private.Kill(); err != nil {
		t.Fatal(err)
	}
	const away, back = "the queue's Redis does not do what it is asked", "the queue's Redis does what it is asked again"
	b.await("the line that it is away", func() bool { return b.said(away) > 0 })
	close(release)
	if step := b.awaitStep(under); step.Status != "succeeded" {
		t.Errorf("the step under way is %s: %s", step.Status, step.FailureMessage)
	}
	time.Sleep(3 * time.Second) // in which asynq complains dozens of times
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	if err := private.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	b.await("the line that it is back", func() bool { return b.said(back) > 0 })
	id, _ := b.step(worker.StepPayload{Server: "docs"})
	if step := b.awaitStep(id); step.Status != "succeeded" {
		t.Errorf("the next step is %s: %s", step.Status, step.FailureMessage)
	}
	if got := b.said(away); got != 1 {
		t.Errorf("it is said %d times that Redis is away", got)
	}
	if got := len(server.Sent("tools/call")); got != 2 {
		t.Errorf("the server was called %d times, want once a step", got)
	}
	for _, e := range b.lines.AllEntries() {
		// Where it takes long enough, what else needs Redis says so too, once.
		if e.Level <= logrus.ErrorLevel && !strings.Contains(e.Message, away) && !strings.Contains(e.Message, "steps without a task cannot be looked for") {
			t.Errorf("a line beside it: %s", e.Message)
		}
	}
}
