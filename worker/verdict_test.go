package worker

import (
	"errors"
	"slices"
	"testing"

	"github.com/hibiken/asynq"

	"legwork/mcp"
)

func TestEveryKindHasAVerdict(t *testing.T) {
	t.Parallel()
	want := map[mcp.Kind]verdict{
		"budget_spent":             {"failed", true},
		"no_answer":                {"failed", true},
		"unreachable":              {"failed", true},
		"connection_lost":          {"failed", true},
		"http_status":              {"failed", true},
		"malformed_response":       {"failed", true},
		"unsupported_content_type": {"failed", true},
		"response_too_large":       {"failed", true},
		"rpc_error":                {"failed", true},
		"tool_error":               {"failed", false},
		"refused_host":             {"failed", true},
		"missing_credential":       {"failed", true},
		"invalid_request":          {"failed", true},
		"interrupted":              {"failed", true},
		"cancelled":                {"cancelled", false},
	}
	for _, kind := range mcp.Kinds() {
		got, known := verdicts[kind]
		if !known {
			t.Errorf("kind %s has no verdict", kind)
		}
		if got != want[kind] {
			t.Errorf("verdict of %s = %+v, want %+v", kind, got, want[kind])
		}
	}
	for kind := range verdicts {
		if !slices.Contains(mcp.Kinds(), kind) {
			t.Errorf("there is a verdict for %s, which is no kind", kind)
		}
	}
}

func TestForQueue(t *testing.T) {
	t.Parallel()
	err := forQueue(mcp.KindUnreachable, "Unreachable: …")
	if !errors.Is(err, asynq.SkipRetry) {
		t.Errorf("a settled failure must not be repeated by the queue: %v", err)
	}
	if err.Error() != "Unreachable: …" {
		t.Errorf("the dashboard shows %q, want the sentence and nothing else", err)
	}
	for _, kind := range []mcp.Kind{mcp.KindToolError, mcp.KindCancelled} {
		if err := forQueue(kind, "…"); err != nil {
			t.Errorf("a task whose step ended as %s is done, got %v", kind, err)
		}
	}
	if err := forQueue("from_a_later_version", "…"); !errors.Is(err, asynq.SkipRetry) {
		t.Errorf("a settled failure of an unknown kind must not be repeated: %v", err)
	}
}
