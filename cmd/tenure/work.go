package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
)

func newWork() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "work",
		Short: "Place work on a fleet, and look after it",
		Long:  "Place work on a fleet, and look after it.\n\n" + serverHelp,
		Args:  cobra.NoArgs,
		RunE:  helpOnly,
	}
	cmd.AddCommand(newWorkSubmit(), newWorkList(), newWorkGet(), newWorkOrder("stop"), newWorkOrder("move"), newWorkRemove(), newWorkOwner())
	return cmd
}

// submitFlags are the flags of "tenure work submit".
type submitFlags struct {
	spec       fleet.Spec
	resources  map[string]int64
	onLoss     string
	onReturn   string
	strategy   string
	stuckAfter time.Duration
	grace      time.Duration
	queue      bool
	actor      string
}

func newWorkSubmit() *cobra.Command {
	var f submitFlags
	cmd := &cobra.Command{
		Use:   "submit WORK [flags] -- COMMAND [ARGUMENT...]",
		Short: "Place a command on a node that fits",
		Long: fmt.Sprintf(`Place COMMAND on a node that may get new work and has room. It finds in its
environment TENURE_WORK, TENURE_NODE, TENURE_TOKEN (larger at each assignment: give it
to whatever it writes to), TENURE_SERVER, TENURE_PROGRESS (the last marker of whoever
had it before) and TENURE_PROGRESS_FILE (where it may write such a marker).

Work is pinned: if its host is lost it waits for it. With --movable it is stopped on a
host that lost its lease, and then runs on another, once.

What was submitted before in the same words is shown as it is, and nothing is
changed. If it has ended, nothing is run, and the exit code is %d: submit it
under another name, or let "tenure work remove" forget it first.

If no node has room, this tries again four times, and then says how many nodes are
left out for each reason. With --queue the work waits for room. The node that --node
names must have joined.

`, exitConflict) + serverHelp + `

` + durationHelp,
		Example: `  tenure work submit import-7 --movable --resource memory_mb=512 -- /opt/import --shard 7
  tenure work submit db-1 --node web-7 -- /opt/db`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch dash := cmd.ArgsLenAtDash(); {
			case dash == 1 && len(args) > 1:
				return fleet.CheckID("work", args[0])
			case dash < 0 && len(args) > 1:
				return fmt.Errorf("write -- between the name and the command: tenure work submit %s -- %s", args[0], strings.Join(args[1:], " "))
			}
			return errors.New("name the work and its command: tenure work submit WORK -- COMMAND")
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&f.spec.Movable, "movable", false, "it may run on another node when its own has lost its lease")
	flags.StringToInt64Var(&f.resources, "resource", nil, "RESOURCE=AMOUNT that it needs, such as memory_mb=512,slots=1")
	flags.StringToStringVar(&f.spec.Request.Labels, "label", nil, "KEY=VALUE that its node must have")
	flags.StringSliceVar(&f.spec.Request.Features, "feature", nil, "feature that its node must have")
	flags.StringSliceVar(&f.spec.Request.Artifacts, "artifact", nil, "artifact that its node must have")
	flags.StringVar(&f.spec.Request.Node, "node", "", "this node and no other")
	flags.StringSliceVar(&f.spec.Request.Exclude, "exclude", nil, "none of these nodes")
	flags.StringVar(&f.strategy, "strategy", "", "which node of those that fit: most-free (default), spread or bin-pack")
	flags.StringToStringVar(&f.spec.Env, "env", nil, "NAME=VALUE for its environment")
	flags.StringVar(&f.spec.Dir, "dir", "", "directory that it starts in")
	flags.StringVar(&f.onLoss, "on-loss", "", "when its node may not act: keep (default), quiesce (SIGUSR1, and SIGUSR2 when it may act again), or stop (default of movable work)")
	flags.StringVar(&f.onReturn, "on-return", "", "when its node comes back after a takeover: keep-replacement (default) or keep-original")
	addDuration(flags, &f.stuckAfter, "stuck-after", 0, time.Second, fleet.MaxStuck, "it counts as stuck when its marker of progress has not changed for so long")
	addDuration(flags, &f.grace, "grace", 0, time.Millisecond, fleet.MaxGrace, "between SIGTERM and SIGKILL (default 2s)")
	flags.BoolVar(&f.queue, "queue", false, "if no node has room, store it until one has")
	flags.StringVar(&f.actor, "actor", "", "who wants it (default USER@HOST of this process)")
	for name, values := range map[string][]string{
		"strategy": {string(fleet.MostFree), string(fleet.Spread), string(fleet.BinPack)},
		"on-loss":  {string(fleet.Keep), string(fleet.Quiesce), string(fleet.Stop)}, "on-return": {string(fleet.KeepReplacement), string(fleet.KeepOriginal)},
	} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
	}
	use, out := addServer(cmd), addFormat(cmd)
	byNode := use.complete(nodeNames)
	must(cmd.RegisterFlagCompletionFunc("node", func(cmd *cobra.Command, _ []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return byNode(cmd, nil, toComplete)
	}))
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		for name := range f.spec.Env {
			if name == "" || strings.ContainsFunc(name, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }) {
				return failf(exitUsage, "--env: name %q: must be printable and without spaces", name)
			}
		}
		spec := f.spec
		spec.ID, spec.Command = args[0], args[1:]
		spec.Request.Resources, spec.Request.Strategy = f.resources, fleet.Strategy(f.strategy)
		spec.OnLoss, spec.OnReturn = fleet.LossPolicy(f.onLoss), fleet.ReturnPolicy(f.onReturn)
		spec.StuckAfterMS, spec.GraceMS = f.stuckAfter.Milliseconds(), f.grace.Milliseconds()
		if err := spec.Check(); err != nil {
			return err
		}
		m, err := filled(fleet.Mark{Actor: f.actor}, false)
		if err != nil {
			return err
		}
		return use.ask(ctx, func(ctx context.Context, c *api.Client) error {
			if node := spec.Request.Node; node != "" { // no wait brings one that never joined
				if _, err := c.Node(ctx, node); err != nil {
					return err
				}
			}
			w, err := c.Submit(ctx, api.SubmitRequest{Spec: spec, Actor: m.Actor, Queue: f.queue})
			if err == nil && w.Existing && w.State.Ended() {
				return failf(exitConflict, "work %q ended already, %s at %s with exit code %d, and nothing was run: submit it under another name, or remove it first: tenure work remove %s --reason WHY",
					w.ID, w.State, clockTime(w.EndedAt), w.ExitCode, w.ID)
			}
			return workDone(cmd, *out, w, err)
		})
	})
	return cmd
}

// workDone reports an item after a change of it.
func workDone(cmd *cobra.Command, out format, w *api.Work, err error) error {
	if err != nil {
		return err
	}
	if out == asJSON {
		return printJSON(cmd.OutOrStdout(), w)
	}
	line := w.ID + ": " + string(w.State)
	if w.Owner != "" {
		line += " on " + w.Owner + ", token " + w.Token.String()
	}
	if w.Existing {
		line += "; it was there already, and nothing was changed"
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), escape(line))
	return err
}

func newWorkList() *cobra.Command {
	var states []string
	var owner string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List work, in order of its names",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringSliceVar(&states, "state", nil, "only in these states: pending, placed, running, stopping, succeeded, failed, stopped")
	cmd.Flags().StringVar(&owner, "owner", "", "only what this node has, or had last")
	use, out := addServer(cmd), addFormat(cmd)
	byNode := use.complete(nodeNames)
	must(cmd.RegisterFlagCompletionFunc("owner", func(cmd *cobra.Command, _ []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return byNode(cmd, nil, toComplete)
	}))
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		return use.ask(ctx, func(ctx context.Context, c *api.Client) error {
			q := api.WorkQuery{Owner: owner}
			for _, s := range states {
				q.States = append(q.States, fleet.WorkState(s))
			}
			all := api.Works{Work: []api.Work{}}
			for {
				page, err := c.Works(ctx, q)
				if err != nil {
					return err
				}
				all.Work = append(all.Work, page.Work...)
				if q.After = page.Next; q.After == "" {
					break
				}
			}
			if *out == asJSON {
				return printJSON(cmd.OutOrStdout(), all)
			}
			rows := [][]string{{"WORK", "STATE", "OWNER", "TOKEN", "MOVABLE", "SINCE", "TAKEOVERS", "PROGRESS"}}
			for i := range all.Work {
				w := &all.Work[i]
				state := string(w.State)
				if w.Stuck {
					state += ", stuck"
				}
				if w.Moving {
					state += ", moving"
				}
				rows = append(rows, []string{w.ID, state, dash(w.Owner), w.Token.String(), yesNo(w.Movable), clockTime(since(w)), strconv.Itoa(w.Takeovers), dash(w.Progress)})
			}
			return table(cmd.OutOrStdout(), rows)
		})
	})
	return cmd
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// since is when the present state of an item began, as far as it is known.
func since(w *api.Work) time.Time {
	switch {
	case w.State.Ended():
		return w.EndedAt
	case w.State == fleet.Pending:
		return w.Submitted
	case w.State == fleet.Placed || w.Started.IsZero():
		return w.Assigned
	}
	return w.Started
}

func newWorkGet() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get WORK",
		Short: "Show one work item",
		Args:  oneID("work"),
	}
	use, out := addServer(cmd), addFormat(cmd)
	cmd.ValidArgsFunction = use.complete(workNames)
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		return use.ask(ctx, func(ctx context.Context, c *api.Client) error {
			w, err := c.Work(ctx, args[0])
			if err != nil {
				return err
			}
			if *out == asJSON {
				return printJSON(cmd.OutOrStdout(), w)
			}
			return printWork(cmd.OutOrStdout(), w)
		})
	})
	return cmd
}

func printWork(out io.Writer, w *api.Work) error {
	command := make([]string, len(w.Command))
	for i, arg := range w.Command {
		command[i] = shellWord(arg)
	}
	spec := w.Spec.Filled()
	rows := [][2]string{
		{"work", w.ID},
		{"state", string(w.State)},
		{"owner", w.Owner},
		{"token", w.Token.String()},
		{"why", w.Why},
		{"command", strings.Join(command, " ")},
		{"directory", w.Dir},
		{"movable", yesNo(w.Movable)},
		{"on loss", string(spec.OnLoss)},
		{"on return", string(spec.OnReturn)},
		{"node", w.Request.Node},
		{"progress", w.Progress},
		{"stuck", yesNo(w.Stuck)},
		{"submitted at", clockTime(w.Submitted)},
		{"assigned at", clockTime(w.Assigned)},
		{"started at", clockTime(w.Started)},
		{"ended at", clockTime(w.EndedAt)},
		{"result", w.Result},
		{"taken from", w.TakenFrom},
	}
	if w.State.Ended() {
		rows = append(rows, [2]string{"exit code", strconv.Itoa(w.ExitCode)})
	}
	if w.Takeovers > 0 {
		rows = append(rows, [2]string{"takeovers", strconv.Itoa(w.Takeovers)})
	}
	for _, r := range sortedKeys(w.Request.Resources) {
		rows = append(rows, [2]string{"needs " + r, strconv.FormatInt(w.Request.Resources[r], 10)})
	}
	return pairs(out, rows)
}

// newWorkOrder makes "work stop" and "work move".
func newWorkOrder(verb string) *cobra.Command {
	cmd := &cobra.Command{
		Use:  verb + " WORK --reason WHY",
		Args: oneID("work"),
	}
	cmd.Short = "End a work item for good"
	if verb == "move" {
		cmd.Short = "Stop a movable work item, and place it on another node that fits"
	}
	mark, use, out := addMark(cmd, true), addServer(cmd), addFormat(cmd)
	cmd.ValidArgsFunction = use.complete(workNames)
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		m, err := filled(*mark, true)
		if err != nil {
			return err
		}
		return use.ask(ctx, func(ctx context.Context, c *api.Client) error {
			order := c.StopWork
			if verb == "move" {
				order = c.MoveWork
			}
			w, err := order(ctx, args[0], api.WorkOrder{Actor: m.Actor, Reason: m.Reason})
			return workDone(cmd, *out, w, err)
		})
	})
	return cmd
}

func newWorkRemove() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remove WORK --reason WHY",
		Short: "Forget a work item that has ended",
		Long: `Forget a work item that has ended, so that its name can be submitted again: its token
is then larger than before. The ledger keeps what happened. Without this an item is
forgotten after the server's --keep-ended.`,
		Args: oneID("work"),
	}
	mark, use, out := addMark(cmd, true), addServer(cmd), addFormat(cmd)
	cmd.ValidArgsFunction = use.complete(workNames)
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		m, err := filled(*mark, true)
		if err != nil {
			return err
		}
		return use.ask(ctx, func(ctx context.Context, c *api.Client) error {
			w, err := c.RemoveWork(ctx, args[0], m.Actor, m.Reason)
			switch {
			case hasCode(err, fleet.CodeWrongState):
				return &explained{msg: fmt.Sprintf("%s; end it first: tenure work stop %s --reason WHY", words(err.Error()), args[0]), err: err}
			case err != nil:
				return err
			}
			if *out == asJSON {
				return printJSON(cmd.OutOrStdout(), w)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: removed\n", escape(w.ID))
			return err
		})
	})
	return cmd
}

func newWorkOwner() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "owner WORK",
		Short: "Say which node has a work item, and where it can be reached",
		Long: `Say which node has a work item, and where it can be reached. The three answers are
owner, no_owner, and owner_lapsed: its host is gone, and there is no other yet.`,
		Args: oneID("work"),
	}
	use, out := addServer(cmd), addFormat(cmd)
	cmd.ValidArgsFunction = use.complete(workNames)
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		return use.ask(ctx, func(ctx context.Context, c *api.Client) error {
			o, err := c.Owner(ctx, args[0])
			if err != nil {
				return err
			}
			if *out == asJSON {
				return printJSON(cmd.OutOrStdout(), o)
			}
			rows := [][2]string{{"work", o.Work}, {"answer", o.Answer}, {"node", o.Node}, {"address", o.Address}, {"note", o.Text}}
			if o.Token > 0 {
				rows = append(rows, [2]string{"token", o.Token.String()})
			}
			return pairs(cmd.OutOrStdout(), rows)
		})
	})
	return cmd
}
