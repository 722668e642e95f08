package worker_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"legwork/mcp/mcptest"
	"legwork/worker"
)

// The whole worker, counted: what ends is counted by how it ended, and the queues are looked at when somebody asks.
func TestAWorkerIsCounted(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	b.addServer("docs", server.URL)
	b.addServer("fax", mcptest.Nowhere(t))
	metrics := worker.NewMetrics("test")
	stop := b.start(worker.Options{Metrics: metrics})
	good, task := b.step(worker.StepPayload{Server: "docs"})
	bad, _ := b.step(worker.StepPayload{Server: "fax"})
	b.awaitStep(good)
	b.awaitStep(bad)
	b.settledTask(b.catalogue("docs"))
	b.settledTask(task)

	var text string
	has := func(parts ...string) func() bool {
		return func() bool {
			answer := httptest.NewRecorder()
			metrics.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			text = answer.Body.String()
			for _, part := range parts {
				if !strings.Contains(text, "\n"+part) {
					return false
				}
			}
			return true
		}
	}
	defer func() {
		if t.Failed() {
			t.Log(text)
		}
	}()
	b.await("everything to be counted", has(
		`legwork_operations_total{kind="step",outcome="succeeded",server="docs"} 1`,
		`legwork_operations_total{kind="step",outcome="unreachable",server="fax"} 1`,
		`legwork_operations_total{kind="import",outcome="succeeded",server="docs"} 1`,
		`legwork_operations_in_flight{server="docs"} 0`,
		`legwork_leg_duration_seconds_count{method="initialize",outcome="ok",server="docs"} 2`,
		`legwork_leg_duration_seconds_count{method="notifications/initialized",outcome="ok",server="docs"} 2`,
		`legwork_leg_duration_seconds_count{method="tools/call",outcome="ok",server="docs"} 1`,
		`legwork_leg_duration_seconds_count{method="tools/list",outcome="ok",server="docs"}`,
		`legwork_budget_used_ratio_count{server="docs"} 2`,
		`legwork_settle_delay_seconds_count 2`,
		`legwork_queue_depth{queue="agent",state="completed"} 1`,
		`legwork_queue_depth{queue="agent",state="archived"} 1`,
		`legwork_queue_depth{queue="default",state="pending"} 0`,
		`legwork_queue_oldest_seconds{queue="agent"} 0`,
		`legwork_check_ok{check="jobs"} 1`,
		`legwork_check_ok{check="postgres"} 1`,
		`legwork_check_ok{check="redis"} 1`,
		`legwork_check_ok{check="worker"} 1`,
		`legwork_postgres_connections_in_use `,
		fmt.Sprintf(`legwork_postgres_connections_max %d`, worker.StoreOptions().MaxConns),
		`go_goroutines `,
	))
	if strings.Contains(text, `method="other"`) || strings.Contains(text, `server="other"`) {
		t.Error("what is known counts under other")
	}
	stop()
	b.await("the worker to be seen to have stopped", has(`legwork_build_info{version="test"} 1`))
	if strings.Contains(text, "legwork_queue_depth") {
		t.Error("queues are shown that nobody looks at any more")
	}
}
