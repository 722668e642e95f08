package scratch

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"syscall"
)

// databases is how many numbered databases a Redis has, so that many tests can
// share it and each have one to itself.
const databases = 1024

// Redis is a running redis-server.
type Redis struct {
	// URL reaches database 0 of 1024. The others differ in the path: /1 to /1023.
	URL string

	Service
}

// StartRedis starts a redis-server and returns when it answers. It never evicts
// keys, and keeps nothing on disk unless it is Durable. The context bounds the
// start, not the life of the server.
//
// The error is a *Missing where the program is not installed. See Ensure.
func StartRedis(ctx context.Context, opts ...Option) (*Redis, error) {
	program, err := findRedis()
	if err != nil {
		return nil, err
	}
	r, err := startRedis(ctx, program, collect(opts))
	if err != nil {
		return nil, fmt.Errorf("start a private Redis from %q: %w", program, err)
	}
	return r, nil
}

func startRedis(ctx context.Context, program string, o options) (*Redis, error) {
	folder, err := newFolder()
	if err != nil {
		return nil, err
	}
	password := rand.Text()
	r := &Redis{}
	r.Service = Service{
		folder: folder,
		signal: "TERM",
		command: func(port int) []string {
			return []string{program, folder.file("redis.conf"), "--port", fmt.Sprint(port)}
		},
		ready: func(ctx context.Context, port int) error {
			return pingRedis(ctx, port, password)
		},
	}
	err = folder.write("redis.conf", redisConfig(password, o))
	if err == nil {
		err = r.start(ctx)
	}
	if err != nil {
		r.Stop()
		return nil, err
	}
	u := url.URL{Scheme: "redis", User: url.UserPassword("", password), Host: address(r.port), Path: "/0"}
	r.URL = u.String()
	return r, nil
}

// Kill ends the server with SIGKILL: connections break, and what was not on
// disk is lost. It returns when the server is gone.
func (r *Redis) Kill() error { return r.kill(syscall.SIGKILL) }

// redisConfig leaves the folder out: it is the working directory, and its path
// might need quoting.
func redisConfig(password string, o options) string {
	lines := []string{
		"bind 127.0.0.1",
		"requirepass " + password,
		fmt.Sprintf("databases %d", databases),
		"maxmemory-policy noeviction",
		`save ""`,
		"daemonize no",
	}
	if o.durable {
		lines = append(lines, "appendonly yes")
	}
	return strings.Join(lines, "\n") + "\n"
}

// pingRedis is nil when the server on port knows the password and has loaded
// its data.
func pingRedis(ctx context.Context, port int, password string) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address(port))
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := fmt.Fprintf(conn, "AUTH %s\r\nPING\r\n", password); err != nil {
		return err
	}
	answers := bufio.NewReader(conn)
	for _, want := range []string{"+OK", "+PONG"} {
		got, err := answers.ReadString('\n')
		if err != nil {
			return err
		}
		if got = strings.TrimSpace(got); got != want {
			return errors.New(got)
		}
	}
	return nil
}
