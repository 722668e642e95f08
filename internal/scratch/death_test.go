package scratch

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// childVariable makes the test binary a process that starts servers and waits
// to be killed.
const childVariable = "SCRATCH_TEST_CHILD"

// child starts a Postgres and a Redis, says "ready" and waits for the end of
// its standard input, so that it cannot outlive the test.
func child() int {
	for _, start := range []func() error{
		func() error { _, err := StartPostgres(context.Background()); return err },
		func() error { _, err := StartRedis(context.Background()); return err },
	} {
		if err := start(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	return 0
}

// TestDeathLeavesNothing kills a process with SIGKILL at several moments and
// checks that no process and no folder of its servers is left.
func TestDeathLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		// moment is a file whose appearance is the moment; empty: both servers are ready
		moment string
	}{
		{name: "both servers run"},
		{name: "the first folder appears", moment: "legwork-scratch-*"},
		{name: "initdb writes", moment: "legwork-scratch-*/data/base"},
		{name: "postgres starts", moment: "legwork-scratch-*/data/postmaster.pid"},
		{name: "redis starts", moment: "legwork-scratch-*/redis.conf"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			killChildAt(t, row.moment, nil)
		})
	}
}

// TestAsAnOrdinaryUser does the same as another user where the tests run as
// root: they start, they are ready, and they leave nothing.
func TestAsAnOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("every other test shows it: they run as an ordinary user here")
	}
	nobody, err := findOwner()
	if err != nil {
		t.Fatal(err)
	}
	killChildAt(t, "", &syscall.Credential{Uid: nobody.uid, Gid: nobody.gid})
}

func killChildAt(t *testing.T, moment string, as *syscall.Credential) {
	t.Helper()
	tmp := openFolder(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if as != nil {
		// The binary is where only its own user can reach it. Another program
		// copies it, because a file that this one has just written may be busy.
		reachable := filepath.Join(openFolder(t), "scratch.test")
		if out, err := exec.Command("cp", program, reachable).CombinedOutput(); err != nil {
			t.Fatalf("cp: %v: %s", err, out)
		}
		program = reachable
	}

	cmd := exec.Command(program)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), childVariable+"=yes", "TMPDIR="+tmp)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()

	if moment == "" {
		if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
			t.Fatalf("the child said %q (%v), want ready", line, err)
		}
		// What must be gone afterwards must be seen now.
		found := strings.Join(leftovers(t, tmp), "\n")
		for _, want := range []string{"file legwork-scratch-", "scratch-guard", "scratch-watchdog", "/data -p "} {
			if !strings.Contains(found, want) {
				t.Fatalf("%q does not show up among what two running servers have:\n%s", want, found)
			}
		}
	} else {
		eventually(t, func() string {
			if found, _ := filepath.Glob(filepath.Join(tmp, moment)); len(found) > 0 {
				return ""
			}
			return "no file " + moment
		})
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string { return strings.Join(leftovers(t, tmp), "\n") })
}

// leftovers lists the files in the folder tmp and the processes that have to do
// with it: those that name it in their arguments or, where /proc tells, work in it.
func leftovers(t *testing.T, tmp string) []string {
	t.Helper()
	var left []string
	files, err := os.ReadDir(tmp)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		left = append(left, "file "+file.Name())
	}
	for pid, args := range processes(t) {
		cwd, _ := os.Readlink(filepath.Join("/proc", pid, "cwd"))
		if pid != strconv.Itoa(os.Getpid()) && (strings.Contains(args, tmp) || strings.HasPrefix(cwd, tmp)) {
			left = append(left, "process "+pid+": "+args)
		}
	}
	return left
}

// processes returns the arguments of every process by its id: from /proc, or
// from ps where there is no such thing.
func processes(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	if lines, _ := filepath.Glob("/proc/[0-9]*/cmdline"); len(lines) > 0 {
		for _, name := range lines {
			args, _ := os.ReadFile(name) // it may have ended by now
			found[filepath.Base(filepath.Dir(name))] = strings.ReplaceAll(string(args), "\x00", " ")
		}
		return found
	}
	list, err := exec.Command("ps", "-A", "-ww", "-o", "pid=,args=").Output()
	if err != nil {
		t.Fatalf("ps: %v", err)
	}
	for line := range strings.Lines(string(list)) {
		pid, args, _ := strings.Cut(strings.TrimSpace(line), " ")
		found[pid] = args
	}
	return found
}
