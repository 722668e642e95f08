package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"legwork/mcp"
	"legwork/mcp/mcptest"
	"legwork/store"
)

func TestCallAndWait(t *testing.T) {
	t.Parallel()
	i := installed(t)
	server := docs(t)
	i.add("docs", server.URL)
	i.worker()

	out := i.run("call", "docs", "search", "--args", `{"n": 9007199254740993, "b":1, "a":2}`, "--wait")
	out.expect(t, exitDone, "step ")
	if want := "found {\"n\":9007199254740993,\"b\":1,\"a\":2}\n"; out.stdout != want {
		t.Errorf("got %q, want %q", out.stdout, want)
	}

	steps := decode[[]store.Step](t, i.must("step", "list", "--json"))
	if len(steps) != 1 || steps[0].Status != "succeeded" {
		t.Fatalf("got %+v", steps)
	}
	id := steps[0].ID.String()
	has(t, i.must("step", "show", id), id, "succeeded", "docs", "search", "tools/call", "200", "9007199254740993", "found {")
	has(t, i.must("step", "list"), "STEP", id, "succeeded", "search", "ago")
	if got := decode[store.Step](t, i.must("step", "show", id, "--json")); got.ID.String() != id {
		t.Errorf("got %+v", got)
	}
}

func TestCallThatFails(t *testing.T) {
	t.Parallel()
	i := installed(t)
	i.add("docs", docs(t).URL)
	i.add("fax", mcptest.Nowhere(t))
	i.worker()

	out := i.run("call", "fax", "send", "--wait")
	out.expect(t, exitFailed, "fax", "\n\nMore: legwork step show ")
	steps := decode[[]store.Step](t, i.must("step", "list", "--server", "fax", "--json"))
	if len(steps) != 1 || steps[0].FailureKind != string(mcp.KindUnreachable) {
		t.Fatalf("got %+v", steps)
	}
	// The sentence is shown whole, and as it stands in the row.
	out.expect(t, exitFailed, steps[0].FailureMessage)
	has(t, i.must("step", "show", steps[0].ID.String()), "unreachable", steps[0].FailureMessage, "no: the server was not asked", "server/discover")
	has(t, i.must("step", "list", "--status", "failed"), "unreachable", "fax")

	out = i.run("call", "docs", "fail", "--wait", "--json")
	out.expect(t, exitFailed, "the index is gone")
	if got := decode[store.Step](t, out.stdout); got.FailureKind != string(mcp.KindToolError) || got.Asked != "yes" {
		t.Errorf("got %+v", got)
	}
}

// Steps outlive their server; a name that nobody ever had is a slip.
func TestStepsOfWhatIsNotThere(t *testing.T) {
	t.Parallel()
	i := installed(t)
	i.add("docs", docs(t).URL)
	i.worker()
	i.must("call", "docs", "search", "--wait")
	i.must("server", "remove", "docs")
	has(t, i.must("step", "list", "--server", "docs"), "succeeded")
	if list := i.must("step", "list", "--server", "docs", "--status", "failed", "--json"); list != "[]\n" {
		t.Errorf("got %s", list)
	}
	for _, flag := range []string{"--limit=5", "--json", "--status=failed"} {
		out := i.run("step", "list", "--server", "dcos", flag)
		out.expect(t, exitFailed, `there is no server "dcos"`, "legwork server list")
		if out.stdout != "" {
			t.Errorf("%s: got %s", flag, out.stdout)
		}
	}
	i.run("step", "list", "--run", uuid.NewString()).expect(t, exitFailed, "there is no run ")
}

func TestCallWithoutWaiting(t *testing.T) {
	t.Parallel()
	i := installed(t)
	i.add("docs", docs(t).URL)
	run := uuid.NewString()

	out := i.run("call", "docs", "search", "--run", run)
	out.expect(t, exitDone)
	id := strings.TrimSuffix(out.stdout, "\n")
	if _, err := uuid.Parse(id); err != nil {
		t.Fatalf("stdout is %q, want a step's id and nothing else", out.stdout)
	}
	i.run("step", "show", id).expect(t, exitFailed, "no worker has taken")
	answer := decode[map[string]string](t, i.must("call", "docs", "search", "--json"))
	if _, err := uuid.Parse(answer["step_id"]); err != nil {
		t.Errorf("got %v", answer)
	}

	i.worker()
	until(t, func() bool { return i.run("step", "show", id).code == exitDone })
	until(t, func() bool { return strings.Contains(i.must("run", "show", run), "succeeded") })
	has(t, i.must("run", "show", run), run, "running", id)

	i.run("run", "cancel", run).expect(t, exitDone)
	i.run("run", "cancel", run).expect(t, exitFailed, "cancelled by ada before")
	has(t, i.must("run", "show", run, "--json"), `"cancelled_by": "ada"`, `"steps": [`)
	out = i.run("call", "docs", "search", "--run", run, "--wait")
	out.expect(t, exitFailed, "cancelled by")
}

func TestRuns(t *testing.T) {
	t.Parallel()
	i := installed(t)
	i.run("run", "list").expect(t, exitDone, "no runs yet")
	if list := i.must("run", "list", "--json"); list != "[]\n" {
		t.Errorf("no runs are %q", list)
	}
	i.add("docs", docs(t).URL)
	i.worker()
	first, second := uuid.NewString(), uuid.NewString()
	i.must("call", "docs", "search", "--run", first, "--args", `{"n":1}`, "--wait")
	i.must("call", "docs", "search", "--run", second, "--wait")
	i.must("call", "docs", "search", "--run", first, "--args", `{"n":2}`, "--wait")

	runs := decode[[]store.Run](t, i.must("run", "list", "--json"))
	if len(runs) != 2 || runs[0].ID.String() != second || runs[1].ID.String() != first {
		t.Errorf("got %+v, want the newest first", runs)
	}
	list := i.must("run", "list", "--limit", "1")
	has(t, list, "RUN", second, "running", "ago")
	if strings.Contains(list, first) {
		t.Errorf("--limit 1 lists more:\n%s", list)
	}
	shown := decode[struct {
		Steps []struct{ Arguments struct{ N int } }
	}](t, i.must("run", "show", first, "--json"))
	if len(shown.Steps) != 2 || shown.Steps[0].Arguments.N != 1 || shown.Steps[1].Arguments.N != 2 {
		t.Errorf("got %+v, want the steps in the order in which they were created", shown.Steps)
	}
}

// Budgets past asynq's own limit of half an hour, and past what a duration holds, are nobody's to tighten.
func TestLongBudgets(t *testing.T) {
	t.Parallel()
	i := installed(t).with("LEGWORK_MCP_OPERATION_TIMEOUT", "1e300")
	i.add("docs", docs(t).URL)
	i.add("slow", docs(t).URL, "--timeout", "7200")
	i.worker()
	step := decode[store.Step](t, i.must("call", "slow", "search", "--wait", "--json"))
	if step.BudgetMS == nil || *step.BudgetMS != 7200_000 {
		t.Errorf("got %+v", step)
	}
	has(t, i.must("call", "docs", "search", "--wait"), "found")
	has(t, i.must("import", "docs", "--wait"), "succeeded")
	has(t, i.must("server", "ping", "docs"), "of no end")
	has(t, i.must("server", "show", "docs"), "no end, the installation's")
}

func TestNobodyTakesACall(t *testing.T) {
	t.Parallel()
	i := installed(t)
	i.add("docs", docs(t).URL)
	waiting := i.start("call", "docs", "search", "--wait")
	waiting.says(t, "in the queue")
	waiting.says(t, `is "legwork worker" running?`)
	waiting.interrupt()
	if code := waiting.end(t); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	waiting.says(t, "legwork step show ")

	// The job was left where it was.
	i.worker()
	until(t, func() bool { return strings.Contains(i.must("step", "list"), "succeeded") })
}

func TestAWaitEnds(t *testing.T) {
	t.Parallel()
	i := installed(t)
	i.add("docs", docs(t).URL)
	i.run("call", "docs", "search", "--wait", "--wait-timeout", "200ms").expect(t, exitFailed, "not done within 0.2 s", "legwork step show ")
	i.run("import", "docs", "--wait", "--wait-timeout", "200ms").expect(t, exitFailed, "not done within 0.2 s", "legwork server list")
}

func TestArguments(t *testing.T) {
	t.Parallel()
	i := installed(t)
	i.add("docs", docs(t).URL)
	i.worker()
	file := filepath.Join(t.TempDir(), "arguments.json")
	if err := os.WriteFile(file, []byte("\ufeff{\"from\":\"file\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	has(t, i.must("call", "docs", "search", "--wait", "--args", "@"+file), `found {"from":"file"}`)
	out := i.runWith(`{"from":"stdin"}`, "call", "docs", "search", "--wait", "--args", "-")
	out.expect(t, exitDone)
	has(t, out.stdout, `found {"from":"stdin"}`)
	has(t, i.must("call", "docs", "search", "--wait"), `found {}`)
}

func TestBadCalls(t *testing.T) {
	t.Parallel()
	i := withDatabase(t)
	i.must("server", "add", "docs", "https://docs.example/mcp", "--data-class", "test")
	for name, row := range map[string]struct {
		args []string
		code int
		says string
	}{
		"arguments that are a list":       {[]string{"docs", "search", "--args", "[1]"}, exitUsage, "must be a JSON object"},
		"arguments that are null":         {[]string{"docs", "search", "--args", "null"}, exitUsage, "must be a JSON object"},
		"arguments that are no JSON":      {[]string{"docs", "search", "--args", `{"a":}`}, exitUsage, "at byte 6"},
		"arguments with more behind":      {[]string{"docs", "search", "--args", `{} {}`}, exitUsage, "not JSON"},
		"empty arguments":                 {[]string{"docs", "search", "--args", ""}, exitUsage, "{} for no arguments"},
		"empty stdin":                     {[]string{"docs", "search", "--args", "-"}, exitUsage, "stdin, for --args, is empty"},
		"a file that is not there":        {[]string{"docs", "search", "--args", "@/nowhere/a.json"}, exitUsage, "no such file"},
		"a run that is no UUID":           {[]string{"docs", "search", "--run", "first"}, exitUsage, "must be a UUID"},
		"a tool that is a control":        {[]string{"docs", "a\x00b"}, exitUsage, "control characters"},
		"no tool":                         {[]string{"docs"}, exitUsage, `"legwork call SERVER TOOL"`},
		"a negative time to wait":         {[]string{"docs", "search", "--wait-timeout", "-1s"}, exitUsage, "--wait-timeout"},
		"a server that is not configured": {[]string{"dcos", "search"}, exitFailed, `no server "dcos"`},
		"a server that is disabled":       {[]string{"docs", "search"}, exitFailed, "legwork server enable docs"},
	} {
		out := i.run(append([]string{"call"}, row.args...)...)
		if out.code != row.code || !strings.Contains(out.stderr, row.says) {
			t.Errorf("%s: exit code %d, want %d, and %q in:\n%s", name, out.code, row.code, row.says, out.stderr)
		}
	}
}
