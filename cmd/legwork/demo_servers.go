package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// demoServer is a far side of the demo: an MCP server, or what stands where one should be.
type demoServer struct {
	address string // host:port
	stop    func() // waits for what it ends
}

func (s demoServer) url() string { return "http://" + s.address + "/mcp" }

// startDocs starts a server that does what it is asked.
func startDocs() (demoServer, error) {
	server := newSDKServer("docs")
	type query struct {
		Query string `json:"query" jsonschema:"words that a page must hold"`
	}
	sdk.AddTool(server, &sdk.Tool{Name: "search", Description: "Finds pages of the handbook."},
		func(_ context.Context, _ *sdk.CallToolRequest, in query) (*sdk.CallToolResult, any, error) {
			return said(searchHandbook(in.Query)), nil, nil
		})
	type numbers struct {
		A float64 `json:"a" jsonschema:"the first number"`
		B float64 `json:"b" jsonschema:"the second number"`
	}
	sdk.AddTool(server, &sdk.Tool{Name: "add", Description: "Adds two numbers."},
		func(_ context.Context, _ *sdk.CallToolRequest, in numbers) (*sdk.CallToolResult, any, error) {
			return said(fmt.Sprint(in.A + in.B)), nil, nil
		})
	return serveHTTP(sdkHandler(server))
}

const (
	// The crm's session opens when the demo's budget has just gone.
	crmOpen = demoBudget + 20*time.Millisecond
	// So much of it goes to initialize; what is left then is granted as 2 s, and the next leg takes less. A busy machine may
	// add 0.8 s to the first leg, and 0.2 s more than that to the second.
	crmInitialize = 1200 * time.Millisecond
)

// startCRM starts a server that takes its time to open a session and is quick after that.
func startCRM() (demoServer, error) {
	server := newSDKServer("crm")
	type customer struct {
		Name string `json:"name" jsonschema:"the customer's name"`
	}
	sdk.AddTool(server, &sdk.Tool{Name: "lookup", Description: "Looks a customer up."},
		func(_ context.Context, _ *sdk.CallToolRequest, in customer) (*sdk.CallToolResult, any, error) {
			return said(in.Name + " has been a customer since 2019."), nil, nil
		})
	began := &beginnings{at: map[string]time.Time{}}
	server.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			if method == "initialize" {
				began.set(req.GetSession().ID())
				wait(ctx, crmInitialize)
			}
			return next(ctx, method, req)
		}
	})
	handler := sdkHandler(server)
	return serveHTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if at, known := began.get(r.Header.Get("Mcp-Session-Id")); known {
			wait(r.Context(), crmOpen-time.Since(at))
		}
		handler.ServeHTTP(w, r)
	}))
}

// beginnings tells when sessions were asked for.
type beginnings struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (b *beginnings) set(session string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at[session] = time.Now()
}

func (b *beginnings) get(session string) (at time.Time, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, known = b.at[session]
	return at, known
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// startBilling starts a server whose tool fails.
func startBilling() (demoServer, error) {
	server := newSDKServer("billing")
	type charge struct {
		Customer string `json:"customer" jsonschema:"who is charged"`
		Cents    int    `json:"cents" jsonschema:"how much, in cents"`
	}
	sdk.AddTool(server, &sdk.Tool{Name: "charge", Description: "Charges a customer's card."},
		func(_ context.Context, _ *sdk.CallToolRequest, in charge) (*sdk.CallToolResult, any, error) {
			return nil, nil, fmt.Errorf("the card of %s has expired", in.Customer)
		})
	return serveHTTP(sdkHandler(server))
}

// startMail starts what accepts connections, reads, and never says a word.
func startMail() (demoServer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return demoServer{}, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				defer context.AfterFunc(ctx, func() { conn.Close() })()
				_, _ = io.Copy(io.Discard, conn)
			})
		}
	})
	return demoServer{address: listener.Addr().String(), stop: func() {
		listener.Close()
		cancel()
		running.Wait()
	}}, nil
}

// startFax gives a port at which nothing listens. The port is kept, so that nothing else can come to listen there.
func startFax() (demoServer, error) {
	// The descriptor must not leak into a program that is started meanwhile.
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return demoServer{}, err
	}
	stop := func() { syscall.Close(fd) }
	err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	if err != nil {
		stop()
		return demoServer{}, err
	}
	bound, err := syscall.Getsockname(fd)
	if err != nil {
		stop()
		return demoServer{}, err
	}
	return demoServer{address: fmt.Sprintf("127.0.0.1:%d", bound.(*syscall.SockaddrInet4).Port), stop: stop}, nil
}

func newSDKServer(name string) *sdk.Server {
	return sdk.NewServer(&sdk.Implementation{Name: name, Version: "1.0.0"}, nil)
}

func said(text string) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}
}

// sdkHandler serves an MCP server over Streamable HTTP.
func sdkHandler(server *sdk.Server) http.Handler {
	return sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil)
}

// serveHTTP serves on a free port of the loopback interface.
func serveHTTP(handler http.Handler) (demoServer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return demoServer{}, err
	}
	// Connections that are cut at the end are no news.
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	var running sync.WaitGroup
	running.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			listener.Close() // its clients are refused from here on, and say so
		}
	})
	return demoServer{address: listener.Addr().String(), stop: func() {
		server.Close()
		running.Wait()
	}}, nil
}

var handbook = []string{
	"Budgets: every operation has one budget, and all its legs share it.",
	"Failures: a failure says whether the server was asked.",
	"Servers: a server without a data class is inert.",
}

func searchHandbook(query string) string {
	var found []string
	for _, page := range handbook {
		if strings.Contains(strings.ToLower(page), strings.ToLower(query)) {
			found = append(found, page)
		}
	}
	if len(found) == 0 {
		return "No page of the handbook holds these words."
	}
	return strings.Join(found, "\n")
}
