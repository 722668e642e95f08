package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The paths of the stub, which say how it behaves.
const (
	pathPlain  = "/plain"  // answers at once
	pathLarge  = "/large"  // the same, with a result of 64 KiB
	pathMute   = "/mute"   // never answers initialize
	pathStall  = "/stall"  // never answers a call
	pathSlow   = "/slow"   // takes slowLeg for each answer before the call, and never answers that
	pathDrip   = "/drip"   // answers a call a byte at a time, without end
	pathWedged = "/wedged" // gives a session, and never answers a call or the session's deletion
)

const (
	slowLeg   = 400 * time.Millisecond
	dripPause = 50 * time.Millisecond
)

// answerText is what the stub's tool says.
const answerText = "done"

var (
	initialized = []byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"stub","version":"1"}}`)
	discovered  = []byte(`{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},` +
		`"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"stub","version":"1"}}}`)
	called      = []byte(`{"resultType":"complete","content":[{"type":"text","text":"` + answerText + `"}],"isError":false}`)
	calledLarge = []byte(`{"resultType":"complete","content":[{"type":"text","text":"` + answerText +
		strings.Repeat(" and so on, line by line\\n", 64<<10/26) + `"}],"isError":false}`)
)

// stub is an MCP server that costs as little as it can: it looks into a request no further than it must to know which answer,
// encoded beforehand, to write. It gives no session id but where a path says so.
type stub struct {
	mu   sync.Mutex
	open int
	held map[net.Conn]bool
}

// serveStub is the process of the stub: it says where it listens, and serves until its standard input ends.
func serveStub() int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(listener.Addr())
	s := &stub{held: map[net.Conn]bool{}}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.serve(conn)
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func (s *stub) count(by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open += by
}

func (s *stub) serve(conn net.Conn) {
	s.count(1)
	defer s.count(-1)
	defer conn.Close()
	in := bufio.NewReaderSize(conn, 4<<10)
	var body, out []byte
	for {
		method, path, length, err := readHead(in)
		if err != nil {
			return
		}
		if cap(body) < length {
			body = make([]byte, length)
		}
		body = body[:length]
		if _, err := io.ReadFull(in, body); err != nil {
			return
		}
		out = s.answer(out[:0], conn, in, method, path, body)
		if out == nil {
			return
		}
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}

var errRequest = errors.New("not a request")

func readHead(in *bufio.Reader) (method, path string, length int, err error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return "", "", 0, err
	}
	m, rest, _ := bytes.Cut(line, []byte(" "))
	p, _, ok := bytes.Cut(rest, []byte(" "))
	if !ok {
		return "", "", 0, errRequest
	}
	method, path = string(m), string(p)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return "", "", 0, err
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
			return method, path, length, nil
		}
		if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(string(value)); err != nil {
				return "", "", 0, err
			}
		}
	}
}

// between is what stands after a mark and before one of the ends; nil where the mark is not there.
func between(data []byte, mark, ends string) []byte {
	_, rest, ok := bytes.Cut(data, []byte(mark))
	if !ok {
		return nil
	}
	if end := bytes.IndexAny(rest, ends); end >= 0 {
		return rest[:end]
	}
	return rest
}

// answer appends the answer to a request; nil closes the connection.
func (s *stub) answer(out []byte, conn net.Conn, in *bufio.Reader, method, path string, body []byte) []byte {
	switch {
	case path == "/stats":
		s.mu.Lock()
		stats, _ := json.Marshal(stats{Open: s.open - 1, Held: len(s.held)})
		s.mu.Unlock()
		return appendAnswer(out, "", nil, stats)
	case path == "/release":
		s.mu.Lock()
		for c := range s.held {
			c.Close()
		}
		s.mu.Unlock()
		return appendAnswer(out, "", nil, []byte("{}"))
	case method == http.MethodDelete && path == pathWedged:
		return s.hold(conn, in)
	case method != http.MethodPost:
		return append(out, "HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n"...)
	}
	rpc := string(between(body, `"method":"`, `"`))
	if path == pathSlow && rpc != "tools/call" {
		time.Sleep(slowLeg)
	}
	id := between(body, `"id":`, ",}")
	session := ""
	switch rpc {
	case "initialize":
		if path == pathMute {
			return s.hold(conn, in)
		}
		if path == pathWedged {
			session = "Mcp-Session-Id: wedged\r\n"
		}
		return appendAnswer(out, session, id, initialized)
	case "server/discover":
		return appendAnswer(out, "", id, discovered)
	case "tools/call":
		switch path {
		case pathStall, pathSlow, pathWedged:
			return s.hold(conn, in)
		case pathDrip:
			return drip(conn)
		case pathLarge:
			return appendAnswer(out, "", id, calledLarge)
		}
		return appendAnswer(out, "", id, called)
	}
	return append(out, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"...)
}

// appendAnswer writes a result as the answer to the request of this id, or as it is where there is none.
func appendAnswer(out []byte, header string, id, result []byte) []byte {
	const open, middle, end = `{"jsonrpc":"2.0","id":`, `,"result":`, `}`
	length := len(result)
	if id != nil {
		length += len(open) + len(id) + len(middle) + len(end)
	}
	out = append(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"...)
	out = append(out, header...)
	out = append(out, "Content-Length: "...)
	out = strconv.AppendInt(out, int64(length), 10)
	out = append(out, "\r\n\r\n"...)
	if id == nil {
		return append(out, result...)
	}
	out = append(append(append(out, open...), id...), middle...)
	return append(append(out, result...), end...)
}

// hold leaves a request without an answer until its connection is closed, by either side.
func (s *stub) hold(conn net.Conn, in *bufio.Reader) []byte {
	s.mu.Lock()
	s.held[conn] = true
	s.mu.Unlock()
	_, _ = in.Peek(1)
	s.mu.Lock()
	delete(s.held, conn)
	s.mu.Unlock()
	return nil
}

func drip(conn net.Conn) []byte {
	_, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{")
	for err == nil {
		time.Sleep(dripPause)
		_, err = conn.Write([]byte(" "))
	}
	return nil
}

// stats are what the stub says of itself.
type stats struct {
	Open int `json:"open"` // connections, without the one that asks
	Held int `json:"held"` // requests without an answer
}

// roleVariable tells this program that it is a child of another one of it.
const roleVariable = "LEGWORK_BENCH_ROLE"

// play is what a child does.
func play(role string) int {
	switch role {
	case "stub":
		return serveStub()
	case "bare", "bare with the Go SDK":
		return serveBare(role != "bare")
	}
	fmt.Fprintf(os.Stderr, "bench: there is no role %q\n", role)
	return 2
}

// stubProcess is the stub in a process of its own, so that what it costs is not counted with the clients.
type stubProcess struct {
	command *exec.Cmd
	hold    io.Closer
	address string
	control *http.Client
}

func startStub(ctx context.Context) (*stubProcess, error) {
	command, err := self("stub")
	if err != nil {
		return nil, err
	}
	hold, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the stub server: %w", err)
	}
	s := &stubProcess{command: command, hold: hold, control: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}}
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("the stub server did not say where it listens: %w", err)
	}
	s.address = strings.TrimSpace(line)
	return s, ctx.Err()
}

// self is this program as a child in a role.
func self(role string) (*exec.Cmd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command := exec.Command(program)
	command.Env = append(os.Environ(), roleVariable+"="+role)
	command.Stderr = os.Stderr
	return command, nil
}

func (s *stubProcess) stop() {
	s.hold.Close()
	_ = s.command.Wait()
}

func (s *stubProcess) url(path string) string { return "http://" + s.address + path }

func (s *stubProcess) ask(ctx context.Context, path string) (stats, error) {
	var answer stats
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url(path), nil)
	if err != nil {
		return answer, err
	}
	resp, err := s.control.Do(req)
	if err != nil {
		return answer, err
	}
	defer resp.Body.Close()
	return answer, json.NewDecoder(resp.Body).Decode(&answer)
}

// until asks the stub until it is as it should be.
func (s *stubProcess) until(ctx context.Context, what string, holds func(stats) bool) (stats, error) {
	for end := time.Now().Add(time.Minute); ; {
		now, err := s.ask(ctx, "/stats")
		if err != nil || holds(now) {
			return now, err
		}
		if time.Now().After(end) {
			return now, fmt.Errorf("the stub server did not come to %s: it has %d connections and holds %d requests", what, now.Open, now.Held)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
