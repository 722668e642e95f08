package scratch

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMissingSaysWhatToInstall(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		programs []Program
		want     string
	}{
		{
			[]Program{RedisProgram},
			`redis-server is not installed: run "apt-get install redis-server" on Debian or Ubuntu, "brew install redis" on macOS, "dnf install redis" on Fedora`,
		},
		{
			[]Program{PostgresProgram, RedisProgram},
			`postgres and redis-server are not installed: run "apt-get install postgresql redis-server" on Debian or Ubuntu, "brew install postgresql@17 redis" on macOS, "dnf install postgresql-server redis" on Fedora`,
		},
	} {
		err := &Missing{Programs: row.programs}
		if diff := cmp.Diff(row.want, err.Error()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}

func TestEnsureRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	err := Ensure(t.Context(), io.Discard, "mysqld")
	var missing *Missing
	if err == nil || errors.As(err, &missing) || !strings.Contains(err.Error(), `"mysqld"`) {
		t.Errorf("got %v, want an error that names the program and is no *Missing", err)
	}
}

func TestPathComesFirst(t *testing.T) {
	half, whole := t.TempDir(), t.TempDir()
	for _, name := range []string{
		filepath.Join(half, "postgres"), // without initdb it is of no use
		filepath.Join(whole, "postgres"), filepath.Join(whole, "initdb"),
		filepath.Join(whole, "redis-server"), filepath.Join(half, "valkey-server"),
	} {
		if err := os.WriteFile(name, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", half+string(filepath.ListSeparator)+whole)
	if got, err := findPostgres(); got != whole {
		t.Errorf("findPostgres: %q, %v, want %q", got, err, whole)
	}
	if got, err := findRedis(); got != filepath.Join(whole, "redis-server") {
		t.Errorf("findRedis: %q, %v, want the redis-server in %q", got, err, whole)
	}
}

func TestNewestFirst(t *testing.T) {
	t.Parallel()
	got := newestFirst([]string{"/usr/lib/postgresql/14/bin", "/usr/lib/postgresql/9.6/bin", "/opt/homebrew/opt/postgresql/bin", "/usr/lib/postgresql/17/bin"})
	want := []string{"/usr/lib/postgresql/17/bin", "/usr/lib/postgresql/14/bin", "/usr/lib/postgresql/9.6/bin", "/opt/homebrew/opt/postgresql/bin"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestAFolderThatOthersCannotEnterIsPassedBy(t *testing.T) {
	t.Parallel()
	open := openFolder(t)
	closed := filepath.Join(open, "closed")
	inside := filepath.Join(closed, "inside")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := passable(inside, filepath.Join(open, "nothing"), open); got != open {
		t.Errorf("passable chose %q, %v, want %q", got, err, open)
	}
	if _, err := passable(inside); err == nil || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("got %v, want an error that names TMPDIR", err)
	}
}
