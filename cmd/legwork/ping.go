package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"legwork/config"
	"legwork/mcp"
	"legwork/store"
	"legwork/worker"
)

func newServerPingCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ping IDENTIFIER",
		Short: "ask a server whether it is there and what it is, from here and now",
		Long: "Asks a server whether it is there and what it is, within its budget. This runs here, not in a worker: " +
			"it needs the way to the server and its credential. A server that is disabled is asked too.",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd.Context(), func(cfg config.Config, rows *store.Store) error {
				s, err := rows.Server(cmd.Context(), args[0])
				if err != nil {
					return noSuchServer(err, args[0])
				}
				return a.ping(cmd.Context(), cfg, rows, s, asJSON)
			})
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (a *app) ping(ctx context.Context, cfg config.Config, rows *store.Store, s store.Server, asJSON bool) error {
	client, err := newClient(cfg, func(next http.RoundTripper) http.RoundTripper { return interruptible{ctx, next} })
	if err != nil {
		return err
	}
	defer client.Close()
	info, spent, err := client.Ping(ctx, worker.ServerOf(s), worker.BudgetOf(s, cfg.OperationTimeout))
	if ctx.Err() != nil {
		return errors.New("interrupted: the ping was given up")
	}
	var failure *mcp.Failure
	if err != nil && !errors.As(err, &failure) {
		return err
	}
	// How the server is doing is worth a row, but not worth failing for.
	if failure == nil {
		contact := store.Contact{
			Server: s.Identifier, At: time.Now(), LatencyMS: spent.Latency().Milliseconds(), ProtocolVersion: spent.Revision,
		}
		if err := rows.RecordContacts(ctx, []store.Contact{contact}); err != nil {
			a.hint("legwork: warning: the contact could not be recorded: %s", err)
		}
	}
	err = nil
	if asJSON {
		err = a.pingJSON(s, info, spent, failure)
	} else {
		a.pingText(s, info, spent, failure)
	}
	if failure != nil && err == nil {
		return sentence(failure.Message)
	}
	return err
}

func (a *app) pingText(s store.Server, info mcp.ServerInfo, spent mcp.Spent, failure *mcp.Failure) {
	if failure == nil {
		var sh sheet
		sh.add("Server", s.Identifier)
		sh.add("Calls itself", oneLine(info.Name+" "+info.Version))
		sh.add("Protocol", info.Revision)
		sh.add("Capabilities", capabilities(info.Capabilities))
		sh.add("TLS", secured(info.TLS))
		sh.add("Latency", duration(spent.Latency()))
		sh.add("Spent", fmt.Sprintf("%s of %s", duration(spent.Elapsed), duration(spent.Budget.Total)))
		a.sheet(sh)
		fmt.Fprintln(a.stdout)
	}
	a.legs(spent.Legs, mcp.AskedNo)
}

// capabilities names what a server says it can do.
func capabilities(raw json.RawMessage) string {
	var named map[string]json.RawMessage
	if json.Unmarshal(raw, &named) != nil || len(named) == 0 {
		return "none named"
	}
	return oneLine(strings.Join(slices.Sorted(maps.Keys(named)), ", "))
}

// secured says how the connection was, and how long that can last.
func secured(info *mcp.TLSInfo) string {
	if info == nil {
		return "none"
	}
	return oneLine(fmt.Sprintf("%s, %s; certificate of %s, issued by %s, expires %s",
		info.Version, cmp.Or(strings.ReplaceAll(info.Protocol, "h2", "HTTP/2"), "HTTP/1.1"), cmp.Or(info.Subject, "no name"), info.Issuer, timestamp(&info.ExpiresAt)))
}

func (a *app) pingJSON(s store.Server, info mcp.ServerInfo, spent mcp.Spent, failure *mcp.Failure) error {
	type failed struct {
		Kind    mcp.Kind  `json:"kind"`
		Asked   mcp.Asked `json:"asked"`
		Message string    `json:"message"`
	}
	answer := struct {
		Server    string          `json:"server"`
		Info      *mcp.ServerInfo `json:"info"`
		LatencyMS int64           `json:"latency_ms"`
		ElapsedMS int64           `json:"elapsed_ms"`
		BudgetMS  int64           `json:"budget_ms"`
		Legs      []mcp.Leg       `json:"legs"`
		Failure   *failed         `json:"failure"`
	}{
		Server: s.Identifier, LatencyMS: spent.Latency().Milliseconds(), ElapsedMS: spent.Elapsed.Milliseconds(),
		BudgetMS: spent.Budget.Total.Milliseconds(), Legs: append([]mcp.Leg{}, spent.Legs...),
	}
	if failure != nil {
		answer.Failure = &failed{failure.Kind, failure.Asked, failure.Message}
	} else {
		answer.Info = &info
	}
	return a.writeJSON(answer)
}

// interruptible ends requests when somebody presses Ctrl-C. An operation of package mcp is ended by its budget only, which
// is right for a worker; a person at a terminal should not have to wait for it.
type interruptible struct {
	ctx  context.Context
	next http.RoundTripper
}

func (t interruptible) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	context.AfterFunc(t.ctx, cancel) // not undone: the body is read later, and the process is about to end anyway
	return t.next.RoundTrip(req.WithContext(ctx))
}
