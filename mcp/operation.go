package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// operation is one conversation with one server, spending one deadline. It lives as long as the exported method that
// opened it and is used by one goroutine.
//
// Thousands of operations may wait for their servers at once, and a stack of 8 kB is enough for each. So what comes before a
// leg and after it is done in functions of its own, and what a leg needs is handed on by pointer: neither is on the stack
// while the operation waits.
type operation struct {
	client   *Client
	ctx      context.Context // values only
	server   Server
	secrets  secrets
	identity *identity
	token    Token // in use; none after the server did not accept it
	deadline Deadline
	legs     []Leg
	lastID   int64

	era     era
	info    ServerInfo
	tls     *TLSInfo
	session string

	// Each of these may happen once in an operation: a server that asks for it again is not worth the budget.
	renewed    bool // the session was opened anew
	reasserted bool // a request was repeated because its revision was not recognised at first

	served int // requests of the server's that this leg has answered

	proven bool // the server has answered in the manner of the stateless revision
}

// open finds out how to speak to the server, and opens a session where it wants one, before anything is asked that acts. A
// server that nobody has asked yet is asked in the manner of the stateless revision for what it can do, which does nothing
// in any revision.
func (o *operation) open() *Failure {
	switch eraOf(o.server.Revision) {
	case stateless:
		o.becomeStateless()
		return nil
	case handshake:
		reply, failure := o.handshake()
		if failure == nil || !refusesHandshake(reply, failure) {
			return failure
		}
		if found := o.discover(); o.era == stateless {
			return found
		}
		if o.server.Revision == RevisionUnnamed && reply.err != nil && reply.err.number == codeMethodNotFound {
			o.becomeUnnamed()
			return nil
		}
		return failure // it was no upgrade: what it said first stands
	}
	failure := o.discover()
	if o.era != handshake {
		return failure
	}
	return o.turn(failure)
}

// turn opens a session with a server that answered a stateless request as one of the handshake's era does; first is its
// refusal, if it was one. Where the handshake is refused too, what the server said first stands.
func (o *operation) turn(first *Failure) *Failure {
	reply, failure := o.handshake()
	switch {
	case failure == nil || first == nil:
		return failure
	case eraOf(o.server.Revision) == stateless && refusesHandshake(reply, failure):
		o.becomeStateless()
		return first
	case reply.err != nil && reply.err.number == codeMethodNotFound:
		return first
	}
	return failure
}

// judge is [witness], but for a server that is known to be stateless: that one may fail without having changed its era.
func (o *operation) judge(method string, reply *incomingReply, failure *Failure) era {
	found := witness(reply, failure)
	if failure == nil || found != handshake || eraOf(o.server.Revision) != stateless || leavesStateless(reply, failure) ||
		method == methodDiscover && reply.err != nil && reply.err.number == codeMethodNotFound {
		return found
	}
	return stateless
}

// discover asks what the server can do. Afterwards the era is known; it is unknown where the answer says nothing about it,
// and then there is a failure.
func (o *operation) discover() *Failure {
	reply, failure := o.stateless(methodDiscover, new(params), nil)
	o.era = o.judge(methodDiscover, reply, failure)
	if o.era != stateless {
		return failure
	}
	o.becomeStateless()
	if failure != nil {
		return failure
	}
	if _, failure := o.incomplete(methodDiscover, reply.kind); failure != nil {
		return failure
	}
	var result struct {
		Capabilities json.RawMessage `json:"capabilities"`
		Meta         struct {
			ServerInfo json.RawMessage `json:"io.modelcontextprotocol/serverInfo"`
		} `json:"_meta"`
	}
	if json.Unmarshal(reply.result, &result) != nil {
		return o.reread(methodDiscover, "the result is not what the protocol prescribes; it begins with %s", excerpt(reply.result))
	}
	o.info.Name, o.info.Version = nameAndVersion(result.Meta.ServerInfo)
	o.info.Capabilities = result.Capabilities
	return nil
}

func (o *operation) becomeStateless() {
	o.era, o.info = stateless, ServerInfo{Revision: RevisionStateless}
}

// becomeUnnamed goes on without a handshake, with a server that answers so and names no revision.
func (o *operation) becomeUnnamed() {
	o.becomeStateless()
	o.info.Revision = RevisionUnnamed
}

// handshake opens the session: initialize, and its confirmation. A server that refuses the revision and names one that it
// speaks is asked once more.
func (o *operation) handshake() (*incomingReply, *Failure) {
	o.era, o.session, o.info = handshake, "", ServerInfo{}
	reply, failure := o.initialize(handshakeRevisions[0])
	if failure != nil && reply.err != nil {
		for _, offered := range reply.err.supported() {
			if offered != handshakeRevisions[0] && slices.Contains(handshakeRevisions, offered) {
				reply, failure = o.initialize(offered)
				break
			}
		}
	}
	o.session = reply.session // even where its answer is of no use: the server keeps it until it is deleted
	if failure != nil {
		return reply, failure
	}

	var info ServerInfo
	prescribed := reply.result[0] == '{'
	for name, value := range parts(reply.result) {
		switch name {
		case "protocolVersion":
			info.Revision = text(value)
			prescribed = prescribed && (value[0] == '"' || !present(value))
		case "capabilities":
			info.Capabilities = slices.Clone(value) // the answer may be large, and the operation long
		case "serverInfo":
			info.Name, info.Version = nameAndVersion(value)
		}
	}
	if !prescribed {
		return reply, o.reread(methodInitialize, "the result is not what the protocol prescribes; it begins with %s", excerpt(reply.result))
	}
	if !slices.Contains(handshakeRevisions, info.Revision) {
		return reply, o.reread(methodInitialize, "it speaks protocol revision %s, which legwork does not", quote(info.Revision))
	}
	o.info = info
	_, failure = o.leg(message{Method: methodInitialized}, nil)
	return reply, failure
}

// nameAndVersion reads what a server calls itself. It is for display: what is not as it should be is shown as it is.
func nameAndVersion(info json.RawMessage) (name, version string) {
	for key, value := range parts(info) {
		switch key {
		case "name":
			name = shown(value)
		case "version":
			version = shown(value)
		}
	}
	return name, version
}

func shown(raw json.RawMessage) string {
	switch {
	case !present(raw):
		return ""
	case raw[0] == '"':
		return text(raw)
	}
	return strings.Trim(quote(string(raw)), `"`)
}

func (o *operation) initialize(revision string) (*incomingReply, *Failure) {
	o.lastID++
	return o.leg(message{ID: o.lastID, Method: methodInitialize, Params: initializeParams{
		ProtocolVersion: revision, ClientInfo: o.client.info,
	}}, nil)
}

type initializeParams struct {
	ProtocolVersion string     `json:"protocolVersion"`
	Capabilities    struct{}   `json:"capabilities"`
	ClientInfo      clientInfo `json:"clientInfo"`
}

type clientInfo struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// refusesHandshake tells whether a server may have left the handshake behind: it does not know initialize, or refuses it
// as the stateless revision refuses a request that does not say enough.
func refusesHandshake(reply *incomingReply, failure *Failure) bool {
	switch {
	case reply.err != nil:
		switch reply.err.number {
		case codeVersion, codeHeaderMismatch, codeCapabilityRequired, codeMethodNotFound, codeInvalidParams, codeInvalidRequest:
			return true
		}
		return false
	case failure.Kind == KindHTTPStatus:
		return reply.status == http.StatusBadRequest || reply.status == http.StatusNotFound || reply.status == http.StatusMethodNotAllowed
	}
	return false
}

// leavesStateless tells whether a server that was known to be stateless answered like one of the handshake's era, which
// looks into a request no further than to miss its session.
func leavesStateless(reply *incomingReply, failure *Failure) bool {
	if failure == nil {
		return false
	}
	if reply.err != nil {
		code := reply.err.number
		return code == codeVersion && witness(reply, failure) == handshake ||
			reply.status == http.StatusBadRequest && (code == codeInvalidRequest || code <= -32000 && code > codeHeaderMismatch)
	}
	return failure.Kind == KindHTTPStatus && witness(reply, failure) == handshake
}

// stateless sends one request in the manner of the stateless revision. One that is refused because of its revision, by a
// server that speaks it nevertheless, is repeated once: it was refused before anything was done.
func (o *operation) stateless(method string, p *params, header http.Header) (*incomingReply, *Failure) {
	p.Meta = o.client.meta
	if header == nil {
		header = make(http.Header, 2)
	}
	header["Mcp-Method"], header["Mcp-Protocol-Version"] = []string{method}, revisionHeaders[RevisionStateless]

	o.lastID++
	reply, failure := o.leg(message{ID: o.lastID, Method: method, Params: p}, header)
	if reply.err != nil && reply.err.number == codeVersion && witness(reply, failure) == stateless && !o.reasserted {
		o.reasserted = true
		o.lastID++
		reply, failure = o.leg(message{ID: o.lastID, Method: method, Params: p}, header)
	}
	if failure == nil {
		reply.kind = kindOf(reply.result)
	}
	o.proven = o.proven || witness(reply, failure) == stateless
	return reply, failure
}

// encodeMeta is what each request in the manner of the stateless revision says of its sender.
func encodeMeta(sender clientInfo) json.RawMessage {
	return encoded(map[string]any{
		"io.modelcontextprotocol/protocolVersion":    RevisionStateless,
		"io.modelcontextprotocol/clientCapabilities": struct{}{},
		"io.modelcontextprotocol/clientInfo":         sender,
	})
}

// inSession sends one request of the handshake's era. Where the server has lost the session, it is opened anew once and
// the request repeated: a server that does not know the session has not looked at the request.
func (o *operation) inSession(method string, params any) (json.RawMessage, *Failure) {
	o.lastID++
	reply, failure := o.leg(message{ID: o.lastID, Method: method, Params: params}, nil)
	// An error for this very request is the answer of somebody who has read it, and perhaps acted on it, unless it says so itself.
	read := reply.err != nil && (reply.err.number == codeMethodNotFound ||
		method == methodCallTool && reply.err.forUs && !strings.Contains(strings.ToLower(reply.err.message), "session"))
	lost := failure != nil && reply.status == http.StatusNotFound && o.session != "" && !read
	if lost && !o.renewed {
		o.renewed = true
		if _, failure := o.handshake(); failure != nil {
			return nil, failure
		}
		o.lastID++
		reply, failure = o.leg(message{ID: o.lastID, Method: method, Params: params}, nil)
	}
	// Only a stream that ended is taken up again: not one that brought an answer, of whatever use, nor one that the grant cut.
	if failure != nil && failure.Kind != KindNoAnswer && reply.place.id != "" && !reply.place.final {
		reply, failure = o.resume(method, reply, failure)
	}
	return reply.result, failure
}

// resume takes an event stream up again that ended before the answer, as servers of the handshake's era may end it: after
// the time that the server asked for, as long as it makes headway, and within the budget. The request is not sent again.
func (o *operation) resume(method string, reply *incomingReply, failure *Failure) (*incomingReply, *Failure) {
	for times := 0; ; times++ {
		pause := reply.place.retry
		if pause == 0 {
			pause = time.Second
		}
		// A server that ends its streams at once and wants no pause would be asked thousands of times in a budget.
		pause = max(pause, min(time.Duration(times)*50*time.Millisecond, time.Second))
		if left := o.deadline.Remaining(); pause >= left {
			return reply, exchange{server: o.server.Identifier, method: method}.putOff(pause, left, o.deadline.budget)
		}
		time.Sleep(pause)
		o.served = 0
		again, cut := o.send(&flight{operation: o, message: message{ID: o.lastID, Method: method}, session: o.session, revision: o.info.Revision, resume: reply.place.id, serves: true})
		switch {
		case cut == nil:
			return again, nil
		case cut.Kind == KindBudgetSpent: // the pause took longer than it should have
			return reply, exchange{server: o.server.Identifier, method: method}.putOff(pause, 0, o.deadline.budget)
		case again.place.final, again.err != nil && again.status == http.StatusOK, cut.Kind == KindNoAnswer:
			return again, cut // an answer, or none in time
		case again.place.id == "" || again.place.id == reply.place.id:
			return reply, failure // no headway: what it said first stands
		}
		if again.place.retry == 0 {
			again.place.retry = reply.place.retry
		}
		reply, failure = again, cut
	}
}

// maxServed is how many requests of its own a server may have answered during one leg.
const maxServed = 16

// answerTheirs answers what a server asks while it works on our request; some wait for that. A ping is answered, all else is
// nothing that legwork can do. How the answer is received makes no difference to the operation, but the time it takes.
func (o *operation) answerTheirs(asked theirs) {
	if o.served++; o.served > maxServed {
		return
	}
	answer := &reply{ID: asked.id, Error: map[string]any{"code": codeMethodNotFound, "message": "not supported by this client"}}
	if asked.method == methodPing {
		answer = &reply{ID: asked.id, Result: struct{}{}}
	}
	name := "answer to " + strings.Trim(quote(asked.method), `"`)
	_, _ = o.send(&flight{operation: o, message: message{Method: name, reply: answer}, session: o.session, revision: o.info.Revision})
}

// leg sends a request or a notification. One in the manner of the stateless revision has extra headers and no session.
func (o *operation) leg(m message, extra http.Header) (*incomingReply, *Failure) {
	if extra != nil {
		return o.send(&flight{operation: o, message: m, extra: extra})
	}
	o.served = 0
	return o.send(&flight{operation: o, message: m, session: o.session, revision: o.info.Revision, serves: true})
}

func (o *operation) send(f *flight) (*incomingReply, *Failure) {
	failure := f.send()
	if f.reply.status == http.StatusUnauthorized {
		o.token = Token{}
	}
	if f.reply.tls != nil {
		o.tls = f.reply.tls
	}
	return &f.reply, failure
}

// call calls the tool, and reads what it brought into result.
func (o *operation) call(call *ToolCall, result *ToolResult) *Failure {
	if failure := o.refuse(call); failure != nil {
		return failure
	}
	raw, failure := o.callTool(call)
	if failure != nil {
		return failure
	}
	return o.read(call, raw, result)
}

// refuse is the failure of a call that is not fit to be sent.
func (o *operation) refuse(call *ToolCall) *Failure {
	if err := call.validate(); err != nil {
		return InvalidRequest(o.server.Identifier, fmt.Sprintf("Invalid request for %s: %s; nothing was sent.", named(o.server.Identifier), err))
	}
	return nil
}

// read makes of the answer to a call what it means.
func (o *operation) read(call *ToolCall, raw json.RawMessage, result *ToolResult) *Failure {
	var err error
	if *result, err = parseToolResult(raw); err != nil {
		return o.reread(methodCallTool, "%s", err)
	}
	if !result.IsError {
		return nil
	}
	o.relabel(KindToolError)
	said := "it did not say why"
	if result.Text != "" {
		said = "it said " + quote(result.Text)
	}
	return exchange{server: o.server.Identifier, method: methodCallTool}.failure(KindToolError, AskedYes, nil,
		"Tool error: tool %s of %s failed; %s.", quote(call.Name), named(o.server.Identifier), said)
}

// callTool calls the tool once, in the manner of the server's era.
func (o *operation) callTool(call *ToolCall) (json.RawMessage, *Failure) {
	if failure := o.open(); failure != nil {
		return nil, failure
	}
	if o.era == stateless {
		reply, failure := o.callStateless(call)
		if o.proven || !leavesStateless(reply, failure) {
			return reply.result, failure
		}
		// A tool may refuse in the same words after it has acted. Only what cannot act tells whether the server has changed.
		if reply.err == nil || reply.err.number != codeVersion {
			if o.discover(); o.era != handshake {
				return nil, failure
			}
		}
		if failure := o.turn(failure); failure != nil {
			return nil, failure
		}
	}
	return o.inSession(methodCallTool, &params{Name: call.Name, Arguments: call.Arguments})
}

// maxStates is how often a call is repeated with the state that a server hands out in place of an answer.
const maxStates = 3

func (o *operation) callStateless(call *ToolCall) (*incomingReply, *Failure) {
	p := &params{Name: call.Name, Arguments: call.Arguments}
	header := callHeader(call.Name, call.InputSchema, call.Arguments)
	reply, failure := o.stateless(methodCallTool, p, header)
	if reply.err != nil && reply.err.number == codeHeaderMismatch {
		// The stored schema is not the server's any more. It refused before anything was done: look once, ask once more.
		schema, found := o.lookUp(call.Name)
		if found != nil {
			return new(incomingReply), found
		}
		if schema == nil {
			return reply, failure
		}
		header = callHeader(call.Name, schema, call.Arguments)
		reply, failure = o.stateless(methodCallTool, p, header)
	}
	for states := 0; failure == nil; states++ {
		state, wanted := o.incomplete(methodCallTool, reply.kind)
		if wanted != nil {
			return new(incomingReply), wanted
		}
		if state == nil {
			break
		}
		if states == maxStates {
			return new(incomingReply), o.reread(methodCallTool, "it put the call off %d times", states+1)
		}
		p.RequestState = state
		reply, failure = o.stateless(methodCallTool, p, header)
	}
	return reply, failure
}

func callHeader(name string, schema, arguments json.RawMessage) http.Header {
	header := make(http.Header, 3)
	header["Mcp-Name"] = []string{headerValue(name)}
	wanted, err := parameters(schema)
	if err == nil { // a schema that breaks the rules says nothing; the server will say what it misses
		setParameters(header, wanted, arguments)
	}
	return header
}

// lookUp finds a tool's schema in the server's catalogue; nil where it is not there.
func (o *operation) lookUp(tool string) (json.RawMessage, *Failure) {
	catalogue, failure := o.walk(nil, tool)
	for _, t := range catalogue.Tools {
		if t.Name == tool {
			return t.InputSchema, nil
		}
	}
	return nil, failure
}

// incomplete looks at how far a result of the stateless revision is. The state is what the server wants back when it has
// put the call off; a failure says what it wants that legwork does not give.
func (o *operation) incomplete(method string, result *resultKind) (state json.RawMessage, failure *Failure) {
	if result.complete() {
		return nil, nil
	}
	if kind := plain(result.ResultType); kind != "input_required" || method != methodCallTool {
		return nil, o.reread(method, "its result is of type %s, which has no place there", quote(kind))
	}
	if asked := askedFor(result.InputRequests); asked != "" {
		failure := exchange{server: o.server.Identifier, method: method}.failure(KindRPCError, AskedYes, nil,
			"Input wanted: %s will not finish %s without %s, which legwork does not give.", named(o.server.Identifier), method, asked)
		o.relabel(failure.Kind)
		return nil, failure
	}
	if !present(result.RequestState) {
		return nil, o.reread(method, "it wants something more and does not say what")
	}
	return slices.Clone(oneLine(result.RequestState)), nil
}

// askedFor names what a server wants from a person or a model, in words; empty when it wants nothing.
func askedFor(raw json.RawMessage) string {
	type request struct {
		Method string `json:"method"`
	}
	var byID map[string]request
	if !present(raw) {
		return ""
	}
	if json.Unmarshal(raw, &byID) != nil {
		var list []request
		if json.Unmarshal(raw, &list) != nil {
			return excerpt(raw)
		}
		byID = map[string]request{}
		for i, r := range list {
			byID[fmt.Sprint(i)] = r
		}
	}
	methods := map[string]bool{}
	for _, r := range byID {
		methods[r.Method] = true
	}
	if len(methods) == 0 {
		return ""
	}
	return quote(strings.Join(slices.Sorted(maps.Keys(methods)), ", "))
}

// listTools walks the catalogue. Its first page is asked for in the manner of the stateless revision, which shows the
// server's era and does nothing in any: so a server that was upgraded is noticed at its next import.
func (o *operation) listTools() (Catalogue, *Failure) {
	if eraOf(o.server.Revision) == stateless {
		o.becomeStateless()
	}
	reply, failure := o.stateless(methodListTools, new(params), nil)
	o.era = o.judge(methodListTools, reply, failure)
	switch {
	case o.era == stateless:
		o.becomeStateless()
	case o.era == unknown:
		return Catalogue{}, failure
	case failure == nil && eraOf(o.server.Revision) == stateless:
		o.becomeStateless() // one that leaves resultType out, as an early one may
	case failure == nil:
		o.info = ServerInfo{Revision: RevisionUnnamed} // it answers without a handshake: so be it
	default:
		if failure := o.turn(failure); failure != nil {
			return Catalogue{}, failure
		}
		return o.walk(nil, "")
	}
	if failure != nil {
		return Catalogue{}, failure
	}
	return o.walk(reply.result, "")
}

// walk reads the catalogue page by page, as far as the tool that is sought, or to its end where none is. The first page is
// asked for where it is not there yet.
func (o *operation) walk(first json.RawMessage, sought string) (Catalogue, *Failure) {
	gathered := gatherer{annotated: o.era == stateless}
	var p params
	seen := map[string]bool{}
	for page := 1; ; page++ {
		if page > MaxPages {
			return Catalogue{}, o.reread(methodListTools, "the catalogue has more than %d pages; it was refused rather than cut", MaxPages)
		}
		raw := first
		if first = nil; raw == nil {
			var failure *Failure
			if raw, failure = o.list(p); failure != nil {
				return Catalogue{}, failure
			}
		}
		if o.era == stateless {
			if _, failure := o.incomplete(methodListTools, kindOf(raw)); failure != nil {
				return Catalogue{}, failure
			}
		}
		next, err := gathered.page(raw)
		if err != nil {
			return Catalogue{}, o.reread(methodListTools, "%s", err)
		}
		// Servers of the handshake's era send an empty cursor for "no more"; to the stateless revision it is one like any other.
		if next == nil || *next == "" && o.era == handshake || sought != "" && gathered.names[sought] {
			return gathered.catalogue, nil
		}
		if seen[*next] {
			return Catalogue{}, o.reread(methodListTools, "page %d points back to a page that was read already, so the catalogue has no end", page)
		}
		seen[*next] = true
		p.Cursor = next
	}
}

func (o *operation) list(p params) (json.RawMessage, *Failure) {
	if o.era == stateless || o.info.Revision == RevisionUnnamed {
		reply, failure := o.stateless(methodListTools, &p, nil)
		return reply.result, failure
	}
	return o.inSession(methodListTools, &p)
}

// ping asks whether the server is there: server/discover where there is no handshake, ping where there is.
func (o *operation) ping() *Failure {
	if eraOf(o.server.Revision) == stateless {
		o.becomeStateless()
		failure := o.discover()
		if o.era != handshake {
			return failure
		}
		if failure := o.turn(failure); failure != nil {
			return failure
		}
	} else if failure := o.open(); failure != nil || o.era == stateless {
		return failure
	}
	_, failure := o.inSession(methodPing, nil)
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
	return Spent{Budget: o.deadline.budget, Legs: o.legs, Elapsed: o.deadline.Elapsed(), Revision: o.info.Revision, Token: o.token}
}
