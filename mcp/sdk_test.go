package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"legwork/mcp"
)

type searchArguments struct {
	Query string `json:"query" jsonschema:"what to look for"`
	Limit int64  `json:"limit,omitempty"`
}

type searchResult struct {
	Found []string `json:"found"`
	Limit int64    `json:"limit"`
}

// newSDKServer starts a server built with the official SDK.
func newSDKServer(t *testing.T, opts *sdk.StreamableHTTPOptions) *httptest.Server {
	t.Helper()
	server := sdk.NewServer(&sdk.Implementation{Name: "library", Version: "v1.2.3"}, &sdk.ServerOptions{PageSize: 2})
	sdk.AddTool(server, &sdk.Tool{Name: "search", Description: "Finds documents."},
		func(ctx context.Context, request *sdk.CallToolRequest, in searchArguments) (*sdk.CallToolResult, searchResult, error) {
			// What a server says on the way is passed over.
			_ = request.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: "x", Progress: 1})
			return nil, searchResult{Found: []string{in.Query + "!"}, Limit: in.Limit}, nil
		})
	sdk.AddTool(server, &sdk.Tool{Name: "fail"}, func(context.Context, *sdk.CallToolRequest, struct{}) (*sdk.CallToolResult, any, error) {
		return nil, nil, errors.New("the index is offline")
	})
	sdk.AddTool(server, &sdk.Tool{Name: "draw"}, func(context.Context, *sdk.CallToolRequest, struct{}) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{
			&sdk.ImageContent{Data: []byte("x"), MIMEType: "image/png"}, &sdk.TextContent{Text: "drawn"}, &sdk.ResourceLink{URI: "file:///a", Name: "a"},
		}}, nil, nil
	})
	httpServer := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, opts))
	t.Cleanup(func() {
		for session := range server.Sessions() {
			session.Close()
		}
		httpServer.Close()
	})
	return httpServer
}

func TestOfficialSDK(t *testing.T) {
	t.Parallel()
	// A server that keeps sessions is one of the handshake's era and says so in a way of its own; one that keeps none is
	// stateless. Each is met by a client that knows nothing, that knows, and that is mistaken.
	for _, tt := range []struct {
		opts                sdk.StreamableHTTPOptions
		known               string
		call, ping, listing string
	}{
		{sdk.StreamableHTTPOptions{}, "", "server/discover, " + opening + ", tools/call", "server/discover, " + opening + ", ping", "tools/list, " + opening + ", tools/list, tools/list"},
		{sdk.StreamableHTTPOptions{}, "2025-11-25", opening + ", tools/call", opening + ", ping", "tools/list, " + opening + ", tools/list, tools/list"},
		{sdk.StreamableHTTPOptions{}, mcp.RevisionStateless, "tools/call, " + opening + ", tools/call", "server/discover, " + opening + ", ping", "tools/list, " + opening + ", tools/list, tools/list"},
		{sdk.StreamableHTTPOptions{JSONResponse: true}, "", "server/discover, " + opening + ", tools/call", "server/discover, " + opening + ", ping", "tools/list, " + opening + ", tools/list, tools/list"},
		{sdk.StreamableHTTPOptions{Stateless: true}, "", "server/discover, tools/call", "server/discover", "tools/list, tools/list"},
		{sdk.StreamableHTTPOptions{Stateless: true}, mcp.RevisionStateless, "tools/call", "server/discover", "tools/list, tools/list"},
		{sdk.StreamableHTTPOptions{Stateless: true}, "2025-11-25", opening + ", tools/call", opening + ", ping", "tools/list, tools/list"},
		{sdk.StreamableHTTPOptions{Stateless: true, JSONResponse: true}, "", "server/discover, tools/call", "server/discover", "tools/list, tools/list"},
	} {
		t.Run(fmt.Sprintf("stateless=%v/json=%v/known=%s", tt.opts.Stateless, tt.opts.JSONResponse, tt.known), func(t *testing.T) {
			t.Parallel()
			httpServer := newSDKServer(t, &tt.opts)
			server := mcp.Server{Identifier: "docs", URL: httpServer.URL, Revision: tt.known}
			client := newClient(t, parts{})
			revision := "2025-11-25"
			if tt.opts.Stateless && tt.known != revision {
				revision = mcp.RevisionStateless
			}

			info, spent, err := client.Ping(t.Context(), server, ample)
			if err != nil {
				t.Fatal("ping:", err)
			}
			if info.Name != "library" || info.Version != "v1.2.3" || info.Revision != revision || !json.Valid(info.Capabilities) {
				t.Errorf("the server says of itself %+v", info)
			}
			if methods(spent) != tt.ping || spent.Revision != revision {
				t.Errorf("a ping took %s by revision %q, want %s", methods(spent), spent.Revision, tt.ping)
			}

			catalogue, spent, err := client.ListTools(t.Context(), server, ample)
			if err != nil {
				t.Fatal("tools/list:", err)
			}
			var names []string
			for _, tool := range catalogue.Tools {
				names = append(names, tool.Name)
				var schema map[string]any
				if json.Unmarshal(tool.InputSchema, &schema) != nil || schema["type"] != "object" {
					t.Errorf("the schema of %s is %s", tool.Name, tool.InputSchema)
				}
			}
			slices.Sort(names)
			if diff := cmp.Diff([]string{"draw", "fail", "search"}, names); diff != "" || len(catalogue.Skipped) != 0 || methods(spent) != tt.listing {
				t.Errorf("catalogue %s, skipped %v, legs %v", diff, catalogue.Skipped, legs(spent))
			}

			if want := map[bool]string{true: mcp.RevisionStateless, false: "2025-11-25"}[tt.opts.Stateless]; spent.Revision != want {
				t.Errorf("the import was by revision %q, want %q", spent.Revision, want)
			}

			result, spent, err := client.CallTool(t.Context(), server, mcp.ToolCall{Name: "search", Arguments: json.RawMessage(`{"query":"ä<b>","limit":7}`)}, ample)
			if err != nil {
				t.Fatal("tools/call:", err)
			}
			if want := `{"found":["ä\u003cb\u003e!"],"limit":7}`; string(result.Structured) != want || result.Text == "" {
				t.Errorf("the result is %s with text %q, want %s", result.Structured, result.Text, want)
			}
			if methods(spent) != tt.call || spent.Revision != revision {
				t.Errorf("a call took %s by revision %q, want %s", methods(spent), spent.Revision, tt.call)
			}

			result, _, err = client.CallTool(t.Context(), server, mcp.ToolCall{Name: "draw", Arguments: json.RawMessage(`{}`)}, ample)
			if err != nil || result.Text != "[dropped, because only text is kept: 1 image, 1 resource_link]\ndrawn" {
				t.Errorf("a drawing is %q, %v", result.Text, err)
			}

			result, _, err = client.CallTool(t.Context(), server, mcp.ToolCall{Name: "fail", Arguments: json.RawMessage(`{}`)}, ample)
			if f := failure(t, err); f.Kind != mcp.KindToolError || !strings.Contains(f.Message, "the index is offline") || !result.IsError {
				t.Errorf("failure %s: %s, result %+v", f.Kind, f.Message, result)
			}

			_, _, err = client.CallTool(t.Context(), server, mcp.ToolCall{Name: "nothing", Arguments: json.RawMessage(`{}`)}, ample)
			if f := failure(t, err); f.Kind != mcp.KindRPCError || !strings.Contains(f.Message, "nothing") {
				t.Errorf("failure %s: %s", f.Kind, f.Message)
			}
		})
	}
}

type regionalArguments struct {
	Region string `json:"region"`
	Count  int64  `json:"count"`
}

// The official SDK checks the headers against the schema.
func TestOfficialSDKReadsArgumentsInHeaders(t *testing.T) {
	t.Parallel()
	schema := json.RawMessage(`{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"count":{"type":"integer","x-mcp-header":"Count"}}}`)
	server := sdk.NewServer(&sdk.Implementation{Name: "library", Version: "v1"}, nil)
	sdk.AddTool(server, &sdk.Tool{Name: "search", InputSchema: schema},
		func(_ context.Context, _ *sdk.CallToolRequest, in regionalArguments) (*sdk.CallToolResult, any, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprintf("%q %d", in.Region, in.Count)}}}, nil, nil
		})
	httpServer := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{Stateless: true}))
	t.Cleanup(httpServer.Close)
	client := newClient(t, parts{})
	catalogue, _, err := client.ListTools(t.Context(), modern(httpServer.URL), ample)
	if err != nil || len(catalogue.Tools) != 1 {
		t.Fatalf("%+v, %v", catalogue, err)
	}
	// An empty string is left out: of this SDK, 1.8.0 takes its header for one that is missing.
	for _, tt := range []struct{ arguments, want string }{
		{`{"region":"eu","count":9007199254740991}`, `"eu" 9007199254740991`},
		{`{"region":"x y","count":-1}`, `"x y" -1`},
		{`{"region":" Zürich\t","count":0}`, `" Zürich\t" 0`},
		{`{"region":"=?base64?YQ==?=","count":0}`, `"=?base64?YQ==?=" 0`},
	} {
		call := mcp.ToolCall{Name: "search", Arguments: json.RawMessage(tt.arguments)}
		for _, want := range []string{"tools/call, tools/list, tools/call", "tools/call"} { // by no schema, and by the one of the catalogue
			result, spent, err := client.CallTool(t.Context(), modern(httpServer.URL), call, ample)
			if err != nil || result.Text != tt.want || methods(spent) != want {
				t.Errorf("%s: %q, %v in legs %s, want %s", tt.arguments, result.Text, err, methods(spent), want)
			}
			call.InputSchema = catalogue.Tools[0].InputSchema
		}
	}
}

func TestOfficialSDKForgetsTheSession(t *testing.T) {
	t.Parallel()
	server := sdk.NewServer(&sdk.Implementation{Name: "library", Version: "v1"}, nil)
	httpServer := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil))
	t.Cleanup(httpServer.Close)
	client := newClient(t, parts{})
	if _, _, err := client.Ping(t.Context(), docs(httpServer.URL), ample); err != nil {
		t.Fatal(err)
	}
	client.Close()
	for range server.Sessions() {
		t.Error("the server still keeps the session")
	}
}
