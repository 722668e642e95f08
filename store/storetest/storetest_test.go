package storetest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"legwork/store"
	"legwork/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }

func TestEveryTestHasADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	one, other := storetest.New(t), storetest.New(t)
	if err := one.AddServer(t.Context(), store.Server{Identifier: "docs", URL: "https://docs.example/mcp"}); err != nil {
		t.Fatal(err)
	}
	servers, err := other.Servers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(servers) != 0 {
		t.Errorf("the other test's database has %d servers, want 0", len(servers))
	}
}

func TestNewIsMigratedAndEmptyIsNot(t *testing.T) {
	t.Parallel()
	if err := storetest.New(t).Check(t.Context()); err != nil {
		t.Errorf("New: %v", err)
	}
	empty, err := store.Open(t.Context(), storetest.Empty(t), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	if err := empty.Check(t.Context()); err == nil {
		t.Error("Empty is migrated")
	}
}

func TestADatabaseIsDroppedAfterItsTest(t *testing.T) {
	t.Parallel()
	var gone string
	t.Run("uses a database", func(t *testing.T) {
		gone = storetest.URL(t)
		conn, err := pgx.Connect(t.Context(), gone)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.Background()) })
	})
	conn, err := pgx.Connect(t.Context(), gone)
	if err == nil {
		conn.Close(t.Context())
		t.Error("the database is still there")
	}
}
