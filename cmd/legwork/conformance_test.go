package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"legwork/mcp/mcptest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	two := []mcptest.Tool{
		{Name: "add", InputSchema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"integer"},"note":{"type":"string"}},"required":["a"]}`)},
		{Name: "stop", Call: func(json.RawMessage) json.RawMessage { return mcptest.Failed("stuck") }},
	}
	for _, c := range []struct {
		name      string
		era       mcptest.Era
		tools     []mcptest.Tool
		env       map[string]string
		code      int
		calls     []string // the arguments of each
		complaint string
	}{
		{
			name: "a stateless server", era: mcptest.Stateless, tools: two[:1],
			env: map[string]string{"MCP_CONFORMANCE_PROTOCOL_VERSION": "2026-07-28"}, calls: []string{`{"a":2}`},
		},
		{
			name: "a server of the handshake", era: mcptest.Handshake, tools: two[:1],
			env: map[string]string{"MCP_CONFORMANCE_PROTOCOL_VERSION": "2025-11-25"}, calls: []string{`{"a":2}`},
		},
		{
			name: "spoken to in the wrong era", era: mcptest.Handshake, tools: two[:1],
			env:  map[string]string{"MCP_CONFORMANCE_PROTOCOL_VERSION": "2026-07-28"},
			code: exitFailed, calls: []string{`{"a":2}`}, complaint: `of revision "2026-07-28"`,
		},
		{
			name: "the suite says what to call", era: mcptest.Stateless, tools: two,
			env:   map[string]string{"MCP_CONFORMANCE_CONTEXT": `{"name":"x","toolCalls":[{"name":"add","arguments":{"a":1}},{"name":"add","arguments":{"a":null}}]}`},
			calls: []string{`{"a":1}`, `{"a":null}`},
		},
		{
			name: "a tool that fails", era: mcptest.Stateless, tools: two,
			code: exitFailed, calls: []string{`{"a":2}`, `{}`}, complaint: `it said "stuck"`,
		},
		{
			name: "a tool that is only to be read", era: mcptest.Stateless, tools: two,
			env: map[string]string{"MCP_CONFORMANCE_SCENARIO": "json-schema-ref-no-deref"},
		},
		{
			name: "a schema that comes back", era: mcptest.Stateless,
			tools: []mcptest.Tool{
				{Name: "json_schema_2020_12_tool", InputSchema: json.RawMessage(`{"type":"object","$defs":{"a":{"$anchor":"b"}}}`)}, {Name: "json_schema_echo"},
			},
			env:   map[string]string{"MCP_CONFORMANCE_SCENARIO": "json-schema-2020-12-preservation"},
			calls: []string{`{}`, `{"schema":{"type":"object","$defs":{"a":{"$anchor":"b"}}}}`},
		},
		{
			name: "a context that is none", env: map[string]string{"MCP_CONFORMANCE_CONTEXT": `toolCalls`},
			code: exitUsage, complaint: "MCP_CONFORMANCE_CONTEXT",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := mcptest.New(t, mcptest.Options{Era: c.era, Tools: c.tools})
			at := outside(t).with("MCP_CONFORMANCE_SCENARIO", "tools_call")
			for name, value := range c.env {
				at = at.with(name, value)
			}
			out := at.run("conformance", server.URL)
			if out.code != c.code || !strings.Contains(out.stderr, c.complaint) {
				t.Errorf("exit code %d, not %d:\n%s%s", out.code, c.code, out.stdout, out.stderr)
			}
			var calls []string
			for _, request := range server.Sent("tools/call") {
				var params struct {
					Arguments json.RawMessage `json:"arguments"`
				}
				if err := json.Unmarshal(request.Params, &params); err != nil {
					t.Fatal(err)
				}
				calls = append(calls, string(params.Arguments))
			}
			if diff := cmp.Diff(c.calls, calls); diff != "" {
				t.Error(diff)
			}
		})
	}

	t.Run("without the suite", func(t *testing.T) {
		t.Parallel()
		if out := outside(t).run("conformance", "http://127.0.0.1:1/mcp"); out.code != exitUsage || !strings.Contains(out.stderr, "MCP_CONFORMANCE_SCENARIO") {
			t.Errorf("exit code %d: %s", out.code, out.stderr)
		}
	})
	t.Run("not in the help", func(t *testing.T) {
		t.Parallel()
		if out := outside(t).run("--help"); strings.Contains(out.stdout, "conformance") {
			t.Errorf("an operator is shown a command that is none of his:\n%s", out.stdout)
		}
	})
}

func TestSample(t *testing.T) {
	t.Parallel()
	got, err := sample(json.RawMessage(`{"type":"object","properties":{
		"i":{"type":"integer"},"n":{"type":"number"},"b":{"type":"boolean"},"s":{"type":"string"},"a":{"type":"array"},
		"o":{"type":"object"},"z":{"type":"null"},"two":{"type":["string","null"]},"left":{"type":"string"}},
		"required":["i","n","b","s","a","o","z","two","undescribed"]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"a":[],"b":true,"i":2,"n":2,"o":{},"s":"sample","two":"sample","undescribed":"sample","z":null}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
}
