package mcp_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"legwork/mcp"
	"legwork/mcp/mcptest"
)

// sentence makes a pattern of an operator's sentence: <n> stands for a number, <took> for a
// time, <at> for an address on this machine, <…> for the words of a library.
func sentence(text string) *regexp.Regexp {
	pattern := regexp.QuoteMeta(text)
	pattern = strings.ReplaceAll(pattern, "<n>", `[0-9]+(\.[0-9])?`)
	pattern = strings.ReplaceAll(pattern, "<at>", `127\.0\.0\.1:[0-9]+`)
	pattern = strings.ReplaceAll(pattern, "<…>", `[^"]+`)
	pattern = strings.ReplaceAll(pattern, "<took>", `([0-9]+ ms|[0-9]+(\.[0-9])? s)`)
	return regexp.MustCompile(`^` + pattern + `$`)
}

type on = map[string]mcptest.Behaviour

// failureRow is one way to fail: a server that behaves but for what the row says, and what must come of a call of its
// tool "echo".
type failureRow struct {
	story    string
	server   mcptest.Options
	at       func(t *testing.T, server *mcp.Server) parts // where the row is about more than answers; nil is nothing
	do       func(t *testing.T, client *mcp.Client, server mcp.Server, budget mcp.Budget) (mcp.Spent, error)
	call     *mcp.ToolCall // nil is echo
	budget   time.Duration // 0 is ample
	kind     mcp.Kind
	asked    mcp.Asked
	sentence string
	legs     []leg
}

func listTools(t *testing.T, client *mcp.Client, server mcp.Server, budget mcp.Budget) (mcp.Spent, error) {
	catalogue, spent, err := client.ListTools(t.Context(), server, budget)
	if len(catalogue.Tools)+len(catalogue.Skipped) > 0 {
		t.Errorf("a walk that failed brings %d tools", len(catalogue.Tools))
	}
	return spent, err
}

func ping(t *testing.T, client *mcp.Client, server mcp.Server, budget mcp.Budget) (mcp.Spent, error) {
	_, spent, err := client.Ping(t.Context(), server, budget)
	return spent, err
}

// after are the legs of an operation whose last one ends so.
func after(method, outcome string, status int) []leg {
	last := leg{method, outcome, status}
	if method == "initialize" {
		return []leg{last}
	}
	first := leg{"initialize", "ok", 200}
	if method == "notifications/initialized" {
		return []leg{first, last}
	}
	return []leg{first, {"notifications/initialized", "ok", 202}, last}
}

// afterProbe are the legs of an import from a server of the handshake's era, whose first leg finds that out.
func afterProbe(method, outcome string, status int) []leg {
	return append([]leg{{"tools/list", "rpc_error", 400}}, after(method, outcome, status)...)
}

func call(behaviour mcptest.Behaviour) mcptest.Options {
	return mcptest.Options{On: on{"tools/call": behaviour}}
}

func urlAs(url func(t testing.TB) string) func(*testing.T, *mcp.Server) parts {
	return func(t *testing.T, server *mcp.Server) parts {
		server.URL = url(t)
		return parts{}
	}
}

func credential(reference func(t *testing.T) string) func(*testing.T, *mcp.Server) parts {
	return func(t *testing.T, server *mcp.Server) parts {
		server.Credential = mcp.Credential{Reference: reference(t), Placement: mcp.PlaceBearer}
		return parts{}
	}
}

func fixed(s string) func(*testing.T) string { return func(*testing.T) string { return s } }

var withToken = credential(fixed(tokenReference))

func failureRows() []failureRow {
	const json, stream = "application/json", "text/event-stream"
	rows := []failureRow{
		// budget_spent is in deadline_test.go as well, with the legs that spent it.
		{
			story: "the budget is nothing", budget: -1,
			kind: mcp.KindBudgetSpent, asked: mcp.AskedNo,
			sentence: `Budget spent: initialize was not sent and server "docs" was not asked for it, because no time was left when it began. ` +
				`The 0 s are this installation's own setting: raise LEGWORK_MCP_OPERATION_TIMEOUT to allow more.`,
		},

		{
			story: "accepts the call and never answers", server: call(mcptest.Stall), budget: time.Second,
			kind: mcp.KindNoAnswer, asked: mcp.AskedUnknown, legs: after("tools/call", "no_answer", 0),
			sentence: `No answer: server "docs" was asked (tools/call) and did not answer within its budget of 1 s; nothing had arrived. Nobody knows whether it acted.`,
		},
		{
			story: "accepts the connection and never answers", at: urlAs(func(t testing.TB) string { return mcptest.Wedged(t).URL }), budget: time.Second,
			kind: mcp.KindNoAnswer, asked: mcp.AskedUnknown, legs: after("initialize", "no_answer", 0),
			sentence: `No answer: server "docs" was asked (initialize) and did not answer within its budget of 1 s; nothing had arrived.`,
		},
		{
			story: "stops in the middle of the headers", server: call(mcptest.RawThenStall("HTTP/1.1 200 OK\r\nContent-Ty")), budget: time.Second,
			kind: mcp.KindNoAnswer, asked: mcp.AskedUnknown, legs: after("tools/call", "no_answer", 0),
			sentence: `No answer: server "docs" was asked (tools/call) and did not answer within its budget of 1 s; part of the headers had arrived. Nobody knows whether it acted.`,
		},
		{
			story: "stops in the middle of the body", server: call(mcptest.BodyThenStall(json, `{"jsonrpc":`)), budget: time.Second,
			kind: mcp.KindNoAnswer, asked: mcp.AskedUnknown, legs: after("tools/call", "no_answer", 200),
			sentence: `No answer: server "docs" was asked (tools/call) and did not answer within its budget of 1 s; the headers and 11 bytes of the body had arrived. Nobody knows whether it acted.`,
		},
		{
			story: "opens a stream that brings nothing but comments", server: call(mcptest.BodyThenStall(stream, ": ping\n\n")), budget: time.Second,
			kind: mcp.KindNoAnswer, asked: mcp.AskedUnknown, legs: after("tools/call", "no_answer", 200),
			sentence: `No answer: server "docs" was asked (tools/call) and did not answer within its budget of 1 s; the headers and 8 bytes of the body had arrived. Nobody knows whether it acted.`,
		},
		{
			story: "one byte a second", server: call(mcptest.Drip), budget: 2 * time.Second,
			kind: mcp.KindNoAnswer, asked: mcp.AskedUnknown, legs: after("tools/call", "no_answer", 200),
			sentence: `No answer: server "docs" was asked (tools/call) and did not answer within its budget of 2 s; the headers and <n> bytes of the body had arrived. Nobody knows whether it acted.`,
		},
		{
			story: "confirms half of the handshake and stops", server: mcptest.Options{On: on{"notifications/initialized": mcptest.Stall}}, budget: time.Second,
			kind: mcp.KindNoAnswer, asked: mcp.AskedUnknown, legs: after("notifications/initialized", "no_answer", 0),
			sentence: `No answer: server "docs" was asked (notifications/initialized) and did not answer within its budget of 1 s; nothing had arrived.`,
		},

		{
			story: "nothing listens", at: urlAs(mcptest.Nowhere),
			kind: mcp.KindUnreachable, asked: mcp.AskedNo, legs: after("initialize", "unreachable", 0),
			sentence: `Unreachable: no connection to server "docs" came about: the connection was refused at <at>. Its process never saw the request (initialize).`,
		},
		{
			story: "a connect that never completes", at: urlAs(mcptest.Unconnectable), budget: time.Second,
			kind: mcp.KindUnreachable, asked: mcp.AskedNo, legs: after("initialize", "unreachable", 0),
			sentence: `Unreachable: no connection to server "docs" came about: connecting took the whole budget of 1 s. Its process never saw the request (initialize).`,
		},
		{
			story: "a TLS handshake that stalls", budget: time.Second,
			at:   urlAs(func(t testing.TB) string { return strings.Replace(mcptest.Wedged(t).URL, "http:", "https:", 1) }),
			kind: mcp.KindUnreachable, asked: mcp.AskedNo, legs: after("initialize", "unreachable", 0),
			sentence: `Unreachable: no connection to server "docs" came about: connecting took the whole budget of 1 s. Its process never saw the request (initialize).`,
		},
		{
			story: "https to a server that speaks http",
			at: func(_ *testing.T, server *mcp.Server) parts {
				server.URL = strings.Replace(server.URL, "http:", "https:", 1)
				return parts{}
			},
			kind: mcp.KindUnreachable, asked: mcp.AskedNo, legs: after("initialize", "unreachable", 0),
			sentence: `Unreachable: no connection to server "docs" came about: it does not speak TLS there; its URL may have to begin with http. Its process never saw the request (initialize).`,
		},
		{
			story: "a certificate that nobody trusts", server: mcptest.Options{TLS: true},
			kind: mcp.KindUnreachable, asked: mcp.AskedNo, legs: after("initialize", "unreachable", 0),
			sentence: `Unreachable: no connection to server "docs" came about: its TLS certificate was not accepted ("<…>"). Its process never saw the request (initialize).`,
		},
		{
			story: "a name that does not exist", at: urlAs(func(testing.TB) string { return "http://mcp.invalid/mcp" }),
			kind: mcp.KindUnreachable, asked: mcp.AskedNo, legs: after("initialize", "unreachable", 0),
			sentence: `Unreachable: no connection to server "docs" came about: the name "mcp.invalid" does not resolve. Its process never saw the request (initialize).`,
		},
		{
			story: "a name that cannot be looked up", at: urlAs(func(testing.TB) string { return "http://out-of-order.test/mcp" }),
			kind: mcp.KindUnreachable, asked: mcp.AskedNo, legs: after("initialize", "unreachable", 0),
			sentence: `Unreachable: no connection to server "docs" came about: looking up the name "out-of-order.test" failed ("<…>"). Its process never saw the request (initialize).`,
		},

		{
			story: "closes the connection when it has read the call", server: call(mcptest.HangUp),
			kind: mcp.KindConnectionLost, asked: mcp.AskedUnknown, legs: after("tools/call", "connection_lost", 0),
			sentence: `Connection lost: server "docs" was asked (tools/call) and the connection broke after <took> (it was closed); nothing had arrived. Nobody knows whether it acted.`,
		},
		{
			story: "resets the connection when it has read the call", server: call(mcptest.Reset),
			kind: mcp.KindConnectionLost, asked: mcp.AskedUnknown, legs: after("tools/call", "connection_lost", 0),
			sentence: `Connection lost: server "docs" was asked (tools/call) and the connection broke after <took> (it was reset); nothing had arrived. Nobody knows whether it acted.`,
		},
		{
			story: "closes the connection in the middle of the headers", server: call(mcptest.Raw("HTTP/1.1 200 OK\r\nServer: x\r\n")),
			kind: mcp.KindConnectionLost, asked: mcp.AskedUnknown, legs: after("tools/call", "connection_lost", 0),
			sentence: `Connection lost: server "docs" was asked (tools/call) and the connection broke after <took> (it was closed); part of the headers had arrived. Nobody knows whether it acted.`,
		},
		{
			story: "closes the connection in the middle of the body", server: call(mcptest.BodyThenHangUp(json, `{"jsonrpc":`)),
			kind: mcp.KindConnectionLost, asked: mcp.AskedUnknown, legs: after("tools/call", "connection_lost", 200),
			sentence: `Connection lost: server "docs" was asked (tools/call) and the connection broke after <took> (it was closed); the headers and 11 bytes of the body had arrived. Nobody knows whether it acted.`,
		},
		{
			story: "closes the connection in the middle of a stream", server: call(mcptest.BodyThenHangUp(stream, "data: {")),
			kind: mcp.KindConnectionLost, asked: mcp.AskedUnknown, legs: after("tools/call", "connection_lost", 200),
			sentence: `Connection lost: server "docs" was asked (tools/call) and the connection broke after <took> (it was closed); the headers and 7 bytes of the body had arrived. Nobody knows whether it acted.`,
		},
		{
			story: "hangs up on a ping", server: mcptest.Options{On: on{"ping": mcptest.HangUp}}, do: ping,
			kind: mcp.KindConnectionLost, asked: mcp.AskedUnknown, legs: after("ping", "connection_lost", 0),
			sentence: `Connection lost: server "docs" was asked (ping) and the connection broke after <took> (it was closed); nothing had arrived.`,
		},

		{
			story: "an internal error that explains itself", server: call(mcptest.Status(500, nil, "database\n\tis \x1b[31mdown\u202e")),
			kind: mcp.KindHTTPStatus, asked: mcp.AskedYes, legs: after("tools/call", "http_status", 500),
			sentence: `HTTP 500: server "docs" answered tools/call with status 500; it said "database is [31mdown".`,
		},
		{
			story: "an internal error without a word", server: call(mcptest.Status(500, nil, "")),
			kind: mcp.KindHTTPStatus, asked: mcp.AskedYes, legs: after("tools/call", "http_status", 500),
			sentence: `HTTP 500: server "docs" answered tools/call with status 500; the status says that it did not do what was asked.`,
		},
		{
			story: "wants a credential and none is configured", server: mcptest.Options{On: on{"*": mcptest.Status(401, nil, "who are you")}},
			kind: mcp.KindHTTPStatus, asked: mcp.AskedYes, legs: after("initialize", "http_status", 401),
			sentence: `HTTP 401: server "docs" answered initialize with status 401; it wants a credential and none is configured.`,
		},
		{
			story: "does not accept the credential", server: mcptest.Options{On: on{"*": mcptest.Status(401, nil, "wrong: "+token)}}, at: withToken,
			kind: mcp.KindHTTPStatus, asked: mcp.AskedYes, legs: after("initialize", "http_status", 401),
			sentence: `HTTP 401: server "docs" answered initialize with status 401; the credential "env:LEGWORK_MCP_TEST_TOKEN" was not accepted.`,
		},
		{
			story: "forbids the call", server: call(mcptest.Status(403, nil, "")), at: withToken,
			kind: mcp.KindHTTPStatus, asked: mcp.AskedYes, legs: after("tools/call", "http_status", 403),
			sentence: `HTTP 403: server "docs" answered tools/call with status 403; the credential "env:LEGWORK_MCP_TEST_TOKEN" was not accepted.`,
		},
		{
			story: "too many requests, with a time", server: call(mcptest.Status(429, http.Header{"Retry-After": {"120"}}, "")),
			kind: mcp.KindHTTPStatus, asked: mcp.AskedYes, legs: after("tools/call", "http_status", 429),
			sentence: `HTTP 429: server "docs" answered tools/call with status 429; it is busy and asks not to be called again before Retry-After "120".`,
		},
		{
			story: "unavailable, without a time", server: call(mcptest.Status(503, nil, "")),
			kind: mcp.KindHTTPStatus, asked: mcp.AskedYes, legs: after("tools/call", "http_status", 503),
			sentence: `HTTP 503: server "docs" answered tools/call with status 503; it is busy and did not say for how long.`,
		},
		{
			story: "a redirect", server: mcptest.Options{On: on{"initialize": mcptest.Redirect("https://user:pw@mcp.example.com/v2?key=abc#x")}},
			kind: mcp.KindHTTPStatus, asked: mcp.AskedYes, legs: after("initialize", "http_status", 307),
			sentence: `HTTP 307: server "docs" answered initialize with status 307; it redirects to "https://mcp.example.com/v2", and redirects are never followed: if that is its address now, correct its URL.`,
		},
		{
			story: "a redirect to nowhere", server: call(mcptest.Status(302, nil, "")),
			kind: mcp.KindHTTPStatus, asked: mcp.AskedYes, legs: after("tools/call", "http_status", 302),
			sentence: `HTTP 302: server "docs" answered tools/call with status 302; redirects are never followed.`,
		},
		{
			story: "refuses the confirmation", server: mcptest.Options{On: on{"notifications/initialized": mcptest.Status(404, nil, "no")}},
			kind: mcp.KindHTTPStatus, asked: mcp.AskedYes, legs: after("notifications/initialized", "http_status", 404),
			sentence: `HTTP 404: server "docs" answered notifications/initialized with status 404; it said "no".`,
		},

		{
			story: "words in place of JSON", server: call(mcptest.Body(json, "hello")),
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("tools/call", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered tools/call, but the answer is not JSON; it begins with "hello". Nobody knows whether it acted.`,
		},
		{
			story: "an empty answer", server: call(mcptest.Body(json, " \n")),
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("tools/call", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered tools/call, but the answer is empty. Nobody knows whether it acted.`,
		},
		{
			story: "a batch of nothing", server: call(mcptest.Body(json, `[]`)),
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("tools/call", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered tools/call, but the answer is not a JSON-RPC message; it begins with "[]". Nobody knows whether it acted.`,
		},
		{
			story: "a method that is no name", server: call(mcptest.Body(json, `{"method":1}`)),
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("tools/call", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered tools/call, but the answer is not a JSON-RPC message; it begins with "{'method':1}". Nobody knows whether it acted.`,
		},
		{
			story: "the answer to another request", server: call(mcptest.Body(json, `{"jsonrpc":"2.0","id":99,"result":{}}`)),
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("tools/call", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered tools/call, but the answer is for request "99", not for 2. Nobody knows whether it acted.`,
		},
		{
			story: "the error of another request", server: call(mcptest.Body(json, `{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":"m"}}`)),
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("tools/call", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered tools/call, but the answer is an error for request "'x'", not for 2. Nobody knows whether it acted.`,
		},
		{
			story: "a result that answers nothing", server: call(mcptest.Body(json, `{"jsonrpc":"2.0","result":{}}`)),
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("tools/call", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered tools/call, but the answer has no id, so it cannot be told what it answers. Nobody knows whether it acted.`,
		},
		{
			story: "neither a result nor an error", server: call(mcptest.Body(json, `{"jsonrpc":"2.0","id":$ID,"result":null,"error":null}`)),
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("tools/call", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered tools/call, but the answer has neither a result nor an error. Nobody knows whether it acted.`,
		},
		{
			story: "a request of its own in place of an answer", server: call(mcptest.Body(json, `{"jsonrpc":"2.0","id":$ID,"method":"roots/list"}`)),
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("tools/call", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered tools/call, but what came is a message of its own, not an answer; it begins with "{'jsonrpc':'2.0','id':2,'method':'roots/list'}". Nobody knows whether it acted.`,
		},
		{
			story: "a stream that ends without an answer", server: call(mcptest.Body(stream, ": hello\n\nevent: ping\ndata: 1\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n")),
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("tools/call", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered tools/call, but its event stream ended without an answer. Nobody knows whether it acted.`,
		},
		{
			story: "accepts a request as if it were a notification", server: call(mcptest.Status(202, nil, "")),
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("tools/call", "malformed_response", 202),
			sentence: `Malformed answer: server "docs" answered tools/call, but with HTTP 202, which gives no answer to a request. Nobody knows whether it acted.`,
		},
		{
			story: "an encoding that nobody asked for", server: call(mcptest.Status(200, http.Header{"Content-Type": {json}, "Content-Encoding": {"br"}}, "{}")),
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("tools/call", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered tools/call, but the body is encoded as "br", which was not asked for. Nobody knows whether it acted.`,
		},
		{
			story: "a compressed body that is none", server: call(mcptest.Status(200, http.Header{"Content-Type": {json}, "Content-Encoding": {"gzip"}}, strings.Repeat("{}", 20))),
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("tools/call", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered tools/call, but the compressed body is corrupt. Nobody knows whether it acted.`,
		},
		{
			story: "something else than HTTP", server: call(mcptest.Raw("220 mail.example.com ESMTP\r\n")),
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("tools/call", "malformed_response", 0),
			sentence: `Malformed answer: server "docs" answered tools/call, but what came is not HTTP as it should be ("<…>"). Nobody knows whether it acted.`,
		},
		{
			story: "a header without end", server: call(mcptest.EndlessHeader),
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("tools/call", "malformed_response", 0),
			sentence: `Malformed answer: server "docs" answered tools/call, but what came is not HTTP as it should be ("<…>"). Nobody knows whether it acted.`,
		},
		{
			story:  "a session id that cannot be sent back",
			server: mcptest.Options{On: on{"initialize": mcptest.Status(200, http.Header{"Content-Type": {json}, "Mcp-Session-Id": {"s\u00e9ance"}}, "{}")}},
			kind:   mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("initialize", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered initialize, but the session id it gave is not visible ASCII.`,
		},
		{
			story: "a revision of the future", server: mcptest.Options{Revision: "2099-01-01"},
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("initialize", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered initialize, but it speaks protocol revision "2099-01-01", which legwork does not.`,
		},
		{
			story: "an initialize result that is a word", server: mcptest.Options{On: on{"initialize": mcptest.Result(`"hello"`)}},
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("initialize", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered initialize, but the result is not what the protocol prescribes; it begins with "'hello'".`,
		},
		{
			story: "an initialize result whose revision is a number", server: mcptest.Options{On: on{"initialize": mcptest.Result(`{"protocolVersion":2}`)}},
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("initialize", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered initialize, but the result is not what the protocol prescribes; it begins with "{'protocolVersion':2}".`,
		},
		{
			story: "an initialize result without a revision", server: mcptest.Options{On: on{"initialize": mcptest.Result(`{"protocolVersion":null}`)}},
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("initialize", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered initialize, but it speaks protocol revision "", which legwork does not.`,
		},
		{
			story: "a tool result that is a list", server: call(mcptest.Result(`[1]`)),
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("tools/call", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered tools/call, but the result is not a tool's result; it begins with "[1]". Nobody knows whether it acted.`,
		},
		{
			story: "a tool result whose content is an object", server: call(mcptest.Result(`{"content":{}}`)),
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("tools/call", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered tools/call, but the result is not a tool's result; it begins with "{'content':{}}". Nobody knows whether it acted.`,
		},
		{
			story: "a tool result that may be an error", server: call(mcptest.Result(`{"isError":1}`)),
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: after("tools/call", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered tools/call, but the result is not a tool's result; it begins with "{'isError':1}". Nobody knows whether it acted.`,
		},
		{
			story: "a catalogue that is none", server: mcptest.Options{On: on{"tools/list": mcptest.Result(`{}`)}}, do: listTools,
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: afterProbe("tools/list", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered tools/list, but the result is not a list of tools; it begins with "{}".`,
		},
		{
			story: "more tools than are taken", server: mcptest.Options{Tools: make([]mcptest.Tool, mcp.MaxTools+1)}, do: listTools,
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes, legs: afterProbe("tools/list", "malformed_response", 200),
			sentence: `Malformed answer: server "docs" answered tools/list, but the catalogue has more than 500 tools; it was refused rather than cut.`,
		},
		{
			story: "a catalogue that points back to itself", server: mcptest.Options{On: on{"tools/list": mcptest.Result(`{"tools":[],"nextCursor":"again"}`)}}, do: listTools,
			kind: mcp.KindMalformedResponse, asked: mcp.AskedYes,
			legs:     slices.Insert(afterProbe("tools/list", "malformed_response", 200), 3, leg{"tools/list", "ok", 200}),
			sentence: `Malformed answer: server "docs" answered tools/list, but page 2 points back to a page that was read already, so the catalogue has no end.`,
		},

		{
			story: "a web page", server: call(mcptest.Body("text/html; charset=utf-8", "<html>")),
			kind: mcp.KindUnsupportedContentType, asked: mcp.AskedYes, legs: after("tools/call", "unsupported_content_type", 200),
			sentence: `Unsupported content type: server "docs" answered tools/call with content type "text/html; charset=utf-8", which is neither JSON nor an event stream. Its URL may lead to something other than an MCP endpoint.`,
		},
		{
			story: "no type at all", server: call(mcptest.Body("", "{}")),
			kind: mcp.KindUnsupportedContentType, asked: mcp.AskedYes, legs: after("tools/call", "unsupported_content_type", 200),
			sentence: `Unsupported content type: server "docs" answered tools/call with no content type, which is neither JSON nor an event stream. Its URL may lead to something other than an MCP endpoint.`,
		},

		{
			story: "a body without end", server: call(mcptest.EndlessBody),
			kind: mcp.KindResponseTooLarge, asked: mcp.AskedYes, legs: after("tools/call", "response_too_large", 200),
			sentence: `Response too large: server "docs" answered tools/call with more than the limit of 2 MiB; the rest was not read.`,
		},
		{
			story: "a compressed bomb", server: call(mcptest.GzipBomb(10)),
			kind: mcp.KindResponseTooLarge, asked: mcp.AskedYes, legs: after("tools/call", "response_too_large", 200),
			sentence: `Response too large: server "docs" answered tools/call with more than the limit of 2 MiB; the rest was not read.`,
		},
		{
			story: "a stream that brings more than the limit", server: call(mcptest.Body(stream, strings.Repeat(": "+strings.Repeat("x", 1000)+"\n\n", 3000))),
			kind: mcp.KindResponseTooLarge, asked: mcp.AskedYes, legs: after("tools/call", "response_too_large", 200),
			sentence: `Response too large: server "docs" answered tools/call with more than the limit of 2 MiB; the rest was not read.`,
		},
		{
			story: "one event of more than the limit", server: call(mcptest.Body(stream, "data: "+strings.Repeat("x", 3<<20)+"\n\n")),
			kind: mcp.KindResponseTooLarge, asked: mcp.AskedYes, legs: after("tools/call", "response_too_large", 200),
			sentence: `Response too large: server "docs" answered tools/call with more than the limit of 2 MiB; the rest was not read.`,
		},

		{
			story: "a tool that the server does not know", call: &mcp.ToolCall{Name: "sarch", Arguments: []byte(`{}`)},
			kind: mcp.KindRPCError, asked: mcp.AskedYes, legs: after("tools/call", "rpc_error", 200),
			sentence: `JSON-RPC error: server "docs" refused tools/call with code -32602; it said "unknown tool: sarch".`,
		},
		{
			story: "a refusal behind a byte order mark and spaces", server: call(mcptest.Status(500, nil, "\ufeff\r\n "+`{"error":{"code":-32603,"message":"out of disk"}}`)),
			kind: mcp.KindRPCError, asked: mcp.AskedYes, legs: after("tools/call", "rpc_error", 500),
			sentence: `JSON-RPC error: server "docs" refused tools/call with code -32603 and HTTP 500; it said "out of disk".`,
		},
		{
			story:  "a refusal in an event stream",
			server: call(mcptest.Status(400, http.Header{"Content-Type": {stream}}, "data:\ndata:  "+`{"error":{"code":-32602,"message":"bad request"}}`+"\n\n")),
			kind:   mcp.KindRPCError, asked: mcp.AskedYes, legs: after("tools/call", "rpc_error", 400),
			sentence: `JSON-RPC error: server "docs" refused tools/call with code -32602 and HTTP 400; it said "bad request".`,
		},
		{
			story: "a refusal with a status of its own", server: call(mcptest.Status(400, nil, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"bad request"}}`)),
			kind: mcp.KindRPCError, asked: mcp.AskedYes, legs: after("tools/call", "rpc_error", 400),
			sentence: `JSON-RPC error: server "docs" refused tools/call with code -32600 and HTTP 400; it said "bad request".`,
		},
		{
			story: "a refusal in a stream", server: mcptest.Options{Stream: true, On: on{"initialize": mcptest.Error(-32000, "not today")}},
			kind: mcp.KindRPCError, asked: mcp.AskedYes, legs: after("initialize", "rpc_error", 200),
			sentence: `JSON-RPC error: server "docs" refused initialize with code -32000; it said "not today".`,
		},
		{
			story: "a long refusal", server: call(mcptest.Error(1, strings.Repeat("a", 1000))),
			kind: mcp.KindRPCError, asked: mcp.AskedYes, legs: after("tools/call", "rpc_error", 200),
			sentence: `JSON-RPC error: server "docs" refused tools/call with code 1; it said "` + strings.Repeat("a", 199) + `…".`,
		},

		{
			story: "a tool that failed", server: call(mcptest.Result(`{"content":[{"type":"text","text":"no such\u0000 document"}],"isError":true}`)),
			kind: mcp.KindToolError, asked: mcp.AskedYes, legs: after("tools/call", "tool_error", 200),
			sentence: `Tool error: tool "echo" of server "docs" failed; it said "no such document".`,
		},
		{
			story: "a tool that failed without a word", server: call(mcptest.Result(`{"isError":true}`)),
			kind: mcp.KindToolError, asked: mcp.AskedYes, legs: after("tools/call", "tool_error", 200),
			sentence: `Tool error: tool "echo" of server "docs" failed; it did not say why.`,
		},

		{
			story: "an address that is not public", at: func(*testing.T, *mcp.Server) parts { return parts{gate: &mcp.GateOptions{}} },
			kind: mcp.KindRefusedHost, asked: mcp.AskedNo, legs: after("initialize", "refused_host", 0),
			sentence: `Refused host: "127.0.0.1" of server "docs" is an address that is not on the public internet, so nothing was sent. ` +
				`If it is meant, add 127.0.0.1 to LEGWORK_ALLOWED_HOSTS, or set LEGWORK_ALLOW_PRIVATE_NETWORKS=true for all private networks.`,
		},

		{
			story: "a variable that is not set", at: credential(fixed("env:LEGWORK_MCP_TEST_UNSET")),
			kind: mcp.KindMissingCredential, asked: mcp.AskedNo,
			sentence: `Missing credential: "env:LEGWORK_MCP_TEST_UNSET" of server "docs" is not set where legwork runs, so nothing was sent.`,
		},
		{
			story: "a file that does not exist", at: credential(fixed("file:/nonexistent/token")),
			kind: mcp.KindMissingCredential, asked: mcp.AskedNo,
			sentence: `Missing credential: "file:/nonexistent/token" of server "docs" does not exist where legwork runs, so nothing was sent.`,
		},
		{
			story: "a file that is a directory", at: credential(fixed("file:/")),
			kind: mcp.KindMissingCredential, asked: mcp.AskedNo,
			sentence: `Missing credential: "file:/" of server "docs" is not a regular file where legwork runs, so nothing was sent.`,
		},
	}
	for _, file := range []struct{ story, content, why string }{
		{"a file with nothing in it", " \n", "is empty"},
		{"a file that is no credential", strings.Repeat("x", 65<<10), "is too large for what it is"},
		{"a credential of two lines", "one\ntwo", "has characters that cannot stand in an HTTP header"},
		{"a credential with a NUL", "one\x00two", "has characters that cannot stand in an HTTP header"},
	} {
		rows = append(rows, failureRow{
			story: file.story,
			at: credential(func(t *testing.T) string {
				_, reference := credentialFile(t, file.content)
				return reference
			}),
			kind: mcp.KindMissingCredential, asked: mcp.AskedNo,
			sentence: `Missing credential: "<…>" of server "docs" ` + file.why + ` where legwork runs, so nothing was sent.`,
		})
	}
	for _, bad := range []struct{ story, name, arguments, why string }{
		{"arguments that are a list", "echo", `[]`, "the arguments must be a JSON object"},
		{"arguments that are missing", "echo", ``, "the arguments must be a JSON object"},
		{"arguments that are not JSON", "echo", `{"a":}`, "the arguments must be a JSON object"},
		{"arguments between what JSON has no room for", "echo", "\u00a0{\n}\v", "the arguments must be a JSON object"},
		{"a tool without a name", "", `{}`, "the tool's name is missing"},
		{"a tool with a control character", "a\x00b", `{}`, `the tool's name "ab" holds control characters or is not UTF-8`},
		{"a tool whose name is not UTF-8", "a\xffb", `{}`, "the tool's name \"a\ufffdb\" holds control characters or is not UTF-8"},
		{"a tool whose name does not end", strings.Repeat("n", 257), `{}`, "the tool's name is longer than 256 characters"},
	} {
		rows = append(rows, failureRow{
			story: bad.story, call: &mcp.ToolCall{Name: bad.name, Arguments: []byte(bad.arguments)},
			kind: mcp.KindInvalidRequest, asked: mcp.AskedNo,
			sentence: `Invalid request for server "docs": ` + bad.why + `; nothing was sent.`,
		})
	}
	for _, bad := range []struct {
		story string
		spoil func(*mcp.Server)
		why   string
	}{
		{"a URL of another scheme", func(s *mcp.Server) { s.URL = "ftp://host/" }, `the URL's scheme is "ftp": it must be http or https`},
		{"a URL without a host", func(s *mcp.Server) { s.URL = "https:///mcp" }, `the URL names no host: write it as https://host/path`},
		{"a URL that is none", func(s *mcp.Server) { s.URL = "http://a b/\x7f" }, `the URL cannot be parsed: write it as https://host/path`},
		{"a URL with a password", func(s *mcp.Server) { s.URL = "https://me:" + token + "@host/" }, `the URL holds a user name or password: configure a credential instead`},
		{"a URL with a fragment", func(s *mcp.Server) { s.URL = "https://host/#a" }, `the URL has a fragment (#…): leave it out`},
		{"a credential without a place", func(s *mcp.Server) { s.Credential.Reference = tokenReference }, `a credential is given but its placement is none: choose bearer or header`},
		{"a placement that nobody knows", func(s *mcp.Server) { s.Credential = mcp.Credential{Reference: tokenReference, Placement: "cookie"} },
			`the credential's placement is "cookie": it must be none, bearer or header`},
		{"a credential that is the secret", func(s *mcp.Server) { s.Credential = mcp.Credential{Reference: token, Placement: mcp.PlaceBearer} },
			`the credential must be a reference, env:NAME or file:/path, never the value itself`},
		{"a file without an absolute path", func(s *mcp.Server) {
			s.Credential = mcp.Credential{Reference: "file:token", Placement: mcp.PlaceBearer}
		}, `the file of the credential must be an absolute path: write file:/path`},
		{"a header that the protocol uses", func(s *mcp.Server) {
			s.Credential = mcp.Credential{Reference: tokenReference, Placement: mcp.PlaceHeader, HeaderName: "mcp-session-id"}
		}, `the credential cannot stand in header "mcp-session-id": the protocol or HTTP uses it itself`},
		{"a header that is none", func(s *mcp.Server) {
			s.Credential = mcp.Credential{Reference: tokenReference, Placement: mcp.PlaceHeader, HeaderName: "X Key"}
		}, `the credential cannot stand in header "X Key": that is not a valid HTTP header name`},
	} {
		rows = append(rows, failureRow{
			story: bad.story,
			at: func(_ *testing.T, server *mcp.Server) parts {
				bad.spoil(server)
				return parts{}
			},
			kind: mcp.KindInvalidRequest, asked: mcp.AskedNo,
			sentence: `Invalid request: the configuration of server "docs" is unusable, so nothing was sent: ` + bad.why + `.`,
		})
	}
	return rows
}

// TestFailures produces every kind of failure that this package produces, by a real server, and then holds their
// sentences against each other.
func TestFailures(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	sentences := map[mcp.Kind][]string{}
	t.Run("rows", func(t *testing.T) {
		for _, row := range failureRows() {
			t.Run(row.story, func(t *testing.T) {
				t.Parallel()
				f := row.run(t)
				mu.Lock()
				defer mu.Unlock()
				sentences[f.Kind] = append(sentences[f.Kind], f.Message)
			})
		}
	})

	// These two are the worker's to find out; here only their words stand.
	for _, f := range []*mcp.Failure{
		mcp.Interrupted("docs", "host:1"), mcp.Cancelled("docs", "alice"), mcp.SpentBeforeStart("docs"), mcp.InvalidRequest("", "Invalid request: x."),
	} {
		sentences[f.Kind] = append(sentences[f.Kind], f.Message)
	}
	beginnings := map[string]mcp.Kind{}
	for _, kind := range mcp.Kinds() {
		if len(sentences[kind]) == 0 {
			t.Errorf("no row produces a failure of kind %s", kind)
		}
		for _, s := range sentences[kind] {
			beginning := firstWord(s)
			if other, ok := beginnings[beginning]; ok && other != kind {
				t.Errorf("sentences of kind %s and %s both begin with %q", kind, other, beginning)
			}
			beginnings[beginning] = kind
		}
		delete(sentences, kind)
	}
	if len(sentences) > 0 {
		t.Errorf("there are failures of kinds that Kinds does not list: %v", sentences)
	}
}

func firstWord(s string) string { return s[:strings.IndexAny(s, " :")] }

func (row failureRow) run(t *testing.T) *mcp.Failure {
	fake := mcptest.New(t, row.server)
	server := docs(fake.URL)
	var p parts
	if row.at != nil {
		p = row.at(t, &server)
	}
	budget := ample
	if row.budget != 0 {
		// A clock that stands grants each leg the whole budget, so that a handshake on a slow machine does not eat it.
		budget, p.clock = installation(max(row.budget, 0)), new(mcptest.Clock)
	}
	client := newClient(t, p)
	var spent mcp.Spent
	var err error
	if row.do != nil {
		spent, err = row.do(t, client, server, budget)
	} else {
		call := echo
		if row.call != nil {
			call = *row.call
		}
		_, spent, err = client.CallTool(t.Context(), server, call, budget)
	}

	f := failure(t, err)
	if f.Kind != row.kind || f.Asked != row.asked || f.Server != "docs" {
		t.Errorf("the failure is %s, asked %s, of server %q; want %s, %s, docs", f.Kind, f.Asked, f.Server, row.kind, row.asked)
	}
	if !sentence(row.sentence).MatchString(f.Message) || f.Error() != f.Message {
		t.Errorf("the sentence is\n     %s\nwant %s", f.Message, row.sentence)
	}
	if diff := cmp.Diff(row.legs, legs(spent)); diff != "" {
		t.Error("legs:", diff)
	}
	if spent.Budget != budget {
		t.Errorf("the budget is %+v, want %+v", spent.Budget, budget)
	}
	if strings.Contains(f.Message, token) {
		t.Errorf("the sentence holds the secret: %s", f.Message)
	}
	// The server saw what the legs say and nothing else; a leg that was not asked is not among it.
	client.Close()
	var want []string
	for _, leg := range row.legs {
		if f.Asked == mcp.AskedNo && leg.Outcome != mcp.OutcomeOK {
			continue
		}
		want = append(want, leg.Method)
	}
	sent := slices.DeleteFunc(fake.Methods(), func(m string) bool { return m == http.MethodDelete })
	if server.URL == fake.URL && !slices.Equal(want, sent) {
		t.Errorf("the server saw %q, want %q", sent, want)
	}
	return f
}

// Not in the table because it takes 52 legs.
func TestMorePagesThanAreTaken(t *testing.T) {
	t.Parallel()
	server := mcptest.New(t, mcptest.Options{On: on{"tools/list": mcptest.EndlessPages()}})
	catalogue, spent, err := newClient(t, parts{}).ListTools(t.Context(), docs(server.URL), ample)
	f := failure(t, err)
	want := `Malformed answer: server "docs" answered tools/list, but the catalogue has more than 50 pages; it was refused rather than cut.`
	if f.Kind != mcp.KindMalformedResponse || f.Message != want || len(catalogue.Tools) != 0 {
		t.Errorf("%d tools and failure %s: %s", len(catalogue.Tools), f.Kind, f.Message)
	}
	if got := len(server.Sent("tools/list")); got != mcp.MaxPages+1 || len(spent.Legs) != mcp.MaxPages+3 || spent.Legs[len(spent.Legs)-1].Outcome != "malformed_response" {
		t.Errorf("%d pages were asked for in legs %v", got, legs(spent)[len(spent.Legs)-2:])
	}
}

func TestFailureKeepsItsCause(t *testing.T) {
	t.Parallel()
	_, _, err := newClient(t, parts{}).Ping(t.Context(), docs(mcptest.Nowhere(t)), ample)
	var network interface{ Timeout() bool } // net.Error, whatever its type
	if !errors.As(err, &network) {
		t.Errorf("the cause of %v is lost", err)
	}
	server := docs("http://127.0.0.1/")
	server.Credential = mcp.Credential{Reference: "file:" + filepath.Join(t.TempDir(), "none"), Placement: mcp.PlaceBearer}
	if _, _, err := newClient(t, parts{}).Ping(t.Context(), server, ample); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the cause of %v is lost", err)
	}
}

func TestIdentifierIsWhatSentencesCanHold(t *testing.T) {
	t.Parallel()
	client := newClient(t, parts{})
	for _, identifier := range []string{"", "Docs", "a-b", "a b", "a\nb", strings.Repeat("a", 33), `a"b`} {
		_, _, err := client.Ping(t.Context(), mcp.Server{Identifier: identifier, URL: "https://example.com"}, ample)
		if f := failure(t, err); f.Kind != mcp.KindInvalidRequest || f.Asked != mcp.AskedNo ||
			!strings.Contains(f.Message, "must be 1 to 32 characters of a-z, 0-9 and _") || strings.Contains(f.Message, "\n") {
			t.Errorf("identifier %q: %s: %s", identifier, f.Kind, f.Message)
		}
	}
}
