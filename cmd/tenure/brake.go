package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
)

func newBrake() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "brake",
		Short: "See what is held back because so much fell silent at once, and decide it",
		Long: `When most of a failure domain, or of the fleet, falls silent at once, the observer is
doubted before the nodes are: nothing is taken from them until they are back, until an
operator says that the loss is real, or until the server has proven its own health for
long enough.

` + serverHelp,
		Args: cobra.NoArgs,
		RunE: helpOnly,
	}
	cmd.AddCommand(newBrakeShow(), newBrakeOrder("confirm"), newBrakeOrder("release"))
	return cmd
}

func newBrakeShow() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show each brake, why it holds, and what it withholds",
		Args:  cobra.NoArgs,
	}
	use, out := addServer(cmd), addFormat(cmd)
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		return use.ask(ctx, func(ctx context.Context, c *api.Client) error {
			b, err := c.Brake(ctx)
			if err != nil {
				return err
			}
			return printBrake(cmd.OutOrStdout(), *out, b)
		})
	})
	return cmd
}

func printBrake(w io.Writer, out format, b *api.Brake) error {
	if out == asJSON {
		return printJSON(w, b)
	}
	if len(b.Domains) == 0 {
		_, err := fmt.Fprintln(w, "no brake holds")
		return err
	}
	rows := [][]string{{"DOMAIN", "STATE", "DOWN", "SINCE", "LETS GO IN", "WITHHELD", "WHY"}}
	for _, d := range b.Domains {
		state := "let go"
		switch {
		case d.Engaged:
			state = "holds"
		case d.Confirmed != nil:
			state = "confirmed by " + d.Confirmed.Actor
		}
		var withheld []string
		for _, x := range d.Withheld {
			withheld = append(withheld, strings.Join(nonEmpty(x.Action, x.Node, x.Work), " "))
		}
		rows = append(rows, []string{
			d.Domain, state, fmt.Sprintf("%d of %d", d.Down, d.Of), clockTime(d.Since),
			dash(left(time.Duration(d.LetsGoMS) * time.Millisecond)), dash(strings.Join(withheld, ", ")), d.Text,
		})
	}
	return table(w, rows)
}

// newBrakeOrder makes "brake confirm" and "brake release".
func newBrakeOrder(verb string) *cobra.Command {
	domain := fleet.DomainAll
	cmd := &cobra.Command{
		Use:  verb + " --reason WHY",
		Args: cobra.NoArgs,
	}
	cmd.Short = "Let a brake go, though nobody knows yet whether the loss is real"
	if verb == "confirm" {
		cmd.Short = "Say that a loss is real, so that its work is taken over"
	}
	cmd.Flags().StringVar(&domain, "domain", domain, "the domain, as \"brake show\" has it: all, or LABEL=VALUE")
	mark, use, out := addMark(cmd, true), addServer(cmd), addFormat(cmd)
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		m, err := filled(*mark, true)
		if err != nil {
			return err
		}
		return use.ask(ctx, func(ctx context.Context, c *api.Client) error {
			order := c.ReleaseBrake
			if verb == "confirm" {
				order = c.ConfirmBrake
			}
			b, err := order(ctx, api.BrakeRequest{Domain: domain, Actor: m.Actor, Reason: m.Reason})
			if err != nil {
				return err
			}
			return printBrake(cmd.OutOrStdout(), *out, b)
		})
	})
	return cmd
}
