package mcptest_test

import (
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"legwork/mcp/mcptest"
)

// post sends a JSON-RPC message by hand, so that a test can leave things out.
func post(t *testing.T, url, body string, header http.Header) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header.Clone()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(answer)), resp.Header
}

func proper() http.Header {
	return http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Mcp-Protocol-Version": {"2025-11-25"},
	}
}

func without(header string) http.Header {
	h := proper()
	h.Del(header)
	return h
}

// A fake that takes anything would let a client's faults pass.
func TestServerIsStrict(t *testing.T) {
	t.Parallel()
	server := mcptest.New(t, mcptest.Options{})
	const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`
	const ping = `{"jsonrpc":"2.0","id":2,"method":"ping"}`
	status, body, header := post(t, server.URL, initialize, without("Mcp-Protocol-Version"))
	session := header.Get("Mcp-Session-Id")
	if status != 200 || session == "" || !strings.Contains(body, `"protocolVersion":"2025-11-25"`) {
		t.Fatalf("initialize: %d, session %q, %s", status, session, body)
	}
	with := func(h http.Header, session string) http.Header {
		h.Set("Mcp-Session-Id", session)
		return h
	}
	for _, tt := range []struct {
		story  string
		body   string
		header http.Header
		want   string
	}{
		{"no JSON-RPC", "hello", with(proper(), session), "the body is no JSON-RPC request"},
		{"no content type", ping, with(without("Content-Type"), session), "the content type is not application/json"},
		{"not both accepted", ping, with(without("Accept"), session), "JSON and event streams are not both accepted"},
		{"a version too early", initialize, proper(), "a protocol version was sent before one was agreed on"},
		{"no version", ping, with(without("Mcp-Protocol-Version"), session), "the protocol version is missing or unknown"},
		{"a session too early", initialize, with(without("Mcp-Protocol-Version"), session), "a session id was sent to open a session"},
		{"an answer to nothing", `{"jsonrpc":"2.0","id":1}`, with(proper(), session), "the body is no JSON-RPC request"},
		{"an answer", `{"jsonrpc":"2.0","id":1,"result":{}}`, with(proper(), session), ""},
		{"no session", ping, proper(), "the session id is missing"},
		{"another session", ping, with(proper(), "other"), "no such session"},
		{"an unknown method", `{"jsonrpc":"2.0","id":3,"method":"x"}`, with(proper(), session), `{"jsonrpc":"2.0","id":3,"error":{"code":-32601,"message":"method not found"}}`},
		{"all in order", ping, with(proper(), session), `{"jsonrpc":"2.0","id":2,"result":{}}`},
	} {
		if _, body, _ := post(t, server.URL, tt.body, tt.header); body != tt.want {
			t.Errorf("%s: %s, want %s", tt.story, body, tt.want)
		}
	}
}

func TestServerKeepsARecord(t *testing.T) {
	t.Parallel()
	server := mcptest.New(t, mcptest.Options{NoSession: true})
	before := time.Now()
	post(t, server.URL, `{"jsonrpc":"2.0","id":"a","method":"ping","params":{"x":1}}`, proper())
	post(t, server.URL, `nonsense`, proper())
	if diff := cmp.Diff([]string{"ping", "POST"}, server.Methods()); diff != "" {
		t.Fatal(diff)
	}
	r := server.Await(t, "ping", 1)[0]
	if string(r.ID) != `"a"` || string(r.Params) != `{"x":1}` || r.Header.Get("Mcp-Protocol-Version") != "2025-11-25" ||
		r.HTTPMethod != "POST" || r.Path != "/mcp" || r.Proto != "HTTP/1.1" || r.RemoteAddr == "" || r.At.Before(before) {
		t.Errorf("the record is %+v", r)
	}
	if body := string(server.Sent("POST")[0].Body); body != "nonsense" {
		t.Errorf("the body is %q", body)
	}
}

func TestBehavioursInTurn(t *testing.T) {
	t.Parallel()
	clock := new(mcptest.Clock)
	release := make(chan struct{})
	server := mcptest.New(t, mcptest.Options{NoSession: true, On: map[string]mcptest.Behaviour{"*": mcptest.InTurn(
		mcptest.Spend(clock, 4*time.Second), mcptest.Error(7, "no"), mcptest.Delay(time.Millisecond), mcptest.Hold(release), mcptest.Status(418, nil, "$ID"),
	)}})
	close(release)
	const good = `{"jsonrpc":"2.0","id":1,"result":{}}`
	for i, want := range []string{good, `{"jsonrpc":"2.0","id":1,"error":{"code":7,"message":"no"}}`, good, good, "1", "1"} {
		if _, body, _ := post(t, server.URL, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, proper()); body != want {
			t.Errorf("answer %d is %s, want %s", i+1, body, want)
		}
	}
	if clock.Now() != 4*time.Second {
		t.Errorf("the clock stands at %v", clock.Now())
	}
	server.On("ping", mcptest.Behave)
	if _, body, _ := post(t, server.URL, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, proper()); body != good {
		t.Errorf("the answer is %s", body)
	}
}

func TestSockets(t *testing.T) {
	t.Parallel()
	address := func(url string) string { return strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/mcp") }

	wedged := mcptest.Wedged(t)
	for n := range 3 {
		if got := wedged.Connections(t); got != n {
			t.Errorf("%d connections are counted, want %d", got, n)
		}
		conn, err := net.Dial("tcp", address(wedged.URL))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if conn, err := net.Dial("tcp", address(mcptest.Nowhere(t))); err == nil {
		conn.Close()
		t.Error("somebody listens nowhere")
	}
	conn, err := net.DialTimeout("tcp", address(mcptest.Unconnectable(t)), 300*time.Millisecond)
	if !os.IsTimeout(err) {
		t.Errorf("a connection to what cannot be connected: %v", err)
	}
	if err == nil {
		conn.Close()
	}
}
