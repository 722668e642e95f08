package mcptest

import (
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// WedgedListener accepts connections and never says a word: no HTTP answer and no TLS handshake.
type WedgedListener struct {
	Address string // host:port
	URL     string // http; write https in its place for a TLS handshake that stalls

	mu       sync.Mutex
	conns    []net.Conn
	accepted chan struct{} // closed and replaced at each connection
}

// Wedged starts a listener that accepts and never answers. It stops when the test ends.
func Wedged(t testing.TB) *WedgedListener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &WedgedListener{
		Address: listener.Addr().String(), URL: "http://" + listener.Addr().String() + "/mcp", accepted: make(chan struct{}),
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			w.mu.Lock()
			w.conns = append(w.conns, conn)
			close(w.accepted)
			w.accepted = make(chan struct{})
			w.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		listener.Close()
		running.Wait()
		for _, conn := range w.conns {
			conn.Close()
		}
	})
	return w
}

// Connections is how many connections were made so far. It is exact: a connection that is not accepted yet is waited for.
func (w *WedgedListener) Connections(t testing.TB) int {
	t.Helper()
	// Connections are accepted in the order they were made, so a last one of our own tells when all others are counted.
	last, err := net.Dial("tcp", w.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer last.Close()
	own := func(conn net.Conn) bool { return conn.RemoteAddr().String() == last.LocalAddr().String() }
	timeout := time.After(patience)
	for {
		w.mu.Lock()
		accepted := w.accepted
		if at := slices.IndexFunc(w.conns, own); at >= 0 {
			w.conns[at].Close()
			w.conns = slices.Delete(w.conns, at, at+1)
			w.mu.Unlock()
			return at
		}
		w.mu.Unlock()
		select {
		case <-accepted:
		case <-timeout:
			t.Fatal("the listener accepts no connection")
		}
	}
}
