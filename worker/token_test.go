package worker_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"legwork/mcp/mcptest"
	"legwork/store"
	"legwork/worker"
)

func TestAnAccessTokenServesManySteps(t *testing.T) {
	t.Setenv("LEGWORK_WORKER_TEST_SECRET", "client-secret")
	var given atomic.Int64
	authorization := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"access-%d","expires_in":3600}`, given.Add(1))
	}))
	t.Cleanup(authorization.Close)
	server := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless})
	b := newBench(t)
	b.addServer("docs", server.URL, func(s *store.Server) {
		s.Credential, s.AuthPlacement = "env:LEGWORK_WORKER_TEST_SECRET", "bearer"
		s.OAuthTokenURL, s.OAuthClientID = authorization.URL, "legwork"
	})
	b.exec(`update mcp_server set protocol_version = '2026-07-28'`)
	b.start(worker.Options{})

	call := func(status string, methods ...string) {
		t.Helper()
		id, _ := b.step(worker.StepPayload{Server: "docs", Tool: "echo", Arguments: []byte(`{}`)})
		step := b.awaitStep(id)
		var got []string
		for _, leg := range legsOf(t, step.Legs) {
			got = append(got, leg.Method)
		}
		if step.Status != status || fmt.Sprint(got) != fmt.Sprint(methods) {
			t.Errorf("the step %s with legs %q, want %s with %q: %s", step.Status, got, status, methods, step.FailureMessage)
		}
	}
	call("succeeded", "token request", "tools/call")
	call("succeeded", "tools/call")
	server.On("tools/call", mcptest.Status(http.StatusUnauthorized, nil, ""))
	call("failed", "tools/call")
	server.On("tools/call", nil)
	call("succeeded", "token request", "tools/call")
	call("succeeded", "tools/call")
}
