package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"legwork/mcp"
	"legwork/mcp/mcptest"
	"legwork/store"
	"legwork/worker"
)

func TestAStepFromTaskToRow(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	server.On("tools/call", mcptest.Result(`{"content":[{"type":"text","text":"42 hits"},{"type":"image","data":"","mimeType":"image/png"}],
		"structuredContent":{"total":9007199254740993,"odd":"a\u0000b\ud800"}}`))
	b.addServer("docs", server.URL)
	b.start(worker.Options{})

	run := uuid.NewString()
	arguments := `{"id":9007199254740993,"q":"<b>"}`
	id, info := b.step(worker.StepPayload{Server: "docs", Tool: "search", Arguments: json.RawMessage(arguments), RunID: run})
	step := b.awaitStep(id)

	if step.Status != "succeeded" || step.FailureKind != "" || step.Asked != "" {
		t.Fatalf("step = %+v", step)
	}
	if info.ID != id.String() {
		t.Errorf("task id %s, want the step's %s", info.ID, id)
	}
	if string(step.Arguments) != arguments {
		t.Errorf("arguments = %s, want %s", step.Arguments, arguments)
	}
	if sent := server.Sent("tools/call"); len(sent) != 1 || string(sent[0].Params) != `{"name":"search","arguments":`+arguments+`}` {
		t.Errorf("the server was sent %s", sent[0].Params)
	}
	want := `{"text":"[dropped, because only text is kept: 1 image]\n42 hits","structured":{"total":9007199254740993,"odd":"a\ufffdb\ufffd"},"is_error":false,"dropped":{"image":1}}`
	if diff := cmp.Diff(want, string(step.Result)); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	if step.RunID == nil || step.RunID.String() != run {
		t.Errorf("run = %v, want %s", step.RunID, run)
	}
	if row, err := b.store.Run(context.Background(), uuid.MustParse(run)); err != nil || row.Status != "running" {
		t.Errorf("the run that the step names has no row: %+v, %v", row, err)
	}
	if step.BudgetMS == nil || *step.BudgetMS != 20_000 {
		t.Errorf("budget_ms = %v, want the installation's 20000", step.BudgetMS)
	}
	var methods []string
	for _, leg := range legsOf(t, step.Legs) {
		methods = append(methods, fmt.Sprintf("%s %s %d", leg.Method, leg.Outcome, leg.Status))
	}
	if diff := cmp.Diff([]string{"initialize ok 200", "notifications/initialized ok 202", "tools/call ok 200"}, methods); diff != "" {
		t.Errorf("legs (-want +got):\n%s", diff)
	}

	done := b.settledTask(info)
	var result struct {
		Step, Status string
		Legs         []mcp.Leg
	}
	if err := json.Unmarshal(done.Result, &result); err != nil || result.Step != id.String() || result.Status != "succeeded" || len(result.Legs) != 3 {
		t.Errorf("the dashboard's result is %s (%v)", done.Result, err)
	}
	if done.State != asynq.TaskStateCompleted {
		t.Errorf("the task is %s, want completed", done.State)
	}
}

// What the first operation learns about a server saves the next one asking.
func TestAServersEraIsLearned(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	b.addUnknownServer("docs", server.URL)
	b.start(worker.Options{})
	legs := func() int {
		t.Helper()
		id, _ := b.step(worker.StepPayload{Server: "docs"})
		step := b.awaitStep(id)
		if step.Status != "succeeded" {
			t.Fatalf("the step is %s: %s", step.Status, step.FailureMessage)
		}
		return len(legsOf(t, step.Legs))
	}
	if got := legs(); got != 4 {
		t.Errorf("a call to an unknown server took %d legs, want 4", got)
	}
	b.await("the row to have it", func() bool {
		row, err := b.store.Server(context.Background(), "docs")
		return err == nil && row.ProtocolVersion == "2025-11-25" && row.ProtocolVersionAt != nil
	})
	if got := legs(); got != 3 {
		t.Errorf("a call to a server that is known took %d legs, want 3", got)
	}
}

func TestAToolThatCannotBeCalledIsNot(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{Tools: []mcptest.Tool{
		{Name: "slow", Entry: json.RawMessage(`{"name":"slow","inputSchema":{"type":"object"},"execution":{"taskSupport":"required"}}`)},
		{Name: "quick"},
	}})
	b.addServer("docs", server.URL)
	b.start(worker.Options{})
	b.settledTask(b.catalogue("docs"))
	asked := len(server.Sent("initialize"))

	id, info := b.step(worker.StepPayload{Server: "docs", Tool: "slow"})
	step := b.awaitStep(id)
	const sentence = `Invalid request: nothing was sent and tool "slow" of server "docs" was not called, because it runs only as a task ` +
		`(execution.taskSupport "required"), which legwork does not do. Import its catalogue again if the server has changed.`
	if step.Status != "failed" || step.FailureKind != "invalid_request" || step.Asked != "no" || len(legsOf(t, step.Legs)) != 0 {
		t.Errorf("step = %+v", step)
	}
	if diff := cmp.Diff(sentence, step.FailureMessage); diff != "" {
		t.Errorf("the sentence (-want +got):\n%s", diff)
	}
	if task := b.settledTask(info); task.State != asynq.TaskStateArchived || task.Retried != 0 || task.LastErr != sentence {
		t.Errorf("the task is %s after %d tries: %s", task.State, task.Retried, task.LastErr)
	}
	if now := len(server.Sent("initialize")); now != asked {
		t.Errorf("the server was asked %d times", now-asked)
	}

	id, _ = b.step(worker.StepPayload{Server: "docs", Tool: "quick"})
	if step := b.awaitStep(id); step.Status != "succeeded" {
		t.Errorf("another tool of the server: %+v", step)
	}
	server.SetTools(mcptest.Tool{Name: "slow"})
	b.settledTask(b.catalogue("docs"))
	id, _ = b.step(worker.StepPayload{Server: "docs", Tool: "slow"})
	if step := b.awaitStep(id); step.Status != "succeeded" {
		t.Errorf("after the server has changed: %+v", step)
	}
}

// Every kind of failure that can occur here, each produced by a real server or a real job, with the row and the sentence
// that an operator reads.
func TestEveryFailureHasItsRow(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := context.Background()
	seen := map[mcp.Kind]bool{mcp.KindRefusedHost: true, mcp.KindBudgetSpent: true, mcp.KindInterrupted: true} // each has a test of its own below
	b.start(worker.Options{Concurrency: 32, Budget: 20 * time.Second})

	stories := []struct {
		name    string
		server  func(t *testing.T) (url string, misbehaves *mcptest.Server)
		change  func(*store.Server)
		payload func(*worker.StepPayload)
		kind    mcp.Kind
		asked   string
		says    []string
		opens   string // what the sentence begins with
		calls   int    // how often the server was sent tools/call
	}{
		{
			name: "a server that accepts and stays silent", server: on("tools/call", mcptest.Stall), change: budget(2),
			kind: mcp.KindNoAnswer, asked: "unknown", opens: "No answer: server ", says: []string{"was asked (tools/call)", "its budget of 2 s", "nothing had arrived", "Nobody knows whether it acted"}, calls: 1,
		},
		{
			name: "one byte a second", server: on("tools/call", mcptest.Drip), change: budget(2),
			kind: mcp.KindNoAnswer, asked: "unknown", opens: "No answer: server ", says: []string{"bytes of the body had arrived"}, calls: 1,
		},
		{
			name: "a port where nothing listens", server: func(t *testing.T) (string, *mcptest.Server) { return mcptest.Nowhere(t), nil },
			kind: mcp.KindUnreachable, asked: "no", opens: "Unreachable: no connection to server ", says: []string{"refused", "never saw the request (initialize)"},
		},
		{
			name: "a server that hangs up", server: on("tools/call", mcptest.HangUp),
			kind: mcp.KindConnectionLost, asked: "unknown", opens: "Connection lost: server ", says: []string{"(tools/call)", "it was closed"}, calls: 1,
		},
		{
			name: "an overloaded server", server: on("tools/call", mcptest.Status(503, http.Header{"Retry-After": {"120"}}, "busy")),
			kind: mcp.KindHTTPStatus, asked: "yes", opens: "HTTP 503: server ", says: []string{`Retry-After "120"`}, calls: 1,
		},
		{
			name: "a login page", server: on("tools/call", mcptest.Body("text/html; charset=utf-8", "<html>log in</html>")),
			kind: mcp.KindUnsupportedContentType, asked: "yes", opens: "Unsupported content type: server ", says: []string{`"text/html; charset=utf-8"`}, calls: 1,
		},
		{
			name: "an answer that is no JSON", server: on("tools/call", mcptest.Body("application/json", "oops\x1b[31m")),
			kind: mcp.KindMalformedResponse, asked: "yes", opens: "Malformed answer: server ", says: []string{`it begins with "oops[31m"`}, calls: 1,
		},
		{
			name: "a body without end", server: on("tools/call", mcptest.EndlessBody),
			kind: mcp.KindResponseTooLarge, asked: "yes", opens: "Response too large: server ", says: []string{"limit of 2 MiB"}, calls: 1,
		},
		{
			name: "a tool that is not there", server: on("tools/call", mcptest.Error(-32602, "Unknown tool")),
			kind: mcp.KindRPCError, asked: "yes", opens: "JSON-RPC error: server ", says: []string{"-32602", `"Unknown tool"`}, calls: 1,
		},
		{
			name: "a tool that fails", server: on("tools/call", mcptest.Result(string(mcptest.Failed("no such customer")))),
			kind: mcp.KindToolError, asked: "yes", opens: `Tool error: tool "echo" of server `, says: []string{`it said "no such customer"`}, calls: 1,
		},
		{
			name: "a credential that is not there", server: on(), change: func(s *store.Server) {
				s.AuthPlacement, s.Credential = "bearer", "env:LEGWORK_TEST_NO_SUCH_TOKEN"
			},
			kind: mcp.KindMissingCredential, asked: "no", opens: "Missing credential: ", says: []string{`"env:LEGWORK_TEST_NO_SUCH_TOKEN"`, "is not set", "nothing was sent"},
		},
		{
			name: "a server that is disabled", server: on(), change: func(s *store.Server) { s.Enabled = false },
			kind: mcp.KindInvalidRequest, asked: "no", opens: "Invalid request: nothing was sent to server ", says: []string{"legwork server enable"},
		},
		{
			name: "a server without a data class", server: on(), change: func(s *store.Server) { s.DataClass = "" },
			kind: mcp.KindInvalidRequest, asked: "no", opens: "Invalid request: nothing was sent to server ", says: []string{"--data-class"},
		},
		{
			name: "a server that nobody added", server: on(), payload: func(p *worker.StepPayload) { p.Server = "nobody" },
			kind: mcp.KindInvalidRequest, asked: "no", opens: `Invalid request: there is no server "nobody"`, says: []string{"legwork server add"},
		},
		{
			name: "a run that was cancelled", server: on(), payload: func(p *worker.StepPayload) {
				run := uuid.New()
				p.RunID = run.String()
				b.cancelledRun(run, "ops@example.com")
			},
			kind: mcp.KindCancelled, asked: "no", opens: "Cancelled: the run was cancelled by ", says: []string{"ops@example.com"},
		},
	}
	for i, tt := range stories {
		t.Run(tt.name, func(t *testing.T) {
			seen[tt.kind] = true
			t.Parallel()
			url, server := tt.server(t)
			identifier := fmt.Sprintf("server%d", i)
			b.addServer(identifier, url, func(s *store.Server) {
				if tt.change != nil {
					tt.change(s)
				}
			})
			payload := worker.StepPayload{Server: identifier}
			if tt.payload != nil {
				tt.payload(&payload)
			}
			id, info := b.step(payload)
			step := b.awaitStep(id)
			status := "failed"
			if tt.kind == mcp.KindCancelled {
				status = "cancelled"
			}
			if step.Status != status || step.FailureKind != string(tt.kind) || step.Asked != tt.asked {
				t.Errorf("the row is %s, %s, asked %q; want %s, %s, asked %q: %s", step.Status, step.FailureKind, step.Asked, status, tt.kind, tt.asked, step.FailureMessage)
			}
			if !strings.HasPrefix(step.FailureMessage, tt.opens) {
				t.Errorf("the sentence does not begin with %q: %s", tt.opens, step.FailureMessage)
			}
			for _, says := range tt.says {
				if !strings.Contains(step.FailureMessage, says) {
					t.Errorf("the sentence does not say %q: %s", says, step.FailureMessage)
				}
			}
			if kept := len(step.Result) > 0; kept != (tt.kind == mcp.KindToolError) {
				t.Errorf("result kept: %v (%s)", kept, step.Result)
			}

			task := b.settledTask(info)
			archived := tt.kind != mcp.KindToolError && tt.kind != mcp.KindCancelled
			if (task.State == asynq.TaskStateArchived) != archived {
				t.Errorf("the task is %s", task.State)
			}
			if archived && task.LastErr != step.FailureMessage {
				t.Errorf("the dashboard's last error is %q, want the sentence", task.LastErr)
			}
			if task.Retried != 0 {
				t.Errorf("the queue repeated it %d times", task.Retried)
			}
			var result struct{ Kind, Sentence string }
			if err := json.Unmarshal(task.Result, &result); err != nil || result.Kind != string(tt.kind) || result.Sentence != step.FailureMessage {
				t.Errorf("the dashboard's result is %s (%v)", task.Result, err)
			}
			if server != nil {
				if got := len(server.Sent("tools/call")); got != tt.calls {
					t.Errorf("the server was sent tools/call %d times, want %d", got, tt.calls)
				}
			}
			if _, err := b.store.Server(ctx, identifier); err != nil {
				t.Error(err)
			}
		})
	}
	for _, kind := range mcp.Kinds() {
		if !seen[kind] {
			t.Errorf("no story produces %s", kind)
		}
	}
}

// on is a server that misbehaves as told: a method and its behaviour, in turn.
func on(script ...any) func(t *testing.T) (string, *mcptest.Server) {
	return func(t *testing.T) (string, *mcptest.Server) {
		server := mcptest.New(t, mcptest.Options{})
		for i := 0; i < len(script); i += 2 {
			var behaviour mcptest.Behaviour
			switch b := script[i+1].(type) {
			case mcptest.Behaviour:
				behaviour = b
			case func(*mcptest.Exchange):
				behaviour = b
			}
			server.On(script[i].(string), behaviour)
		}
		return server.URL, server
	}
}

// cancelledRun leaves a run that was cancelled before any step of it began.
func (b *bench) cancelledRun(id uuid.UUID, by string) {
	b.t.Helper()
	b.exec("insert into agent_run (id, status, cancelled_by, finished_at) values ($1, 'cancelled', $2, now())", id, by)
}

func TestAHandshakeThatEatsTheBudget(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	clock := &mcptest.Clock{}
	b.clock = clock
	b.start(worker.Options{})
	server := mcptest.New(t, mcptest.Options{})
	server.On("initialize", mcptest.Spend(clock, 1300*time.Millisecond))
	server.On("notifications/initialized", mcptest.Spend(clock, 900*time.Millisecond))
	b.addServer("docs", server.URL, budget(2))

	id, info := b.step(worker.StepPayload{Server: "docs"})
	step := b.awaitStep(id)
	const sentence = "Budget spent: tools/call was not sent and server \"docs\" was not asked for it, because the 2 s of this operation went to " +
		"initialize (1.3 s) and notifications/initialized (0.9 s). The 2 s are this server's own setting: raise operation_timeout_seconds of server \"docs\" to allow more."
	if step.Status != "failed" || step.FailureKind != "budget_spent" || step.Asked != "no" {
		t.Errorf("the row is %s, %s, asked %q", step.Status, step.FailureKind, step.Asked)
	}
	if diff := cmp.Diff(sentence, step.FailureMessage); diff != "" {
		t.Error(diff)
	}
	if task := b.settledTask(info); task.State != asynq.TaskStateArchived || task.LastErr != step.FailureMessage || task.Retried != 0 {
		t.Errorf("the task is %s after %d tries: %s", task.State, task.Retried, task.LastErr)
	}
	if got := len(server.Sent("tools/call")); got != 0 {
		t.Errorf("the server was sent tools/call %d times", got)
	}
}

func TestARefusedHostIsNotAsked(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	b.addServer("docs", server.URL)
	b.startWith(mcp.GateOptions{}, worker.Options{})
	id, _ := b.step(worker.StepPayload{Server: "docs"})
	step := b.awaitStep(id)
	if step.FailureKind != "refused_host" || step.Asked != "no" || !strings.Contains(step.FailureMessage, "LEGWORK_ALLOWED_HOSTS") {
		t.Errorf("the row is %s, asked %s: %s", step.FailureKind, step.Asked, step.FailureMessage)
	}
	if got := server.Methods(); len(got) != 0 {
		t.Errorf("the server was asked %v", got)
	}
}

func TestUnusableJobsGetARowAndNoRetry(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start(worker.Options{})
	for _, tt := range []struct{ name, payload, says string }{
		{"a payload that does not decode", `{"server":`, "the payload is not JSON"},
		{"an empty payload", ``, "the payload is empty"},
		{"a misspelt field", `{"server":"docs","tool":"search","args":{}}`, `field "args" of the payload is unknown`},
		{"arguments that are no object", `{"server":"docs","tool":"search","arguments":[1]}`, "arguments must be a JSON object"},
		{"a tool name with a NUL", `{"server":"docs","tool":"a\u0000b"}`, "control characters"},
		{"arguments that nest too deep", `{"server":"docs","tool":"search","arguments":` + strings.Repeat(`{"a":`, 600) + `1` + strings.Repeat(`}`, 600) + `}`, "nest deeper than 500 levels"},
		{"a server that is no identifier", `{"server":"` + strings.Repeat("Docs ", 2000) + `","tool":"search"}`, "is no identifier"},
		{"a step id that is none", `{"server":"docs","tool":"search","step_id":"seven"}`, `step_id "seven" must be a UUID`},
		{"a run id that is none", `{"server":"docs","tool":"search","run_id":"seven"}`, `run_id "seven" must be a UUID`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			info := b.enqueue(asynq.NewTask(worker.TypeStep, []byte(tt.payload), asynq.Queue(worker.QueueAgent)))
			step := b.awaitStep(uuid.MustParse(info.ID))
			if step.FailureKind != "invalid_request" || step.Asked != "no" || !strings.Contains(step.FailureMessage, tt.says) {
				t.Errorf("the row is %s, asked %s: %s", step.FailureKind, step.Asked, step.FailureMessage)
			}
			task := b.settledTask(info)
			if task.State != asynq.TaskStateArchived || task.Retried != 0 || task.LastErr != step.FailureMessage {
				t.Errorf("the task is %s after %d tries: %s", task.State, task.Retried, task.LastErr)
			}
		})
	}
	t.Run("a task type that nobody knows", func(t *testing.T) {
		t.Parallel()
		info := b.enqueue(asynq.NewTask("agent:steps", nil))
		if task := b.settledTask(info); task.State != asynq.TaskStateArchived || !strings.Contains(task.LastErr, `"agent:steps" is none of legwork's`) {
			t.Errorf("the task is %s: %s", task.State, task.LastErr)
		}
	})
}

// A backend in another language enqueues the same JSON with a client of its own and reads the row by the task's id.
func TestPlainTasks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	b.addServer("docs", server.URL)
	b.start(worker.Options{})

	t.Run("no queue and no id of its own", func(t *testing.T) {
		t.Parallel()
		info := b.enqueue(asynq.NewTask(worker.TypeStep, []byte(`{"server":"docs","tool":"echo","arguments":{"a":1}}`)))
		if info.Queue != "default" {
			t.Fatalf("queue = %s", info.Queue)
		}
		if step := b.awaitStep(uuid.MustParse(info.ID)); step.Status != "succeeded" {
			t.Errorf("the step is %s: %s", step.Status, step.FailureMessage)
		}
	})
	t.Run("a task id that is no UUID", func(t *testing.T) {
		t.Parallel()
		info := b.enqueue(asynq.NewTask(worker.TypeStep, []byte(`{"server":"docs","tool":"echo"}`), asynq.TaskID("order-7"), asynq.Retention(time.Hour)))
		var result struct{ Step string }
		if err := json.Unmarshal(b.settledTask(info).Result, &result); err != nil {
			t.Fatal(err)
		}
		if step := b.awaitStep(uuid.MustParse(result.Step)); step.Status != "succeeded" {
			t.Errorf("the step is %s: %s", step.Status, step.FailureMessage)
		}
	})
	t.Run("a row that the backend inserted first", func(t *testing.T) {
		t.Parallel()
		id := uuid.New()
		b.exec(`insert into agent_step (id, server, tool, arguments) values ($1, 'docs', 'echo', '{"from":"row"}')`, id)
		b.step(worker.StepPayload{Server: "docs", StepID: id.String(), Arguments: json.RawMessage(`{"from":"payload"}`)})
		step := b.awaitStep(id)
		if step.Status != "succeeded" || string(step.Arguments) != `{"from":"row"}` || step.Claim != 1 {
			t.Errorf("the row is %s with claim %d and arguments %s", step.Status, step.Claim, step.Arguments)
		}
	})
}

func TestACallIsSentOnceWhateverIsDeliveredTwice(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	b.addServer("docs", server.URL)
	failing := mcptest.New(t, mcptest.Options{})
	failing.On("tools/call", mcptest.Status(500, nil, "no"))
	b.addServer("failing", failing.URL)
	b.start(worker.Options{Name: "one"})
	b.start(worker.Options{Name: "two"})

	t.Run("twenty tasks for one step", func(t *testing.T) {
		id := uuid.New()
		payload, err := json.Marshal(worker.StepPayload{Server: "docs", Tool: "echo", StepID: id.String()})
		if err != nil {
			t.Fatal(err)
		}
		var infos []*asynq.TaskInfo
		for range 20 {
			infos = append(infos, b.enqueue(asynq.NewTask(worker.TypeStep, payload, asynq.Retention(time.Hour))))
		}
		for _, info := range infos {
			if task := b.settledTask(info); task.State != asynq.TaskStateCompleted {
				t.Errorf("a task of a step that succeeded is %s: %s", task.State, task.LastErr)
			}
		}
		if got := len(server.Sent("tools/call")); got != 1 {
			t.Errorf("the server was called %d times", got)
		}
		if step := b.awaitStep(id); step.Claim != 1 {
			t.Errorf("the row was claimed %d times", step.Claim)
		}
	})
	t.Run("a failed task that is run again from the dashboard", func(t *testing.T) {
		id, info := b.step(worker.StepPayload{Server: "failing"})
		before := b.awaitStep(id)
		b.awaitTask(info, asynq.TaskStateArchived)
		if err := b.inspect.RunTask(info.Queue, info.ID); err != nil {
			t.Fatal(err)
		}
		again := b.awaitTask(info, asynq.TaskStateArchived)
		if again.LastErr != before.FailureMessage {
			t.Errorf("the second delivery says %q, want the sentence of the first", again.LastErr)
		}
		if diff := cmp.Diff(before, b.awaitStep(id)); diff != "" {
			t.Errorf("the second delivery changed the row (-before +after):\n%s", diff)
		}
		if got := len(failing.Sent("tools/call")); got != 1 {
			t.Errorf("the server was called %d times", got)
		}
	})
}

func TestAStepThatRunsElsewhereIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	held := b.heldCall(worker.Options{})
	payload, err := json.Marshal(worker.StepPayload{Server: "docs", Tool: "echo", StepID: held.step.String()})
	if err != nil {
		t.Fatal(err)
	}
	second := b.enqueue(asynq.NewTask(worker.TypeStep, payload, asynq.Retention(time.Hour)))
	running, err := b.store.Step(context.Background(), held.step)
	if err != nil || running.LeaseExpiresAt == nil || running.LeaseExpiresAt.Sub(*running.StartedAt) < mcp.DefaultBudget+worker.SettleTime {
		t.Errorf("the lease of %+v does not cover its budget and settling (%v)", running, err)
	}
	waiting := b.awaitTask(second, asynq.TaskStateRetry)
	if waiting.Retried != 0 || !strings.Contains(waiting.LastErr, "is being carried out by worker") {
		t.Errorf("the second delivery counts as try %d: %s", waiting.Retried, waiting.LastErr)
	}
	close(held.release)
	if step := b.awaitStep(held.step); step.Status != "succeeded" {
		t.Errorf("the step is %s: %s", step.Status, step.FailureMessage)
	}
	b.settledTask(held.task)
	if err := b.inspect.RunTask(second.Queue, second.ID); err != nil {
		t.Fatal(err)
	}
	if task := b.settledTask(second); task.State != asynq.TaskStateCompleted {
		t.Errorf("the second task is %s: %s", task.State, task.LastErr)
	}
	if got := len(held.server.Sent("tools/call")); got != 1 {
		t.Errorf("the server was called %d times", got)
	}
}

// asynq never delivers again what it has given up; the workers look for such steps themselves.
func TestADeadWorkersStepIsSettledWithoutItsTask(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.addServer("docs", mcptest.Nowhere(t))
	id := uuid.New()
	b.exec(`insert into agent_step (id, server, tool, arguments, status, claim, claimed_by, lease_expires_at, started_at)
		values ($1, 'docs', 'echo', '{}', 'running', 1, 'the dead one', now() - interval '1 second', now() - interval '1 minute')`, id)
	b.start(worker.Options{})
	if step := b.awaitStep(id); step.FailureKind != "interrupted" || step.Asked != "unknown" || !strings.Contains(step.FailureMessage, `"the dead one"`) {
		t.Errorf("the row is %s, asked %s: %s", step.FailureKind, step.Asked, step.FailureMessage)
	}
}

// A worker that died leaves a row that runs and a lease that ends.
func TestAnInterruptedStep(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	b.addServer("docs", server.URL)
	dead := func(t *testing.T, tool string) store.StepRequest {
		t.Helper()
		request := store.StepRequest{
			ID: uuid.New(), Server: "docs", Tool: tool, Arguments: json.RawMessage(`{}`), Worker: "the dead one", Budget: time.Millisecond,
			Job: new(time.Duration), Interrupted: func(store.Step) store.Failure { panic("nothing is interrupted yet") },
		}
		claim, err := b.store.ClaimStep(context.Background(), request)
		if err != nil || claim.Outcome != store.Claimed {
			t.Fatalf("claim = %+v, %v", claim, err)
		}
		b.await("the lease to end", func() bool { return time.Now().After(claim.Step.LeaseExpiresAt.Add(50 * time.Millisecond)) })
		return request
	}
	imported := b.catalogue("docs")
	b.start(worker.Options{})
	b.settledTask(imported)

	t.Run("is not repeated", func(t *testing.T) {
		request := dead(t, "echo")
		_, info := b.step(worker.StepPayload{Server: "docs", StepID: request.ID.String()})
		step := b.awaitStep(request.ID)
		if step.Status != "failed" || step.FailureKind != "interrupted" || step.Asked != "unknown" {
			t.Errorf("the row is %s, %s, asked %s", step.Status, step.FailureKind, step.Asked)
		}
		for _, says := range []string{`worker "the dead one" was asking server "docs" and stopped`, "was not repeated", "nobody knows whether the server acted"} {
			if !strings.Contains(step.FailureMessage, says) {
				t.Errorf("the sentence does not say %q: %s", says, step.FailureMessage)
			}
		}
		if task := b.settledTask(info); task.State != asynq.TaskStateArchived || task.LastErr != step.FailureMessage {
			t.Errorf("the task is %s: %s", task.State, task.LastErr)
		}
		if got := len(server.Sent("tools/call")); got != 0 {
			t.Errorf("the server was called %d times", got)
		}

		// The worker was not dead after all: known beats unknown.
		late, err := b.store.SettleStep(context.Background(), step, store.StepOutcome{Status: "succeeded", Result: json.RawMessage(`{"text":"late"}`), Legs: json.RawMessage(`[]`)})
		if err != nil || late.Status != "succeeded" || late.FailureKind != "" {
			t.Errorf("the late outcome was lost: %+v, %v", late, err)
		}
	})
	t.Run("is carried out again when its tool only reads", func(t *testing.T) {
		if err := b.store.SetToolEffect(context.Background(), "mcp_docs_echo", "read_only"); err != nil {
			t.Fatal(err)
		}
		request := dead(t, "echo")
		b.step(worker.StepPayload{Server: "docs", StepID: request.ID.String()})
		if step := b.awaitStep(request.ID); step.Status != "succeeded" || step.Claim != 2 {
			t.Errorf("the row is %s with claim %d: %s", step.Status, step.Claim, step.FailureMessage)
		}
	})
}

// A row that somebody deletes while its step runs takes the step's end along, and does not have it carried out anew.
func TestARowThatIsDeletedWhileItsStepRuns(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	held := b.heldCall(worker.Options{})
	b.exec(`delete from agent_step where id = $1`, held.step)
	close(held.release)
	if task := b.awaitTask(held.task, asynq.TaskStateArchived, asynq.TaskStateCompleted, asynq.TaskStateRetry); task.State != asynq.TaskStateArchived || !strings.Contains(task.LastErr, "was removed while it was carried out") {
		t.Errorf("the task is %s: %s", task.State, task.LastErr)
	}
	if got := len(held.server.Sent("tools/call")); got != 1 {
		t.Errorf("the server was called %d times", got)
	}
}

// A claim may take longer than its job: what is left then counts, and nothing is begun where that is nothing.
func TestAJobWhoseTimePassesWhileItIsClaimed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	b.addServer("docs", server.URL)
	b.exec(`create function slow_claim() returns trigger language plpgsql as $$ begin perform pg_sleep(4); return new; end $$`)
	b.exec(`create trigger slow_claim before insert on agent_step for each row execute function slow_claim()`)
	b.start(worker.Options{})
	id, _ := b.step(worker.StepPayload{Server: "docs"}, asynq.Timeout(2*time.Second))
	if step := b.awaitStep(id); step.FailureKind != "budget_spent" || step.Asked != "no" {
		t.Errorf("the step is %s, %s, asked %s: %s", step.Status, step.FailureKind, step.Asked, step.FailureMessage)
	}
	if got := len(server.Sent("tools/call")); got != 0 {
		t.Errorf("the tool was called %d times", got)
	}
}

func TestTheJobsOwnLimit(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	server.On("tools/call", mcptest.Stall)
	b.addServer("docs", server.URL)

	t.Run("passes while the job waits in the queue", func(t *testing.T) {
		id, stepTask := b.step(worker.StepPayload{Server: "docs"}, asynq.Deadline(time.Now().Add(time.Second)))
		imported := b.catalogue("docs", asynq.Deadline(time.Now().Add(time.Second)))
		time.Sleep(1100 * time.Millisecond) // asynq keeps deadlines in whole seconds of the wall clock
		b.start(worker.Options{})
		step := b.awaitStep(id)
		if step.FailureKind != "budget_spent" || step.Asked != "no" || !strings.Contains(step.FailureMessage, "waited until its own limit had passed") {
			t.Errorf("the row is %s, asked %s: %s", step.FailureKind, step.Asked, step.FailureMessage)
		}
		var errs []store.ImportError
		b.await("the import's row", func() bool {
			var err error
			if errs, err = b.store.ImportErrors(context.Background(), store.ImportErrorFilter{Server: "docs"}); err != nil {
				t.Fatal(err)
			}
			return len(errs) > 0
		})
		if errs[0].Kind != "budget_spent" || errs[0].TaskID != imported.ID {
			t.Errorf("the import's row is %+v", errs[0])
		}
		if got := server.Methods(); len(got) != 0 {
			t.Errorf("the server was asked %v", got)
		}
		// asynq would deliver both twenty-five times.
		b.awaitTask(stepTask, asynq.TaskStateArchived)
		b.awaitTask(imported, asynq.TaskStateArchived)
		if errs := b.importErrors("docs"); len(errs) != 1 {
			t.Errorf("%d rows of one import", len(errs))
		}
	})
	t.Run("tightens the budget", func(t *testing.T) {
		id, info := b.step(worker.StepPayload{Server: "docs"}, asynq.Timeout(2*time.Second))
		step := b.awaitStep(id)
		// What the claim took is off it, which shows where the machine is busy.
		if step.FailureKind != "no_answer" || !strings.Contains(step.FailureMessage, "its budget of 2 s") && !strings.Contains(step.FailureMessage, "its budget of 1.") {
			t.Errorf("the row is %s: %s", step.FailureKind, step.FailureMessage)
		}
		if step.BudgetMS == nil || *step.BudgetMS > 2000 {
			t.Errorf("budget_ms = %v, want at most 2000", step.BudgetMS)
		}
		// asynq's own limit ends at about the same moment. Where it comes first the task is delivered again, and finds the row.
		if task := b.settledTask(info); task.State != asynq.TaskStateArchived || task.LastErr != step.FailureMessage {
			t.Errorf("the task is %s after %d tries: %s", task.State, task.Retried, task.LastErr)
		}
		if got := len(server.Sent("tools/call")); got != 1 {
			t.Errorf("the server was called %d times", got)
		}
	})
}
