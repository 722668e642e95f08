package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"legwork/config"
	"legwork/mcp"
	"legwork/store"
)

func newImportErrorCommand(a *app) *cobra.Command {
	return group("import-error", "read what imports could not do", newImportErrorListCommand(a))
}

func newImportErrorListCommand(a *app) *cobra.Command {
	var (
		filter       store.ImportErrorFilter
		asJSON, full bool
	)
	cmd := &cobra.Command{
		Use: "list [SERVER]", Short: "list what imports could not do, newest first", Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				filter.Server = args[0]
			}
			if err := checkLimit(filter.Limit); err != nil {
				return err
			}
			return a.withStore(cmd.Context(), func(_ config.Config, rows *store.Store) error {
				found, err := rows.ImportErrors(cmd.Context(), filter)
				if err == nil && len(found) == 0 && filter.Server != "" { // errors outlive their server
					_, err = rows.Server(cmd.Context(), filter.Server)
				}
				if err != nil {
					return noSuchServer(err, filter.Server)
				}
				return a.listImportErrors(found, asJSON, full)
			})
		},
	}
	cmd.Flags().IntVar(&filter.Limit, "limit", 50, "how many at most")
	cmd.Flags().BoolVar(&full, "full", false, "show each one whole, with its legs")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (a *app) listImportErrors(found []store.ImportError, asJSON, full bool) error {
	switch {
	case asJSON:
		return a.writeJSON(append([]store.ImportError{}, found...))
	case len(found) == 0:
		a.hint("no import errors: nothing went wrong, or nothing was imported yet")
		return nil
	case full:
		return a.showImportErrors(found)
	}
	rows := make([][]string, len(found))
	for i, e := range found {
		rows[i] = []string{sinceIf(&e.OccurredAt), e.Server, e.Kind, e.Tool, e.Asked, e.Message}
	}
	a.table([]column{
		{title: "when"}, {title: "server", last: 8}, {title: "kind", last: 8}, {title: "tool", least: 8, spare: 1},
		{title: "asked", spare: 2}, {title: "sentence", least: 24, last: 16},
	}, rows)
	return nil
}

func (a *app) showImportErrors(found []store.ImportError) error {
	for i, e := range found {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		var sh sheet
		sh.add("Server", e.Server)
		sh.add("When", timestamp(&e.OccurredAt))
		sh.add("Kind", e.Kind)
		sh.add("Tool", e.Tool)
		sh.add("Sentence", e.Message)
		sh.add("Asked", asked(e.Asked))
		if e.BudgetMS != nil {
			sh.add("Budget", duration(milliseconds(*e.BudgetMS)))
		}
		sh.add("Task", e.TaskID)
		a.sheet(sh)
		legs, err := parseLegs(e.Legs)
		if err != nil {
			return err
		}
		fmt.Fprintln(a.stdout)
		a.legs(legs, mcp.Asked(e.Asked))
	}
	return nil
}

func checkLimit(limit int) error {
	if limit < 1 {
		return usagef("--limit is %d: it must be 1 or more", limit)
	}
	return nil
}
