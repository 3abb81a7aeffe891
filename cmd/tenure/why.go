package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
)

// whyJSON is what "tenure why -o json" prints: what bears the name.
type whyJSON struct {
	Node *api.NodeWhy `json:"node"`
	Work *api.WorkWhy `json:"work"`
}

func newWhy() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "why NODE|WORK",
		Short: "Say how a node or a work item stands, why, and what has to happen",
		Long: `Say how a node or a work item stands, with every reason, what would clear it, and
the last events. If both bear the name, both are told of.

` + serverHelp,
		Args: oneID("node or work item"),
	}
	use, out := addServer(cmd), addFormat(cmd)
	cmd.ValidArgsFunction = use.complete(nodeNames, workNames)
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		return use.ask(ctx, func(ctx context.Context, c *api.Client) error {
			var why whyJSON
			var err error
			if why.Node, err = c.WhyNode(ctx, args[0]); err != nil && !hasCode(err, fleet.CodeNoSuchNode) {
				return err
			}
			if why.Work, err = c.WhyWork(ctx, args[0]); err != nil && !hasCode(err, fleet.CodeNoSuchWork) {
				return err
			}
			switch {
			case why.Node == nil && why.Work == nil:
				return failf(exitNotFound, "no node and no work item %q; \"tenure nodes ls\" and \"tenure work ls\" show the names", args[0])
			case *out == asJSON:
				return printJSON(cmd.OutOrStdout(), why)
			}
			return printWhy(cmd.OutOrStdout(), &why)
		})
	})
	return cmd
}

func hasCode(err error, code fleet.Code) bool {
	refusal, ok := errors.AsType[*api.Error](err)
	return ok && refusal.Code == string(code)
}

func printWhy(w io.Writer, why *whyJSON) error {
	var lines []string
	if why.Node != nil {
		lines = why.Node.Lines()
	}
	if why.Work != nil {
		if len(lines) > 0 {
			lines = append(lines, "")
		}
		lines = append(lines, why.Work.Lines()...)
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, escape(line)); err != nil {
			return err
		}
	}
	return nil
}
