package mcp

import (
	"context"
	"encoding/json"
	"slices"
)

// The revisions of the handshake, newest first. The first is asked for; any of them is taken.
var revisions = []string{"2025-11-25", "2025-06-18", "2025-03-26"}

// operation is one conversation with one server, spending one deadline. It lives as long as the exported method that
// opened it and is used by one goroutine.
type operation struct {
	client   *Client
	ctx      context.Context // values only
	server   Server
	secret   secret
	deadline Deadline
	legs     []Leg
	lastID   int64
	session  string
	info     ServerInfo
}

// request sends one request and brings its result.
func (o *operation) request(method string, params any) (json.RawMessage, *Failure) {
	o.lastID++
	reply, failure := o.leg(message{ID: o.lastID, Method: method, Params: params})
	return reply.result, failure
}

func (o *operation) leg(m message) (incomingReply, *Failure) {
	reply, leg, failure := o.client.transport.send(o.ctx, o.deadline, outgoing{
		server: o.server, secret: o.secret, message: m, session: o.session, revision: o.info.Revision, spent: o.legs,
	})
	if leg != nil {
		o.legs = append(o.legs, *leg)
	}
	return reply, failure
}

// handshake opens the session: initialize, and its confirmation.
func (o *operation) handshake() *Failure {
	o.lastID++
	reply, failure := o.leg(message{ID: o.lastID, Method: methodInitialize, Params: map[string]any{
		"protocolVersion": revisions[0],
		"capabilities":    struct{}{},
		"clientInfo":      map[string]string{"name": "legwork", "version": o.client.version},
	}})
	if failure != nil {
		return failure
	}
	o.session = reply.session

	var result struct {
		ProtocolVersion string          `json:"protocolVersion"`
		Capabilities    json.RawMessage `json:"capabilities"`
		ServerInfo      struct {
			Name    string `json:"name"`
			Version string `json:"version"`
		} `json:"serverInfo"`
	}
	if json.Unmarshal(reply.result, &result) != nil {
		return o.reread(methodInitialize, "the result is not what the protocol prescribes; it begins with %s", excerpt(reply.result))
	}
	if !slices.Contains(revisions, result.ProtocolVersion) {
		return o.reread(methodInitialize, "it speaks protocol revision %s, which legwork does not", quote(result.ProtocolVersion))
	}
	o.info = ServerInfo{
		Name: result.ServerInfo.Name, Version: result.ServerInfo.Version,
		Revision: result.ProtocolVersion, Capabilities: result.Capabilities,
	}
	_, failure = o.leg(message{Method: methodInitialized})
	return failure
}

// reread is the failure of a leg that HTTP and JSON-RPC had found nothing wrong with; its record follows.
func (o *operation) reread(method, format string, args ...any) *Failure {
	failure := exchange{server: o.server.Identifier, method: method}.malformed(format, args...)
	o.relabel(failure.Kind)
	return failure
}

func (o *operation) relabel(kind Kind) { o.legs[len(o.legs)-1].Outcome = string(kind) }

func (o *operation) spent() Spent {
	return Spent{Budget: o.deadline.budget, Legs: o.legs, Elapsed: o.deadline.Elapsed(), Revision: o.info.Revision}
}
