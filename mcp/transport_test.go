package mcp_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"legwork/mcp"
	"legwork/mcp/mcptest"
)

// TestHostileServerCostsBoundedMemory runs alone, because it counts what is allocated.
func TestHostileServerCostsBoundedMemory(t *testing.T) {
	const most = 32 << 20
	for _, tt := range []struct {
		story     string
		method    string
		behaviour mcptest.Behaviour
	}{
		{"a compressed bomb of 200 MiB", "tools/list", mcptest.GzipBomb(200)},
		{"a body without end", "tools/list", mcptest.EndlessBody},
		{"a header without end", "tools/list", mcptest.EndlessHeader},
		{"a failing status with a body without end", "initialize", func(x *mcptest.Exchange) {
			x.W.WriteHeader(http.StatusInternalServerError)
			mcptest.EndlessBody(x)
		}},
		{"a confirmation with a body without end", "notifications/initialized", mcptest.EndlessBody},
	} {
		t.Run(tt.story, func(t *testing.T) {
			fake := mcptest.New(t, mcptest.Options{On: on{tt.method: tt.behaviour}})
			client := newClient(t, parts{})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _, err := client.ListTools(t.Context(), docs(fake.URL), ample)
			runtime.ReadMemStats(&after)
			if tt.method == "notifications/initialized" {
				if err != nil { // what comes with a receipt is not read
					t.Error(err)
				}
			} else if failure(t, err).Asked != mcp.AskedYes {
				t.Error(err)
			}
			if cost := after.TotalAlloc - before.TotalAlloc; cost > most {
				t.Errorf("it cost %d MiB, want at most %d", cost>>20, most>>20)
			}
		})
	}
}

// Whatever a server drips or withholds, the operation ends when its grant does, and the time is on the leg that took it.
func TestGrantBoundsTheWholeLeg(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story     string
		behaviour mcptest.Behaviour
	}{
		{"headers that stall", mcptest.RawThenStall("HTTP/1.1 200 OK\r\nA: b\r\n")},
		{"body dripped", mcptest.Drip},
		{"events dripped", func(x *mcptest.Exchange) {
			x.W.Header().Set("Content-Type", "text/event-stream")
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for done := x.Done(); ; {
				_, _ = io.WriteString(x.W, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n")
				x.Flush()
				select {
				case <-tick.C:
				case <-done:
					return
				}
			}
		}},
		{"a refusal whose body stalls", func(x *mcptest.Exchange) {
			x.W.WriteHeader(http.StatusInternalServerError)
			mcptest.BodyThenStall("text/plain", "wait")(x)
		}},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, mcptest.Options{On: on{"tools/call": tt.behaviour}})
			_, spent, err := newClient(t, parts{clock: new(mcptest.Clock)}).CallTool(t.Context(), docs(fake.URL), echo, installation(time.Second))
			if f := failure(t, err); f.Kind != mcp.KindNoAnswer && f.Kind != mcp.KindHTTPStatus {
				t.Errorf("failure %s: %s", f.Kind, f.Message)
			}
			if len(spent.Legs) != 3 {
				t.Errorf("legs %v", legs(spent))
			}
		})
	}
}

func TestNoAnswerNamesWhatWasLeft(t *testing.T) {
	t.Parallel()
	clock := new(mcptest.Clock)
	fake := mcptest.New(t, mcptest.Options{On: on{"initialize": mcptest.Spend(clock, 18500*time.Millisecond), "tools/call": mcptest.Stall}})
	_, _, err := newClient(t, parts{clock: clock}).CallTool(t.Context(), docs(fake.URL), echo, installation(20*time.Second))
	want := `No answer: server "docs" was asked (tools/call) and did not answer in the 2 s that were left of its budget of 20 s; nothing had arrived. Nobody knows whether it acted.`
	if f := failure(t, err); f.Message != want {
		t.Errorf("the sentence is\n     %s\nwant %s", f.Message, want)
	}
}

func TestUnreachableNamesWhatWasLeft(t *testing.T) {
	t.Parallel()
	clock := new(mcptest.Clock)
	fake := mcptest.New(t, mcptest.Options{})
	unconnectable := mcptest.Unconnectable(t)
	// The second leg goes to where no connection comes about, as when a server died between two legs.
	client := newClient(t, parts{clock: clock, wrap: func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Header.Get("Mcp-Session-Id") != "" {
				r.URL.Host = strings.TrimSuffix(strings.TrimPrefix(unconnectable, "http://"), "/mcp")
				return next.RoundTrip(r)
			}
			resp, err := next.RoundTrip(r)
			clock.Advance(19 * time.Second)
			return resp, err
		})
	}})
	_, spent, err := client.Ping(t.Context(), docs(fake.URL), installation(20*time.Second))
	want := `Unreachable: no connection to server "docs" came about: connecting took the whole 1 s that were left of the budget of 20 s. Its process never saw the request (notifications/initialized).`
	if f := failure(t, err); f.Message != want || f.Asked != mcp.AskedNo {
		t.Errorf("the sentence is\n     %s\nwant %s", f.Message, want)
	}
	if diff := cmp.Diff(after("notifications/initialized", "unreachable", 0), legs(spent)); diff != "" {
		t.Error(diff)
	}
}

// The context carries values. Whoever cancels it does not stop a leg.
func TestCancelledContextStopsNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	fake := mcptest.New(t, mcptest.Options{On: on{"tools/call": func(x *mcptest.Exchange) {
		cancel()
		x.Behave()
	}}})
	client := newClient(t, parts{})
	for _, story := range []string{"cancelled in the middle", "cancelled before"} {
		result, _, err := client.CallTool(ctx, docs(fake.URL), echo, ample)
		if err != nil || result.Text != "{}" {
			t.Errorf("%s: %q, %v", story, result.Text, err)
		}
	}
	past, cancelPast := context.WithDeadline(t.Context(), time.Now().Add(-time.Hour))
	defer cancelPast()
	if _, _, err := client.Ping(past, docs(fake.URL), ample); err != nil {
		t.Error("a deadline that passed:", err)
	}
	client.Close()
	if open := fake.OpenSessions(); open != 0 {
		t.Errorf("%d sessions were left open", open)
	}
}

// A connection that the server closed while it was idle costs nothing: the leg is sent on another.
func TestIdleConnectionThatWasClosed(t *testing.T) {
	t.Parallel()
	fake := mcptest.New(t, mcptest.Options{On: on{"notifications/initialized": func(x *mcptest.Exchange) {
		x.W.Header().Set("Connection", "close")
		x.Behave()
	}}})
	client := newClient(t, parts{})
	for range 3 {
		if _, _, err := client.CallTool(t.Context(), docs(fake.URL), echo, ample); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(fake.Sent("tools/call")); got != 3 {
		t.Errorf("3 calls were sent %d times", got)
	}
}

// A kept connection that turns out to be dead before anything is written on it does not count as asked, when no other can
// be made in its place.
func TestKeptConnectionIsDeadAndSoIsTheServer(t *testing.T) {
	t.Parallel()
	nowhere := strings.TrimSuffix(strings.TrimPrefix(mcptest.Nowhere(t), "http://"), "/mcp")
	fake := mcptest.New(t, mcptest.Options{})
	var dead atomic.Bool
	client := newClient(t, parts{
		tune: func(wire *http.Transport) {
			dial := wire.DialContext
			wire.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				if dead.Load() {
					return dial(ctx, network, nowhere)
				}
				conn, err := dial(ctx, network, address)
				return &mortal{Conn: conn, dead: &dead}, err
			}
		},
		wrap: func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				if r.Header.Get("Mcp-Session-Id") != "" {
					dead.Store(true)
				}
				return next.RoundTrip(r)
			})
		},
	})
	_, spent, err := client.CallTool(t.Context(), docs(fake.URL), echo, ample)
	if f := failure(t, err); f.Kind != mcp.KindUnreachable || f.Asked != mcp.AskedNo {
		t.Errorf("failure %s, asked %s: %s", f.Kind, f.Asked, f.Message)
	}
	if diff := cmp.Diff(after("notifications/initialized", "unreachable", 0), legs(spent)); diff != "" {
		t.Error(diff)
	}
}

// mortal is a connection that takes nothing more once it is dead.
type mortal struct {
	net.Conn
	dead *atomic.Bool
}

func (m *mortal) Write(p []byte) (int, error) {
	if m.dead.Load() {
		return 0, syscall.EPIPE
	}
	return m.Conn.Write(p)
}

// A call is sent once, whatever becomes of its connection: net/http repeats some requests by itself.
func TestCallIsSentOnce(t *testing.T) {
	t.Parallel()
	for _, wire := range []mcptest.Options{{}, {HTTP2: true}} {
		t.Run(fmt.Sprintf("HTTP2=%v", wire.HTTP2), func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, wire)
			fake.On("tools/call", mcptest.HangUp)
			p := parts{}
			if wire.HTTP2 {
				p.tls = fake.TLS()
			}
			client := newClient(t, p)
			for n := range 3 {
				_, _, err := client.CallTool(t.Context(), docs(fake.URL), echo, ample)
				if f := failure(t, err); f.Kind != mcp.KindConnectionLost || f.Asked != mcp.AskedUnknown {
					t.Errorf("failure %s, asked %s: %s", f.Kind, f.Asked, f.Message)
				}
				if got := len(fake.Sent("tools/call")); got != n+1 {
					t.Fatalf("%d calls were sent %d times", n+1, got)
				}
			}
		})
	}
}

func TestFailuresOverHTTP2(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story     string
		behaviour mcptest.Behaviour
		kind      mcp.Kind
		asked     mcp.Asked
		says      string
	}{
		{"stalls", mcptest.Stall, mcp.KindNoAnswer, mcp.AskedUnknown, "nothing had arrived"},
		{"stops in the middle of the body", mcptest.BodyThenStall("application/json", "{"), mcp.KindNoAnswer, mcp.AskedUnknown, "the headers and 1 bytes of the body had arrived"},
		{"resets the stream", mcptest.HangUp, mcp.KindConnectionLost, mcp.AskedUnknown, "nothing had arrived"},
		{"resets the stream in the middle of the body", mcptest.BodyThenHangUp("application/json", "{"), mcp.KindConnectionLost, mcp.AskedUnknown, "the headers and 1 bytes"},
		{"a body without end", mcptest.EndlessBody, mcp.KindResponseTooLarge, mcp.AskedYes, "2 MiB"},
		{"a compressed bomb", mcptest.GzipBomb(10), mcp.KindResponseTooLarge, mcp.AskedYes, "2 MiB"},
		{"a large header", func(x *mcptest.Exchange) {
			for i := range 200 {
				x.W.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("a", 1000))
			}
			x.Behave()
		}, mcp.KindConnectionLost, mcp.AskedUnknown, "nothing had arrived"},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, mcptest.Options{HTTP2: true, On: on{"tools/call": tt.behaviour}})
			client := newClient(t, parts{tls: fake.TLS(), clock: new(mcptest.Clock)})
			budget := installation(20 * time.Second)
			if tt.kind == mcp.KindNoAnswer {
				budget = installation(5 * time.Second) // each leg is granted all of it, on a busy machine too
			}
			_, _, err := client.CallTool(t.Context(), docs(fake.URL), echo, budget)
			if f := failure(t, err); f.Kind != tt.kind || f.Asked != tt.asked || !strings.Contains(f.Message, tt.says) {
				t.Errorf("failure %s, asked %s: %s", f.Kind, f.Asked, f.Message)
			}
			if got := len(fake.Sent("tools/call")); got != 1 {
				t.Errorf("one call was sent %d times", got)
			}
		})
	}
}

// A network that swallows everything, in the middle of an HTTP/2 answer, is found out by pings. Nobody answered then.
func TestHTTP2ConnectionThatDies(t *testing.T) {
	t.Parallel()
	cut := make(chan struct{})
	fake := mcptest.New(t, mcptest.Options{HTTP2: true, On: on{"tools/call": func(x *mcptest.Exchange) {
		close(cut)
		mcptest.BodyThenStall("application/json", "{")(x)
	}}})
	client := newClient(t, parts{tls: fake.TLS(), tune: func(wire *http.Transport) {
		wire.HTTP2.SendPingTimeout, wire.HTTP2.PingTimeout = 500*time.Millisecond, 2*time.Second
		dial := wire.DialContext
		wire.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			return &swallowed{Conn: conn, from: cut}, err
		}
	}})
	_, spent, err := client.CallTool(t.Context(), docs(fake.URL), echo, ample)
	if f := failure(t, err); f.Kind != mcp.KindConnectionLost || f.Asked != mcp.AskedUnknown {
		t.Errorf("failure %s, asked %s: %s", f.Kind, f.Asked, f.Message)
	}
	if diff := cmp.Diff(after("tools/call", "connection_lost", 200), legs(spent)); diff != "" {
		t.Error(diff)
	}
}

// swallowed is a connection on which nothing that is written arrives any more, once from is closed.
type swallowed struct {
	net.Conn
	from <-chan struct{}
}

func (s *swallowed) Write(p []byte) (int, error) {
	select {
	case <-s.from:
		return len(p), nil
	default:
		return s.Conn.Write(p)
	}
}
