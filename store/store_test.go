package store_test

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"

	"legwork/store"
	"legwork/store/storetest"
)

func TestCheck(t *testing.T) {
	b := newBench(t)
	if err := b.Check(t.Context()); err != nil {
		t.Errorf("a migrated database: %v", err)
	}
	b.exec(`insert into legwork_schema_version (version_id, is_applied) values (9999, true)`)
	want := fmt.Sprintf("the schema is at version 9999, this legwork knows %d: upgrade legwork", store.SchemaVersion())
	if err := b.Check(t.Context()); err == nil || err.Error() != want {
		t.Errorf("a newer schema: %v, want %s", err, want)
	}
	b.exec(`delete from legwork_schema_version where version_id > 0`)
	want = fmt.Sprintf(`the schema is at version 0, this legwork needs %d: run "legwork migrate up"`, store.SchemaVersion())
	if err := b.Check(t.Context()); err == nil || err.Error() != want {
		t.Errorf("an older schema: %v, want %s", err, want)
	}
	b.exec(`drop table legwork_schema_version`)
	if err := b.Check(t.Context()); err == nil || err.Error() != want {
		t.Errorf("no schema at all: %v, want %s", err, want)
	}
}

func TestCheckSaysWhyPostgresDoesNotAnswer(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	deaf := listener.Addr().String()
	listener.Close()
	real, err := url.Parse(storetest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	lacking := *real
	lacking.Path = "/nowhere"
	for name, test := range map[string]struct{ databaseURL, want string }{
		"nothing listens":           {"postgres://legwork:hunter2@" + deaf + "/legwork", "Postgres at " + deaf + " cannot be reached: "},
		"the host does not exist":   {"postgres://legwork:hunter2@no.such.host.invalid:5432/legwork", "Postgres at no.such.host.invalid:5432 cannot be reached: "},
		"the database is not there": {lacking.String(), "Postgres at " + real.Host + ` refused: database "nowhere" does not exist (3D000)`},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := store.Open(t.Context(), test.databaseURL, store.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			err = s.Check(t.Context())
			if err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Fatalf("error %v, want %s…", err, test.want)
			}
			if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "\n") {
				t.Errorf("the sentence shows too much: %v", err)
			}
			if _, err := store.MigrateUp(t.Context(), test.databaseURL); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("MigrateUp: error %v, want %s…", err, test.want)
			}
		})
	}
}

func TestOpenNeverShowsThePassword(t *testing.T) {
	t.Parallel()
	for _, databaseURL := range []string{
		"postgres://legwork:hunter2@localhost:notaport/legwork",
		"postgres://legwork:hunter2@localhost/legwork?sslmode=perhaps",
		"postgres://legwork:hunter2@loc alhost/%zz",
		"host=localhost password=hunter2 port=none",
	} {
		_, err := store.Open(t.Context(), databaseURL, store.Options{})
		if err == nil {
			t.Errorf("%s was accepted", databaseURL)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func TestOpenNamesItself(t *testing.T) {
	t.Parallel()
	databaseURL := storetest.URL(t)
	for _, test := range []struct{ databaseURL, option, want string }{
		{databaseURL, "", "legwork"},
		{databaseURL, "legwork worker", "legwork worker"},
		{withParameter(t, databaseURL, "application_name", "mine"), "legwork worker", "mine"},
	} {
		s, err := store.Open(t.Context(), test.databaseURL, store.Options{ApplicationName: test.option, MaxConns: 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Check(t.Context()); err != nil { // leaves its connection in the pool
			t.Fatal(err)
		}
		b := &bench{t: t, hand: connect(t, databaseURL)}
		got := ask[string](b, `select application_name from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend' and state = 'idle'
			order by backend_start desc limit 1`)
		if got != test.want {
			t.Errorf("application name %q, want %q", got, test.want)
		}
		s.Close()
	}
}

func TestPlanOnce(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		databaseURL string
		once        bool
		want        string
	}{
		{storetest.URL(t), false, "auto"},
		{storetest.URL(t), true, "force_generic_plan"},
		{withParameter(t, storetest.URL(t), "plan_cache_mode", "force_custom_plan"), true, "force_custom_plan"},
	} {
		s, err := store.Open(t.Context(), test.databaseURL, store.Options{PlanOnce: test.once, MaxConns: 1})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.Setting(t.Context(), "plan_cache_mode"); err != nil || got != test.want {
			t.Errorf("plan_cache_mode is %q (%v), want %q", got, err, test.want)
		}
		s.Close()
	}
}
