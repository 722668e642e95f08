package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	markmcp "github.com/mark3labs/mcp-go/mcp"
	markserver "github.com/mark3labs/mcp-go/server"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"legwork/mcp"
)

// goSubjects are servers that are built here with the libraries that others wrote.
func goSubjects() []subject {
	var subjects []subject
	add := func(name, revision string, handler func(closing <-chan struct{}) (http.Handler, func())) {
		subjects = append(subjects, subject{
			name: name, revision: revision, pages: 2,
			start: func(context.Context) (string, func(), error) { return serveHTTP(handler) },
			works: call{"add", `{"a":2,"b":3}`}, says: "5",
			fails: call{"fail", `{}`}, refuses: mcp.KindToolError,
			slow: call{"wait", `{}`},
		})
	}
	const newest = "2025-11-25" // of the handshake
	for _, form := range []struct {
		name     string
		revision string
		options  sdk.StreamableHTTPOptions
	}{
		{"stateful, SSE", newest, sdk.StreamableHTTPOptions{}},
		{"stateful, JSON", newest, sdk.StreamableHTTPOptions{JSONResponse: true}},
		{"stateless, SSE", mcp.RevisionStateless, sdk.StreamableHTTPOptions{Stateless: true}},
		{"stateless, JSON", mcp.RevisionStateless, sdk.StreamableHTTPOptions{Stateless: true, JSONResponse: true}},
	} {
		add("go-sdk "+moduleVersion("github.com/modelcontextprotocol/go-sdk")+", "+form.name, form.revision, officialServer(form.options))
	}
	for _, form := range []struct {
		name      string
		stateless bool
	}{{"stateful", false}, {"stateless", true}} {
		add("mcp-go "+moduleVersion("github.com/mark3labs/mcp-go")+", "+form.name, mcp.RevisionStateless, markServer(form.stateless))
	}
	for _, form := range []struct {
		name      string
		stateless bool
	}{{"stateful", false}, {"stateless", true}} {
		add("Python SDK 1.29 as scripted, "+form.name, newest, pythonServer(form.stateless))
	}
	return subjects
}

// moduleVersion is the version of a module that this program was built with.
func moduleVersion(path string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == path {
				return strings.TrimPrefix(module.Version, "v")
			}
		}
	}
	return "of unknown version"
}

// serveHTTP serves what build gives on a port of loopback. The channel closes when the server stops, so that tools that wait
// end.
func serveHTTP(build func(closing <-chan struct{}) (http.Handler, func())) (address string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	closing := make(chan struct{})
	handler, release := build(closing)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // it ends when it is closed
	}()
	return listener.Addr().String(), func() {
		close(closing)
		release()
		_ = server.Close()
		<-served
	}, nil
}

type numbers struct {
	A float64 `json:"a"`
	B float64 `json:"b"`
}

func officialServer(options sdk.StreamableHTTPOptions) func(<-chan struct{}) (http.Handler, func()) {
	return func(closing <-chan struct{}) (http.Handler, func()) {
		server := sdk.NewServer(&sdk.Implementation{Name: "go-sdk", Version: "v1"}, &sdk.ServerOptions{PageSize: 2})
		sdk.AddTool(server, &sdk.Tool{Name: "add"}, func(_ context.Context, _ *sdk.CallToolRequest, in numbers) (*sdk.CallToolResult, any, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprint(in.A + in.B)}}}, nil, nil
		})
		sdk.AddTool(server, &sdk.Tool{Name: "fail"}, func(context.Context, *sdk.CallToolRequest, struct{}) (*sdk.CallToolResult, any, error) {
			return nil, nil, errors.New("out of order")
		})
		sdk.AddTool(server, &sdk.Tool{Name: "wait"}, func(ctx context.Context, _ *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, any, error) {
			select {
			case <-ctx.Done():
			case <-closing:
			}
			return nil, nil, errors.New("the server stops")
		})
		return sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &options), func() {
			for session := range server.Sessions() {
				_ = session.Close()
			}
		}
	}
}

func markServer(stateless bool) func(<-chan struct{}) (http.Handler, func()) {
	return func(closing <-chan struct{}) (http.Handler, func()) {
		server := markserver.NewMCPServer("mcp-go", "v1", markserver.WithToolCapabilities(false), markserver.WithPaginationLimit(2))
		server.AddTool(markmcp.NewTool("add", markmcp.WithNumber("a"), markmcp.WithNumber("b")),
			func(_ context.Context, request markmcp.CallToolRequest) (*markmcp.CallToolResult, error) {
				return markmcp.NewToolResultText(fmt.Sprint(request.GetFloat("a", 0) + request.GetFloat("b", 0))), nil
			})
		server.AddTool(markmcp.NewTool("fail"), func(context.Context, markmcp.CallToolRequest) (*markmcp.CallToolResult, error) {
			return markmcp.NewToolResultError("out of order"), nil
		})
		server.AddTool(markmcp.NewTool("wait"), func(ctx context.Context, _ markmcp.CallToolRequest) (*markmcp.CallToolResult, error) {
			select {
			case <-ctx.Done():
			case <-closing:
			}
			return nil, errors.New("the server stops")
		})
		option := markserver.WithStateful(true)
		if stateless {
			option = markserver.WithStateLess(true)
		}
		return markserver.NewStreamableHTTPServer(server, option), func() {}
	}
}

// pythonServer refuses what is not of the handshake's era in the words of the official Python SDK, whose registry the
// checks do without: an error whose id is "server-error". What it lets through is answered by the official Go SDK.
func pythonServer(stateless bool) func(<-chan struct{}) (http.Handler, func()) {
	return func(closing <-chan struct{}) (http.Handler, func()) {
		behind, release := officialServer(sdk.StreamableHTTPOptions{Stateless: stateless})(closing)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			modern := r.Header.Get("Mcp-Protocol-Version") == mcp.RevisionStateless
			switch {
			case modern && stateless:
				refuse(w, "Bad Request: Unsupported protocol version: 2026-07-28. Supported versions: 2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25")
			case modern:
				refuse(w, "Bad Request: Missing session ID")
			default:
				behind.ServeHTTP(w, r)
			}
		}), release
	}
}

func refuse(w http.ResponseWriter, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"`+message+`"}}`)
}
