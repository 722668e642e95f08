// Command interop talks to MCP servers that others wrote, as they publish them: a ping, an import, a call that succeeds, a
// call whose tool fails and a call that its budget cuts short, at each. It needs Go and npm; "make interop" starts it.
//
// It is a program rather than a test behind a build tag, so that vet and staticcheck always see it and its table is all that
// it prints. Nothing that the legwork binary is built from imports it.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"legwork/internal/npm"
	"legwork/mcp"
)

func main() { npm.Main("interop", run) }

const rowForm = "%-44s %-10s  %-6s  %4v  %s\n"

// run visits the servers whose names hold one of the words; all where there is none.
func run(ctx context.Context, out io.Writer, words []string) error {
	node, err := npm.Open(ctx, out)
	if err != nil {
		return err
	}
	packages, err := npm.NewPackages(files, "packages", "the servers of others")
	if err != nil {
		return err
	}
	modules, err := node.Install(ctx, packages)
	if err != nil {
		return err
	}
	gate, err := mcp.NewGate(mcp.GateOptions{AllowedHosts: []string{"127.0.0.1"}})
	if err != nil {
		return err
	}
	clock := mcp.MonotonicClock()
	client := mcp.NewClient(mcp.NewTransport(mcp.NewHTTPTransport(gate), clock), clock, "interop")
	defer client.Close()

	fmt.Fprintln(out)
	fmt.Fprintf(out, rowForm, "SERVER", "REVISION", "WHAT", "LEGS", "RESULT")
	passed, failed, skipped := 0, 0, 0
	for _, s := range append(npmSubjects(node, packages, modules), goSubjects()...) {
		if len(words) > 0 && !slices.ContainsFunc(words, func(word string) bool { return strings.Contains(s.name, word) }) {
			skipped++
			continue
		}
		rows, err := visit(ctx, client, s)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			failed++
			fmt.Fprintf(out, rowForm, s.name, "", "start", "", "failed: "+err.Error())
		}
		for _, r := range rows {
			if r.wrong == nil {
				passed++
			} else {
				failed++
			}
			fmt.Fprint(out, r.line(s.name))
		}
	}
	fmt.Fprintf(out, "\n%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	if failed > 0 {
		return errors.New("not everything is as it should be")
	}
	if passed == 0 {
		return fmt.Errorf("no server's name holds %q", words)
	}
	return nil
}

// row is one operation and how it went.
type row struct {
	what   string
	spent  mcp.Spent
	result string
	wrong  error // nil when all was as it should be
}

func (r row) line(server string) string {
	result := r.result
	if r.wrong != nil {
		result = "failed: " + r.wrong.Error()
	}
	line := fmt.Sprintf(rowForm, server, r.spent.Revision, r.what, len(r.spent.Legs), result)
	if r.wrong != nil {
		for _, leg := range r.spent.Legs {
			line += fmt.Sprintf("    %s: HTTP %d, %s, %s of %s\n", leg.Method, leg.Status, leg.Outcome, leg.Elapsed.Round(time.Millisecond), leg.Granted)
		}
	}
	return line
}

// visit starts a server, does with it what an installation does with one that is new to it, and stops it.
func visit(ctx context.Context, client *mcp.Client, s subject) ([]row, error) {
	address, stop, err := s.start(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	v := visitor{ctx: ctx, client: client, subject: s, server: mcp.Server{Identifier: "interop", URL: "http://" + address + "/mcp"}}
	return []row{v.ping(), v.list(), v.works(), v.fails(), v.cut()}, nil
}

// visitor is one round of operations. What one learns about the server travels into the next, as it does by way of the
// server's row.
type visitor struct {
	ctx     context.Context
	client  *mcp.Client
	subject subject
	server  mcp.Server
	schemas map[string]mcp.Tool
}

const (
	ample = 30 * time.Second // more than any of these operations takes
	tight = 2 * time.Second  // less than a slow tool takes
)

func budget(total time.Duration) mcp.Budget {
	return mcp.Budget{Total: total, Owner: mcp.OwnerInstallation}
}

// finish takes what was learned, and checks what holds for every operation.
func (v *visitor) finish(r row, revision string, legs int) row {
	if r.spent.Revision != "" {
		v.server.Revision = r.spent.Revision
	}
	switch {
	case r.wrong != nil:
	case r.spent.Revision != revision:
		r.wrong = fmt.Errorf("the revision agreed on should be %q", revision)
	case len(r.spent.Legs) > legs:
		r.wrong = fmt.Errorf("it took more than %d legs", legs)
	}
	return r
}

// callLegs is what a call may take at a server that is known.
func (s subject) callLegs() int {
	if s.revision == mcp.RevisionStateless {
		return 1
	}
	return 3
}

func (v *visitor) ping() row {
	info, spent, err := v.client.Ping(v.ctx, v.server, budget(ample))
	legs := 1
	if v.subject.revision != mcp.RevisionStateless {
		legs = 4 // the question that an unknown server is asked, the handshake, and ping
	}
	if err == nil && info.Name == "" {
		err = errors.New("the server does not say its name")
	}
	return v.finish(row{what: "ping", spent: spent, result: info.Name + " " + info.Version, wrong: err}, v.subject.revision, legs)
}

func (v *visitor) list() row {
	catalogue, spent, err := v.client.ListTools(v.ctx, v.server, budget(ample))
	r := row{what: "import", spent: spent, result: fmt.Sprintf("%d tools", len(catalogue.Tools)), wrong: err}
	v.schemas = map[string]mcp.Tool{}
	for _, tool := range catalogue.Tools {
		v.schemas[tool.Name] = tool
	}
	if err == nil {
		r.wrong = v.catalogueAsItShouldBe(catalogue)
	}
	pages, revision, legs := max(v.subject.pages, 1), v.subject.revision, 0
	switch {
	case v.subject.unnamed:
		revision, legs = mcp.RevisionUnnamed, pages
	case revision == mcp.RevisionStateless:
		legs = pages
	default:
		legs = 1 + 2 + pages // a look at the era, the handshake, the pages
	}
	return v.finish(r, revision, legs)
}

func (v *visitor) catalogueAsItShouldBe(catalogue mcp.Catalogue) error {
	for _, skipped := range catalogue.Skipped {
		return fmt.Errorf("tool %q was left out: %s", skipped.Name, skipped.Reason)
	}
	for _, name := range []string{v.subject.works.tool, v.subject.slow.tool} {
		if _, ok := v.schemas[name]; !ok {
			return fmt.Errorf("tool %q is not in the catalogue", name)
		}
	}
	return nil
}

func (v *visitor) call(c call, total time.Duration) (mcp.ToolResult, mcp.Spent, error) {
	return v.client.CallTool(v.ctx, v.server, mcp.ToolCall{
		Name: c.tool, Arguments: []byte(c.arguments), InputSchema: v.schemas[c.tool].InputSchema,
	}, budget(total))
}

func (v *visitor) works() row {
	result, spent, err := v.call(v.subject.works, ample)
	r := row{what: "call", spent: spent, result: fmt.Sprintf("%q", result.Text), wrong: err}
	if err == nil && !strings.Contains(result.Text, v.subject.says) {
		r.wrong = fmt.Errorf("it said %q, which does not hold %q", result.Text, v.subject.says)
	}
	if resumed := len(spent.Legs) - v.subject.callLegs(); err == nil && resumed != v.subject.resumed {
		r.wrong = fmt.Errorf("its stream should have been resumed %d times", v.subject.resumed)
	}
	return v.finish(r, v.subject.revision, v.subject.callLegs()+v.subject.resumed)
}

// fails calls a tool in a way that makes it fail. The answer must come as what it is, and not as a failure of the client.
func (v *visitor) fails() row {
	_, spent, err := v.call(v.subject.fails, ample)
	r := row{what: "fail", spent: spent}
	r.result, r.wrong = expect(err, v.subject.refuses, mcp.AskedYes)
	return v.finish(r, v.subject.revision, v.subject.callLegs())
}

func (v *visitor) cut() row {
	_, spent, err := v.call(v.subject.slow, cmp.Or(v.subject.budget, tight))
	r := row{what: "cut", spent: spent}
	r.result, r.wrong = expect(err, mcp.KindNoAnswer, mcp.AskedUnknown)
	if r.wrong == nil && !strings.Contains(err.Error(), "did not answer") {
		r.wrong = fmt.Errorf("the sentence should say that the server did not answer: %w", err) // it did not end its stream
	}
	return v.finish(r, v.subject.revision, v.subject.callLegs())
}

func expect(err error, kind mcp.Kind, asked mcp.Asked) (string, error) {
	var failure *mcp.Failure
	switch {
	case !errors.As(err, &failure):
		return "", fmt.Errorf("it should have ended in %s, and ended in %v", kind, err)
	case failure.Kind != kind || failure.Asked != asked:
		return "", fmt.Errorf("it should have ended in %s, asked %s, and ended in %s, asked %s: %s", kind, asked, failure.Kind, failure.Asked, failure.Message)
	}
	return string(failure.Kind), nil
}
