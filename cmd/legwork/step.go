package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"legwork/config"
	"legwork/mcp"
	"legwork/store"
)

func newStepCommand(a *app) *cobra.Command {
	return group("step", "read how steps went", newStepShowCommand(a), newStepListCommand(a))
}

// stepStates are the states of a step, in the order in which it goes through them.
var stepStates = []string{"pending", "awaiting_approval", "running", "succeeded", "failed", "cancelled"}

func newStepListCommand(a *app) *cobra.Command {
	var (
		filter store.StepFilter
		run    string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use: "list", Short: "list steps, newest first",
		Example: "  legwork step list --status failed --server docs",
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if filter.Status != "" && !slices.Contains(stepStates, filter.Status) {
				return usagef("--status is %q: it must be one of %s", filter.Status, strings.Join(stepStates, ", "))
			}
			if run != "" {
				id, err := parseID("run", run)
				if err != nil {
					return err
				}
				filter.Run = &id
			}
			if err := checkLimit(filter.Limit); err != nil {
				return err
			}
			return a.withStore(cmd.Context(), func(_ config.Config, rows *store.Store) error {
				steps, err := rows.Steps(cmd.Context(), filter)
				if err == nil && len(steps) == 0 {
					err = nothingKnown(cmd.Context(), rows, filter)
				}
				if err != nil {
					return err
				}
				if asJSON {
					return a.writeJSON(append([]store.Step{}, steps...))
				}
				if len(steps) == 0 {
					a.hint(`no steps here: enqueue one with "legwork call SERVER TOOL"`)
					return nil
				}
				return a.listSteps(steps)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&filter.Status, "status", "", "only steps in this state: "+strings.Join(stepStates, ", "))
	flags.StringVar(&filter.Server, "server", "", "only steps against this server")
	flags.StringVar(&run, "run", "", "only steps of this run")
	flags.IntVar(&filter.Limit, "limit", 50, "how many at most")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// nothingKnown says why a list is empty where the filter names what is not there. Steps outlive their server.
func nothingKnown(ctx context.Context, rows *store.Store, filter store.StepFilter) error {
	if filter.Run != nil {
		if _, err := rows.Run(ctx, *filter.Run); err != nil {
			return noSuchRow(err, "run", *filter.Run, "a run gets its row with its first step")
		}
	}
	if filter.Server == "" {
		return nil
	}
	if _, err := rows.Server(ctx, filter.Server); !errors.Is(err, store.ErrNotFound) {
		return err
	}
	known, err := rows.Steps(ctx, store.StepFilter{Server: filter.Server, Limit: 1})
	if err != nil || len(known) > 0 {
		return err
	}
	return noSuchServer(store.ErrNotFound, filter.Server)
}

// parseID reads an id from the command line.
func parseID(what, text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return id, usagef("the %s %q is no UUID", what, text)
	}
	return id, nil
}

func (a *app) listSteps(steps []store.Step) error {
	rows := make([][]string, len(steps))
	for i, s := range steps {
		spent, err := spentOn(s)
		if err != nil {
			return err
		}
		rows[i] = []string{s.ID.String(), s.Status, s.Server, s.Tool, s.FailureKind, s.Asked, spent, ago(s.CreatedAt, time.Now())}
	}
	a.table([]column{
		{title: "step"}, {title: "status", last: 9}, {title: "server", least: 8, spare: 1}, {title: "tool", least: 8, spare: 2},
		{title: "kind", last: 8}, {title: "asked", spare: 4}, {title: "spent", spare: 5}, {title: "age", spare: 3},
	}, rows)
	return nil
}

// spentOn is what a step's legs took, of its budget.
func spentOn(s store.Step) (string, error) {
	legs, err := parseLegs(s.Legs)
	if err != nil || len(legs) == 0 {
		return "", err
	}
	var spent time.Duration
	for _, leg := range legs {
		spent += leg.Elapsed
	}
	if s.BudgetMS == nil {
		return duration(spent), nil
	}
	return duration(spent) + " of " + duration(milliseconds(*s.BudgetMS)), nil
}

// lease is until when a worker has what it runs. It is empty for what does not run.
func lease(end *time.Time, now time.Time) string {
	switch {
	case end == nil:
		return ""
	case end.Before(now):
		return fmt.Sprintf("over since %s (%s): another worker may take or settle it", timestamp(end), ago(*end, now))
	}
	return fmt.Sprintf("until %s (for %s)", timestamp(end), duration(end.Sub(now).Round(time.Second)))
}

func newStepShowCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "show STEP", Short: "show all of one step: what failed, whether the server was asked, and where the budget went",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseID("step", args[0])
			if err != nil {
				return err
			}
			return a.withStore(cmd.Context(), func(_ config.Config, rows *store.Store) error {
				step, err := rows.Step(cmd.Context(), id)
				if err != nil {
					return noSuchRow(err, "step", id, `one that no worker has taken yet has no row; "legwork step list" shows those there are`)
				}
				if asJSON {
					return a.writeJSON(step)
				}
				return a.showStep(step)
			})
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (a *app) showStep(s store.Step) error {
	legs, err := parseLegs(s.Legs)
	if err != nil {
		return err
	}
	spent, err := spentOn(s)
	if err != nil {
		return err
	}
	var sh sheet
	sh.add("Step", s.ID.String())
	if s.RunID != nil {
		sh.add("Run", s.RunID.String())
	}
	sh.add("Status", strings.ReplaceAll(s.Status, "_", " "))
	sh.add("Kind", s.FailureKind)
	sh.add("Sentence", s.FailureMessage)
	sh.add("Asked", asked(s.Asked))
	sh.add("Server", s.Server)
	sh.add("Tool", s.Tool)
	sh.add("Spent", spent)
	sh.add("Created", timestamp(&s.CreatedAt))
	sh.add("Started", timestamp(s.StartedAt))
	sh.add("Finished", timestamp(s.FinishedAt))
	if s.ClaimedBy != "" {
		sh.add("Worker", fmt.Sprintf("%s, claim %d", s.ClaimedBy, s.Claim))
	}
	sh.add("Lease", lease(s.LeaseExpiresAt, time.Now()))
	a.sheet(sh)
	if s.FinishedAt != nil {
		fmt.Fprintln(a.stdout)
		a.legs(legs, mcp.Asked(s.Asked))
	}
	if len(s.Arguments) > 0 {
		a.section("Arguments", indented(s.Arguments))
	}
	if len(s.Result) > 0 {
		a.section("Result", resultText(s.Result))
	}
	return nil
}
