package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"legwork/config"
	"legwork/mcp"
	"legwork/store"
)

func newRunCommand(a *app) *cobra.Command {
	return group("run", "read and cancel agent runs", newRunShowCommand(a), newRunCancelCommand(a))
}

// runSteps is how many steps of a run are shown.
const runSteps = 200

func newRunShowCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "show RUN", Short: "show a run and its steps", Args: args(cobra.ExactArgs(1)),
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
