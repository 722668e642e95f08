package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"legwork/config"
	"legwork/mcp"
	"legwork/store"
)

func newRunCommand(a *app) *cobra.Command {
	return group("run", "read and cancel agent runs", newRunListCommand(a), newRunShowCommand(a), newRunCancelCommand(a))
}

func newRunListCommand(a *app) *cobra.Command {
	var (
		limit  int
		asJSON bool
	)
	cmd := &cobra.Command{
		Use: "list", Short: "list runs, newest first", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkLimit(limit); err != nil {
				return err
			}
			return a.withStore(cmd.Context(), func(_ config.Config, rows *store.Store) error {
				runs, err := rows.Runs(cmd.Context(), limit)
				if err != nil {
					return err
				}
				return a.listRuns(runs, asJSON)
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "how many at most")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (a *app) listRuns(runs []store.Run, asJSON bool) error {
	if asJSON {
		return a.writeJSON(append([]store.Run{}, runs...))
	}
	if len(runs) == 0 {
		a.hint(`no runs yet: a run gets its row with its first step, as with "legwork call SERVER TOOL --run UUID"`)
		return nil
	}
	rows := make([][]string, len(runs))
	for i, r := range runs {
		rows[i] = []string{r.ID.String(), r.Status, sinceIf(&r.CreatedAt), sinceIf(r.FinishedAt), r.CancelledBy}
	}
	a.table([]column{
		{title: "run"}, {title: "status"}, {title: "created", spare: 1}, {title: "finished", spare: 2}, {title: "cancelled by", least: 12, spare: 3},
	}, rows)
	return nil
}

// runSteps is how many steps of a run are shown.
const runSteps = 200

func newRunShowCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "show RUN", Short: "show a run and its steps, in the order in which they were created", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseID("run", args[0])
			if err != nil {
				return err
			}
			return a.withStore(cmd.Context(), func(_ config.Config, rows *store.Store) error {
				return a.showRun(cmd.Context(), rows, id, asJSON)
			})
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (a *app) showRun(ctx context.Context, rows *store.Store, id uuid.UUID, asJSON bool) error {
	run, err := rows.Run(ctx, id)
	if err != nil {
		return noSuchRow(err, "run", id, "a run gets its row with its first step")
	}
	steps, err := rows.Steps(ctx, store.StepFilter{Run: &id, Limit: runSteps})
	if err != nil {
		return err
	}
	if len(steps) == runSteps {
		a.hint("only the newest %d steps are shown: \"legwork step list --run %s --limit N\" lists more", runSteps, id)
	}
	slices.Reverse(steps) // as they were created
	if asJSON {
		return a.writeJSON(struct {
			store.Run
			Steps []store.Step `json:"steps"`
		}{run, append([]store.Step{}, steps...)})
	}
	var sh sheet
	sh.add("Run", run.ID.String())
	sh.add("Status", run.Status)
	sh.add("Cancelled by", run.CancelledBy)
	sh.add("Created", timestamp(&run.CreatedAt))
	sh.add("Finished", timestamp(run.FinishedAt))
	a.sheet(sh)
	if len(steps) == 0 {
		return nil
	}
	fmt.Fprintln(a.stdout)
	return a.listSteps(steps)
}

func newRunCancelCommand(a *app) *cobra.Command {
	var by string
	cmd := &cobra.Command{
		Use: "cancel RUN", Short: "cancel a run: no further step of it begins; what is under way runs out within its budget",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseID("run", args[0])
			if err != nil {
				return err
			}
			user, _ := a.lookupEnv("USER")
			by := cmp.Or(by, user, "an operator")
			return a.withStore(cmd.Context(), func(_ config.Config, rows *store.Store) error {
				run, err := rows.CancelRun(cmd.Context(), id, by, func(step store.Step) string {
					return mcp.Cancelled(step.Server, by).Message
				})
				if err != nil {
					return noSuchRow(err, "run", id, "a run gets its row with its first step")
				}
				fmt.Fprintf(a.stdout, "run %s %s\n", run.ID, run.Status)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&by, "by", "", "who or what cancels it, for the sentence (default $USER)")
	return cmd
}

// noSuchRow puts a row that is not there into an operator's words.
func noSuchRow(err error, what string, id uuid.UUID, why string) error {
	if errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("there is no %s %s: %s", what, id, why)
	}
	return err
}
