package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTable(t *testing.T) {
	t.Parallel()
	columns := []column{{title: "id", last: 9}, {title: "text", least: 6}, {title: "more", least: 4, spare: 1}, {title: "last", spare: 2}}
	rows := [][]string{
		{"0123456789", "a long text that goes on", "something", "1"},
		{"1", "日本語のテキスト", "", "22"},
		{"2", "two\nlines\tand \x1b[31mred\u202e", "x", ""},
	}
	tests := map[string]struct {
		limit int
		want  []string
	}{
		"there is room": {100, []string{
			"ID          TEXT                      MORE       LAST",
			"0123456789  a long text that goes on  something  1",
			"1           日本語のテキスト                     22",
			"2           two lines and [31mred     x",
		}},
		"long cells are cut first": {40, []string{
			"ID          TEXT         MORE       LAST",
			"0123456789  a long tex…  something  1",
			"1           日本語のテ…             22",
			"2           two lines…   x",
		}},
		"spare columns go next": {26, []string{
			"ID          TEXT    MORE",
			"0123456789  a lon…  somet…",
			"1           日本…",
			"2           two l…  x",
		}},
		"what is worth more is cut at the end": {17, []string{
			"ID         TEXT",
			"01234567…  a lon…",
			"1          日本…",
			"2          two l…",
		}},
		"what cannot be cut stays": {5, []string{
			"ID         TEXT",
			"01234567…  a lon…",
			"1          日本…",
			"2          two l…",
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			writeTable(&out, test.limit, columns, rows)
			lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
			if diff := cmp.Diff(test.want, lines); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWidth(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]int{"72": 72, "": widthElsewhere, "wide": widthElsewhere, "0": widthElsewhere} {
		a := &app{stdout: new(bytes.Buffer), lookupEnv: func(string) (string, bool) { return value, value != "" }}
		if got := a.width(); got != want {
			t.Errorf("COLUMNS=%s: got %d, want %d", value, got, want)
		}
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	seconds := regexp.MustCompile(`\d+ s`)
	show := func(live bool) string {
		var out bytes.Buffer
		p := &progress{out: &out, live: live, width: 30, what: "step 1", began: time.Now()}
		p.state("in the queue")
		p.state("in the queue")
		p.note("nobody is there")
		p.state("running and running and running")
		p.end()
		p.end()
		return seconds.ReplaceAllString(out.String(), "N s")
	}
	if diff := cmp.Diff("step 1: in the queue (after N s)\nnobody is there\nstep 1: running and running and running (after N s)\n", show(false)); diff != "" {
		t.Error(diff)
	}
	want := "\rstep 1: in the queue, N s\x1b[K" + "\r\x1b[K" + "nobody is there\n" + "\rstep 1: running and running…\x1b[K" + "\r\x1b[K"
	if diff := cmp.Diff(want, show(true)); diff != "" {
		t.Error(diff)
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 2, 9, 0, 0, 0, time.UTC)
	for d, want := range map[time.Duration]string{
		-time.Minute: "0s ago", 3 * time.Second: "3s ago", 90 * time.Second: "1m ago", 5 * time.Hour: "5h ago", 50 * time.Hour: "2d ago",
	} {
		if got := ago(now.Add(-d), now); got != want {
			t.Errorf("%s: got %q, want %q", d, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0 ms", 99 * time.Millisecond: "99 ms", 1500 * time.Millisecond: "1.5 s", 20 * time.Second: "20 s", 10 * time.Minute: "600 s", 1<<63 - 1: "no end",
	} {
		if got := duration(d); got != want {
			t.Errorf("%d: got %q, want %q", d, got, want)
		}
	}
	zone := time.FixedZone("east", 2*60*60)
	at := now.In(zone)
	if got := timestamp(&at); got != "2026-12-02T09:00:00Z" {
		t.Errorf("got %q", got)
	}
}
