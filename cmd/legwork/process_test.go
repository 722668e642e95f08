package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"legwork/internal/proctest"
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

// process starts the binary in this environment and in no other.
func (i *installation) process(binary string, args ...string) *proctest.Process {
	i.t.Helper()
	return proctest.Start(i.t, i.env, binary, args...)
}

// workerProcess starts a worker and waits until it takes tasks.
func (i *installation) workerProcess(binary string) *proctest.Process {
	i.t.Helper()
	p := i.process(binary, "worker")
	p.AwaitSaying("the worker is taking tasks")
	return p
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

	worker.Signal(syscall.SIGTERM)
	worker.AwaitSaying("the worker is stopping")
	if step, _ := i.step(id); step.Status != "running" || worker.Ended() {
		t.Errorf("the step is %s and the worker has ended: %v, want both at work", step.Status, worker.Ended())
	}
	close(answer)
	if code := worker.End(); code != exitDone {
		t.Errorf("exit code %d, want %d:\n%s", code, exitDone, worker.Output())
	}
	has(t, worker.Output(), "the worker has stopped")
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
		worker.Signal(syscall.SIGKILL)
		if code := worker.End(); code != -1 {
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
	heir.Signal(syscall.SIGTERM)
	if code := heir.End(); code != exitDone {
		t.Errorf("exit code %d, want %d:\n%s", code, exitDone, heir.Output())
	}
}

func badSettingsOfAProcess(t *testing.T, binary string) {
	i := outside(t).with("LEGWORK_DATABASE_URL", nobody).with("LEGWORK_CONCURRENCY", "x").with("LEGWORK_SHUTDOWN_TIMEOUT", "5")
	p := i.process(binary, "worker")
	if code := p.End(); code != exitUsage {
		t.Errorf("exit code %d, want %d", code, exitUsage)
	}
	has(t, p.Output(), "LEGWORK_CONCURRENCY", "LEGWORK_SHUTDOWN_TIMEOUT is 5 s", "legwork help settings")
}
