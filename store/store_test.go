package store_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

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

func TestTheDatabaseURLWins(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		option          store.Options
		setting         string
		unset, set, own string // without the option, with it, and where the URL has its own
	}{
		"PlanOnce":    {store.Options{PlanOnce: true}, "plan_cache_mode", "auto", "force_generic_plan", "force_custom_plan"},
		"LockTimeout": {store.Options{LockTimeout: 2 * time.Second}, "lock_timeout", "0", "2s", "7s"},
	} {
		databaseURL := storetest.URL(t)
		for _, row := range []struct {
			databaseURL string
			options     store.Options
			want        string
		}{
			{databaseURL, store.Options{}, test.unset},
			{databaseURL, test.option, test.set},
			{withParameter(t, databaseURL, test.setting, test.own), test.option, test.own},
		} {
			s, err := store.Open(t.Context(), row.databaseURL, row.options)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := s.Setting(t.Context(), test.setting); err != nil || got != row.want {
				t.Errorf("%s: %s is %q (%v), want %q", name, test.setting, got, err, row.want)
			}
			s.Close()
		}
	}
	for databaseURL, want := range map[string]int{
		storetest.URL(t): 12,
		withParameter(t, storetest.URL(t), "pool_max_conns", "3"): 3,
	} {
		s, err := store.Open(t.Context(), databaseURL, store.Options{MaxConns: 12})
		if err != nil {
			t.Fatal(err)
		}
		if _, most := s.Connections(); most != want {
			t.Errorf("%d connections at most, want %d", most, want)
		}
		s.Close()
	}
}

func TestARowThatSomebodyHasLocked(t *testing.T) {
	b := newBench(t)
	r := request("docs", "search")
	claim := b.claim(r)
	s, err := store.Open(t.Context(), b.hand.Config().ConnString(), store.Options{LockTimeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	unlock := b.lock(r.ID)
	if _, err := s.ClaimStep(t.Context(), r); !store.Locked(err) || store.Refused(err) {
		t.Errorf("the claim failed with %v, want it to say that the row is locked", err)
	}
	if _, err := s.SettleStep(t.Context(), claim.Step, succeeded); !store.Locked(err) || store.Refused(err) {
		t.Errorf("the settling failed with %v, want it to say that the row is locked", err)
	}
	unlock()
	if _, err := s.SettleStep(t.Context(), claim.Step, succeeded); err != nil {
		t.Error(err)
	}
}

func TestUnheard(t *testing.T) {
	b := newBench(t)
	b.addServer("docs")
	ended := connect(t, b.hand.Config().ConnString())
	_, terminated := ended.Exec(t.Context(), `select pg_terminate_backend(pg_backend_pid())`)
	_, afterwards := ended.Exec(t.Context(), `select 1`)
	late, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, slow := connect(t, b.hand.Config().ConnString()).Exec(late, `select pg_sleep(60)`)
	_, refused := b.hand.Exec(t.Context(), `insert into mcp_server (identifier, name, url) values ('docs', 'docs', 'x')`)
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"none":                               {nil, false},
		"a connection that was ended":        {terminated, true},
		"one that was not there any more":    {afterwards, false},
		"no reply in time":                   {slow, true},
		"what Postgres has found fault with": {refused, false},
	} {
		if name != "none" && test.err == nil {
			t.Errorf("%s is no error: nothing was tried", name)
		}
		if got := store.Unheard(test.err); got != test.want {
			t.Errorf("%s (%v): unheard %v, want %v", name, test.err, got, test.want)
		}
	}
}
