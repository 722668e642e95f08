// Package proctest runs a binary as a process for tests: signals and exit codes show in a process only.
package proctest

import (
	"bytes"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// bound is how long is waited for what must come; it says nothing about how fast it should.
const bound = 2 * time.Minute

// Process is a binary at work. Its methods may be called at once.
type Process struct {
	t      testing.TB
	cmd    *exec.Cmd
	stderr Buffer
	done   chan struct{} // closed when it has ended
}

// Start starts a binary in this environment and in no other. When the test ends it is killed and waited for; where the test
// failed and it still ran, the last it said is logged.
func Start(t testing.TB, env map[string]string, binary string, args ...string) *Process {
	t.Helper()
	p := &Process{t: t, cmd: exec.Command(binary, args...), done: make(chan struct{})}
	p.cmd.Env = []string{}
	for name, value := range env {
		p.cmd.Env = append(p.cmd.Env, name+"="+value)
	}
	p.cmd.Stderr = &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // how it ended is in ProcessState
	}()
	t.Cleanup(func() {
		alive := !p.Ended()
		_ = p.cmd.Process.Kill()
		<-p.done
		if alive && t.Failed() {
			t.Logf("process %d said last:\n%s", p.PID(), p.Tail(40))
		}
	})
	return p
}

// PID is its process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal.
func (p *Process) Signal(signal syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		p.t.Error(err)
	}
}

// Ended tells whether it has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// End waits until it has ended and returns its exit code, which is -1 where a signal ended it.
func (p *Process) End() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(bound):
		p.t.Fatalf("waited %s in vain for process %d to end:\n%s", bound, p.PID(), p.Tail(40))
	}
	return p.cmd.ProcessState.ExitCode()
}

// Kill kills it and waits.
func (p *Process) Kill() {
	p.t.Helper()
	p.Signal(syscall.SIGKILL)
	p.End()
}

// Output is what it has written to standard error so far.
func (p *Process) Output() string { return p.stderr.String() }

// Tail is the last lines of that.
func (p *Process) Tail(n int) string {
	lines := strings.Split(strings.TrimSpace(p.Output()), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// Said tells whether that holds this.
func (p *Process) Said(part string) bool { return strings.Contains(p.Output(), part) }

// AwaitSaying waits until it has said this. The test ends where the process does so without it.
func (p *Process) AwaitSaying(part string) {
	p.t.Helper()
	for end := time.Now().Add(bound); ; time.Sleep(10 * time.Millisecond) {
		ended := p.Ended()
		switch {
		case p.Said(part):
			return
		case ended:
			p.t.Fatalf("process %d ended and did not say %q:\n%s", p.PID(), part, p.Tail(40))
		case time.Now().After(end):
			p.t.Fatalf("waited %s in vain for process %d to say %q:\n%s", bound, p.PID(), part, p.Tail(40))
		}
	}
}

// Buffer is a bytes.Buffer that is read while it is written.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write appends.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String is what was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
