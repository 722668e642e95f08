package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// release is the version that the build was given: go build -ldflags "-X main.release=1.2.3".
var release string

func newVersionCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "show which legwork this is", Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			v, commit := version()
			if asJSON {
				return a.writeJSON(map[string]string{"version": v, "commit": commit, "go": runtime.Version()})
			}
			if commit != "" {
				commit = ", commit " + commit
			}
			fmt.Fprintf(a.stdout, "legwork %s (%s%s)\n", v, runtime.Version(), commit)
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// version is what the build knows of itself. Servers are told the first part.
func version() (version, commit string) {
	version = release
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return cmp.Or(version, "devel"), ""
	}
	changed := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			changed = s.Value == "true"
		}
	}
	if changed {
		commit += ", with changes"
	}
	if version == "" && info.Main.Version != "(devel)" {
		version = info.Main.Version
	}
	return cmp.Or(version, "devel"), commit
}
