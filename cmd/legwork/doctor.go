package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"legwork/config"
	"legwork/store"
	"legwork/worker"
)

func newDoctorCommand(a *app) *cobra.Command {
	var repair, asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "find steps, imports and queues that are stuck, and repair them when asked",
		Long: "Finds what no living worker mends: steps whose workers died and steps without tasks, in both of which nothing happens any more; imports " +
			"and runs that were left; paused queues. It says what is wrong, what that means and what a repair does, and changes nothing " +
			"without --repair. Repairs are harmless beside workers, and to repeat.\n\nIt exits with 0 when nothing is wrong, or no longer, and with 1 otherwise.",
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context(), repair, asJSON) },
	}
	cmd.Flags().BoolVar(&repair, "repair", false, "repair what can be repaired")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (a *app) doctor(ctx context.Context, repair, asJSON bool) error {
	return a.withStore(ctx, func(cfg config.Config, rows *store.Store) error {
		report, err := worker.Doctor(ctx, rows, cfg.Redis, repair)
		if err != nil && len(report.Findings) == 0 {
			return err
		}
		if asJSON {
			if err := a.writeJSON(struct {
				Healthy bool `json:"healthy"`
				worker.Report
			}{err == nil && report.Healthy(), report}); err != nil {
				return err
			}
		} else {
			a.diagnosis(report, repair)
		}
		switch {
		case err != nil:
			return err
		case report.Healthy():
			return nil
		case !repair:
			a.hint(`Repair what can be repaired with "legwork doctor --repair".`)
		}
		return errSaid{exitFailed}
	})
}

func (a *app) diagnosis(report worker.Report, repair bool) {
	line := func(indent, text string) { fmt.Fprintln(a.stdout, hang(indent, text, a.width())) }
	if len(report.Findings) == 0 {
		line("", "Nothing is wrong.")
	}
	for i, f := range report.Findings {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		line("", f.Wrong)
		line("  ", f.Meaning)
		line("  ", f.Repair)
		for _, row := range f.Rows {
			fmt.Fprintln(a.stdout, "    "+row)
		}
		if more := f.Count - len(f.Rows); more > 0 {
			line("    ", fmt.Sprintf("… and %d more", more))
		}
		if repair {
			line("  ", fmt.Sprintf("Repaired: %d of %d.", f.Repaired, f.Count))
		}
	}
	for _, advice := range report.Advice {
		fmt.Fprintln(a.stdout)
		line("", "Advice: "+advice)
	}
}
