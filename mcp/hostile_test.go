package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"legwork/mcp"
	"legwork/mcp/mcptest"
)

func callOn(t *testing.T, server mcp.Server, budget mcp.Budget) (mcp.ToolResult, mcp.Spent, error) {
	t.Helper()
	return newClient(t, parts{}).CallTool(context.Background(), server, mcp.ToolCall{Name: "echo", Arguments: json.RawMessage(`{}`)}, budget)
}

// A connection that was switched to another protocol is the bare socket: no context of net/http ends a read on it.
func TestSwitchingProtocolsEndsTheLeg(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"initialize", "notifications/initialized", "tools/call"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			server := mcptest.New(t, mcptest.Options{})
			server.On(method, mcptest.RawThenStall("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"))
			_, spent, err := callOn(t, known(server), installation(20*time.Second))
			ended := failure(t, err)
			if ended.Kind != mcp.KindHTTPStatus || !strings.HasPrefix(ended.Message, "HTTP 101: ") {
				t.Errorf("%s: %s", ended.Kind, ended.Message)
			}
			if last := spent.Legs[len(spent.Legs)-1]; last.Status != 101 {
				t.Errorf("the last leg is %+v", last)
			}
		})
	}
}

// Servers quote the headers they were sent.
func TestACredentialThatComesBackIsNotKept(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		behaviour mcptest.Behaviour
	}{
		{"in a body with a failing status", mcptest.Status(http.StatusBadRequest, nil, "you sent Authorization: Bearer "+token)},
		{"in a JSON-RPC error", mcptest.Error(-32000, "Bearer "+token+" is expired")},
		{"in the text of a tool that failed", mcptest.Result(string(mcptest.Failed("token=" + token)))},
		{"in the text of a tool", mcptest.Result(string(mcptest.Text("token=" + token)))},
		{"in an event stream", mcptest.Body("text/event-stream", `data: {"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"`+token+`"}]}}`+"\n\n")},
		{"in the address of a redirect", mcptest.Redirect("https://elsewhere.example/" + token)},
		{"in the time to wait", mcptest.Status(http.StatusTooManyRequests, http.Header{"Retry-After": {token}}, "")},
		{"in a content type", mcptest.Body("text/x-"+token, "")},
		{"in what is no JSON", mcptest.Body("application/json", token)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := mcptest.New(t, mcptest.Options{})
			server.On("tools/call", tt.behaviour)
			configured := known(server)
			configured.Credential = mcp.Credential{Reference: tokenReference, Placement: mcp.PlaceBearer}
			result, _, err := callOn(t, configured, installation(20*time.Second))
			if sent := server.Sent("tools/call"); len(sent) != 1 || sent[0].Header.Get("Authorization") != "Bearer "+token {
				t.Fatalf("the credential was not sent: %+v", sent)
			}
			kept := fmt.Sprintf("%v %s %+v", err, result.Text, result)
			if strings.Contains(kept, token) {
				t.Errorf("the credential is in %s", kept)
			}
			if !strings.Contains(kept, "[redacted]") {
				t.Errorf("nothing shows that something was taken out: %s", kept)
			}
		})
	}
}

// To net/http an idempotency key means that a request may be sent again.
func TestACredentialCannotStandInAnIdempotencyKey(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Idempotency-Key", "x-idempotency-key", "Mcp-Param-Region", "Last-Event-ID"} {
		err := mcp.Server{Identifier: "docs", URL: "https://docs.example.com", Credential: mcp.Credential{Reference: "env:X", Placement: mcp.PlaceHeader, HeaderName: name}}.Validate()
		if err == nil || !strings.Contains(err.Error(), "uses it itself") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestACatalogueThatIsTooLarge(t *testing.T) {
	t.Parallel()
	server := mcptest.New(t, mcptest.Options{})
	long := strings.Repeat("x", 1<<20)
	pages := 0
	server.On("tools/list", func(x *mcptest.Exchange) {
		pages++
		x.Result(fmt.Sprintf(`{"tools":[{"name":"t%d","inputSchema":{},"description":%q}],"nextCursor":"%d"}`, pages, long, pages))
	})
	_, spent, err := newClient(t, parts{}).ListTools(context.Background(), known(server), installation(5*time.Minute))
	ended := failure(t, err)
	if ended.Kind != mcp.KindMalformedResponse || !strings.Contains(ended.Message, "more than 8 MiB") {
		t.Errorf("%s: %s", ended.Kind, ended.Message)
	}
	if pages > 8 {
		t.Errorf("%d pages of a MiB were read in %d legs", pages, len(spent.Legs))
	}
}

// The receipt of a notification may promise a body that never comes.
func TestTheReceiptOfANotificationIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	server := mcptest.New(t, mcptest.Options{})
	server.On("notifications/initialized", mcptest.RawThenStall("HTTP/1.1 202 Accepted\r\nContent-Length: 10\r\n\r\n"))
	if _, spent, err := callOn(t, known(server), installation(20*time.Second)); err != nil || len(spent.Legs) != 3 {
		t.Errorf("%v in %d legs", err, len(spent.Legs))
	}
}

// asynq ends a job at its limit to the millisecond; what is written down after that is too late.
func TestAJobsBudgetEndsBeforeTheJob(t *testing.T) {
	t.Parallel()
	server := mcptest.New(t, mcptest.Options{})
	server.On("tools/call", mcptest.Stall)
	limit, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	end, _ := limit.Deadline()
	// How late a timer of this machine is, which may be busy.
	var late atomic.Int64
	control := time.AfterFunc(time.Until(end)-300*time.Millisecond, func() { late.Store(int64(time.Since(end) + 300*time.Millisecond)) })
	defer control.Stop()
	_, spent, err := callOn(t, known(server), mcp.Budget{Total: time.Until(end), Owner: mcp.OwnerJob})
	if limit.Err() != nil && time.Duration(late.Load()) < 100*time.Millisecond {
		t.Error("the operation was still under way when its job ended")
	}
	if ended := failure(t, err); ended.Kind != mcp.KindNoAnswer || !strings.Contains(ended.Message, "its budget of 2 s") {
		t.Errorf("%s: %s", ended.Kind, ended.Message)
	}
	if last := spent.Legs[len(spent.Legs)-1]; last.Granted != 2*time.Second {
		t.Errorf("the last leg is %+v", last)
	}
}
