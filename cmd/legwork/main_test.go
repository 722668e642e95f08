package main

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"legwork/internal/proctest"
	"legwork/internal/scratch/redistest"
	"legwork/mcp/mcptest"
	"legwork/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }

// patienceOfTests is how long a test waits for what should happen soon. It is never waited out when all is well.
const patienceOfTests = 60 * time.Second

// installation is an environment in which command lines are run.
type installation struct {
	t   testing.TB
	env map[string]string
}

// outside is an installation without any service.
func outside(t testing.TB) *installation {
	t.Helper()
	return &installation{t: t, env: map[string]string{"USER": "ada", "COLUMNS": "100"}}
}

// withDatabase is an installation with a migrated database of its own, and no Redis.
func withDatabase(t testing.TB) *installation {
	t.Helper()
	i := outside(t)
	i.env["LEGWORK_DATABASE_URL"] = storetest.URL(t)
	i.env["LEGWORK_ALLOW_PRIVATE_NETWORKS"] = "true"
	return i
}

// installed is an installation with a database and a Redis.
func installed(t testing.TB) *installation {
	t.Helper()
	i := withDatabase(t)
	i.env["LEGWORK_REDIS_URL"] = redistest.New(t)
	return i
}

// with is the installation with one setting changed.
func (i *installation) with(name, value string) *installation {
	env := maps.Clone(i.env)
	env[name] = value
	return &installation{t: i.t, env: env}
}

func (i *installation) lookup(name string) (string, bool) {
	value, set := i.env[name]
	return value, set
}

// output is what a command line left.
type output struct {
	args           []string
	code           int
	stdout, stderr string
}

// run carries out one command line.
func (i *installation) run(args ...string) output { return i.runWith("", args...) }

func (i *installation) runWith(stdin string, args ...string) output {
	i.t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(i.t.Context(), args, strings.NewReader(stdin), &stdout, &stderr, i.lookup)
	return output{args, code, stdout.String(), stderr.String()}
}

// must carries out a command line that has to succeed and returns its stdout.
func (i *installation) must(args ...string) string {
	i.t.Helper()
	out := i.run(args...)
	if out.code != exitDone {
		i.t.Fatalf("legwork %s: exit code %d\n%s", strings.Join(args, " "), out.code, out.stderr)
	}
	return out.stdout
}

// expect checks the exit code, and that stderr says each of the parts.
func (o output) expect(t testing.TB, code int, says ...string) {
	t.Helper()
	if o.code != code {
		t.Errorf("legwork %s: exit code %d, want %d\n%s%s", strings.Join(o.args, " "), o.code, code, o.stdout, o.stderr)
	}
	for _, part := range says {
		if !strings.Contains(o.stderr, part) {
			t.Errorf("legwork %s: stderr does not say %q:\n%s", strings.Join(o.args, " "), part, o.stderr)
		}
	}
}

// background is a command line that runs beside the test.
type background struct {
	stdout, stderr proctest.Buffer
	interrupt      context.CancelFunc // Ctrl-C
	done           chan struct{}
	code           int // once done is closed
}

// start runs a command line beside the test. It is interrupted and waited for when the test ends.
func (i *installation) start(args ...string) *background {
	i.t.Helper()
	b := &background{done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	b.interrupt = cancel
	go func() {
		defer close(b.done)
		b.code = run(ctx, args, strings.NewReader(""), &b.stdout, &b.stderr, i.lookup)
	}()
	i.t.Cleanup(func() {
		cancel()
		<-b.done
	})
	return b
}

// end waits until the command line has ended and returns its exit code.
func (b *background) end(t testing.TB) int {
	t.Helper()
	select {
	case <-b.done:
	case <-time.After(patienceOfTests):
		t.Fatalf("it does not end:\n%s", b.stderr.String())
	}
	return b.code
}

// says waits until stderr says something.
func (b *background) says(t testing.TB, part string) {
	t.Helper()
	until(t, func() bool {
		select {
		case <-b.done:
			if !strings.Contains(b.stderr.String(), part) {
				t.Fatalf("it ended with %d and did not say %q:\n%s", b.code, part, b.stderr.String())
			}
		default:
		}
		return strings.Contains(b.stderr.String(), part)
	})
}

func until(t testing.TB, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(patienceOfTests); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("what was waited for does not happen")
		}
	}
}

// worker starts a worker and waits until it takes tasks.
func (i *installation) worker() *background {
	i.t.Helper()
	w := i.start("worker")
	w.says(i.t, "the worker is taking tasks")
	return w
}

// add configures a server that can be asked.
func (i *installation) add(identifier, url string, flags ...string) {
	i.t.Helper()
	i.must(append([]string{"server", "add", identifier, url, "--enable", "--data-class", "test"}, flags...)...)
}

// decode reads what --json printed.
func decode[T any](t testing.TB, data string) T {
	t.Helper()
	var value T
	decoder := json.NewDecoder(strings.NewReader(data))
	if err := decoder.Decode(&value); err != nil {
		t.Fatalf("%v in:\n%s", err, data)
	}
	return value
}

func has(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in:\n%s", part, text)
		}
	}
}

// docs is a server with two tools, of which "fail" fails.
func docs(t testing.TB) *mcptest.Server {
	return mcptest.New(t, mcptest.Options{Tools: []mcptest.Tool{
		{Name: "search", Description: "finds pages", Call: func(arguments json.RawMessage) json.RawMessage {
			return mcptest.Text("found " + string(arguments))
		}},
		{Name: "fail", Call: func(json.RawMessage) json.RawMessage { return mcptest.Failed("the index is gone") }},
	}})
}
