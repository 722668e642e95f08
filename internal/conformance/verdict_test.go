package main

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	const reason = "asks for elicitation"
	checks := func(statuses ...string) (cs []check) {
		for _, status := range statuses {
			cs = append(cs, check{ID: "x", Status: status})
		}
		return cs
	}
	for _, c := range []struct {
		name   string
		report report
		// What becomes of a scenario that applies, and of one in the baseline.
		applies, baseline outcome
	}{
		{"all checks passed", report{checks: checks("INFO", "SUCCESS", "SKIPPED", "SUCCESS")}, passed, failed},
		{"one failed", report{checks: checks("SUCCESS", "FAILURE"), exit: 1}, failed, skipped},
		{"one warned", report{checks: checks("SUCCESS", "WARNING"), exit: 1}, failed, skipped},
		{"one warned, and the suite thinks nothing of it", report{checks: checks("SUCCESS", "WARNING")}, failed, skipped},
		{"a status that a later suite adds", report{checks: checks("SUCCESS", "DOUBTFUL")}, failed, skipped},
		{"no check at all", report{}, failed, skipped},
		{"nothing but remarks", report{checks: checks("INFO", "SKIPPED")}, failed, skipped},
		{"the client failed after the checks", report{checks: checks("SUCCESS"), exit: 1}, failed, skipped},
		{"the suite itself broke", report{err: errors.New("no node"), checks: checks("SUCCESS")}, failed, failed},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if r := judge(variant{}, "", c.report); r.outcome != c.applies || (r.why == "") != (c.applies == passed) {
				t.Errorf("one that applies is %s (%s), not %s", r.outcome, r.why, c.applies)
			}
			r := judge(variant{}, reason, c.report)
			if r.outcome != c.baseline || (r.why == reason) != (c.baseline == skipped) {
				t.Errorf("one in the baseline is %s (%s), not %s", r.outcome, r.why, c.baseline)
			}
		})
	}
}

func TestParseList(t *testing.T) {
	t.Parallel()
	got := parseList("Client scenarios (test against a client):\n  - initialize [2025-06-18,2025-11-25]\n  - auth/dpop [extension]\n\nmore\n")
	want := []variant{{"initialize", "2025-06-18"}, {"initialize", "2025-11-25"}, {"auth/dpop", ""}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(variant{})); diff != "" {
		t.Error(diff)
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	l, err := readLists()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range l.names() {
		reason, listed := l.find(name)
		if !listed || (reason == "") != slices.Contains(l.Applies, name) {
			t.Errorf("%q is found with the reason %q", name, reason)
		}
	}
	if _, listed := l.find("brand-new"); listed {
		t.Error("a scenario that is in neither list was found")
	}
	var offered []variant
	for _, name := range l.names()[1:] {
		offered = append(offered, variant{scenario: name})
	}
	if diff := cmp.Diff(l.names()[:1], l.missingFrom(offered)); diff != "" {
		t.Error(diff)
	}
}
