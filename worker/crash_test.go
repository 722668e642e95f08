package worker_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/sirupsen/logrus"

	"legwork/mcp/mcptest"
	"legwork/store"
	"legwork/worker"
)

// poison panics on the answers of one server.
type poison struct {
	http.RoundTripper
	url string
}

func (p poison) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := p.RoundTripper.RoundTrip(r)
	if strings.HasPrefix(p.url, "http://"+r.URL.Host) {
		panic("an answer that nobody thought of")
	}
	return resp, err
}

func TestAnAnswerThatMakesLegworkFail(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	bad, good := mcptest.New(t, mcptest.Options{}), mcptest.New(t, mcptest.Options{})
	b.addServer("bad", bad.URL)
	b.addServer("good", good.URL)
	b.wire = func(next http.RoundTripper) http.RoundTripper { return poison{next, bad.URL} }
	b.start(worker.Options{})

	id, info := b.step(worker.StepPayload{Server: "bad"})
	step := b.awaitStep(id)
	if step.Status != "failed" || step.FailureKind != "interrupted" || step.Asked != "unknown" {
		t.Errorf("the row is %s, %s, asked %q", step.Status, step.FailureKind, step.Asked)
	}
	const sentence = `Interrupted: legwork itself failed while it was asking server "bad" ("panic: an answer that nobody thought of"). Nothing was repeated, ` +
		`because nobody knows whether the server acted; look there before it is enqueued again. The worker's log has where it failed.`
	if step.FailureMessage != sentence {
		t.Errorf("the sentence is %s", step.FailureMessage)
	}
	if task := b.settledTask(info); task.State != asynq.TaskStateArchived || task.LastErr != sentence {
		t.Errorf("the task is %s: %s", task.State, task.LastErr)
	}
	b.settledTask(b.catalogue("bad"))
	if errs := b.importErrors("bad"); len(errs) != 1 || errs[0].Kind != "interrupted" {
		t.Errorf("the import's rows are %+v", errs)
	}
	id, _ = b.step(worker.StepPayload{Server: "good"})
	if step := b.awaitStep(id); step.Status != "succeeded" {
		t.Errorf("another server's step is %s: %s", step.Status, step.FailureMessage)
	}
	stacks := 0
	for _, e := range b.lines.AllEntries() {
		if stack, _ := e.Data["stack"].(string); e.Level == logrus.ErrorLevel && strings.Contains(stack, "poison.RoundTrip") {
			stacks++
		}
	}
	if stacks != 2 {
		t.Errorf("%d lines say where it failed, want 2", stacks)
	}
}

// mine makes the worker fail on each line that says so. It stands for whatever may fail in a handler.
type mine string

func (mine) Levels() []logrus.Level { return logrus.AllLevels }

func (m mine) Fire(e *logrus.Entry) error {
	if e.Message == string(m) {
		panic("stepped on")
	}
	return nil
}

func TestAJobThatMakesLegworkFailAgainAndAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.log.AddHook(mine("import succeeded"))
	server := mcptest.New(t, mcptest.Options{})
	b.addServer("docs", server.URL)
	b.start(worker.Options{})
	task := b.settledTask(b.catalogue("docs"))
	const sentence = "Invalid request: legwork failed 3 times while it handled this job (panic: stepped on), and gave it up. The log has where; no other job is harmed."
	if task.State != asynq.TaskStateArchived || task.Retried != 2 || task.LastErr != sentence {
		t.Errorf("the task is %s after %d tries: %s", task.State, task.Retried, task.LastErr)
	}
	var rows []store.ImportError
	if rows = b.importErrors("docs"); len(rows) != 1 || rows[0].Message != sentence {
		t.Errorf("the rows are %+v", rows)
	}
	id, _ := b.step(worker.StepPayload{Server: "docs"})
	if step := b.awaitStep(id); step.Status != "succeeded" {
		t.Errorf("the next job is %s: %s", step.Status, step.FailureMessage)
	}
}
