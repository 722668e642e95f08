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
func (c *Client) CallTool(ctx context.Context, server Server, call ToolCall, budget Budget) (ToolResult, Spent, error) {
	var result ToolResult
	spent, err := c.operate(ctx, &server, budget, func(o *operation) (failure *Failure) {
		result, failure = o.call(&call)
		return failure
	})
	return result, spent, err
}

// ListTools walks the catalogue, all pages on one budget. Tools that cannot be taken are left out and named in Skipped.
func (c *Client) ListTools(ctx context.Context, server Server, budget Budget) (Catalogue, Spent, error) {
	var catalogue Catalogue
	spent, err := c.operate(ctx, &server, budget, func(o *operation) *Failure {
		var failure *Failure
		catalogue, failure = o.listTools()
		return failure
	})
	if err != nil {
		return Catalogue{}, spent, err
	}
	return catalogue, spent, nil
}

// Ping asks the server whether it is there, and what it is.
func (c *Client) Ping(ctx context.Context, server Server, budget Budget) (ServerInfo, Spent, error) {
	var info ServerInfo
	spent, err := c.operate(ctx, &server, budget, func(o *operation) *Failure {
		failure := o.ping()
		info = o.info
		info.TLS = o.tls
		return failure
	})
	return info, spent, err
}

// operate opens the deadline, carries out one conversation and sees to its session afterwards.
//
// An operation waits for its server in converse, and thousands may wait at once: what is not needed meanwhile is done in functions
// that return before, so that it is not on the stack, and what is needed is handed on by pointer.
func (c *Client) operate(ctx context.Context, server *Server, budget Budget, converse func(*operation) *Failure) (Spent, error) {
	o, failure := c.begin(ctx, server, budget)
	if failure == nil {
		failure = o.authorize()
	}
	if failure == nil {
		failure = converse(o)
	}
	return o.end(failure)
}

// begin opens the deadline and reads what the server's settings refer to. Nothing is sent. There is an operation beside a failure too.
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
	o.identity, failure = server.identity()
	return o, failure
}

// end is the account of the operation, which ended so, and has its session deleted.
func (o *operation) end(failure *Failure) (Spent, error) {
	spent := o.spent()
	if o.session != "" {
		o.client.deleteSession(outgoing{operation: o, session: o.session, revision: o.info.Revision})
	}
	if failure != nil {
		return spent, failure
	}
	return spent, nil
}

// deleteSession tells the server that the session is over, so that it does not keep it for ever. It happens beside the
// path, is no leg of the operation, and its answer is of no interest.
func (c *Client) deleteSession(out outgoing) {
	select {
	case c.slots <- struct{}{}:
	default:
		return
	}
	c.deletions.Go(func() {
		defer func() { <-c.slots }()
		ctx, cancel := context.WithTimeout(out.operation.ctx, SessionDeletion)
		defer cancel()
		f := &flight{outgoing: out}
		req, err := f.build(ctx, http.MethodDelete, nil)
		if err != nil {
			return
		}
		if resp, err := c.transport.http.RoundTrip(req); err == nil {
			resp.Body.Close()
		}
	})
}
