// Package mcptest is an MCP server to test against. It speaks real HTTP on the loopback interface, behaves as the
// protocol prescribes, and misbehaves where a test says so, method by method. It keeps a record of every request, so that
// a test can say what was sent, how often, and with which headers. It is of the handshake's era unless Options say that it
// is stateless, or both.
//
//	server := mcptest.New(t, mcptest.Options{})
//	server.On("tools/call", mcptest.Stall)
//
// Next to it stand the sockets that are no server at all: [Wedged], [Unconnectable] and [Nowhere]; and a [Clock] that a
// behaviour can move.
package mcptest

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Options say how a server behaves that behaves. The zero value offers the tool "echo" on one page, opens a session by the
// handshake, and answers in JSON over plain HTTP/1.1.
type Options struct {
	Era       Era                  // which requests it serves
	Tools     []Tool               // nil offers "echo", which answers with the arguments it was called with
	PageSize  int                  // how many tools stand on one page; 0 is all
	Revision  string               // what initialize agrees on; empty is the revision that it is asked for
	Stream    bool                 // answer in event streams instead of JSON
	NoSession bool                 // give no session id
	TLS       bool                 // speak HTTP/1.1 over TLS; see Server.TLS
	HTTP2     bool                 // speak HTTP/2 over TLS; see Server.TLS
	On        map[string]Behaviour // as by Server.On
}

// Tool is one tool that a server offers.
type Tool struct {
	Name        string
	Title       string
	Description string
	InputSchema json.RawMessage // nil is {"type":"object"}
	Annotations json.RawMessage // nil leaves them out
	// Entry is the whole catalogue entry, for one that is not as it should be. Name is still what a call names.
	Entry json.RawMessage
	// Call gives the result of a call; see Text and Failed. nil answers with the text "NAME was called".
	Call func(arguments json.RawMessage) json.RawMessage
}

// Text is the result of a tool that answers with this text.
func Text(text string) json.RawMessage { return content(text, false) }

// Failed is the result of a tool that failed and says this.
func Failed(text string) json.RawMessage { return content(text, true) }

func content(text string, isError bool) json.RawMessage {
	return marshal(map[string]any{"content": []any{map[string]string{"type": "text", "text": text}}, "isError": isError})
}

// Request is one request as it came in.
type Request struct {
	At         time.Time
	HTTPMethod string
	Path       string
	Proto      string // "HTTP/1.1" or "HTTP/2.0"
	RemoteAddr string // tells connections apart
	Header     http.Header
	Body       []byte

	Method string          // the JSON-RPC method; the HTTP method when the body holds none
	ID     json.RawMessage // nil for a notification
	Params json.RawMessage
}

// Server is a scriptable MCP server. Its methods may be called at any time, from any goroutine.
type Server struct {
	URL string // of the MCP endpoint

	http    *httptest.Server
	opts    Options
	closing chan struct{}
	running sync.WaitGroup

	mu       sync.Mutex
	era      Era
	on       map[string]Behaviour
	tools    []Tool
	sessions map[string]bool // false once deleted
	requests []Request
	arrived  chan struct{} // closed and replaced when a request comes in
}

// New starts a server, which stops when the test ends. A request that stalls then is let go.
func New(t testing.TB, opts Options) *Server {
	t.Helper()
	s := &Server{
		opts: opts, era: opts.Era, closing: make(chan struct{}), on: map[string]Behaviour{}, tools: opts.Tools,
		sessions: map[string]bool{}, arrived: make(chan struct{}),
	}
	if s.tools == nil {
		s.tools = []Tool{{Name: "echo", Description: "Answers with its arguments.", Call: func(arguments json.RawMessage) json.RawMessage {
			return Text(string(arguments))
		}}}
	}
	for method, behaviour := range opts.On {
		s.on[method] = behaviour
	}
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.http.Config.ErrorLog = quiet
	if opts.TLS || opts.HTTP2 {
		s.http.EnableHTTP2 = opts.HTTP2
		s.http.StartTLS()
	} else {
		s.http.Start()
	}
	s.URL = s.http.URL + "/mcp"
	t.Cleanup(s.stop)
	return s
}

func (s *Server) stop() {
	close(s.closing)
	s.http.CloseClientConnections()
	s.http.Close()
	s.running.Wait()
}

// TLS is a client's configuration that trusts this server, which Options made speak TLS.
func (s *Server) TLS() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(s.http.Certificate())
	return &tls.Config{RootCAs: pool}
}

// On says how requests of a method are met from now on. The method is a JSON-RPC method such as "tools/call", "DELETE" for
// the end of a session, or "*" for every request that has no behaviour of its own. nil is to behave again.
//
// A stateless request that reaches a server of the handshake alone is not met by the behaviour of its method but by that
// of "stateless"; without one, by [NotInitialized].
func (s *Server) On(method string, behaviour Behaviour) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on[method] = behaviour
}

// SetTools changes what the server offers.
func (s *Server) SetTools(tools ...Tool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tools = slices.Clone(tools)
}

// SetEra changes which requests the server serves from now on, as when it is upgraded.
func (s *Server) SetEra(era Era) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.era = era
}

// ForgetSessions loses every session that is open, as a server does that was started anew.
func (s *Server) ForgetSessions() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.sessions {
		s.sessions[id] = false
	}
}

// Requests lists every request so far, in the order they came in.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Sent lists the requests of one method so far. Method is as for On.
func (s *Server) Sent(method string) []Request {
	return slices.DeleteFunc(s.Requests(), func(r Request) bool { return r.Method != method })
}

// Methods lists the methods of every request so far, in the order they came in.
func (s *Server) Methods() []string {
	methods := []string{}
	for _, r := range s.Requests() {
		methods = append(methods, r.Method)
	}
	return methods
}

// OpenSessions is how many sessions were opened and not yet deleted.
func (s *Server) OpenSessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := 0
	for _, still := range s.sessions {
		if still {
			open++
		}
	}
	return open
}

// patience is how long a test waits for what must come. Nothing waits that long in a test that passes.
const patience = 30 * time.Second

// Await waits until n requests of a method have come in and gives those that have. The test fails when they do not come.
func (s *Server) Await(t testing.TB, method string, n int) []Request {
	t.Helper()
	timeout := time.After(patience)
	for {
		s.mu.Lock()
		arrived := s.arrived
		s.mu.Unlock()
		if sent := s.Sent(method); len(sent) >= n {
			return sent
		}
		select {
		case <-arrived:
		case <-timeout:
			t.Fatalf("%d requests of %s did not come; what came is %q", n, method, s.Methods())
		}
	}
}

// serve records a request and hands it to its behaviour.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.running.Add(1)
	defer s.running.Done()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client went away in the middle of it
	}
	x := &Exchange{W: w, R: r, server: s, Request: Request{
		At: time.Now(), HTTPMethod: r.Method, Path: r.URL.Path, Proto: r.Proto, RemoteAddr: r.RemoteAddr,
		Header: r.Header.Clone(), Body: body, Method: r.Method,
	}}
	var message struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params json.RawMessage `json:"params"`
	}
	if json.Unmarshal(body, &message) == nil && message.Method != "" {
		x.Method, x.ID, x.Params = message.Method, message.ID, message.Params
	}

	s.mu.Lock()
	s.requests = append(s.requests, x.Request)
	close(s.arrived)
	s.arrived = make(chan struct{})
	x.modern = s.era == Stateless || s.era == Both && x.stateless()
	method, behaviour := x.Method, Behaviour(Behave)
	if !x.modern && x.stateless() {
		method, behaviour = "stateless", NotInitialized
	}
	for _, script := range []string{"*", method} {
		if s.on[script] != nil {
			behaviour = s.on[script]
		}
	}
	s.mu.Unlock()
	behaviour(x)
}

// behave is what the protocol prescribes, strictly: a client that leaves something out is told so.
func (s *Server) behave(x *Exchange) {
	if x.modern {
		s.behaveStateless(x)
		return
	}
	if x.HTTPMethod == http.MethodDelete {
		s.deleteSession(x)
		return
	}
	if x.HTTPMethod != http.MethodPost {
		x.status(http.StatusMethodNotAllowed, "only POST and DELETE are served")
		return
	}
	if complaint := s.complaint(x); complaint != "" {
		x.status(http.StatusBadRequest, complaint)
		return
	}
	if id := x.Header.Get("Mcp-Session-Id"); id != "" && !s.open(id) {
		x.status(http.StatusNotFound, "no such session")
		return
	}
	if x.Method == http.MethodPost { // an answer to what a behaviour asked
		x.W.WriteHeader(http.StatusAccepted)
		return
	}
	s.handle(x)
}

// handle answers a request that is in order as far as HTTP goes, in the handshake's era.
func (s *Server) handle(x *Exchange) {
	switch x.Method {
	case "initialize":
		s.initialize(x)
	case "ping":
		x.Result("{}")
	case "tools/list":
		s.list(x)
	case "tools/call":
		s.call(x)
	default:
		if x.ID == nil {
			x.W.WriteHeader(http.StatusAccepted)
			return
		}
		x.Error(-32601, "method not found")
	}
}

var knownRevisions = []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"}

// complaint is what is wrong with a request, or nothing.
func (s *Server) complaint(x *Exchange) string {
	accept := x.Header.Get("Accept")
	version := x.Header.Get("Mcp-Protocol-Version")
	s.mu.Lock()
	opened := len(s.sessions) > 0
	s.mu.Unlock()
	switch {
	case x.Method == http.MethodPost && !x.answers():
		return "the body is no JSON-RPC request"
	case x.Header.Get("Content-Type") != "application/json":
		return "the content type is not application/json"
	case !strings.Contains(accept, "application/json") || !strings.Contains(accept, "text/event-stream"):
		return "JSON and event streams are not both accepted"
	case x.Method == "initialize" && version != "":
		return "a protocol version was sent before one was agreed on"
	case x.Method == "initialize" && x.Header.Get("Mcp-Session-Id") != "":
		return "a session id was sent to open a session"
	case x.Method != "initialize" && !slices.Contains(knownRevisions, version):
		return "the protocol version is missing or unknown"
	case x.Method != "initialize" && opened && x.Header.Get("Mcp-Session-Id") == "":
		return "the session id is missing"
	}
	return ""
}

// answers tells whether what came is no request, but an answer to one.
func (x *Exchange) answers() bool {
	var message struct {
		ID     json.RawMessage `json:"id"`
		Result json.RawMessage `json:"result"`
		Error  json.RawMessage `json:"error"`
	}
	return json.Unmarshal(x.Body, &message) == nil && message.ID != nil && (message.Result == nil) != (message.Error == nil)
}

func (s *Server) open(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id]
}

func (s *Server) deleteSession(x *Exchange) {
	id := x.Header.Get("Mcp-Session-Id")
	s.mu.Lock()
	open := s.sessions[id]
	if open {
		s.sessions[id] = false
	}
	s.mu.Unlock()
	if !open {
		x.status(http.StatusNotFound, "no such session")
		return
	}
	x.W.WriteHeader(http.StatusNoContent)
}

func (s *Server) initialize(x *Exchange) {
	var params struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	if json.Unmarshal(x.Params, &params) != nil || params.ProtocolVersion == "" {
		x.Error(-32602, "protocolVersion is missing")
		return
	}
	revision := s.opts.Revision
	if revision == "" {
		revision = params.ProtocolVersion
	}
	if !s.opts.NoSession {
		s.mu.Lock()
		id := fmt.Sprintf("session-%d", len(s.sessions)+1)
		s.sessions[id] = true
		s.mu.Unlock()
		x.W.Header().Set("Mcp-Session-Id", id)
	}
	x.Result(string(marshal(map[string]any{
		"protocolVersion": revision,
		"capabilities":    map[string]any{"tools": struct{}{}},
		"serverInfo":      map[string]string{"name": "mcptest", "version": "1"},
	})))
}

func (s *Server) list(x *Exchange) {
	var params struct {
		Cursor string `json:"cursor"`
	}
	_ = json.Unmarshal(x.Params, &params)
	s.mu.Lock()
	tools := s.tools
	s.mu.Unlock()
	from := 0
	if params.Cursor != "" {
		var err error
		if from, err = strconv.Atoi(params.Cursor); err != nil || from < 1 || from >= len(tools) {
			x.Error(-32602, "no such cursor")
			return
		}
	}
	to := len(tools)
	if s.opts.PageSize > 0 {
		to = min(to, from+s.opts.PageSize)
	}
	entries := []json.RawMessage{}
	for _, tool := range tools[from:to] {
		entries = append(entries, tool.entry())
	}
	result := map[string]any{"tools": entries}
	if to < len(tools) {
		result["nextCursor"] = strconv.Itoa(to)
	}
	if x.modern {
		result["ttlMs"], result["cacheScope"] = 60_000, "private"
	}
	x.complete(marshal(result))
}

// entry is written by hand so that the schema stands in it byte for byte.
func (t Tool) entry() json.RawMessage {
	if t.Entry != nil {
		return t.Entry
	}
	schema := t.InputSchema
	if schema == nil {
		schema = json.RawMessage(`{"type":"object"}`)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"name":%s`, marshal(t.Name))
	if t.Title != "" {
		fmt.Fprintf(&b, `,"title":%s`, marshal(t.Title))
	}
	if t.Description != "" {
		fmt.Fprintf(&b, `,"description":%s`, marshal(t.Description))
	}
	fmt.Fprintf(&b, `,"inputSchema":%s`, schema)
	if t.Annotations != nil {
		fmt.Fprintf(&b, `,"annotations":%s`, t.Annotations)
	}
	b.WriteByte('}')
	return b.Bytes()
}

func (s *Server) call(x *Exchange) {
	var params struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if json.Unmarshal(x.Params, &params) != nil {
		x.Error(-32602, "the parameters cannot be read")
		return
	}
	s.mu.Lock()
	tools := s.tools
	s.mu.Unlock()
	for _, tool := range tools {
		if tool.Name != params.Name {
			continue
		}
		if tool.Call == nil {
			x.complete(Text(tool.Name + " was called"))
		} else {
			x.complete(tool.Call(params.Arguments))
		}
		return
	}
	x.Error(-32602, "unknown tool: "+params.Name)
}

// marshal keeps raw JSON as it was written, which the encoder does apart from white space.
func marshal(v any) json.RawMessage {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // a test's own values
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
