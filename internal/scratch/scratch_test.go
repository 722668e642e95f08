package scratch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		os.Exit(child())
	}
	if err := Ensure(context.Background(), os.Stderr, PostgresProgram, RedisProgram); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func mustStartPostgres(t *testing.T, opts ...Option) *Postgres {
	t.Helper()
	p, err := StartPostgres(t.Context(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustStop(t, &p.Service) })
	return p
}

func mustStartRedis(t *testing.T, opts ...Option) *Redis {
	t.Helper()
	r, err := StartRedis(t.Context(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustStop(t, &r.Service) })
	return r
}

// mustStop stops a service and checks that its process and its folder are gone.
func mustStop(t *testing.T, s *Service) {
	t.Helper()
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(s.Pid(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d is still there after Stop: %v", s.Pid(), err)
	}
	if _, err := os.Lstat(s.folder.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folder %q is still there after Stop: %v", s.folder.path, err)
	}
}

// query returns the single text value of a query on a connection of its own.
func query(t *testing.T, url, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	var value string
	if err := conn.QueryRow(t.Context(), sql).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func client(t *testing.T, url string) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(opts)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestPostgresIsSetUp(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		opts []Option
		want map[string]string
	}{
		{"for speed", nil, map[string]string{"fsync": "off", "full_page_writes": "off"}},
		{"durable", []Option{Durable}, map[string]string{"fsync": "on", "full_page_writes": "on"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			p := mustStartPostgres(t, row.opts...)
			row.want["listen_addresses"] = "127.0.0.1"
			row.want["unix_socket_directories"] = ""
			row.want["server_encoding"] = "UTF8"
			row.want["synchronous_commit"] = "on"
			got := map[string]string{}
			for name := range row.want {
				got[name] = query(t, p.URL, fmt.Sprintf("select current_setting('%s')", name))
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
			if got := query(t, p.URL, "select datcollate from pg_database where datname = current_database()"); got != "C" {
				t.Errorf("collation %q, want C", got)
			}
		})
	}
}

func TestPostgresAsksForItsPassword(t *testing.T) {
	t.Parallel()
	p := mustStartPostgres(t)
	err := dialPostgres(t.Context(), postgresURL("somebody's guess", p.port))
	if err == nil || !strings.Contains(err.Error(), "28P01") {
		t.Errorf("a wrong password was answered with %v, want SQLSTATE 28P01", err)
	}
}

func TestPostgresReturnsFromACrash(t *testing.T) {
	t.Parallel()
	p := mustStartPostgres(t)
	conn, err := pgx.Connect(t.Context(), p.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), "create table kept as select 'committed'::text as word"); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("an open connection outlived the server")
	}
	if err := dialPostgres(t.Context(), p.URL); err == nil {
		t.Error("a killed server takes connections")
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := query(t, p.URL, "select word from kept"); got != "committed" {
		t.Errorf("after the crash the row holds %q", got)
	}
}

func TestRedisIsSetUp(t *testing.T) {
	t.Parallel()
	r := mustStartRedis(t)
	got, err := client(t, r.URL).ConfigGet(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"bind": "127.0.0.1", "maxmemory-policy": "noeviction", "appendonly": "no", "save": "", "databases": "1024",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	if err := pingRedis(t.Context(), r.port, "guess"); err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("a wrong password was answered with %v, want WRONGPASS", err)
	}
	last := client(t, strings.TrimSuffix(r.URL, "/0")+"/1023")
	if err := last.Ping(t.Context()).Err(); err != nil {
		t.Errorf("the last database: %v", err)
	}
}

func TestRedisReturnsFromAKill(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		opts []Option
		want int64
	}{
		{"empty", nil, 0},
		{"with its keys where it is durable", []Option{Durable}, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			r := mustStartRedis(t, row.opts...)
			url, pid := r.URL, r.Pid()
			if err := client(t, url).Set(t.Context(), "key", "value", 0).Err(); err != nil {
				t.Fatal(err)
			}
			if err := r.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("process %d is still there after Kill: %v", pid, err)
			}
			if err := r.Kill(); err != nil {
				t.Errorf("a second Kill: %v", err)
			}
			if err := r.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			if r.URL != url || r.Pid() == pid {
				t.Errorf("restarted at %q as process %d, want %q and another process than %d", r.URL, r.Pid(), url, pid)
			}
			if got := client(t, url).Exists(t.Context(), "key").Val(); got != row.want {
				t.Errorf("%d keys after the restart, want %d", got, row.want)
			}
		})
	}
}

func TestRestartReplacesARunningServer(t *testing.T) {
	t.Parallel()
	r := mustStartRedis(t)
	pid := r.Pid()
	if err := r.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the first process %d is still there: %v", pid, err)
	}
	if err := client(t, r.URL).Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	t.Run("a second time does nothing", func(t *testing.T) {
		t.Parallel()
		r := mustStartRedis(t)
		mustStop(t, &r.Service)
		mustStop(t, &r.Service)
	})
	t.Run("is final", func(t *testing.T) {
		t.Parallel()
		r := mustStartRedis(t)
		mustStop(t, &r.Service)
		if err := r.Restart(t.Context()); !errors.Is(err, errStopped) {
			t.Errorf("Restart after Stop: %v, want %v", err, errStopped)
		}
	})
	t.Run("ends a server that hangs", func(t *testing.T) {
		t.Parallel()
		r := mustStartRedis(t)
		if err := syscall.Kill(r.Pid(), syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		mustStop(t, &r.Service)
	})
	t.Run("after a kill removes the folder", func(t *testing.T) {
		t.Parallel()
		r := mustStartRedis(t)
		if err := r.Kill(); err != nil {
			t.Fatal(err)
		}
		mustStop(t, &r.Service)
	})
}

// Ctrl-C reaches every process of the terminal's foreground group. The demo
// needs its servers a little longer than that.
func TestServersAreOutsideTheTerminalsProcessGroup(t *testing.T) {
	t.Parallel()
	r := mustStartRedis(t)
	theirs, err := syscall.Getpgid(r.Pid())
	if err != nil {
		t.Fatal(err)
	}
	if own := syscall.Getpgrp(); theirs == own {
		t.Errorf("redis-server is in this process's group %d", own)
	}
}

func TestAPortThatAnotherProcessHas(t *testing.T) {
	t.Parallel()
	holder := mustStartRedis(t)
	p, r := mustStartPostgres(t), mustStartRedis(t)
	for _, row := range []struct {
		name    string
		service *Service
	}{
		{"postgres", &p.Service},
		{"redis", &r.Service},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := row.service
			s.mu.Lock()
			s.process.stop()
			s.port = holder.port
			err := s.run(t.Context())
			s.mu.Unlock()
			if !errors.Is(err, errPortTaken) {
				t.Fatalf("run on a taken port: %v, want %v", err, errPortTaken)
			}
			if err := s.start(t.Context()); err != nil {
				t.Errorf("start after that: %v", err)
			}
			if s.port == holder.port {
				t.Errorf("started on port %d, which another server has", s.port)
			}
		})
	}
}

func TestAServerThatDoesNotComeUp(t *testing.T) {
	t.Parallel()
	r := mustStartRedis(t)
	r.mu.Lock()
	r.process.stop()
	r.command = func(int) []string { return []string{"/bin/sh", "-c", "echo no such luck; exit 3"} }
	r.mu.Unlock()
	err := r.Restart(t.Context())
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no such luck") {
		t.Errorf("got %v, want the exit status and what the program said", err)
	}
}

func TestACancelledStartLeavesNothing(t *testing.T) {
	tmp := openFolder(t)
	t.Setenv("TMPDIR", tmp)
	for name, start := range map[string]func(context.Context) error{
		"postgres": func(ctx context.Context) error { _, err := StartPostgres(ctx); return err },
		"redis":    func(ctx context.Context) error { _, err := StartRedis(ctx); return err },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			enough := errors.New("that is enough")
			cancel(enough)
			if err := start(ctx); !errors.Is(err, enough) {
				t.Errorf("got %v, want the cause of the context", err)
			}
			if left := leftovers(t, tmp); len(left) > 0 {
				t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
			}
		})
	}
}

// openFolder makes a temporary folder that every user can use. It is not
// t.TempDir, whose parent is closed to others.
func openFolder(t *testing.T) string {
	t.Helper()
	name, err := os.MkdirTemp("", "scratch-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(name) })
	if err := os.Chmod(name, os.ModeSticky|0o777); err != nil {
		t.Fatal(err)
	}
	if name, err = filepath.EvalSymlinks(name); err != nil {
		t.Fatal(err)
	}
	return name
}

// eventually waits until nothing stands in the way any more, with a bound that
// no healthy machine reaches.
func eventually(t *testing.T, obstacle func() string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		what := obstacle()
		if what == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after a minute there is still this: %s", what)
		}
		time.Sleep(pollInterval)
	}
}
