package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"legwork/mcp"
	"legwork/store"
	"legwork/worker"
)

const (
	demoLimit = 40 * time.Second // for all operations; with all well they take a little more than demoBudget
	demoWidth = 80
)

// demoOperation is one operation that was enqueued.
type demoOperation struct {
	server string
	tool   string // empty: a catalogue import
	id     string // of the step, or of the import's task
	want   demoOutcome
	row    demoRow // as last read
}

func (o demoOperation) String() string {
	if o.tool == "" {
		return "import"
	}
	return "step " + o.tool
}

// demoRow is what Postgres says of an operation.
type demoRow struct {
	demoOutcome
	settled  bool
	sentence string
	legs     []mcp.Leg
}

// work enqueues an import and a step for each server, as a backend would, and waits until their rows are settled. That lasts
// demoLimit at most; what is not settled by then comes back so.
func (d *demo) work(ctx context.Context) ([]demoOperation, error) {
	client := asynq.NewClient(d.redis)
	defer client.Close()
	_, live := terminal(d.stdout)
	live = live && !d.verbose // the log would run into a line that is rewritten
	progress := &progress{out: d.stdout, live: live, width: d.lineWidth(), what: "the worker is at it", began: time.Now()}
	defer progress.end()
	if !live {
		fmt.Fprintln(d.stdout) // on a terminal the line is cleared again
	}
	var operations []demoOperation
	for _, c := range d.cases {
		if c.delicate {
			if err := d.await(ctx, operations, progress); err != nil {
				return nil, err
			}
		}
		added, err := enqueueDemo(ctx, client, c)
		if err != nil {
			return nil, err
		}
		operations = append(operations, added...)
	}
	return operations, d.await(ctx, operations, progress)
}

func enqueueDemo(ctx context.Context, client *asynq.Client, c demoCase) ([]demoOperation, error) {
	task, err := worker.NewImportTask(worker.ImportPayload{Server: c.server})
	if err != nil {
		return nil, err
	}
	imported, err := client.EnqueueContext(ctx, task)
	if err != nil {
		return nil, fmt.Errorf("enqueue the import of %q: %w", c.server, err)
	}
	task, step, err := worker.NewStepTask(worker.StepPayload{Server: c.server, Tool: c.tool, Arguments: json.RawMessage(c.arguments)})
	if err != nil {
		return nil, err
	}
	if _, err := client.EnqueueContext(ctx, task); err != nil {
		return nil, fmt.Errorf("enqueue the step of %q: %w", c.server, err)
	}
	return []demoOperation{
		{server: c.server, id: imported.ID, want: c.imported},
		{server: c.server, tool: c.tool, id: step, want: c.called},
	}, nil
}

// await reads the operations' rows until all are settled or time is up.
func (d *demo) await(ctx context.Context, operations []demoOperation, progress *progress) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		settled := 0
		for i := range operations {
			o := &operations[i]
			if !o.row.settled {
				var err error
				if o.row, err = d.read(ctx, *o); err != nil {
					return err
				}
			}
			if o.row.settled {
				settled++
			}
		}
		progress.state(fmt.Sprintf("%d of %d operations are settled", settled, 2*len(d.cases)))
		if settled == len(operations) || time.Since(progress.began) > demoLimit {
			return nil
		}
		select {
		case <-tick.C:
		case <-d.worker.done:
			return cmp.Or(d.worker.err, errors.New("the worker ended before its work was done"))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// read reads an operation's row.
func (d *demo) read(ctx context.Context, o demoOperation) (demoRow, error) {
	if o.tool == "" {
		return d.readImport(ctx, o)
	}
	return d.readStep(ctx, o)
}

func (d *demo) readStep(ctx context.Context, o demoOperation) (demoRow, error) {
	id, err := uuid.Parse(o.id)
	if err != nil {
		return demoRow{}, err
	}
	step, err := d.rows.Step(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return demoRow{demoOutcome: demoOutcome{status: "no row yet"}}, nil
	}
	if err != nil {
		return demoRow{}, err
	}
	legs, err := parseLegs(step.Legs)
	return demoRow{
		demoOutcome: demoOutcome{step.Status, step.FailureKind, step.Asked},
		settled:     step.FinishedAt != nil,
		sentence:    step.FailureMessage,
		legs:        legs,
	}, err
}

// readImport reads what an import left: a row of its own where it failed, and the server's row where it went well. The legs
// of one that went well stand in its task's result alone.
func (d *demo) readImport(ctx context.Context, o demoOperation) (demoRow, error) {
	failures, err := d.rows.ImportErrors(ctx, store.ImportErrorFilter{Server: o.server})
	if err != nil {
		return demoRow{}, err
	}
	server, err := d.rows.Server(ctx, o.server)
	if err != nil {
		return demoRow{}, err
	}
	row := demoRow{demoOutcome: demoOutcome{status: server.ImportStatus}}
	for _, failure := range failures {
		if failure.TaskID == o.id {
			row.kind, row.asked, row.sentence, row.settled = failure.Kind, failure.Asked, failure.Message, true
			row.legs, err = parseLegs(failure.Legs)
			return row, err
		}
	}
	task, err := d.inspector.GetTaskInfo(worker.QueueImport, o.id)
	if err != nil {
		return demoRow{}, fmt.Errorf("look up the import of %q: %w", o.server, err)
	}
	if server.LastImportedAt == nil || len(task.Result) == 0 {
		return row, nil
	}
	var result struct {
		Legs json.RawMessage `json:"legs"`
	}
	if err := json.Unmarshal(task.Result, &result); err != nil {
		return demoRow{}, fmt.Errorf("read the result of the import of %q: %w", o.server, err)
	}
	row.settled = true
	row.legs, err = parseLegs(result.Legs)
	return row, err
}

func (d *demo) printRows(operations []demoOperation) {
	cells := make([][]string, len(operations))
	for i, o := range operations {
		spent := ""
		if len(o.row.legs) > 0 {
			var total time.Duration
			for _, leg := range o.row.legs {
				total += leg.Elapsed
			}
			spent = duration(total)
		}
		cells[i] = []string{o.server, o.String(), o.row.status, o.row.kind, o.row.asked, spent, strconv.Itoa(len(o.row.legs))}
	}
	fmt.Fprintln(d.stdout)
	writeTable(d.stdout, d.lineWidth(), []column{
		{title: "server"}, {title: "operation", least: 9}, {title: "status"}, {title: "kind"}, {title: "asked"}, {title: "spent"}, {title: "legs"},
	}, cells)
}

// printFailures prints each failure's sentence and where its time went.
func (d *demo) printFailures(operations []demoOperation) {
	for _, o := range operations {
		if o.row.sentence == "" {
			continue
		}
		fmt.Fprintf(d.stdout, "\n%s, %s\n%s\n", o.server, o, d.indented(o.row.sentence))
		d.printLegs(o.row.legs)
	}
	if reading := demoReading(operations); reading != "" {
		fmt.Fprintf(d.stdout, "\nHow to read it:\n%s\n", d.indented(reading))
	}
}

func (d *demo) printLegs(legs []mcp.Leg) {
	method, granted, took := 0, 0, 0
	for _, leg := range legs {
		method, granted, took = max(method, len(leg.Method)), max(granted, len(duration(leg.Granted))), max(took, len(duration(leg.Elapsed)))
	}
	for _, leg := range legs {
		fmt.Fprintf(d.stdout, "    %-*s  granted %-*s  took %-*s  %s\n",
			method, leg.Method, granted, duration(leg.Granted), took, duration(leg.Elapsed), leg.Outcome)
	}
}

// demoReading tells the kinds of failure apart, in one sentence.
func demoReading(operations []demoOperation) string {
	var parts []string
	for _, meaning := range []struct {
		kind mcp.Kind
		says string
	}{
		{mcp.KindBudgetSpent, "failed because its budget was spent: it is alive, and was not asked for the work itself"},
		{mcp.KindUnreachable, "failed because the server is dead: no connection came about"},
		{mcp.KindNoAnswer, "took the request and never answered: nobody knows what it did with it"},
		{mcp.KindToolError, "works, and its tool failed"},
	} {
		for _, o := range operations {
			part := o.server + " " + meaning.says
			if o.row.kind == string(meaning.kind) && !slices.Contains(parts, part) {
				parts = append(parts, part)
			}
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return strings.Join(parts, "; ") + "."
}

// judge compares the rows with what they should be, and says so.
func (d *demo) judge(operations []demoOperation) error {
	var wrong []string
	for _, o := range operations {
		got := o.row.demoOutcome.String()
		if !o.row.settled {
			got += ", and not settled within " + duration(demoLimit)
		}
		if !o.row.settled || o.row.demoOutcome != o.want {
			wrong = append(wrong, fmt.Sprintf("  %s, %s: expected %s, got %s", o.server, o, o.want, got))
		}
	}
	if len(wrong) == 0 {
		fmt.Fprintf(d.stdout, "\nall %d rows are as they should be\n", len(operations))
		return nil
	}
	fmt.Fprintf(d.stdout, "\n%d of %d rows are not as they should be:\n%s\n", len(wrong), len(operations), strings.Join(wrong, "\n"))
	return errSaid{exitFailed}
}

func (d *demo) lineWidth() int { return min(d.widthOf(d.stdout), demoWidth) }

// indented is prose, two columns in.
func (d *demo) indented(text string) string {
	return "  " + strings.ReplaceAll(wrap(text, d.lineWidth()-2), "\n", "\n  ")
}
