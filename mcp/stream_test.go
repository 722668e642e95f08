package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"legwork/mcp"
	"legwork/mcp/mcptest"
)

func TestAStreamThatEndedEarlyIsResumed(t *testing.T) {
	t.Parallel()
	server := mcptest.New(t, mcptest.Options{})
	var awaited json.RawMessage
	server.On("tools/call", func(x *mcptest.Exchange) {
		awaited = x.ID
		mcptest.Body("text/event-stream", "id: 1\nretry: 10\ndata:\n\n")(x)
	})
	server.On("GET", func(x *mcptest.Exchange) {
		mcptest.Body("text/event-stream", fmt.Sprintf("id: 2\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"late\"}]}}\n\n", awaited))(x)
	})
	client := newClient(t, parts{})
	result, spent, err := client.CallTool(context.Background(), known(server), mcp.ToolCall{Name: "echo", Arguments: json.RawMessage(`{}`)}, installation(20*time.Second))
	if err != nil || result.Text != "late" {
		t.Fatalf("result %+v, %v", result, err)
	}
	if got := methodsOf(spent); got != "initialize, notifications/initialized, tools/call, tools/call (resumed)" {
		t.Errorf("legs: %s", got)
	}
	gets := server.Sent("GET")
	if len(gets) != 1 || gets[0].Header.Get("Last-Event-Id") != "1" || gets[0].Header.Get("Mcp-Session-Id") == "" || gets[0].Header.Get("Accept") != "text/event-stream" {
		t.Errorf("resumed with %+v", gets)
	}
	if calls := server.Sent("tools/call"); len(calls) != 1 {
		t.Errorf("the tool was called %d times", len(calls))
	}
}

func TestResumingEndsWhereThereIsNoHeadway(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		answer mcptest.Behaviour
		gets   int
	}{
		{"an empty stream", mcptest.Body("text/event-stream", ""), 1},
		{"the same event again", mcptest.Body("text/event-stream", "id: 1\ndata:\n\n"), 1},
		{"a server that does not resume", mcptest.Status(http.StatusMethodNotAllowed, nil, ""), 1},
		{
			"a server that says in JSON-RPC that it does not resume",
			mcptest.Status(http.StatusMethodNotAllowed, http.Header{"Content-Type": {"application/json"}}, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Method not allowed."}}`), 1,
		},
		{"one new event, and then none", mcptest.InTurn(mcptest.Body("text/event-stream", "id: 2\ndata:\n\n"), mcptest.Body("text/event-stream", "")), 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := mcptest.New(t, mcptest.Options{})
			server.On("tools/call", mcptest.Body("text/event-stream", "id: 1\nretry: 10\ndata:\n\n"))
			server.On("GET", tt.answer)
			_, spent, err := newClient(t, parts{}).CallTool(context.Background(), known(server), mcp.ToolCall{Name: "echo", Arguments: json.RawMessage(`{}`)}, installation(20*time.Second))
			ended := failure(t, err)
			if ended.Kind != mcp.KindMalformedResponse || !strings.Contains(ended.Message, "ended without an answer") {
				t.Errorf("%s: %s", ended.Kind, ended.Message)
			}
			if got := len(server.Sent("GET")); got != tt.gets {
				t.Errorf("taken up again %d times, want %d", got, tt.gets)
			}
			if calls := server.Sent("tools/call"); len(calls) != 1 || len(spent.Legs) != 3+tt.gets {
				t.Errorf("%d calls in %d legs", len(calls), len(spent.Legs))
			}
		})
	}
}

// A server that ends each stream at once, with a new event and no pause, is not asked as fast as it can answer.
func TestAServerThatMakesHeadwayWithoutEnd(t *testing.T) {
	t.Parallel()
	server := mcptest.New(t, mcptest.Options{})
	event := 0
	next := func(x *mcptest.Exchange) {
		event++
		mcptest.Body("text/event-stream", fmt.Sprintf("id: %d\nretry: 1\ndata:\n\n", event))(x)
	}
	server.On("tools/call", next)
	server.On("GET", next)
	_, spent, err := newClient(t, parts{}).CallTool(context.Background(), known(server), mcp.ToolCall{Name: "echo", Arguments: json.RawMessage(`{}`)}, installation(3*time.Second))
	if ended := failure(t, err); ended.Kind != mcp.KindNoAnswer || ended.Asked != mcp.AskedUnknown {
		t.Errorf("%s: %s", ended.Kind, ended.Message)
	}
	if got := len(server.Sent("GET")); got < 2 || got > 20 || len(spent.Legs) != 3+got {
		t.Errorf("taken up again %d times in %d legs", got, len(spent.Legs))
	}
}

func TestAServerThatWantsToBeLeftAloneTooLong(t *testing.T) {
	t.Parallel()
	server := mcptest.New(t, mcptest.Options{})
	server.On("tools/call", mcptest.Body("text/event-stream", "id: 1\nretry: 3600000\ndata:\n\n"))
	_, _, err := newClient(t, parts{}).CallTool(context.Background(), known(server), mcp.ToolCall{Name: "echo", Arguments: json.RawMessage(`{}`)}, installation(20*time.Second))
	ended := failure(t, err)
	if ended.Kind != mcp.KindNoAnswer || ended.Asked != mcp.AskedUnknown || !strings.Contains(ended.Message, "wants to be left alone for 3600 s, of which ") {
		t.Errorf("%s, asked %s: %s", ended.Kind, ended.Asked, ended.Message)
	}
	if got := len(server.Sent("GET")); got != 0 {
		t.Errorf("taken up again %d times", got)
	}
}

func TestAServersOwnRequestsAreAnswered(t *testing.T) {
	t.Parallel()
	server := mcptest.New(t, mcptest.Options{})
	answered := make(chan json.RawMessage, 2)
	server.On("POST", func(x *mcptest.Exchange) { // a body without a method is an answer
		answered <- x.Body
		x.W.WriteHeader(http.StatusAccepted)
	})
	server.On("tools/call", func(x *mcptest.Exchange) {
		x.W.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(x.W, "data: {\"jsonrpc\":\"2.0\",\"id\":\"p\",\"method\":\"ping\"}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"roots/list\"}\n\n")
		x.Flush()
		for range 2 { // it waits for both, as some do
			select {
			case body := <-answered:
				switch got := string(body); got {
				case `{"jsonrpc":"2.0","id":"p","result":{}}`, `{"jsonrpc":"2.0","id":9,"error":{"code":-32601,"message":"not supported by this client"}}`:
				default:
					t.Errorf("answered with %s", got)
				}
			case <-x.Done():
				return
			}
		}
		fmt.Fprintf(x.W, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[]}}\n\n", x.ID)
	})
	_, spent, err := newClient(t, parts{}).CallTool(context.Background(), known(server), mcp.ToolCall{Name: "echo", Arguments: json.RawMessage(`{}`)}, installation(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if got := methodsOf(spent); got != "initialize, notifications/initialized, answer to ping, answer to roots/list, tools/call" {
		t.Errorf("legs: %s", got)
	}
}

// known is a server of the handshake's era that was asked before.
func known(server *mcptest.Server) mcp.Server {
	return mcp.Server{Identifier: "docs", URL: server.URL, Revision: "2025-11-25"}
}

func methodsOf(spent mcp.Spent) string {
	var methods []string
	for _, leg := range spent.Legs {
		methods = append(methods, leg.Method)
	}
	return strings.Join(methods, ", ")
}
