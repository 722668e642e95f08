// Package scratch starts private, throw-away Postgres and Redis servers for
// the demo and the tests.
//
// A server listens on 127.0.0.1 only, on a port of its own and behind a random
// password, and keeps everything it writes in one temporary folder. It lives
// until Stop. When the process that started it dies without calling Stop, by
// SIGKILL even, the server is stopped and its folder removed all the same.
//
// The package works on Linux and macOS. As root it runs the servers as another
// user, because Postgres refuses root.
package scratch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// startTime bounds the start of one server. It is generous: a machine that is
// busy compiling may take many times what an idle one takes.
const startTime = 2 * time.Minute

// pollInterval is how often a starting server is asked whether it is ready.
const pollInterval = 10 * time.Millisecond

// patience is how long one such question may take.
const patience = 5 * time.Second

// portAttempts is how many ports are tried when others are faster to take one.
const portAttempts = 10

// An Option changes how a server is set up.
type Option func(*options)

type options struct {
	durable bool
}

// Durable makes a server keep its promises through a crash, as one in
// production does: Postgres waits for the disk at each commit, Redis keeps an
// append-only file. Without it both are faster than they would be in earnest.
func Durable(o *options) { o.durable = true }

func collect(given []Option) options {
	var o options
	for _, option := range given {
		option(&o)
	}
	return o
}

var (
	errNotReady = fmt.Errorf("it was not ready after %s", startTime)
	errEnded    = errors.New("it ended by itself")
	errStopped  = errors.New("it was stopped and its folder removed")
)

// Service is what a Postgres and a Redis have in common: one folder, one port, and
// at most one process at a time. Its methods may be called at once.
type Service struct {
	folder *folder
	port   int
	signal string // stops the process; what it is called in the shell
	// command is the program and its arguments for a port.
	command func(port int) []string
	// ready is nil once the server answers as itself.
	ready func(ctx context.Context, port int) error

	mu      sync.Mutex
	process *process
}

// start runs the server on the first port that it can have.
func (s *Service) start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, errNotReady)
	defer cancel()
	var err error
	for range portAttempts {
		if s.port, err = freePort(); err != nil {
			return err
		}
		if err = s.run(ctx); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

// run starts the process and waits until it is ready. It returns errPortTaken
// when somebody else has the port. The caller holds the lock.
func (s *Service) run(ctx context.Context) error {
	p, err := s.folder.run(s.signal, s.command(s.port)...)
	if err != nil {
		return err
	}
	for {
		lastErr := s.ask(ctx, p)
		if lastErr == nil {
			s.process = p
			return nil
		}
		select {
		case <-p.done:
			return p.failure()
		case <-ctx.Done():
			p.stop()
			return fmt.Errorf("%w (%w)", context.Cause(ctx), lastErr)
		case <-time.After(pollInterval):
		}
	}
}

// ask asks once whether the server is ready. It gives up when the process ends:
// whatever listens on the port then is something else, and may never answer.
func (s *Service) ask(ctx context.Context, p *process) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer := make(chan error, 1)
	go func() { answer <- s.ready(ctx, s.port) }()
	select {
	case err := <-answer:
		return err
	case <-p.done:
		cancel()
		return errors.Join(<-answer, errEnded)
	}
}

// Pid returns the process id of the running server, or of the last one that ran.
// SIGSTOP and SIGCONT make a server that hangs out of it.
func (s *Service) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process.pid
}

func (s *Service) kill(signal syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process.kill(signal)
}

// Restart starts the server again on the same port, after stopping it where it
// still runs. What it had written to its folder is there again.
func (s *Service) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.folder.removed() {
		return errStopped
	}
	s.process.stop()
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, errNotReady)
	defer cancel()
	// A client that dialled at the wrong moment may hold the port for a while.
	for {
		err := s.run(ctx)
		if !errors.Is(err, errPortTaken) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pollInterval):
		}
	}
}

// Stop ends the server, removes its folder and returns when both are gone. A
// second call does nothing.
func (s *Service) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		s.process.stop()
	}
	return s.folder.remove()
}

// firstPort and lastPort lie below the range from which Linux and macOS take
// the ports of outgoing connections. Inside that range a client that dials a
// server which is down can end up connected to itself, and holds the port.
const (
	firstPort = 15000
	lastPort  = 32000
)

// freePort returns a port of 127.0.0.1 that is free at this moment. Another
// process may take it before it is used: whoever uses it must be ready for that.
func freePort() (int, error) {
	var lastErr error
	for range 100 {
		n, err := rand.Int(rand.Reader, big.NewInt(lastPort-firstPort))
		if err != nil {
			return 0, err
		}
		port := firstPort + int(n.Int64())
		listener, err := net.Listen("tcp", address(port))
		if err != nil {
			lastErr = err
			continue
		}
		return port, listener.Close()
	}
	return 0, fmt.Errorf("no free port on 127.0.0.1: %w", lastErr)
}

func address(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
