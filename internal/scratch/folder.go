package scratch

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

var errPortTaken = errors.New("another process has the port")

// guard waits until its standard input ends and then removes the folder $1.
//
// The other end of that pipe is held by this process and by every watchdog, so
// it ends when all of them are gone: no server can still be writing.
const guard = `
read -r _
n=0
while rm -rf -- "$1"; [ -e "$1" ] && [ "$n" -lt 100 ]; do
	n=$((n + 1))
	sleep 0.1
done
[ ! -e "$1" ]
`

// watchdog runs a server and says its process id. When its standard input ends,
// because it was closed or because the process that held the other end is gone,
// it stops the server. It lives exactly as long as the server does.
//
// Descriptor 3 is the guard's pipe; the server must not hold it.
const watchdog = `
log=$1 signal=$2
shift 2
exec 4<&0 </dev/null
"$@" >>"$log" 2>&1 3>&- 4<&- &
server=$!
(
	read -r _ <&4
	kill -s "$signal" "$server"
	kill -s CONT "$server"
	n=0
	while [ "$n" -lt 100 ]; do
		kill -0 "$server" || exit
		n=$((n + 1))
		sleep 0.1
	done
	kill -s KILL "$server"
) >/dev/null 2>&1 &
waiter=$!
trap '' PIPE
echo "$server"
exec >&-
wait "$server"
status=$?
kill "$waiter"
exit "$status"
`

// folder is the temporary folder of one server. Its guard removes it once this
// process and every watchdog have let go of it.
type folder struct {
	path  string
	owner *owner // nil: whoever runs this process
	guard *exec.Cmd
	hold  *os.File
}

// owner is the user that servers run as where this process is root.
type owner struct {
	name     string
	uid, gid uint32
}

// newFolder makes an empty folder that only its owner can enter.
func newFolder() (*folder, error) {
	f := &folder{}
	parent := os.TempDir()
	if os.Geteuid() == 0 {
		var err error
		if f.owner, err = findOwner(); err != nil {
			return nil, err
		}
		if parent, err = passable(parent, "/tmp", "/var/tmp"); err != nil {
			return nil, err
		}
	}
	f.path = filepath.Join(parent, "legwork-scratch-"+strings.ToLower(rand.Text()))

	// The guard comes first: a folder without one could be left behind.
	f.guard = exec.Command("/bin/sh", "-c", guard, "scratch-guard", f.path)
	f.guard.Dir = "/"
	f.guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var err error
	if f.hold, err = startHeld(f.guard); err != nil {
		return nil, fmt.Errorf("guard the folder %q: %w", f.path, err)
	}
	if err := f.create(); err != nil {
		return nil, errors.Join(err, f.remove())
	}
	return f, nil
}

func (f *folder) create() error {
	if err := os.Mkdir(f.path, 0o700); err != nil {
		return err
	}
	return f.give(f.path)
}

// give makes the folder's owner the owner of name too.
func (f *folder) give(name string) error {
	if f.owner == nil {
		return nil
	}
	return os.Chown(name, int(f.owner.uid), int(f.owner.gid))
}

// file returns the path of name in the folder.
func (f *folder) file(name string) string { return filepath.Join(f.path, name) }

// write puts a file that only the owner can read into the folder.
func (f *folder) write(name, text string) error {
	if err := os.WriteFile(f.file(name), []byte(text), 0o600); err != nil {
		return err
	}
	return f.give(f.file(name))
}

func (f *folder) removed() bool { return f.hold == nil }

// remove removes the folder. Its processes must have been stopped.
func (f *folder) remove() error {
	if f.removed() {
		return nil
	}
	f.hold.Close()
	f.hold = nil
	if err := f.guard.Wait(); err != nil {
		return fmt.Errorf("remove the folder %q: %w", f.path, err)
	}
	return nil
}

// process is one run of a program under its watchdog.
type process struct {
	pid  int // of the program
	log  string
	hold *os.File
	done chan struct{} // closed when the program and its watchdog are gone
	err  error         // how the program ended, once done is closed
}

// run starts a program as the folder's owner, with the folder as its working
// directory. Signal is what stops it.
func (f *folder) run(signal string, argv ...string) (*process, error) {
	p := &process{done: make(chan struct{})}
	log, err := os.CreateTemp(f.path, "log-")
	if err != nil {
		return nil, err
	}
	p.log = log.Name()
	if err := errors.Join(log.Close(), f.give(p.log)); err != nil {
		return nil, err
	}

	cmd := exec.Command("/bin/sh", append([]string{"-c", watchdog, "scratch-watchdog", p.log, signal}, argv...)...)
	cmd.Dir = f.path
	cmd.Env = environment(f.path)
	cmd.ExtraFiles = []*os.File{f.hold}
	// A session of its own: Ctrl-C in the terminal is for this process, which
	// still needs its servers while it shuts down.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if f.owner != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: f.owner.uid, Gid: f.owner.gid}
	}
	said, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.hold, err = startHeld(cmd); err != nil {
		return nil, fmt.Errorf("start %q: %w", argv[0], err)
	}
	line, err := bufio.NewReader(said).ReadString('\n')
	if err == nil {
		p.pid, err = strconv.Atoi(strings.TrimSpace(line))
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("start %q: its watchdog said no process id: %w", argv[0], err)
	}
	return p, nil
}

// startHeld starts cmd with a pipe as its standard input and returns the end
// that keeps it open. Nothing else holds that end, so it closes with this process.
func startHeld(cmd *exec.Cmd) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd.Stdin = r
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// stop ends the program and waits until it is gone. It may be called again.
func (p *process) stop() {
	p.hold.Close()
	<-p.done
}

// kill sends the program a signal that ends it and waits until it is gone.
func (p *process) kill(signal syscall.Signal) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	if err := syscall.Kill(p.pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	<-p.done
	p.hold.Close()
	return nil
}

// failure says why the program ended by itself: errPortTaken, or what it wrote last.
func (p *process) failure() error {
	p.hold.Close()
	text := tail(p.log)
	// Postgres and Redis both pass on the text of EADDRINUSE, in English
	// because they run in the C locale.
	if strings.Contains(strings.ToLower(text), "address already in use") {
		return errPortTaken
	}
	err := p.err
	if err == nil {
		err = errEnded
	}
	return fmt.Errorf("%w; it said %q", err, text)
}

// tail returns the end of a log, enough for a reader to see what happened.
func tail(name string) string {
	const enough = 2000
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	if end, err := f.Seek(0, io.SeekEnd); err == nil {
		f.Seek(max(0, end-enough), io.SeekStart)
	}
	text, _ := io.ReadAll(f)
	return string(bytes.TrimSpace(text))
}

// environment is this process's own, without what would lead a server or its
// messages astray: settings of another Postgres, the language, a foreign home.
func environment(home string) []string {
	env := []string{"HOME=" + home, "LC_ALL=C", "TZ=UTC"}
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		switch {
		case strings.HasPrefix(name, "PG"), strings.HasPrefix(name, "LC_"):
		case name == "HOME", name == "TZ", name == "LANG", name == "LANGUAGE":
		default:
			env = append(env, entry)
		}
	}
	return env
}

// findOwner chooses the user that servers run as instead of root.
func findOwner() (*owner, error) {
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil || uid == 0 {
			continue
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			continue
		}
		return &owner{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return nil, errors.New("root cannot run Postgres, and there is no user \"postgres\" or \"nobody\" to run it as: add one of them, or start this as an ordinary user")
}

// passable returns the first of the folders that every user can pass through.
func passable(names ...string) (string, error) {
	for _, name := range names {
		name, err := filepath.EvalSymlinks(name)
		if err != nil {
			continue
		}
		if openToAll(name) {
			return name, nil
		}
	}
	return "", fmt.Errorf("root runs Postgres as another user, and none of the temporary folders %q lets another user in: set TMPDIR to one that does", names)
}

func openToAll(name string) bool {
	for {
		info, err := os.Stat(name)
		if err != nil || !info.IsDir() || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if name == filepath.Dir(name) {
			return true
		}
		name = filepath.Dir(name)
	}
}
