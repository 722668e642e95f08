package worker_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"legwork/mcp/mcptest"
	"legwork/worker"
)

// insert leaves the row of a step that a backend inserted a minute ago.
func (b *bench) insert(tool string) uuid.UUID {
	b.t.Helper()
	id := uuid.New()
	b.exec(`insert into agent_step (id, server, tool, arguments, created_at) values ($1, 'docs', $2, '{}', now() - interval '1 minute')`, id, tool)
	return id
}

// awaitLook waits until a worker has looked after a step that waits.
func (b *bench) awaitLook(id uuid.UUID) {
	b.t.Helper()
	b.await("step "+id.String()+" to be looked after", func() bool {
		var looked bool
		if err := b.sql.QueryRow(b.t.Context(), `select woken_at is not null from agent_step where id = $1`, id).Scan(&looked); err != nil {
			b.t.Fatal(err)
		}
		return looked
	})
}

func TestStepsThatNobodyLooksAfterAreWoken(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	b.addServer("docs", server.URL)
	// enqueue gives a row's step a task that is not due.
	enqueue := func(id uuid.UUID) *asynq.TaskInfo {
		_, info := b.step(worker.StepPayload{Server: "docs", StepID: id.String()}, asynq.ProcessIn(time.Hour))
		return info
	}

	none := b.insert("echo")
	archived := b.insert("echo")
	if info := enqueue(archived); b.inspect.ArchiveTask(info.Queue, info.ID) != nil {
		t.Fatal("it could not be archived")
	}
	scheduled := b.insert("echo")
	later := enqueue(scheduled)
	approval := b.insert("echo")
	b.exec(`update agent_step set status = 'awaiting_approval' where id = $1`, approval)
	nonsense := b.insert("")

	// Two of them: whoever comes first.
	b.start(worker.Options{})
	b.start(worker.Options{})
	for _, id := range []uuid.UUID{none, archived} {
		if step := b.awaitStep(id); step.Status != "succeeded" || step.Claim != 1 {
			t.Errorf("the step is %s with claim %d: %s", step.Status, step.Claim, step.FailureMessage)
		}
	}
	if step := b.awaitStep(nonsense); step.FailureKind != "invalid_request" {
		t.Errorf("the step without a tool is %s, %s: %s", step.Status, step.FailureKind, step.FailureMessage)
	}
	b.awaitLook(scheduled)
	if info := b.awaitTask(later, asynq.TaskStateScheduled); info.NextProcessAt.Before(time.Now()) {
		t.Errorf("the scheduled task is due at %s", info.NextProcessAt)
	}
	for _, id := range []uuid.UUID{scheduled, approval} {
		if step, err := b.store.Step(t.Context(), id); err != nil || step.Terminal() || step.Claim != 0 {
			t.Errorf("a step that is to wait: %+v (%v)", step, err)
		}
	}
	if got := len(server.Sent("tools/call")); got != 2 {
		t.Errorf("the server was called %d times", got)
	}
}

// A dead worker's step is taken over though its task is still the dead worker's, as far as asynq knows.
func TestStepsOfDeadWorkersAreTakenOver(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{Tools: []mcptest.Tool{{Name: "reads"}, {Name: "writes"}}})
	b.addServer("docs", server.URL)
	b.exec(`insert into mcp_tool (name, server, remote_name, effect) values ('mcp_docs_reads', 'docs', 'reads', 'read_only')`)
	leave := func(tool string) uuid.UUID {
		id := b.insert(tool)
		b.exec(`update agent_step set status = 'running', claim = 1, claimed_by = 'dead', started_at = now() - interval '1 minute',
			lease_expires_at = now() - interval '1 second' where id = $1`, id)
		return id
	}
	reads, writes := leave("reads"), leave("writes")
	b.start(worker.Options{})
	if step := b.awaitStep(reads); step.Status != "succeeded" || step.Claim != 2 {
		t.Errorf("the step that only reads is %s with claim %d: %s", step.Status, step.Claim, step.FailureMessage)
	}
	if step := b.awaitStep(writes); step.FailureKind != "interrupted" || step.Claim != 1 {
		t.Errorf("the step that writes is %s, %s with claim %d", step.Status, step.FailureKind, step.Claim)
	}
	if got := len(server.Sent("tools/call")); got != 1 {
		t.Errorf("the server was called %d times", got)
	}
}

// A Redis that has lost the names of the queues, as one that was emptied has, still has the tasks that came since, though
// asynq denies them.
func TestQueuesThatRedisHasForgotten(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	forget := func() {
		client := b.redis.MakeRedisClient().(redis.UniversalClient)
		defer client.Close()
		if err := client.Del(t.Context(), "asynq:queues").Err(); err != nil {
			t.Fatal(err)
		}
	}
	server, release := mcptest.New(t, mcptest.Options{}), make(chan struct{})
	server.On("tools/call", mcptest.Hold(release))
	b.addServer("docs", server.URL)
	b.step(worker.StepPayload{Server: "docs", StepID: b.insert("echo").String()})
	forget()
	b.wantFindings(b.doctor(false))

	b.start(worker.Options{Concurrency: 5})
	server.Await(t, "tools/call", 1)
	id, info := b.step(worker.StepPayload{Server: "docs"})
	b.awaitWaiting(id)
	back := b.awaitTask(info, asynq.TaskStateRetry).NextProcessAt // by itself
	forget()
	close(release)
	if step := b.awaitStep(id); step.Status != "succeeded" || !step.StartedAt.Before(back) {
		t.Errorf("the step that waited is %s, begun at %s; it was not called, and came by itself at %s", step.Status, step.StartedAt, back)
	}
	forget()
	b.await("the queues to be known again", func() bool {
		known, err := b.inspect.Queues()
		return err == nil && len(known) == 3
	})
}

// A step that is taken over keeps the limits that its first task has.
func TestATakeoverKeepsTheJobsLimits(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.addServer("docs", mcptest.New(t, mcptest.Options{}).URL)
	b.addTool("reads", "read_only")
	id := b.dead("reads", "2 minutes")
	deadline := time.Now().Add(time.Hour).Truncate(time.Second)
	_, first := b.step(worker.StepPayload{Server: "docs", Tool: "reads", StepID: id.String()}, asynq.Timeout(7*time.Minute), asynq.Deadline(deadline))
	if err := b.inspect.ArchiveTask(first.Queue, first.ID); err != nil { // nobody brings it back
		t.Fatal(err)
	}
	b.wantFindings(b.doctor(true), "step_left_behind 1, 1 repaired")
	now, err := b.inspect.GetTaskInfo(worker.QueueAgent, id.String()+":1")
	if err != nil {
		t.Fatal(err)
	}
	if now.Timeout != 7*time.Minute || !now.Deadline.Equal(deadline) {
		t.Errorf("the new task has a timeout of %s and ends at %s, want 7 minutes and %s", now.Timeout, now.Deadline, deadline)
	}
}
