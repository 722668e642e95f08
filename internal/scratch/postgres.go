package scratch

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// Postgres is a running Postgres server.
type Postgres struct {
	// URL reaches the database "postgres" as the superuser, who may create others.
	URL string

	Service
}

// StartPostgres starts a Postgres server and returns when it accepts
// connections. The context bounds the start, not the life of the server.
//
// The error is a *Missing where the programs are not installed. See Ensure.
func StartPostgres(ctx context.Context, opts ...Option) (*Postgres, error) {
	bin, err := findPostgres()
	if err != nil {
		return nil, err
	}
	p, err := startPostgres(ctx, bin, collect(opts))
	if err != nil {
		return nil, fmt.Errorf("start a private Postgres from %q: %w", bin, err)
	}
	return p, nil
}

func startPostgres(ctx context.Context, bin string, o options) (*Postgres, error) {
	folder, err := newFolder()
	if err != nil {
		return nil, err
	}
	password := rand.Text()
	p := &Postgres{}
	p.Service = Service{
		folder: folder,
		signal: "QUIT", // at once and without a checkpoint: nobody needs the data again
		command: func(port int) []string {
			return postgresCommand(bin, folder.file("data"), port, o)
		},
		ready: func(ctx context.Context, port int) error {
			return dialPostgres(ctx, postgresURL(password, port))
		},
	}
	err = initPostgres(ctx, bin, folder, password)
	if err == nil {
		err = p.start(ctx)
	}
	if err != nil {
		p.Stop()
		return nil, err
	}
	p.URL = postgresURL(password, p.port)
	return p, nil
}

// Kill crashes the server: connections break at once, nothing is tidied up,
// and the next start has to recover. It returns when the server is gone.
//
// The signal is SIGQUIT. SIGKILL would leave Postgres' other processes and its
// shared memory behind.
func (p *Postgres) Kill() error { return p.kill(syscall.SIGQUIT) }

// initPostgres makes an empty cluster in the folder.
func initPostgres(ctx context.Context, bin string, folder *folder, password string) error {
	if err := folder.write("password", password+"\n"); err != nil {
		return err
	}
	initdb, err := folder.run("TERM", filepath.Join(bin, "initdb"),
		"--pgdata="+folder.file("data"), "--username=postgres", "--pwfile="+folder.file("password"),
		"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync")
	if err != nil {
		return err
	}
	select {
	case <-initdb.done:
	case <-ctx.Done():
		initdb.stop()
		return context.Cause(ctx)
	}
	if initdb.err != nil {
		return fmt.Errorf("initdb: %w", initdb.failure())
	}
	initdb.stop()
	return nil
}

func postgresCommand(bin, data string, port int, o options) []string {
	command := []string{filepath.Join(bin, "postgres"), "-D", data, "-p", strconv.Itoa(port)}
	set := func(name, value string) { command = append(command, "-c", name+"="+value) }
	set("listen_addresses", "127.0.0.1")
	set("unix_socket_directories", "")
	set("max_connections", "300")
	if !o.durable {
		set("fsync", "off")
		set("full_page_writes", "off")
		// Each new database writes some 10 MB of log; checkpoints would only get in the way.
		set("max_wal_size", "2GB")
		set("checkpoint_timeout", "1h")
	}
	return command
}

func postgresURL(password string, port int) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword("postgres", password),
		Host:     address(port),
		Path:     "/postgres",
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

func dialPostgres(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}
