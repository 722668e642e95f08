package worker_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hibiken/asynqmon"

	"legwork/mcp/mcptest"
	"legwork/worker"
)

// What asynqmon shows of a settled task must be worth reading.
func TestTheDashboard(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcptest.New(t, mcptest.Options{})
	b.addServer("docs", server.URL)
	b.addServer("fax", mcptest.Nowhere(t))
	b.start(worker.Options{})
	dashboard := asynqmon.New(asynqmon.Options{RedisConnOpt: b.redis})
	t.Cleanup(func() { dashboard.Close() })

	good, goodTask := b.step(worker.StepPayload{Server: "docs", Arguments: json.RawMessage(`{"q":"<refunds>"}`)})
	bad, badTask := b.step(worker.StepPayload{Server: "fax"})
	b.settledTask(goodTask)
	b.settledTask(badTask)
	sentence := b.awaitStep(bad).FailureMessage

	type row struct {
		ID           string `json:"id"`
		Payload      string `json:"payload"`
		ErrorMessage string `json:"error_message"`
		Result       string `json:"result"`
	}
	one := func(path string) row {
		t.Helper()
		answer := httptest.NewRecorder()
		dashboard.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		var page struct {
			Tasks []row `json:"tasks"`
		}
		if err := json.Unmarshal(answer.Body.Bytes(), &page); err != nil || len(page.Tasks) != 1 {
			t.Fatalf("GET %s: %s (%v)", path, answer.Body, err)
		}
		return page.Tasks[0]
	}

	completed := one("/api/queues/agent/completed_tasks")
	if want := `{"server":"docs","tool":"echo","arguments":{"q":"<refunds>"},"step_id":"` + good.String() + `"}`; completed.Payload != want {
		t.Errorf("payload = %s, want %s", completed.Payload, want)
	}
	var result struct{ Step, Status string }
	if err := json.Unmarshal([]byte(completed.Result), &result); err != nil || result.Step != good.String() || result.Status != "succeeded" {
		t.Errorf("result = %s (%v)", completed.Result, err)
	}
	if archived := one("/api/queues/agent/archived_tasks"); archived.ErrorMessage != sentence {
		t.Errorf("last error = %q, want the operator's sentence %q", archived.ErrorMessage, sentence)
	}
}
