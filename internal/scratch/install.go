package scratch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Ensure is nil when the programs are there to be started. On Debian and Ubuntu
// it installs what is missing when this process is root, and writes to out what
// it does; elsewhere the error is a *Missing that says what to install.
//
// Several processes may call it at once.
func Ensure(ctx context.Context, out io.Writer, programs ...Program) error {
	missing, err := lacking(programs)
	if err != nil || len(missing) == 0 {
		return err
	}
	if !canInstall() {
		return &Missing{Programs: missing}
	}
	unlock, err := lockInstall(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	// Somebody else may have installed them while this one waited.
	if missing, err = lacking(programs); err != nil || len(missing) == 0 {
		return err
	}
	var names []string
	for _, p := range missing {
		names = append(names, packages[p].apt)
	}
	if err := install(ctx, out, names); err != nil {
		return err
	}
	if missing, err = lacking(programs); err != nil || len(missing) == 0 {
		return err
	}
	return &Missing{Programs: missing}
}

// Install installs packages with apt-get, whose output goes to out. It needs
// root on Debian or Ubuntu. No service is started by it, and no Postgres cluster
// created; packages and settings that were there before stay as they are.
func Install(ctx context.Context, out io.Writer, packages ...string) error {
	if !canInstall() {
		return fmt.Errorf("install %s: only root on Debian or Ubuntu can do that", strings.Join(packages, ", "))
	}
	unlock, err := lockInstall(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return install(ctx, out, packages)
}

func lacking(programs []Program) ([]Program, error) {
	var missing []Program
	for _, p := range programs {
		var m *Missing
		switch err := p.find(); {
		case err == nil:
		case errors.As(err, &m):
			missing = append(missing, m.Programs...)
		default:
			return nil, err
		}
	}
	return missing, nil
}

// canInstall says whether this is root on Debian, Ubuntu or a relative of theirs.
func canInstall() bool {
	if os.Geteuid() != 0 {
		return false
	}
	if _, err := os.Stat("/etc/debian_version"); err != nil {
		return false
	}
	_, err := exec.LookPath("apt-get")
	return err == nil
}

// installScript installs the packages "$@".
//
// A package starts its service and enables it at boot, and postgresql creates a
// cluster. Nobody asked for either here, so a policy forbids the former while
// this runs, and a setting the latter; both are taken back at the end. Where a
// policy stands already, it stays.
const installScript = `
set -eu
policy=/usr/sbin/policy-rc.d
clusters=/etc/postgresql-common/createcluster.conf
ours=
restore() {
	if [ -n "$ours" ]; then rm -f "$policy"; fi
	if [ -e "$clusters.legwork" ]; then mv "$clusters.legwork" "$clusters"; fi
}
trap restore EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
apt() {
	DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@"
}
installed() {
	dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed
}

if [ ! -e "$policy" ]; then
	ours=yes
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
fi
apt update
for package; do
	case $package in
	postgresql | postgresql-[0-9]*)
		apt install -y --no-install-recommends postgresql-common
		if [ ! -e "$clusters.legwork" ]; then
			cp -p "$clusters" "$clusters.legwork"
			sed -i '/^[#[:space:]]*create_main_cluster/d' "$clusters"
			echo 'create_main_cluster = false' >>"$clusters"
		fi
		;;
	esac
done
redis=
if [ -d /run/systemd/system ] && ! installed redis-server; then redis=new; fi
apt install -y --no-install-recommends "$@"
if [ -n "$redis" ] && installed redis-server; then systemctl disable redis-server.service; fi
`

func install(ctx context.Context, out io.Writer, packages []string) error {
	fmt.Fprintf(out, "installing %s with apt-get\n", strings.Join(packages, ", "))
	cmd := exec.CommandContext(ctx, "/bin/sh", slices.Concat([]string{"-c", installScript, "scratch-install"}, packages)...)
	cmd.Stdout = out
	cmd.Stderr = out
	// In a session of its own it does not get the terminal's Ctrl-C: dpkg must not
	// be cut off in the middle. A cancelled context asks the whole session to end
	// instead, and apt-get does so when it can.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("apt-get install %s: %w", strings.Join(packages, " "), err)
	}
	return nil
}

// lockInstall keeps two processes from installing at once: apt-get update fails
// where another one runs, and go test runs many packages side by side.
func lockInstall(ctx context.Context) (unlock func(), err error) {
	// The folder is apt's own, so that no lock file of ours stays behind.
	folder, err := os.Open("/var/lib/apt")
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { folder.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			folder.Close()
			return nil, fmt.Errorf("lock %q: %w", folder.Name(), err)
		}
		select {
		case <-ctx.Done():
			folder.Close()
			return nil, context.Cause(ctx)
		case <-time.After(pollInterval * 10):
		}
	}
}
