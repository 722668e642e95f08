// Command conformance runs the client scenarios of the official MCP conformance suite against "legwork conformance", at each
// revision that the suite offers them for. It needs Go and npm; "make conformance" starts it.
package main

import (
	"context"
	"embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"legwork/internal/npm"
)

const suitePackage = "@modelcontextprotocol/conformance"

//go:embed packages
var files embed.FS

func main() { npm.Main("conformance", run) }

// errFailed ends a run whose table says what is wrong.
type errFailed int

func (n errFailed) Error() string {
	return fmt.Sprintf("%d scenarios are not as they should be", int(n))
}

// run runs the named scenarios; all where none is named.
func run(ctx context.Context, out io.Writer, names []string) error {
	lists, err := readLists()
	if err != nil {
		return err
	}
	node, err := npm.Open(ctx, out)
	if err != nil {
		return err
	}
	packages, err := npm.NewPackages(files, "packages", "the conformance suite")
	if err != nil {
		return err
	}
	modules, err := node.Install(ctx, packages)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "legwork-conformance-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	if err := build(ctx, filepath.Join(folder, "legwork")); err != nil {
		return err
	}
	s := suite{
		node: node, script: filepath.Join(modules, filepath.FromSlash(suitePackage), "dist", "index.js"), folder: folder,
	}
	offered, err := s.list(ctx)
	if err != nil {
		return err
	}
	missing := lists.missingFrom(offered)
	if len(names) > 0 {
		offered = slices.DeleteFunc(offered, func(v variant) bool { return !slices.Contains(names, v.scenario) })
		missing = nil
		if len(offered) == 0 {
			return fmt.Errorf("the suite offers none of %q", names)
		}
	}

	fmt.Fprintf(out, "\n%s %s\n\n", suitePackage, packages.Version(suitePackage))
	fmt.Fprintf(out, rowForm, "SCENARIO", "REVISION", "CHECKS", "RESULT")
	results := runAll(ctx, &s, offered, lists, func(r result) { fmt.Fprint(out, r.row()) })
	for _, name := range missing {
		r := result{variant: variant{scenario: name}, outcome: failed, why: "the suite does not offer it: take it out of scenarios.json"}
		fmt.Fprint(out, r.row())
		results = append(results, r)
	}
	counts := map[outcome]int{}
	for _, r := range results {
		counts[r.outcome]++
		if r.outcome == failed {
			fmt.Fprint(out, r.story())
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	fmt.Fprintf(out, "\n%d passed, %d failed, %d skipped\n", counts[passed], counts[failed], counts[skipped])
	if counts[failed] > 0 {
		return errFailed(counts[failed])
	}
	return nil
}

// build builds the program that the suite drives. The suite splits its command on spaces, so it is started by a relative
// path: the folder's own may hold some.
func build(ctx context.Context, program string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", program, "legwork/cmd/legwork")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build legwork: %w\n%s", err, said)
	}
	return nil
}

// runAll runs what is offered, as many at a time as there are processors, and shows each result in its turn.
func runAll(ctx context.Context, s *suite, offered []variant, lists lists, show func(result)) []result {
	results := make([]result, len(offered))
	done := make([]chan struct{}, len(offered))
	for i := range done {
		done[i] = make(chan struct{})
	}
	var workers sync.WaitGroup
	next := make(chan int)
	for range min(runtime.GOMAXPROCS(0), 4) {
		workers.Go(func() {
			for i := range next {
				reason, listed := lists.find(offered[i].scenario)
				if listed {
					results[i] = judge(offered[i], reason, s.run(ctx, offered[i], i))
				} else {
					results[i] = result{variant: offered[i], outcome: failed, why: "it is in neither list of scenarios.json: add it to one"}
				}
				close(done[i])
			}
		})
	}
	go func() {
		for i := range offered {
			next <- i
		}
		close(next)
	}()
	for i := range done {
		<-done[i]
		show(results[i])
	}
	workers.Wait()
	return results
}
