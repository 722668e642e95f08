package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"legwork/migrations"
)

const versionTable = "legwork_schema_version"

// migrationLock is the key of the advisory lock that one migration at a time holds: "legwork" in ASCII.
const migrationLock = 0x6c6567776f726b

// Migration is one version of the schema.
type Migration struct {
	Version   int64      `json:"version"`
	Name      string     `json:"name"`                 // of its file
	AppliedAt *time.Time `json:"applied_at,omitempty"` // nil while it is not applied
}

// SchemaVersion is the version of the schema that this program was built for.
func SchemaVersion() int64 {
	files, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil || len(files) == 0 {
		panic("no migrations are embedded")
	}
	newest, err := goose.NumericComponent(files[len(files)-1]) // Glob sorts by name, and names begin with the padded number
	if err != nil {
		panic(err)
	}
	return newest
}

// MigrateUp applies every migration that is missing, each in a transaction, and returns those that it applied, oldest
// first. Several processes may do so at once: one of them works, the others wait and find nothing to do.
func MigrateUp(ctx context.Context, databaseURL string) ([]Migration, error) {
	var applied []Migration
	err := withGoose(ctx, databaseURL, func(provider *goose.Provider) error {
		results, err := provider.Up(ctx)
		for _, result := range results {
			applied = append(applied, migration(result.Source))
		}
		return err
	})
	if err != nil {
		return applied, fmt.Errorf("migrate up: %w", err)
	}
	return applied, nil
}

// MigrateDown takes the newest migration back, with the rows it holds, and returns it; nil when there is none left.
func MigrateDown(ctx context.Context, databaseURL string) (*Migration, error) {
	var undone *Migration
	err := withGoose(ctx, databaseURL, func(provider *goose.Provider) error {
		result, err := provider.Down(ctx)
		if errors.Is(err, goose.ErrNoNextVersion) {
			return nil
		}
		if err != nil {
			return err
		}
		m := migration(result.Source)
		undone = &m
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("migrate down: %w", err)
	}
	return undone, nil
}

// MigrateStatus returns every migration that this program knows, oldest first.
func MigrateStatus(ctx context.Context, databaseURL string) ([]Migration, error) {
	var all []Migration
	err := withGoose(ctx, databaseURL, func(provider *goose.Provider) error {
		states, err := provider.Status(ctx)
		for _, state := range states {
			m := migration(state.Source)
			if state.State == goose.StateApplied {
				at := state.AppliedAt.UTC()
				m.AppliedAt = &at
			}
			all = append(all, m)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("migration status: %w", err)
	}
	return all, nil
}

func migration(source *goose.Source) Migration {
	return Migration{Version: source.Version, Name: source.Path}
}

// withGoose lends a provider on a connection of its own: goose speaks database/sql only.
func withGoose(ctx context.Context, databaseURL string, use func(*goose.Provider) error) error {
	pool, err := pgxpool.ParseConfig(databaseURL) // which knows what is meant for a pool; one connection is used here
	if err != nil {
		return fmt.Errorf("read the database URL: %w", err)
	}
	config := pool.ConnConfig
	// goose keeps its times as timestamps without a zone, by the session's clock.
	config.RuntimeParams["timezone"] = "UTC"
	db := stdlib.OpenDB(*config)
	defer db.Close()
	if err := reach(ctx, db, config); err != nil {
		return err
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(migrationLock), lock.WithLockTimeout(1, 300))
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations.FS,
		goose.WithTableName(versionTable), goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	return use(provider)
}

// reachTime bounds how long a Postgres may take to accept a connection. The migrations themselves take what they take.
const reachTime = 10 * time.Second

func reach(ctx context.Context, db *sql.DB, config *pgx.ConnConfig) error {
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	if err := db.PingContext(ctx); err != nil {
		return reachError(config, err)
	}
	return nil
}
