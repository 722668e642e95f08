package main

import (
	"fmt"
	"io"
	"time"
)

// progress tells on stderr how something that is waited for stands: on a terminal one line that is rewritten, elsewhere a
// line for each change.
type progress struct {
	out   io.Writer
	live  bool
	width int
	what  string
	began time.Time
	shown string // the line, or where lines are not rewritten, the state
}

func (a *app) progress(what string) *progress {
	_, live := terminal(a.stderr)
	return &progress{out: a.stderr, live: live, width: a.widthOf(a.stderr), what: what, began: time.Now()}
}

// state shows how it stands now.
func (p *progress) state(text string) {
	text = oneLine(text)
	waited := int(time.Since(p.began).Seconds())
	if p.live {
		if line := cut(fmt.Sprintf("%s: %s, %d s", p.what, text, waited), p.width-1); line != p.shown {
			fmt.Fprintf(p.out, "\r%s\x1b[K", line)
			p.shown = line
		}
		return
	}
	if text != p.shown {
		fmt.Fprintf(p.out, "%s: %s (after %d s)\n", p.what, text, waited)
		p.shown = text
	}
}

// note says something beside the state. It stays.
func (p *progress) note(text string) {
	p.end()
	fmt.Fprintln(p.out, text)
}

// end clears the line for whatever comes next.
func (p *progress) end() {
	if p.live && p.shown != "" {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.shown = ""
	}
}
