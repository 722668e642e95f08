// Package storetest lends tests a database: a fresh one each, on a real Postgres.
//
// A test binary that uses it says so once:
//
//	func TestMain(m *testing.M) { storetest.Main(m) }
//
// Postgres is started when the first test asks, and stopped when the last one is done. Where LEGWORK_TEST_DATABASE_URL is
// set, that server is used instead; its user must be allowed to create databases, and nothing in it is touched but
// databases made here.
package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"legwork/internal/scratch"
	"legwork/store"
)

// patience bounds each thing that is done to the server; it is no measure of how long that should take.
const patience = 2 * time.Minute

// server is the Postgres that all tests of a binary share.
var server struct {
	mu      sync.Mutex
	allowed bool // Main runs, so somebody stops what is started
	started bool
	err     error  // of the start; every test that asks is told
	url     string // of a database from which others are created
	stop    func() error
	model   string // the database that each test gets a copy of: migrated, and nobody connects to it
}

// Main runs the tests of a binary, stops the Postgres they used, if any, and exits.
func Main(m *testing.M) {
	server.mu.Lock()
	server.allowed = true
	server.mu.Unlock()
	code := m.Run()
	if err := shutDown(); err != nil {
		fmt.Fprintln(os.Stderr, "storetest:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// New opens a store on a fresh, migrated database, which is dropped after the test.
func New(t testing.TB) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), URL(t), store.Options{ApplicationName: "legwork test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// URL makes a fresh, migrated database and returns how to connect to it. The database is dropped after the test, with
// whoever is still connected to it.
func URL(t testing.TB) string {
	t.Helper()
	model := running(t)
	return create(t, "template "+identifier(model))
}

// Empty is URL without the migrations.
func Empty(t testing.TB) string {
	t.Helper()
	running(t)
	return create(t, "template template0")
}

func create(t testing.TB, from string) string {
	t.Helper()
	name := databaseName()
	if err := execute("create database " + identifier(name) + " " + from); err != nil {
		t.Fatalf("create a test database: %v", err)
	}
	t.Cleanup(func() {
		if err := execute("drop database " + identifier(name) + " with (force)"); err != nil {
			t.Errorf("drop the test database: %v", err)
		}
	})
	databaseURL, err := at(server.url, name)
	if err != nil {
		t.Fatal(err)
	}
	return databaseURL
}

// running returns the name of the model database, and starts Postgres first if this test is the first that asks.
func running(t testing.TB) string {
	t.Helper()
	server.mu.Lock()
	defer server.mu.Unlock()
	if !server.allowed {
		t.Fatal("the test binary lacks func TestMain(m *testing.M) { storetest.Main(m) }")
	}
	if !server.started {
		server.started = true
		server.err = startUp()
	}
	if server.err != nil {
		t.Fatalf("no Postgres to test with: %v", server.err)
	}
	return server.model
}

func startUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	server.url = os.Getenv("LEGWORK_TEST_DATABASE_URL")
	if server.url == "" {
		if err := scratch.Ensure(ctx, os.Stderr, scratch.PostgresProgram); err != nil {
			return err
		}
		postgres, err := scratch.StartPostgres(ctx)
		if err != nil {
			return err
		}
		server.url, server.stop = postgres.URL, postgres.Stop
	}
	model := databaseName() + "_model"
	if err := execute("create database " + identifier(model) + " template template0"); err != nil {
		return fmt.Errorf("create the model database: %w", err)
	}
	server.model = model
	modelURL, err := at(server.url, model)
	if err != nil {
		return err
	}
	_, err = store.MigrateUp(ctx, modelURL)
	return err
}

func shutDown() error {
	server.mu.Lock()
	defer server.mu.Unlock()
	server.allowed = false
	var dropped, stopped error
	if server.model != "" && server.stop == nil { // a server of our own goes away as a whole
		dropped = execute("drop database " + identifier(server.model) + " with (force)")
	}
	if server.stop != nil {
		stopped = server.stop()
	}
	return errors.Join(dropped, stopped)
}

// execute runs one statement on a connection of its own.
func execute(statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, server.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, statement)
	return err
}

func databaseName() string { return "legwork_test_" + strings.ToLower(rand.Text()) }

func identifier(name string) string { return pgx.Identifier{name}.Sanitize() }

// at is the database URL with another database in it.
func at(databaseURL, database string) (string, error) {
	if !strings.Contains(databaseURL, "://") {
		return databaseURL + " dbname=" + database, nil // key=value: the last one counts
	}
	u, err := url.Parse(databaseURL)
	if err != nil {
		return "", errors.New("the database URL for tests does not parse") // what url says would show its password
	}
	u.Path = "/" + database
	return u.String(), nil
}
