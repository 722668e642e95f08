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
	for _, opts := range []sdk.StreamableHTTPOptions{{}, {Stateless: true}, {JSONResponse: true}, {Stateless: true, JSONResponse: true}} {
		t.Run(fmt.Sprintf("stateless=%v/json=%v", opts.Stateless, opts.JSONResponse), func(t *testing.T) {
			t.Parallel()
			httpServer := newSDKServer(t, &opts)
			server := docs(httpServer.URL)
			client := newClient(t, parts{})

			info, _, err := client.Ping(t.Context(), server, ample)
			if err != nil {
				t.Fatal("ping:", err)
			}
			if info.Name != "library" || info.Version != "v1.2.3" || info.Revision != "2025-11-25" || !json.Valid(info.Capabilities) {
				t.Errorf("the server says of itself %+v", info)
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
			if diff := cmp.Diff([]string{"draw", "fail", "search"}, names); diff != "" || len(catalogue.Skipped) != 0 || len(spent.Legs) != 4 {
				t.Errorf("catalogue %s, skipped %v, legs %v", diff, catalogue.Skipped, legs(spent))
			}

			result, spent, err := client.CallTool(t.Context(), server, mcp.ToolCall{Name: "search", Arguments: json.RawMessage(`{"query":"ä<b>","limit":7}`)}, ample)
			if err != nil {
				t.Fatal("tools/call:", err)
			}
			if want := `{"found":["ä\u003cb\u003e!"],"limit":7}`; string(result.Structured) != want || result.Text == "" {
				t.Errorf("the result is %s with text %q, want %s", result.Structured, result.Text, want)
			}
			if diff := cmp.Diff(after("tools/call", "ok", 200), legs(spent)); diff != "" {
				t.Error(diff)
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
