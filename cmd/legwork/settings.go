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
		fmt.Fprintf(&text, "\n    %s\n", s.Meaning)
	}
	return &cobra.Command{Use: "settings", Short: "the environment variables that legwork reads", Long: strings.TrimSuffix(text.String(), "\n")}
}
