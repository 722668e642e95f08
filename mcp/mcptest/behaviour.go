package mcptest

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Behaviour is how a server meets a request. It runs in the request's own goroutine and returns when the exchange is
// over; while it waits it watches [Exchange.Done].
type Behaviour func(*Exchange)

// Exchange is one request, and what a behaviour can do about it.
type Exchange struct {
	Request // as it was recorded
	W       http.ResponseWriter
	R       *http.Request

	server *Server
	modern bool // whether it is served by the rules of the stateless revision
}

// Behave does what the protocol prescribes.
func (x *Exchange) Behave() { x.server.behave(x) }

// Result answers with a result, written as it is, in JSON or an event stream as Options say.
func (x *Exchange) Result(result string) { x.answer("result", json.RawMessage(result)) }

// Error answers with a JSON-RPC error.
func (x *Exchange) Error(code int, message string) {
	x.answer("error", marshal(map[string]any{"code": code, "message": message}))
}

func (x *Exchange) answer(member string, value json.RawMessage) {
	message := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%q:%s}`, x.id(), member, value)
	if x.server.opts.Stream {
		x.write("text/event-stream", "event: message\ndata: "+strings.ReplaceAll(message, "\n", "\ndata: ")+"\n\n")
		return
	}
	x.write("application/json", message)
}

func (x *Exchange) id() string {
	if x.ID == nil {
		return "null"
	}
	return string(x.ID)
}

// write sends a body. Where it holds $ID the request's id is put.
func (x *Exchange) write(contentType, body string) {
	if contentType != "" {
		x.W.Header().Set("Content-Type", contentType)
	} else {
		x.W.Header()["Content-Type"] = nil // or net/http would guess one
	}
	_, _ = io.WriteString(x.W, strings.ReplaceAll(body, "$ID", x.id()))
}

func (x *Exchange) status(code int, complaint string) { http.Error(x.W, complaint, code) }

// Flush sends what was written so far.
func (x *Exchange) Flush() { _ = http.NewResponseController(x.W).Flush() }

// Done is closed when the client has gone away or the test is over.
func (x *Exchange) Done() <-chan struct{} {
	done := make(chan struct{})
	x.server.running.Go(func() {
		defer close(done)
		select {
		case <-x.R.Context().Done():
		case <-x.server.closing:
		}
	})
	return done
}

// Behave is the behaviour of a server that is in order.
func Behave(x *Exchange) { x.Behave() }

// Delay behaves after d.
func Delay(d time.Duration) Behaviour {
	return func(x *Exchange) {
		select {
		case <-time.After(d):
			x.Behave()
		case <-x.Done():
		}
	}
}

// Hold behaves once release is closed.
func Hold(release <-chan struct{}) Behaviour {
	return func(x *Exchange) {
		select {
		case <-release:
			x.Behave()
		case <-x.Done():
		}
	}
}

// Spend moves the clock on by d and behaves: a leg that takes d without a test that waits for it.
func Spend(clock *Clock, d time.Duration) Behaviour {
	return func(x *Exchange) {
		clock.Advance(d)
		x.Behave()
	}
}

// InTurn meets the first request by the first behaviour, and so on; the last meets all that follow.
func InTurn(behaviours ...Behaviour) Behaviour {
	var mu sync.Mutex
	next := 0
	return func(x *Exchange) {
		mu.Lock()
		behaviour := behaviours[next]
		next = min(next+1, len(behaviours)-1)
		mu.Unlock()
		behaviour(x)
	}
}

// Result answers with a JSON-RPC result, as Exchange.Result does.
func Result(result string) Behaviour { return func(x *Exchange) { x.Result(result) } }

// Error answers with a JSON-RPC error, as Exchange.Error does.
func Error(code int, message string) Behaviour {
	return func(x *Exchange) { x.Error(code, message) }
}

// Status answers with an HTTP status, headers and a body. $ID in the body stands for the request's id.
func Status(code int, header http.Header, body string) Behaviour {
	return func(x *Exchange) {
		maps.Copy(x.W.Header(), header)
		x.W.WriteHeader(code)
		_, _ = io.WriteString(x.W, strings.ReplaceAll(body, "$ID", x.id()))
	}
}

// Redirect answers with 307, which a client that follows redirects would repeat its POST for.
func Redirect(to string) Behaviour {
	return Status(http.StatusTemporaryRedirect, http.Header{"Location": {to}}, "")
}

// Body answers 200 with a body of this type; none is declared when it is empty. $ID in the body stands for the request's
// id.
func Body(contentType, body string) Behaviour {
	return func(x *Exchange) { x.write(contentType, body) }
}

// BodyThenStall sends a body as Body does and leaves it open.
func BodyThenStall(contentType, body string) Behaviour {
	return func(x *Exchange) {
		x.write(contentType, body)
		x.Flush()
		Stall(x)
	}
}

// BodyThenHangUp sends a body as Body does and breaks the connection before its end.
func BodyThenHangUp(contentType, body string) Behaviour {
	return func(x *Exchange) {
		x.write(contentType, body)
		x.Flush()
		HangUp(x)
	}
}

// Stall reads the request and never answers.
func Stall(x *Exchange) { <-x.Done() }

// HangUp reads the request and closes the connection.
func HangUp(*Exchange) { panic(http.ErrAbortHandler) }

// Reset reads the request and resets the connection. HTTP/1.1 only.
func Reset(x *Exchange) {
	conn := x.hijack()
	_ = conn.(*net.TCPConn).SetLinger(0)
	conn.Close()
}

// Drip answers as Behave would, at one byte of the body a second.
func Drip(x *Exchange) {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	done := x.Done()
	x.W.Header().Set("Content-Type", "application/json")
	for _, c := range []byte(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}`, x.id())) {
		_, _ = x.W.Write([]byte{c})
		x.Flush()
		select {
		case <-second.C:
		case <-done:
			return
		}
	}
}

// EndlessBody answers with one JSON string that never ends.
func EndlessBody(x *Exchange) {
	x.write("application/json", `{"jsonrpc":"2.0","id":$ID,"result":"`)
	x.pour(x.W, bytes.Repeat([]byte("a"), 32<<10))
}

// EndlessHeader answers with a header that never ends. HTTP/1.1 only.
func EndlessHeader(x *Exchange) {
	conn := x.hijack()
	defer conn.Close()
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
	x.pour(conn, []byte("X-Filler: "+strings.Repeat("a", 1000)+"\r\n"))
}

// pour writes until nobody takes it any more.
func (x *Exchange) pour(w io.Writer, chunk []byte) {
	for {
		if _, err := w.Write(chunk); err != nil {
			return
		}
		select {
		case <-x.server.closing:
			return
		default:
		}
	}
}

// GzipBomb answers with a small compressed body that is this many MiB of JSON when it is unpacked.
func GzipBomb(mebibytes int) Behaviour {
	var member bytes.Buffer
	zip, _ := gzip.NewWriterLevel(&member, gzip.BestCompression)
	_, _ = zip.Write(bytes.Repeat([]byte(" "), 1<<20))
	_ = zip.Close()
	return func(x *Exchange) {
		x.W.Header().Set("Content-Type", "application/json")
		x.W.Header().Set("Content-Encoding", "gzip")
		for range mebibytes { // a file of several gzip members is a gzip file
			if _, err := x.W.Write(member.Bytes()); err != nil {
				return
			}
		}
	}
}

// Gzip answers 200 with a body of this type, compressed. $ID in the body stands for the request's id.
func Gzip(contentType, body string) Behaviour {
	return func(x *Exchange) {
		x.W.Header().Set("Content-Encoding", "gzip")
		x.W.Header().Set("Content-Type", contentType)
		zip := gzip.NewWriter(x.W)
		_, _ = io.WriteString(zip, strings.ReplaceAll(body, "$ID", x.id()))
		_ = zip.Close()
	}
}

// EndlessPages answers tools/list with a page of one tool, and there is always a next one.
func EndlessPages() Behaviour {
	var mu sync.Mutex
	page := 0
	return func(x *Exchange) {
		mu.Lock()
		page++
		n := strconv.Itoa(page)
		mu.Unlock()
		x.Result(`{"tools":[{"name":"tool_` + n + `","inputSchema":{"type":"object"}}],"nextCursor":"after ` + n + `"}`)
	}
}

// Raw writes text to the connection, in place of HTTP, and closes it. HTTP/1.1 only.
func Raw(text string) Behaviour {
	return func(x *Exchange) {
		conn := x.hijack()
		defer conn.Close()
		_, _ = io.WriteString(conn, text)
	}
}

// RawThenStall writes text to the connection, in place of HTTP, and leaves it open. HTTP/1.1 only.
func RawThenStall(text string) Behaviour {
	return func(x *Exchange) {
		conn := x.hijack()
		defer conn.Close()
		_, _ = io.WriteString(conn, text)
		// net/http watches a hijacked connection no longer.
		x.server.running.Go(func() {
			<-x.server.closing
			conn.Close()
		})
		_, _ = io.Copy(io.Discard, conn)
	}
}

func (x *Exchange) hijack() net.Conn {
	conn, _, err := http.NewResponseController(x.W).Hijack()
	if err != nil {
		panic(err) // a behaviour for HTTP/1.1 on a server that speaks HTTP/2
	}
	return conn
}

// quiet takes what net/http logs about clients that went away.
var quiet = log.New(io.Discard, "", 0)
