package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// versionJSON is what "tenure version -o json" prints.
type versionJSON struct {
	Version  string `json:"version"`  // of the module, "(devel)" from a checkout
	Revision string `json:"revision"` // of the checkout, "" if unknown
	Modified bool   `json:"modified"` // the checkout had uncommitted changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func buildVersion() versionJSON {
	v := versionJSON{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

func (v versionJSON) String() string {
	revision := v.Revision
	if v.Modified {
		revision += " (modified)"
	}
	if revision != "" {
		revision = ", revision " + revision
	}
	return fmt.Sprintf("tenure %s%s, %s, %s", v.Version, revision, v.Go, v.Platform)
}

func newVersion() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cobra.NoArgs,
	}
	out := addFormat(cmd)
	cmd.RunE = action(func(_ context.Context, cmd *cobra.Command, _ []string) error {
		v := buildVersion()
		if *out == asJSON {
			return printJSON(cmd.OutOrStdout(), v)
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), v)
		return err
	})
	return cmd
}
