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

// await reads the rows until all are settled, for as long as demoLimit; what is not settled by then comes back so.
func (d *demo) await(ctx context.Context, operations []demoOperation) ([]demoRow, error) {
	_, live := terminal(d.stdout)
	live = live && !d.verbose // the log would run into a line that is rewritten
	progress := &progress{out: d.stdout, live: live, width: d.lineWidth(), what: "the worker is at it", began: time.Now()}
	defer progress.end()
	if !live {
		fmt.Fprintln(d.stdout) // on a terminal the line is cleared again
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	rows := make([]demoRow, len(operations))
	for {
		settled := 0
		for i := range rows {
			if !rows[i].settled {
				var err error
				if rows[i], err = d.read(ctx, operations[i]); err != nil {
					return nil, err
				}
			}
			if rows[i].settled {
				settled++
			}
		}
		progress.state(fmt.Sprintf("%d of %d operations are settled", settled, len(rows)))
		if settled == len(rows) || time.Since(progress.began) > demoLimit {
			return rows, nil
		}
		select {
		case <-tick.C:
		case <-d.worker.done:
			return nil, cmp.Or(d.worker.err, errors.New("the worker ended before its work was done"))
		case <-ctx.Done():
			return nil, context.Cause(ctx)
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

func (d *demo) printRows(operations []demoOperation, rows []demoRow) {
	cells := make([][]string, len(rows))
	for i, row := range rows {
		spent := ""
		if len(row.legs) > 0 {
			var total time.Duration
			for _, leg := range row.legs {
				total += leg.Elapsed
			}
			spent = duration(total)
		}
		cells[i] = []string{
			operations[i].server, operations[i].String(), row.status, row.kind, row.asked, spent, strconv.Itoa(len(row.legs)),
		}
	}
	fmt.Fprintln(d.stdout)
	writeTable(d.stdout, d.lineWidth(), []column{
		{title: "server"}, {title: "operation", least: 9}, {title: "status"}, {title: "kind"}, {title: "asked"}, {title: "spent"}, {title: "legs"},
	}, cells)
}

// printFailures prints each failure's sentence and where its time went.
func (d *demo) printFailures(operations []demoOperation, rows []demoRow) {
	for i, row := range rows {
		if row.sentence == "" {
			continue
		}
		fmt.Fprintf(d.stdout, "\n%s, %s\n%s\n", operations[i].server, operations[i], d.indented(row.sentence))
		d.printLegs(row.legs)
	}
	if reading := demoReading(operations, rows); reading != "" {
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
func demoReading(operations []demoOperation, rows []demoRow) string {
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
		var servers []string
		for i, row := range rows {
			if row.kind == string(meaning.kind) && !slices.Contains(servers, operations[i].server) {
				servers = append(servers, operations[i].server)
			}
		}
		for _, server := range servers {
			parts = append(parts, server+" "+meaning.says)
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return strings.Join(parts, "; ") + "."
}

// judge compares the rows with what they should be, and says so.
func (d *demo) judge(operations []demoOperation, rows []demoRow) error {
	var wrong []string
	for i, row := range rows {
		got := row.demoOutcome.String()
		if !row.settled {
			got += ", and not settled within " + duration(demoLimit)
		}
		if row.settled && row.demoOutcome == operations[i].want {
			continue
		}
		wrong = append(wrong, fmt.Sprintf("  %s, %s: expected %s, got %s", operations[i].server, operations[i], operations[i].want, got))
	}
	if len(wrong) == 0 {
		fmt.Fprintf(d.stdout, "\nall %d rows are as they should be\n", len(rows))
		return nil
	}
	fmt.Fprintf(d.stdout, "\n%d of %d rows are not as they should be:\n%s\n", len(wrong), len(rows), strings.Join(wrong, "\n"))
	return errSaid{exitFailed}
}

func (d *demo) lineWidth() int { return min(d.widthOf(d.stdout), demoWidth) }

// indented is prose, two columns in.
func (d *demo) indented(text string) string {
	return "  " + strings.ReplaceAll(wrap(text, d.lineWidth()-2), "\n", "\n  ")
}
