package worker

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"legwork/mcp"
)

// scrape is what Prometheus reads.
func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if answer.Code != http.StatusOK {
		t.Fatalf("status %d: %s", answer.Code, answer.Body)
	}
	return answer.Body.String()
}

func hasLines(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains("\n"+text, "\n"+line+"\n") {
			t.Errorf("%q is missing", line)
		}
	}
	if t.Failed() {
		t.Log(strings.Join(regexp.MustCompile(`(?m)^legwork_.*$`).FindAllString(text, -1), "\n"))
	}
}

func TestMetricsMayBeMissing(t *testing.T) {
	t.Parallel()
	var m *Metrics
	m.watch(nil)
	m.begun("docs")
	m.ended("docs", "step", mcp.Spent{Legs: []mcp.Leg{{}}}, nil)
	m.waiting("docs", 1)
	m.settled(time.Second)
	m.reaped(reapedWoken, 1)
	m.crashed()
	var h *Health
	h.began()
	h.settledNow()
}

func TestMetricsCount(t *testing.T) {
	t.Parallel()
	m := NewMetrics("1.2.3")
	hasLines(t, scrape(t, m), `legwork_build_info{version="1.2.3"} 1`, `legwork_handler_crashes_total 0`,
		`legwork_steps_reaped_total{outcome="interrupted"} 0`, `legwork_steps_reaped_total{outcome="woken"} 0`)

	m.begun("docs")
	m.begun("docs")
	m.begun("docs")
	m.ended("docs", "step", mcp.Spent{
		Budget: mcp.Budget{Total: 20 * time.Second}, Elapsed: 15 * time.Second,
		Legs: []mcp.Leg{
			{Method: "initialize", Granted: 20 * time.Second, Elapsed: 6 * time.Second, Outcome: mcp.OutcomeOK},
			{Method: "tools/call (resumed)", Granted: 14 * time.Second, Elapsed: 9 * time.Second, Outcome: mcp.OutcomeOK},
		},
	}, nil)
	m.ended("docs", "import", mcp.Spent{
		Budget: mcp.Budget{Total: time.Second}, Elapsed: time.Second,
		Legs: []mcp.Leg{{Method: "answer to anything at all", Granted: time.Second, Elapsed: time.Second, Outcome: "of a later version"}},
	}, &mcp.Failure{Kind: mcp.KindNoAnswer})
	m.waiting("docs", 4)
	m.waiting("docs", 3)
	m.settled(30 * time.Millisecond)
	m.reaped(reapedInterrupted, 2)
	m.crashed()
	hasLines(t, scrape(t, m),
		`legwork_operations_total{kind="step",outcome="succeeded",server="docs"} 1`,
		`legwork_operations_total{kind="import",outcome="no_answer",server="docs"} 1`,
		`legwork_operations_in_flight{server="docs"} 1`,
		`legwork_jobs_waiting{server="docs"} 3`,
		`legwork_leg_duration_seconds_sum{method="initialize",outcome="ok",server="docs"} 6`,
		`legwork_leg_duration_seconds_bucket{method="tools/call",outcome="ok",server="docs",le="5"} 0`,
		`legwork_leg_duration_seconds_bucket{method="tools/call",outcome="ok",server="docs",le="10"} 1`,
		`legwork_leg_duration_seconds_count{method="other",outcome="other",server="docs"} 1`,
		`legwork_leg_granted_seconds_sum 35`,
		`legwork_budget_used_ratio_bucket{server="docs",le="0.5"} 0`,
		`legwork_budget_used_ratio_bucket{server="docs",le="0.75"} 1`,
		`legwork_settle_delay_seconds_count 1`,
		`legwork_steps_reaped_total{outcome="interrupted"} 2`,
		`legwork_handler_crashes_total 1`,
	)
}

func TestManyServersShareOneLabel(t *testing.T) {
	t.Parallel()
	m := NewMetrics("test")
	var all sync.WaitGroup
	for i := range maxServers + 50 {
		all.Go(func() {
			server := fmt.Sprintf("s%d", i)
			m.begun(server)
			m.ended(server, "step", mcp.Spent{}, nil)
			m.waiting(server, 2)
		})
	}
	all.Wait()
	text := scrape(t, m)
	hasLines(t, text,
		`legwork_operations_total{kind="step",outcome="succeeded",server="other"} 50`,
		`legwork_operations_in_flight{server="other"} 0`,
		`legwork_jobs_waiting{server="other"} 100`,
	)
	if n := len(regexp.MustCompile(`(?m)^legwork_operations_total\{`).FindAllString(text, -1)); n != maxServers+1 {
		t.Errorf("there are %d series", n)
	}
	for i := range maxServers + 50 {
		m.waiting(fmt.Sprintf("s%d", i), 0)
	}
	hasLines(t, scrape(t, m), `legwork_jobs_waiting{server="other"} 0`)
}

// registered are the metrics of ours, with their labels.
func registered(t *testing.T) map[string][]string {
	t.Helper()
	m := NewMetrics("test")
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		m.registry.Describe(descs)
	}()
	found := map[string][]string{}
	form := regexp.MustCompile(`fqName: "(legwork_\w+)".*constLabels: \{(.*)\}, variableLabels: \{(.*)\}`)
	for desc := range descs {
		if parts := form.FindStringSubmatch(desc.String()); parts != nil {
			labels := regexp.MustCompile(`\w+`).FindAllString(regexp.MustCompile(`="[^"]*"`).ReplaceAllString(parts[2], "")+" "+parts[3], -1)
			slices.Sort(labels)
			found[parts[1]] = labels
		}
	}
	if len(found) < 10 {
		t.Fatalf("only %v were found", found)
	}
	return found
}

func readDoc(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile("../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestTheTableOfMetricsIsComplete(t *testing.T) {
	t.Parallel()
	there := registered(t)
	said := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(legwork_\\w+)` \\|([^|]*)\\|").FindAllStringSubmatch(readDoc(t, "monitoring.md"), -1) {
		said[row[1]] = true
		labels := regexp.MustCompile(`\w+`).FindAllString(row[2], -1)
		slices.Sort(labels)
		if !slices.Equal(labels, there[row[1]]) {
			t.Errorf("%s is said to have the labels %q and has %q", row[1], labels, there[row[1]])
		}
	}
	for name := range there {
		if !said[name] {
			t.Errorf("%s is not in the table", name)
		}
	}
	for name := range said {
		if _, is := there[name]; !is {
			t.Errorf("%s is in the table and nowhere else", name)
		}
	}
}

// existing checks that what a query names is there: metrics, and the values of labels that are ours.
func existing(t *testing.T, where, query string) {
	t.Helper()
	there := registered(t)
	for _, use := range regexp.MustCompile(`(legwork_\w+)(?:\{([^}]*)\})?`).FindAllStringSubmatch(query, -1) {
		name := use[1]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, has := strings.CutSuffix(name, suffix); has {
				if _, is := there[base]; is {
					name = base
				}
			}
		}
		labels, is := there[name]
		if !is {
			t.Errorf("%s: there is no metric %s", where, use[1])
			continue
		}
		for _, selector := range regexp.MustCompile(`(\w+)(=~|!=|!~|=)"([^"]*)"`).FindAllStringSubmatch(use[2], -1) {
			if !slices.Contains(labels, selector[1]) {
				t.Errorf("%s: %s has no label %s", where, name, selector[1])
			}
			var values []string
			switch {
			case name == "legwork_check_ok":
				values = []string{checkWorker, checkPostgres, checkRedis, checkJobs}
			case name == "legwork_steps_reaped_total":
				values = []string{reapedInterrupted, reapedWoken}
			case selector[1] == "outcome":
				values = knownOutcomes
			case selector[1] == "state":
				values = []string{"pending", "active", "scheduled", "retry", "archived", "completed"}
			default:
				continue
			}
			for value := range strings.SplitSeq(selector[3], "|") {
				if !slices.Contains(values, value) {
					t.Errorf("%s: %s is never %q in %s", where, selector[1], value, name)
				}
			}
		}
	}
	if strings.Count(query, "(") != strings.Count(query, ")") || strings.Count(query, "{") != strings.Count(query, "}") {
		t.Errorf("%s: brackets do not match in %s", where, query)
	}
}

func TestAlertsAreAboutWhatThereIs(t *testing.T) {
	t.Parallel()
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	decoder := yaml.NewDecoder(strings.NewReader(readDoc(t, "alerts.yml")))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			if rule.Alert == "" || names[rule.Alert] || !strings.Contains(rule.Expr, "legwork_") ||
				rule.Labels["severity"] == "" || rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
				t.Errorf("rule %q is not complete, or there twice: %+v", rule.Alert, rule)
			}
			if rule.For != "" {
				if _, err := time.ParseDuration(rule.For); err != nil {
					t.Errorf("%s: %v", rule.Alert, err)
				}
			}
			names[rule.Alert] = true
			existing(t, rule.Alert, rule.Expr)
		}
	}
	if len(names) < 10 {
		t.Errorf("there are %d rules", len(names))
	}
}

func TestTheDashboardIsAboutWhatThereIs(t *testing.T) {
	t.Parallel()
	type target struct {
		Expr string
	}
	var board struct {
		Panels []struct {
			Title, Type string
			Targets     []target
		}
	}
	text := readDoc(t, "grafana-dashboard.json")
	if err := json.Unmarshal([]byte(text), &board); err != nil {
		t.Fatal(err)
	}
	queries := ""
	for _, panel := range board.Panels {
		if panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("panel %q shows nothing", panel.Title)
		}
		for _, target := range panel.Targets {
			existing(t, panel.Title, strings.ReplaceAll(target.Expr, `server=~"$server"`, `server=~"docs"`))
			queries += target.Expr + "\n"
		}
	}
	for name := range registered(t) {
		if !strings.Contains(queries, name) {
			t.Errorf("%s is in no panel", name)
		}
	}
}
