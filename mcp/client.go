package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"
)

const (
	// MaxPages, MaxTools and MaxCatalogue (bytes) bound a catalogue. More is refused rather than cut: half a catalogue would
	// look like a catalogue from which tools had vanished.
	MaxPages     = 50
	MaxTools     = 500
	MaxCatalogue = 8 << 20

	// SessionDeletion is what the deletion of a session may take, beside the operation that is over by then.
	SessionDeletion = 2 * time.Second

	// maxDeletions bounds how many deletions are under way at once. A session past that is left to expire: a wedged
	// server must not collect goroutines here.
	maxDeletions = 256
)

// Client carries out operations. It is a singleton without state about servers or operations: what was agreed with a
// server lives as long as the operation. Safe for concurrent use.
//
// Every method opens the operation's deadline, and its error, when there is one, is a [*Failure]. A context carries values;
// cancelling it does not stop an operation, which its budget bounds.
type Client struct {
	transport *Transport
	clock     Clock
	info      clientInfo      // of us
	meta      json.RawMessage // what each stateless request says of us

	deletions sync.WaitGroup
	slots     chan struct{}
}

// NewClient sends through transport and measures budgets by clock. Servers are told that legwork of this version calls.
func NewClient(transport *Transport, clock Clock, version string) *Client {
	info := clientInfo{"legwork", version}
	return &Client{transport: transport, clock: clock, info: info, meta: encodeMeta(info), slots: make(chan struct{}, maxDeletions)}
}

// Close waits until the sessions of finished operations are deleted, which is bounded by SessionDeletion. No operation
// may be running or begin.
func (c *Client) Close() { c.deletions.Wait() }

// ToolCall is what a tool is called with.
type ToolCall struct {
	Name      string          // as the server advertises it
	Arguments json.RawMessage // a JSON object; sent as it is written
	// InputSchema is the tool's, as it was imported; nil when it is not known. It says which arguments stand in headers.
	InputSchema json.RawMessage
}

// ServerInfo is what a server says of itself. It is for display: nothing of it is trusted.
type ServerInfo struct {
	Name         string          `json:"name"`
	Version      string          `json:"version"`
	Revision     string          `json:"revision"`
	Capabilities json.RawMessage `json:"capabilities"`
	TLS          *TLSInfo        `json:"tls"` // nil where the connection had none
}

// CallTool calls one tool. A result that says the tool failed comes back beside a failure of kind tool_error.
func (c *Client) CallTool(ctx context.Context, server Server, call ToolCall, budget Budget) (result ToolResult, spent Spent, err error) {
	o, failure := c.begin(ctx, &server, budget)
	if failure == nil {
		failure = o.call(&call, &result)
	}
	err = o.end(failure, &spent)
	return result, spent, err
}

// ListTools walks the catalogue, all pages on one budget. Tools that cannot be taken are left out and named in Skipped.
func (c *Client) ListTools(ctx context.Context, server Server, budget Budget) (catalogue Catalogue, spent Spent, err error) {
	o, failure := c.begin(ctx, &server, budget)
	if failure == nil {
		catalogue, failure = o.listTools()
	}
	if err = o.end(failure, &spent); err != nil {
		return Catalogue{}, spent, err
	}
	return catalogue, spent, nil
}

// Ping asks the server whether it is there, and what it is.
func (c *Client) Ping(ctx context.Context, server Server, budget Budget) (info ServerInfo, spent Spent, err error) {
	o, failure := c.begin(ctx, &server, budget)
	if failure == nil {
		failure = o.ping()
		info = o.info
		info.TLS = o.tls
	}
	err = o.end(failure, &spent)
	return info, spent, err
}

// begin opens the deadline, reads what the server's settings refer to and gets the access token that they ask for. There is an
// operation beside a failure too.
func (c *Client) begin(ctx context.Context, server *Server, budget Budget) (o *operation, failure *Failure) {
	// What is at a server is not undone by a caller who gives up: only the deadline ends a leg.
	ctx = context.WithoutCancel(ctx)
	o = &operation{client: c, ctx: ctx, server: *server, deadline: OpenDeadline(c.clock, budget), legs: make([]Leg, 0, 4)}
	if err := server.Validate(); err != nil {
		return o, InvalidRequest(server.Identifier, fmt.Sprintf(
			"Invalid request: the configuration of %s is unusable, so nothing was sent: %s.", named(server.Identifier), err))
	}
	if o.secrets, failure = server.resolve(); failure != nil {
		return o, failure
	}
	if o.identity, failure = server.identity(); failure != nil {
		return o, failure
	}
	return o, o.authorize()
}

// end gives the account of the operation, which ended so, and has its session deleted.
func (o *operation) end(failure *Failure, spent *Spent) error {
	*spent = o.spent()
	if o.session != "" {
		o.client.deleteSession(&flight{operation: o, session: o.session, revision: o.info.Revision})
	}
	if failure != nil {
		return failure
	}
	return nil // failure itself would be an error that is not nil
}

// deleteSession tells the server that the session is over, so that it does not keep it for ever. It happens beside the
// path, is no leg of the operation, and its answer is of no interest.
func (c *Client) deleteSession(f *flight) {
	select {
	case c.slots <- struct{}{}:
	default:
		return
	}
	c.deletions.Go(func() {
		defer func() { <-c.slots }()
		ctx, cancel := context.WithTimeout(f.operation.ctx, SessionDeletion)
		defer cancel()
		req, err := f.build(ctx, http.MethodDelete, nil)
		if err != nil {
			return
		}
		if resp, err := c.transport.http.RoundTrip(req); err == nil {
			resp.Body.Close()
		}
	})
}
