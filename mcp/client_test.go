package mcp_test

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"legwork/mcp"
	"legwork/mcp/mcptest"
)

func TestConversation(t *testing.T) {
	t.Parallel()
	for _, options := range []mcptest.Options{{}, {Stream: true}, {NoSession: true}, {Stream: true, NoSession: true}} {
		t.Run(fmt.Sprintf("stream=%v/stateless=%v", options.Stream, options.NoSession), func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, options)
			client := newClient(t, parts{})
			result, spent, err := client.CallTool(t.Context(), docs(fake.URL), mcp.ToolCall{Name: "echo", Arguments: json.RawMessage(` {"q": 1} `)}, ample)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(mcp.ToolResult{Text: `{"q": 1}`}, result); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(after("tools/call", "ok", 200), legs(spent)); diff != "" {
				t.Error(diff)
			}
			if spent.Revision != "2025-11-25" {
				t.Errorf("the revision is %q", spent.Revision)
			}
			client.Close()

			want := []struct{ method, id, session, version, params string }{
				{"initialize", "1", "", "", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"legwork","version":"test"}}`},
				{"notifications/initialized", "", "session-1", "2025-11-25", ""},
				{"tools/call", "2", "session-1", "2025-11-25", `{"name":"echo","arguments": {"q": 1} }`},
				{"DELETE", "", "session-1", "2025-11-25", ""},
			}
			if options.NoSession {
				want = want[:3]
			}
			sent := fake.Requests()
			if len(sent) != len(want) {
				t.Fatalf("the server saw %q", fake.Methods())
			}
			for i, w := range want {
				r := sent[i]
				if options.NoSession {
					w.session = ""
				}
				if r.Method != w.method || string(r.ID) != w.id || string(r.Params) != w.params ||
					r.Header.Get("Mcp-Session-Id") != w.session || r.Header.Get("Mcp-Protocol-Version") != w.version {
					t.Errorf("request %d is %s, id %s, %s, session %q, version %q; want %+v", i+1,
						r.Method, r.ID, r.Params, r.Header.Get("Mcp-Session-Id"), r.Header.Get("Mcp-Protocol-Version"), w)
				}
				if r.Header.Get("User-Agent") != "legwork" || r.Path != "/mcp" {
					t.Errorf("request %d is by %q to %s", i+1, r.Header.Get("User-Agent"), r.Path)
				}
			}
			if open := fake.OpenSessions(); open != 0 {
				t.Errorf("%d sessions were left open", open)
			}
		})
	}
}

func TestRevisionIsAgreedOn(t *testing.T) {
	t.Parallel()
	for _, revision := range []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"} {
		t.Run(revision, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, mcptest.Options{Revision: revision})
			client := newClient(t, parts{})
			info, spent, err := client.Ping(t.Context(), docs(fake.URL), ample)
			if err != nil {
				t.Fatal(err)
			}
			want := mcp.ServerInfo{Name: "mcptest", Version: "1", Revision: revision, Capabilities: json.RawMessage(`{"tools":{}}`)}
			if diff := cmp.Diff(want, info); diff != "" || spent.Revision != revision {
				t.Errorf("revision %q: %s", spent.Revision, diff)
			}
			client.Close()
			for _, r := range fake.Requests()[1:] {
				if got := r.Header.Get("Mcp-Protocol-Version"); got != revision {
					t.Errorf("%s speaks of revision %q", r.Method, got)
				}
			}
		})
	}
	for _, revision := range []string{"2024-10-07", "2026-06-30", "1.0", "draft"} {
		t.Run(revision, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, mcptest.Options{Revision: revision})
			client := newClient(t, parts{})
			_, spent, err := client.Ping(t.Context(), docs(fake.URL), ample)
			if f := failure(t, err); f.Kind != mcp.KindMalformedResponse || !strings.Contains(f.Message, `"`+revision+`"`) || spent.Revision != "" {
				t.Errorf("failure %s, revision %q: %s", f.Kind, spent.Revision, f.Message)
			}
			client.Close() // the session is deleted all the same
			if got := fake.Methods(); len(got) != 2 || got[1] != http.MethodDelete || fake.OpenSessions() != 0 {
				t.Errorf("the server saw %q", got)
			}
		})
	}
}

func TestSessionIsDeletedWhateverCameOfTheCall(t *testing.T) {
	t.Parallel()
	for method, behaviour := range (on{
		"notifications/initialized": mcptest.Status(500, nil, ""),
		"tools/call":                mcptest.HangUp,
		"ping":                      mcptest.Behave, // is not called: a call that goes well
	}) {
		fake := mcptest.New(t, mcptest.Options{On: on{method: behaviour}})
		client := newClient(t, parts{})
		_, _, err := client.CallTool(t.Context(), docs(fake.URL), echo, ample)
		if (err == nil) != (method == "ping") {
			t.Error(err)
		}
		client.Close()
		if got := len(fake.Sent("DELETE")); got != 1 || fake.OpenSessions() != 0 {
			t.Errorf("%s: the session was deleted %d times, %d are open", method, got, fake.OpenSessions())
		}
	}
}

// The deletion is beside the path: it is no leg, its failure is no failure, and what it costs is not on the budget.
func TestDeletionThatIsRefused(t *testing.T) {
	t.Parallel()
	for _, behaviour := range []mcptest.Behaviour{mcptest.Status(405, nil, "no"), mcptest.HangUp, mcptest.EndlessBody, mcptest.Raw("?")} {
		fake := mcptest.New(t, mcptest.Options{On: on{"DELETE": behaviour}})
		client := newClient(t, parts{})
		for range 2 {
			_, spent, err := client.CallTool(t.Context(), docs(fake.URL), echo, ample)
			if err != nil || len(spent.Legs) != 3 {
				t.Errorf("%v, legs %v", err, legs(spent))
			}
		}
		client.Close()
		if got := len(fake.Sent("DELETE")); got != 2 {
			t.Errorf("two sessions were deleted %d times", got)
		}
	}
}

func TestDeletionDelaysNoAnswerAndCloseWaitsForIt(t *testing.T) {
	t.Parallel()
	fake := mcptest.New(t, mcptest.Options{On: on{"DELETE": mcptest.Stall}})
	var underWay atomic.Int32
	client := newClient(t, parts{wrap: func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodDelete {
				underWay.Add(1)
				defer underWay.Add(-1)
			}
			return next.RoundTrip(r)
		})
	}})
	// The server does not answer the deletion, so a call that waited for it would come back to none under way.
	if _, _, err := client.CallTool(t.Context(), docs(fake.URL), echo, ample); err != nil {
		t.Fatal(err)
	}
	fake.Await(t, "DELETE", 1)
	if n := underWay.Load(); n != 1 {
		t.Errorf("%d deletions are under way after the call, want 1", n)
	}
	client.Close()
	if n := underWay.Load(); n != 0 {
		t.Errorf("%d deletions are under way after Close", n)
	}
}

func TestWedgedServerCollectsNoDeletions(t *testing.T) {
	t.Parallel()
	fake := mcptest.New(t, mcptest.Options{On: on{"DELETE": mcptest.Stall}})
	var mu sync.Mutex
	underWay, most := 0, 0
	client := newClient(t, parts{wrap: func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodDelete {
				return next.RoundTrip(r)
			}
			mu.Lock()
			underWay++
			most = max(most, underWay)
			mu.Unlock()
			defer func() {
				mu.Lock()
				underWay--
				mu.Unlock()
			}()
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
	}})
	var running sync.WaitGroup
	for range 20 {
		running.Go(func() {
			for range 15 {
				if _, _, err := client.Ping(t.Context(), docs(fake.URL), ample); err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
	client.Close()
	if most > 256 || most == 0 {
		t.Errorf("%d deletions were under way at once, want at most 256", most)
	}
}

func TestCatalogue(t *testing.T) {
	t.Parallel()
	schema := `{"type":"object","properties":{"b":{"type":"string","pattern":"<\u00e9>"},"a":{"const":9007199254740993}},"x":1.0}`
	fake := mcptest.New(t, mcptest.Options{PageSize: 2, Tools: []mcptest.Tool{
		{Name: "search", Title: "Search", Description: "Finds.", InputSchema: json.RawMessage(schema), Annotations: json.RawMessage(`{"readOnlyHint":true}`)},
		{Name: "plain", Entry: json.RawMessage(`{"name":"plain"}`)},
		{Entry: json.RawMessage(`{"name":"odd name/ä","inputSchema":{},"title":5,"description":null,"annotations":null,"_meta":{}}`)},
		{Entry: json.RawMessage(`"a word"`)},
		{Entry: json.RawMessage(`null`)},
		{Entry: json.RawMessage(`{"title":"nameless"}`)},
		{Entry: json.RawMessage(`{"name":7}`)},
		{Entry: json.RawMessage(`{"name":""}`)},
		{Entry: json.RawMessage(`{"name":"a\u0000b"}`)},
		{Entry: json.RawMessage(`{"name":"search","description":"another"}`)},
		{Entry: json.RawMessage(`{"name":"listed","inputSchema":[1]}`)},
	}})
	catalogue, spent, err := newClient(t, parts{}).ListTools(t.Context(), docs(fake.URL), ample)
	if err != nil {
		t.Fatal(err)
	}
	want := mcp.Catalogue{
		Tools: []mcp.Tool{
			{Name: "search", Title: "Search", Description: "Finds.", InputSchema: json.RawMessage(schema), Annotations: json.RawMessage(`{"readOnlyHint":true}`)},
			{Name: "plain", InputSchema: json.RawMessage(`{"type":"object"}`)},
			{Name: "odd name/ä", InputSchema: json.RawMessage(`{}`)},
		},
		Skipped: []mcp.SkippedTool{
			{Reason: `the entry is not an object; it begins with "'a word'"`},
			{Reason: `the entry is not an object; it begins with "null"`},
			{Reason: `the entry has no name; it begins with "{'title':'nameless'}"`},
			{Reason: `the entry has no name; it begins with "{'name':7}"`},
			{Reason: `the tool's name is missing`},
			{Name: "ab", Reason: `the tool's name "ab" holds control characters or is not UTF-8`},
			{Name: "search", Reason: `the name was advertised more than once; the first is kept`},
			{Name: "listed", Reason: `the input schema is not an object; it begins with "[1]"`},
		},
		Untyped: []string{"plain"},
	}
	if diff := cmp.Diff(want, catalogue); diff != "" {
		t.Error(diff)
	}
	var cursors []string
	for _, r := range fake.Sent("tools/list")[1:] { // the first finds out the era
		cursors = append(cursors, string(r.Params))
	}
	if diff := cmp.Diff([]string{`{}`, `{"cursor":"2"}`, `{"cursor":"4"}`, `{"cursor":"6"}`, `{"cursor":"8"}`, `{"cursor":"10"}`}, cursors); diff != "" {
		t.Error(diff)
	}
	if len(spent.Legs) != 9 {
		t.Errorf("legs %v", legs(spent))
	}
}

func TestEndsOfACatalogue(t *testing.T) {
	t.Parallel()
	for _, end := range []string{`{"tools":[]}`, `{"tools":null}`, `{"tools":[],"nextCursor":""}`, `{"tools":[],"nextCursor":null}`} {
		fake := mcptest.New(t, mcptest.Options{On: on{"tools/list": mcptest.Result(end)}})
		catalogue, _, err := newClient(t, parts{}).ListTools(t.Context(), docs(fake.URL), ample)
		if err != nil || len(catalogue.Tools)+len(catalogue.Skipped) != 0 || len(fake.Sent("tools/list")) != 2 {
			t.Errorf("%s: %v, %+v in %d pages", end, err, catalogue, len(fake.Sent("tools/list"))-1)
		}
	}
}

func TestMostToolsThatAreTaken(t *testing.T) {
	t.Parallel()
	tools := make([]mcptest.Tool, mcp.MaxTools)
	for i := range tools {
		tools[i].Name = fmt.Sprintf("tool_%d", i)
	}
	fake := mcptest.New(t, mcptest.Options{Tools: tools, PageSize: 100})
	client := newClient(t, parts{})
	catalogue, _, err := client.ListTools(t.Context(), docs(fake.URL), ample)
	if err != nil || len(catalogue.Tools) != mcp.MaxTools {
		t.Errorf("%d tools, %v", len(catalogue.Tools), err)
	}
	fake.SetTools(append(tools, mcptest.Tool{Name: "one more"})...)
	if _, _, err := client.ListTools(t.Context(), docs(fake.URL), ample); failure(t, err).Kind != mcp.KindMalformedResponse {
		t.Error(err)
	}
}

// What a server calls itself is for display: it is taken as it is, and costs nothing else.
func TestWhatAServerCallsItself(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ info, name, version string }{
		{`{"name":"a \"b\"","version":""}`, `a "b"`, ""},
		{`{"version":2.5,"name":"docs"}`, "docs", "2.5"},
		{`{"name":["a\n"],"version":null}`, `['a\n']`, ""},
		{`null`, "", ""},
		{`"docs 2"`, "", ""},
	} {
		fake := mcptest.New(t, mcptest.Options{NoSession: true, On: on{"initialize": mcptest.Result(
			`{"serverInfo":` + tt.info + `,"capabilities":{"x": 1},"protocolVersion":"2025-06-18"}`)}})
		info, _, err := newClient(t, parts{}).Ping(t.Context(), docs(fake.URL), ample)
		if err != nil {
			t.Errorf("%s: %v", tt.info, err)
		}
		want := mcp.ServerInfo{Name: tt.name, Version: tt.version, Revision: "2025-06-18", Capabilities: json.RawMessage(`{"x": 1}`)}
		if diff := cmp.Diff(want, info); diff != "" {
			t.Errorf("%s: %s", tt.info, diff)
		}
	}
}

// What is kept of a handshake does not keep all that came with it. The test runs beside no other: it measures memory.
func TestServerInfoKeepsNoAnswer(t *testing.T) {
	const servers, size = 32, 1 << 20
	fake := mcptest.New(t, mcptest.Options{NoSession: true, On: on{"initialize": mcptest.Result(
		`{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{},"instructions":"` + strings.Repeat("x", size) + `"}`)}})
	client := newClient(t, parts{})
	held := func() uint64 {
		runtime.GC()
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	var infos []mcp.ServerInfo
	before := held()
	for range servers {
		info, _, err := client.Ping(t.Context(), docs(fake.URL), ample)
		if err != nil {
			t.Fatal(err)
		}
		infos = append(infos, info)
	}
	if after := held(); after > before+servers*size/2 {
		t.Errorf("%d servers hold %d kB more", servers, (after-before)>>10)
	}
	runtime.KeepAlive(infos)
}

func TestToolResults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story  string
		result string
		want   mcp.ToolResult
	}{
		{"nothing", `{}`, mcp.ToolResult{}},
		{"no content", `{"content":null,"structuredContent":null,"isError":false}`, mcp.ToolResult{}},
		{"lines", `{"content":[{"type":"text","text":"one"},{"type":"text","text":""},{"text":null,"type":"text"},{"type":"text","text":"four"}]}`, mcp.ToolResult{Text: "one\n\n\nfour"}},
		{"structured content as the server wrote it", `{"structuredContent":{"n": 9007199254740993, "f":1.0,"t":"\u00e9<"}}`,
			mcp.ToolResult{Structured: json.RawMessage(`{"n": 9007199254740993, "f":1.0,"t":"\u00e9<"}`)}},
		{"structured content of another form", `{"structuredContent":[1,2]}`, mcp.ToolResult{Structured: json.RawMessage(`[1,2]`)}},
		{"NUL and a lone surrogate", `{"content":[{"type":"text","text":"a\u0000b\ud800c"}]}`, mcp.ToolResult{Text: "a\x00b\ufffdc"}},
		{
			"other blocks are dropped and counted",
			`{"content":[{"type":"image","data":"x"},{"type":"text","text":"seen"},{"type":"resource_link"},{"type":"image"},{"type":"audio"},{"type":"resource","resource":{"text":"t"}}]}`,
			mcp.ToolResult{
				Text:    "[dropped, because only text is kept: 1 audio, 2 image, 1 resource, 1 resource_link]\nseen",
				Dropped: map[string]int{"audio": 1, "image": 2, "resource": 1, "resource_link": 1},
			},
		},
		{
			"blocks that are none", `{"content":[5,null,{},{"type":""},{"type":"\u0000"},{"type":5},{"type":"text","text":5}]}`,
			mcp.ToolResult{Text: "[dropped, because only text is kept: 7 unknown]", Dropped: map[string]int{"unknown": 7}},
		},
		{
			"types that are made up", `{"content":[{"type":"a"},{"type":"b"},{"type":"c"},{"type":"d"},{"type":"e"},{"type":"f"},{"type":"g"},{"type":"h"},{"type":"i"},{"type":"j"},{"type":"a"}]}`,
			mcp.ToolResult{
				Text:    "[dropped, because only text is kept: 2 a, 1 b, 1 c, 1 d, 1 e, 1 f, 1 g, 1 h, 2 other]",
				Dropped: map[string]int{"a": 2, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1, "h": 1, "other": 2},
			},
		},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, mcptest.Options{On: on{"tools/call": mcptest.Result(tt.result)}})
			result, _, err := newClient(t, parts{}).CallTool(t.Context(), docs(fake.URL), echo, ample)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, result); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestToolErrorKeepsItsResult(t *testing.T) {
	t.Parallel()
	fake := mcptest.New(t, mcptest.Options{On: on{"tools/call": mcptest.Result(
		`{"content":[{"type":"image"},{"type":"text","text":"quota is used up"}],"structuredContent":{"left":0},"isError":true}`)}})
	result, spent, err := newClient(t, parts{}).CallTool(t.Context(), docs(fake.URL), echo, ample)
	want := mcp.ToolResult{
		Text:       "[dropped, because only text is kept: 1 image]\nquota is used up",
		Structured: json.RawMessage(`{"left":0}`), IsError: true, Dropped: map[string]int{"image": 1},
	}
	if diff := cmp.Diff(want, result); diff != "" {
		t.Error(diff)
	}
	f := failure(t, err)
	if f.Kind != mcp.KindToolError || !strings.Contains(f.Message, "quota is used up") {
		t.Errorf("failure %s: %s", f.Kind, f.Message)
	}
	if diff := cmp.Diff(after("tools/call", "tool_error", 200), legs(spent)); diff != "" {
		t.Error(diff)
	}
	stored, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(`{"text":"[dropped, because only text is kept: 1 image]\nquota is used up","structured":{"left":0},"is_error":true,"dropped":{"image":1}}`, string(stored)); diff != "" {
		t.Error(diff)
	}
}

// Every way in which servers write a good answer.
func TestAnswersThatAreTaken(t *testing.T) {
	t.Parallel()
	const result = `"result":{"content":[{"type":"text","text":"ok"}]}`
	const answer = `{"jsonrpc":"2.0","id":$ID,` + result + `}`
	const stream = "text/event-stream"
	for _, tt := range []struct {
		story     string
		behaviour mcptest.Behaviour
	}{
		{"JSON", mcptest.Body("application/json", answer)},
		{"JSON with a charset", mcptest.Body("application/json; charset=utf-8", answer)},
		{"JSON in capitals", mcptest.Body("Application/JSON", answer)},
		{"JSON with a byte order mark", mcptest.Body("application/json", "\ufeff"+answer)},
		{"JSON with white space", mcptest.Body("application/json", "\r\n "+answer+"\n\n")},
		{"compressed JSON", mcptest.Gzip("application/json", answer)},
		{"an id that is a string", mcptest.Body("application/json", strings.Replace(answer, "$ID", `"$ID"`, 1))},
		{"a null error beside the result", mcptest.Body("application/json", `{"error":null,"id":$ID,`+result+`}`)},
		{"JSON in an array", mcptest.Body("application/json", "["+answer+"]")},
		{"another good status", mcptest.Status(201, http.Header{"Content-Type": {"application/json"}}, answer)},
		{"one event", mcptest.Body(stream, "event: message\ndata: "+answer+"\n\n")},
		{"one event, compressed", mcptest.Gzip(stream, "event: message\ndata: "+answer+"\n\n")},
		{"an event without a type", mcptest.Body(stream, "data:"+answer+"\n\n")},
		{"an event with a byte order mark", mcptest.Body(stream, "\ufeffdata: "+answer+"\n\n")},
		{"an event in lines of CRLF", mcptest.Body(stream, "event: message\r\ndata: "+answer+"\r\n\r\n")},
		{"an event in lines of CR", mcptest.Body(stream, "event: message\rdata: "+answer+"\r\r")},
		{"an event of several lines", mcptest.Body(stream, "data: "+strings.Replace(answer, `,"id"`, ",\ndata: \"id\"", 1)+"\n\n")},
		{"a last event without its blank line", mcptest.Body(stream, "data: "+answer+"\n")},
		{"a last event without its line end", mcptest.Body(stream, "data: "+answer)},
		{"comments, priming and notifications before it", mcptest.Body(stream,
			": hello\n\nid: 1\nretry: 3000\ndata:\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{}}\n\n"+
				"event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":$ID,\"method\":\"sampling/createMessage\"}\n\nevent: ping\ndata: x\n\ndata: "+answer+"\n\n")},
		{"more after it", mcptest.Body(stream, "data: "+answer+"\n\ndata: nonsense\n\n")},
		{"a stream that stays open after it", mcptest.BodyThenStall(stream, "data: "+answer+"\n\n")},
		{"a stream that breaks after it", mcptest.BodyThenHangUp(stream, "data: "+answer+"\n\n")},
		{"a stream without end after it", func(x *mcptest.Exchange) {
			mcptest.Body(stream, "data: "+answer+"\n\n")(x)
			x.Flush()
			mcptest.EndlessBody(x)
		}},
		{"a compressed stream that stays open after it", gzipThenStall(stream, "data: "+answer+"\n\n")},
	} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/HTTP2=%v", tt.story, http2), func(t *testing.T) {
				t.Parallel()
				fake := mcptest.New(t, mcptest.Options{HTTP2: http2, On: on{"tools/call": tt.behaviour}})
				p := parts{}
				if http2 {
					p.tls = fake.TLS()
				}
				client := newClient(t, p)
				for range 2 { // the second shows that the first left the connection in order
					result, spent, err := client.CallTool(t.Context(), docs(fake.URL), echo, ample)
					if err != nil {
						t.Fatal(err)
					}
					if result.Text != "ok" || spent.Legs[len(spent.Legs)-1].Outcome != mcp.OutcomeOK {
						t.Errorf("%+v in legs %v", result, legs(spent))
					}
				}
			})
		}
	}
}

func gzipThenStall(contentType, body string) mcptest.Behaviour {
	return func(x *mcptest.Exchange) {
		x.W.Header().Set("Content-Type", contentType)
		x.W.Header().Set("Content-Encoding", "gzip")
		zip := gzip.NewWriter(x.W)
		_, _ = zip.Write([]byte(strings.ReplaceAll(body, "$ID", string(x.ID))))
		_ = zip.Flush()
		x.Flush()
		mcptest.Stall(x)
	}
}

func TestRefusalsInEveryShape(t *testing.T) {
	t.Parallel()
	const jsonType = "application/json"
	for _, tt := range []struct {
		story     string
		behaviour mcptest.Behaviour
		says      string
	}{
		{"an error object", mcptest.Body(jsonType, `{"id":$ID,"error":{"code":-32000,"message":"no"}}`), `with code -32000; it said "no".`},
		{"without an id", mcptest.Body(jsonType, `{"error":{"code":-32700,"message":"no"}}`), `with code -32700; it said "no".`},
		{"with a null id", mcptest.Body(jsonType, `{"id":null,"error":{"code":-32700,"message":"no"}}`), `with code -32700; it said "no".`},
		{"a code that is a string", mcptest.Body(jsonType, `{"id":$ID,"error":{"code":"E\"42","message":"no"}}`), `with code E'42; it said "no".`},
		{"no code", mcptest.Body(jsonType, `{"id":$ID,"error":{"message":"no"}}`), `with code none; it said "no".`},
		{"no message but data", mcptest.Body(jsonType, `{"id":$ID,"error":{"code":1,"data":{"why":"no"}}}`), `with code 1; it said "{'why':'no'}".`},
		{"a message that is none", mcptest.Body(jsonType, `{"id":$ID,"error":{"code":1,"message":["no"]}}`), `with code 1; it said "['no']".`},
		{"an error that is a word", mcptest.Body(jsonType, `{"id":$ID,"error":"no"}`), `with code none; it said "no".`},
		{"beside a result", mcptest.Body(jsonType, `{"id":$ID,"result":{},"error":{"code":1,"message":"no"}}`), `with code 1; it said "no".`},
		{"on a stream", mcptest.Body("text/event-stream", "data: {\"id\":$ID,\"error\":{\"code\":1,\"message\":\"no\"}}\n\n"), `with code 1; it said "no".`},
		{"with a status, another id and no type", mcptest.Status(404, nil, `{"id":"server-error","error":{"code":-32001,"message":"no"}}`), `with code -32001 and HTTP 404; it said "no".`},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, mcptest.Options{On: on{"tools/call": tt.behaviour}})
			_, _, err := newClient(t, parts{}).CallTool(t.Context(), docs(fake.URL), echo, ample)
			if f := failure(t, err); f.Kind != mcp.KindRPCError || !strings.HasSuffix(f.Message, tt.says) {
				t.Errorf("failure %s: %s\nwant … %s", f.Kind, f.Message, tt.says)
			}
		})
	}
}

func TestConnectionIsKeptBetweenOperations(t *testing.T) {
	t.Parallel()
	for _, options := range []mcptest.Options{{}, {Stream: true}} {
		fake := mcptest.New(t, options)
		client := newClient(t, parts{})
		for range 5 {
			if _, _, err := client.CallTool(t.Context(), docs(fake.URL), echo, ample); err != nil {
				t.Fatal(err)
			}
			client.Close()
		}
		connections := map[string]bool{}
		for _, r := range fake.Requests() {
			connections[r.RemoteAddr] = true
		}
		// A stream is given a moment to end, which a slow machine may let pass now and then.
		if len(connections) != 1 && (!options.Stream || len(connections) == 15) {
			t.Errorf("stream %v: %d connections", options.Stream, len(connections))
		}
	}
}

func TestLatencyIsTheLastLegs(t *testing.T) {
	t.Parallel()
	clock := new(mcptest.Clock)
	fake := mcptest.New(t, mcptest.Options{On: on{
		"initialize": mcptest.Spend(clock, 4*time.Second), "tools/call": mcptest.Spend(clock, 3*time.Second),
	}})
	_, spent, err := newClient(t, parts{clock: clock}).CallTool(t.Context(), docs(fake.URL), echo, ample)
	if err != nil || spent.Latency() != 3*time.Second || spent.Elapsed != 7*time.Second {
		t.Errorf("%v: latency %v of %v", err, spent.Latency(), spent.Elapsed)
	}
	if (mcp.Spent{}).Latency() != 0 {
		t.Error("an operation without legs has a latency")
	}
}
