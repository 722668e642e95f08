package npm

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// startTime bounds how long a server may take to listen. It is generous: a machine that is busy compiling takes many times
// what an idle one takes.
const startTime = time.Minute

// Server is a server from npm that listens on loopback.
type Server struct {
	Address string // 127.0.0.1:port

	cmd  *exec.Cmd
	said tail
	stop context.CancelFunc
}

// Serve starts a script that is an HTTP server, and returns when it listens. It listens on a free port, whatever its own
// choice would be. Whoever starts it owes it a Stop.
func (n *Node) Serve(ctx context.Context, script string, args ...string) (*Server, error) {
	ctx, stop := context.WithCancel(ctx)
	cmd, err := n.Command(ctx, script, args...)
	if err != nil {
		stop()
		return nil, err
	}
	ports, theirs, err := os.Pipe()
	if err != nil {
		stop()
		return nil, err
	}
	defer ports.Close()
	s := &Server{cmd: cmd, stop: stop}
	cmd.Stdout, cmd.Stderr = &s.said, &s.said
	cmd.Env = append(os.Environ(), "LEGWORK_PORT_TO_FD3=1")
	cmd.ExtraFiles = []*os.File{theirs}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		stop()
		return nil, err
	}
	if err := ports.SetReadDeadline(time.Now().Add(startTime)); err != nil {
		s.Stop()
		return nil, err
	}
	// It ends without a port when the process ends, or when it is killed because ctx ended.
	port, err := bufio.NewReader(ports).ReadString('\n')
	if err != nil {
		s.Stop()
		return nil, fmt.Errorf("%s did not listen: %w\n%s", script, err, s.said.text())
	}
	s.Address = "127.0.0.1:" + strings.TrimSpace(port)
	return s, nil
}

// Stop kills the server and returns when it is gone.
func (s *Server) Stop() {
	s.stop()
	_ = s.cmd.Wait() // it was killed
}

// tail keeps the end of what a program says.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

const maxTail = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - maxTail; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.kept))
}
