package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"legwork/mcp/mcptest"
	"legwork/store"
)

// gaps are what a sheet fills up to its second column with.
var gaps = regexp.MustCompile(` {2,}`)

func TestWhatModelsAreOffered(t *testing.T) {
	t.Parallel()
	i := installed(t)
	server := mcptest.New(t, mcptest.Options{Tools: []mcptest.Tool{
		{Name: "search", Title: "Search", Description: "finds pages\nin all of \x1b[31mthem", Annotations: json.RawMessage(`{"readOnlyHint":true}`),
			InputSchema: json.RawMessage(`{"properties":{"n":{"$ref":"#/$defs/N"}},"$defs":{"N":{"maximum":9007199254740993}}}`)},
		{Name: "either", InputSchema: json.RawMessage(`{"type":"object","oneOf":[{"required":["a"]},{"required":["b"]}]}`)},
		{Name: "slow", Entry: json.RawMessage(`{"name":"slow","inputSchema":{"type":"object"},"execution":{"taskSupport":"required"}}`)},
	}})
	i.add("docs", server.URL)
	i.worker()
	out := i.run("import", "docs", "--wait")
	out.expect(t, exitDone)
	if strings.Contains(out.stderr, "skipped") {
		t.Errorf("tools that are not offered count as skipped:\n%s", out.stderr)
	}

	const refused, task = `its keyword "oneOf" at the root is refused by model APIs`, `it runs only as a task (execution.taskSupport "required"), which legwork does not do`
	for name, want := range map[string]struct {
		hint, state string
		shows       []string
		lacks       []string
	}{
		"mcp_docs_search": {
			"", "enabled", []string{"\nServer ", "\nName there  search\n", "\nTitle ", "non_idempotent_write", "\n\nDescription\nfinds pages\nin all of", "readOnlyHint", `"$defs": {`,
				"\n\nInput schema as a model is given it\n{\n  \"type\": \"object\",", `"maximum": 9007199254740993`},
			[]string{"Not offered", "Not callable", "\x1b"},
		},
		"mcp_docs_either": {
			"no model is offered mcp_docs_either all the same: " + refused, "enabled, not offered", []string{"\nNot offered  " + refused + "\n", `"oneOf": [`},
			[]string{"Not callable", "as a model is given it"},
		},
		"mcp_docs_slow": {
			"no model is offered mcp_docs_slow all the same: " + task, "enabled, not callable", []string{"\nNot callable  " + task + "\n"},
			[]string{"Not offered", "as a model is given it"},
		},
	} {
		out := i.run("tool", "enable", name)
		out.expect(t, exitDone, want.hint)
		if out.stdout != "tool "+name+" enabled\n" || (out.stderr == "") != (want.hint == "") {
			t.Errorf("enabling %s says %q, and on stderr %q", name, out.stdout, out.stderr)
		}
		if out := i.run("tool", "disable", name); out.stderr != "" {
			t.Errorf("disabling %s says %q", name, out.stderr)
		}
		i.must("tool", "enable", name)
		shown := gaps.ReplaceAllString(i.must("tool", "show", name), "  ")
		has(t, shown, append(want.shows, "\nState  "+want.state+"\n")...)
		for _, part := range want.lacks {
			if strings.Contains(shown, part) {
				t.Errorf("%q is in:\n%s", part, shown)
			}
		}
		row := decode[store.Tool](t, i.must("tool", "show", name, "--json"))
		if row.Name != name || !row.Enabled || len(row.InputSchema) == 0 || (len(row.ModelSchema) == 0) != (row.NotOffered != "") {
			t.Errorf("the row is %+v", row)
		}
		has(t, i.with("COLUMNS", "160").must("tool", "list"), "  "+want.state+"  ")
	}

	i.run("tool", "show", "mcp_docs_serach").expect(t, exitFailed, `no tool "mcp_docs_serach"`, "legwork tool list")
	i.run("tool", "show").expect(t, exitUsage, `"legwork tool show TOOL"`)

	// A backend cannot have it called either, and is told why.
	i.run("call", "docs", "slow", "--wait").expect(t, exitFailed, "was not called, because "+task)
	has(t, i.must("call", "docs", "either", "--wait"), "either was called")
}
