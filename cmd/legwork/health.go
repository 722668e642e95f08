package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"legwork/config"
	"legwork/store"
	"legwork/worker"
)

func newHealthCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "check Postgres, the schema and Redis, as a worker does when it starts",
		Args:  args(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.health(cmd.Context(), asJSON) },
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (a *app) health(ctx context.Context, asJSON bool) error {
	cfg, err := a.settings()
	if err != nil {
		return err
	}
	rows, err := store.Open(ctx, cfg.DatabaseURL, store.Options{})
	if err != nil {
		return err
	}
	defer rows.Close()
	postgres, queue := checkStore(ctx, rows), checkRedis(ctx, cfg)
	if asJSON {
		if err := a.writeJSON(map[string]string{"postgres": okOr(postgres), "redis": okOr(queue)}); err != nil {
			return err
		}
	} else {
		if postgres == nil {
			fmt.Fprintf(a.stdout, "Postgres  ok, schema version %d\n", store.SchemaVersion())
		}
		if queue == nil {
			fmt.Fprintln(a.stdout, "Redis     ok")
		}
	}
	return errors.Join(postgres, queue)
}

func checkRedis(ctx context.Context, cfg config.Config) error {
	limited, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	return worker.CheckRedis(limited, cfg.Redis)
}

func okOr(err error) string {
	if err != nil {
		return err.Error()
	}
	return "ok"
}
