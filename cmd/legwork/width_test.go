package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"legwork/mcp"
	"legwork/store"
)

// fits checks that no line is longer than so many columns.
func fits(t *testing.T, what, text string, limit int) {
	t.Helper()
	if text == "" {
		t.Errorf("%s prints nothing", what)
	}
	for line := range strings.Lines(text) {
		if line = strings.TrimSuffix(line, "\n"); displayWidth(line) > limit {
			t.Errorf("%s: a line has %d columns, want at most %d: %s", what, displayWidth(line), limit, line)
		}
	}
}

func TestListsKeepToTheWidth(t *testing.T) {
	t.Parallel()
	i := withDatabase(t)
	fill(t, i)
	for _, columns := range []int{60, 80, 120} {
		narrow := i.with("COLUMNS", fmt.Sprint(columns))
		for _, line := range []string{"server list", "tool list", "step list", "run list", "import-error list", "migrate status"} {
			fits(t, line, narrow.must(strings.Fields(line)...), columns)
		}
	}
}

// fill writes rows whose every cell is as long as it may well get.
func fill(t *testing.T, i *installation) {
	t.Helper()
	db, err := pgx.Connect(t.Context(), i.env["LEGWORK_DATABASE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(t.Context())
	const server = "a_server_with_a_name_of_32_chars"
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := db.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(`insert into mcp_server (identifier, name, url, enabled, import_status, tool_count, last_contact_at, last_latency_ms)
		values ($1, '', 'https://a-host-with-a-long-name.example.com/a/path/that/goes/on/mcp', true, 'never_imported', 500, now(), 19900)`, server)
	exec(`insert into mcp_tool (name, server, remote_name, description, orphaned_at, not_offered, not_callable)
		values ($1, $2, 'search', 'finds whatever there is to be found in all of the pages', now(), 'why', 'why')`, "mcp_"+strings.Repeat("x", 60), server)
	exec(`insert into agent_run (id) values ($1)`, uuid.New())
	exec(`insert into agent_run (id, status, cancelled_by, finished_at) values ($1, 'cancelled', 'somebody with a long name', now())`, uuid.New())
	for _, kind := range mcp.Kinds() {
		exec(`insert into agent_step (id, server, tool, status, failure_kind, failure_message, asked, finished_at, budget_ms, legs)
			values ($1, $2, 'a_tool_with_a_long_name', 'failed', $3, 'why', 'unknown', now(), 20000,
				'[{"method":"initialize","granted_ms":20000,"elapsed_ms":19900,"outcome":"ok"}]')`, uuid.New(), server, string(kind))
		exec(`insert into import_error (server, kind, tool, message, asked) values ($1, $2, 'a_tool_with_a_long_name', $3, 'unknown')`,
			server, string(kind), strings.Repeat("a sentence ", 20))
	}
	exec(`insert into agent_step (id, server, tool, status) values ($1, $2, 'search', 'awaiting_approval')`, uuid.New(), server)
}

func TestAccountsKeepToTheWidth(t *testing.T) {
	t.Parallel()
	for _, columns := range []int{60, 80} {
		var out bytes.Buffer
		a := &app{stdout: &out, stderr: new(bytes.Buffer), lookupEnv: func(string) (string, bool) { return fmt.Sprint(columns), true }}
		for _, kind := range mcp.Kinds() {
			a.legs([]mcp.Leg{{
				Method: "notifications/initialized", Granted: 20 * time.Second, Elapsed: 19900 * time.Millisecond, Outcome: string(kind), Status: 200,
			}}, mcp.AskedYes)
		}
		fits(t, "the legs", out.String(), columns)
		out.Reset()

		const server = "a_server_with_a_name_of_32_chars"
		all := []*importing{
			{Server: server, TaskID: uuid.NewString(), Status: "succeeded", Report: &store.ImportReport{Imported: 500, Unchanged: 500}},
			{Server: server, TaskID: uuid.NewString(), Status: "failed", Kind: string(mcp.KindUnsupportedContentType)},
		}
		if err := a.importsEnqueued(all, importOptions{all: true}); err != nil {
			t.Fatal(err)
		}
		if err := a.imported(all, false); err == nil {
			t.Error("an import failed and nothing says so")
		}
		fits(t, "imports", out.String(), columns)
	}
}

func TestHelpKeepsToTheWidth(t *testing.T) {
	t.Parallel()
	i := outside(t)
	var walk func(*cobra.Command, func([]string))
	walk = func(cmd *cobra.Command, visit func([]string)) {
		visit(strings.Fields(cmd.CommandPath())[1:])
		for _, c := range cmd.Commands() {
			walk(c, visit)
		}
	}
	for columns, limit := range map[int]int{60: 60, 80: 80, 200: helpWidth} {
		walk(newRootCommand(&app{}), func(path []string) {
			help := i.with("COLUMNS", fmt.Sprint(columns)).must(append([]string{"help"}, path...)...)
			fits(t, "help "+strings.Join(path, " "), help, limit)
		})
	}
}

// Nothing is known of what a step sent whose worker died.
func TestNoLegs(t *testing.T) {
	t.Parallel()
	for asked, want := range map[mcp.Asked]string{
		mcp.AskedNo:      "No request was sent.\n",
		mcp.AskedUnknown: "What was sent is not known: the worker ended before it could say.\n",
	} {
		var out bytes.Buffer
		(&app{stdout: &out}).legs(nil, asked)
		if out.String() != want {
			t.Errorf("asked %s: got %q, want %q", asked, out.String(), want)
		}
	}
}

func TestLease(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 2, 9, 0, 0, 0, time.UTC)
	later, before := now.Add(35*time.Second), now.Add(-time.Minute)
	for _, row := range []struct {
		end  *time.Time
		want string
	}{
		{nil, ""},
		{&later, "until 2026-12-02T09:00:35Z (for 35 s)"},
		{&before, "over since 2026-12-02T08:59:00Z (1m ago): another worker may take or settle it"},
	} {
		if got := lease(row.end, now); got != row.want {
			t.Errorf("got %q, want %q", got, row.want)
		}
	}
}
