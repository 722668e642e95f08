package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"legwork/mcp"
	"legwork/store"
)

// The task types.
const (
	TypeStep   = "agent:step"
	TypeImport = "catalogue:import"
)

// The queues. A backend that names no queue lands in asynq's default one, which is served too.
const (
	QueueAgent  = "agent"
	QueueImport = "import"
)

// Retention is how long a task that succeeded stays on the dashboard with its result, unless the backend says otherwise.
const Retention = 24 * time.Hour

// StepPayload is the payload of an agent:step task.
type StepPayload struct {
	Server    string          `json:"server"`
	Tool      string          `json:"tool"`                // as the server advertises it
	Arguments json.RawMessage `json:"arguments,omitempty"` // a JSON object; {} when left out
	RunID     string          `json:"run_id,omitempty"`    // a UUID; a run that has no row gets one
	StepID    string          `json:"step_id,omitempty"`   // a UUID; the task's id when left out
}

// ImportPayload is the payload of a catalogue:import task.
type ImportPayload struct {
	Server string `json:"server"`
}

// NewStepTask makes the task of one tool call and returns it with the id of the row in agent_step that will tell how it
// went. The id is StepID, or a new one when that is empty; it is the task's id too, so that enqueueing the same step twice
// answers asynq.ErrTaskIDConflict, which means that it is there already. The call gets asynq's Timeout or Deadline as its
// budget where that is tighter than the server's or the installation's. Options given here win over the defaults (queue
// "agent", Retention).
func NewStepTask(payload StepPayload, opts ...asynq.Option) (*asynq.Task, string, error) {
	if payload.StepID == "" {
		payload.StepID = uuid.NewString()
	}
	if _, err := payload.check(); err != nil {
		return nil, "", err
	}
	data, err := encode(payload)
	if err != nil {
		return nil, "", fmt.Errorf("encode the payload: %w", err)
	}
	opts = append([]asynq.Option{asynq.Queue(QueueAgent), asynq.TaskID(payload.StepID), asynq.Retention(Retention)}, opts...)
	return asynq.NewTask(TypeStep, data, opts...), payload.StepID, nil
}

// NewImportTask makes the task of one catalogue import. Options given here win over the defaults (queue "import",
// Retention).
func NewImportTask(payload ImportPayload, opts ...asynq.Option) (*asynq.Task, error) {
	if err := payload.check(); err != nil {
		return nil, err
	}
	data, err := encode(payload)
	if err != nil {
		return nil, fmt.Errorf("encode the payload: %w", err)
	}
	opts = append([]asynq.Option{asynq.Queue(QueueImport), asynq.Retention(Retention)}, opts...)
	return asynq.NewTask(TypeImport, data, opts...), nil
}

// stepIDs are the ids of a payload, parsed.
type stepIDs struct {
	step uuid.UUID // Nil when the payload names none
	run  *uuid.UUID
}

// check says what to change about a payload, and parses its ids.
func (p *StepPayload) check() (stepIDs, error) {
	var ids stepIDs
	if p.StepID != "" {
		id, err := uuid.Parse(p.StepID)
		if err != nil {
			return ids, fmt.Errorf("step_id %q must be a UUID", clip(p.StepID))
		}
		ids.step = id
	}
	if p.RunID != "" {
		id, err := uuid.Parse(p.RunID)
		if err != nil {
			return ids, fmt.Errorf("run_id %q must be a UUID", clip(p.RunID))
		}
		ids.run = &id
	}
	if err := checkServer(p.Server); err != nil {
		return ids, err
	}
	if p.Tool == "" {
		return ids, errors.New("tool must name a tool")
	}
	if err := mcp.ValidToolName(p.Tool); err != nil {
		return ids, fmt.Errorf("tool cannot be used: %w", err)
	}
	arguments := bytes.TrimSpace(p.Arguments)
	if len(arguments) == 0 || string(arguments) == "null" {
		p.Arguments = json.RawMessage(`{}`)
	} else if arguments[0] != '{' || !json.Valid(arguments) {
		return ids, errors.New("arguments must be a JSON object")
	} else if store.NestsTooDeep(arguments) {
		return ids, fmt.Errorf("arguments nest deeper than %d levels", store.MaxNesting)
	}
	return ids, nil
}

func (p ImportPayload) check() error { return checkServer(p.Server) }

func checkServer(identifier string) error {
	if identifier == "" {
		return errors.New("server must name a server")
	}
	if !mcp.ValidIdentifier(identifier) {
		return fmt.Errorf("server %q is no identifier, which is 1 to 32 characters of a-z, 0-9 and _", clip(identifier))
	}
	return nil
}

// decode reads a payload strictly: a field that is misspelt would otherwise be a call without its arguments. The error is
// in an operator's words.
func decode(data []byte, into any, fields string) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	err := dec.Decode(into)
	if err == nil {
		if _, err = dec.Token(); err == io.EOF {
			return nil
		}
		return errors.New("the payload must be one JSON object and nothing after it")
	}
	var wrongType *json.UnmarshalTypeError
	switch {
	case len(bytes.TrimSpace(data)) == 0:
		return fmt.Errorf("the payload is empty: it must be a JSON object with %s", fields)
	case errors.As(err, &wrongType) && wrongType.Field != "":
		return fmt.Errorf("field %q of the payload must be a string, not a %s", clip(wrongType.Field), wrongType.Value)
	case errors.As(err, &wrongType):
		return fmt.Errorf("the payload must be a JSON object with %s, not a %s", fields, wrongType.Value)
	case strings.HasPrefix(err.Error(), "json: unknown field "):
		field := strings.Trim(strings.TrimPrefix(err.Error(), "json: unknown field "), `"`)
		return fmt.Errorf("field %q of the payload is unknown: it takes %s", clip(field), fields)
	}
	return fmt.Errorf("the payload is not JSON: it must be a JSON object with %s", fields)
}

// clip keeps a foreign word short enough for a sentence.
func clip(word string) string {
	const most = 100
	if runes := []rune(word); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return word
}
