// Package npm runs programs from npm, on a Node of its own, for the checks that need what other people wrote. It is no part
// of what legwork does in production.
package npm

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"legwork/internal/scratch"
)

// installTime bounds one installation. A slow line may need minutes.
const installTime = 5 * time.Minute

// nodeFiles bring the Node that everything here runs on: the conformance suite needs 22, and machines have older ones.
//
//go:embed node
var nodeFiles embed.FS

// Packages is a folder that holds package.json, with exact versions, and the package-lock.json that npm made of it. The lock
// pins what the packages bring along, by its hash, and leaves open which registry serves it.
type Packages struct {
	name     string
	manifest []byte
	lock     []byte
	versions map[string]string
}

// NewPackages reads a folder of files; name is what the packages are for, in messages.
func NewPackages(files fs.FS, folder, name string) (Packages, error) {
	p := Packages{name: name}
	var err error
	if p.manifest, err = fs.ReadFile(files, path.Join(folder, "package.json")); err != nil {
		return Packages{}, err
	}
	if p.lock, err = fs.ReadFile(files, path.Join(folder, "package-lock.json")); err != nil {
		return Packages{}, err
	}
	var lock struct {
		Packages map[string]struct{ Version string }
	}
	if err := json.Unmarshal(p.lock, &lock); err != nil {
		return Packages{}, fmt.Errorf("read the lock of %s: %w", name, err)
	}
	p.versions = map[string]string{}
	for at, pinned := range lock.Packages {
		p.versions[strings.TrimPrefix(at, "node_modules/")] = pinned.Version
	}
	return p, nil
}

// Version is that of one of the packages; empty for one that is not among them.
func (p Packages) Version(name string) string { return p.versions[name] }

// Node runs programs from npm.
type Node struct {
	program string
	out     io.Writer
}

// Open finds a Node in the cache, or installs one. What it does meanwhile is told to out.
func Open(ctx context.Context, out io.Writer) (*Node, error) {
	packages, err := NewPackages(nodeFiles, "node", "Node")
	if err != nil {
		return nil, err
	}
	folder, err := install(ctx, out, packages)
	if err != nil {
		return nil, err
	}
	n := &Node{program: filepath.Join(folder, "node", "bin", "node"), out: out}
	said, err := exec.CommandContext(ctx, n.program, "--version").Output()
	if err == nil && strings.TrimSpace(string(said)) != "v"+packages.Version("node") {
		err = fmt.Errorf("it is version %q", bytes.TrimSpace(said))
	}
	if err != nil {
		return nil, fmt.Errorf("use Node %s: %w: remove %q to have it installed again", packages.Version("node"), err, filepath.Dir(folder))
	}
	return n, nil
}

// Install gives the node_modules folder that holds these packages, from the cache where they are there already.
func (n *Node) Install(ctx context.Context, packages Packages) (folder string, err error) {
	return install(ctx, n.out, packages)
}

// Command runs a script on this Node. It is killed, with what it started, when ctx ends, and ends by itself when this process
// dies. The caller sets what else it needs, but not Stdin.
func (n *Node) Command(ctx context.Context, script string, args ...string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, n.program, append([]string{"--import", preloadURL, script}, args...)...)
	inGroup(cmd)
	// Nothing is written to it. That it closes is what the preload waits for.
	if _, err := cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return cmd, nil
}

// install puts packages into a folder of the cache that is named after their lock. It appears there whole or not at all, so two
// processes may install at once.
func install(ctx context.Context, out io.Writer, packages Packages) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache folder: %w", err)
	}
	cache = filepath.Join(cache, "legwork", "npm")
	sum := sha256.Sum256(packages.lock)
	folder := filepath.Join(cache, hex.EncodeToString(sum[:8]))
	modules := filepath.Join(folder, "node_modules")
	if _, err := os.Stat(modules); err == nil {
		return modules, nil
	}
	if err := ensureNPM(ctx, out); err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	fresh, err := os.MkdirTemp(cache, "installing-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	fmt.Fprintf(out, "installing %s from npm into %s\n", packages.name, folder)
	if err := runNPM(ctx, fresh, packages); err != nil {
		return "", fmt.Errorf("install %s from npm: %w", packages.name, err)
	}
	if err := os.Rename(fresh, folder); err != nil {
		if _, there := os.Stat(modules); there != nil {
			return "", err
		}
	}
	return modules, nil
}

func runNPM(ctx context.Context, folder string, packages Packages) error {
	for name, data := range map[string][]byte{"package.json": packages.manifest, "package-lock.json": packages.lock} {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o644); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund", "--no-progress")
	cmd.Dir = folder
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	inGroup(cmd)
	err := cmd.Run()
	switch {
	case ctx.Err() == context.DeadlineExceeded:
		return fmt.Errorf("it was not done after %s", installTime)
	case err != nil && ctx.Err() == nil:
		return fmt.Errorf("%w\n%s", err, bytes.TrimSpace(said.Bytes()))
	}
	return cmp.Or(ctx.Err(), err)
}

func ensureNPM(ctx context.Context, out io.Writer) error {
	if _, err := exec.LookPath("npm"); err == nil {
		return nil
	}
	if err := scratch.Install(ctx, out, "npm"); err != nil {
		return fmt.Errorf(`npm is not on PATH: run "apt-get install npm" on Debian or Ubuntu, "brew install node" on macOS (%w)`, err)
	}
	if _, err := exec.LookPath("npm"); err != nil {
		return errors.New("npm is not on PATH, though its package is installed")
	}
	return nil
}

// inGroup makes what a command starts end with it when its context does.
func inGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
}

//go:embed preload.mjs
var preload string

// preloadURL hands the preload to Node without a file.
var preloadURL = "data:text/javascript," + url.PathEscape(preload)
