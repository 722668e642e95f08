package mcptest_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"legwork/mcp/mcptest"
)

// said is the _meta of a stateless request, whose revision may be another.
func said(revision string) string {
	return `"_meta":{"io.modelcontextprotocol/protocolVersion":"` + revision + `","io.modelcontextprotocol/clientCapabilities":{}}`
}

func stateless(method string, more ...string) http.Header {
	h := http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {method},
	}
	for i := 0; i < len(more); i += 2 {
		h[more[i]] = []string{more[i+1]}
	}
	return h
}

func TestStatelessServerIsStrict(t *testing.T) {
	t.Parallel()
	server := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless, Tools: []mcptest.Tool{
		{Name: "日本", Call: func(json.RawMessage) json.RawMessage { return json.RawMessage(`{}`) }},
		{Name: "find", InputSchema: json.RawMessage(`{"properties":{"n":{"x-mcp-header":"N"},"o":{"properties":{"b":{"x-mcp-header":"B"}}}}}`)},
	}})
	method := func(method, params string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + params + `}}`
	}
	meta := said("2026-07-28")
	list, find := method("tools/list", meta), method("tools/call", meta+`,"name":"find","arguments":{"n":5,"o":{"b":true}}`)
	const name, n, b = "Mcp-Name", "Mcp-Param-N", "Mcp-Param-B"
	for _, tt := range []struct {
		story  string
		body   string
		header http.Header
		status int
		want   string // what stands in the answer
	}{
		{"no JSON-RPC", "hello", stateless("x"), 400, `"code":-32600`},
		{"initialize", method("initialize", ""), proper(), 404, `"code":-32601`},
		{"ping", method("ping", meta), stateless("ping"), 404, `"code":-32601`},
		{"a notification", `{"jsonrpc":"2.0","method":"tools/list","params":{` + meta + `}}`, stateless("tools/list"), 400, "the id is missing"},
		{"a null id", strings.Replace(list, `"id":1`, `"id":null`, 1), stateless("tools/list"), 400, "the id is missing"},
		{"no content type", list, stateless("tools/list", "Content-Type", "text/plain"), 415, "content type"},
		{"not both accepted", list, stateless("tools/list", "Accept", "application/json"), 406, "both accepted"},
		{"a session", list, stateless("tools/list", "Mcp-Session-Id", "x"), 400, "no sessions"},
		{"no _meta", method("tools/list", ""), stateless("tools/list"), 400, `"code":-32602,"message":"_meta names no protocol version"`},
		{"no capabilities", method("tools/list", `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`), stateless("tools/list"), 400, `"code":-32602,"message":"_meta names no client capabilities"`},
		{"no version header", list, stateless("tools/list", "Mcp-Protocol-Version", ""), 400, `"code":-32020`},
		{"another version in the header", list, stateless("tools/list", "Mcp-Protocol-Version", "2025-11-25"), 400, `"code":-32020`},
		{"another version", method("tools/list", said("2027-01-01")), stateless("tools/list", "Mcp-Protocol-Version", "2027-01-01"), 400, `"code":-32022,"data":{"supported":["2026-07-28"],"requested":"2027-01-01"}`},
		{"another method", list, stateless("tools/call"), 400, "Mcp-Method is not what the body says"},
		{"a name without need", list, stateless("tools/list", name, "x"), 400, "Mcp-Name is there without need"},
		{"no name", find, stateless("tools/call", n, "5", b, "true"), 400, "Mcp-Name is missing"},
		{"another name", find, stateless("tools/call", name, "fund", n, "5", b, "true"), 400, "Mcp-Name is not what the body says"},
		{"a name encoded without need", find, stateless("tools/call", name, "=?base64?ZmluZA==?=", n, "5", b, "true"), 400, "was encoded without need"},
		{"a parameter is missing", find, stateless("tools/call", name, "find", n, "5"), 400, "Mcp-Param-B is missing"},
		{"a parameter is another", find, stateless("tools/call", name, "find", n, "6", b, "true"), 400, "Mcp-Param-N is not what the body says"},
		{"a parameter too many", find, stateless("tools/call", name, "find", n, "5", b, "true", "Mcp-Param-C", "1"), 400, "Mcp-Param-C is there without need"},
		{"a parameter that is no Base64", find, stateless("tools/call", name, "find", n, "=?base64?~?=", b, "true"), 400, "is not Base64"},
		{"a call", find, stateless("tools/call", name, "find", n, "5", b, "true"), 200, `"result":{"resultType":"complete","content":`},
		{"a call of an odd name", method("tools/call", meta+`,"name":"日本"`), stateless("tools/call", name, "=?base64?5pel5pys?="), 200, `"result":{"resultType":"complete"}`},
		{"an unknown tool", method("tools/call", meta+`,"name":"x"`), stateless("tools/call", name, "x"), 200, `"code":-32602`},
		{"a catalogue", list, stateless("tools/list"), 200, `"ttlMs":60000`},
		{"a discovery", method("server/discover", meta), stateless("server/discover"), 200, `"supportedVersions":["2026-07-28"]`},
	} {
		status, body, header := post(t, server.URL, tt.body, tt.header)
		if status != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%s: %d %s, want %d and %s", tt.story, status, body, tt.status, tt.want)
		}
		if header.Get("Mcp-Session-Id") != "" {
			t.Errorf("%s: a session was opened", tt.story)
		}
	}
}

func TestErasOfAServer(t *testing.T) {
	t.Parallel()
	const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + said("2026-07-28") + `}}`
	server := mcptest.New(t, mcptest.Options{})
	for _, tt := range []struct {
		era                   mcptest.Era
		initialize, stateless int
	}{{mcptest.Handshake, 200, 400}, {mcptest.Stateless, 404, 200}, {mcptest.Both, 200, 200}, {mcptest.Handshake, 200, 400}} {
		server.SetEra(tt.era)
		first, _, _ := post(t, server.URL, initialize, without("Mcp-Protocol-Version"))
		second, _, _ := post(t, server.URL, list, stateless("tools/list"))
		if first != tt.initialize || second != tt.stateless {
			t.Errorf("era %v: initialize gives %d and a stateless request %d, want %d and %d", tt.era, first, second, tt.initialize, tt.stateless)
		}
	}
	if got := server.OpenSessions(); got != 3 {
		t.Errorf("%d sessions are open, want 3", got)
	}
	server.ForgetSessions()
	if status, _, _ := post(t, server.URL, `{"jsonrpc":"2.0","id":2,"method":"ping"}`, func() http.Header {
		h := proper()
		h.Set("Mcp-Session-Id", "session-1")
		return h
	}()); status != 404 || server.OpenSessions() != 0 {
		t.Errorf("a session that was forgotten gives %d; %d are open", status, server.OpenSessions())
	}
}

// What is scripted for a method is for requests of the server's own era; a stateless request has a script of its own.
func TestStatelessRequestsHaveTheirOwnScript(t *testing.T) {
	t.Parallel()
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + said("2026-07-28") + `}}`
	server := mcptest.New(t, mcptest.Options{On: map[string]mcptest.Behaviour{"tools/list": mcptest.Status(500, nil, "")}})
	for _, tt := range []struct {
		story  string
		answer mcptest.Behaviour
		status int
		want   string
	}{
		{"by default", nil, 400, `{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: Server not initialized"},"id":null}`},
		{"TypeScript, stateless", mcptest.UnsupportedVersion, 400, `"code":-32000`},
		{"Python", mcptest.ServerError, 400, `"id":"server-error","error":{"code":-32600`},
		{"Go SDK", mcptest.HandshakeVersions, 400, `"code":-32022,"data":{"supported":["2025-11-25",`},
		{"lenient", mcptest.Lenient, 200, `"result":{"tools":[`},
		{"empty", mcptest.EmptyResult, 200, `"result":{}`},
		{"a refusal", mcptest.Refuse(418, 7, "no", `[1]`), 418, `{"jsonrpc":"2.0","id":1,"error":{"code":7,"data":[1],"message":"no"}}`},
	} {
		server.On("stateless", tt.answer)
		if status, body, _ := post(t, server.URL, list, stateless("tools/list")); status != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%s: %d %s, want %d and %s", tt.story, status, body, tt.status, tt.want)
		}
	}
}
