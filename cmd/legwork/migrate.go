package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"legwork/store"
)

func newMigrateCommand(a *app) *cobra.Command {
	return group("migrate", "bring the database's schema up to date",
		newMigrateUpCommand(a), newMigrateDownCommand(a), newMigrateStatusCommand(a))
}

func newMigrateUpCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "up", Short: "apply every migration that is missing; safe to run several times and at once", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.settings()
			if err != nil {
				return err
			}
			applied, err := store.MigrateUp(cmd.Context(), cfg.DatabaseURL)
			for _, m := range applied {
				fmt.Fprintf(a.stdout, "applied %s\n", m.Name)
			}
			if err == nil && len(applied) == 0 {
				fmt.Fprintf(a.stdout, "the schema is at version %d already\n", store.SchemaVersion())
			}
			return err
		},
	}
}

func newMigrateDownCommand(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "down --yes", Short: "take the newest migration back, with the rows it holds", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !yes {
				return usagef("migrate down drops tables with every row in them: say --yes if that is wanted")
			}
			cfg, err := a.settings()
			if err != nil {
				return err
			}
			undone, err := store.MigrateDown(cmd.Context(), cfg.DatabaseURL)
			switch {
			case err != nil:
				return err
			case undone == nil:
				fmt.Fprintln(a.stdout, "there is no migration to take back")
			default:
				fmt.Fprintf(a.stdout, "took back %s\n", undone.Name)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "yes, drop the rows too")
	return cmd
}

func newMigrateStatusCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "status", Short: "list the migrations and when each was applied", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.migrateStatus(cmd.Context(), asJSON) },
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (a *app) migrateStatus(ctx context.Context, asJSON bool) error {
	cfg, err := a.settings()
	if err != nil {
		return err
	}
	migrations, err := store.MigrateStatus(ctx, cfg.DatabaseURL)
	if err != nil {
		return err
	}
	if asJSON {
		return a.writeJSON(migrations)
	}
	missing := false
	rows := make([][]string, len(migrations))
	for i, m := range migrations {
		applied := timestamp(m.AppliedAt)
		if m.AppliedAt == nil {
			applied, missing = "not applied", true
		}
		rows[i] = []string{strconv.FormatInt(m.Version, 10), applied, m.Name}
	}
	a.table([]column{{title: "version"}, {title: "applied"}, {title: "name", least: 10}}, rows)
	if missing {
		a.hint(`apply what is missing with "legwork migrate up"`)
	}
	return nil
}
