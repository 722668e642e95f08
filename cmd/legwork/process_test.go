package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"legwork/mcp"
	"legwork/mcp/mcptest"
	"legwork/store"
)

// What happens between a process and its signals shows in a process only.
func TestProcess(t *testing.T) {
	t.Parallel()
	binary := build(t)
	t.Run("SIGTERM in the middle of a call", func(t *testing.T) {
		t.Parallel()
		sigtermDuringACall(t, binary)
	})
	t.Run("SIGKILL in the middle of a call", func(t *testing.T) {
		t.Parallel()
		sigkillDuringACall(t, binary)
	})
	t.Run("settings that are bad", func(t *testing.T) {
		t.Parallel()
		badSettingsOfAProcess(t, binary)
	})
}

// build makes the binary as make build does.
func build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "legwork")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}

// process is the binary at work.
type process struct {
	cmd    *exec.Cmd
	stderr buffer
	done   chan struct{} // closed when it has ended
}

// process starts the binary in this environment and in no other. It is killed and waited for when the test ends.
func (i *installation) process(binary string, args ...string) *process {
	i.t.Helper()
	p := &process{cmd: exec.Command(binary, args...), done: make(chan struct{})}
	p.cmd.Env = []string{}
	for name, value := range i.env {
		p.cmd.Env = append(p.cmd.Env, name+"="+value)
	}
	p.cmd.Stderr = &p.stderr
	if err := p.cmd.Start(); err != nil {
		i.t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // how it ended is in ProcessState
	}()
	i.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

// workerProcess starts a worker and waits until it takes tasks.
func (i *installation) workerProcess(binary string) *process {
	i.t.Helper()
	p := i.process(binary, "worker")
	p.says(i.t, "the worker is taking tasks")
	return p
}

func (p *process) signal(t testing.TB, signal syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// end waits until the process has ended and returns its exit code, which is -1 where a signal ended it.
func (p *process) end(t testing.TB) int {
	t.Helper()
	until(t, p.ended)
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) says(t testing.TB, part string) {
	t.Helper()
	until(t, func() bool {
		ended := p.ended()
		said := strings.Contains(p.stderr.String(), part)
		if ended && !said {
			t.Fatalf("it ended and did not say %q:\n%s", part, p.stderr.String())
		}
		return said
	})
}

// step reads a step that may have no row yet.
func (i *installation) step(id string) (store.Step, bool) {
	i.t.Helper()
	out := i.run("step", "show", id, "--json")
	if out.code != exitDone {
		return store.Step{}, false
	}
	return decode[store.Step](i.t, out.stdout), true
}

func sigtermDuringACall(t *testing.T, binary string) {
	i := installed(t).with("LEGWORK_MCP_OPERATION_TIMEOUT", "600")
	answer := make(chan struct{})
	server := docs(t)
	server.On("tools/call", func(x *mcptest.Exchange) {
		select {
		case <-answer:
			x.Behave()
		case <-x.Done():
		}
	})
	i.add("docs", server.URL)
	worker := i.workerProcess(binary)
	id := strings.TrimSpace(i.must("call", "docs", "search"))
	server.Await(t, "tools/call", 1)
	has(t, i.must("step", "show", id), "running", "Lease", "until ")

	worker.signal(t, syscall.SIGTERM)
	worker.says(t, "the worker is stopping")
	if step, _ := i.step(id); step.Status != "running" || worker.ended() {
		t.Errorf("the step is %s and the worker has ended: %v, want both at work", step.Status, worker.ended())
	}
	close(answer)
	if code := worker.end(t); code != exitDone {
		t.Errorf("exit code %d, want %d:\n%s", code, exitDone, worker.stderr.String())
	}
	has(t, worker.stderr.String(), "the worker has stopped")
	if step, _ := i.step(id); step.Status != "succeeded" {
		t.Errorf("got %+v, want it succeeded", step)
	}
}

func sigkillDuringACall(t *testing.T, binary string) {
	i := installed(t)
	server := docs(t)
	server.On("tools/call", mcptest.Stall)
	i.add("docs", server.URL, "--timeout", "1") // the lease is that and 15 seconds

	// A machine that is busy may let the budget run out before the signal arrives: then there is nothing to see.
	var id string
	for tries := 1; ; tries++ {
		worker := i.workerProcess(binary)
		calls := len(server.Sent("tools/call"))
		id = strings.TrimSpace(i.must("call", "docs", "search"))
		until(t, func() bool {
			step, found := i.step(id)
			return len(server.Sent("tools/call")) > calls || found && step.Terminal()
		})
		worker.signal(t, syscall.SIGKILL)
		if code := worker.end(t); code != -1 {
			t.Fatalf("a worker that was killed exits with %d", code)
		}
		if step, _ := i.step(id); step.Status == "running" && len(server.Sent("tools/call")) > calls {
			break
		}
		if tries == 10 {
			t.Fatal("no worker could be killed in the middle of a call")
		}
	}
	sent := len(server.Sent("tools/call"))

	heir := i.workerProcess(binary)
	var step store.Step
	until(t, func() bool {
		step, _ = i.step(id)
		return step.Terminal()
	})
	if step.Status != "failed" || step.FailureKind != string(mcp.KindInterrupted) || step.Asked != string(mcp.AskedUnknown) {
		t.Errorf("got %+v, want it interrupted", step)
	}
	shown := i.must("step", "show", id)
	has(t, shown, step.FailureMessage, "What was sent is not known: the worker ended before it could say.")
	if strings.Contains(shown, "No request was sent") || strings.Contains(shown, "Lease") {
		t.Errorf("got:\n%s", shown)
	}
	if again := len(server.Sent("tools/call")); again != sent {
		t.Errorf("the tool was called %d times, want %d", again, sent)
	}
	heir.signal(t, syscall.SIGTERM)
	if code := heir.end(t); code != exitDone {
		t.Errorf("exit code %d, want %d:\n%s", code, exitDone, heir.stderr.String())
	}
}

func badSettingsOfAProcess(t *testing.T, binary string) {
	i := outside(t).with("LEGWORK_DATABASE_URL", nobody).with("LEGWORK_CONCURRENCY", "x").with("LEGWORK_SHUTDOWN_TIMEOUT", "5")
	p := i.process(binary, "worker")
	if code := p.end(t); code != exitUsage {
		t.Errorf("exit code %d, want %d", code, exitUsage)
	}
	has(t, p.stderr.String(), "LEGWORK_CONCURRENCY", "LEGWORK_SHUTDOWN_TIMEOUT is 5 s", "legwork help settings")
}
