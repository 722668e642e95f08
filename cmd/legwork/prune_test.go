package main

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// sql changes rows behind legwork's back.
func (i *installation) sql(statement string, args ...any) {
	i.t.Helper()
	db, err := pgx.Connect(i.t.Context(), i.env["LEGWORK_DATABASE_URL"])
	if err != nil {
		i.t.Fatal(err)
	}
	defer db.Close(i.t.Context())
	if _, err := db.Exec(i.t.Context(), statement, args...); err != nil {
		i.t.Fatal(err)
	}
}

// ended inserts steps that were settled so long ago.
func (i *installation) ended(steps int, ago string) {
	i.t.Helper()
	i.sql(`
		insert into agent_step (id, server, tool, status, created_at, finished_at)
		select gen_random_uuid(), 'docs', 'search', 'succeeded', now() - $2::interval, now() - $2::interval from generate_series(1, $1)`, steps, ago)
}

func TestPrune(t *testing.T) {
	t.Parallel()
	i := installed(t)
	i.run("prune").expect(t, exitUsage, "--older-than DAYS", "LEGWORK_RETENTION_DAYS")
	before := time.Now().UTC().AddDate(0, 0, -30).Format(time.DateOnly)
	if out := i.must("prune", "--older-than", "30"); out != "removed 0 steps, 0 runs and 0 import errors that ended before "+before+"\n" {
		t.Errorf("got %q", out)
	}
	i.ended(1200, "40 days")
	i.ended(2, "20 days")
	i.sql(`insert into agent_run (id, status, created_at, finished_at) values ($1, 'failed', now() - interval '41 days', now() - interval '40 days')`, uuid.New())
	what := "1200 steps, 1 run and 0 import errors that ended before " + before + "\n"
	if out := i.must("prune", "--older-than", "30", "--dry-run"); out != "would remove "+what {
		t.Errorf("got %q", out)
	}
	if out := i.must("prune", "--older-than", "30"); out != "removed "+what {
		t.Errorf("got %q, want %q", out, "removed "+what)
	}
	has(t, i.must("prune", "--older-than", "30"), "removed 0 steps")
	has(t, i.with("LEGWORK_RETENTION_DAYS", "10").must("prune"), "removed 2 steps")
	i.with("LEGWORK_RETENTION_DAYS", "ten").run("prune").expect(t, exitUsage, `LEGWORK_RETENTION_DAYS is "ten"`)
}

// A worker is told of the setting.
func TestAWorkerRemovesWhatIsTooOld(t *testing.T) {
	t.Parallel()
	i := installed(t).with("LEGWORK_RETENTION_DAYS", "30")
	i.ended(7, "40 days")
	i.worker().says(t, "removed 7 steps, 0 runs and 0 import errors that ended before ")
}
