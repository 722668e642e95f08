package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"legwork/config"
	"legwork/mcp"
	"legwork/store"
	"legwork/worker"
)

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// What is written down about settings and kinds is about all of them.
func TestDocsAreComplete(t *testing.T) {
	t.Parallel()
	readme, failures, compose := read(t, "../../README.md"), read(t, "../../docs/failures.md"), read(t, "../../docker-compose.yml")
	for _, s := range config.Settings() {
		has(t, readme, "| `"+s.Name+"` |")
		has(t, compose, "\n    "+s.Name+": ")
	}
	for _, kind := range mcp.Kinds() {
		has(t, readme, "`"+string(kind)+"`")
		has(t, failures, "\n| `"+string(kind)+"` |")
	}
}

// What the page on getting in shows can be pasted, from top to bottom.
func TestGettingInCanBePasted(t *testing.T) {
	t.Parallel()
	i := withDatabase(t)
	commands := 0
	for _, block := range regexp.MustCompile("(?s)```\n(.*?)```").FindAllStringSubmatch(read(t, "../../docs/getting-in.md"), -1) {
		for line := range strings.Lines(strings.ReplaceAll(block[1], "\\\n", " ")) {
			words := regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(line, -1)
			if len(words) < 2 || words[0] != "legwork" {
				continue // with variables before it
			}
			for n, word := range words {
				words[n] = strings.Trim(word, `"`)
			}
			commands++
			out := i.run(words[1:]...)
			out.expect(t, exitDone)
			if out.stderr != "" && !strings.HasPrefix(out.stderr, "it is not asked yet: ") {
				t.Errorf("%q finds fault with what is shown:\n%s", words, out.stderr)
			}
		}
	}
	if commands < 10 {
		t.Errorf("%d commands were found", commands)
	}
	s := decode[[]store.Server](t, i.must("server", "list", "--json"))
	if len(s) != 4 {
		t.Errorf("%d servers were added", len(s))
	}
}

var interpolation = regexp.MustCompile(`\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}`)

// interpolate fills in what Compose fills in, from what .env says.
func interpolate(text string, env map[string]string) string {
	return interpolation.ReplaceAllStringFunc(text, func(found string) string {
		parts := interpolation.FindStringSubmatch(found)
		if value := env[parts[1]]; value != "" {
			return value
		}
		return parts[2]
	})
}

// Whatever of .env.example is set alone, the worker starts and Compose understands how long to wait for it.
func TestComposeTakesEachSettingAlone(t *testing.T) {
	t.Parallel()
	compose := read(t, "../../docker-compose.yml")
	for _, row := range []struct {
		name, value string
		want        time.Duration // of the shutdown timeout
	}{
		{"LEGWORK_CONCURRENCY", "8", 35 * time.Second},
		{"LEGWORK_MCP_OPERATION_TIMEOUT", "60", 75 * time.Second},
		{"LEGWORK_SHUTDOWN_TIMEOUT", "1m10s", 70 * time.Second},
		{"LEGWORK_SHUTDOWN_TIMEOUT", "90", 90 * time.Second},
		{"LEGWORK_STOP_GRACE_PERIOD", "1h", 35 * time.Second},
	} {
		text := interpolate(compose, map[string]string{"POSTGRES_PASSWORD": "pw", "REDIS_PASSWORD": "pw", row.name: row.value})
		env := map[string]string{}
		for _, pair := range regexp.MustCompile(`(?m)^    (LEGWORK_\w+): ?(.*)$`).FindAllStringSubmatch(text, -1) {
			env[pair[1]] = pair[2]
		}
		cfg, err := config.Load(func(name string) (string, bool) {
			value, set := env[name]
			return value, set
		})
		if err != nil || len(cfg.Warnings) > 0 {
			t.Errorf("%s=%s: %v, warnings %q", row.name, row.value, err, cfg.Warnings)
		} else if cfg.ShutdownTimeout != row.want {
			t.Errorf("%s=%s: the shutdown timeout is %s, want %s", row.name, row.value, cfg.ShutdownTimeout, row.want)
		}
		periods := regexp.MustCompile(`stop_grace_period: (.*)`).FindAllStringSubmatch(text, -1)
		if len(periods) == 0 {
			t.Error("Compose is not told how long to wait")
		}
		for _, period := range periods {
			if _, err := time.ParseDuration(strings.TrimSpace(period[1])); err != nil {
				t.Errorf("%s=%s: %v", row.name, row.value, err)
			}
		}
	}
}

// The default stands in the settings, for people, and in the worker, for programs that have one of their own.
func TestDefaultConcurrencyIsOne(t *testing.T) {
	cfg, err := config.Load(func(name string) (string, bool) {
		switch name {
		case "LEGWORK_DATABASE_URL":
			return "postgres://localhost/legwork", true
		case "LEGWORK_REDIS_URL":
			return "redis://localhost", true
		}
		return "", false
	})
	if err != nil || cfg.Concurrency != worker.DefaultConcurrency {
		t.Errorf("%v: the settings say %d, the worker %d", err, cfg.Concurrency, worker.DefaultConcurrency)
	}
}
