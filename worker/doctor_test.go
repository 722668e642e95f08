package worker_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"legwork/internal/scratch/redistest"
	"legwork/mcp/mcptest"
	"legwork/store"
	"legwork/store/storetest"
	"legwork/worker"
)

func (b *bench) doctor(repair bool) worker.Report {
	b.t.Helper()
	report, err := worker.Doctor(context.Background(), b.store, b.redis, repair)
	if err != nil {
		b.t.Fatal(err)
	}
	return report
}

// wantFindings checks the kinds and how many of each there are and were repaired.
func (b *bench) wantFindings(report worker.Report, want ...string) {
	b.t.Helper()
	got := []string{}
	for _, f := range report.Findings {
		got = append(got, fmt.Sprintf("%s %d, %d repaired", f.Kind, f.Count, f.Repaired))
		if f.Wrong == "" || f.Meaning == "" || f.Repair == "" || len(f.Rows) != min(f.Count, 20) {
			b.t.Errorf("the finding is not explained: %+v", f)
		}
	}
	if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
		b.t.Errorf("findings (-want +got):\n%s", diff)
	}
	healthy := true
	for _, f := range report.Findings {
		healthy = healthy && f.Repaired == f.Count
	}
	if report.Healthy() != healthy {
		b.t.Errorf("healthy = %t with %v", report.Healthy(), got)
	}
}

// dead leaves the row of a step whose worker died: its lease ended so long ago.
func (b *bench) dead(tool, ago string) uuid.UUID {
	b.t.Helper()
	id := uuid.New()
	b.exec(`
		insert into agent_step (id, server, tool, arguments, status, claim, claimed_by, lease_expires_at, started_at)
		values ($1, 'docs', $2, '{}', 'running', 1, 'dead', now() - $3::interval, now() - interval '1 hour')`, id, tool, ago)
	return id
}

func (b *bench) addTool(name, effect string) {
	b.t.Helper()
	b.exec(`insert into mcp_tool (name, server, remote_name, effect) values ('mcp_docs_' || $1, 'docs', $1, $2)`, name, effect)
}

func (b *bench) dump(table string) string {
	b.t.Helper()
	var rows string
	if err := b.sql.QueryRow(context.Background(), `select coalesce(json_agg(t order by t::text)::text, '') from `+table+` t`).Scan(&rows); err != nil {
		b.t.Fatal(err)
	}
	return rows
}

func TestDoctorFindsNothingWrong(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.wantFindings(b.doctor(false))
	b.addServer("docs", mcptest.New(t, mcptest.Options{}).URL)
	b.addTool("reads", "read_only")
	b.insert("echo")
	b.exec(`update agent_step set created_at = now() - interval '30 seconds'`) // a living worker still sees to it
	b.dead("writes", "30 seconds")
	b.dead("reads", "30 seconds")
	b.step(worker.StepPayload{Server: "docs", StepID: b.insert("echo").String()})
	b.wantFindings(b.doctor(false))
}

func TestDoctorRepairsInterruptedSteps(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.addServer("docs", "https://docs.example/mcp")
	b.addTool("reads", "read_only")
	var ids []uuid.UUID
	for range 22 {
		ids = append(ids, b.dead("writes", "2 minutes"))
	}
	before := b.dump("agent_step")
	report := b.doctor(false)
	b.wantFindings(report, "step_interrupted 22, 0 repaired")
	if report.Findings[0].Wrong != "22 steps run as far as their rows say, but their leases ended more than a minute ago." {
		t.Errorf("said %q", report.Findings[0].Wrong)
	}
	if b.dump("agent_step") != before {
		t.Error("rows were changed though no repair was asked for")
	}

	b.wantFindings(b.doctor(true), "step_interrupted 22, 22 repaired")
	for _, id := range ids {
		step, err := b.store.Step(t.Context(), id)
		if err != nil || step.Status != "failed" || step.FailureKind != "interrupted" || step.Asked != "unknown" || !strings.Contains(step.FailureMessage, `"docs"`) {
			t.Fatalf("the step is %+v (%v)", step, err)
		}
	}
	b.wantFindings(b.doctor(true))
}

func TestDoctorHasStepsCarriedOutAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{Tools: []mcptest.Tool{{Name: "reads"}}})
	b.addServer("docs", server.URL)
	b.addTool("reads", "read_only")
	none := b.dead("reads", "2 minutes")
	archived := b.dead("reads", "2 minutes")
	waking := b.enqueue(asynq.NewTask(worker.TypeStep, nil), asynq.Queue(worker.QueueAgent), asynq.TaskID(archived.String()+":1"))
	if err := b.inspect.ArchiveTask(waking.Queue, waking.ID); err != nil {
		t.Fatal(err)
	}
	// asynq brings this one's task back.
	retried := b.dead("reads", "2 minutes")
	b.step(worker.StepPayload{Server: "docs", Tool: "reads", StepID: retried.String()}, asynq.ProcessIn(time.Hour))

	b.wantFindings(b.doctor(false), "step_left_behind 2, 0 repaired")
	if task, err := b.inspect.GetTaskInfo(waking.Queue, waking.ID); err != nil || task.State != asynq.TaskStateArchived {
		t.Errorf("the archived task was touched though no repair was asked for: %v, %v", task, err)
	}
	b.wantFindings(b.doctor(true), "step_left_behind 2, 2 repaired")
	b.wantFindings(b.doctor(true))
	b.start(worker.Options{})
	for _, id := range []uuid.UUID{none, archived} {
		if step := b.awaitStep(id); step.Status != "succeeded" || step.Claim != 2 {
			t.Errorf("the step is %s with claim %d: %s", step.Status, step.Claim, step.FailureMessage)
		}
	}
}

// A task that a dead worker holds is nobody's, though asynq calls it active.
func TestDoctorSeesThroughADeadWorkersTask(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	held := b.heldCall(worker.Options{})
	defer close(held.release)
	b.exec(`insert into mcp_tool (name, server, remote_name, effect) values ('mcp_docs_echo', 'docs', 'echo', 'read_only')`)
	// Its row as that of a worker that was stopped longer ago than its lease.
	keep := b.count(`select claim from agent_step`)
	b.exec(`update agent_step set lease_expires_at = now() - interval '2 minutes', woken_at = now() + interval '1 hour'`)
	if task, err := b.inspect.GetTaskInfo(held.task.Queue, held.task.ID); err != nil || task.State != asynq.TaskStateActive {
		t.Fatalf("the task is %v (%v)", task, err)
	}
	report := b.doctor(false)
	b.wantFindings(report, "step_left_behind 1, 0 repaired")
	if keep != 1 || len(report.Findings) == 1 && report.Findings[0].Rows[0] != held.step.String() {
		t.Errorf("claim %d, findings %+v", keep, report.Findings)
	}
}

func TestDoctorGivesWaitingStepsTasks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	b.addServer("docs", server.URL)
	enqueued := func(opts ...asynq.Option) (uuid.UUID, *asynq.TaskInfo) {
		t.Helper()
		id := b.insert("echo")
		_, info := b.step(worker.StepPayload{Server: "docs", StepID: id.String()}, opts...)
		return id, info
	}
	run := uuid.New()
	b.exec(`insert into agent_run (id) values ($1)`, run)
	none := b.insert("echo")
	b.exec(`update agent_step set run_id = $2 where id = $1`, none, run)
	archived, info := enqueued()
	if err := b.inspect.ArchiveTask(info.Queue, info.ID); err != nil {
		t.Fatal(err)
	}
	elsewhere, info := enqueued(asynq.Queue("default"))
	if err := b.inspect.ArchiveTask(info.Queue, info.ID); err != nil {
		t.Fatal(err)
	}
	enqueued(asynq.ProcessIn(time.Hour))
	enqueued(asynq.Queue(worker.QueueImport))
	foreign, _ := enqueued(asynq.ProcessIn(time.Hour), asynq.TaskID("nightly"))
	b.exec(`update agent_step set task_id = 'nightly' where id = $1`, foreign)
	b.exec(`insert into agent_step (id, server, tool, status, created_at) values ($1, 'docs', 'echo', 'awaiting_approval', now() - interval '1 day')`, uuid.New())

	b.wantFindings(b.doctor(false), "step_without_task 3, 0 repaired")
	b.wantFindings(b.doctor(true), "step_without_task 3, 3 repaired")
	b.wantFindings(b.doctor(true))
	b.start(worker.Options{})
	for _, id := range []uuid.UUID{none, archived, elsewhere} {
		if step := b.awaitStep(id); step.Status != "succeeded" || step.Claim != 1 {
			t.Errorf("the step is %s with claim %d: %s", step.Status, step.Claim, step.FailureMessage)
		}
	}
}

// A task that asynq calls done, of a step whose row an outside hand made wait again.
func TestDoctorReplacesACompletedTask(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.addServer("docs", mcptest.New(t, mcptest.Options{}).URL)
	stop := b.start(worker.Options{})
	id, info := b.step(worker.StepPayload{Server: "docs"})
	b.awaitTask(info, asynq.TaskStateCompleted)
	stop()
	b.exec(`update agent_step set status = 'pending', finished_at = null, created_at = now() - interval '1 hour' where id = $1`, id)
	b.wantFindings(b.doctor(true), "step_without_task 1, 1 repaired")
	b.wantFindings(b.doctor(true))
	b.start(worker.Options{})
	if step := b.awaitStep(id); step.Status != "succeeded" || step.Claim != 2 {
		t.Errorf("the step is %s with claim %d", step.Status, step.Claim)
	}
}

// What a person has to decide is told, and left as it is.
func TestDoctorLeavesToOperatorsWhatIsTheirs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`insert into agent_step (id, server, tool, created_at) values ($1, 'nobody', 'echo', now() - interval '1 hour')`, uuid.New())
	b.exec(`insert into agent_run (id, created_at) values ($1, now() - interval '2 days')`, uuid.New())
	b.enqueue(asynq.NewTask("whatever", nil), asynq.Queue("default"))
	b.enqueue(asynq.NewTask("whatever", nil), asynq.Queue("elsewhere"))
	for _, queue := range []string{"default", "elsewhere"} {
		if err := b.inspect.PauseQueue(queue); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"step_without_server 1, 0 repaired", "run_not_ended 1, 0 repaired", "queue_paused 1, 0 repaired"}
	report := b.doctor(false)
	b.wantFindings(report, want...)
	if paused := report.Findings[2]; paused.Rows[0] != "default" || !strings.Contains(paused.Repair, `"asynq queue unpause default"`) {
		t.Errorf("the paused queue is told as %+v", paused)
	}
	rows := b.dump("agent_step") + b.dump("agent_run")
	b.wantFindings(b.doctor(true), want...)
	if b.dump("agent_step")+b.dump("agent_run") != rows {
		t.Error("a repair changed rows that it should leave")
	}
	if info, err := b.inspect.GetQueueInfo("default"); err != nil || !info.Paused || info.Pending != 1 {
		t.Errorf("a repair changed the queue: %+v, %v", info, err)
	}
}

func TestDoctorReleasesImports(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.addServer("docs", "https://docs.example/mcp")
	claim, err := b.store.ClaimImport(t.Context(), store.ImportRequest{Server: "docs", Worker: "dead", Budget: time.Second})
	if err != nil || claim.Claim == 0 {
		t.Fatalf("claim %+v, %v", claim, err)
	}
	b.wantFindings(b.doctor(false))
	b.exec(`update mcp_server set import_lease_expires_at = now() - interval '2 minutes'`)
	b.wantFindings(b.doctor(false), "import_abandoned 1, 0 repaired")
	b.wantFindings(b.doctor(true), "import_abandoned 1, 1 repaired")
	b.wantFindings(b.doctor(true))
}

func TestDoctorsAdvice(t *testing.T) {
	t.Parallel()
	b := newBenchOn(t, redistest.Start(t).URL)
	client := b.redis.MakeRedisClient().(redis.UniversalClient)
	t.Cleanup(func() { client.Close() })
	set := func(name, value string) {
		t.Helper()
		if err := client.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	advised := func(part string) bool {
		t.Helper()
		report := b.doctor(false)
		if !report.Healthy() {
			t.Errorf("advice counts as broken: %+v", report)
		}
		return strings.Contains(strings.Join(report.Advice, "\n"), part)
	}
	const evicts, forgets, alone = "set maxmemory-policy to noeviction", "set appendonly to yes", "No worker takes tasks"
	if advised(evicts) || !advised(forgets) || !advised(alone) {
		t.Errorf("advice: %q", b.doctor(false).Advice)
	}
	stop := b.start(worker.Options{})
	b.await("the worker to be seen", func() bool { return !advised(alone) })
	stop()
	set("maxmemory-policy", "volatile-lru")
	set("save", "3600 1")
	if !advised(evicts) || advised(forgets) {
		t.Errorf("advice: %q", b.doctor(false).Advice)
	}
	set("save", "")
	set("appendonly", "yes")
	if advised(forgets) {
		t.Errorf("advice: %q", b.doctor(false).Advice)
	}
	// As the clouds do: the settings are not told.
	if err := client.Do(t.Context(), "ACL", "SETUSER", "default", "-config").Err(); err != nil {
		t.Fatal(err)
	}
	if advised(evicts) || advised(forgets) {
		t.Errorf("advice: %q", b.doctor(false).Advice)
	}
}

func TestDoctorNeedsBothParts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, err := worker.Doctor(t.Context(), b.store, asynq.RedisClientOpt{Addr: strings.TrimPrefix(strings.TrimSuffix(mcptest.Nowhere(t), "/mcp"), "http://")}, false)
	if err == nil || !strings.Contains(err.Error(), "cannot reach Redis") {
		t.Errorf("got %v", err)
	}
	bare, err := store.Open(t.Context(), storetest.Empty(t), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer bare.Close()
	if _, err := worker.Doctor(t.Context(), bare, b.redis, false); err == nil || !strings.Contains(err.Error(), `run "legwork migrate up"`) {
		t.Errorf("got %v", err)
	}
}
