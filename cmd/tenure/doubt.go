package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure"
)

func newDoubt() *cobra.Command {
	var kind, why string
	cmd := &cobra.Command{
		Use:   "doubt",
		Short: "Tell every keeper of this host of a wake or a restore",
		Long: `Tell every keeper of this host what it cannot see itself, and wait until each
has taken it in. When this returns with code 0, none of them acts under a term
that was not confirmed afterwards.

  wake     the host slept or stood still: each term must be renewed before it counts
  restore  the host or its memory was restored from a snapshot, or cloned: each
           term ends; whoever continues needs a new one, with a larger token

Call it as root from the hooks of the platform: after a resume (a script in
/usr/lib/systemd/system-sleep), after a snapshot was restored, and when the
virtual machine's generation changes (a udev rule on NEW_VMGENID). It reaches the
keepers of "tenure run" and of programs that call ListenDoubt.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&kind, "reason", string(tenure.DoubtWake), "what happened: wake or restore")
	cmd.Flags().StringVar(&why, "why", "", "words for people, kept with the loss")
	must(cmd.RegisterFlagCompletionFunc("reason", cobra.FixedCompletions([]string{"wake", "restore"}, cobra.ShellCompDirectiveNoFileComp)))
	out := addFormat(cmd)
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		if k := tenure.DoubtKind(kind); k != tenure.DoubtWake && k != tenure.DoubtRestore {
			return failf(exitUsage, "--reason %q: must be wake or restore", kind)
		}
		replies, err := tenure.TellDoubt(ctx, nil, tenure.DoubtKind(kind), why)
		if err != nil {
			return failf(exitInternal, "%w", err)
		}
		if err := printReplies(cmd, *out, replies); err != nil {
			return err
		}
		for _, r := range replies {
			if r.Err != nil {
				return failf(exitUnavailable, "a keeper did not answer (%s): %w; its process may be stopped: it notices a pause by itself, but not a restore", r.Socket, r.Err)
			}
		}
		return nil
	})
	return cmd
}

// doubtJSON is a reply as -o json prints it.
type doubtJSON struct {
	Socket string `json:"socket"`
	Holder string `json:"holder"`
	Terms  int    `json:"terms"`
	Error  string `json:"error"`
}

func printReplies(cmd *cobra.Command, out format, replies []tenure.DoubtReply) error {
	list := make([]doubtJSON, 0, len(replies))
	rows := [][]string{{"HOLDER", "TERMS", "ANSWER"}}
	for _, r := range replies {
		d := doubtJSON{Socket: r.Socket, Holder: r.Holder, Terms: r.Terms}
		answer := "told"
		if r.Err != nil {
			d.Error = r.Err.Error()
			answer = d.Error
		}
		list = append(list, d)
		rows = append(rows, []string{r.Holder, fmt.Sprint(r.Terms), answer})
	}
	if out == asJSON {
		return printJSON(cmd.OutOrStdout(), map[string]any{"keepers": list})
	}
	if len(replies) == 0 {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "no keeper listens on this host")
		return err
	}
	return table(cmd.OutOrStdout(), rows)
}
