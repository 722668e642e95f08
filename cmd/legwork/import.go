package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/spf13/cobra"

	"legwork/config"
	"legwork/store"
	"legwork/worker"
)

type importOptions struct {
	all, wait bool
	limit     time.Duration
	json      bool
}

func newImportCommand(a *app) *cobra.Command {
	var opts importOptions
	cmd := &cobra.Command{
		Use:   "import IDENTIFIER | --all",
		Short: "enqueue the import of a server's catalogue of tools",
		Long: "Enqueues the import of a server's catalogue, or of every server that is enabled and has a data class, and prints the " +
			"task's id. With --wait it waits for the worker and prints what each import changed; where one fails, the sentence that " +
			"says why goes to stderr and the exit code is 1.",
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case opts.all && len(args) > 0:
				return usagef("give a server or --all, not both")
			case !opts.all && len(args) != 1:
				return usagef("give one server, or --all")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if opts.limit < 0 {
				return usagef("--wait-timeout is %s: it must be more than nothing", opts.limit)
			}
			return a.withStore(cmd.Context(), func(cfg config.Config, rows *store.Store) error {
				servers, err := a.toImport(cmd.Context(), rows, args)
				switch {
				case err != nil:
					return err
				case len(servers) == 0 && opts.json:
					return a.writeJSON([]*importing{})
				case len(servers) == 0:
					return nil
				}
				return a.importCatalogues(cmd.Context(), cfg, rows, servers, opts)
			})
		},
	}
	cmd.Flags().BoolVar(&opts.all, "all", false, "import from every server that is enabled and has a data class")
	waitFlags(cmd, &opts.wait, &opts.limit)
	jsonFlag(cmd, &opts.json)
	return cmd
}

// toImport is the server that was named, or every usable one. What is left out is said.
func (a *app) toImport(ctx context.Context, rows *store.Store, named []string) ([]store.Server, error) {
	if len(named) == 1 {
		s, err := rows.Server(ctx, named[0])
		if err != nil {
			return nil, noSuchServer(err, named[0])
		}
		if why := s.Inert(); why != "" {
			return nil, fmt.Errorf("server %q is not asked: %s", s.Identifier, why)
		}
		return []store.Server{s}, nil
	}
	all, err := rows.Servers(ctx)
	if err != nil {
		return nil, err
	}
	var usable []store.Server
	for _, s := range all {
		if why := s.Inert(); why != "" {
			a.hint("server %s is left out: %s", s.Identifier, why)
			continue
		}
		usable = append(usable, s.Server)
	}
	if len(usable) == 0 {
		a.hint(`no server to import from: add one with "legwork server add docs https://…", with a data class and enabled`)
	}
	return usable, nil
}

// importing is one import that was enqueued, and how it went once it is over.
type importing struct {
	Server   string              `json:"server"`
	TaskID   string              `json:"task_id"`
	Status   string              `json:"status,omitempty"` // succeeded or failed; empty before that
	Kind     string              `json:"kind,omitempty"`
	Sentence string              `json:"sentence,omitempty"`
	Report   *store.ImportReport `json:"report,omitempty"`
}

func (a *app) importCatalogues(ctx context.Context, cfg config.Config, rows *store.Store, servers []store.Server, opts importOptions) error {
	return a.withQueue(ctx, cfg, func(q *queue) error {
		imports := make([]*importing, len(servers))
		longest := time.Duration(0)
		for i, s := range servers {
			budget := worker.BudgetOf(s, cfg.OperationTimeout).Total
			longest = max(longest, budget)
			imports[i] = &importing{Server: s.Identifier, TaskID: uuid.NewString()}
			task, err := worker.NewImportTask(worker.ImportPayload{Server: s.Identifier},
				append(roomFor(budget), asynq.TaskID(imports[i].TaskID))...)
			if err != nil {
				return err
			}
			if err := q.enqueue(ctx, task); err != nil {
				return err
			}
		}
		if !opts.wait {
			return a.importsEnqueued(imports, opts)
		}
		if opts.limit == 0 {
			opts.limit = waitLimit(longest)
		}
		what := "import of " + imports[0].Server
		if len(imports) > 1 {
			what = fmt.Sprintf("%d imports", len(imports))
		}
		w := &waiter{
			queue: q, name: worker.QueueImport, progress: a.progress(what), limit: opts.limit, later: "legwork server list",
		}
		if err := w.imports(ctx, rows, imports); err != nil {
			return err
		}
		return a.imported(imports, opts.json)
	})
}

func (a *app) importsEnqueued(imports []*importing, opts importOptions) error {
	switch {
	case opts.json:
		return a.writeJSON(imports)
	case !opts.all:
		fmt.Fprintln(a.stdout, imports[0].TaskID)
		return nil
	}
	rows := make([][]string, len(imports))
	for i, m := range imports {
		rows[i] = []string{m.Server, m.TaskID}
	}
	a.table([]column{{title: "server", last: 8}, {title: "task"}}, rows)
	return nil
}

// imports waits until every import is over and writes into each how it went.
func (w *waiter) imports(ctx context.Context, rows *store.Store, imports []*importing) error {
	return w.until(ctx, func(ctx context.Context) (standing, bool, error) {
		var open []standing
		for _, m := range imports {
			if m.Status != "" {
				continue
			}
			now := w.queue.look(w.name, m.TaskID)
			if !now.over {
				open = append(open, now)
				continue
			}
			if err := m.settle(ctx, rows, now); err != nil {
				return standing{}, false, err
			}
		}
		switch {
		case len(open) == 0:
			return standing{}, true, nil
		case len(imports) == 1:
			return open[0], false, nil
		}
		return standing{
			text: fmt.Sprintf("%d of %d done, the next: %s", len(imports)-len(open), len(imports), open[0].text), untaken: open[0].untaken,
		}, false, nil
	})
}

// settle reads how an import went: from the result that it left with its task, or else, because the row is the truth and
// a result may get lost, from the rows.
func (m *importing) settle(ctx context.Context, rows *store.Store, now standing) error {
	var result struct {
		Status   string              `json:"status"`
		Kind     string              `json:"kind"`
		Sentence string              `json:"sentence"`
		Report   *store.ImportReport `json:"report"`
	}
	if json.Unmarshal(now.result, &result) == nil && result.Status != "" {
		m.Status, m.Kind, m.Sentence, m.Report = result.Status, result.Kind, result.Sentence, result.Report
		return nil
	}
	found, err := rows.ImportErrors(ctx, store.ImportErrorFilter{Server: m.Server, Limit: 1000})
	if err != nil {
		return err
	}
	for _, e := range found {
		if e.TaskID == m.TaskID && e.Kind != toolSkipped {
			m.Status, m.Kind, m.Sentence = "failed", e.Kind, e.Message
			return nil
		}
	}
	if now.lastErr != "" {
		m.Status, m.Sentence = "failed", oneLine(now.lastErr)
		return nil
	}
	m.Status = "succeeded"
	return nil
}

// toolSkipped is the kind of the row that a tool leaves which an import could not take.
const toolSkipped = "tool_skipped"

// imported prints what the imports changed, and the sentences of those that failed.
func (a *app) imported(imports []*importing, asJSON bool) error {
	failed, skipped := 0, 0
	rows := make([][]string, len(imports))
	for i, m := range imports {
		rows[i] = []string{m.Server, m.Status, m.Kind, "", "", "", "", "", ""}
		if r := m.Report; r != nil {
			for k, n := range []int{r.Imported, r.Changed, r.Unchanged, r.Revived, r.Orphaned, r.Skipped} {
				rows[i][3+k] = strconv.Itoa(n)
			}
			skipped += r.Skipped
		}
		if m.Status != "succeeded" {
			failed++
		}
	}
	if asJSON {
		if err := a.writeJSON(imports); err != nil {
			return err
		}
	} else {
		a.table([]column{
			{title: "server", least: 8}, {title: "status"}, {title: "kind", least: 8, last: 6}, {title: "new"}, {title: "changed"},
			{title: "unchanged", spare: 2}, {title: "revived", spare: 1}, {title: "orphaned"}, {title: "skipped"},
		}, rows)
	}
	for _, m := range imports {
		if m.Sentence != "" {
			a.hint("%s", m.Sentence)
		}
	}
	if skipped > 0 {
		a.hint(`why tools were skipped: "legwork import-error list"`)
	}
	if failed > 0 {
		return errSaid{exitFailed}
	}
	return nil
}
