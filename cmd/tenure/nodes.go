package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
)

func newNodes(con console) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "nodes",
		Aliases: []string{"node"},
		Short:   "Look at the nodes of a fleet, and keep new work from them or empty them",
		Long:    "Look at the nodes of a fleet, and keep new work from them or empty them.\n\n" + serverHelp,
		Args:    cobra.NoArgs,
		RunE:    helpOnly,
	}
	cmd.AddCommand(newNodesList(), newNodesGet(), newNodesCordon(), newNodesDrain(con), newNodesResume(), newNodesRemove())
	return cmd
}

func newNodesList() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the nodes, the one that was silent longest first",
		Long: `List the nodes, the one that was silent longest first. Three facts are told apart:
STALE, it is not heard, and gets no new work; FENCED, its lease gives it no right to
act; DRAINING, somebody wants it empty. USE is what is taken of what it offers.`,
		Args: cobra.NoArgs,
	}
	use, out := addServer(cmd), addFormat(cmd)
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		return use.ask(ctx, func(ctx context.Context, c *api.Client) error {
			nodes, err := c.NodesNow(ctx) // no reason is told from a cache (P8)
			if err != nil {
				return err
			}
			slices.SortStableFunc(nodes, func(a, b api.Node) int { return cmp.Compare(b.AgeMS, a.AgeMS) })
			if *out == asJSON {
				return printJSON(cmd.OutOrStdout(), api.Nodes{Nodes: nodes})
			}
			rows := [][]string{{"NODE", "HEARD", "STALE", "FENCED", "DRAINING", "LEASE", "USE", "WORK", "STUCK", "FIRST REASON"}}
			for i := range nodes {
				n := &nodes[i]
				rows = append(rows, []string{
					n.ID, heard(n), yesNo(n.Stale), yesNo(n.Fenced), yesNo(n.Draining),
					cmp.Or(left(time.Duration(n.Lease.RemainingMS)*time.Millisecond), string(n.Lease.State)),
					usage(n), strconv.Itoa(n.Work), strconv.Itoa(n.Stuck), firstReason(n),
				})
			}
			return table(cmd.OutOrStdout(), rows)
		})
	})
	return cmd
}

// heard says how long ago a node was last heard.
func heard(n *api.Node) string {
	return shortDuration((time.Duration(n.AgeMS) * time.Millisecond).Round(100 * time.Millisecond))
}

// usage says what is taken of what a node offers, by the larger of what is reserved
// and what it finds in use.
func usage(n *api.Node) string {
	var all []string
	for _, r := range sortedKeys(n.Facts.Capacity) {
		all = append(all, fmt.Sprintf("%s %d/%d", r, max(n.Reserved[r], n.Facts.Used[r]), n.Facts.Capacity[r]))
	}
	return cmp.Or(strings.Join(all, ", "), "-")
}

func firstReason(n *api.Node) string {
	if len(n.Exclusions) == 0 {
		return "-"
	}
	return string(n.Exclusions[0].Code)
}

func newNodesGet() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get NODE",
		Short: "Show one node, with all reasons why it gets no new work",
		Args:  oneID("node"),
	}
	use, out := addServer(cmd), addFormat(cmd)
	cmd.ValidArgsFunction = use.complete(nodeNames)
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		return use.ask(ctx, func(ctx context.Context, c *api.Client) error {
			n, err := c.Node(ctx, args[0])
			if err != nil {
				return err
			}
			return printNode(cmd.OutOrStdout(), *out, n)
		})
	})
	return cmd
}

func printNode(w io.Writer, out format, n *api.Node) error {
	if out == asJSON {
		return printJSON(w, n)
	}
	ready := "yes"
	if !n.Facts.Readiness.Ready {
		ready = "no: " + strings.Join(nonEmpty(n.Facts.Readiness.Reason, n.Facts.Readiness.Text), ", ")
	}
	rows := [][2]string{
		{"node", n.ID},
		{"heard", heard(n) + " ago, " + string(n.Liveness)},
		{"stale", yesNo(n.Stale)},
		{"fenced", yesNo(n.Fenced)},
		{"draining", yesNo(n.Draining)},
		{"lease", strings.Join(nonEmpty(string(n.Lease.State), left(time.Duration(n.Lease.RemainingMS)*time.Millisecond)), ", ")},
		{"node's token", n.Lease.Token.String()},
		{"intent", string(n.Intent)},
		{"ready", ready},
		{"use", usage(n)},
		{"work", strconv.Itoa(n.Work)},
		{"stuck", strconv.Itoa(n.Stuck)},
		{"address", n.Facts.Address},
		{"features", strings.Join(n.Facts.Features, ", ")},
		{"artifacts", strings.Join(n.Facts.Artifacts, ", ")},
		{"configuration", n.Facts.Config},
		{"incarnation", n.Incarnation},
		{"duplicate", n.Duplicate},
	}
	if m := n.IntentMarks.Cordon; m != nil {
		rows = append(rows, [2]string{"cordoned", markText(*m)})
	}
	if d := n.IntentMarks.Drain; d != nil {
		rows = append(rows, [2]string{"drain", markText(d.Mark)}, [2]string{"drain deadline", clockTime(d.Deadline)}, [2]string{"drained", clockTime(d.Done)})
	}
	for _, k := range sortedKeys(n.Facts.Labels) {
		rows = append(rows, [2]string{"label " + k, n.Facts.Labels[k]})
	}
	for _, e := range n.Exclusions {
		rows = append(rows, [2]string{string(e.Code), e.Text + "; clears when: " + e.Clears})
	}
	return pairs(w, rows)
}

func markText(m fleet.Mark) string {
	return fmt.Sprintf("%s by %s: %s", clockTime(m.At), m.Actor, m.Reason)
}

func nonEmpty(all ...string) []string {
	return slices.DeleteFunc(all, func(s string) bool { return s == "" })
}

func newNodesCordon() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "cordon NODE --reason WHY",
		Short:   "Keep new work from a node; what it has goes on",
		Example: `  tenure nodes cordon web-7 --reason 'disk makes noises'`,
		Args:    oneID("node"),
	}
	mark, use, out := addMark(cmd, true), addServer(cmd), addFormat(cmd)
	cmd.ValidArgsFunction = use.complete(nodeNames)
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		m, err := filled(*mark, true)
		if err != nil {
			return err
		}
		return use.ask(ctx, func(ctx context.Context, c *api.Client) error {
			n, err := c.Cordon(ctx, args[0], api.CordonRequest{Actor: m.Actor, Reason: m.Reason})
			return nodeDone(cmd, *out, n, err)
		})
	})
	return cmd
}

// nodeDone reports a node after a change of what is wanted of it.
func nodeDone(cmd *cobra.Command, out format, n *api.Node, err error) error {
	if err != nil {
		return err
	}
	if out == asJSON {
		return printJSON(cmd.OutOrStdout(), n)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", escape(n.ID), n.Intent)
	return err
}

func newNodesResume() *cobra.Command {
	what := api.ResumeDrain
	cmd := &cobra.Command{
		Use:   "resume NODE",
		Short: "Let a node get new work again after a drain; with --what all after a cordon too",
		Args:  oneID("node"),
	}
	cmd.Flags().StringVar(&what, "what", what, "what ends: drain, and a cordon from before stays; or all")
	must(cmd.RegisterFlagCompletionFunc("what", cobra.FixedCompletions([]string{api.ResumeDrain, api.ResumeAll}, cobra.ShellCompDirectiveNoFileComp)))
	mark, use, out := addMark(cmd, false), addServer(cmd), addFormat(cmd)
	cmd.ValidArgsFunction = use.complete(nodeNames)
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		if what != api.ResumeDrain && what != api.ResumeAll {
			return failf(exitUsage, "--what %q: must be drain or all", what)
		}
		m, err := filled(*mark, false)
		if err != nil {
			return err
		}
		return use.ask(ctx, func(ctx context.Context, c *api.Client) error {
			n, err := c.Resume(ctx, args[0], api.ResumeRequest{Actor: m.Actor, Reason: m.Reason, What: what})
			if err == nil && *out != asJSON && n.Intent == fleet.Cordoned {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: still cordoned; to end the cordon too: tenure nodes resume %s --what all\n", escape(n.ID), shellWord(n.ID))
				return err
			}
			return nodeDone(cmd, *out, n, err)
		})
	})
	return cmd
}

func newNodesRemove() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remove NODE --reason WHY",
		Short: "Forget a node that is gone for good",
		Long: `Forget a node whose lease is over: stop its agent first. It must own nothing. If its
host is lost with work that is pinned to it, --gone says that the host never comes
back, and ends that work as failed. Should you be wrong, its writes are refused, and its
copies are ended when the host is back. Movable work is taken over by another node first.`,
		Args: oneID("node"),
	}
	mark, use, out := addMark(cmd, true), addServer(cmd), addFormat(cmd)
	gone := cmd.Flags().Bool("gone", false, "the host never comes back: end as failed what is pinned to it")
	cmd.ValidArgsFunction = use.complete(nodeNames)
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		m, err := filled(*mark, true)
		if err != nil {
			return err
		}
		return use.ask(ctx, func(ctx context.Context, c *api.Client) error {
			n, err := c.RemoveNode(ctx, args[0], m.Actor, m.Reason, *gone)
			switch {
			case hasCode(err, fleet.CodeWrongState):
				return &explained{msg: fmt.Sprintf("%s; if it lives, empty it with: tenure nodes drain %s --move --wait --reason WHY, end pinned work with: tenure work stop WORK --reason WHY, and stop its agent; if its host is lost for good: tenure nodes remove %s --gone --reason WHY", words(err.Error()), args[0], args[0]), err: err}
			case err != nil:
				return err
			}
			if *out == asJSON {
				return printJSON(cmd.OutOrStdout(), n)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: removed\n", escape(n.ID))
			return err
		})
	})
	return cmd
}

func newNodesDrain(con console) *cobra.Command {
	var (
		wait, move        bool
		waitFor, deadline time.Duration
	)
	cmd := &cobra.Command{
		Use:   "drain NODE --reason WHY",
		Short: "Empty a node: no new work, and what it has ends or moves away",
		Long: `Keep new work from a node until it is resumed. What it has goes on to its end; with
--move, movable work is stopped there and placed elsewhere. A node is drained when it
has nothing left.

` + fmt.Sprintf("With --wait this shows what it waits for, and ends when the node is drained; after\n--wait-for, or if somebody resumes the node, with exit code %d.", exitNotDrained),
		Example: `  tenure nodes drain web-7 --reason 'kernel upgrade' --move --wait`,
		Args:    oneID("node"),
	}
	cmd.Flags().BoolVar(&move, "move", false, "move movable work away in place of waiting for it")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the node is drained")
	addDuration(cmd.Flags(), &waitFor, "wait-for", 0, 100*time.Millisecond, 366*24*time.Hour, "wait at most this long")
	addDuration(cmd.Flags(), &deadline, "deadline", 0, time.Second, 366*24*time.Hour, "after which the drain is shown as overdue; nothing else happens then")
	mark, use, out := addMark(cmd, true), addServer(cmd), addFormat(cmd)
	cmd.ValidArgsFunction = use.complete(nodeNames)
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		m, err := filled(*mark, true)
		if err != nil {
			return err
		}
		if !wait && waitFor == 0 {
			return use.ask(ctx, func(ctx context.Context, c *api.Client) error {
				n, err := c.Drain(ctx, args[0], api.DrainRequest{Actor: m.Actor, Reason: m.Reason, DeadlineMS: deadline.Milliseconds(), Move: move})
				return nodeDone(cmd, *out, n, err)
			})
		}
		return use.follow(ctx, func(ctx context.Context, c *api.Client) error {
			asking, cancel := context.WithTimeout(ctx, use.timeout)
			_, err := c.Drain(asking, args[0], api.DrainRequest{Actor: m.Actor, Reason: m.Reason, DeadlineMS: deadline.Milliseconds(), Move: move})
			cancel()
			if err != nil {
				return err
			}
			w := &drainWait{node: args[0], client: c, timeout: use.timeout, notes: con.err, live: con.interactive}
			n, err := w.run(ctx, waitFor)
			return nodeDone(cmd, *out, n, err)
		})
	})
	return cmd
}

// drainPoll is how often a drain that is waited for is looked at.
const drainPoll = 250 * time.Millisecond

// drainWait waits until a node is drained and shows meanwhile what is in the way.
type drainWait struct {
	node    string
	client  *api.Client
	timeout time.Duration
	notes   io.Writer
	live    bool // a line that is written over; else one for each change
	last    string
}

// run returns the node once it is drained. limit 0 is none.
func (w *drainWait) run(ctx context.Context, limit time.Duration) (*api.Node, error) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, failf(exitNotDrained, "%s: not drained within %s; the drain goes on, and \"tenure why %s\" shows what it waits for", w.node, shortDuration(limit), w.node))
		defer cancel()
	}
	defer w.end()
	poll := time.NewTicker(drainPoll)
	defer poll.Stop()
	for {
		why, err := w.ask(ctx)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil && isRefusal(err):
			w.show("the server does not answer: " + words(err.Error()))
		case err != nil:
			return nil, err
		default:
			switch why.Node.Intent {
			case fleet.Drained:
				return &why.Node, nil
			case fleet.Draining:
				w.show(blockersText(why.Blockers, why.Leftovers))
			default:
				return nil, failf(exitNotDrained, "%s: the drain was called off: the node is %s", w.node, why.Node.Intent)
			}
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (w *drainWait) ask(ctx context.Context) (*api.NodeWhy, error) {
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	return w.client.WhyNode(ctx, w.node)
}

func blockersText(work []api.Work, left []fleet.Leftover) string {
	if len(work)+len(left) == 0 {
		return "nothing is left; the server is about to note it"
	}
	var all []string
	for _, b := range work {
		text := b.ID + " (" + string(b.State)
		if b.Moving {
			text += ", moving"
		}
		if b.Stuck {
			text += ", stuck"
		}
		all = append(all, text+")")
	}
	for _, l := range left {
		all = append(all, fmt.Sprintf("%s (a copy with token %s, pid %d)", l.Work, l.Token, l.PID))
	}
	const most = 5
	if n := len(all); n > most {
		all = append(all[:most], fmt.Sprintf("and %d more", n-most))
	}
	return fmt.Sprintf("waiting for %d: %s", len(work)+len(left), strings.Join(all, ", "))
}

func (w *drainWait) show(text string) {
	if text == w.last {
		return
	}
	w.last = text
	line := escape(w.node + ": " + text)
	if w.live {
		fmt.Fprintf(w.notes, "\r\x1b[K%s", line)
		return
	}
	fmt.Fprintln(w.notes, line)
}

func (w *drainWait) end() {
	if w.live && w.last != "" {
		fmt.Fprint(w.notes, "\r\x1b[K")
	}
}
