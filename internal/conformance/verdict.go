package main

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

//go:embed scenarios.json
var scenarios []byte

// lists say which scenarios apply to legwork, and why the others do not. Every scenario is in one of them.
type lists struct {
	Applies  []string `json:"applies"`
	Baseline []struct {
		Reason    string   `json:"reason"`
		Scenarios []string `json:"scenarios"`
	} `json:"baseline"`
}

func readLists() (lists, error) {
	var l lists
	if err := json.Unmarshal(scenarios, &l); err != nil {
		return lists{}, fmt.Errorf("read scenarios.json: %w", err)
	}
	seen := map[string]bool{}
	for _, name := range l.names() {
		if seen[name] {
			return lists{}, fmt.Errorf("read scenarios.json: %q is in it twice", name)
		}
		seen[name] = true
	}
	return l, nil
}

func (l lists) names() []string {
	names := slices.Clone(l.Applies)
	for _, group := range l.Baseline {
		names = append(names, group.Scenarios...)
	}
	return names
}

// find tells why a scenario does not apply; the reason is empty for one that does.
func (l lists) find(scenario string) (reason string, listed bool) {
	for _, group := range l.Baseline {
		if slices.Contains(group.Scenarios, scenario) {
			return group.Reason, true
		}
	}
	return "", slices.Contains(l.Applies, scenario)
}

// missingFrom are the listed scenarios that the suite does not have.
func (l lists) missingFrom(offered []variant) []string {
	return slices.DeleteFunc(l.names(), func(name string) bool {
		return slices.ContainsFunc(offered, func(v variant) bool { return v.scenario == name })
	})
}

// outcome is how a scenario counts.
type outcome string

const (
	passed  outcome = "passed"
	failed  outcome = "failed"
	skipped outcome = "skipped" // it ran and did not pass, as its reason says
)

// result is one row of the table.
type result struct {
	variant
	report
	outcome outcome
	why     string // empty for one that passed
}

// judge decides. A scenario that checked nothing has not passed: the suite itself would say so of a client that does nothing.
func judge(v variant, reason string, r report) result {
	ran, good, bad := r.count()
	why := ""
	switch {
	case bad > 0:
		why = fmt.Sprintf("%d of its checks failed or warned", bad)
	case ran == 0:
		why = "no check ran"
	case r.exit != 0:
		why = fmt.Sprintf("the checks passed, but the suite exited with %d: the client failed or took too long", r.exit)
	}
	res := result{variant: v, report: r}
	switch {
	case r.err != nil:
		res.outcome, res.why = failed, r.err.Error()
	case reason == "" && why == "" && good > 0:
		res.outcome = passed
	case reason == "":
		res.outcome, res.why = failed, why
	case why == "":
		res.outcome, res.why = failed, "it passes: take it out of the baseline in scenarios.json"
	default:
		res.outcome, res.why = skipped, reason
	}
	return res
}

// count counts the checks that had something to say.
func (r report) count() (ran, good, bad int) {
	for _, c := range r.checks {
		switch c.Status {
		case "SUCCESS":
			good++
		case "INFO", "SKIPPED":
		default: // FAILURE, WARNING, and what a later suite may add
			bad++
		}
	}
	return good + bad, good, bad
}

const rowForm = "%-42s %-10s  %7s  %s\n"

func (r result) row() string {
	ran, good, _ := r.count()
	line := string(r.outcome)
	if r.why != "" {
		line += ": " + r.why
	}
	return fmt.Sprintf(rowForm, r.scenario, cmp.Or(r.revision, "extension"), fmt.Sprintf("%d/%d", good, ran), line)
}

// story is what somebody needs who looks for the cause.
func (r result) story() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s, %s: %s\n", r.scenario, cmp.Or(r.revision, "extension"), r.why)
	for _, c := range r.checks {
		if !slices.Contains([]string{"SUCCESS", "INFO", "SKIPPED"}, c.Status) {
			fmt.Fprintf(&b, "  %s %s: %s\n", c.Status, c.ID, cmp.Or(c.ErrorMessage, c.Description))
		}
	}
	if said := strings.TrimSpace(r.said); said != "" {
		fmt.Fprintf(&b, "  | %s\n", strings.ReplaceAll(said, "\n", "\n  | "))
	}
	return b.String()
}
