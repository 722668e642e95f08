package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"legwork/store"
)

// The demo as it is run: what it shows, and that nothing is left of it. It has the process to itself, so that what is left
// can be told from what other tests have.
func TestDemo(t *testing.T) {
	before := goleak.IgnoreCurrent()
	folders := t.TempDir()
	// Where this is root, Postgres runs as another user, who must be able to get there.
	if err := os.Chmod(filepath.Dir(folders), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", folders)
	i := outside(t)
	i.env["COLUMNS"] = "200"
	i.env["LEGWORK_DATABASE_URL"] = "nowhere: the demo reads no settings"
	i.env["LEGWORK_MCP_OPERATION_TIMEOUT"] = "1"

	demo := i.start("demo")
	until(t, func() bool { return strings.Contains(demo.stdout.String(), "MCP docs") || ended(demo) })
	if entries, err := os.ReadDir(folders); err != nil || len(entries) != 1 {
		t.Errorf("while it runs there should be one folder, got %v, %v", entries, err)
	}
	if code := demo.end(t); code != exitDone {
		t.Fatalf("exit code %d\n%s%s", code, demo.stdout.String(), demo.stderr.String())
	}
	stdout := demo.stdout.String()
	if got := demo.stderr.String(); got != "" {
		t.Errorf("stderr is not empty:\n%s", got)
	}

	want := [][]string{
		{"SERVER", "OPERATION", "STATUS", "KIND", "ASKED"},
		{"docs", "import", "ok", "", ""},
		{"docs", "step search", "succeeded", "", ""},
		{"billing", "import", "ok", "", ""},
		{"billing", "step charge", "failed", "tool_error", "yes"},
		{"fax", "import", "error", "unreachable", "no"},
		{"fax", "step send", "failed", "unreachable", "no"},
		{"crm", "import", "error", "budget_spent", "no"},
		{"crm", "step lookup", "failed", "budget_spent", "no"},
		{"mail", "import", "error", "no_answer", "unknown"},
		{"mail", "step send", "failed", "no_answer", "unknown"},
	}
	if diff := cmp.Diff(want, demoTable(t, stdout, "SPENT")); diff != "" {
		t.Errorf("the table (-want +got):\n%s", diff)
	}
	for _, says := range []struct {
		what, begins string
		parts        []string
	}{
		{"crm, import", "Budget spent: tools/list was not sent", []string{"was not asked", "LEGWORK_MCP_OPERATION_TIMEOUT", "granted 2 s"}},
		{"crm, step lookup", "Budget spent: tools/call was not sent", []string{"was not asked", "LEGWORK_MCP_OPERATION_TIMEOUT", "granted 2 s"}},
		{"mail, import", "No answer", []string{"budget of 2 s", "tools/list granted 2 s", "no_answer"}},
		{"mail, step send", "No answer", []string{"budget of 2 s", "server/discover granted 2 s", "no_answer"}},
		{"fax, import", "Unreachable", []string{"refused", "tools/list granted 3 s"}},
		{"fax, step send", "Unreachable", []string{"refused", "server/discover granted 3 s"}},
		{"billing, step charge", "Tool error", []string{"card of Ada has expired", "tools/call granted 3 s"}},
		{"How to read it:", "crm failed because its budget was spent", []string{"fax failed because the server is dead"}},
	} {
		section := demoSection(stdout, says.what)
		if !strings.HasPrefix(section, says.begins) {
			t.Errorf("%s begins with %q, want %q", says.what, section, says.begins)
		}
		has(t, section, says.parts...)
	}
	for line := range strings.Lines(stdout) {
		if n := displayWidth(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("a line has %d columns: %s", n, line)
		}
	}
	if !strings.HasSuffix(stdout, "\n\nall 10 rows are as they should be\n") {
		t.Errorf("the last line is not the verdict:\n%s", stdout)
	}

	if entries, err := os.ReadDir(folders); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	closed(t, regexp.MustCompile(`(?m)^Postgres \d+ +(\S+)`).FindStringSubmatch(stdout)[1])
	goleak.VerifyNone(t, before)
}

func TestDemoSaysWhatIsNotAsItShouldBe(t *testing.T) {
	t.Parallel()
	cases := demoCases()
	docs, fax := cases[0], cases[2]
	docs.imported.status = "partial"
	fax.called = demoOutcome{status: "succeeded"}
	demo := startDemo(t, &demo{cases: []demoCase{docs, fax}})
	if code := demo.end(t); code != exitFailed {
		t.Errorf("exit code %d, want %d", code, exitFailed)
	}
	if got := demo.stderr.String(); got != "" {
		t.Errorf("stderr is not empty:\n%s", got)
	}
	const want = "\n2 of 4 rows are not as they should be:\n" +
		"  docs, import: expected partial, got ok\n" +
		"  fax, step send: expected succeeded, got failed (unreachable, asked: no)\n"
	if got := demo.stdout.String(); !strings.HasSuffix(got, want) {
		t.Errorf("it should end with %q:\n%s", want, got)
	}
}

func TestDemoStoppedHalfWay(t *testing.T) {
	t.Parallel()
	mail := demoCases()[4]
	start, folder := mail.start, ""
	d := &demo{}
	mail.start = func() (demoServer, error) {
		folder = dataFolder(t, d.databaseURL)
		return start()
	}
	d.cases = []demoCase{mail}
	demo := startDemo(t, d)
	until(t, func() bool { return strings.Contains(demo.stdout.String(), "of 2 operations") || ended(demo) })
	demo.interrupt()
	if code := demo.end(t); code != exitFailed {
		t.Errorf("exit code %d, want %d\n%s", code, exitFailed, demo.stdout.String())
	}
	if got, want := demo.stderr.String(), "legwork: the demo was stopped before its end\n"; got != want {
		t.Errorf("stderr is %q, want %q", got, want)
	}
	gone(t, folder)
	closed(t, hostOf(t, d.databaseURL))
}

func TestDemoThatCannotStart(t *testing.T) {
	t.Parallel()
	folder := ""
	d := &demo{}
	d.cases = []demoCase{{server: "docs", start: func() (demoServer, error) {
		folder = dataFolder(t, d.databaseURL)
		return demoServer{}, errors.New("no port is free")
	}}}
	demo := startDemo(t, d)
	if code := demo.end(t); code != exitFailed {
		t.Errorf("exit code %d, want %d", code, exitFailed)
	}
	has(t, demo.stderr.String(), `start MCP server "docs": no port is free`)
	gone(t, folder)
	closed(t, hostOf(t, d.databaseURL))
}

// What --keep leaves up is reached as it says it is.
func TestDemoKept(t *testing.T) {
	t.Parallel()
	demo := startDemo(t, &demo{cases: demoCases()[:1], keep: true})
	until(t, func() bool { return strings.Contains(demo.stdout.String(), "call docs add") || ended(demo) })

	said := demo.stdout.String()
	has(t, said, "all 2 rows are as they should be", "until Ctrl-C")
	i := outside(t)
	for _, line := range regexp.MustCompile(`(?m)^  export (\w+)=(.*)$`).FindAllStringSubmatch(said, -1) {
		i.env[line[1]] = strings.Trim(line[2], "'")
	}
	has(t, i.must("health"), "Postgres  ok", "Redis     ok")
	if steps := decode[[]store.Step](t, i.must("step", "list", "--json")); len(steps) != 1 || steps[0].Status != "succeeded" {
		t.Errorf("got %+v", steps)
	}
	if got := i.must("call", "docs", "add", "--args", `{"a":2,"b":3}`, "--wait"); got != "5\n" {
		t.Errorf("the worker that was kept says %q", got)
	}
	dashboard := regexp.MustCompile(`http://\S+`).FindString(said)
	has(t, get(t, dashboard), "<html")
	has(t, get(t, dashboard+"api/queues/agent/completed_tasks"), "agent:step", `\"server\":\"docs\"`)

	databaseURL := i.env["LEGWORK_DATABASE_URL"]
	folder := dataFolder(t, databaseURL)
	demo.interrupt()
	if code := demo.end(t); code != exitDone {
		t.Errorf("exit code %d, want %d\n%s", code, exitDone, demo.stderr.String())
	}
	gone(t, folder)
	closed(t, hostOf(t, databaseURL))
}

// startDemo runs a demo beside the test. It is interrupted and waited for when the test ends.
func startDemo(t *testing.T, d *demo) *background {
	t.Helper()
	b := &background{done: make(chan struct{})}
	d.app = &app{stdin: strings.NewReader(""), stdout: &b.stdout, stderr: &b.stderr, lookupEnv: outside(t).lookup}
	ctx, cancel := context.WithCancel(context.Background())
	b.interrupt = cancel
	go func() {
		defer close(b.done)
		b.code = d.exit(nil, d.run(ctx))
	}()
	t.Cleanup(func() {
		cancel()
		<-b.done
	})
	return b
}

// demoTable is the table of the rows, its titles first, up to the column of this title.
func demoTable(t *testing.T, text, before string) [][]string {
	t.Helper()
	_, table, _ := strings.Cut(text, "\nSERVER ")
	table, _, found := strings.Cut("SERVER "+table, "\n\n")
	titles, _, _ := strings.Cut(table, "\n")
	end := strings.Index(titles, before)
	if !found || end < 0 {
		t.Fatalf("no table up to %s in:\n%s", before, text)
	}
	starts := []int{}
	for _, at := range regexp.MustCompile(`\S+`).FindAllStringIndex(titles[:end], -1) {
		starts = append(starts, at[0])
	}
	var rows [][]string
	for line := range strings.SplitSeq(table, "\n") {
		row := make([]string, len(starts))
		for i, start := range starts {
			stop := end
			if i+1 < len(starts) {
				stop = starts[i+1]
			}
			row[i] = strings.TrimSpace(line[start:stop])
		}
		rows = append(rows, row)
	}
	return rows
}

// demoSection is what stands below a heading, its white space made single blanks.
func demoSection(text, heading string) string {
	_, section, _ := strings.Cut(text, "\n\n"+heading+"\n")
	section, _, _ = strings.Cut(section, "\n\n")
	return strings.Join(strings.Fields(section), " ")
}

func ended(b *background) bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// dataFolder is where a Postgres keeps what it writes.
func dataFolder(t *testing.T, databaseURL string) string {
	conn, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer conn.Close(t.Context())
	var folder string
	if err := conn.QueryRow(t.Context(), "show data_directory").Scan(&folder); err != nil {
		t.Error(err)
	}
	return folder
}

func gone(t *testing.T, folder string) {
	t.Helper()
	if folder == "" {
		t.Fatal("there never was a folder")
	}
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there (%v)", folder, err)
	}
}

func hostOf(t *testing.T, rawURL string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

func closed(t *testing.T, address string) {
	t.Helper()
	if conn, err := net.Dial("tcp", address); err == nil {
		conn.Close()
		t.Errorf("something still listens on %s", address)
	}
}

func get(t *testing.T, address string) string {
	t.Helper()
	resp, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v\n%s", address, resp.Status, err, bytes.TrimSpace(body))
	}
	return string(body)
}
