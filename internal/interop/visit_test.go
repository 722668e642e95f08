package main

import (
	"testing"
	"time"

	"legwork/mcp"
)

func newClient(t *testing.T) *mcp.Client {
	t.Helper()
	gate, err := mcp.NewGate(mcp.GateOptions{AllowedHosts: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	clock := mcp.MonotonicClock()
	wire := mcp.NewHTTPTransport(gate)
	client := mcp.NewClient(mcp.NewTransport(wire, clock), clock, "test")
	t.Cleanup(func() {
		client.Close()
		wire.CloseIdleConnections()
	})
	return client
}

// The servers that need no npm are visited with every run of the tests.
func TestGoServers(t *testing.T) {
	t.Parallel()
	for _, s := range goSubjects() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.budget = time.Second // the least there is
			rows, err := visit(t.Context(), newClient(t), s)
			if err != nil {
				t.Fatal(err)
			}
			if len(rows) != 5 {
				t.Errorf("%d operations were carried out", len(rows))
			}
			for _, r := range rows {
				if r.wrong != nil {
					t.Errorf("%s", r.line(s.name))
				}
			}
		})
	}
}

func TestVisitSeesWhatIsWrong(t *testing.T) {
	t.Parallel()
	right := goSubjects()[0] // of the handshake's era, in event streams
	for _, c := range []struct {
		name  string
		spoil func(*subject)
		wrong []string // the operations that must be found wrong
	}{
		{"another revision", func(s *subject) { s.revision = "2025-06-18" }, []string{"ping", "import", "call", "fail", "cut"}},
		{"more legs than it should take", func(s *subject) { s.pages = 1 }, []string{"import"}},
		{"a tool that is not there", func(s *subject) { s.works.tool = "subtract" }, []string{"import", "call"}},
		{"another answer", func(s *subject) { s.says = "6" }, []string{"call"}},
		{"a stream that does not end early", func(s *subject) { s.resumed = 1 }, []string{"call"}},
		{"a tool that does not fail", func(s *subject) { s.fails = s.works }, []string{"fail"}},
		{"another kind of failure", func(s *subject) { s.refuses = mcp.KindRPCError }, []string{"fail"}},
		{"a tool that is not slow", func(s *subject) { s.slow = s.works }, []string{"cut"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := right
			s.budget = time.Second
			c.spoil(&s)
			rows, err := visit(t.Context(), newClient(t), s)
			if err != nil {
				t.Fatal(err)
			}
			must := map[string]bool{}
			for _, what := range c.wrong {
				must[what] = true
			}
			for _, r := range rows {
				if (r.wrong != nil) != must[r.what] {
					t.Errorf("wrong should be %v: %s", must[r.what], r.line(s.name))
				}
			}
		})
	}
}
