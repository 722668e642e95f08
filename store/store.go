// Package store keeps the rows: servers and their catalogues, runs and steps, in Postgres. It knows no HTTP and no queue.
//
// # Claims
//
// Who runs a step, or imports a catalogue, claims it first. A claim has a number, which only ever rises, and a lease, which
// is as long as the operation can take. Only the latest claim settles: everybody else is told [ErrClaimLost]. Leases are
// measured by the clock of Postgres, so the workers' clocks need not agree.
//
// # Text
//
// Text and JSON come from strangers. What Postgres cannot store (NUL, invalid UTF-8, lone surrogates, JSON nested without
// end) is replaced on the way into a row; everything else is kept byte for byte, numbers of any size included.
//
// Every method is safe for concurrent use.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

var (
	// ErrNotFound means that there is no such row.
	ErrNotFound = errors.New("not found")
	// ErrExists means that a row of this name exists already.
	ErrExists = errors.New("exists already")
	// ErrClaimLost means that somebody else has claimed or settled the row since: nothing was written.
	ErrClaimLost = errors.New("the claim was lost")
)

// Options of a store. The zero value works.
type Options struct {
	MaxConns        int32         // connections at most; zero is pgx's default; the database URL's own (pool_max_conns) wins
	PlanOnce        bool          // for a program that repeats a few statements all the time: each is planned once in a connection
	LockTimeout     time.Duration // how long a statement waits for a row that somebody else has locked, see [Locked]; zero: without end
	ApplicationName string        // as Postgres shows it; empty is "legwork"; the database URL's own wins
}

// Store is a pool of connections to one database.
type Store struct {
	pool  *pgxpool.Pool
	steps grouped // what begins and ends them
}

// Open reads the database URL and makes the pool. It does not connect: [Store.Check] tells whether the database can be
// used. The caller closes the store.
func Open(ctx context.Context, databaseURL string, options Options) (*Store, error) {
	return open(ctx, databaseURL, options, nil)
}

func open(ctx context.Context, databaseURL string, options Options, tracer pgx.QueryTracer) (*Store, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("read the database URL: %w", err)
	}
	if options.MaxConns > 0 && !strings.Contains(databaseURL, "pool_max_conns") {
		config.MaxConns = options.MaxConns
	}
	parameters := config.ConnConfig.RuntimeParams
	parameters["application_name"] = cmp.Or(parameters["application_name"], options.ApplicationName, "legwork")
	if options.PlanOnce {
		// Planning a claim takes Postgres about as long as carrying it out, and comes to the same plan each time.
		parameters["plan_cache_mode"] = cmp.Or(parameters["plan_cache_mode"], "force_generic_plan")
	}
	if options.LockTimeout > 0 {
		parameters["lock_timeout"] = cmp.Or(parameters["lock_timeout"], strconv.FormatInt(options.LockTimeout.Milliseconds(), 10))
	}
	config.ConnConfig.Tracer = tracer
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		// Times leave in UTC, so that what is printed does not depend on where it is printed.
		conn.TypeMap().RegisterType(&pgtype.Type{
			Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
		})
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	return &Store{pool: pool, steps: grouped{pool: pool}}, nil
}

// Connections counts the pool's connections to Postgres: those that a statement uses now, and those there may be.
func (s *Store) Connections() (inUse, most int) {
	stat := s.pool.Stat()
	return int(stat.AcquiredConns()), int(stat.MaxConns())
}

// closeTime is what Close may take. A connection that died silently is said goodbye to in vain, for 15 seconds.
const closeTime = 3 * time.Second

// Close closes the connections once their statements are done with them. It does not wait for long.
func (s *Store) Close() {
	closed := make(chan struct{})
	go func() {
		s.pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(closeTime):
	}
}

// Check tells whether the database can be reached and has exactly the schema that this program was built for. The error is
// a sentence for an operator that says what to do.
func (s *Store) Check(ctx context.Context) error {
	version, err := s.schemaVersion(ctx)
	if err != nil {
		return reachError(s.pool.Config().ConnConfig, err)
	}
	switch newest := SchemaVersion(); {
	case version < newest:
		return fmt.Errorf("the schema is at version %d, this legwork needs %d: run \"legwork migrate up\"", version, newest)
	case version > newest:
		return fmt.Errorf("the schema is at version %d, this legwork knows %d: upgrade legwork", version, newest)
	}
	return nil
}

func (s *Store) schemaVersion(ctx context.Context) (int64, error) {
	var version int64
	err := s.pool.QueryRow(ctx, `select coalesce(max(version_id), 0) from `+versionTable).Scan(&version)
	if sqlState(err) == "42P01" { // no such table: never migrated
		return 0, nil
	}
	return version, err
}

// reachError says in the operator's words why Postgres does not answer. What pgx says names the user and repeats itself
// for each address, so only the innermost cause is kept.
func reachError(config *pgx.ConnConfig, err error) error {
	at := address(config.Host, config.Port)
	for _, other := range config.Fallbacks {
		if next := address(other.Host, other.Port); !strings.Contains(at, next) {
			at += ", " + next
		}
	}
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		//lint:ignore ST1005 Postgres is a name
		return fmt.Errorf("Postgres at %s refused: %s (%s)", at, refused.Message, refused.Code)
	}
	//lint:ignore ST1005 Postgres is a name
	return fmt.Errorf("Postgres at %s cannot be reached: %w", at, innermost(err))
}

func address(host string, port uint16) string {
	if strings.HasPrefix(host, "/") {
		return host // a folder with a Unix socket in it
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

func innermost(err error) error {
	var operation *net.OpError
	if errors.As(err, &operation) {
		return operation.Err
	}
	var lookup *net.DNSError
	if errors.As(err, &lookup) {
		return lookup
	}
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return err
}

// sqlState is the SQLSTATE of what Postgres refused, or empty.
func sqlState(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}

// Refused tells whether Postgres found fault with what was to be written, so that writing it again cannot help: data that
// cannot be stored (SQLSTATE classes 22 and 23) or is beyond a limit (54).
func Refused(err error) bool {
	switch state := sqlState(err); {
	case len(state) < 2:
		return false
	default:
		return state[:2] == "22" || state[:2] == "23" || state[:2] == "54"
	}
}

// Locked tells whether a statement was given up because somebody else has held the lock of its row for longer than
// [Options].LockTimeout.
func Locked(err error) bool { return sqlState(err) == "55P03" }

// Unheard tells whether a statement may have been carried out although it failed: it may have been sent, and what became of
// it was not heard. A connection that ends with a word of its own (a server that shuts down, a pooler whose server is gone)
// says nothing about the statement before it.
func Unheard(err error) bool {
	var refused *pgconn.PgError
	switch {
	case errors.As(err, new(takenError)):
		return true
	case errors.As(err, &refused):
		return refused.Severity == "FATAL" || refused.Severity == "PANIC" || strings.HasPrefix(refused.Code, "08") || refused.Code == "40003"
	}
	return err != nil && !pgconn.SafeToRetry(err)
}

// one reads the only row of a query; no row is [ErrNotFound].
func one[T any](rows pgx.Rows, err error, scan pgx.RowToFunc[T]) (T, error) {
	if err != nil {
		var none T
		return none, err
	}
	row, err := pgx.CollectExactlyOneRow(rows, scan)
	if errors.Is(err, pgx.ErrNoRows) {
		return row, ErrNotFound
	}
	return row, err
}
