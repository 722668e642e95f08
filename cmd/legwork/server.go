package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"legwork/config"
	"legwork/mcp"
	"legwork/store"
	"legwork/worker"
)

func newServerCommand(a *app) *cobra.Command {
	return group("server", "configure MCP servers",
		newServerAddCommand(a), newServerSetCommand(a), newServerListCommand(a), newServerShowCommand(a),
		newServerEnableCommand(a, true), newServerEnableCommand(a, false), newServerPingCommand(a), newServerRemoveCommand(a))
}

// serverFlags are what an operator decides about a server, as flags of add and set.
type serverFlags struct {
	cmd                                                *cobra.Command
	url, name, credential, auth, authHeader, dataClass string
	timeout, maxInFlight                               int
	enable, requiresApproval                           bool
	wayIn                                              wayInFlags
}

func newServerFlags(cmd *cobra.Command) *serverFlags {
	f := &serverFlags{cmd: cmd}
	flags := cmd.Flags()
	flags.StringVar(&f.name, "name", "", "what people call it")
	flags.StringVar(&f.credential, "credential", "", "where its credential is found: env:NAME or file:/path, never the secret itself")
	flags.StringVar(&f.auth, "auth", "", "how the credential is sent: none, bearer or header (bearer when one is given)")
	flags.StringVar(&f.authHeader, "auth-header", "", "the header that carries it, for --auth header")
	flags.StringVar(&f.dataClass, "data-class", "", "what data may go there, in your own words; a server without one is not asked")
	flags.IntVar(&f.timeout, "timeout", 0, "its own budget for one operation, in seconds; 0 takes LEGWORK_MCP_OPERATION_TIMEOUT")
	flags.IntVar(&f.maxInFlight, "max-in-flight", 0, "operations that one worker has under way with it at most; 0 takes a fifth of LEGWORK_CONCURRENCY")
	flags.BoolVar(&f.enable, "enable", false, "let it be asked")
	flags.BoolVar(&f.requiresApproval, "requires-approval", true, "whether a person approves what a model wants to call there")
	f.wayIn.define(flags)
	return f
}

func (f *serverFlags) given(name string) bool { return f.cmd.Flags().Changed(name) }

// apply writes what was given into s and checks the whole.
func (f *serverFlags) apply(s *store.Server) error {
	if f.given("url") {
		s.URL = f.url
	}
	if f.given("name") {
		s.Name = strings.TrimSpace(f.name)
	}
	if f.given("data-class") {
		s.DataClass = strings.TrimSpace(f.dataClass)
	}
	if f.given("enable") {
		s.Enabled = f.enable
	}
	if f.given("requires-approval") {
		s.RequiresApproval = f.requiresApproval
	}
	if err := f.number("timeout", f.timeout, "seconds", &s.OperationTimeoutSeconds); err != nil {
		return err
	}
	if err := f.number("max-in-flight", f.maxInFlight, "operations", &s.MaxInFlight); err != nil {
		return err
	}
	if err := f.applyWayIn(s); err != nil {
		return err
	}
	if err := f.applyCredential(s); err != nil {
		return err
	}
	if err := worker.ServerOf(*s).Validate(); err != nil {
		return usageError{err}
	}
	return nil
}

// number writes a number of the server's own that was given; 0 is none.
func (f *serverFlags) number(flag string, value int, unit string, into *int) error {
	const most = 1<<31 - 1 // the column's
	switch {
	case !f.given(flag):
		return nil
	case value < 0 || value > most:
		return usagef("--%s is %d: it must be from 1 to %d %s, or 0 for none of its own", flag, value, most, unit)
	}
	*into = value
	return nil
}

func (f *serverFlags) applyCredential(s *store.Server) error {
	if f.given("credential") {
		s.Credential = f.credential
	}
	if f.given("auth-header") {
		s.AuthHeaderName = f.authHeader
	}
	none := string(mcp.PlaceNone)
	switch {
	case f.given("auth"):
		s.AuthPlacement = f.auth
		if f.auth == none && !f.given("credential") {
			s.Credential = "" // it has no use any more
		}
	case f.given("credential") && s.Credential == "":
		s.AuthPlacement = none
	case f.given("auth-header") && s.AuthHeaderName != "":
		s.AuthPlacement = string(mcp.PlaceHeader)
	case s.Credential != "" && s.AuthPlacement == none:
		s.AuthPlacement = string(mcp.PlaceBearer)
	}
	if s.AuthPlacement != string(mcp.PlaceHeader) {
		if f.given("auth-header") && s.AuthHeaderName != "" {
			return usagef("--auth-header belongs to --auth header")
		}
		s.AuthHeaderName = ""
	}
	if s.OAuthTokenURL != "" && s.Credential == "" {
		return usagef("a token URL needs the client's secret: give --credential env:NAME or file:/path, or remove OAuth with --oauth-token-url=")
	}
	return nil
}

func newServerAddCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add IDENTIFIER URL",
		Short: "add a server",
		Example: "  legwork server add docs https://docs.example.com/mcp --credential env:DOCS_TOKEN --data-class internal --enable\n" +
			"  legwork server add crm https://crm.example.com/mcp --credential file:/run/secrets/crm --auth-header X-Api-Key\n" +
			"  legwork server add erp https://erp.example.com/mcp --credential env:ERP_SECRET " +
			"--oauth-token-url https://login.example.com/token --oauth-client-id legwork",
		Args: args(cobra.ExactArgs(2)),
	}
	flags := newServerFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s := store.Server{Identifier: args[0], URL: args[1], AuthPlacement: string(mcp.PlaceNone), RequiresApproval: true}
		if err := flags.apply(&s); err != nil {
			return err
		}
		return a.withStore(cmd.Context(), func(cfg config.Config, rows *store.Store) error {
			err := rows.AddServer(cmd.Context(), s)
			if errors.Is(err, store.ErrExists) {
				return fmt.Errorf("there is a server %q already: change it with \"legwork server set %s\"", s.Identifier, s.Identifier)
			}
			if err != nil {
				return err
			}
			a.serverIs(cfg, s, "added")
			return nil
		})
	}
	return cmd
}

func newServerSetCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "set IDENTIFIER", Short: "change a server; what is not given stays",
		Example: "  legwork server set docs --data-class public --timeout 60\n" +
			"  legwork server set docs --header X-Tenant=blue --header X-Old=",
		Args: args(cobra.ExactArgs(1)),
	}
	flags := newServerFlags(cmd)
	cmd.Flags().StringVar(&flags.url, "url", "", "where it is")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().NFlag() == 0 {
			return usagef("nothing to change was given")
		}
		return a.updateServer(cmd.Context(), args[0], "changed", flags.apply)
	}
	return cmd
}

func newServerEnableCommand(a *app, on bool) *cobra.Command {
	use, short, done := "enable IDENTIFIER", "let a server be asked", "enabled"
	if !on {
		use, short, done = "disable IDENTIFIER", "refuse imports and steps for a server", "disabled"
	}
	return &cobra.Command{
		Use: use, Short: short, Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.updateServer(cmd.Context(), args[0], done, func(s *store.Server) error {
				s.Enabled = on
				return nil
			})
		},
	}
}

// updateServer changes a row and says how the server stands then.
func (a *app) updateServer(ctx context.Context, identifier, done string, change func(*store.Server) error) error {
	return a.withStore(ctx, func(cfg config.Config, rows *store.Store) error {
		s, err := rows.UpdateServer(ctx, identifier, change)
		if err != nil {
			return noSuchServer(err, identifier)
		}
		a.serverIs(cfg, s, done)
		return nil
	})
}

// serverIs confirms a change and says what is still missing before the server is asked.
func (a *app) serverIs(cfg config.Config, s store.Server, done string) {
	fmt.Fprintf(a.stdout, "server %s %s\n", s.Identifier, done)
	var missing []string
	if s.DataClass == "" {
		missing = append(missing, fmt.Sprintf("it has no data class (legwork server set %s --data-class CLASS)", s.Identifier))
	}
	if !s.Enabled && done != "disabled" {
		missing = append(missing, fmt.Sprintf("it is disabled (legwork server enable %s)", s.Identifier))
	}
	if len(missing) > 0 {
		a.hint("it is not asked yet: %s", strings.Join(missing, ", and "))
	}
	if done != "disabled" {
		a.cautions(s)
	}
	if budget := worker.BudgetOf(s, cfg.OperationTimeout); budget.Owner == mcp.OwnerServer && budget.Total+worker.SettleTime > cfg.ShutdownTimeout {
		a.hint("its budget of %s is longer than asynq waits for a worker that is told to stop: set LEGWORK_SHUTDOWN_TIMEOUT to %.0f or more",
			duration(budget.Total), (budget.Total + worker.SettleTime).Seconds())
	}
}

func newServerListCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "list the servers", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd.Context(), func(_ config.Config, rows *store.Store) error {
				servers, err := rows.Servers(cmd.Context())
				if err != nil {
					return err
				}
				return a.listServers(servers, asJSON)
			})
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (a *app) listServers(servers []store.ServerOverview, asJSON bool) error {
	if asJSON {
		return a.writeJSON(append([]store.ServerOverview{}, servers...))
	}
	if len(servers) == 0 {
		a.hint(`no servers yet: add one with "legwork server add docs https://…"`)
		return nil
	}
	rows := make([][]string, len(servers))
	for i, s := range servers {
		latency := ""
		if s.LastLatencyMS != nil {
			latency = duration(milliseconds(*s.LastLatencyMS))
		}
		rows[i] = []string{
			s.Identifier, state(s.Server), strings.ReplaceAll(s.ImportStatus, "_", " "), strconv.Itoa(s.ToolCount),
			sinceIf(s.LastContactAt), latency, s.LatestErrorKind, s.URL,
		}
	}
	a.table([]column{
		{title: "server", last: 8}, {title: "state"}, {title: "catalogue", least: 7}, {title: "tools"}, {title: "last contact", spare: 2},
		{title: "latency", spare: 3}, {title: "latest error", least: 12}, {title: "url", least: 16, spare: 1},
	}, rows)
	return nil
}

// state is whether a server is asked, in a word or two.
func state(s store.Server) string {
	switch {
	case !s.Enabled:
		return "disabled"
	case s.DataClass == "":
		return "no data class"
	}
	return "ready"
}

func newServerShowCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "show IDENTIFIER", Short: "show all of one server", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd.Context(), func(cfg config.Config, rows *store.Store) error {
				servers, err := rows.Servers(cmd.Context())
				if err != nil {
					return err
				}
				i := slices.IndexFunc(servers, func(s store.ServerOverview) bool { return s.Identifier == args[0] })
				if i < 0 {
					return noSuchServer(store.ErrNotFound, args[0])
				}
				if asJSON {
					return a.writeJSON(servers[i])
				}
				a.showServer(cfg, servers[i])
				return nil
			})
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (a *app) showServer(cfg config.Config, s store.ServerOverview) {
	budget := duration(worker.BudgetOf(s.Server, cfg.OperationTimeout).Total)
	if s.OperationTimeoutSeconds > 0 {
		budget += ", its own"
	} else {
		budget += ", the installation's (LEGWORK_MCP_OPERATION_TIMEOUT)"
	}
	var sh sheet
	sh.add("Server", s.Identifier)
	sh.add("Name", s.Name)
	sh.add("URL", s.URL)
	sh.add("State", state(s.Server))
	if why := s.Inert(); why != "" {
		sh.add("Not asked", why)
	}
	sh.add("Data class", s.DataClass)
	sh.addWayIn(s.Server)
	sh.add("Budget", budget)
	if s.MaxInFlight > 0 {
		sh.add("In flight", fmt.Sprintf("%d operations of one worker at most, its own", s.MaxInFlight))
	} else {
		sh.add("In flight", "a fifth of a worker's LEGWORK_CONCURRENCY at most")
	}
	sh.add("Requires approval", yesNo(s.RequiresApproval))
	sh.add("Catalogue", strings.ReplaceAll(s.ImportStatus, "_", " "))
	sh.add("Tools", strconv.Itoa(s.ToolCount))
	sh.add("Last imported", timestamp(s.LastImportedAt))
	sh.add("Protocol", s.ProtocolVersion)
	sh.add("Last contact", timestamp(s.LastContactAt))
	if s.LastLatencyMS != nil {
		sh.add("Last latency", duration(milliseconds(*s.LastLatencyMS)))
	}
	if s.LatestErrorKind != "" {
		sh.add("Latest error", s.LatestErrorKind+", "+timestamp(s.LatestErrorAt))
		sh.add("", s.LatestErrorMessage)
	}
	sh.add("Added", timestamp(&s.CreatedAt))
	sh.add("Changed", timestamp(&s.UpdatedAt))
	a.sheet(sh)
}

func newServerRemoveCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "remove IDENTIFIER", Short: "remove a server and its catalogue; its steps stay", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd.Context(), func(_ config.Config, rows *store.Store) error {
				if err := rows.RemoveServer(cmd.Context(), args[0]); err != nil {
					return noSuchServer(err, args[0])
				}
				fmt.Fprintf(a.stdout, "server %s removed\n", args[0])
				return nil
			})
		},
	}
}
