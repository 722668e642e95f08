package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"legwork/config"
)

// newSettingsTopic is "legwork help settings". A command that cannot be run is a help topic to cobra.
func newSettingsTopic() *cobra.Command {
	var text strings.Builder
	text.WriteString("legwork reads its settings from the environment.\n")
	for _, s := range config.Settings() {
		fmt.Fprintf(&text, "\n%s", s.Name)
		if s.Default != "" {
			fmt.Fprintf(&text, " (default %s)", s.Default)
		}
		for line := range strings.SplitSeq(wrap(s.Meaning, 76), "\n") {
			text.WriteString("\n    " + line)
		}
		text.WriteString("\n")
	}
	return &cobra.Command{Use: "settings", Short: "the environment variables that legwork reads", Long: text.String()}
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
