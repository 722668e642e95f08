package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"legwork/config"
	"legwork/store"
	"legwork/worker"
)

func newPruneCommand(a *app) *cobra.Command {
	var (
		days   int
		dryRun bool
	)
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "remove steps, runs and import errors that ended long ago",
		Long: "Removes steps that were settled so many days ago, runs that ended then and have no steps left, and import errors of then. " +
			"What waits, awaits approval or runs stays, however old it is. What Redis still has of the steps' tasks goes with them, so that " +
			"nobody runs one again whose row is gone. It may be run again, and beside workers: it removes few rows at a time. Days end " +
			"at midnight UTC.\n\nWithout --older-than it takes LEGWORK_RETENTION_DAYS, by which workers do the same by themselves.",
		Example: "legwork prune --older-than 90 --dry-run",
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("older-than") && (days < 1 || days > config.MaxRetentionDays) {
				return usagef("--older-than is %d: it must be a number of days from 1 to %d", days, config.MaxRetentionDays)
			}
			return a.prune(cmd.Context(), days, dryRun)
		},
	}
	cmd.Flags().IntVar(&days, "older-than", 0, "how many `days` ago it ended at least (default LEGWORK_RETENTION_DAYS)")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only tell how many there are")
	return cmd
}

// prune removes what is older than so many days; 0 stands for what the settings say.
func (a *app) prune(ctx context.Context, days int, dryRun bool) error {
	return a.withStore(ctx, func(cfg config.Config, rows *store.Store) error {
		if days == 0 {
			days = cfg.RetentionDays
		}
		if days == 0 {
			return usagef("nothing says how old is too old: give --older-than DAYS, or set LEGWORK_RETENTION_DAYS")
		}
		before := worker.Horizon(days)
		if dryRun {
			old, err := rows.CountOld(ctx, before)
			if err == nil {
				fmt.Fprintf(a.stdout, "would remove %s that ended before %s\n", old, before.Format(time.DateOnly))
			}
			return err
		}
		if err := checkRedis(ctx, cfg); err != nil {
			return err
		}
		pruned, err := worker.Prune(ctx, rows, cfg.Redis, before)
		if err == nil || pruned.Any() {
			fmt.Fprintf(a.stdout, "removed %s that ended before %s\n", pruned, before.Format(time.DateOnly))
		}
		if err != nil && ctx.Err() != nil {
			return errors.New("interrupted before all was removed: run it again to go on")
		}
		return err
	})
}
