package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/hibiken/asynqmon"
	"github.com/jackc/pgx/v5"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"legwork/config"
	"legwork/internal/scratch"
	"legwork/mcp"
	"legwork/store"
	"legwork/worker"
)

const (
	demoBudget      = 3 * time.Second // of each operation, where a server has no number of its own
	demoConcurrency = 16              // more than there are operations, so that none waits for another
)

// demoCase is one server of the demo, the tool that is called there, and how both operations should come out.
type demoCase struct {
	server    string
	about     string // what is to be known about it, for the reader
	start     func() (demoServer, error)
	timeout   int  // operation_timeout_seconds of its row; 0 is none
	delicate  bool // begins when everything before it is settled, so that a busy machine does not change how it comes out
	tool      string
	arguments string

	imported, called demoOutcome
}

// demoOutcome is how an operation came out, in the words of its rows.
type demoOutcome struct{ status, kind, asked string }

func (o demoOutcome) String() string {
	if o.kind == "" {
		return o.status
	}
	return fmt.Sprintf("%s (%s, asked: %s)", o.status, o.kind, o.asked)
}

func demoCases() []demoCase {
	fails := func(status string, kind mcp.Kind, asked mcp.Asked) demoOutcome {
		return demoOutcome{status: status, kind: string(kind), asked: string(asked)}
	}
	imported, succeeded := demoOutcome{status: "ok"}, demoOutcome{status: "succeeded"}
	return []demoCase{{
		server: "docs", about: "healthy", start: startDocs,
		tool: "search", arguments: `{"query":"budget"}`,
		imported: imported, called: succeeded,
	}, {
		server: "billing", about: "healthy, but its tool fails", start: startBilling,
		tool: "charge", arguments: `{"customer":"Ada","cents":1250}`,
		imported: imported, called: fails("failed", mcp.KindToolError, mcp.AskedYes),
	}, {
		server: "fax", about: "nothing listens there", start: startFax,
		tool: "send", arguments: `{"number":"+44 20 7946 0000","text":"hello"}`,
		imported: fails("error", mcp.KindUnreachable, mcp.AskedNo), called: fails("failed", mcp.KindUnreachable, mcp.AskedNo),
	}, {
		server: "crm", about: "takes 3 s to open a session", start: startCRM, delicate: true,
		tool: "lookup", arguments: `{"name":"Ada"}`,
		imported: fails("error", mcp.KindBudgetSpent, mcp.AskedNo), called: fails("failed", mcp.KindBudgetSpent, mcp.AskedNo),
	}, {
		server: "mail", about: "accepts and never answers; own budget of 2 s", start: startMail, timeout: 2,
		tool: "send", arguments: `{"to":"ada@example.org","text":"hello"}`,
		imported: fails("error", mcp.KindNoAnswer, mcp.AskedUnknown), called: fails("failed", mcp.KindNoAnswer, mcp.AskedUnknown),
	}}
}

func newDemoCommand(a *app) *cobra.Command {
	d := &demo{app: a, cases: demoCases()}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "see it all work: no settings, no Docker and no running service are needed",
		Long: "Starts a private Postgres, an embedded Redis and five MCP servers, good and bad, on 127.0.0.1; imports each catalogue\n" +
			"and calls a tool of each; and shows the rows that an operator would read. It ends by itself and leaves nothing behind.\n\n" +
			"It exits with 0 only if every row came out as it should.",
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd.Context()) },
	}
	cmd.Flags().BoolVar(&d.keep, "keep", false, "leave everything up, with a dashboard, until Ctrl-C")
	cmd.Flags().BoolVar(&d.verbose, "verbose", false, "show the worker's log on stderr")
	return cmd
}

// demo is one run of the demo.
type demo struct {
	*app
	cases         []demoCase
	keep, verbose bool

	databaseURL string
	redis       asynq.RedisClientOpt
	rows        *store.Store
	inspector   *asynq.Inspector
	worker      demoWorker

	stops []func() error
}

// demoWorker is a worker that runs beside the demo.
type demoWorker struct {
	done chan struct{} // closed when it has ended
	err  error         // why, once done is closed
}

func (d *demo) run(ctx context.Context) (err error) {
	defer func() {
		if left := d.stop(); left != nil {
			d.hint("legwork: the demo could not be cleared away: %s", left)
			err = cmp.Or[error](err, errSaid{exitFailed})
		}
	}()
	verdict, err := d.play(ctx)
	switch {
	case ctx.Err() != nil:
		return errors.New("the demo was stopped before its end")
	case err != nil:
		return err
	case d.keep:
		if err := d.stay(ctx); err != nil {
			return err
		}
	}
	return verdict
}

// play shows the demo. The verdict is nil when every row is as it should be; the error is why it could not be shown.
func (d *demo) play(ctx context.Context) (verdict, err error) {
	fmt.Fprintln(d.stdout, wrap("legwork works off a catalogue import and a tool call against each of several MCP servers, "+
		"good and bad. Everything runs on 127.0.0.1, and all of it is gone when the demo ends.", d.lineWidth())+"\n")
	if err := d.startPostgres(ctx); err != nil {
		return nil, err
	}
	if err := d.startRedis(); err != nil {
		return nil, err
	}
	if err := d.startServers(ctx); err != nil {
		return nil, err
	}
	if err := d.startWorker(ctx); err != nil {
		return nil, err
	}
	operations, err := d.work(ctx)
	if err != nil {
		return nil, err
	}
	d.printRows(operations)
	d.printFailures(operations)
	return d.judge(operations), nil
}

// later has stop called when the demo ends; what was started last is stopped first.
func (d *demo) later(stop func() error) { d.stops = append(d.stops, stop) }

func (d *demo) stop() error {
	var errs []error
	for _, stop := range slices.Backward(d.stops) {
		errs = append(errs, stop())
	}
	d.stops = nil
	return errors.Join(errs...)
}

// started tells of one thing that was started.
func (d *demo) started(what, address, about string) {
	fmt.Fprintf(d.stdout, "%-11s  %-15s  %s\n", what, address, about)
}

func (d *demo) startPostgres(ctx context.Context) error {
	if err := scratch.Ensure(ctx, d.stderr, scratch.PostgresProgram); err != nil {
		return err
	}
	postgres, err := scratch.StartPostgres(ctx)
	if err != nil {
		return err
	}
	d.later(postgres.Stop)
	d.databaseURL = postgres.URL
	if _, err := store.MigrateUp(ctx, d.databaseURL); err != nil {
		return err
	}
	if d.rows, err = store.Open(ctx, d.databaseURL, store.Options{ApplicationName: "legwork demo"}); err != nil {
		return err
	}
	d.later(func() error { d.rows.Close(); return nil })
	version, err := postgresVersion(ctx, d.databaseURL)
	if err != nil {
		return err
	}
	u, err := url.Parse(d.databaseURL)
	if err != nil {
		return err
	}
	d.started("Postgres "+version, u.Host, "private, in a temporary folder")
	return nil
}

// postgresVersion is the major version.
func postgresVersion(ctx context.Context, databaseURL string) (string, error) {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return "", fmt.Errorf("ask Postgres for its version: %w", err)
	}
	major, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), ".")
	return major, conn.Close(ctx)
}

func (d *demo) startRedis() error {
	server := miniredis.NewMiniRedis()
	password := rand.Text()
	server.RequireAuth(password)
	if err := server.StartAddr("127.0.0.1:0"); err != nil {
		return fmt.Errorf("start the embedded Redis: %w", err)
	}
	d.later(func() error { server.Close(); return nil })
	d.redis = asynq.RedisClientOpt{Addr: server.Addr(), Password: password}
	d.inspector = asynq.NewInspector(d.redis)
	d.later(d.inspector.Close)
	d.started("Redis", d.redis.Addr, "embedded")
	return nil
}

// startServers starts the MCP servers and configures each as an operator would.
func (d *demo) startServers(ctx context.Context) error {
	for _, c := range d.cases {
		server, err := c.start()
		if err != nil {
			return fmt.Errorf("start MCP server %q: %w", c.server, err)
		}
		d.later(func() error { server.stop(); return nil })
		err = d.rows.AddServer(ctx, store.Server{
			Identifier: c.server, Name: c.server + " of the demo", URL: server.url(), AuthPlacement: string(mcp.PlaceNone),
			DataClass: "public", RequiresApproval: true, Enabled: true, OperationTimeoutSeconds: c.timeout,
		})
		if err != nil {
			return err
		}
		d.started("MCP "+c.server, server.address, c.about)
	}
	return nil
}

func (d *demo) startWorker(ctx context.Context) error {
	client, err := newClient(config.Config{AllowPrivateNetworks: true})
	if err != nil {
		return err
	}
	d.later(func() error { client.Close(); return nil })
	logger := logrus.New()
	logger.SetOutput(d.stderr)
	logger.SetFormatter(&logrus.TextFormatter{FullTimestamp: true})
	if !d.verbose {
		logger.SetLevel(logrus.ErrorLevel)
	}
	w := worker.New(d.rows, client, worker.Options{
		Redis: d.redis, Concurrency: demoConcurrency, Budget: demoBudget, Logger: logger,
		PollInterval: 100 * time.Millisecond, // the embedded Redis is slower than a real one
	})
	// It is stopped in its turn, not by the signal that ends the demo.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d.worker.done = make(chan struct{})
	go func() {
		defer close(d.worker.done)
		d.worker.err = w.Run(ctx)
	}()
	d.later(func() error {
		cancel()
		<-d.worker.done
		return nil
	})
	d.started("worker", "in this process", "each operation has a budget of "+duration(demoBudget))
	return nil
}

// stay keeps everything up until ctx ends and tells how to reach it.
func (d *demo) stay(ctx context.Context) error {
	monitor := asynqmon.New(asynqmon.Options{RedisConnOpt: d.redis})
	d.later(monitor.Close)
	dashboard, err := serveHTTP(monitor)
	if err != nil {
		return fmt.Errorf("start the dashboard: %w", err)
	}
	d.later(func() error { dashboard.stop(); return nil })
	queue := url.URL{Scheme: "redis", User: url.UserPassword("", d.redis.Password), Host: d.redis.Addr, Path: "/0"}
	program := demoProgram()
	fmt.Fprintf(d.stdout, `
Everything stays up until Ctrl-C, the worker too.

The dashboard of the queues: http://%s/

In another terminal:
  export LEGWORK_DATABASE_URL='%s'
  export LEGWORK_REDIS_URL='%s'
  export LEGWORK_ALLOW_PRIVATE_NETWORKS=true
  %[4]s server list
  %[4]s step list
  %[4]s import-error list
  %[4]s call docs add --args '{"a":2,"b":3}' --wait
`, dashboard.address, d.databaseURL, queue.String(), program)
	select {
	case <-ctx.Done():
		return nil
	case <-d.worker.done:
		return cmp.Or(d.worker.err, errors.New("the worker ended by itself"))
	}
}

// demoProgram is what to type to run this program again.
func demoProgram() string {
	self, err := os.Executable()
	if err != nil {
		return "legwork"
	}
	if found, err := exec.LookPath("legwork"); err == nil {
		if found, err = filepath.EvalSymlinks(found); err == nil && found == self {
			return "legwork"
		}
	}
	if strings.ContainsAny(self, " \t'\"\\$&;()*?<>|`#~!") {
		return "'" + strings.ReplaceAll(self, "'", `'\''`) + "'"
	}
	return self
}
