package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	markclient "github.com/mark3labs/mcp-go/client"
	marktransport "github.com/mark3labs/mcp-go/client/transport"
	markmcp "github.com/mark3labs/mcp-go/mcp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"legwork/mcp"
)

// The clients that are compared.
const (
	nameLegwork = "legwork"
	nameFloor   = "floor"
	nameSDK     = "Go SDK"
	nameMark    = "mcp-go"
)

// revisionHandshake is the newest revision with a handshake, which all clients are told to speak where three legs are measured.
const revisionHandshake = "2025-11-25"

// client makes tool calls one way.
type client struct {
	name string
	// call makes one call as a worker would for a step: from nothing but the server's address to the text of the result, and
	// whatever it takes to leave nothing behind. It returns when the time that it had was over, whether it ran out or not.
	call func(ctx context.Context, url string, budget time.Duration) (end time.Time, err error)
	// close lets go of the connections that are kept.
	close func()
}

// newClients are the clients for a revision. All have a transport of the same settings of their own, so that what they are
// measured by is not whose default is best.
func newClients(revision string) ([]client, error) {
	ours, err := newLegwork(revision)
	if err != nil {
		return nil, err
	}
	return []client{ours, newFloor(revision), newSDK(revision), newMark(revision)}, nil
}

// idleTime is how long a connection of a client's is kept that nothing uses: as long as mcp keeps one.
const idleTime = 4 * time.Second

func newTransport() *http.Transport {
	return &http.Transport{MaxIdleConns: 2048, MaxIdleConnsPerHost: 256, IdleConnTimeout: idleTime}
}

const (
	toolName      = "search"
	toolArguments = `{"query":"how long does a leg take","limit":10}`
)

func newLegwork(revision string) (client, error) {
	gate, err := mcp.NewGate(mcp.GateOptions{AllowPrivateNetworks: true})
	if err != nil {
		return client{}, err
	}
	wire := mcp.NewHTTPTransport(gate)
	clock := mcp.MonotonicClock()
	c := mcp.NewClient(mcp.NewTransport(mcp.NewConnections(wire), clock), clock, "bench")
	return client{
		name: nameLegwork,
		call: func(ctx context.Context, url string, budget time.Duration) (time.Time, error) {
			started := time.Now()
			result, spent, err := c.CallTool(ctx, mcp.Server{Identifier: "stub", URL: url, Revision: revision},
				mcp.ToolCall{Name: toolName, Arguments: json.RawMessage(toolArguments)}, mcp.Budget{Total: budget, Owner: mcp.OwnerInstallation})
			if err == nil {
				err = check(result.Text)
			}
			// The last leg's grant ended then; what stands between the legs counts as being late.
			end := started
			for i, leg := range spent.Legs {
				if i < len(spent.Legs)-1 {
					end = end.Add(leg.Elapsed)
				} else {
					end = end.Add(leg.Granted)
				}
			}
			return end, err
		},
		close: func() { c.Close(); wire.CloseIdleConnections() },
	}, nil
}

var errAnswer = errors.New("the answer is not the stub's")

func check(text string) error {
	if !strings.HasPrefix(text, answerText) {
		return fmt.Errorf("%w: %.40q", errAnswer, text)
	}
	return nil
}

// newFloor sends the same requests, encoded beforehand, by bare net/http, and looks no further into the answers than to see
// that they are JSON.
func newFloor(revision string) client {
	wire := newTransport()
	c := &http.Client{Transport: wire}
	type leg struct {
		header http.Header
		body   []byte
	}
	var legs []leg
	add := func(body string, header ...string) {
		h := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
		for i := 0; i < len(header); i += 2 {
			h.Set(header[i], header[i+1])
		}
		legs = append(legs, leg{h, []byte(body)})
	}
	const call = `{"name":"` + toolName + `","arguments":` + toolArguments
	if revision == mcp.RevisionStateless {
		add(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":`+call+`,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",`+
			`"io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"floor","version":"1"}}}}`,
			"Mcp-Method", "tools/call", "Mcp-Name", toolName, "Mcp-Protocol-Version", revision)
	} else {
		add(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"` + revision +
			`","capabilities":{},"clientInfo":{"name":"floor","version":"1"}}}`)
		add(`{"jsonrpc":"2.0","method":"notifications/initialized"}`, "Mcp-Protocol-Version", revision)
		add(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":`+call+`}}`, "Mcp-Protocol-Version", revision)
	}
	return client{
		name: nameFloor,
		call: func(ctx context.Context, url string, _ time.Duration) (time.Time, error) {
			for _, leg := range legs {
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(leg.body))
				if err != nil {
					return time.Time{}, err
				}
				req.Header = leg.header
				resp, err := c.Do(req)
				if err != nil {
					return time.Time{}, err
				}
				data, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil {
					return time.Time{}, err
				}
				if len(data) == 0 && resp.StatusCode == http.StatusAccepted {
					continue
				}
				var answer struct {
					Result json.RawMessage `json:"result"`
				}
				if err := json.Unmarshal(data, &answer); err != nil {
					return time.Time{}, err
				}
				if answer.Result == nil {
					return time.Time{}, errAnswer
				}
			}
			return time.Time{}, nil
		},
		close: wire.CloseIdleConnections,
	}
}

func newSDK(revision string) client {
	wire := newTransport()
	c := &http.Client{Transport: wire}
	implementation := sdk.NewClient(&sdk.Implementation{Name: "bench", Version: "1"}, nil)
	return client{
		name: nameSDK,
		call: func(ctx context.Context, url string, budget time.Duration) (time.Time, error) {
			ctx, cancel := context.WithTimeout(ctx, budget)
			defer cancel()
			end, _ := ctx.Deadline()
			session, err := implementation.Connect(ctx, &sdk.StreamableClientTransport{
				Endpoint: url, HTTPClient: c, MaxRetries: -1, DisableStandaloneSSE: true,
			}, &sdk.ClientSessionOptions{ProtocolVersion: revision})
			if err != nil {
				return end, err
			}
			defer session.Close()
			result, err := session.CallTool(ctx, &sdk.CallToolParams{Name: toolName, Arguments: json.RawMessage(toolArguments)})
			if err != nil {
				return end, err
			}
			if len(result.Content) == 1 {
				if text, ok := result.Content[0].(*sdk.TextContent); ok {
					return end, check(text.Text)
				}
			}
			return end, errAnswer
		},
		close: wire.CloseIdleConnections,
	}
}

func newMark(revision string) client {
	wire := newTransport()
	c := &http.Client{Transport: wire}
	quiet := slog.New(slog.DiscardHandler)
	return client{
		name: nameMark,
		call: func(ctx context.Context, url string, budget time.Duration) (time.Time, error) {
			ctx, cancel := context.WithTimeout(ctx, budget)
			defer cancel()
			end, _ := ctx.Deadline()
			transport, err := marktransport.NewStreamableHTTP(url, marktransport.WithHTTPBasicClient(c), marktransport.WithHTTPLogger(quiet))
			if err != nil {
				return end, err
			}
			session := markclient.NewClient(transport, markclient.WithProtocolVersion(revision))
			defer session.Close()
			if err := session.Start(ctx); err != nil {
				return end, err
			}
			hello := markmcp.InitializeRequest{}
			hello.Params.ProtocolVersion = revision
			hello.Params.ClientInfo = markmcp.Implementation{Name: "bench", Version: "1"}
			if _, err := session.Initialize(ctx, hello); err != nil {
				return end, err
			}
			request := markmcp.CallToolRequest{}
			request.Params.Name, request.Params.Arguments = toolName, json.RawMessage(toolArguments)
			result, err := session.CallTool(ctx, request)
			if err != nil {
				return end, err
			}
			if len(result.Content) == 1 {
				if text, ok := result.Content[0].(markmcp.TextContent); ok {
					return end, check(text.Text)
				}
			}
			return end, errAnswer
		},
		close: wire.CloseIdleConnections,
	}
}
