package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// helpWidth is how long a line of a help text is at most: longer ones are hard to read.
const helpWidth = 80

// help prints what a command is, wrapped to where it is read.
func (a *app) help(cmd *cobra.Command) {
	w := cmd.OutOrStdout()
	width := min(a.widthOf(w), helpWidth)
	about := cmd.Long
	if about == "" {
		about = cmd.Short
	}
	fmt.Fprintln(w, wrapLines(about, width))
	if cmd.Runnable() || cmd.HasSubCommands() {
		fmt.Fprintln(w)
		a.usage(cmd)
	}
}

// usage prints how a command is written, with its commands and flags.
func (a *app) usage(cmd *cobra.Command) {
	w := cmd.OutOrStdout()
	width := min(a.widthOf(w), helpWidth)
	fmt.Fprintln(w, "Usage:")
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(w, "  %s COMMAND\n", cmd.CommandPath())
	} else {
		fmt.Fprintln(w, hang("  ", cmd.UseLine(), width))
	}
	if cmd.HasExample() {
		fmt.Fprintln(w, "\nExamples:")
		for line := range strings.SplitSeq(cmd.Example, "\n") {
			fmt.Fprintln(w, commandLine(line, width))
		}
	}
	var commands, topics [][2]string
	for _, c := range cmd.Commands() {
		switch {
		case c.IsAvailableCommand() || c.Name() == "help":
			commands = append(commands, [2]string{c.Name(), c.Short})
		case c.IsAdditionalHelpTopicCommand():
			topics = append(topics, [2]string{c.Name(), c.Short})
		}
	}
	definitions(w, "Available Commands:", commands, width)
	if flags := cmd.LocalFlags(); flags.HasAvailableFlags() {
		fmt.Fprintf(w, "\nFlags:\n%s", flags.FlagUsagesWrapped(width))
	}
	definitions(w, "Help topics:", topics, width)
	if len(commands) > 0 {
		fmt.Fprintf(w, "\n%s\n", wrapLines(fmt.Sprintf("Run %q for more about one of them.", cmd.CommandPath()+" COMMAND --help"), width))
	}
}

// definitions prints names, and beside each what it means.
func definitions(w io.Writer, title string, rows [][2]string, width int) {
	if len(rows) == 0 {
		return
	}
	longest := 0
	for _, row := range rows {
		longest = max(longest, len(row[0]))
	}
	fmt.Fprintf(w, "\n%s\n", title)
	for _, row := range rows {
		fmt.Fprintln(w, hang(fmt.Sprintf("  %-*s  ", longest, row[0]), row[1], width))
	}
}

// hang wraps text behind a first part; further lines begin below its beginning.
func hang(first, text string, width int) string {
	indent := "\n" + strings.Repeat(" ", len(first))
	return first + strings.ReplaceAll(wrap(text, max(width-len(first), 1)), "\n", indent)
}

// wrapLines wraps paragraphs. A line that is indented is one by itself and stays indented.
func wrapLines(text string, width int) string {
	var paragraphs []string
	flows := false // whether a line that is not indented goes on from the one before
	for line := range strings.SplitSeq(text, "\n") {
		plain := line != "" && line[0] != ' '
		if plain && flows {
			paragraphs[len(paragraphs)-1] += " " + line
		} else {
			paragraphs = append(paragraphs, line)
		}
		flows = plain
	}
	for i, p := range paragraphs {
		rest := strings.TrimLeft(p, " ")
		paragraphs[i] = hang(p[:len(p)-len(rest)], rest, width)
	}
	return strings.Join(paragraphs, "\n")
}

// commandLine breaks an example before its flags, as a shell reads it too.
func commandLine(line string, width int) string {
	const behind = " \\"
	var out strings.Builder
	used := 0
	for i, part := range strings.Split(line, " --") {
		if i > 0 {
			part = " --" + part
			if used+len(part)+len(behind) > width {
				out.WriteString(behind + "\n     ")
				used = 5
			}
		}
		out.WriteString(part)
		used += len(part)
	}
	return out.String()
}

// wrap breaks prose into lines of at most limit characters, if its words let it.
func wrap(text string, limit int) string {
	var out strings.Builder
	used := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case used == 0:
		case used+1+displayWidth(word) > limit:
			out.WriteString("\n")
			used = 0
		default:
			out.WriteString(" ")
			used++
		}
		out.WriteString(word)
		used += displayWidth(word)
	}
	return out.String()
}
