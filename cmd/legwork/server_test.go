package main

import (
	"encoding/json"
	"strings"
	"testing"

	"legwork/mcp"
	"legwork/mcp/mcptest"
	"legwork/store"
)

func TestServers(t *testing.T) {
	t.Parallel()
	i := withDatabase(t)
	i.run("server", "list").expect(t, exitDone, "legwork server add")
	if list := i.must("server", "list", "--json"); list != "[]\n" {
		t.Errorf("no servers are %q", list)
	}

	out := i.run("server", "add", "docs", "https://docs.example/mcp", "--credential", "env:DOCS_TOKEN")
	out.expect(t, exitDone, "no data class", "legwork server enable docs")
	if out.stdout != "server docs added\n" {
		t.Errorf("got %q", out.stdout)
	}
	i.run("server", "add", "docs", "https://docs.example/mcp").expect(t, exitFailed, "legwork server set docs")
	has(t, i.must("server", "list"), "docs", "disabled", "never imported", "https://docs.example/")

	out = i.run("server", "set", "docs", "--data-class", "internal", "--timeout", "60", "--name", "The docs")
	out.expect(t, exitDone, "it is disabled (legwork server enable docs)", "set LEGWORK_SHUTDOWN_TIMEOUT to 70 or more")
	out = i.with("LEGWORK_SHUTDOWN_TIMEOUT", "70").run("server", "enable", "docs")
	out.expect(t, exitDone)
	if out.stderr != "" {
		t.Errorf("something is still missing:\n%s", out.stderr)
	}
	has(t, i.must("server", "list"), "ready")
	has(t, i.must("server", "show", "docs"), "The docs", "env:DOCS_TOKEN, as a bearer token", "60 s, its own", "internal", "ready")
	has(t, i.must("server", "disable", "docs"), "server docs disabled")
	has(t, i.must("server", "show", "docs"), "disabled", "legwork server enable docs")

	i.must("server", "remove", "docs")
	for _, line := range []string{"show", "set --name x", "enable", "disable", "ping", "remove"} {
		command, flags, _ := strings.Cut(line, " ")
		i.run(append([]string{"server", command, "docs"}, strings.Fields(flags)...)...).
			expect(t, exitFailed, `there is no server "docs"`, "legwork server list")
	}
}

func TestServerCredentials(t *testing.T) {
	t.Parallel()
	i := withDatabase(t)
	i.must("server", "add", "docs", "https://docs.example/mcp")
	type auth struct{ credential, placement, header string }
	for _, step := range []struct {
		flags string
		want  auth
	}{
		{"--credential env:A", auth{"env:A", "bearer", ""}},
		{"--auth-header X-Api-Key", auth{"env:A", "header", "X-Api-Key"}},
		{"--credential file:/run/b", auth{"file:/run/b", "header", "X-Api-Key"}},
		{"--auth bearer", auth{"file:/run/b", "bearer", ""}},
		{"--auth header --auth-header X-B --credential env:C", auth{"env:C", "header", "X-B"}},
		{"--auth none", auth{"", "none", ""}},
		{"--credential env:D", auth{"env:D", "bearer", ""}},
		{"--credential=", auth{"", "none", ""}},
	} {
		i.must(append([]string{"server", "set", "docs"}, strings.Fields(step.flags)...)...)
		s := decode[store.Server](t, i.must("server", "show", "docs", "--json"))
		if got := (auth{s.Credential, s.AuthPlacement, s.AuthHeaderName}); got != step.want {
			t.Errorf("after %s: got %+v, want %+v", step.flags, got, step.want)
		}
	}

	// What is refused changes nothing.
	before := i.must("server", "show", "docs", "--json")
	i.run("server", "set", "docs", "--url", "ftp://docs.example", "--name", "x").expect(t, exitUsage, "http or https")
	if after := i.must("server", "show", "docs", "--json"); after != before {
		t.Errorf("it was\n%sand is\n%s", before, after)
	}
}

func TestServerFlags(t *testing.T) {
	t.Parallel()
	i := withDatabase(t)
	i.must("server", "add", "docs", "https://docs.example/mcp", "--requires-approval=false", "--timeout", "5", "--enable")
	s := decode[store.Server](t, i.must("server", "show", "docs", "--json"))
	if s.RequiresApproval || s.OperationTimeoutSeconds != 5 || !s.Enabled {
		t.Errorf("got %+v", s)
	}
	i.must("server", "set", "docs", "--url", "https://other.example/mcp", "--timeout", "0", "--requires-approval")
	s = decode[store.Server](t, i.must("server", "show", "docs", "--json"))
	if !s.RequiresApproval || s.OperationTimeoutSeconds != 0 || !s.Enabled || s.URL != "https://other.example/mcp" {
		t.Errorf("got %+v", s)
	}
	has(t, i.must("server", "show", "docs"), "20 s, the installation's (LEGWORK_MCP_OPERATION_TIMEOUT)", "no data class")
}

func TestPing(t *testing.T) {
	t.Parallel()
	i := withDatabase(t)
	server := docs(t)
	i.must("server", "add", "docs", server.URL) // disabled: an operator tries it first

	has(t, i.must("server", "ping", "docs"), "docs", "2025-11-25", "Latency", "LEG", "initialize", "ping", "200")
	s := decode[store.Server](t, i.must("server", "show", "docs", "--json"))
	if s.LastContactAt == nil || s.LastLatencyMS == nil || s.ProtocolVersion != "2025-11-25" {
		t.Errorf("the contact was not recorded: %+v", s)
	}
	if open := server.OpenSessions(); open != 0 {
		t.Errorf("%d sessions were left open", open)
	}
	type answer struct {
		Info    *mcp.ServerInfo
		Legs    []mcp.Leg
		Failure *struct{ Kind, Asked, Message string }
	}
	if got := decode[answer](t, i.must("server", "ping", "docs", "--json")); got.Info == nil || len(got.Legs) != 3 || got.Failure != nil {
		t.Errorf("got %+v", got)
	}

	server.On("ping", mcptest.Error(-32000, "not today"))
	out := i.run("server", "ping", "docs")
	out.expect(t, exitFailed, "not today", "docs")
	has(t, out.stdout, "initialize", "rpc_error")
	if !strings.HasPrefix(out.stdout, "LEG ") || !strings.HasPrefix(out.stderr, "JSON-RPC error: ") {
		t.Errorf("stdout begins with %q, stderr with %q", out.stdout, out.stderr)
	}
	said := out.stderr
	out = i.run("server", "ping", "docs", "--json")
	out.expect(t, exitFailed, "not today")
	if out.stderr != said {
		t.Errorf("with --json it says %q, and without %q", out.stderr, said)
	}
	if got := decode[answer](t, out.stdout); got.Info != nil || got.Failure == nil || got.Failure.Kind != "rpc_error" || got.Failure.Asked != "yes" {
		t.Errorf("got %s", out.stdout)
	}

	// The gate stands before a ping too.
	i.with("LEGWORK_ALLOW_PRIVATE_NETWORKS", "false").run("server", "ping", "docs").expect(t, exitFailed, "LEGWORK_ALLOW_PRIVATE_NETWORKS")
	i.with("LEGWORK_ALLOW_PRIVATE_NETWORKS", "false").with("LEGWORK_ALLOWED_HOSTS", "127.0.0.0/8").
		run("server", "ping", "docs").expect(t, exitFailed, "not today")
}

func TestPingIsInterrupted(t *testing.T) {
	t.Parallel()
	i := withDatabase(t).with("LEGWORK_MCP_OPERATION_TIMEOUT", "86400")
	server := docs(t)
	server.On("initialize", mcptest.Stall)
	i.must("server", "add", "docs", server.URL)
	ping := i.start("server", "ping", "docs")
	server.Await(t, "initialize", 1)
	ping.interrupt()
	if code := ping.end(t); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	has(t, ping.stderr.String(), "interrupted")
}

func TestImports(t *testing.T) {
	t.Parallel()
	i := installed(t)
	server := docs(t)
	i.add("docs", server.URL)
	i.add("fax", mcptest.Nowhere(t))
	i.must("server", "add", "idle", "https://idle.example/mcp")
	i.run("tool", "list").expect(t, exitDone, "legwork import --all --wait")
	i.run("import-error", "list").expect(t, exitDone, "no import errors")

	id := strings.TrimSpace(i.must("import", "docs"))
	i.worker()
	until(t, func() bool { return strings.Contains(i.must("tool", "list"), "mcp_docs_search") })
	if id == "" || strings.ContainsAny(id, " \n") {
		t.Errorf("stdout was %q, want a task's id", id)
	}

	// A tool vanishes, one comes and one is no good.
	server.SetTools(
		mcptest.Tool{Name: "search", Description: "finds pages"},
		mcptest.Tool{Name: "index"},
		mcptest.Tool{Name: "broken", Entry: json.RawMessage(`{"name":"broken","inputSchema":"none"}`)},
	)
	out := i.run("import", "docs", "--wait", "--json")
	out.expect(t, exitDone, "legwork import-error list")
	reports := decode[[]importing](t, out.stdout)
	if len(reports) != 1 || reports[0].Report == nil || *reports[0].Report != (store.ImportReport{Imported: 1, Unchanged: 1, Skipped: 1, Orphaned: 1}) {
		t.Errorf("got %s", out.stdout)
	}
	has(t, i.must("import-error", "list", "docs"), "tool_skipped", "broken")
	has(t, i.must("tool", "list", "docs"), "gone since", "mcp_docs_index")

	out = i.run("import", "--all", "--wait")
	out.expect(t, exitFailed, "idle is left out", `Unreachable`, `"fax"`)
	has(t, out.stdout, "SERVER", "docs", "succeeded", "fax", "failed", "unreachable")
	errors := decode[[]store.ImportError](t, i.must("import-error", "list", "fax", "--json"))
	if len(errors) != 1 || errors[0].Kind != "unreachable" {
		t.Fatalf("got %+v", errors)
	}
	has(t, i.must("import-error", "list", "--full"), errors[0].Message, "no: the server was not asked", "initialize", "broken")
	has(t, i.must("server", "show", "fax"), "unreachable", errors[0].Message)
	has(t, i.must("server", "list"), "fax", "error", "unreachable", "partial")

	i.must("server", "remove", "fax")
	has(t, i.must("import-error", "list", "fax"), "unreachable") // its history stays
	i.run("import-error", "list", "idle").expect(t, exitDone, "no import errors")
	for _, flag := range []string{"--limit=5", "--json"} {
		i.run("import-error", "list", "dcos", flag).expect(t, exitFailed, `there is no server "dcos"`, "legwork server list")
	}

	i.run("import", "idle").expect(t, exitFailed, "legwork server enable idle")
	i.run("import", "dcos").expect(t, exitFailed, `no server "dcos"`)
	has(t, i.must("import", "--all"), "SERVER", "TASK", "docs")
}

func TestImportOfNothing(t *testing.T) {
	t.Parallel()
	i := withDatabase(t)
	i.must("server", "add", "idle", "https://idle.example/mcp")
	for _, flags := range [][]string{{"--wait"}, {"--json"}, {"--json", "--wait"}} {
		out := i.run(append([]string{"import", "--all"}, flags...)...)
		out.expect(t, exitDone, "idle is left out", "legwork server add")
		want := ""
		if flags[0] == "--json" {
			want = "[]\n"
		}
		if out.stdout != want {
			t.Errorf("%v: got %q, want %q", flags, out.stdout, want)
		}
	}
}

func TestTools(t *testing.T) {
	t.Parallel()
	i := installed(t)
	i.add("docs", docs(t).URL)
	i.worker()
	has(t, i.must("import", "docs", "--wait"), "docs", "succeeded")

	has(t, i.must("tool", "enable", "mcp_docs_search", "mcp_docs_fail"), "mcp_docs_search enabled", "mcp_docs_fail enabled")
	has(t, i.must("tool", "disable", "mcp_docs_fail"), "mcp_docs_fail disabled")
	has(t, i.must("tool", "set-effect", "mcp_docs_search", "read-only"), "mcp_docs_search is read_only")
	for _, tool := range decode[[]store.Tool](t, i.must("tool", "list", "docs", "--json")) {
		want := map[string]store.Tool{
			"mcp_docs_search": {Enabled: true, Effect: "read_only"},
			"mcp_docs_fail":   {Enabled: false, Effect: "non_idempotent_write"},
		}[tool.Name]
		if tool.Enabled != want.Enabled || tool.Effect != want.Effect {
			t.Errorf("got %+v, want %+v", tool, want)
		}
	}
	i.run("tool", "enable", "mcp_docs_serach").expect(t, exitFailed, `no tool "mcp_docs_serach"`, "legwork tool list")
	i.run("tool", "list", "dcos").expect(t, exitFailed, `no server "dcos"`)
}
