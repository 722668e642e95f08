package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"legwork/mcp/mcptest"
)

// freeAddress is one where nobody listens at this moment.
func freeAddress(t *testing.T) string {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	return socket.Addr().String()
}

// ask is one request on a connection of its own; 0 is that nobody answers.
func ask(t *testing.T, method, url string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

func TestAWorkerAnswersProbesUntilItsLastOperationIsSettled(t *testing.T) {
	t.Parallel()
	i := installed(t)
	address := freeAddress(t)
	i = i.with("LEGWORK_HTTP_ADDR", address)
	answer := make(chan struct{})
	server := docs(t)
	server.On("tools/call", mcptest.Hold(answer))
	i.add("docs", server.URL)
	w := i.worker()
	has(t, w.stderr.String(), address, "/healthz, /readyz and /metrics are answered")

	at := "http://" + address
	probe := func(path string, want int) (says struct {
		Status string
		Checks map[string]string
	}) {
		t.Helper()
		status, body := ask(t, http.MethodGet, at+path)
		if status != want {
			t.Errorf("%s is answered with %d, want %d: %s", path, status, want, body)
		}
		if err := json.Unmarshal([]byte(body), &says); err != nil {
			t.Errorf("%s: %v in %s", path, err, body)
		}
		return says
	}
	well := map[string]string{"worker": "ok", "postgres": "ok", "redis": "ok", "jobs": "ok"}
	until(t, func() bool { // it says that it takes tasks a moment after it began to
		status, _ := ask(t, http.MethodGet, at+"/readyz")
		return status == http.StatusOK
	})
	for _, path := range []string{"/healthz", "/readyz"} {
		says := probe(path, http.StatusOK)
		if diff := cmp.Diff(well, says.Checks); diff != "" || says.Status != "ok" {
			t.Errorf("%s says %q, %s", path, says.Status, diff)
		}
	}
	if status, body := ask(t, http.MethodGet, at+"/metrics"); status != http.StatusOK || !strings.Contains(body, "legwork_build_info{version=") {
		t.Errorf("metrics: %d, %s", status, body)
	}
	for path, want := range map[string]int{"/": 404, "/debug/pprof/": 404, "/healthz/": 404, "/metrics/x": 404, "/favicon.ico": 404} {
		if status, _ := ask(t, http.MethodGet, at+path); status != want {
			t.Errorf("%s is answered with %d, want %d", path, status, want)
		}
	}
	if status, _ := ask(t, http.MethodPost, at+"/healthz"); status != http.StatusMethodNotAllowed {
		t.Errorf("POST is answered with %d", status)
	}

	i.must("call", "docs", "search")
	server.Await(t, "tools/call", 1)
	w.interrupt()
	w.says(t, "the worker is stopping")
	if says := probe("/readyz", http.StatusServiceUnavailable); says.Checks["worker"] != "the worker is stopping" || says.Status != "not ready" {
		t.Errorf("it says %+v", says)
	}
	probe("/healthz", http.StatusOK)
	if _, body := ask(t, http.MethodGet, at+"/metrics"); !strings.Contains(body, `legwork_operations_in_flight{server="docs"} 1`) {
		t.Errorf("the operation that is under way is not to be seen:\n%s", body)
	}
	close(answer)
	if code := w.end(t); code != exitDone {
		t.Errorf("exit code %d:\n%s", code, w.stderr.String())
	}
	if status, _ := ask(t, http.MethodGet, at+"/healthz"); status != 0 {
		t.Errorf("after the worker has ended it answers %d", status)
	}
}

func TestAWorkerDoesNotStartWhereItCannotListen(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	i := outside(t).with("LEGWORK_DATABASE_URL", nobody)
	address := taken.Addr().String()
	i.with("LEGWORK_HTTP_ADDR", address).run("worker").expect(t, exitFailed,
		`LEGWORK_HTTP_ADDR is "`+address+`", where this worker cannot listen (address already in use)`)
	i.with("LEGWORK_HTTP_ADDR", "192.0.2.1:9090").run("worker").expect(t, exitFailed, "cannot listen (cannot assign requested address)")
	i.with("LEGWORK_HTTP_ADDR", "9090").run("worker").expect(t, exitUsage, `LEGWORK_HTTP_ADDR is "9090"`)
}
