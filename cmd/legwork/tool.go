package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"legwork/config"
	"legwork/store"
)

func newToolCommand(a *app) *cobra.Command {
	return group("tool", "decide about the tools of the catalogues",
		newToolListCommand(a), newToolEnableCommand(a, true), newToolEnableCommand(a, false), newToolSetEffectCommand(a))
}

func newToolListCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list [SERVER]", Short: "list the tools of all servers, or of one", Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			server := ""
			if len(args) == 1 {
				server = args[0]
			}
			return a.withStore(cmd.Context(), func(_ config.Config, rows *store.Store) error {
				if server != "" {
					if _, err := rows.Server(cmd.Context(), server); err != nil {
						return noSuchServer(err, server)
					}
				}
				tools, err := rows.Tools(cmd.Context(), server)
				if err != nil {
					return err
				}
				return a.listTools(tools, server, asJSON)
			})
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (a *app) listTools(tools []store.Tool, server string, asJSON bool) error {
	if asJSON {
		return a.writeJSON(append([]store.Tool{}, tools...))
	}
	if len(tools) == 0 {
		a.hint("no tools yet: import a catalogue with \"legwork import %s --wait\"", cmp.Or(server, "--all"))
		return nil
	}
	rows := make([][]string, len(tools))
	for i, t := range tools {
		state := "disabled"
		if t.Enabled {
			state = "enabled"
		}
		if t.OrphanedAt != nil {
			state += ", gone since " + t.OrphanedAt.UTC().Format("2006-01-02")
		}
		rows[i] = []string{t.Name, t.Server, state, t.Effect, cmp.Or(t.Title, t.Description)}
	}
	a.table([]column{
		{title: "tool", last: 20}, {title: "server", spare: 2}, {title: "state", last: 10}, {title: "effect", last: 10},
		{title: "what it says of itself", least: 16, spare: 1},
	}, rows)
	return nil
}

func newToolEnableCommand(a *app, on bool) *cobra.Command {
	use, short, done := "enable TOOL...", "let models choose tools", "enabled"
	if !on {
		use, short, done = "disable TOOL...", "keep models from choosing tools", "disabled"
	}
	return &cobra.Command{
		Use: use, Short: short, Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeTools(cmd.Context(), args, done, func(ctx context.Context, rows *store.Store, name string) error {
				return rows.SetToolEnabled(ctx, name, on)
			})
		},
	}
}

// effects are what a call of a tool may do to the world, the harmless first.
var effects = []string{"read_only", "idempotent_write", "non_idempotent_write"}

func newToolSetEffectCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "set-effect TOOL EFFECT",
		Short: "declare what a call of a tool does: " + strings.Join(effects, ", "),
		Long: "Declares what a call of a tool does to the world: " + strings.Join(effects, ", ") + ".\n\n" +
			"A call that a dying worker left behind is repeated only for the first two: nobody knows whether the server acted.",
		Args: args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			effect := strings.ReplaceAll(args[1], "-", "_")
			if !slices.Contains(effects, effect) {
				return usagef("the effect is %q: it must be one of %s", args[1], strings.Join(effects, ", "))
			}
			return a.changeTools(cmd.Context(), args[:1], "is "+effect, func(ctx context.Context, rows *store.Store, name string) error {
				return rows.SetToolEffect(ctx, name, effect)
			})
		},
	}
}

func (a *app) changeTools(ctx context.Context, names []string, done string, change func(context.Context, *store.Store, string) error) error {
	return a.withStore(ctx, func(_ config.Config, rows *store.Store) error {
		for _, name := range names {
			err := change(ctx, rows, name)
			if errors.Is(err, store.ErrNotFound) {
				return fmt.Errorf("there is no tool %q: \"legwork tool list\" shows those there are", name)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "tool %s %s\n", name, done)
		}
		return nil
	})
}
