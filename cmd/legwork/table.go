package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/term"
	"golang.org/x/text/width"
)

// column is one column of a table.
type column struct {
	title string
	// least is how narrow the column may be made. Zero: its cells are never cut, because somebody copies them.
	least int
	// spare columns are left out when the table does not fit otherwise, the highest number first.
	spare int
	// last is how narrow the column is made when nothing else is left to do. Zero: as least.
	last int
}

// gap is what stands between two columns.
const gap = 2

// writeTable prints rows so that no line is longer than limit, as far as that can be done: cells are cut with "…", then
// spare columns are left out, then cells are cut that are worth more. Cells hold one line; what could confuse a terminal is taken out of them.
func writeTable(w io.Writer, limit int, columns []column, rows [][]string) {
	cells := make([][]string, 0, len(rows)+1)
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = strings.ToUpper(c.title)
	}
	cells = append(cells, titles)
	for _, row := range rows {
		cleaned := make([]string, len(columns))
		for i := range columns {
			cleaned[i] = oneLine(row[i])
		}
		cells = append(cells, cleaned)
	}
	widths := fit(limit, columns, cells)
	last := len(widths) - 1
	for widths[last] < 0 {
		last--
	}
	for _, row := range cells {
		var line strings.Builder
		for i, cell := range row {
			if widths[i] < 0 {
				continue
			}
			cell = cut(cell, widths[i])
			line.WriteString(cell)
			if i != last {
				line.WriteString(strings.Repeat(" ", widths[i]-displayWidth(cell)+gap))
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}

// fit chooses the widths of the columns; a negative one is left out.
func fit(limit int, columns []column, cells [][]string) []int {
	whole := make([]int, len(columns))
	for _, row := range cells {
		for i, cell := range row {
			whole[i] = max(whole[i], displayWidth(cell))
		}
	}
	for {
		widths, fits := shrink(limit, whole, columns, func(c column) int { return c.least })
		if fits {
			return widths
		}
		spare := -1
		for i, c := range columns {
			if whole[i] >= 0 && c.spare > 0 && (spare < 0 || c.spare > columns[spare].spare) {
				spare = i
			}
		}
		if spare < 0 {
			widths, _ = shrink(limit, whole, columns, func(c column) int { return cmp.Or(c.last, c.least) })
			return widths
		}
		whole[spare] = -1
	}
}

// shrink makes columns narrower, the widest first, down to the least of each; zero stands for its whole width. It tells
// whether they fit then.
func shrink(limit int, whole []int, columns []column, least func(column) int) ([]int, bool) {
	widths := slices.Clone(whole)
	for {
		total, widest := -gap, -1
		for i, w := range widths {
			if w < 0 {
				continue
			}
			total += w + gap
			if least := least(columns[i]); least > 0 && w > least && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if total <= limit || widest < 0 {
			return widths, total <= limit
		}
		widths[widest]--
	}
}

// cut shortens text to a width, with "…" in the place of what is missing.
func cut(text string, limit int) string {
	if displayWidth(text) <= limit {
		return text
	}
	var kept strings.Builder
	used := 1
	for _, r := range text {
		if used += runeWidth(r); used > limit {
			break
		}
		kept.WriteRune(r)
	}
	return strings.TrimRight(kept.String(), " ") + "…"
}

func displayWidth(text string) int {
	n := 0
	for _, r := range text {
		n += runeWidth(r)
	}
	return n
}

func runeWidth(r rune) int {
	switch kind := width.LookupRune(r).Kind(); {
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case kind == width.EastAsianWide || kind == width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// oneLine is foreign text for a cell or a sentence: without control and invisible characters, white space made one blank.
func oneLine(text string) string { return strings.Join(strings.Fields(visible(text, ' ')), " ") }

// visible replaces what a terminal would obey rather than show. Line feeds and tabs are kept; whoever wants one line
// folds them.
func visible(text string, instead rune) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case unicode.IsControl(r):
			return instead
		case unicode.Is(unicode.Cf, r) && r != '\u200d': // directions and the like; the joiner holds emoji together
			return -1
		}
		return r
	}, text)
}

// widthElsewhere is taken for a table that goes to a file or a pipe: every column of every list has room in it.
const widthElsewhere = 120

// width is how long a line on stdout may be.
func (a *app) width() int { return a.widthOf(a.stdout) }

// widthOf is how long a line may be there.
func (a *app) widthOf(w io.Writer) int {
	if value, ok := a.lookupEnv("COLUMNS"); ok {
		if n, err := strconv.Atoi(value); err == nil && n > 0 {
			return n
		}
	}
	if file, ok := terminal(w); ok {
		if n, _, err := term.GetSize(int(file.Fd())); err == nil && n > 0 {
			return n
		}
		return 80
	}
	return widthElsewhere
}

func (a *app) table(columns []column, rows [][]string) {
	writeTable(a.stdout, a.width(), columns, rows)
}

// terminal tells whether somebody looks at what is written.
func terminal(w io.Writer) (*os.File, bool) {
	file, ok := w.(*os.File)
	return file, ok && term.IsTerminal(int(file.Fd()))
}
