package store_test

import (
	"context"
	"net/url"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"legwork/store"
	"legwork/store/storetest"
)

func connect(t *testing.T, databaseURL string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func withParameter(t *testing.T, databaseURL, name, value string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set(name, value)
	u.RawQuery = query.Encode()
	return u.String()
}

// relations are the tables and views of the schema, without goose's own.
func relations(b *bench, schema string) []string {
	b.t.Helper()
	return ask[[]string](b, `select coalesce(array_agg(relname::text order by relname), '{}') from pg_class
		where relnamespace = $1::text::regnamespace and relkind in ('r', 'v') and relname <> 'legwork_schema_version'`, schema)
}

var allRelations = []string{"agent_run", "agent_step", "import_error", "mcp_server", "mcp_server_overview", "mcp_tool"}

func TestMigrateUpDownUp(t *testing.T) {
	t.Parallel()
	databaseURL := storetest.Empty(t)
	b := &bench{t: t, hand: connect(t, databaseURL)}

	status, err := store.MigrateStatus(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	if len(status) != int(store.SchemaVersion()) || status[0].AppliedAt != nil {
		t.Errorf("status before: %+v, want %d that are not applied", status, store.SchemaVersion())
	}

	for range 2 {
		applied, err := store.MigrateUp(t.Context(), databaseURL)
		if err != nil {
			t.Fatal(err)
		}
		if len(applied) != int(store.SchemaVersion()) || applied[0].Version != 1 || applied[0].Name != "00001_main_job.sql" {
			t.Errorf("applied %+v, want all from 00001_main_job.sql on", applied)
		}
		diff(t, "relations after up", allRelations, relations(b, "public"))
		if applied, err = store.MigrateUp(t.Context(), databaseURL); err != nil || len(applied) != 0 {
			t.Errorf("up again: %v, %v, want nothing to do", applied, err)
		}
		if status, err = store.MigrateStatus(t.Context(), databaseURL); err != nil || status[0].AppliedAt == nil {
			t.Errorf("status after: %+v, %v, want applied", status, err)
		}
		for range status {
			undone, err := store.MigrateDown(t.Context(), databaseURL)
			if err != nil || undone == nil {
				t.Fatalf("down: %v, %v", undone, err)
			}
		}
		diff(t, "relations after down", []string{}, relations(b, "public"))
		if undone, err := store.MigrateDown(t.Context(), databaseURL); undone != nil || err != nil {
			t.Errorf("down with nothing left: %v, %v, want nil, nil", undone, err)
		}
	}
}

// What the worker's pool is told stands in the same URL.
func TestMigrateWithAURLForAPool(t *testing.T) {
	t.Parallel()
	databaseURL := withParameter(t, storetest.Empty(t), "pool_max_conns", "3")
	if _, err := store.MigrateUp(t.Context(), databaseURL); err != nil {
		t.Error(err)
	}
}

func TestMigrateUpByManyAtOnce(t *testing.T) {
	t.Parallel()
	databaseURL := storetest.Empty(t)
	const processes = 4
	var wg sync.WaitGroup
	applied := make([]int, processes)
	for i := range processes {
		wg.Go(func() {
			migrations, err := store.MigrateUp(t.Context(), databaseURL)
			if err != nil {
				t.Error(err)
			}
			applied[i] = len(migrations)
		})
	}
	wg.Wait()
	total := 0
	for _, n := range applied {
		total += n
	}
	if total != int(store.SchemaVersion()) {
		t.Errorf("applied %v, which is %d in all, want each of %d once", applied, total, store.SchemaVersion())
	}
}

func TestTheSchemaLivesInTheSearchPath(t *testing.T) {
	t.Parallel()
	databaseURL := storetest.Empty(t)
	b := &bench{t: t, hand: connect(t, databaseURL)}
	b.exec(`create schema tenant`)
	databaseURL = withParameter(t, databaseURL, "search_path", "tenant")
	if _, err := store.MigrateUp(t.Context(), databaseURL); err != nil {
		t.Fatal(err)
	}
	diff(t, "relations in the search path", allRelations, relations(b, "tenant"))
	diff(t, "relations beside it", []string{}, relations(b, "public"))
	s, err := store.Open(t.Context(), databaseURL, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.AddServer(t.Context(), store.Server{Identifier: "docs", URL: "https://docs.example"}); err != nil {
		t.Error(err)
	}
}
