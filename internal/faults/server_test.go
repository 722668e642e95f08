package faults

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// server is an MCP server that counts how often it was asked to carry out each step. It keeps no more than that, so that it
// can serve for as long as a test likes. mcp/mcptest, which keeps every request, is for shorter tests.
type server struct {
	URL  string
	http *httptest.Server
	over chan struct{} // closed when the test is

	mu    sync.Mutex
	calls map[string]int
	acts  func(call)
}

// call is one tools/call.
type call struct {
	tool, step string
	nth        int // of this step, from 1
	id         json.RawMessage
	w          http.ResponseWriter
	r          *http.Request
	over       <-chan struct{}
}

// newServer starts a server that answers as acts says. It stops when the test ends.
func newServer(t testing.TB, acts func(call)) *server {
	t.Helper()
	s := &server{over: make(chan struct{}), calls: map[string]int{}, acts: acts}
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.http.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.http.Start()
	s.URL = s.http.URL + "/mcp"
	t.Cleanup(func() {
		close(s.over)
		s.http.CloseClientConnections()
		s.http.Close()
	})
	return s
}

// act changes what the server does with calls that come from now on.
func (s *server) act(acts func(call)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acts = acts
}

// counts is how often each step was called so far.
func (s *server) counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.calls)
}

func (s *server) called(step fmt.Stringer) int { return s.counts()[step.String()] }

// awaitCalls waits until so many steps have been called.
func (s *server) awaitCalls(t testing.TB, n int) {
	t.Helper()
	var have int
	until(t, bound, func() string { return fmt.Sprintf("%d steps to be called; %d were", n, have) }, func() bool {
		have = len(s.counts())
		return have >= n
	})
}

func (s *server) serve(w http.ResponseWriter, r *http.Request) {
	var message struct {
		ID     json.RawMessage
		Method string
		Params struct {
			Name      string
			Arguments struct{ Step string }
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&message); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch message.Method {
	case "initialize":
		respond(w, message.ID, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"counting","version":"1"}}`)
	case "notifications/initialized":
		w.WriteHeader(http.StatusAccepted)
	case "tools/call":
		step := message.Params.Arguments.Step
		s.mu.Lock()
		s.calls[step]++
		c := call{message.Params.Name, step, s.calls[step], message.ID, w, r, s.over}
		acts := s.acts
		s.mu.Unlock()
		acts(c)
	default:
		respond(w, message.ID, `{}`)
	}
}

func respond(w http.ResponseWriter, id json.RawMessage, result string) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}

func (c call) result() string {
	return fmt.Sprintf(`{"content":[{"type":"text","text":"call %d of %s"}]}`, c.nth, c.step)
}

func (c call) answer() { respond(c.w, c.id, c.result()) }

// wait is false when nobody waits for an answer any more.
func (c call) wait(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-c.r.Context().Done():
	case <-c.over:
	}
	return false
}

// answer answers at once.
func answer(c call) { c.answer() }

// hang never answers.
func hang(c call) {
	select {
	case <-c.r.Context().Done():
	case <-c.over:
	}
}

// held answers when release is closed, whether anybody still waits or not.
func held(release <-chan struct{}) func(call) {
	return func(c call) {
		select {
		case <-release:
			c.answer()
		case <-c.over:
		}
	}
}

// after answers when some time has passed.
func after(d func() time.Duration) func(call) {
	return func(c call) {
		if c.wait(d()) {
			c.answer()
		}
	}
}

// drip answers one byte a second.
func drip(c call) {
	c.w.Header().Set("Content-Type", "application/json")
	for _, b := range []byte(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, c.id, c.result())) {
		if _, err := c.w.Write([]byte{b}); err != nil {
			return
		}
		if err := http.NewResponseController(c.w).Flush(); err != nil || !c.wait(time.Second) {
			return
		}
	}
}

// hangUp closes the connection without an answer.
func hangUp(call) { panic(http.ErrAbortHandler) }
