package mcp_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"

	"legwork/mcp"
	"legwork/mcp/mcptest"
)

const (
	// tokenReference is a credential that every test may use.
	tokenReference = "env:LEGWORK_MCP_TEST_TOKEN"
	token          = "s3cret-t0ken"
)

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", "8") // most of these tests wait for a budget to end, which takes no core
	}
	if err := os.Setenv("LEGWORK_MCP_TEST_TOKEN", token); err != nil {
		panic(err)
	}
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: dialNames}
	goleak.VerifyTestMain(m)
}

// names is what the names of these tests resolve to, whatever machine they run on. A name that is not here does not exist,
// and one that resolves to nothing cannot be looked up.
var names = map[string][4]byte{
	"docs.internal.test.":   {127, 0, 0, 1},
	"crm.internal.test.":    {127, 0, 0, 1},
	"internal.test.":        {127, 0, 0, 1},
	"metadata.test.":        {169, 254, 169, 254},
	"fakeinternal.test.":    {127, 0, 0, 1},
	"out-of-order.test.":    {},
	"a.docs.internal.test.": {127, 0, 0, 1},
}

// dialNames connects to a name server of our own.
func dialNames(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	go serveNames(server)
	return client, nil
}

func serveNames(conn net.Conn) {
	defer conn.Close()
	for {
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(query) != nil || len(m.Questions) != 1 {
			return
		}
		question := m.Questions[0]
		address, known := names[strings.ToLower(question.Name.String())]
		m.Header = dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true, RecursionAvailable: true}
		m.Additionals = nil
		switch {
		case !known:
			m.RCode = dnsmessage.RCodeNameError
		case address == [4]byte{}:
			m.RCode = dnsmessage.RCodeServerFailure
		case question.Type == dnsmessage.TypeA:
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: question.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET},
				Body:   &dnsmessage.AResource{A: address},
			}}
		}
		reply, err := m.Pack()
		if err != nil {
			panic(err)
		}
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
			return
		}
	}
}

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// parts are what a client is made of where it differs from the usual: the machine's clock, a gate that allows private
// networks, no TLS and nothing between transport and wire.
type parts struct {
	clock mcp.Clock
	gate  *mcp.GateOptions
	tls   *tls.Config
	tune  func(*http.Transport)
	wrap  func(http.RoundTripper) http.RoundTripper
}

// newClient makes a client as the worker does, which leaves nothing behind when the test ends.
func newClient(t testing.TB, p parts) *mcp.Client {
	t.Helper()
	if p.gate == nil {
		p.gate = &mcp.GateOptions{AllowPrivateNetworks: true}
	}
	if p.clock == nil {
		p.clock = mcp.MonotonicClock()
	}
	gate, err := mcp.NewGate(*p.gate)
	if err != nil {
		t.Fatal(err)
	}
	wire := mcp.NewHTTPTransport(gate)
	wire.TLSClientConfig = p.tls
	if p.tune != nil {
		p.tune(wire)
	}
	// A dial may outlive its leg by a second; the test waits for it.
	var mu sync.Mutex
	over := sync.NewCond(&mu)
	dials := 0
	dial := wire.DialContext
	wire.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		mu.Lock()
		dials++
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			dials--
			over.Broadcast()
		}()
		return dial(ctx, network, address)
	}
	connections := mcp.NewConnections(wire)
	var rt http.RoundTripper = connections
	if p.wrap != nil {
		rt = p.wrap(connections)
	}
	client := mcp.NewClient(mcp.NewTransport(rt, p.clock), p.clock, "test")
	t.Cleanup(func() {
		client.Close()
		mu.Lock()
		for dials > 0 {
			over.Wait()
		}
		mu.Unlock()
		connections.CloseIdleConnections()
	})
	return client
}

func installation(total time.Duration) mcp.Budget {
	return mcp.Budget{Total: total, Owner: mcp.OwnerInstallation}
}

// ample is a budget that no test that passes spends.
var ample = installation(time.Minute)

// docs is a server that is known to want the handshake.
func docs(url string) mcp.Server {
	return mcp.Server{Identifier: "docs", URL: url, Revision: "2025-11-25"}
}

// unknown is a server that nobody has asked yet.
func unknown(url string) mcp.Server { return mcp.Server{Identifier: "docs", URL: url} }

// modern is a server that is known to be stateless.
func modern(url string) mcp.Server {
	return mcp.Server{Identifier: "docs", URL: url, Revision: mcp.RevisionStateless}
}

// echo is a call of the tool that mcptest offers by itself.
var echo = mcp.ToolCall{Name: "echo", Arguments: json.RawMessage(`{}`)}

// failure is the failure that err must be.
func failure(t testing.TB, err error) *mcp.Failure {
	t.Helper()
	var f *mcp.Failure
	if !errors.As(err, &f) {
		t.Fatalf("error %v (%T) is no *mcp.Failure", err, err)
	}
	return f
}

// leg is what of a leg does not depend on how fast the machine is.
type leg struct {
	Method  string
	Outcome string
	Status  int
}

func legs(spent mcp.Spent) []leg {
	var legs []leg
	for _, l := range spent.Legs {
		legs = append(legs, leg{l.Method, l.Outcome, l.Status})
	}
	return legs
}

func grants(spent mcp.Spent) []time.Duration {
	var grants []time.Duration
	for _, l := range spent.Legs {
		grants = append(grants, l.Granted)
	}
	return grants
}

// roundTripper is a function that carries out requests.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// credentialFile writes a credential to a file and gives the reference to it.
func credentialFile(t testing.TB, value string) (path, reference string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(value), 0o600); err != nil {
		t.Fatal(err)
	}
	return path, "file:" + path
}

// receive waits for what must come.
func receive[T any](t testing.TB, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("%s did not come", what)
		panic("unreachable")
	}
}

var _ mcp.Clock = (*mcptest.Clock)(nil)
