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
		newToolListCommand(a), newToolShowCommand(a), newToolEnableCommand(a, true), newToolEnableCommand(a, false), newToolSetEffectCommand(a))
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
		rows[i] = []string{t.Name, t.Server, toolState(t), t.Effect, cmp.Or(t.Title, t.Description)}
	}
	a.table([]column{
		{title: "tool", last: 20}, {title: "server", spare: 2}, {title: "state", last: 10}, {title: "effect", last: 10},
		{title: "what it says of itself", least: 16, spare: 1},
	}, rows)
	return nil
}

// toolState is how a tool stands, in a few words.
func toolState(t store.Tool) string {
	state := "disabled"
	if t.Enabled {
		state = "enabled"
	}
	switch {
	case t.NotCallable != "":
		state += ", not callable"
	case t.NotOffered != "":
		state += ", not offered"
	}
	if t.OrphanedAt != nil {
		state += ", gone since " + t.OrphanedAt.UTC().Format("2006-01-02")
	}
	return state
}

func newToolShowCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "show TOOL", Short: "show all of one tool: what it takes, and why no model is offered it if none is", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd.Context(), func(_ config.Config, rows *store.Store) error {
				tool, err := rows.Tool(cmd.Context(), args[0])
				if err != nil {
					return noSuchTool(err, args[0])
				}
				if asJSON {
					return a.writeJSON(tool)
				}
				a.showTool(tool)
				return nil
			})
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (a *app) showTool(t store.Tool) {
	var sh sheet
	sh.add("Tool", t.Name)
	sh.add("Server", t.Server)
	sh.add("Name there", t.RemoteName)
	sh.add("Title", t.Title)
	sh.add("State", toolState(t))
	sh.add("Effect", t.Effect)
	sh.add("Not callable", t.NotCallable)
	if t.NotOffered != t.NotCallable {
		sh.add("Not offered", t.NotOffered)
	}
	sh.add("Imported", timestamp(&t.ImportedAt))
	sh.add("Changed", timestamp(&t.UpdatedAt))
	a.sheet(sh)
	if t.Description != "" {
		a.section("Description", t.Description)
	}
	if len(t.Annotations) > 0 {
		a.section("Annotations (the server's word, by which nothing is decided)", indented(t.Annotations))
	}
	if len(t.InputSchema) > 0 {
		a.section("Input schema", indented(t.InputSchema))
	}
	if len(t.ModelSchema) > 0 {
		a.section("Input schema as a model is given it", indented(t.ModelSchema))
	}
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
				if err := rows.SetToolEnabled(ctx, name, on); err != nil || !on {
					return err
				}
				tool, err := rows.Tool(ctx, name)
				if err == nil && tool.NotOffered != "" {
					a.hint("no model is offered %s all the same: %s", name, oneLine(tool.NotOffered))
				}
				return err
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
			if err := change(ctx, rows, name); err != nil {
				return noSuchTool(err, name)
			}
			fmt.Fprintf(a.stdout, "tool %s %s\n", name, done)
		}
		return nil
	})
}

// noSuchTool puts a row that is not there into an operator's words.
func noSuchTool(err error, name string) error {
	if errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("there is no tool %q: \"legwork tool list\" shows those there are", name)
	}
	return err
}
