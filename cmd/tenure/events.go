package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
)

func kindNames() []string {
	kinds := fleet.EventKinds()
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = string(k)
	}
	return names
}

func newEvents() *cobra.Command {
	var (
		q      api.EventQuery
		kind   string
		follow bool
	)
	const most = 1000
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show the ledger: what happened to nodes and work",
		Long: `Show the last entries of the ledger, oldest first. With --follow go on with each as
it happens, until interrupted; a server that goes away is waited for, and no entry is
lost or told twice. With --follow -o json each line is an object.

Pages: -o json shows the number of each entry as "seq". Give the first one to --before
for the page before it, or the last one to --after for the page after it. How long
entries are kept is the server's --keep-events. If some that were asked for are gone, a
line says so in their place; in -o json "pruned" is true, and with --follow an object
has the kind "events_pruned".

` + serverHelp,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.BoolVarP(&follow, "follow", "f", false, "go on as events happen")
	flags.StringVar(&q.Node, "node", "", "of this node only")
	flags.StringVar(&q.Work, "work", "", "of this work item only")
	flags.StringVar(&kind, "kind", "", "of this kind only, such as work_takeover")
	flags.Int64Var(&q.After, "after", 0, "begin after the entry with this number, in place of the last ones")
	flags.Int64Var(&q.Before, "before", 0, "show the entries before the one with this number")
	flags.IntVar(&q.Limit, "limit", 50, "entries to show at first, from 0 with --follow, else from 1, to 1000")
	must(cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(kindNames(), cobra.ShellCompDirectiveNoFileComp)))
	use, out := addServer(cmd), addFormat(cmd)
	for name, source := range map[string]completion{"node": nodeNames, "work": workNames} {
		complete := use.complete(source)
		must(cmd.RegisterFlagCompletionFunc(name, func(cmd *cobra.Command, _ []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return complete(cmd, nil, toComplete)
		}))
	}
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		q.Kind = fleet.EventKind(kind)
		least := 1
		if follow {
			least = 0
		}
		switch {
		case kind != "" && !slices.Contains(fleet.EventKinds(), q.Kind):
			return failf(exitUsage, "--kind %q: must be one of %s", kind, strings.Join(kindNames(), ", "))
		case q.Limit < least || q.Limit > most:
			return failf(exitUsage, "--limit %d: must be from %d to %d", q.Limit, least, most)
		case q.After < 0:
			return failf(exitUsage, "--after %d: must be the number of an event, or 0", q.After)
		case q.Before < 0:
			return failf(exitUsage, "--before %d: must be the number of an event, or 0", q.Before)
		case q.Before > 0 && follow:
			return failf(exitUsage, "--before and --follow exclude each other: what is to come is before nothing")
		}
		q.Last = !cmd.Flags().Changed("after")
		first := func(ctx context.Context, c *api.Client, limit int) (*api.Events, error) {
			ctx, cancel := context.WithTimeout(ctx, use.timeout)
			defer cancel()
			page := q
			page.Limit = limit
			return c.Events(ctx, page)
		}
		if !follow {
			return use.ask(ctx, func(ctx context.Context, c *api.Client) error {
				events, err := first(ctx, c, q.Limit)
				if err != nil {
					return err
				}
				if *out == asJSON {
					return printJSON(cmd.OutOrStdout(), events)
				}
				return printEvents(cmd, events)
			})
		}
		return use.follow(ctx, func(ctx context.Context, c *api.Client) error {
			from := q
			if q.Last {
				events, err := first(ctx, c, max(q.Limit, 1))
				if err != nil {
					return err
				}
				for i := range events.Events {
					if q.Limit > 0 {
						if err := printEvent(cmd, *out, &events.Events[i]); err != nil {
							return err
						}
					}
				}
				from.After = events.Next
			}
			for e, err := range c.FollowEvents(ctx, from) {
				if err != nil {
					return err
				}
				if err := printEvent(cmd, *out, &e); err != nil {
					return err
				}
			}
			return nil
		})
	})
	return cmd
}

// printEvents prints a page for people.
func printEvents(cmd *cobra.Command, page *api.Events) error {
	if page.Pruned {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), escape(page.Text)); err != nil {
			return err
		}
	}
	for i := range page.Events {
		if err := printEvent(cmd, asTable, &page.Events[i]); err != nil {
			return err
		}
	}
	return nil
}

func printEvent(cmd *cobra.Command, out format, e *fleet.Event) error {
	if out == asJSON {
		return printJSONLine(cmd.OutOrStdout(), e)
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), escape(api.EventLine(e)))
	return err
}
