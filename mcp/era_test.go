package mcp_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"legwork/mcp"
	"legwork/mcp/mcptest"
)

// An act is one of the three operations.
type act struct {
	name string
	do   func(*testing.T, *mcp.Client, mcp.Server, mcp.Budget) (mcp.Spent, error)
}

var (
	acts = []act{calls, pings, imports}

	calls = act{"call", func(t *testing.T, client *mcp.Client, server mcp.Server, budget mcp.Budget) (mcp.Spent, error) {
		_, spent, err := client.CallTool(t.Context(), server, echo, budget)
		return spent, err
	}}
	pings   = act{"ping", ping}
	imports = act{"import", func(t *testing.T, client *mcp.Client, server mcp.Server, budget mcp.Budget) (mcp.Spent, error) {
		_, spent, err := client.ListTools(t.Context(), server, budget)
		return spent, err
	}}
)

// probed is how a server that nobody has asked yet is asked first.
func (a act) probed() string {
	if a.name == "import" {
		return "tools/list"
	}
	return "server/discover"
}

// method is what a stateless server is asked when it is known.
func (a act) method() string {
	if a.name == "call" {
		return "tools/call"
	}
	return a.probed()
}

func methods(spent mcp.Spent) string {
	var methods []string
	for _, leg := range spent.Legs {
		methods = append(methods, leg.Method)
	}
	return strings.Join(methods, ", ")
}

// seen is what a server saw, but for the deletion of sessions.
func seen(fake *mcptest.Server) string {
	return strings.Join(slices.DeleteFunc(fake.Methods(), func(m string) bool { return m == http.MethodDelete }), ", ")
}

const opening = "initialize, notifications/initialized"

func TestLegsOfEachOperation(t *testing.T) {
	t.Parallel()
	const three = "tools/list, tools/list, tools/list"
	for _, tt := range []struct {
		story               string
		era                 mcptest.Era
		known               func(url string) mcp.Server
		call, ping, listing string
		revision            string
	}{
		{"stateless, known", mcptest.Stateless, modern, "tools/call", "server/discover", three, mcp.RevisionStateless},
		{"stateless, unknown", mcptest.Stateless, unknown, "server/discover, tools/call", "server/discover", three, mcp.RevisionStateless},
		{
			"stateless, known as one of the handshake", mcptest.Stateless, docs,
			"initialize, server/discover, tools/call", "initialize, server/discover", three, mcp.RevisionStateless,
		},
		{"handshake, known", mcptest.Handshake, docs, opening + ", tools/call", opening + ", ping", "tools/list, " + opening + ", " + three, "2025-11-25"},
		{
			"handshake, unknown", mcptest.Handshake, unknown,
			"server/discover, " + opening + ", tools/call", "server/discover, " + opening + ", ping", "tools/list, " + opening + ", " + three, "2025-11-25",
		},
		{
			"handshake, known as stateless", mcptest.Handshake, modern,
			"tools/call, server/discover, " + opening + ", tools/call", "server/discover, " + opening + ", ping", "tools/list, " + opening + ", " + three, "2025-11-25",
		},
		{"both, unknown", mcptest.Both, unknown, "server/discover, tools/call", "server/discover", three, mcp.RevisionStateless},
		{"both, known as stateless", mcptest.Both, modern, "tools/call", "server/discover", three, mcp.RevisionStateless},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stream=%v", tt.story, stream), func(t *testing.T) {
				t.Parallel()
				for _, a := range acts {
					want := map[string]string{"call": tt.call, "ping": tt.ping, "import": tt.listing}[a.name]
					fake := mcptest.New(t, mcptest.Options{Era: tt.era, Stream: stream, PageSize: 1, Tools: []mcptest.Tool{{Name: "echo"}, {Name: "b"}, {Name: "c"}}})
					client := newClient(t, parts{})
					spent, err := a.do(t, client, tt.known(fake.URL), ample)
					if err != nil {
						t.Errorf("%s: %v", a.name, err)
					}
					client.Close()
					if got := methods(spent); got != want || seen(fake) != want {
						t.Errorf("%s: the legs are %s,\nthe server saw %s,\nwant %s", a.name, got, seen(fake), want)
					}
					if spent.Revision != tt.revision {
						t.Errorf("%s: the revision is %q, want %q", a.name, spent.Revision, tt.revision)
					}
					sessions := strings.Count(want, "notifications/initialized")
					if got := len(fake.Sent("DELETE")); got != sessions || fake.OpenSessions() != 0 {
						t.Errorf("%s: %d sessions were deleted, want %d; %d are open", a.name, got, sessions, fake.OpenSessions())
					}
					ids := map[string]bool{}
					for _, r := range fake.Requests() {
						if r.ID != nil && ids[string(r.ID)] {
							t.Errorf("%s: id %s was used twice", a.name, r.ID)
						}
						ids[string(r.ID)] = true
					}
				}
			})
		}
	}
}

// A server of both eras that was known for the handshake is called as before, and found out at its next import.
func TestUpgradeIsNoticedAtTheNextImport(t *testing.T) {
	t.Parallel()
	fake := mcptest.New(t, mcptest.Options{Era: mcptest.Both})
	client := newClient(t, parts{})
	server := docs(fake.URL)
	for _, want := range []struct {
		act      act
		legs     string
		revision string
	}{
		{calls, opening + ", tools/call", "2025-11-25"},
		{pings, opening + ", ping", "2025-11-25"},
		{imports, "tools/list", mcp.RevisionStateless},
		{calls, "tools/call", mcp.RevisionStateless},
		{pings, "server/discover", mcp.RevisionStateless},
	} {
		spent, err := want.act.do(t, client, server, ample)
		if err != nil {
			t.Fatal(err)
		}
		if got := methods(spent); got != want.legs || spent.Revision != want.revision {
			t.Errorf("%s: legs %s by revision %q, want %s by %q", want.act.name, got, spent.Revision, want.legs, want.revision)
		}
		server.Revision = spent.Revision
	}
}

// Between two operations a server is replaced by one of the other era, and back.
func TestServerThatChangesItsEraIsFollowed(t *testing.T) {
	t.Parallel()
	for _, a := range acts {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, mcptest.Options{})
			client := newClient(t, parts{})
			server := unknown(fake.URL)
			for _, era := range []mcptest.Era{mcptest.Handshake, mcptest.Stateless, mcptest.Handshake, mcptest.Stateless} {
				fake.SetEra(era)
				spent, err := a.do(t, client, server, ample)
				if err != nil {
					t.Fatal(err)
				}
				client.Close() // the session is deleted where it was opened
				if want := map[mcptest.Era]string{mcptest.Handshake: "2025-11-25", mcptest.Stateless: mcp.RevisionStateless}[era]; spent.Revision != want {
					t.Errorf("the revision is %q, want %q", spent.Revision, want)
				}
				server.Revision = spent.Revision
			}
			if open := fake.OpenSessions(); open != 0 {
				t.Errorf("%d sessions were left open", open)
			}
		})
	}
}

func TestWhatAStatelessRequestSays(t *testing.T) {
	t.Parallel()
	fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless, PageSize: 1, Tools: []mcptest.Tool{{Name: "a"}, {Name: "echo"}}})
	client := newClient(t, parts{})
	server := modern(fake.URL)
	server.Credential = mcp.Credential{Reference: tokenReference, Placement: mcp.PlaceBearer}
	info, _, err := client.Ping(t.Context(), server, ample)
	if err != nil {
		t.Fatal(err)
	}
	want := mcp.ServerInfo{Name: "mcptest", Version: "1", Revision: mcp.RevisionStateless, Capabilities: json.RawMessage(`{"tools":{}}`)}
	if diff := cmp.Diff(want, info); diff != "" {
		t.Error(diff)
	}
	if _, err := imports.do(t, client, server, ample); err != nil {
		t.Fatal(err)
	}
	result, _, err := client.CallTool(t.Context(), server, mcp.ToolCall{Name: "echo", Arguments: json.RawMessage(`{"n": 9007199254740993}`)}, ample)
	if err != nil || result.Text != "echo was called" {
		t.Fatalf("%+v, %v", result, err)
	}
	client.Close()

	const meta = `"_meta":{"io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"legwork","version":"test"},"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`
	sent := fake.Requests()
	for i, w := range []struct{ method, name, params string }{
		{"server/discover", "", `{` + meta + `}`},
		{"tools/list", "", `{` + meta + `}`},
		{"tools/list", "", `{` + meta + `,"cursor":"1"}`},
		{"tools/call", "echo", `{"name":"echo","arguments":{"n": 9007199254740993},` + meta + `}`},
	} {
		if i >= len(sent) {
			t.Fatalf("the server saw %s", seen(fake))
		}
		r := sent[i]
		header := http.Header{
			"Accept": {"application/json, text/event-stream"}, "Accept-Encoding": {"gzip"}, "Content-Type": {"application/json"},
			"User-Agent": {"legwork"}, "Authorization": {"Bearer " + token}, "Content-Length": {fmt.Sprint(len(r.Body))},
			"Mcp-Method": {w.method}, "Mcp-Protocol-Version": {"2026-07-28"},
		}
		if w.name != "" {
			header.Set("Mcp-Name", w.name)
		}
		if diff := cmp.Diff(header, r.Header); diff != "" {
			t.Errorf("%s: %s", w.method, diff)
		}
		if diff := cmp.Diff(w.params, string(r.Params)); diff != "" || r.Method != w.method {
			t.Errorf("%s: %s", r.Method, diff)
		}
	}
	if len(sent) != 4 {
		t.Errorf("the server saw %s", seen(fake))
	}
}

// What servers of the handshake's era that were met in the wild answer to a stateless request.
var legacyAnswers = []struct {
	story    string
	answer   mcptest.Behaviour
	discover leg // how the first leg of a call or ping ends
	list     leg // how the first leg of an import ends
}{
	{"TypeScript, stateful", mcptest.NotInitialized, leg{"server/discover", "rpc_error", 400}, leg{"tools/list", "rpc_error", 400}},
	{
		"TypeScript, stateful, without a content type", mcptest.Status(400, nil, `{"jsonrpc":"2.0","error":{"code":-32000,"message":"Mcp-Session-Id header is required"},"id":null}`),
		leg{"server/discover", "rpc_error", 400}, leg{"tools/list", "rpc_error", 400},
	},
	{"TypeScript, stateless", mcptest.UnsupportedVersion, leg{"server/discover", "rpc_error", 400}, leg{"tools/list", "rpc_error", 400}},
	{"Python", mcptest.ServerError, leg{"server/discover", "rpc_error", 400}, leg{"tools/list", "rpc_error", 400}},
	{"Go SDK, stateful", mcptest.HandshakeVersions, leg{"server/discover", "ok", 200}, leg{"tools/list", "rpc_error", 400}},
	{
		"only revisions of the handshake, under another status", mcptest.Refuse(200, -32022, "no", `{"supported":["2025-06-18"]}`),
		leg{"server/discover", "rpc_error", 200}, leg{"tools/list", "rpc_error", 200},
	},
	{"a version refused without saying which is not", mcptest.Refuse(400, -32022, "no", ""), leg{"server/discover", "rpc_error", 400}, leg{"tools/list", "rpc_error", 400}},
	{"an error that is well received", mcptest.Error(-32601, "Method not found"), leg{"server/discover", "rpc_error", 200}, leg{"tools/list", "rpc_error", 200}},
	{"bad parameters", mcptest.Refuse(400, -32602, "Invalid request parameters", ""), leg{"server/discover", "rpc_error", 400}, leg{"tools/list", "rpc_error", 400}},
	{"400 with words", mcptest.Status(400, nil, "Bad Request: No valid session ID provided"), leg{"server/discover", "http_status", 400}, leg{"tools/list", "http_status", 400}},
	{"400 without a body", mcptest.Status(400, nil, ""), leg{"server/discover", "http_status", 400}, leg{"tools/list", "http_status", 400}},
	{"404 without a body", mcptest.Status(404, nil, ""), leg{"server/discover", "http_status", 404}, leg{"tools/list", "http_status", 404}},
	{"404 with an error", mcptest.Refuse(404, -32601, "Method not found", ""), leg{"server/discover", "rpc_error", 404}, leg{"tools/list", "rpc_error", 404}},
	{"405", mcptest.Status(405, nil, ""), leg{"server/discover", "http_status", 405}, leg{"tools/list", "http_status", 405}},
	{"406", mcptest.Status(406, nil, ""), leg{"server/discover", "http_status", 406}, leg{"tools/list", "http_status", 406}},
	{"415", mcptest.Status(415, nil, ""), leg{"server/discover", "http_status", 415}, leg{"tools/list", "http_status", 415}},
	{"422", mcptest.Status(422, nil, `{"detail":[]}`), leg{"server/discover", "http_status", 422}, leg{"tools/list", "http_status", 422}},
}

func TestLegacyServersAreToldByWhatTheyAnswer(t *testing.T) {
	t.Parallel()
	for _, tt := range legacyAnswers {
		for _, a := range acts {
			t.Run(tt.story+"/"+a.name, func(t *testing.T) {
				t.Parallel()
				fake := mcptest.New(t, mcptest.Options{On: on{"stateless": tt.answer}})
				spent, err := a.do(t, newClient(t, parts{}), unknown(fake.URL), ample)
				if err != nil {
					t.Fatal(err)
				}
				first, last := tt.discover, leg{"ping", "ok", 200}
				switch a.name {
				case "import":
					first, last = tt.list, leg{"tools/list", "ok", 200}
				case "call":
					last = leg{"tools/call", "ok", 200}
				}
				want := append([]leg{first}, after(last.Method, last.Outcome, last.Status)...)
				if diff := cmp.Diff(want, legs(spent)); diff != "" {
					t.Error(diff)
				}
				if spent.Revision != "2025-11-25" {
					t.Errorf("the revision is %q", spent.Revision)
				}
			})
		}
	}
}

// The same answers from a server that is known to be stateless: those that look no further than to miss a session or a
// revision are followed; the others are about the request.
func TestKnownStatelessServerThatRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story    string
		answer   mcptest.Behaviour
		followed bool
		says     string
	}{
		{"misses the session", mcptest.NotInitialized, true, ""},
		{"does not support the revision", mcptest.UnsupportedVersion, true, ""},
		{"misses the session, Python", mcptest.ServerError, true, ""},
		{"supports the handshake's revisions alone", mcptest.Refuse(400, -32022, "no", `{"supported":["2025-11-25"]}`), true, ""},
		{"400 with words", mcptest.Status(400, nil, "No valid session ID provided"), true, ""},
		{"404 without a body", mcptest.Status(404, nil, ""), true, ""},
		{"bad parameters", mcptest.Error(-32602, "unknown tool"), false, `with code -32602; it said "unknown tool"`},
		{"bad parameters under a status", mcptest.Refuse(400, -32602, "unknown tool", ""), false, `with code -32602 and HTTP 400`},
		{"an internal error", mcptest.Error(-32603, "the database is down"), false, "the database is down"},
		{"an internal error under a status", mcptest.Refuse(500, -32603, "the database is down", ""), false, "the database is down"},
		{"an error of its own", mcptest.Error(-32000, "quota"), false, "quota"},
		{"a capability that is missing", mcptest.Refuse(400, -32021, "needs sampling", `{"requiredCapabilities":{"sampling":{}}}`), false, "needs sampling"},
	} {
		for _, a := range acts {
			t.Run(tt.story+"/"+a.name, func(t *testing.T) {
				t.Parallel()
				fake := mcptest.New(t, mcptest.Options{Era: mcptest.Both})
				fake.On(a.method(), mcptest.InTurn(tt.answer, mcptest.Behave))
				first := a.method()
				if a.name == "call" && !strings.Contains(tt.story, "alone") { // what a call is refused with does not suffice
					fake.On("server/discover", tt.answer)
					first += ", server/discover"
				}
				spent, err := a.do(t, newClient(t, parts{}), modern(fake.URL), ample)
				if tt.followed {
					last := map[string]string{"call": "tools/call", "ping": "ping", "import": "tools/list"}[a.name]
					if want := first + ", " + opening + ", " + last; err != nil || methods(spent) != want || spent.Revision != "2025-11-25" {
						t.Errorf("%v, legs %s by revision %q, want %s", err, methods(spent), spent.Revision, want)
					}
					return
				}
				if f := failure(t, err); f.Kind != mcp.KindRPCError || !strings.Contains(f.Message, tt.says) {
					t.Errorf("failure %s: %s", f.Kind, f.Message)
				}
				if methods(spent) != a.method() || seen(fake) != a.method() || spent.Revision != mcp.RevisionStateless {
					t.Errorf("legs %s by revision %q", methods(spent), spent.Revision)
				}
			})
		}
	}
}

// A stateless server that answers as if it missed a session, and then knows no handshake: what it said first is what
// matters.
func TestWhatAServerSaidFirstStands(t *testing.T) {
	t.Parallel()
	for _, a := range acts {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless, On: on{a.method(): mcptest.Refuse(400, -32000, "the index is offline", "")}})
			spent, err := a.do(t, newClient(t, parts{}), modern(fake.URL), ample)
			if f := failure(t, err); f.Kind != mcp.KindRPCError || !strings.Contains(f.Message, "the index is offline") || !strings.Contains(f.Message, a.method()) {
				t.Errorf("failure %s: %s", f.Kind, f.Message)
			}
			want := a.method() + ", initialize"
			if a.name == "call" {
				want = "tools/call, server/discover" // which shows that it is stateless still
			}
			if methods(spent) != want || spent.Revision != mcp.RevisionStateless {
				t.Errorf("legs %s by revision %q, want %s", methods(spent), spent.Revision, want)
			}
		})
	}
	t.Run("unknown", func(t *testing.T) {
		t.Parallel()
		fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless, On: on{"tools/list": mcptest.Error(-32603, "the index is offline")}})
		spent, err := imports.do(t, newClient(t, parts{}), unknown(fake.URL), ample)
		if f := failure(t, err); !strings.Contains(f.Message, "the index is offline") {
			t.Errorf("failure %s: %s", f.Kind, f.Message)
		}
		if methods(spent) != "tools/list, initialize" || spent.Revision != "" {
			t.Errorf("legs %s by revision %q", methods(spent), spent.Revision)
		}
	})
	t.Run("handshake", func(t *testing.T) {
		t.Parallel()
		fake := mcptest.New(t, mcptest.Options{On: on{"initialize": mcptest.Refuse(400, -32602, "clientInfo is too old", "")}})
		spent, err := calls.do(t, newClient(t, parts{}), docs(fake.URL), ample)
		if f := failure(t, err); !strings.Contains(f.Message, "clientInfo is too old") {
			t.Errorf("failure %s: %s", f.Kind, f.Message)
		}
		if methods(spent) != "initialize, server/discover" || spent.Revision != "" {
			t.Errorf("legs %s by revision %q", methods(spent), spent.Revision)
		}
	})
}

// A server that has just shown its era does not leave it because a call is refused.
func TestProvenStatelessServerIsNotLeft(t *testing.T) {
	t.Parallel()
	for _, refusal := range []mcptest.Behaviour{
		mcptest.Refuse(400, -32000, "no", ""), mcptest.Status(404, nil, "no"), mcptest.Refuse(400, -32022, "no", `{"supported":["2025-11-25"]}`),
	} {
		fake := mcptest.New(t, mcptest.Options{Era: mcptest.Both, On: on{"tools/call": refusal}})
		spent, err := calls.do(t, newClient(t, parts{}), unknown(fake.URL), ample)
		if f := failure(t, err); !strings.Contains(f.Message, "tools/call") || !strings.Contains(f.Message, `"no"`) {
			t.Errorf("failure %s: %s", f.Kind, f.Message)
		}
		if methods(spent) != "server/discover, tools/call" {
			t.Errorf("legs %s", methods(spent))
		}
	}
}

// A lenient server of the handshake's era runs a tool without a handshake. It sees the call once, by its own rules.
func TestLenientServerRunsAToolOnce(t *testing.T) {
	t.Parallel()
	for _, known := range []func(string) mcp.Server{unknown, docs, lenient} {
		for _, stream := range []bool{false, true} {
			ran := make(chan string, 10)
			fake := mcptest.New(t, mcptest.Options{Stream: stream, On: on{"stateless": mcptest.Lenient}, Tools: []mcptest.Tool{{
				Name: "echo", Call: func(arguments json.RawMessage) json.RawMessage {
					ran <- string(arguments)
					return mcptest.Text("ok")
				},
			}}})
			server := known(fake.URL)
			spent, err := calls.do(t, newClient(t, parts{}), server, ample)
			if err != nil {
				t.Fatal(err)
			}
			want := opening + ", tools/call"
			if server.Revision == "" {
				want = "server/discover, " + want
			}
			if methods(spent) != want || len(ran) != 1 || len(fake.Sent("tools/call")) != 1 {
				t.Errorf("the tool ran %d times in legs %s, want %s", len(ran), methods(spent), want)
			}
			if r := fake.Sent("tools/call")[0]; r.Header.Get("Mcp-Session-Id") == "" || strings.Contains(string(r.Params), "_meta") {
				t.Errorf("the call was made with session %q and %s", r.Header.Get("Mcp-Session-Id"), r.Params)
			}
		}
	}
}

// A tool may act and then refuse in the words of a server that misses its session. Nobody calls it again.
func TestARefusalThatComesAfterTheToolHasActed(t *testing.T) {
	t.Parallel()
	own := func(status, code int) mcptest.Behaviour {
		return mcptest.Refuse(status, code, "the card was charged, the receipt printer failed", "")
	}
	for _, tt := range []struct {
		story  string
		era    mcptest.Era
		known  func(string) mcp.Server
		answer mcptest.Behaviour
		legs   string
		says   string
	}{
		{"an error of its own", mcptest.Both, modern, own(400, -32000), "tools/call, server/discover", "the receipt printer failed"},
		{"an invalid request", mcptest.Both, modern, own(400, -32600), "tools/call, server/discover", "the receipt printer failed"},
		{"422", mcptest.Both, modern, mcptest.Status(422, nil, "tool ran, output did not validate"), "tools/call, server/discover", "output did not validate"},
		{"400 in words", mcptest.Both, modern, mcptest.Status(400, nil, "tool ran, and failed"), "tools/call, server/discover", "tool ran, and failed"},
		{"404 with an error for the request", mcptest.Handshake, docs, own(404, -32002), opening + ", tools/call", "the receipt printer failed"},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, mcptest.Options{Era: tt.era, On: on{"tools/call": tt.answer}})
			spent, err := calls.do(t, newClient(t, parts{}), tt.known(fake.URL), ample)
			if f := failure(t, err); !strings.Contains(f.Message, tt.says) {
				t.Errorf("failure %s: %s", f.Kind, f.Message)
			}
			if got := len(fake.Sent("tools/call")); got != 1 || methods(spent) != tt.legs {
				t.Errorf("the tool was called %d times, legs %s, want %s", got, methods(spent), tt.legs)
			}
		})
	}
}

// lenient is a server that was imported from without a handshake.
func lenient(url string) mcp.Server {
	return mcp.Server{Identifier: "docs", URL: url, Revision: mcp.RevisionUnnamed}
}

func TestImportFromALenientServer(t *testing.T) {
	t.Parallel()
	for _, known := range []func(string) mcp.Server{unknown, docs, lenient} {
		fake := mcptest.New(t, mcptest.Options{PageSize: 1, Tools: []mcptest.Tool{{Name: "a"}, {Name: "b"}}, On: on{"stateless": mcptest.Lenient}})
		catalogue, spent, err := newClient(t, parts{}).ListTools(t.Context(), known(fake.URL), ample)
		if err != nil || len(catalogue.Tools) != 2 {
			t.Errorf("%+v, %v", catalogue, err)
		}
		if methods(spent) != "tools/list, tools/list" || spent.Revision != mcp.RevisionUnnamed {
			t.Errorf("legs %s by revision %q", methods(spent), spent.Revision)
		}
		for _, r := range fake.Requests() {
			if got := r.Header.Get("Mcp-Protocol-Version"); got != mcp.RevisionStateless {
				t.Errorf("a page was asked for by revision %q", got)
			}
		}
	}
	// Such a server ends its catalogue by an empty cursor.
	fake := mcptest.New(t, mcptest.Options{On: on{"stateless": mcptest.Result(`{"tools":[],"nextCursor":""}`)}})
	if spent, err := imports.do(t, newClient(t, parts{}), unknown(fake.URL), ample); err != nil || len(spent.Legs) != 1 {
		t.Errorf("%v, legs %v", err, legs(spent))
	}
}

// A server that never says its revision and knows no handshake either is called and asked as it is imported from.
func TestALenientServerWithoutAHandshake(t *testing.T) {
	t.Parallel()
	unheardOf := mcptest.Error(-32601, "Method not found")
	fake := mcptest.New(t, mcptest.Options{Tools: []mcptest.Tool{{Name: "echo"}}, On: on{
		"stateless": mcptest.Lenient, "initialize": unheardOf, "server/discover": unheardOf,
	}})
	client := newClient(t, parts{})
	for _, tt := range []struct {
		act  act
		legs string
	}{
		{imports, "tools/list"},
		{calls, "initialize, server/discover, tools/call"},
		{pings, "initialize, server/discover"},
	} {
		spent, err := tt.act.do(t, client, lenient(fake.URL), ample)
		if err != nil {
			t.Errorf("%s: %v", tt.act.name, err)
		}
		if methods(spent) != tt.legs || spent.Revision != mcp.RevisionUnnamed {
			t.Errorf("%s: legs %s by revision %q, want %s", tt.act.name, methods(spent), spent.Revision, tt.legs)
		}
	}
	if got := len(fake.Sent("tools/call")); got != 1 {
		t.Errorf("the tool ran %d times", got)
	}
}

// Some answer server/discover with a result that says nothing.
func TestEmptyDiscovery(t *testing.T) {
	t.Parallel()
	for _, known := range []func(string) mcp.Server{unknown, modern} {
		fake := mcptest.New(t, mcptest.Options{On: on{"stateless": mcptest.EmptyResult}})
		spent, err := pings.do(t, newClient(t, parts{}), known(fake.URL), ample)
		if want := append([]leg{{"server/discover", "ok", 200}}, after("ping", "ok", 200)...); err != nil || !slices.Equal(want, legs(spent)) {
			t.Errorf("%v, legs %v, want %v", err, legs(spent), want)
		}
	}
	// A server that went back and does not know the method.
	fake := mcptest.New(t, mcptest.Options{On: on{"stateless": mcptest.Lenient}})
	spent, err := pings.do(t, newClient(t, parts{}), modern(fake.URL), ample)
	if want := "server/discover, " + opening + ", ping"; err != nil || methods(spent) != want || spent.Revision != "2025-11-25" {
		t.Errorf("%v, legs %s, want %s", err, methods(spent), want)
	}
}

// What says nothing about an era begins no other conversation.
func TestWhatIsNoEvidence(t *testing.T) {
	t.Parallel()
	const rpc = `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no"}}`
	for _, tt := range []struct {
		story  string
		answer mcptest.Behaviour // nil: nothing listens
		budget time.Duration     // 0 is ample
		kind   mcp.Kind
		asked  mcp.Asked
		says   string
	}{
		{"401", mcptest.Status(401, nil, rpc), 0, mcp.KindHTTPStatus, mcp.AskedYes, "it wants a credential and none is configured"},
		{"403", mcptest.Status(403, nil, rpc), 0, mcp.KindHTTPStatus, mcp.AskedYes, "HTTP 403"},
		{"408", mcptest.Status(408, nil, ""), 0, mcp.KindHTTPStatus, mcp.AskedYes, "HTTP 408"},
		{"429", mcptest.Status(429, http.Header{"Retry-After": {"7"}}, rpc), 0, mcp.KindHTTPStatus, mcp.AskedYes, `Retry-After "7"`},
		{"500", mcptest.Status(500, nil, "panic"), 0, mcp.KindHTTPStatus, mcp.AskedYes, `it said "panic"`},
		{"500 in JSON-RPC", mcptest.Status(500, nil, rpc), 0, mcp.KindRPCError, mcp.AskedYes, "with code -32000 and HTTP 500"},
		{"502", mcptest.Status(502, nil, ""), 0, mcp.KindHTTPStatus, mcp.AskedYes, "HTTP 502"},
		{"503", mcptest.Status(503, nil, rpc), 0, mcp.KindHTTPStatus, mcp.AskedYes, "it is busy"},
		{"504", mcptest.Status(504, nil, ""), 0, mcp.KindHTTPStatus, mcp.AskedYes, "HTTP 504"},
		{"a redirect", mcptest.Redirect("https://mcp.example.com/"), 0, mcp.KindHTTPStatus, mcp.AskedYes, `it redirects to "https://mcp.example.com/"`},
		{"silence", mcptest.Stall, time.Second, mcp.KindNoAnswer, mcp.AskedUnknown, "did not answer within its budget of 1 s"},
		{"a connection that is closed", mcptest.HangUp, 0, mcp.KindConnectionLost, mcp.AskedUnknown, "it was closed"},
		{"a refused connection", nil, 0, mcp.KindUnreachable, mcp.AskedNo, "the connection was refused"},
		{"a web page", mcptest.Body("text/html", "<html>"), 0, mcp.KindUnsupportedContentType, mcp.AskedYes, "text/html"},
		{"words", mcptest.Body("application/json", "hello"), 0, mcp.KindMalformedResponse, mcp.AskedYes, "not JSON"},
		{"a receipt", mcptest.Status(202, nil, ""), 0, mcp.KindMalformedResponse, mcp.AskedYes, "HTTP 202"},
		{"a body without end", mcptest.EndlessBody, 0, mcp.KindResponseTooLarge, mcp.AskedYes, "2 MiB"},
	} {
		for _, a := range acts {
			for _, known := range []struct {
				story  string
				server func(string) mcp.Server
				asks   string
			}{{"unknown", unknown, a.probed()}, {"stateless", modern, a.method()}, {"handshake", docs, "initialize"}} {
				if a.name == "import" {
					known.asks = "tools/list"
				}
				t.Run(strings.Join([]string{tt.story, a.name, known.story}, "/"), func(t *testing.T) {
					t.Parallel()
					fake := mcptest.New(t, mcptest.Options{Era: mcptest.Both, On: on{"*": tt.answer}})
					server, p, budget := known.server(fake.URL), parts{}, ample
					if tt.answer == nil {
						server.URL = mcptest.Nowhere(t)
					}
					if tt.budget != 0 {
						// A clock that stands would have a budget left for another leg.
						budget, p.clock = installation(tt.budget), new(mcptest.Clock)
					}
					client := newClient(t, p)
					spent, err := a.do(t, client, server, budget)
					f := failure(t, err)
					if f.Kind != tt.kind || f.Asked != tt.asked || !strings.Contains(f.Message, tt.says) || !strings.Contains(f.Message, known.asks) {
						t.Errorf("failure %s, asked %s: %s", f.Kind, f.Asked, f.Message)
					}
					client.Close()
					if methods(spent) != known.asks || tt.answer != nil && seen(fake) != known.asks {
						t.Errorf("legs %s, the server saw %s, want %s alone", methods(spent), seen(fake), known.asks)
					}
				})
			}
		}
	}
}

const listsOurs = `{"supported":["2027-01-01","2026-07-28","2025-11-25"],"requested":"2026-07-28"}`

func TestRevisionThatIsRefusedIsRepeatedOnce(t *testing.T) {
	t.Parallel()
	refuse := mcptest.Refuse(400, -32022, "unsupported protocol version", listsOurs)
	for _, a := range acts {
		for _, known := range []func(string) mcp.Server{unknown, modern} {
			fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless})
			server := known(fake.URL)
			asks := a.probed()
			if server.Revision != "" {
				asks = a.method()
			}
			fake.On(asks, mcptest.InTurn(refuse, mcptest.Behave))
			spent, err := a.do(t, newClient(t, parts{}), server, ample)
			want := []leg{{asks, "rpc_error", 400}, {asks, "ok", 200}}
			if a.name == "call" && server.Revision == "" {
				want = append(want, leg{"tools/call", "ok", 200})
			}
			if diff := cmp.Diff(want, legs(spent)); diff != "" || err != nil || spent.Revision != mcp.RevisionStateless {
				t.Errorf("%s: %v by revision %q: %s", a.name, err, spent.Revision, diff)
			}
			if sent := fake.Sent(asks); len(sent) < 2 || string(sent[0].ID) == string(sent[1].ID) || !cmp.Equal(sent[0].Params, sent[1].Params) {
				t.Errorf("%s: it was not repeated as it was under a new id", a.name)
			}

			// A server that says so again is not asked a third time, nor for a handshake.
			fake.On(asks, refuse)
			spent, err = a.do(t, newClient(t, parts{}), server, ample)
			if f := failure(t, err); f.Kind != mcp.KindRPCError || !strings.Contains(f.Message, "-32022") || len(spent.Legs) != 2 {
				t.Errorf("%s: failure %s in legs %s: %s", a.name, f.Kind, methods(spent), f.Message)
			}
		}
	}

	// Once is once in an operation.
	fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless, On: on{
		"server/discover": mcptest.InTurn(refuse, mcptest.Behave), "tools/call": mcptest.InTurn(refuse, mcptest.Behave),
	}})
	spent, err := calls.do(t, newClient(t, parts{}), unknown(fake.URL), ample)
	if f := failure(t, err); f.Kind != mcp.KindRPCError || methods(spent) != "server/discover, server/discover, tools/call" {
		t.Errorf("failure %s in legs %s: %s", f.Kind, methods(spent), f.Message)
	}
}

// Servers that do not negotiate the version of initialize but refuse it, and say which they would have.
func TestInitializeIsRefusedForItsRevision(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story  string
		refuse mcptest.Behaviour
		offers string // what is asked for then; empty is nothing
	}{
		{"400", mcptest.Refuse(400, -32602, "Unsupported protocol version", `{"supported":["2024-11-05","2025-03-26"],"requested":"2025-11-25"}`), "2024-11-05"},
		{"200", mcptest.Refuse(200, -32602, "Unsupported protocol version", `{"supported":["2025-06-18"]}`), "2025-06-18"},
		{"an error of its own", mcptest.Refuse(400, -32000, "Unsupported protocol version", `{"supported":["1.0","2025-03-26"]}`), "2025-03-26"},
		{"by the stateless revision's code", mcptest.Refuse(400, -32022, "no", `{"supported":["2026-07-28","2025-06-18"]}`), "2025-06-18"},
		{"offers what was refused", mcptest.Refuse(400, -32602, "no", `{"supported":["2025-11-25"]}`), ""},
		{"offers what nobody speaks", mcptest.Refuse(400, -32602, "no", `{"supported":["1.0"]}`), ""},
		{"offers what is no list", mcptest.Refuse(400, -32602, "no", `{"supported":"2025-06-18"}`), ""},
		{"offers nothing", mcptest.Refuse(400, -32602, "no", ""), ""},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, mcptest.Options{On: on{"initialize": mcptest.InTurn(tt.refuse, mcptest.Behave)}})
			spent, err := calls.do(t, newClient(t, parts{}), unknown(fake.URL), ample)
			if tt.offers == "" {
				if f := failure(t, err); f.Kind != mcp.KindRPCError || methods(spent) != "server/discover, initialize" || spent.Revision != "" {
					t.Errorf("failure %s in legs %s: %s", f.Kind, methods(spent), f.Message)
				}
				return
			}
			if want := "server/discover, initialize, " + opening + ", tools/call"; err != nil || methods(spent) != want || spent.Revision != tt.offers {
				t.Errorf("%v, legs %s by revision %q, want %s by %q", err, methods(spent), spent.Revision, want, tt.offers)
			}

			fake.On("initialize", tt.refuse) // and one that refuses its own offer is asked twice, not for ever
			spent, err = calls.do(t, newClient(t, parts{}), unknown(fake.URL), ample)
			if f := failure(t, err); f.Kind != mcp.KindRPCError || methods(spent) != "server/discover, initialize, initialize" {
				t.Errorf("failure %s in legs %s: %s", f.Kind, methods(spent), f.Message)
			}
		})
	}
}

// A stateless server refuses initialize in several ways.
func TestKnownHandshakeThatIsGone(t *testing.T) {
	t.Parallel()
	for _, refusal := range []mcptest.Behaviour{
		mcptest.Refuse(404, -32601, "method not found", ""),
		mcptest.Refuse(200, -32601, "method not found", ""),
		mcptest.Refuse(400, -32020, "Mcp-Method is missing", ""),
		mcptest.Refuse(400, -32022, "no", `{"supported":["2026-07-28"]}`),
		mcptest.Refuse(400, -32602, "_meta is missing", ""),
		mcptest.Refuse(400, -32600, "bad request", ""),
		mcptest.Status(400, nil, ""), mcptest.Status(404, nil, ""), mcptest.Status(405, nil, ""),
	} {
		fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless, On: on{"initialize": refusal}})
		spent, err := calls.do(t, newClient(t, parts{}), docs(fake.URL), ample)
		if want := "initialize, server/discover, tools/call"; err != nil || methods(spent) != want || spent.Revision != mcp.RevisionStateless {
			t.Errorf("%v, legs %s by revision %q", err, methods(spent), spent.Revision)
		}
	}
}

// toolWith is the tool "echo" with this schema.
func toolWith(schema string) mcptest.Tool {
	return mcptest.Tool{Name: "echo", InputSchema: json.RawMessage(schema)}
}

const regional = `{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}`

// The stored schema is not the server's any more.
func TestHeaderThatIsMissedIsLookedUpOnce(t *testing.T) {
	t.Parallel()
	call := mcp.ToolCall{Name: "echo", Arguments: json.RawMessage(`{"region":"eu"}`), InputSchema: json.RawMessage(`{"type":"object"}`)}
	missed, listed, called := leg{"tools/call", "rpc_error", 400}, leg{"tools/list", "ok", 200}, leg{"tools/call", "ok", 200}
	const code = "with code -32020 and HTTP 400"
	for _, tt := range []struct {
		story string
		tools []mcptest.Tool
		on    on
		legs  []leg
		kind  mcp.Kind // empty: it is answered
		says  string
	}{
		{story: "there", tools: []mcptest.Tool{toolWith(regional)}, legs: []leg{missed, listed, called}},
		{story: "on the second of three pages", tools: []mcptest.Tool{{Name: "a"}, toolWith(regional), {Name: "c"}}, legs: []leg{missed, listed, listed, called}},
		{
			story: "still refused", tools: []mcptest.Tool{toolWith(regional)}, on: on{"tools/call": mcptest.Refuse(400, -32020, "mismatch", "")},
			legs: []leg{missed, listed, missed}, kind: mcp.KindRPCError, says: code,
		},
		{
			story: "not there any more", tools: []mcptest.Tool{{Name: "other"}}, on: on{"tools/call": mcptest.Refuse(400, -32020, "mismatch", "")},
			legs: []leg{missed, listed}, kind: mcp.KindRPCError, says: code,
		},
		{
			story: "there with annotations that break the rules",
			tools: []mcptest.Tool{toolWith(`{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"a b"}}}`)},
			on:    on{"tools/call": mcptest.Refuse(400, -32020, "mismatch", "")},
			legs:  []leg{missed, listed}, kind: mcp.KindRPCError, says: code,
		},
		{
			story: "the catalogue is not to be had", tools: []mcptest.Tool{toolWith(regional)}, on: on{"tools/list": mcptest.Status(503, nil, "")},
			legs: []leg{missed, {"tools/list", "http_status", 503}}, kind: mcp.KindHTTPStatus, says: "answered tools/list with status 503",
		},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless, PageSize: 1, Tools: tt.tools, On: tt.on})
			_, spent, err := newClient(t, parts{}).CallTool(t.Context(), modern(fake.URL), call, ample)
			if diff := cmp.Diff(tt.legs, legs(spent)); diff != "" {
				t.Error(diff)
			}
			if tt.kind == "" {
				if err != nil {
					t.Error(err)
				}
				if sent := fake.Sent("tools/call"); sent[0].Header["Mcp-Param-Region"] != nil || sent[1].Header.Get("Mcp-Param-Region") != "eu" {
					t.Error("the header did not come with the second call alone")
				}
				return
			}
			if f := failure(t, err); f.Kind != tt.kind || f.Asked != mcp.AskedYes || !strings.Contains(f.Message, tt.says) {
				t.Errorf("failure %s: %s", f.Kind, f.Message)
			}
		})
	}
}

func TestLostSession(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story  string
		answer func(*mcptest.Server) mcptest.Behaviour // what meets the request that is lost
	}{
		{"in words", func(fake *mcptest.Server) mcptest.Behaviour {
			return func(x *mcptest.Exchange) {
				fake.ForgetSessions()
				x.Behave()
			}
		}},
		{"in JSON-RPC", func(*mcptest.Server) mcptest.Behaviour { return mcptest.Refuse(404, -32001, "Session not found", "") }},
		{"without a body", func(*mcptest.Server) mcptest.Behaviour { return mcptest.Status(404, nil, "") }},
	} {
		for _, a := range acts {
			t.Run(tt.story+"/"+a.name, func(t *testing.T) {
				t.Parallel()
				fake := mcptest.New(t, mcptest.Options{})
				method := map[string]string{"call": "tools/call", "ping": "ping", "import": "tools/list"}[a.name]
				lost := tt.answer(fake)
				fake.On(method, mcptest.InTurn(lost, mcptest.Behave))
				client := newClient(t, parts{})
				spent, err := a.do(t, client, docs(fake.URL), ample)
				if err != nil {
					t.Fatal(err)
				}
				outcome := "http_status"
				if tt.story == "in JSON-RPC" {
					outcome = "rpc_error"
				}
				want := append(after(method, outcome, 404), after(method, "ok", 200)...)
				got := legs(spent)
				if a.name == "import" {
					got = got[1:] // what finds out the era
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
				client.Close()
				if sent := fake.Sent(method); sent[len(sent)-1].Header.Get("Mcp-Session-Id") != "session-2" {
					t.Error("the request was not repeated in the new session")
				}
				if deleted := fake.Sent("DELETE"); len(deleted) != 1 || deleted[0].Header.Get("Mcp-Session-Id") != "session-2" {
					t.Errorf("%d sessions were deleted", len(deleted))
				}

				fake.On(method, lost) // it is lost again: that is final
				spent, err = a.do(t, client, docs(fake.URL), ample)
				if f := failure(t, err); string(f.Kind) != outcome || !strings.Contains(f.Message, method) {
					t.Errorf("failure %s: %s", f.Kind, f.Message)
				}
				if n := strings.Count(methods(spent), "initialize,"); n != 2 {
					t.Errorf("a session was opened %d times in legs %s", n, methods(spent))
				}
			})
		}
	}
}

func TestSessionIsLostInTheMiddleOfACatalogue(t *testing.T) {
	t.Parallel()
	fake := mcptest.New(t, mcptest.Options{PageSize: 1, Tools: []mcptest.Tool{{Name: "a"}, {Name: "b"}}})
	fake.On("tools/list", mcptest.InTurn(mcptest.Behave, func(x *mcptest.Exchange) {
		fake.ForgetSessions()
		x.Behave()
	}, mcptest.Behave))
	catalogue, spent, err := newClient(t, parts{}).ListTools(t.Context(), docs(fake.URL), ample)
	if err != nil || len(catalogue.Tools) != 2 || len(catalogue.Skipped) != 0 {
		t.Errorf("%+v, %v", catalogue, err)
	}
	if want := "tools/list, " + opening + ", tools/list, tools/list, " + opening + ", tools/list"; methods(spent) != want {
		t.Errorf("legs %s, want %s", methods(spent), want)
	}
}

// A session is opened anew once in an operation, not once for each page.
func TestSessionThatIsLostAgainAndAgain(t *testing.T) {
	t.Parallel()
	fake := mcptest.New(t, mcptest.Options{PageSize: 1, Tools: []mcptest.Tool{{Name: "a"}, {Name: "b"}, {Name: "c"}}})
	forget := func(x *mcptest.Exchange) {
		fake.ForgetSessions()
		x.Behave()
	}
	fake.On("tools/list", mcptest.InTurn(mcptest.Behave, forget, mcptest.Behave, forget, mcptest.Behave))
	spent, err := imports.do(t, newClient(t, parts{}), docs(fake.URL), ample)
	if f := failure(t, err); f.Kind != mcp.KindHTTPStatus || !strings.Contains(f.Message, "tools/list with status 404") {
		t.Errorf("failure %s: %s", f.Kind, f.Message)
	}
	if want := "tools/list, " + opening + ", tools/list, tools/list, " + opening + ", tools/list, tools/list"; methods(spent) != want {
		t.Errorf("legs %s, want %s", methods(spent), want)
	}
}

func TestNotFoundThatIsNoLostSession(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story   string
		options mcptest.Options
		kind    mcp.Kind
	}{
		{"no session was given", mcptest.Options{NoSession: true, On: on{"tools/call": mcptest.Status(404, nil, "no such page")}}, mcp.KindHTTPStatus},
		{"the method is not known", call(mcptest.Refuse(404, -32601, "method not found", "")), mcp.KindRPCError},
		{"another status", call(mcptest.Status(400, nil, "no such session")), mcp.KindHTTPStatus},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, tt.options)
			spent, err := calls.do(t, newClient(t, parts{}), docs(fake.URL), ample)
			if f := failure(t, err); f.Kind != tt.kind || methods(spent) != opening+", tools/call" {
				t.Errorf("failure %s in legs %s: %s", f.Kind, methods(spent), f.Message)
			}
		})
	}
}

func TestCallThatIsPutOff(t *testing.T) {
	t.Parallel()
	putOff := func(state string) mcptest.Behaviour {
		return mcptest.Result(`{"resultType":"input_required","requestState":` + state + `}`)
	}
	states := []struct{ sent, back string }{
		{`"a\u00e9<&>\n"`, `"a\u00e9<&>\n"`}, {`"eyJ4IjoxfQ=="`, `"eyJ4IjoxfQ=="`}, {`""`, `""`},
		{"{\r\n\"x\": \"\\n\"\n}", `{"x":"\n"}`}, // a message is one line
	}
	for n := range 5 {
		fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless, Tools: []mcptest.Tool{toolWith(regional)}})
		var script []mcptest.Behaviour
		for i := range n {
			script = append(script, putOff(states[(n+i)%len(states)].sent))
		}
		fake.On("tools/call", mcptest.InTurn(append(script, mcptest.Behave)...))
		call := mcp.ToolCall{Name: "echo", Arguments: json.RawMessage(`{"region":"eu"}`), InputSchema: json.RawMessage(regional)}
		_, spent, err := newClient(t, parts{}).CallTool(t.Context(), modern(fake.URL), call, ample)
		sent := fake.Sent("tools/call")
		if want := min(n, 3) + 1; len(spent.Legs) != want || len(sent) != want {
			t.Errorf("put off %d times: legs %v", n, legs(spent))
		}
		if n > 3 {
			if f := failure(t, err); f.Kind != mcp.KindMalformedResponse || !strings.Contains(f.Message, "put the call off 4 times") || spent.Legs[3].Outcome != "malformed_response" {
				t.Errorf("failure %s in legs %v: %s", f.Kind, legs(spent), f.Message)
			}
			continue
		}
		if err != nil {
			t.Errorf("put off %d times: %v", n, err)
		}
		ids := map[string]bool{}
		for i, r := range sent {
			ids[string(r.ID)] = true
			if r.Header.Get("Mcp-Param-Region") != "eu" {
				t.Error("a repetition lacks its header")
			}
			first := strings.TrimSuffix(string(sent[0].Params), "}")
			want := first + "}"
			if i > 0 {
				want = first + `,"requestState":` + states[(n+i-1)%len(states)].back + "}"
			}
			if diff := cmp.Diff(want, string(r.Params)); diff != "" {
				t.Errorf("call %d: %s", i+1, diff)
			}
		}
		if len(ids) != len(sent) {
			t.Errorf("%d calls had %d ids", len(sent), len(ids))
		}
	}
}

func TestResultTypes(t *testing.T) {
	t.Parallel()
	const rpc, malformed = mcp.KindRPCError, mcp.KindMalformedResponse
	for _, tt := range []struct {
		story  string
		act    act
		result string
		kind   mcp.Kind // empty: it is taken
		says   string
	}{
		{"complete", calls, `{"resultType":"complete","content":[]}`, "", ""},
		{"absent", calls, `{"content":[]}`, "", ""},
		{"null", calls, `{"resultType":null,"content":[]}`, "", ""},
		{"unknown", calls, `{"resultType":"task","task":{}}`, malformed, `its result is of type "task", which has no place there`},
		{"no word", calls, `{"resultType":5}`, malformed, `of type "5"`},
		{
			"a person is wanted", calls, `{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{}}},"requestState":"x"}`,
			rpc, `Input wanted: server "docs" will not finish tools/call without "elicitation/create", which legwork does not give.`,
		},
		{
			"a person and a model are wanted", calls, `{"resultType":"input_required","inputRequests":{"a":{"method":"sampling/createMessage"},"b":{"method":"elicitation/create"}}}`,
			rpc, `without "elicitation/create, sampling/createMessage", which`,
		},
		{"something is wanted in a list", calls, `{"resultType":"input_required","inputRequests":[{"method":"roots/list"}]}`, rpc, `"roots/list"`},
		{"something is wanted in words", calls, `{"resultType":"input_required","inputRequests":"your\u0000 name"}`, rpc, `your`},
		{"something is wanted and not said", calls, `{"resultType":"input_required"}`, malformed, "does not say what"},
		{"nothing is wanted", calls, `{"resultType":"input_required","inputRequests":{},"requestState":null}`, malformed, "does not say what"},
		{"a catalogue that wants something", imports, `{"resultType":"input_required","requestState":"x","tools":[]}`, malformed, `its result is of type "input_required", which has no place there`},
		{"a catalogue that is unknown", imports, `{"resultType":"later","tools":[]}`, malformed, `of type "later"`},
		{"a catalogue without a type", imports, `{"tools":[]}`, "", ""},
		{"a discovery that wants something", pings, `{"resultType":"input_required","requestState":"x","supportedVersions":["2026-07-28"]}`, malformed, `of type "input_required"`},
		{"a discovery that is unknown", pings, `{"resultType":"later","supportedVersions":["2026-07-28"]}`, malformed, `of type "later"`},
		{"a discovery without a type", pings, `{"supportedVersions":["2026-07-28"]}`, "", ""},
		{"a discovery without versions", pings, `{"resultType":"complete"}`, "", ""},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless, On: on{tt.act.method(): mcptest.Result(tt.result)}})
			spent, err := tt.act.do(t, newClient(t, parts{}), modern(fake.URL), ample)
			outcome := mcp.OutcomeOK
			if tt.kind == "" {
				if err != nil {
					t.Error(err)
				}
			} else {
				outcome = string(tt.kind)
				if f := failure(t, err); f.Kind != tt.kind || f.Asked != mcp.AskedYes || !strings.Contains(f.Message, tt.says) {
					t.Errorf("failure %s: %s", f.Kind, f.Message)
				}
			}
			if diff := cmp.Diff([]leg{{tt.act.method(), outcome, 200}}, legs(spent)); diff != "" || spent.Revision != mcp.RevisionStateless {
				t.Errorf("by revision %q: %s", spent.Revision, diff)
			}
		})
	}
}

// A call that a server has put off may be under way there.
func TestCallThatWasPutOffIsNotMovedToAnotherEra(t *testing.T) {
	t.Parallel()
	fake := mcptest.New(t, mcptest.Options{Era: mcptest.Both, On: on{"tools/call": mcptest.InTurn(
		mcptest.Result(`{"resultType":"input_required","requestState":"x"}`), mcptest.Refuse(400, -32000, "gone", ""), mcptest.Behave,
	)}})
	spent, err := calls.do(t, newClient(t, parts{}), modern(fake.URL), ample)
	if f := failure(t, err); f.Kind != mcp.KindRPCError || !strings.Contains(f.Message, "gone") || methods(spent) != "tools/call, tools/call" {
		t.Errorf("failure %s in legs %s: %s", f.Kind, methods(spent), f.Message)
	}
}

func TestEmptyCursorIsFollowedInTheStatelessEraAlone(t *testing.T) {
	t.Parallel()
	first := mcptest.Result(`{"resultType":"complete","tools":[{"name":"a"}],"nextCursor":""}`)
	for _, tt := range []struct {
		story string
		last  string
		tools int
		says  string
	}{
		{"then the end", `{"resultType":"complete","tools":[{"name":"b"}]}`, 2, ""},
		{"then null", `{"resultType":"complete","tools":[{"name":"b"}],"nextCursor":null}`, 2, ""},
		{"for ever", `{"resultType":"complete","tools":[{"name":"b"}],"nextCursor":""}`, 0, "page 2 points back"},
	} {
		fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless, On: on{"tools/list": mcptest.InTurn(first, mcptest.Result(tt.last))}})
		catalogue, _, err := newClient(t, parts{}).ListTools(t.Context(), modern(fake.URL), ample)
		if len(catalogue.Tools) != tt.tools || (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %+v, %v", tt.story, catalogue, err)
		}
		if sent := fake.Sent("tools/list"); len(sent) != 2 || !strings.HasSuffix(string(sent[1].Params), `,"cursor":""}`) {
			t.Errorf("%s: %d pages were asked for", tt.story, len(sent))
		}
	}
}

// Every probe and every repetition is granted what those before it left.
func TestProbesAndRepetitionsSpendTheOneBudget(t *testing.T) {
	t.Parallel()
	s := time.Second
	spend := func(clock *mcptest.Clock, d time.Duration, behaviour mcptest.Behaviour) mcptest.Behaviour {
		return func(x *mcptest.Exchange) {
			clock.Advance(d)
			behaviour(x)
		}
	}
	for _, tt := range []struct {
		story  string
		known  func(string) mcp.Server
		server func(*mcptest.Clock) mcptest.Options
		grants []time.Duration
		spent  string // the sentence of a budget that was not enough; empty when it was
	}{
		{
			"a probe and a handshake", unknown, func(c *mcptest.Clock) mcptest.Options {
				return mcptest.Options{On: on{"stateless": spend(c, 3*s, mcptest.NotInitialized), "initialize": mcptest.Spend(c, 4*s), "notifications/initialized": mcptest.Spend(c, 2*s)}}
			}, []time.Duration{20 * s, 17 * s, 13 * s, 11 * s}, "",
		},
		{
			"a probe that takes it all", unknown, func(c *mcptest.Clock) mcptest.Options {
				return mcptest.Options{On: on{"stateless": spend(c, 20*s, mcptest.NotInitialized)}}
			}, []time.Duration{20 * s},
			`Budget spent: initialize was not sent and server "docs" was not asked for it, because the 20 s of this operation went to server/discover (20 s).`,
		},
		{
			"a revision that is refused, and a header that is missed", modern, func(c *mcptest.Clock) mcptest.Options {
				return mcptest.Options{Era: mcptest.Stateless, On: on{
					"tools/call": mcptest.InTurn(spend(c, 3*s, mcptest.Refuse(400, -32022, "no", listsOurs)), spend(c, 4*s, mcptest.Refuse(400, -32020, "no", "")), mcptest.Behave),
					"tools/list": mcptest.Spend(c, 5*s),
				}}
			}, []time.Duration{20 * s, 17 * s, 13 * s, 8 * s}, "",
		},
		{
			"calls that are put off", modern, func(c *mcptest.Clock) mcptest.Options {
				return mcptest.Options{Era: mcptest.Stateless, On: on{
					"tools/call": spend(c, 10*s, mcptest.Result(`{"resultType":"input_required","requestState":"x"}`)),
				}}
			}, []time.Duration{20 * s, 10 * s},
			`Budget spent: tools/call was not sent and server "docs" was not asked for it, because the 20 s of this operation went to 2 times tools/call (20 s in all).`,
		},
		{
			"an upgrade", docs, func(c *mcptest.Clock) mcptest.Options {
				return mcptest.Options{Era: mcptest.Stateless, On: on{"initialize": mcptest.Spend(c, 6*s), "server/discover": mcptest.Spend(c, 5*s)}}
			}, []time.Duration{20 * s, 14 * s, 9 * s}, "",
		},
		{
			"a session that was lost", docs, func(c *mcptest.Clock) mcptest.Options {
				return mcptest.Options{On: on{
					"initialize": mcptest.Spend(c, 2*s), "tools/call": mcptest.InTurn(spend(c, 3*s, mcptest.Status(404, nil, "")), mcptest.Behave),
				}}
			}, []time.Duration{20 * s, 18 * s, 18 * s, 15 * s, 13 * s, 13 * s}, "",
		},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			clock := new(mcptest.Clock)
			fake := mcptest.New(t, tt.server(clock))
			spent, err := calls.do(t, newClient(t, parts{clock: clock}), tt.known(fake.URL), installation(20*s))
			if diff := cmp.Diff(tt.grants, grants(spent)); diff != "" {
				t.Error(diff)
			}
			if tt.spent == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if f := failure(t, err); f.Kind != mcp.KindBudgetSpent || !strings.HasPrefix(f.Message, tt.spent) {
				t.Errorf("failure %s: %s\nwant %s …", f.Kind, f.Message, tt.spent)
			}
		})
	}
}

// Annotations that break the rules cost their tool, where they mean something.
func TestMalformedAnnotationsCostTheirToolAlone(t *testing.T) {
	t.Parallel()
	tools := []mcptest.Tool{
		{Name: "good", InputSchema: json.RawMessage(regional)},
		{Name: "bad", InputSchema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"number","x-mcp-header":"A"}}}`)},
		{Name: "plain"},
	}
	for _, era := range []mcptest.Era{mcptest.Stateless, mcptest.Handshake} {
		fake := mcptest.New(t, mcptest.Options{Era: era, Tools: tools})
		catalogue, _, err := newClient(t, parts{}).ListTools(t.Context(), unknown(fake.URL), ample)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, tool := range catalogue.Tools {
			names = append(names, tool.Name)
		}
		want, skipped := []string{"good", "plain"}, []mcp.SkippedTool{
			{Name: "bad", Reason: `its x-mcp-header "A" stands on "a", which is neither a string, nor an integer, nor a boolean`},
		}
		if era == mcptest.Handshake {
			want, skipped = []string{"good", "bad", "plain"}, nil
		}
		if diff := cmp.Diff(want, names) + cmp.Diff(skipped, catalogue.Skipped); diff != "" {
			t.Errorf("era %v: %s", era, diff)
		}
	}
}

// The strict server reads the headers by rules of its own. Over HTTP/1.1 and HTTP/2 what it reads is what was meant.
func TestArgumentsInHeaders(t *testing.T) {
	t.Parallel()
	schema := json.RawMessage(`{"type":"object","properties":{
		"text":{"type":"string","x-mcp-header":"Text"},"count":{"type":"integer","x-mcp-header":"count"},"deep":{"type":"object","properties":{
			"er":{"type":"object","properties":{"flag":{"type":"boolean","x-mcp-header":"X-Deep_Flag"}}}}}}}`)
	for _, tt := range []struct {
		story     string
		arguments string
		want      http.Header
	}{
		{"words", `{"text":"eu west ~1"}`, http.Header{"Mcp-Param-Text": {"eu west ~1"}}},
		{"a tab", `{"text":"a\tb"}`, http.Header{"Mcp-Param-Text": {"=?base64?YQli?="}}},
		{"a line", `{"text":"a\r\nX-Evil: 1"}`, http.Header{"Mcp-Param-Text": {"=?base64?YQ0KWC1FdmlsOiAx?="}}},
		{"NUL", `{"text":"\u0000"}`, http.Header{"Mcp-Param-Text": {"=?base64?AA==?="}}},
		{"DEL", `{"text":"\u007f"}`, http.Header{"Mcp-Param-Text": {"=?base64?fw==?="}}},
		{"a space before", `{"text":" a"}`, http.Header{"Mcp-Param-Text": {"=?base64?IGE=?="}}},
		{"a space behind", `{"text":"a "}`, http.Header{"Mcp-Param-Text": {"=?base64?YSA=?="}}},
		{"a space alone", `{"text":" "}`, http.Header{"Mcp-Param-Text": {"=?base64?IA==?="}}},
		{"what looks encoded", `{"text":"=?base64?YQ==?="}`, http.Header{"Mcp-Param-Text": {"=?base64?PT9iYXNlNjQ/WVE9PT89?="}}},
		{"what looks encoded and is no Base64", `{"text":"=?base64?~?="}`, http.Header{"Mcp-Param-Text": {"=?base64?PT9iYXNlNjQ/fj89?="}}},
		{"what looks half encoded", `{"text":"=?base64?YQ=="}`, http.Header{"Mcp-Param-Text": {"=?base64?YQ=="}}},
		{"what looks encoded in capitals", `{"text":"=?BASE64?YQ==?="}`, http.Header{"Mcp-Param-Text": {"=?BASE64?YQ==?="}}},
		{"beyond ASCII", `{"text":"Zürich 日本"}`, http.Header{"Mcp-Param-Text": {"=?base64?WsO8cmljaCDml6XmnKw=?="}}},
		{"nothing", `{"text":""}`, http.Header{"Mcp-Param-Text": {""}}},
		{"null", `{"text":null,"count":null,"deep":null}`, http.Header{}},
		{"absent", `{}`, http.Header{}},
		{"the largest integer", `{"count":9007199254740991}`, http.Header{"Mcp-Param-Count": {"9007199254740991"}}},
		{"the smallest integer", `{"count":-9007199254740991}`, http.Header{"Mcp-Param-Count": {"-9007199254740991"}}},
		{"yes", `{"deep":{"er":{"flag":true}}}`, http.Header{"Mcp-Param-X-Deep_flag": {"true"}}},
		{"no", `{"deep":{"er":{"flag":false}},"flag":true}`, http.Header{"Mcp-Param-X-Deep_flag": {"false"}}},
		{"half of the way", `{"deep":{"er":5}}`, http.Header{}},
	} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/HTTP2=%v", tt.story, http2), func(t *testing.T) {
				t.Parallel()
				fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless, HTTP2: http2, Tools: []mcptest.Tool{{Name: "echo", InputSchema: schema}}})
				p := parts{}
				if http2 {
					p.tls = fake.TLS()
				}
				call := mcp.ToolCall{Name: "echo", Arguments: json.RawMessage(tt.arguments), InputSchema: schema}
				_, spent, err := newClient(t, p).CallTool(t.Context(), modern(fake.URL), call, ample)
				if err != nil || len(spent.Legs) != 1 {
					t.Fatalf("%v, legs %v", err, legs(spent))
				}
				got := http.Header{}
				for name, values := range fake.Sent("tools/call")[0].Header {
					if strings.HasPrefix(name, "Mcp-Param-") {
						got[name] = values
					}
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Error(diff)
				}
				var sent struct {
					Arguments json.RawMessage `json:"arguments"`
				}
				if err := json.Unmarshal(fake.Sent("tools/call")[0].Params, &sent); err != nil || string(sent.Arguments) != tt.arguments {
					t.Errorf("the body has the arguments %s, %v", sent.Arguments, err)
				}
			})
		}
	}
}

func TestNamesInHeaders(t *testing.T) {
	t.Parallel()
	client := newClient(t, parts{})
	for _, tt := range []struct{ name, header string }{
		{"search", "search"}, {"a/b.c d~", "a/b.c d~"}, {"日本", "=?base64?5pel5pys?="}, {" a", "=?base64?IGE=?="}, {"=?base64??=", "=?base64?PT9iYXNlNjQ/Pz0=?="},
	} {
		fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless, Tools: []mcptest.Tool{{Name: tt.name}}})
		_, spent, err := client.CallTool(t.Context(), modern(fake.URL), mcp.ToolCall{Name: tt.name, Arguments: json.RawMessage(`{}`)}, ample)
		if err != nil || len(spent.Legs) != 1 {
			t.Errorf("%q: %v, legs %v", tt.name, err, legs(spent))
		}
		if got := fake.Sent("tools/call")[0].Header.Get("Mcp-Name"); got != tt.header {
			t.Errorf("%q stands in the header as %q, want %q", tt.name, got, tt.header)
		}
	}
}

// A stored schema whose annotations break the rules says nothing; the call is made without headers.
func TestCallByASchemaThatBreaksTheRules(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{`{"properties":{"a":{"type":"string","x-mcp-header":""}}}`, `{"x-mcp-header`, `"x-mcp-header"`, ``} {
		fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless})
		call := mcp.ToolCall{Name: "echo", Arguments: json.RawMessage(`{"a":"b"}`), InputSchema: json.RawMessage(schema)}
		if _, spent, err := newClient(t, parts{}).CallTool(t.Context(), modern(fake.URL), call, ample); err != nil || len(spent.Legs) != 1 {
			t.Errorf("%s: %v, legs %v", schema, err, legs(spent))
		}
	}
}
