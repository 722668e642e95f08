package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"legwork/internal/npm"
)

const (
	// clientTime is what the suite gives the client for one scenario.
	clientTime = 30 * time.Second
	// scenarioTime bounds the suite itself.
	scenarioTime = 2 * time.Minute
)

// suite is the conformance suite as it was installed. It runs in folder, where legwork is.
type suite struct {
	node   *npm.Node
	script string
	folder string
}

// variant is one scenario at one revision.
type variant struct {
	scenario string
	revision string // empty for an extension, which belongs to none
}

// list asks which client scenarios there are.
func (s *suite) list(ctx context.Context) ([]variant, error) {
	cmd, err := s.node.Command(ctx, s.script, "list", "--client")
	if err != nil {
		return nil, err
	}
	said, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("ask the suite for its scenarios: %w", err)
	}
	variants := parseList(string(said))
	if len(variants) == 0 {
		return nil, fmt.Errorf("ask the suite for its scenarios: it lists none: %q", said)
	}
	return variants, nil
}

var listLine = regexp.MustCompile(`(?m)^\s*- (\S+) \[([^\]]*)\]\s*$`)

// parseList reads lines such as "- tools_call [2025-11-25,2026-07-28]" or "- auth/dpop [extension]".
func parseList(text string) []variant {
	var variants []variant
	for _, line := range listLine.FindAllStringSubmatch(text, -1) {
		for revision := range strings.SplitSeq(line[2], ",") {
			if revision == "extension" {
				revision = ""
			}
			variants = append(variants, variant{scenario: line[1], revision: revision})
		}
	}
	return variants
}

// check is one line of what the suite found.
type check struct {
	ID           string `json:"id"`
	Name         string `json:"name"`
	Description  string `json:"description"`
	Status       string `json:"status"`
	ErrorMessage string `json:"errorMessage"`
}

// report is what became of one run.
type report struct {
	checks []check
	exit   int    // of the suite
	said   string // by the suite, the client's output included
	err    error  // the suite itself did not get to the end
}

// run runs one scenario. The number makes its folder.
func (s *suite) run(ctx context.Context, v variant, number int) report {
	ctx, cancel := context.WithTimeout(ctx, scenarioTime)
	defer cancel()
	results := filepath.Join("results", strconv.Itoa(number))
	args := []string{"client", "--command", "./legwork conformance", "--scenario", v.scenario,
		"--timeout", strconv.FormatInt(clientTime.Milliseconds(), 10), "--output-dir", results}
	if v.revision != "" {
		args = append(args, "--spec-version", v.revision)
	}
	cmd, err := s.node.Command(ctx, s.script, args...)
	if err != nil {
		return report{err: err}
	}
	cmd.Dir = s.folder
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err = cmd.Run()
	r := report{said: said.String()}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		r.err = fmt.Errorf("the suite was given up: %w", ctx.Err())
		return r
	case errors.As(err, &exit):
		r.exit = exit.ExitCode()
	case err != nil:
		r.err = err
		return r
	}
	r.checks, r.err = readChecks(filepath.Join(s.folder, results))
	return r
}

// readChecks finds the one checks.json below a folder: the suite makes a folder there that it names itself.
func readChecks(folder string) ([]check, error) {
	var found []string
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == "checks.json" {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("the suite left %d files checks.json", len(found))
	}
	data, err := os.ReadFile(found[0])
	if err != nil {
		return nil, err
	}
	var checks []check
	if err := json.Unmarshal(data, &checks); err != nil {
		return nil, fmt.Errorf("read the suite's checks: %w", err)
	}
	return checks, nil
}
