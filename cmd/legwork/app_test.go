package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"legwork/config"
	"legwork/internal/scratch/redistest"
	"legwork/mcp"
	"legwork/store/storetest"
	"legwork/worker"
)

func TestWrongUsage(t *testing.T) {
	t.Parallel()
	i := outside(t)
	for line, says := range map[string]string{
		"":                                   "Available Commands",
		"server":                             "ping",
		"sevrer":                             `did you mean "legwork server"?`,
		"server lst":                         `did you mean "legwork server list"?`,
		"quux":                               `"quux" is no command of "legwork"`,
		"help quux":                          `"quux" is no command of "legwork"`,
		"help server lst":                    `did you mean "legwork server list"?`,
		"worker now":                         `"legwork worker"`,
		"worker --quietly":                   "unknown flag: --quietly",
		"call docs":                          `1 argument was given; the usage is "legwork call SERVER TOOL"`,
		"step show":                          `0 arguments were given; the usage is "legwork step show STEP"`,
		"call docs search --wait-timeout 5":  "missing unit",
		"import":                             "give one server, or --all",
		"import docs --all":                  "not both",
		"migrate down":                       "--yes",
		"step show first":                    "is no UUID",
		"step list --status done":            "awaiting_approval",
		"step list --run first":              "is no UUID",
		"step list --limit 0":                "--limit is 0",
		"import-error list --limit -1":       "--limit is -1",
		"run cancel it":                      "is no UUID",
		"run list --limit 0":                 "--limit is 0",
		"prune --older-than 0":               "--older-than is 0: it must be a number of days from 1 to 36500",
		"prune --older-than 40000":           "--older-than is 40000",
		"prune --older-than 30d":             "--older-than",
		"tool set-effect t harmless":         "read_only, idempotent_write, non_idempotent_write",
		"tool enable":                        `"legwork tool enable TOOL..."`,
		"server set docs":                    "nothing to change",
		"server add Docs https://h":          "a-z, 0-9 and _",
		"server add docs ftp://h":            "http or https",
		"server add docs https://u:p@h":      "configure a credential instead",
		"server add docs https://h --auth x": "none, bearer or header",
		"server add docs https://h --credential hunter2":                             "never the value itself",
		"server add docs https://h --auth bearer":                                    "env:NAME or file:/path",
		"server add docs https://h --auth none --credential env:A":                   "choose bearer or header",
		"server add docs https://h --auth bearer --credential env:A --auth-header X": "belongs to --auth header",
		"server add docs https://h --credential env:A --auth-header Host":            "uses it itself",
		"server add docs https://h --credential file:token":                          "absolute path: write file:/path",
		"server add docs https://h --timeout -1":                                     "--timeout is -1",
	} {
		out := i.run(strings.Fields(line)...)
		if out.code != exitUsage || !strings.Contains(out.stderr, says) || out.stdout != "" {
			t.Errorf("legwork %s: exit code %d, want %d, and %q in:\n%s%s", line, out.code, exitUsage, says, out.stderr, out.stdout)
		}
		if strings.Contains(out.stderr, "hunter2") {
			t.Errorf("legwork %s: the secret is shown:\n%s", line, out.stderr)
		}
	}
}

func TestBadSettings(t *testing.T) {
	t.Parallel()
	i := outside(t).with("LEGWORK_CONCURRENCY", "many").with("LEGWORK_REDIS_URL", "redis://:hunter2@h:x").
		with("LEGWORK_SHUTDOWN_TIMEOUT", "5").with("LEGWORK_MCP_OPERATION_TIMEOUT", "soon")
	for _, line := range []string{"worker", "health", "migrate up", "server list", "call docs search"} {
		out := i.run(strings.Fields(line)...)
		out.expect(t, exitUsage, "LEGWORK_DATABASE_URL is not set", "LEGWORK_CONCURRENCY", `"many"`, "LEGWORK_REDIS_URL", "legwork help settings",
			"LEGWORK_SHUTDOWN_TIMEOUT is 5 s", "to 30 or more", `warning: LEGWORK_MCP_OPERATION_TIMEOUT is "soon"`, "20 s are used")
		if strings.Contains(out.stderr, "hunter2") {
			t.Errorf("the password is shown:\n%s", out.stderr)
		}
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	i := outside(t)
	for _, s := range config.Settings() {
		has(t, i.must("help", "settings"), s.Name)
	}
	has(t, i.must("--help"), "worker", "health", "doctor", "prune", "migrate", "server", "import", "import-error", "tool", "call", "step", "run", "demo", "version", "settings")
	has(t, i.must("server", "add", "--help"), "legwork server add IDENTIFIER URL", "--data-class", "https://docs.example.com/mcp")
	has(t, i.must("version"), "legwork ", "go1.")
	has(t, i.must("version", "--json"), `"version"`)
}

func TestWarningsAreShown(t *testing.T) {
	t.Parallel()
	i := withDatabase(t).with("LEGWORK_MCP_OPERATION_TIMEOUT", "soon")
	i.run("server", "list").expect(t, exitDone, "warning: LEGWORK_MCP_OPERATION_TIMEOUT", `"soon"`)
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	i := outside(t).with("LEGWORK_DATABASE_URL", storetest.Empty(t))
	i.run("server", "list").expect(t, exitFailed, `run "legwork migrate up"`)
	i.run("migrate", "status").expect(t, exitDone, `"legwork migrate up"`)
	has(t, i.must("migrate", "status"), "not applied")
	has(t, i.must("migrate", "up"), "applied 00001")
	has(t, i.must("migrate", "up"), "already")
	i.run("server", "list").expect(t, exitDone, "no servers yet")
	if status := i.must("migrate", "status"); strings.Contains(status, "not applied") {
		t.Errorf("got:\n%s", status)
	}
	has(t, i.must("migrate", "status", "--json"), `"applied_at": "2`)
	i.run("migrate", "down").expect(t, exitUsage, "--yes")
	has(t, i.must("migrate", "down", "--yes"), "took back")
	i.run("server", "list").expect(t, exitFailed, `run "legwork migrate up"`)
}

const nobody = "postgres://legwork:hunter2@127.0.0.1:1/legwork?sslmode=disable"

func TestPartsThatAreAway(t *testing.T) {
	t.Parallel()
	noPostgres := outside(t).with("LEGWORK_DATABASE_URL", nobody)
	for _, line := range []string{"server list", "migrate up", "call docs search", "health"} {
		out := noPostgres.with("LEGWORK_REDIS_URL", "redis://127.0.0.1:1").run(strings.Fields(line)...)
		out.expect(t, exitFailed, "Postgres at 127.0.0.1:1 cannot be reached")
		if strings.Contains(out.stderr, "hunter2") {
			t.Errorf("the password is shown:\n%s", out.stderr)
		}
	}
	neither := noPostgres.with("LEGWORK_REDIS_URL", "redis://:hunter2@127.0.0.1:1")
	for _, line := range []string{"worker", "health"} {
		out := neither.run(line)
		out.expect(t, exitFailed, "Postgres at 127.0.0.1:1 cannot be reached", "cannot reach Redis", "LEGWORK_REDIS_URL")
		if strings.Contains(out.stderr, "hunter2") {
			t.Errorf("the password is shown:\n%s", out.stderr)
		}
	}
	noRedis := withDatabase(t).with("LEGWORK_REDIS_URL", "redis://127.0.0.1:1")
	noRedis.add("docs", "https://docs.example/mcp")
	noRedis.run("call", "docs", "search").expect(t, exitFailed, "cannot reach Redis")
	noRedis.run("import", "docs").expect(t, exitFailed, "cannot reach Redis")
	out := noRedis.run("health", "--json")
	out.expect(t, exitFailed, "cannot reach Redis")
	if got := decode[map[string]string](t, out.stdout); got["postgres"] != "ok" || got["redis"] == "ok" {
		t.Errorf("got %v", got)
	}
}

func TestHealthAndWorker(t *testing.T) {
	t.Parallel()
	i := installed(t)
	has(t, i.must("health"), "Postgres  ok", "Redis     ok")

	json := i.with("LEGWORK_LOG_FORMAT", "json").with("LEGWORK_MCP_OPERATION_TIMEOUT", "0.5").worker()
	json.interrupt()
	if code := json.end(t); code != exitDone {
		t.Errorf("a worker that was told to stop exits with %d:\n%s", code, json.stderr.String())
	}
	has(t, json.stderr.String(), `"level":"warning"`, "LEGWORK_MCP_OPERATION_TIMEOUT", `"msg":"the worker has stopped`)
}

// The settings repeat numbers and rules of rooms that they may not know.
func TestSettingsAgreeWithTheRooms(t *testing.T) {
	t.Parallel()
	load := func(env map[string]string) (config.Config, error) {
		return config.Load(func(name string) (string, bool) {
			if name == "LEGWORK_DATABASE_URL" {
				return nobody, true
			}
			value, set := env[name]
			return value, set
		})
	}
	defaults, err := load(nil)
	if err != nil {
		t.Fatal(err)
	}
	if defaults.OperationTimeout != mcp.DefaultBudget {
		t.Errorf("the default budget is %s here and %s there", defaults.OperationTimeout, mcp.DefaultBudget)
	}
	least, err := load(map[string]string{"LEGWORK_MCP_OPERATION_TIMEOUT": "0.001"})
	if err != nil || least.OperationTimeout != mcp.MinimumLeg {
		t.Errorf("the least budget is %s here and %s there (%v)", least.OperationTimeout, mcp.MinimumLeg, err)
	}
	enough := mcp.DefaultBudget + worker.SettleTime
	if _, err := load(map[string]string{"LEGWORK_SHUTDOWN_TIMEOUT": enough.String()}); err != nil {
		t.Errorf("budget and settle time are not enough to shut down: %v", err)
	}
	if _, err := load(map[string]string{"LEGWORK_SHUTDOWN_TIMEOUT": (enough - time.Second).String()}); err == nil {
		t.Error("less than budget and settle time is enough to shut down")
	}
	for _, entry := range []string{
		"docs.example", "docs", "*.corp.example", "10.0.0.0/8", "10.1.2.3", "::1", "[::1]", "fc00::/7", "docs.example.", "DOCS.example",
		"*", "*.", "*.*", "a*b", "docs.example:443", "https://docs.example", "docs.example/mcp", "a b", "10.0.0.0/99", "u@h", ".",
	} {
		_, ours := load(map[string]string{"LEGWORK_ALLOWED_HOSTS": entry})
		_, theirs := mcp.NewGate(mcp.GateOptions{AllowedHosts: []string{entry}})
		if (ours == nil) != (theirs == nil) {
			t.Errorf("allowed host %q: the settings say %v, the gate says %v", entry, ours, theirs)
		}
	}
}

func TestRedisForms(t *testing.T) {
	t.Parallel()
	i := withDatabase(t)
	url := redistest.New(t)
	// The same server by way of a user name, which an ACL may ask for.
	named := strings.Replace(url, "redis://:", "redis://default:", 1)
	for _, url := range slices.Compact([]string{url, named}) {
		i.with("LEGWORK_REDIS_URL", url).run("health").expect(t, exitDone)
	}
	i.with("LEGWORK_REDIS_URL", fmt.Sprintf("redis-socket://%s/redis.sock", t.TempDir())).run("health").
		expect(t, exitFailed, "cannot reach Redis")
}
