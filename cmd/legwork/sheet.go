package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"legwork/mcp"
)

// sheet is what a show command prints: names and values, whole.
type sheet [][2]string

// add appends a line unless its value is empty.
func (s *sheet) add(name, value string) {
	if value != "" {
		*s = append(*s, [2]string{name, value})
	}
}

func (a *app) sheet(s sheet) {
	widest := 0
	for _, line := range s {
		widest = max(widest, len(line[0]))
	}
	_, live := terminal(a.stdout)
	for _, line := range s {
		name, value := line[0], oneLine(line[1])
		if room := a.width() - widest - gap; live && room > 20 {
			value = wrap(value, room) // elsewhere a value is a line, for whoever searches it
		}
		for part := range strings.SplitSeq(value, "\n") {
			fmt.Fprintf(a.stdout, "%-*s  %s\n", widest, name, part)
			name = ""
		}
	}
}

// section prints a heading and a body below a sheet.
func (a *app) section(title, body string) {
	fmt.Fprintf(a.stdout, "\n%s\n%s\n", title, strings.TrimRight(visible(body, '\uFFFD'), "\n"))
}

// legs prints the account of an operation. That there are none means something else where nobody knows whether the server
// was asked.
func (a *app) legs(legs []mcp.Leg, asked mcp.Asked) {
	switch {
	case len(legs) == 0 && asked == mcp.AskedUnknown:
		fmt.Fprintln(a.stdout, "What was sent is not known: the worker ended before it could say.")
		return
	case len(legs) == 0:
		fmt.Fprintln(a.stdout, "No request was sent.")
		return
	}
	rows := make([][]string, len(legs))
	for i, leg := range legs {
		status := ""
		if leg.Status != 0 {
			status = strconv.Itoa(leg.Status)
		}
		rows[i] = []string{leg.Method, duration(leg.Granted), duration(leg.Elapsed), leg.Outcome, status}
	}
	a.table([]column{
		{title: "leg", last: 12}, {title: "granted", spare: 1}, {title: "took"}, {title: "outcome", last: 10}, {title: "http status", spare: 2},
	}, rows)
}

// parseLegs reads a legs column.
func parseLegs(data json.RawMessage) ([]mcp.Leg, error) {
	var legs []mcp.Leg
	if len(data) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(data, &legs); err != nil {
		return nil, fmt.Errorf("read the legs: %w", err)
	}
	return legs, nil
}

// indented is JSON for a reader, its numbers and the order of its fields as they are.
func indented(data json.RawMessage) string {
	var out bytes.Buffer
	if json.Indent(&out, data, "", "  ") != nil {
		return string(data)
	}
	return out.String()
}

// asked explains what is known about whether the server was asked.
func asked(value string) string {
	switch mcp.Asked(value) {
	case mcp.AskedNo:
		return "no: the server was not asked for this"
	case mcp.AskedUnknown:
		return "unknown: nobody knows whether the server acted on it"
	case mcp.AskedYes:
		return "yes: the server answered"
	}
	return value
}

// duration is a time span as the sentences write it: in milliseconds, or in seconds to a tenth, as the settings are.
func duration(d time.Duration) string {
	switch {
	case d >= 1e6*time.Hour:
		return "no end"
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", d.Seconds()), ".0") + " s"
}

func milliseconds(ms int64) time.Duration {
	if ms > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(ms) * time.Millisecond
}

// ago is how long ago a time was, in one unit.
func ago(t time.Time, now time.Time) string {
	d := max(now.Sub(t), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	}
	return fmt.Sprintf("%dd ago", int(d.Hours()/24))
}

// sinceIf is ago for a time that may not have come.
func sinceIf(t *time.Time) string {
	if t == nil {
		return ""
	}
	return ago(*t, time.Now())
}

// timestamp is a time for a sheet, the same wherever it is printed.
func timestamp(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
