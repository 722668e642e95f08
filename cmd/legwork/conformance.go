package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"legwork/config"
	"legwork/mcp"
)

// conformanceBudget is what each operation of a scenario may take. It is below what the suite gives the whole of it.
const conformanceBudget = 8 * time.Second

func newConformanceCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "conformance URL",
		Short: "drive the client through one scenario of the MCP conformance suite",
		Long: "Pings a server, lists its tools and calls them, as a fresh installation would. The official conformance suite starts this\n" +
			"once for each scenario, which it names in MCP_CONFORMANCE_SCENARIO; what it wants called is in MCP_CONFORMANCE_CONTEXT.\n" +
			"It needs no settings. \"make conformance\" runs the whole suite.",
		Args:   args(cobra.ExactArgs(1)),
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.conformance(cmd.Context(), args[0])
		},
	}
}

// suiteContext is what the suite says of a scenario beyond its name.
type suiteContext struct {
	ToolCalls []suiteCall `json:"toolCalls"`
}

// suiteCall is one call that a scenario wants.
type suiteCall struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

func (a *app) conformance(ctx context.Context, url string) error {
	scenario, ok := a.lookupEnv("MCP_CONFORMANCE_SCENARIO")
	if !ok {
		return usagef("MCP_CONFORMANCE_SCENARIO is not set: the conformance suite sets it, see \"make conformance\"")
	}
	var wanted suiteContext
	if raw, ok := a.lookupEnv("MCP_CONFORMANCE_CONTEXT"); ok && raw != "" {
		if err := json.Unmarshal([]byte(raw), &wanted); err != nil {
			return usagef("MCP_CONFORMANCE_CONTEXT is not the JSON that the suite writes: %w", err)
		}
	}
	client, err := newClient(config.Config{AllowPrivateNetworks: true})
	if err != nil {
		return err
	}
	defer client.Close()
	c := conversation{app: a, client: client, server: mcp.Server{Identifier: "conformance", URL: url}}

	if err := c.ping(ctx); err != nil {
		return err
	}
	tools, err := c.list(ctx)
	if err != nil {
		return err
	}
	calls := wanted.ToolCalls
	if calls == nil {
		if calls, err = callsFor(scenario, tools); err != nil {
			return err
		}
	}
	// The suite judges each call by itself, so one that fails does not end the scenario.
	var failed []error
	for _, call := range calls {
		failed = append(failed, c.call(ctx, call, tools))
	}
	revision, _ := a.lookupEnv("MCP_CONFORMANCE_PROTOCOL_VERSION")
	return errors.Join(append(failed, c.inEraOf(revision))...)
}

// conversation is a series of operations with one server. What one of them learns about the server travels into the next,
// as it does by way of the server's row.
type conversation struct {
	app    *app
	client *mcp.Client
	server mcp.Server
}

func (c *conversation) ping(ctx context.Context) error {
	_, spent, err := c.client.Ping(ctx, c.server, c.budget())
	return c.account("ping", spent, err)
}

func (c *conversation) list(ctx context.Context) (map[string]mcp.Tool, error) {
	catalogue, spent, err := c.client.ListTools(ctx, c.server, c.budget())
	if err := c.account("list", spent, err); err != nil {
		return nil, err
	}
	tools := map[string]mcp.Tool{}
	for _, tool := range catalogue.Tools {
		tools[tool.Name] = tool
	}
	for _, skipped := range catalogue.Skipped {
		fmt.Fprintf(c.app.stdout, "left out %q: %s\n", skipped.Name, skipped.Reason)
	}
	return tools, nil
}

func (c *conversation) call(ctx context.Context, call suiteCall, tools map[string]mcp.Tool) error {
	result, spent, err := c.client.CallTool(ctx, c.server, mcp.ToolCall{
		Name: call.Name, Arguments: call.Arguments, InputSchema: tools[call.Name].InputSchema,
	}, c.budget())
	err = c.account("call "+call.Name, spent, err)
	if err == nil {
		fmt.Fprintf(c.app.stdout, "  it said %q\n", result.Text)
	}
	return err
}

// inEraOf holds what was learned about the server against the revision of the scenario: checks that pass in the manner of
// the wrong era say nothing.
func (c *conversation) inEraOf(revision string) error {
	if revision != "" && (revision == mcp.RevisionStateless) != (c.server.Revision == mcp.RevisionStateless) {
		return fmt.Errorf("the scenario is of revision %q, but the server was spoken to in %q", revision, c.server.Revision)
	}
	return nil
}

func (c *conversation) budget() mcp.Budget {
	return mcp.Budget{Total: conformanceBudget, Owner: mcp.OwnerInstallation}
}

// account notes what an operation learnt and tells how it went. The suite keeps what is printed beside its checks.
func (c *conversation) account(what string, spent mcp.Spent, err error) error {
	c.server.Revision = cmp.Or(spent.Revision, c.server.Revision)
	var legs []string
	for _, leg := range spent.Legs {
		legs = append(legs, fmt.Sprintf("%s %s", leg.Method, leg.Outcome))
	}
	fmt.Fprintf(c.app.stdout, "%s: revision %q, legs: %s\n", what, spent.Revision, strings.Join(legs, ", "))
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
