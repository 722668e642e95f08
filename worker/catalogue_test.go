package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hibiken/asynq"
	"github.com/sirupsen/logrus"

	"legwork/mcp/mcptest"
	"legwork/store"
	"legwork/worker"
)

func (b *bench) tools(server string) []store.Tool {
	b.t.Helper()
	tools, err := b.store.Tools(context.Background(), server)
	if err != nil {
		b.t.Fatal(err)
	}
	return tools
}

func (b *bench) importErrors(server string) []store.ImportError {
	b.t.Helper()
	errs, err := b.store.ImportErrors(context.Background(), store.ImportErrorFilter{Server: server})
	if err != nil {
		b.t.Fatal(err)
	}
	return errs
}

func page(tools ...string) mcptest.Behaviour {
	return mcptest.Result(`{"tools":[` + strings.Join(tools, ",") + `]}`)
}

func named(name string) string {
	return fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, name)
}

func TestACatalogueFromTaskToRows(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := context.Background()
	server := mcptest.New(t, mcptest.Options{})
	schema := `{"type":"object",  "properties":{"n":{"maximum":9007199254740993}}}`
	server.On("tools/list", mcptest.InTurn(
		mcptest.Result(`{"tools":[{"name":"search","title":"Search","description":"finds","inputSchema":`+schema+`,"annotations":{"readOnlyHint":true}}],"nextCursor":"2"}`),
		page(named("files/read.v2"), `null`, named("search")),
	))
	b.addServer("docs", server.URL)
	b.start(worker.Options{})
	report := func(info *asynq.TaskInfo) store.ImportReport {
		t.Helper()
		var result struct {
			Status   string
			Sentence string
			Report   *store.ImportReport
		}
		task := b.settledTask(info)
		if err := json.Unmarshal(task.Result, &result); err != nil || result.Report == nil {
			t.Fatalf("the dashboard's result is %s (%v)", task.Result, err)
		}
		return *result.Report
	}

	if diff := cmp.Diff(store.ImportReport{Imported: 2, Skipped: 2}, report(b.catalogue("docs"))); diff != "" {
		t.Errorf("the first import (-want +got):\n%s", diff)
	}
	tools := b.tools("docs")
	if len(tools) != 2 {
		t.Fatalf("tools = %+v", tools)
	}
	for _, tool := range tools {
		switch tool.RemoteName {
		case "search":
			if tool.Name != "mcp_docs_search" || string(tool.InputSchema) != schema || tool.Title != "Search" || tool.Enabled || tool.Effect != "non_idempotent_write" {
				t.Errorf("search = %+v", tool)
			}
		case "files/read.v2":
			if !strings.HasPrefix(tool.Name, "mcp_docs_files_read_v2_") {
				t.Errorf("local name = %s", tool.Name)
			}
		default:
			t.Errorf("unexpected tool %+v", tool)
		}
	}
	row, err := b.store.Server(ctx, "docs")
	if err != nil || row.ImportStatus != "partial" || row.ToolCount != 2 || row.LastImportedAt == nil {
		t.Errorf("server = %+v, %v", row, err)
	}
	for _, e := range b.importErrors("docs") {
		if e.Kind != "tool_skipped" || e.Message == "" {
			t.Errorf("import error = %+v", e)
		}
	}

	// The operator's settings outlive the tool.
	if err := b.store.SetToolEnabled(ctx, "mcp_docs_search", true); err != nil {
		t.Fatal(err)
	}
	if err := b.store.SetToolEffect(ctx, "mcp_docs_search", "read_only"); err != nil {
		t.Fatal(err)
	}
	server.On("tools/list", page(named("files/read.v2")))
	if diff := cmp.Diff(store.ImportReport{Unchanged: 1, Orphaned: 1}, report(b.catalogue("docs"))); diff != "" {
		t.Errorf("the second import (-want +got):\n%s", diff)
	}
	server.On("tools/list", page(named("search"), named("files/read.v2")))
	got := report(b.catalogue("docs"))
	if got.Revived != 1 || got.Orphaned != 0 || got.Imported != 0 {
		t.Errorf("the third import: %+v", got)
	}
	revived, err := b.store.Tool(ctx, "mcp_docs_search")
	if err != nil || revived.OrphanedAt != nil || !revived.Enabled || revived.Effect != "read_only" {
		t.Errorf("the tool that returned: %+v, %v", revived, err)
	}
	if row, err := b.store.Server(ctx, "docs"); err != nil || row.ImportStatus != "ok" {
		t.Errorf("server = %+v, %v", row, err)
	}
}

// What a model cannot be offered, and what nobody can call, is imported like the rest, and the rows say why.
func TestWhatAnImportFindsOutForModels(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	server.On("tools/list", page(
		`{"name":"search","inputSchema":{"$schema":"x","properties":{"q":{"$ref":"#/$defs/Q"}},"$defs":{"Q":{"type":"string"}}}}`,
		`{"name":"either","inputSchema":{"type":"object","anyOf":[{"required":["a"]},{"required":["b"]}]}}`,
		`{"name":"slow","inputSchema":{"type":"object"},"execution":{"taskSupport":"required"}}`,
	))
	b.addServer("docs", server.URL)
	b.start(worker.Options{})
	report := func() (report store.ImportReport) {
		t.Helper()
		result := struct{ Report *store.ImportReport }{&report}
		if task := b.settledTask(b.catalogue("docs")); json.Unmarshal(task.Result, &result) != nil || task.State != asynq.TaskStateCompleted {
			t.Fatalf("the task is %s, and its result %s", task.State, task.Result)
		}
		return report
	}
	versions := func() (versions []string) {
		t.Helper()
		if err := b.sql.QueryRow(context.Background(), `select array_agg(name || ' ' || xmin::text || ' ' || ctid::text order by name) from mcp_tool`).Scan(&versions); err != nil {
			t.Fatal(err)
		}
		return versions
	}

	if diff := cmp.Diff(store.ImportReport{Imported: 3}, report()); diff != "" {
		t.Errorf("the first import (-want +got):\n%s", diff)
	}
	const task = `it runs only as a task (execution.taskSupport "required"), which legwork does not do`
	want := map[string]string{
		"search": `{"type":"object","properties":{"q":{"type":"string"}}}||`,
		"either": `|its keyword "anyOf" at the root is refused by model APIs|`,
		"slow":   `|` + task + `|` + task,
	}
	got := map[string]string{}
	for _, tool := range b.tools("docs") {
		got[tool.RemoteName] = string(tool.ModelSchema) + "|" + tool.NotOffered + "|" + tool.NotCallable
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the rows (-want +got):\n%s", diff)
	}
	if errs := b.importErrors("docs"); len(errs) != 0 {
		t.Errorf("they count as errors of the import: %+v", errs)
	}
	if row, err := b.store.Server(context.Background(), "docs"); err != nil || row.ImportStatus != "ok" || row.ToolCount != 3 {
		t.Errorf("server = %+v, %v", row, err)
	}

	before := versions()
	if diff := cmp.Diff(store.ImportReport{Unchanged: 3}, report()); diff != "" {
		t.Errorf("the second import (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, versions()); diff != "" {
		t.Errorf("it wrote rows (-before +after):\n%s", diff)
	}
}

func TestToolsWithoutAnInputSchemaAreNamedInTheLog(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	server.On("tools/list", page(named("search"), `{"name":"none"}`, `{"name":"null","inputSchema":null}`))
	b.addServer("docs", server.URL)
	b.start(worker.Options{})
	b.settledTask(b.catalogue("docs"))
	const want = `2 tools came without an input schema and are taken to accept any object: ["none" "null"]`
	b.await("the warning", func() bool {
		return slices.ContainsFunc(b.lines.AllEntries(), func(e *logrus.Entry) bool {
			return e.Level == logrus.WarnLevel && e.Message == want && e.Data["server"] == "docs"
		})
	})
	for _, tool := range b.tools("docs") {
		if tool.RemoteName != "search" && string(tool.InputSchema) != `{"type":"object"}` {
			t.Errorf("tool %q has schema %s", tool.RemoteName, tool.InputSchema)
		}
	}
}

func TestAnImportThatFailsLeavesTheCatalogueAsItWas(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := context.Background()
	server := mcptest.New(t, mcptest.Options{})
	b.addServer("docs", server.URL, budget(2))
	b.start(worker.Options{})
	b.settledTask(b.catalogue("docs"))
	before := b.tools("docs")
	if len(before) == 0 {
		t.Fatal("nothing was imported")
	}

	for _, tt := range []struct {
		name      string
		behaviour mcptest.Behaviour
		kind      string
		asked     string
		says      string
	}{
		{"the second page fails", mcptest.InTurn(mcptest.Result(`{"tools":[`+named("new")+`],"nextCursor":"2"}`), mcptest.Status(500, nil, "no")), "http_status", "yes", "HTTP 500"},
		{"the second page never comes", mcptest.InTurn(mcptest.Result(`{"tools":[`+named("new")+`],"nextCursor":"2"}`), mcptest.Stall), "no_answer", "unknown", "tools/list"},
		{"pages without end", mcptest.EndlessPages(), "malformed_response", "yes", "more than 50 pages"},
		{"a cursor that leads back", mcptest.Result(`{"tools":[],"nextCursor":"same"}`), "malformed_response", "yes", "has no end"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server.On("tools/list", tt.behaviour)
			known := len(b.importErrors("docs"))
			info := b.catalogue("docs")
			task := b.settledTask(info)
			errs := b.importErrors("docs")
			if len(errs) != known+1 {
				t.Fatalf("%d new import errors, want one", len(errs)-known)
			}
			e := errs[0]
			if e.Kind != tt.kind || e.Asked != tt.asked || !strings.Contains(e.Message, tt.says) || e.TaskID != info.ID || e.BudgetMS == nil || *e.BudgetMS != 2000 {
				t.Errorf("the row is %+v", e)
			}
			if len(legsOf(t, e.Legs)) < 3 {
				t.Errorf("legs = %s", e.Legs)
			}
			if task.State != asynq.TaskStateArchived || task.Retried != 0 || task.LastErr != e.Message {
				t.Errorf("the task is %s after %d tries: %s", task.State, task.Retried, task.LastErr)
			}
			if diff := cmp.Diff(before, b.tools("docs")); diff != "" {
				t.Errorf("the catalogue changed (-before +after):\n%s", diff)
			}
			overview, err := b.store.Servers(ctx)
			if err != nil || len(overview) != 1 || overview[0].ImportStatus != "error" || overview[0].LatestErrorMessage != e.Message {
				t.Errorf("overview = %+v, %v", overview, err)
			}
		})
	}

	server.On("tools/list", nil)
	b.settledTask(b.catalogue("docs"))
	overview, err := b.store.Servers(ctx)
	if err != nil || overview[0].ImportStatus != "ok" || overview[0].LatestErrorMessage != "" {
		t.Errorf("the error stands in the overview after an import that went well: %+v, %v", overview, err)
	}
	if diff := cmp.Diff(before, b.tools("docs"), cmpopts.IgnoreFields(store.Tool{}, "UpdatedAt")); diff != "" {
		t.Errorf("the catalogue changed (-before +after):\n%s", diff)
	}
}

func TestImportsThatCannotBegin(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.addServer("asleep", mcptest.Nowhere(t), func(s *store.Server) { s.Enabled = false })
	b.start(worker.Options{})
	for _, tt := range []struct{ name, payload, server, says string }{
		{"a server that nobody added", `{"server":"nobody"}`, "nobody", `there is no server "nobody"`},
		{"a server that is disabled", `{"server":"asleep"}`, "asleep", "legwork server enable asleep"},
		{"a payload that does not decode", `docs`, "", "the payload is not JSON"},
		{"a server that is no identifier", `{"server":"` + strings.Repeat("docs/", 2000) + `"}`, strings.Repeat("docs/", 20) + "…", "is no identifier"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			info := b.enqueue(asynq.NewTask(worker.TypeImport, []byte(tt.payload), asynq.Queue(worker.QueueImport)))
			task := b.settledTask(info)
			if task.State != asynq.TaskStateArchived || task.Retried != 0 || !strings.Contains(task.LastErr, tt.says) {
				t.Errorf("the task is %s after %d tries: %s", task.State, task.Retried, task.LastErr)
			}
			for _, e := range b.importErrors(tt.server) {
				if e.TaskID != info.ID {
					continue
				}
				if e.Kind != "invalid_request" || e.Asked != "no" || e.Message != task.LastErr {
					t.Errorf("the row is %+v", e)
				}
				return
			}
			t.Error("the import left no row")
		})
	}
}

func TestTwoImportsOfOneServerNeverRunAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	release := make(chan struct{})
	server.On("tools/list", mcptest.Hold(release))
	b.addServer("docs", server.URL)
	b.start(worker.Options{})

	first := b.catalogue("docs")
	asked := len(server.Await(t, "tools/list", 2)) // the one that shows the era, and the one that is held
	second := b.catalogue("docs")
	waiting := b.awaitTask(second, asynq.TaskStateRetry)
	if waiting.Retried != 0 || !strings.Contains(waiting.LastErr, "being imported already") {
		t.Errorf("the second import counts as try %d: %s", waiting.Retried, waiting.LastErr)
	}
	if got := len(server.Sent("tools/list")); got != asked {
		t.Errorf("the server was asked for its tools %d times, want %d", got, asked)
	}
	close(release)
	b.settledTask(first)
	if err := b.inspect.RunTask(second.Queue, second.ID); err != nil {
		t.Fatal(err)
	}
	if task := b.settledTask(second); task.State != asynq.TaskStateCompleted {
		t.Errorf("the second import is %s: %s", task.State, task.LastErr)
	}
}

// Postgres is away between the answer and the settling, for longer than a settle is tried for. Sent back, a job without
// further tries would be put away as not written down, and any other would import once more.
func TestAnImportStaysUntilItIsWrittenDown(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	release := make(chan struct{})
	server.On("tools/list", mcptest.Hold(release))
	b.addServer("docs", server.URL)
	b.addServer("crm", server.URL)
	b.start(worker.Options{})
	imports := []*asynq.TaskInfo{b.catalogue("docs", asynq.MaxRetry(0)), b.catalogue("crm")}
	server.Await(t, "tools/list", 4) // two that show the era, and two that are held
	restore := b.cutOff()
	close(release)
	b.await("both to be kept", func() bool { return b.said("a task is kept here until its outcome is written down") == 2 })
	asked := len(server.Sent("tools/list"))
	restore()
	for _, info := range imports {
		if task := b.settledTask(info); task.State != asynq.TaskStateCompleted {
			t.Errorf("the import is %s: %s", task.State, task.LastErr)
		}
	}
	if got := len(server.Sent("tools/list")); got != asked {
		t.Errorf("the servers were asked %d times more", got-asked)
	}
}

func TestContactsAreWrittenAtMostOnceASecond(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	b.addServer("docs", server.URL)
	b.exec(`create table written (at timestamptz)`)
	b.exec(`create function note_write() returns trigger language plpgsql as 'begin insert into written values (clock_timestamp()); return null; end'`)
	b.exec(`create trigger note_write after update on mcp_server for each row execute function note_write()`)
	stop := b.start(worker.Options{})
	started := time.Now()
	for range 50 {
		b.step(worker.StepPayload{Server: "docs"})
	}
	b.await("fifty steps to end", func() bool {
		steps, err := b.store.Steps(context.Background(), store.StepFilter{Server: "docs", Status: "succeeded", Limit: 100})
		return err == nil && len(steps) == 50
	})
	stop()
	took := time.Since(started)
	row, err := b.store.Server(context.Background(), "docs")
	if err != nil || row.LastContactAt == nil || row.ProtocolVersion != "2025-11-25" {
		t.Fatalf("server = %+v, %v", row, err)
	}
	var writes int
	if err := b.sql.QueryRow(context.Background(), `select count(*) from written`).Scan(&writes); err != nil {
		t.Fatal(err)
	}
	// The shortest time that two writes can be apart is a second, and the last comes at the end.
	if writes == 0 || writes > int(took/time.Second)+2 {
		t.Errorf("the server's row was written %d times in %s", writes, took)
	}
}
