package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"legwork/config"
	"legwork/store"
	"legwork/worker"
)

type callOptions struct {
	args, run string
	wait      bool
	limit     time.Duration
	json      bool
}

func newCallCommand(a *app) *cobra.Command {
	var opts callOptions
	cmd := &cobra.Command{
		Use:   "call SERVER TOOL",
		Short: "enqueue a step that calls a tool, as a backend would",
		Long: "Enqueues a step that calls a tool and prints the step's id. With --wait it waits for the worker and prints what the " +
			"tool answered; where the step fails, the sentence that says why goes to stderr and the exit code is 1.",
		Example: "  legwork call docs search --args '{\"query\":\"budget\"}' --wait\n  legwork call docs search --args @arguments.json",
		Args:    args(cobra.ExactArgs(2)),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.call(cmd.Context(), args[0], args[1], opts) },
	}
	cmd.Flags().StringVar(&opts.args, "args", "{}", "the tool's arguments: a JSON object, @FILE, or - for stdin")
	cmd.Flags().StringVar(&opts.run, "run", "", "the run that the step belongs to, a UUID; a new run is made where there is none")
	waitFlags(cmd, &opts.wait, &opts.limit)
	jsonFlag(cmd, &opts.json)
	return cmd
}

func waitFlags(cmd *cobra.Command, wait *bool, limit *time.Duration) {
	cmd.Flags().BoolVar(wait, "wait", false, "wait until it is done")
	cmd.Flags().DurationVar(limit, "wait-timeout", 0, "how long to wait at most, such as 90s (default: the budget and 5 minutes)")
}

func (a *app) call(ctx context.Context, server, tool string, opts callOptions) error {
	if opts.limit < 0 {
		return usagef("--wait-timeout is %s: it must be more than nothing", opts.limit)
	}
	arguments, err := a.readArguments(opts.args)
	if err != nil {
		return err
	}
	payload := worker.StepPayload{Server: server, Tool: tool, Arguments: arguments, RunID: opts.run}
	if _, _, err := worker.NewStepTask(payload); err != nil {
		return usageError{err}
	}
	return a.withStore(ctx, func(cfg config.Config, rows *store.Store) error {
		row, err := rows.Server(ctx, server)
		if err != nil {
			return noSuchServer(err, server)
		}
		if why := row.Inert(); why != "" {
			return fmt.Errorf("server %q is not asked: %s", server, why)
		}
		budget := worker.BudgetOf(row, cfg.OperationTimeout).Total
		task, id, err := worker.NewStepTask(payload, roomFor(budget)...)
		if err != nil {
			return err
		}
		return a.withQueue(ctx, cfg, func(q *queue) error {
			if err := q.enqueue(ctx, task); err != nil {
				return err
			}
			if !opts.wait {
				return a.enqueued(id, opts.json)
			}
			if opts.limit == 0 {
				opts.limit = waitLimit(budget)
			}
			w := &waiter{
				queue: q, name: worker.QueueAgent, progress: a.progress("step " + id),
				limit: opts.limit, later: "legwork step show " + id,
			}
			step, err := w.step(ctx, rows, uuid.MustParse(id))
			if err != nil {
				return err
			}
			return a.answer(step, opts.json)
		})
	})
}

func (a *app) enqueued(id string, asJSON bool) error {
	if asJSON {
		return a.writeJSON(map[string]string{"step_id": id})
	}
	fmt.Fprintln(a.stdout, id)
	return nil
}

// readArguments reads --args and checks that it is an object. Its bytes are kept: numbers must arrive as they were written.
func (a *app) readArguments(value string) (json.RawMessage, error) {
	data, from := []byte(value), "--args"
	var err error
	if path, isFile := strings.CutPrefix(value, "@"); isFile {
		from = "the file of --args"
		data, err = os.ReadFile(path)
	} else if value == "-" {
		from = "stdin, for --args,"
		data, err = io.ReadAll(a.stdin)
	}
	if err != nil {
		return nil, usagef("read the arguments: %w", err)
	}
	data = bytes.TrimSpace(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")))
	var object map[string]json.RawMessage
	err = json.Unmarshal(data, &object)
	var syntax *json.SyntaxError
	switch {
	case len(data) == 0:
		return nil, usagef("%s is empty: write a JSON object, {} for no arguments", from)
	case errors.As(err, &syntax):
		return nil, usagef("%s is not JSON: %w, at byte %d", from, err, syntax.Offset)
	case err != nil || object == nil:
		return nil, usagef("%s must be a JSON object, such as {\"query\":\"budget\"}", from)
	}
	return data, nil
}

// step waits until the step is settled.
func (w *waiter) step(ctx context.Context, rows *store.Store, id uuid.UUID) (store.Step, error) {
	var (
		step  store.Step
		ended int // looks in a row that found the job over and no row
	)
	err := w.until(ctx, func(ctx context.Context) (standing, bool, error) {
		var err error
		step, err = rows.Step(ctx, id)
		switch {
		case err == nil && step.FinishedAt != nil:
			return standing{}, true, nil
		case err == nil && step.StartedAt != nil:
			ended = 0
			return standing{text: strings.ReplaceAll(step.Status, "_", " ")}, false, nil
		case err != nil && !errors.Is(err, store.ErrNotFound):
			return standing{text: "Postgres does not answer: " + err.Error()}, false, nil
		}
		now := w.queue.look(w.name, id.String())
		if now.over {
			// The row may have come between the two looks.
			if ended++; ended > 1 {
				return now, false, sentence(fmt.Sprintf("The job ended without a row: %s", oneLine(now.lastErr)))
			}
		}
		return now, false, nil
	})
	return step, err
}

// answer prints what a settled step brought.
func (a *app) answer(step store.Step, asJSON bool) error {
	if asJSON {
		if err := a.writeJSON(step); err != nil {
			return err
		}
	}
	if step.FailureKind != "" {
		return sentence(fmt.Sprintf("%s\n\nMore: legwork step show %s", step.FailureMessage, step.ID))
	}
	if !asJSON {
		text := resultText(step.Result)
		if _, live := terminal(a.stdout); live {
			text = visible(text, '\uFFFD')
		}
		fmt.Fprintln(a.stdout, strings.TrimSuffix(text, "\n"))
	}
	return nil
}

// resultText is what a tool said, or its structured answer where it said nothing.
func resultText(result json.RawMessage) string {
	var said struct {
		Text       string          `json:"text"`
		Structured json.RawMessage `json:"structured"`
	}
	if json.Unmarshal(result, &said) != nil {
		return string(result)
	}
	if said.Text == "" && len(said.Structured) > 0 && string(said.Structured) != "null" {
		return indented(said.Structured)
	}
	return said.Text
}
