package worker

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

func TestDecodeSaysWhatToChange(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, payload, want string }{
		{"nothing", ``, `the payload is empty: it must be a JSON object with server, tool`},
		{"no JSON", `hello`, `the payload is not JSON: it must be a JSON object with server, tool`},
		{"cut off", `{"server":"docs"`, `the payload is not JSON`},
		{"an array", `["docs"]`, `the payload must be a JSON object with server, tool, arguments, run_id and step_id, not a array`},
		{"two objects", `{"server":"docs"}{}`, `one JSON object and nothing after it`},
		{"a misspelt field", `{"server":"docs","args":{}}`, `field "args" of the payload is unknown: it takes server, tool`},
		{"a number for a name", `{"server":7}`, `field "server" of the payload must be a string, not a number`},
		{"a field without end", `{"` + strings.Repeat("x", 5000) + `":1}`, `…" of the payload is unknown`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var payload StepPayload
			err := decode([]byte(tt.payload), &payload, stepFields)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, want …%s…", err, tt.want)
			}
			if strings.Contains(err.Error(), "StepPayload") || strings.Contains(err.Error(), "Go ") || len(err.Error()) > 400 {
				t.Errorf("not a sentence for an operator: %v", err)
			}
		})
	}
}

func TestPayloadCheck(t *testing.T) {
	t.Parallel()
	good := StepPayload{Server: "docs", Tool: "search", Arguments: json.RawMessage(`{"q":"x"}`)}
	for _, tt := range []struct {
		name   string
		change func(*StepPayload)
		want   string // empty: it passes
	}{
		{"as it should be", func(*StepPayload) {}, ""},
		{"no arguments", func(p *StepPayload) { p.Arguments = nil }, ""},
		{"null arguments", func(p *StepPayload) { p.Arguments = json.RawMessage(`null`) }, ""},
		{"an odd name that a server may well have", func(p *StepPayload) { p.Tool = "докs/поиск.v2 (β)" }, ""},
		{"no server", func(p *StepPayload) { p.Server = "" }, "server must name a server"},
		{"no tool", func(p *StepPayload) { p.Tool = "" }, "tool must name a tool"},
		{"control characters in the tool", func(p *StepPayload) { p.Tool = "a\x00b" }, "control characters"},
		{"a tool without end", func(p *StepPayload) { p.Tool = strings.Repeat("x", 1000) }, "longer than 256"},
		{"arguments that are an array", func(p *StepPayload) { p.Arguments = json.RawMessage(`[1]`) }, "arguments must be a JSON object"},
		{"arguments that are a string", func(p *StepPayload) { p.Arguments = json.RawMessage(`"{}"`) }, "arguments must be a JSON object"},
		{"a step id that is none", func(p *StepPayload) { p.StepID = "42" }, `step_id "42" must be a UUID`},
		{"a run id that is none", func(p *StepPayload) { p.RunID = "latest" }, `run_id "latest" must be a UUID`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			payload := good
			tt.change(&payload)
			_, err := payload.check()
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want …%s…", err, tt.want)
			case tt.name == "no tool" && err.Error() != tt.want:
				t.Errorf("got %v, want it said once: %s", err, tt.want)
			}
			if tt.want == "" && payload.Arguments[0] != '{' {
				t.Errorf("arguments = %s, want an object", payload.Arguments)
			}
			if _, _, enqueueErr := NewStepTask(payload); (enqueueErr == nil) != (err == nil) {
				t.Errorf("the constructor says %v where the worker says %v", enqueueErr, err)
			}
		})
	}
}

func TestNewStepTask(t *testing.T) {
	t.Parallel()
	task, id, err := NewStepTask(StepPayload{Server: "docs", Tool: "search", Arguments: json.RawMessage(`{"id":9007199254740993}`)})
	if err != nil {
		t.Fatal(err)
	}
	if task.Type() != "agent:step" {
		t.Errorf("type = %s", task.Type())
	}
	if _, err := uuid.Parse(id); err != nil {
		t.Errorf("step id %q is no UUID", id)
	}
	want := `{"server":"docs","tool":"search","arguments":{"id":9007199254740993},"step_id":"` + id + `"}`
	if diff := cmp.Diff(want, string(task.Payload())); diff != "" {
		t.Errorf("payload (-want +got):\n%s", diff)
	}

	_, again, err := NewStepTask(StepPayload{Server: "docs", Tool: "search", StepID: id})
	if err != nil || again != id {
		t.Errorf("a step id that was given came back as %q, %v", again, err)
	}
}

func TestNewImportTask(t *testing.T) {
	t.Parallel()
	task, err := NewImportTask(ImportPayload{Server: "docs"})
	if err != nil {
		t.Fatal(err)
	}
	if task.Type() != "catalogue:import" || string(task.Payload()) != `{"server":"docs"}` {
		t.Errorf("got %s %s", task.Type(), task.Payload())
	}
	if _, err := NewImportTask(ImportPayload{}); err == nil {
		t.Error("an import without a server was accepted")
	}
}
