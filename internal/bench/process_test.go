package main

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
)

func TestFamily(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("CPU of other processes is known on Linux only")
	}
	// A shell that was busy and waits for another, which was busy too.
	command := exec.Command("sh", "-c", `n=0; while [ $n -lt 200000 ]; do n=$((n+1)); done; sh -c 'n=0; while [ $n -lt 200000 ]; do n=$((n+1)); done; sleep 60'; :`)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = command.Wait() }()
	defer func() { _ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }()
	pid := command.Process.Pid
	if parent := parentOf(pid); parent != os.Getpid() {
		t.Errorf("the parent of %d is %d, not %d", pid, parent, os.Getpid())
	}
	own := func() time.Duration { return statOf(pid).cpu }
	for end := time.Now().Add(time.Minute); own() == 0 || family(pid).cpu() <= own(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the shell has used %s, its family %s", own(), family(pid).cpu())
		}
	}
	if cpu := family(-1).cpu(); cpu != 0 {
		t.Errorf("no process has used %s", cpu)
	}
}
