package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

func newLease(con console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lease",
		Short: "Look at leases, and end or move their terms",
		Args:  cobra.NoArgs,
		RunE:  helpOnly,
	}
	cmd.AddCommand(
		newLeaseList(),
		newLeaseGet(),
		newLeaseWatch(),
		newLeaseHistory(),
		newLeaseRevoke(con),
		newLeaseHandoff(con),
		newLeaseRaiseFloor(),
		newLeaseClean(),
	)
	return cmd
}

// requestTime bounds what one command asks of a store, unless it watches.
const requestTime = 10 * time.Second

func addTimeout(cmd *cobra.Command) *time.Duration {
	d := new(time.Duration)
	addDuration(cmd.Flags(), d, "timeout", requestTime, 100*time.Millisecond, time.Hour, "how long the store may take to answer")
	return d
}

// oneName wants the one argument of a command to be a lease's name.
func oneName(cmd *cobra.Command, args []string) error {
	usage := strings.TrimSuffix(cmd.UseLine(), " [flags]")
	switch len(args) {
	case 0:
		return fmt.Errorf("name the lease: %s", usage)
	case 1:
		return notStore(args[0])
	}
	return fmt.Errorf("one lease, not %d: %s", len(args), usage)
}

// notStore refuses a store in the place of a name.
func notStore(name string) error {
	if strings.Contains(name, "://") {
		return failf(exitUsage, "%q is a store and no lease's name: use --store", name)
	}
	return nil
}

// withStore runs f with the chosen store, within timeout.
func withStore(ctx context.Context, cmd *cobra.Command, timeout time.Duration, f func(context.Context, store.Store) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	st, closeStore, err := openStore(ctx, cmd)
	if err != nil {
		return err
	}
	defer closeStore()
	return explainHere(cmd, f(ctx, st))
}

// leaseJSON is a record as -o json prints it. Keys are never removed or renamed.
type leaseJSON struct {
	Name        string            `json:"name"`
	Status      store.Status      `json:"status"`
	Holder      string            `json:"holder"`
	Token       fence.Token       `json:"token"`
	Floor       fence.Token       `json:"floor"`
	TTL         int64             `json:"ttl_ms"`
	Remaining   int64             `json:"remaining_ms"`
	Wait        int64             `json:"wait_ms"`
	ReservedFor string            `json:"reserved_for"`
	Revoked     bool              `json:"revoked"`
	Reason      string            `json:"reason"`
	RevokedBy   string            `json:"revoked_by"`
	AcquiredAt  instant           `json:"acquired_at"`
	RenewedAt   instant           `json:"renewed_at"`
	ExpiresAt   instant           `json:"expires_at"`
	EndedAt     instant           `json:"ended_at"`
	StoreNow    instant           `json:"store_now"`
	Meta        map[string]string `json:"meta"`
}

func leaseOf(r *store.Record) leaseJSON {
	meta := r.Meta
	if meta == nil {
		meta = map[string]string{}
	}
	return leaseJSON{
		Name: r.Name, Status: r.Status, Holder: r.Holder, Token: r.Token, Floor: r.Floor,
		TTL: millis(r.TTL), Remaining: millis(r.Remaining), Wait: millis(r.Wait),
		ReservedFor: r.ReservedFor, Revoked: r.Revoked, Reason: r.Why, RevokedBy: r.RevokedBy,
		AcquiredAt: instant(r.AcquiredAt), RenewedAt: instant(r.RenewedAt), ExpiresAt: instant(r.ExpiresAt),
		EndedAt: instant(r.EndedAt), StoreNow: instant(r.Now), Meta: meta,
	}
}

// state shows a record's status in a table, with what else keeps it from being taken.
func state(r *store.Record) string {
	switch {
	case r.Status == store.Held && r.Revoked:
		return "held, revoked"
	case r.Status != store.Held && r.ReservedFor != "":
		return string(r.Status) + ", reserved"
	case r.Status != store.Held && r.Wait > 0:
		return string(r.Status) + ", min-hold"
	}
	return string(r.Status)
}

func newLeaseList() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ls [PREFIX]",
		Aliases: []string{"list"},
		Short:   "List leases whose names begin with PREFIX",
		Args:    cobra.MaximumNArgs(1),
	}
	timeout, out := addTimeout(cmd), addFormat(cmd)
	cmd.ValidArgsFunction = completeNames
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		prefix := ""
		if len(args) > 0 {
			prefix = args[0]
		}
		if err := notStore(prefix); err != nil {
			return err
		}
		if err := store.CheckPrefix(prefix); err != nil {
			return err
		}
		return withStore(ctx, cmd, *timeout, func(ctx context.Context, st store.Store) error {
			leases := []leaseJSON{}
			rows := [][]string{{"NAME", "STATUS", "TOKEN", "HOLDER", "LEFT", "SINCE"}}
			for r, err := range st.List(ctx, prefix) {
				if err != nil {
					return err
				}
				leases = append(leases, leaseOf(&r))
				rows = append(rows, []string{r.Name, state(&r), r.Token.String(), r.Holder, left(max(r.Remaining, r.Wait)), clockTime(r.AcquiredAt)})
			}
			if *out == asJSON {
				return printJSON(cmd.OutOrStdout(), map[string]any{"leases": leases})
			}
			return table(cmd.OutOrStdout(), rows)
		})
	})
	return cmd
}

func newLeaseGet() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get NAME",
		Short: "Show one lease, from an authoritative read",
		Args:  oneName,
	}
	timeout, out := addTimeout(cmd), addFormat(cmd)
	cmd.ValidArgsFunction = completeNames
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		if err := store.CheckName(args[0]); err != nil {
			return err
		}
		return withStore(ctx, cmd, *timeout, func(ctx context.Context, st store.Store) error {
			r, err := st.Get(ctx, args[0])
			if err != nil {
				return fmt.Errorf("lease %q: %w", args[0], err)
			}
			if *out == asJSON {
				return printJSON(cmd.OutOrStdout(), leaseOf(&r))
			}
			return printLease(cmd, &r)
		})
	})
	return cmd
}

func printLease(cmd *cobra.Command, r *store.Record) error {
	rows := [][2]string{
		{"name", r.Name},
		{"status", state(r)},
		{"token", r.Token.String()},
		{"holder", r.Holder},
		{"ttl", shortDuration(r.TTL)},
		{"left", left(r.Remaining)},
		{"wait", left(r.Wait)},
		{"reserved for", r.ReservedFor},
		{"reason", r.Why},
		{"revoked by", r.RevokedBy},
		{"acquired at", clockTime(r.AcquiredAt)},
		{"renewed at", clockTime(r.RenewedAt)},
		{"expires at", clockTime(r.ExpiresAt)},
		{"ended at", clockTime(r.EndedAt)},
		{"store's clock", clockTime(r.Now)},
	}
	if r.Floor > 0 {
		rows = append(rows, [2]string{"floor", r.Floor.String()})
	}
	for _, key := range sortedKeys(r.Meta) {
		rows = append(rows, [2]string{"meta " + key, r.Meta[key]})
	}
	return pairs(cmd.OutOrStdout(), rows)
}

// termJSON is a term of a lease's history as -o json prints it.
type termJSON struct {
	Name       string      `json:"name"`
	Token      fence.Token `json:"token"`
	Holder     string      `json:"holder"`
	AcquiredAt instant     `json:"acquired_at"`
	EndedAt    instant     `json:"ended_at"`
	End        string      `json:"end"`
	Reason     string      `json:"reason"`
}

func newLeaseHistory() *cobra.Command {
	var limit int
	var before, after int64
	cmd := &cobra.Command{
		Use:   "history NAME",
		Short: "Show the terms of a lease, newest first",
		Long: `Show the terms of a lease, newest first: who held it, when, and how each ended.
Renewals make no entry. Stores keep the terms of the last 30 days, and at least the
newest 100 and at most 10,000 of a lease. Pages: give the last token of one to --before
for the next.`,
		Args: oneName,
	}
	cmd.Flags().IntVar(&limit, "limit", 0, "show at most this many terms (0: all that the store keeps)")
	cmd.Flags().Int64Var(&before, "before", 0, "show terms with smaller tokens than this")
	cmd.Flags().Int64Var(&after, "after", 0, "show terms with larger tokens than this")
	timeout, out := addTimeout(cmd), addFormat(cmd)
	cmd.ValidArgsFunction = completeNames
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		if err := store.CheckName(args[0]); err != nil {
			return err
		}
		if limit < 0 {
			return failf(exitUsage, "limit %d: must be 0 or more", limit)
		}
		for flag, token := range map[string]int64{"before": before, "after": after} {
			if token < 0 {
				return failf(exitUsage, "--%s %d: must be a token, or 0", flag, token)
			}
		}
		return withStore(ctx, cmd, *timeout, func(ctx context.Context, st store.Store) error {
			keeper, ok := st.(store.Historian)
			if !ok {
				return fmt.Errorf("history: this store keeps none: %w", store.ErrUnsupported)
			}
			terms := []termJSON{}
			rows := [][]string{{"TOKEN", "HOLDER", "ACQUIRED", "ENDED", "END", "REASON"}}
			for t, err := range keeper.History(ctx, args[0]) {
				if err != nil {
					return fmt.Errorf("history of %q: %w", args[0], err)
				}
				if before > 0 && int64(t.Token) >= before || int64(t.Token) <= after {
					continue
				}
				terms = append(terms, termJSON{t.Name, t.Token, t.Holder, instant(t.AcquiredAt), instant(t.EndedAt), t.End, t.Why})
				rows = append(rows, []string{t.Token.String(), t.Holder, clockTime(t.AcquiredAt), clockTime(t.EndedAt), t.End, t.Why})
				if limit > 0 && len(terms) == limit {
					break
				}
			}
			if len(terms) == 0 { // of a lease without a term, or of none
				if _, err := st.Get(ctx, args[0]); err != nil {
					return fmt.Errorf("history of %q: %w", args[0], err)
				}
			}
			if *out == asJSON {
				return printJSON(cmd.OutOrStdout(), map[string]any{"terms": terms})
			}
			return table(cmd.OutOrStdout(), rows)
		})
	})
	return cmd
}

// completeNames offers the names of leases to the shell. A store that does not
// answer offers none.
func completeNames(cmd *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 || store.CheckPrefix(toComplete) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	st, closeStore, err := openStore(ctx, cmd)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer closeStore()
	var names []cobra.Completion
	for r, err := range st.List(ctx, toComplete) {
		if err != nil || len(names) == 1000 {
			break
		}
		if store.CheckName(r.Name) == nil {
			names = append(names, cobra.CompletionWithDesc(r.Name, state(&r)))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// isRefusal reports whether err says that nothing was decided and that asking
// again later may help.
func isRefusal(err error) bool {
	return errors.Is(err, store.ErrBusy) || store.Classify(err) == store.CodeNoContact
}
