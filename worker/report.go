package worker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/sirupsen/logrus"

	"legwork/mcp"
	"legwork/store"
)

// taskResult is what a settled task leaves on the dashboard. The row says the same and more.
type taskResult struct {
	Step     string              `json:"step,omitempty"`
	Status   string              `json:"status"`
	Kind     string              `json:"kind,omitempty"`
	Sentence string              `json:"sentence,omitempty"`
	Legs     json.RawMessage     `json:"legs,omitempty"`
	Report   *store.ImportReport `json:"report,omitempty"`
}

// leaveTime is how long a handler waits for Redis to take a task's result.
const leaveTime = time.Second

// leave writes a task's result. The row is the truth, so a result that Redis does not take is no failure, and one that it
// does not take in time, because it hangs, is left to asynq's client, which gives up soon.
func (w *Worker) leave(task *asynq.Task, result taskResult) {
	if task.ResultWriter() == nil { // asynq ended the task before its handler began
		return
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		data, err := encode(result)
		if err == nil {
			_, err = task.ResultWriter().Write(data)
		}
		if err != nil {
			w.log.WithError(err).Debug("the dashboard's result of a settled task could not be written")
		}
	}()
	within(leaveTime, left)
}

// operationLine is the one log line of an operation: the same fields each time, whatever it was and however it ended.
type operationLine struct {
	task, run, step, server, tool string
	legs                          []mcp.Leg
	elapsed                       time.Duration
}

func (w *Worker) logOperation(line operationLine, what string, failure *mcp.Failure) {
	legs := make([]string, len(line.legs))
	for i, leg := range line.legs {
		legs[i] = leg.Method + " " + leg.Elapsed.Round(time.Millisecond).String()
	}
	fields := logrus.Fields{
		"task": line.task, "run": line.run, "step": line.step, "server": line.server, "tool": line.tool,
		"kind": "", "asked": string(mcp.AskedYes), "legs": strings.Join(legs, ", "), "elapsed": line.elapsed.Round(time.Millisecond).String(),
	}
	if failure == nil {
		w.log.WithFields(fields).Info(what + " succeeded")
		return
	}
	fields["kind"], fields["asked"] = string(failure.Kind), string(failure.Asked)
	w.log.WithFields(fields).Warn(what + " failed: " + failure.Message)
}

// logUnsettled is for an operation whose outcome was not written down: the log is then the only place that has it.
func (w *Worker) logUnsettled(s settlement, err error) {
	outcome := "it had succeeded"
	if s.failure != nil {
		outcome = s.failure.Message
	}
	w.log.WithError(err).WithFields(logrus.Fields{"task": s.task, "outcome": outcome}).Error("the outcome of " + s.what + " was not written down")
}

// logUntyped names the tools that came without an input schema; the first ten of many.
func (w *Worker) logUntyped(task, server string, tools []string) {
	if len(tools) == 0 {
		return
	}
	names := fmt.Sprintf("%q", tools[:min(len(tools), 10)])
	w.log.WithFields(logrus.Fields{"task": task, "server": server}).Warnf("%d tools came without an input schema and are taken to accept any object: %s", len(tools), names)
}

func encodeLegs(legs []mcp.Leg) json.RawMessage {
	if len(legs) == 0 {
		return json.RawMessage("[]")
	}
	data, err := encode(legs)
	if err != nil {
		panic(err) // a Leg has nothing that cannot be encoded
	}
	return data
}

// encode is json.Marshal, but leaves what others wrote as they wrote it: < is not escaped.
func encode(value any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func rowFailure(f *mcp.Failure) store.Failure {
	return store.Failure{Kind: string(f.Kind), Message: f.Message, Asked: string(f.Asked)}
}
