package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"legwork/worker"
)

type diagnosis struct {
	Healthy bool
	worker.Report
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	i := installed(t)
	has(t, i.must("doctor"), "Nothing is wrong.\n")
	if got := decode[diagnosis](t, i.must("doctor", "--json")); !got.Healthy || got.Findings == nil || got.Advice == nil {
		t.Errorf("got %+v", got)
	}
	i.add("docs", "https://docs.example/mcp")
	for n := range 23 {
		i.sql(`insert into agent_step (id, server, tool, created_at) values ($1, 'docs', 'search', now() - $2::interval)`,
			uuid.New(), fmt.Sprintf("%d hours", n+1))
	}

	out := i.run("doctor")
	out.expect(t, exitFailed, "legwork doctor --repair")
	has(t, out.stdout, "23 steps have waited for more than a minute and have no tasks in Redis.", "A repair gives each a task", "\n    … and 3 more\n")
	if ids := strings.Count(out.stdout, "\n    "); ids != 21 {
		t.Errorf("%d rows are named:\n%s", ids, out.stdout)
	}
	if strings.Contains(out.stdout, "Repaired") {
		t.Errorf("a repair is told that was not asked for:\n%s", out.stdout)
	}
	for _, columns := range []int{60, 80} {
		fits(t, "doctor", i.with("COLUMNS", fmt.Sprint(columns)).run("doctor").stdout, columns)
	}
	out = i.run("doctor", "--json")
	out.expect(t, exitFailed)
	got := decode[diagnosis](t, out.stdout)
	if got.Healthy || len(got.Findings) != 1 || got.Findings[0].Kind != "step_without_task" || got.Findings[0].Count != 23 || len(got.Findings[0].Rows) != 20 {
		t.Errorf("got %+v", got)
	}

	has(t, i.must("doctor", "--repair"), "  Repaired: 23 of 23.\n")
	has(t, i.must("doctor"), "Nothing is wrong.\n")
}

// What a repair leaves is still wrong.
func TestDoctorRepairsNotAll(t *testing.T) {
	t.Parallel()
	i := installed(t)
	i.sql(`insert into agent_run (id, created_at) values ($1, now() - interval '2 days')`, uuid.New())
	for range 2 {
		out := i.run("doctor", "--repair")
		out.expect(t, exitFailed)
		has(t, strings.Join(strings.Fields(out.stdout), " "), "1 run has not been ended", "legwork run cancel RUN", "Repaired: 0 of 1.")
	}
}

func TestDoctorWithoutParts(t *testing.T) {
	t.Parallel()
	outside(t).with("LEGWORK_DATABASE_URL", nobody).run("doctor").expect(t, exitFailed, "Postgres at 127.0.0.1:1 cannot be reached")
	out := withDatabase(t).with("LEGWORK_REDIS_URL", "redis://:hunter2@127.0.0.1:1").run("doctor", "--json")
	out.expect(t, exitFailed, "cannot reach Redis", "LEGWORK_REDIS_URL")
	if strings.Contains(out.stderr, "hunter2") || out.stdout != "" {
		t.Errorf("got:\n%s%s", out.stdout, out.stderr)
	}
}
