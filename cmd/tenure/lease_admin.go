package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// tokenFlag is a flag that holds a token; 0 while it is not given.
type tokenFlag fence.Token

func (t *tokenFlag) Type() string { return "token" }

func (t *tokenFlag) String() string {
	if *t == 0 {
		return ""
	}
	return fence.Token(*t).String()
}

func (t *tokenFlag) Set(s string) error {
	n, err := fence.ParseToken(s)
	*t = tokenFlag(n)
	return err
}

// ending is what revoke and handoff have in common: they end one term, the one
// with a certain token.
type ending struct {
	token   tokenFlag
	rev     store.Revocation
	timeout *time.Duration
}

func addEnding(cmd *cobra.Command) *ending {
	e := &ending{timeout: addTimeout(cmd)}
	cmd.Flags().Var(&e.token, "token", "token of the term to end; without it the current one is shown and asked for on a terminal")
	cmd.Flags().StringVar(&e.rev.Why, "reason", "", "why, for the holder and the history (required)")
	cmd.Flags().StringVar(&e.rev.By, "by", operator(), "who ends it")
	must(cmd.MarkFlagRequired("reason"))
	cmd.ValidArgsFunction = completeNames
	return e
}

// operator names who runs this program, for the record.
func operator() string {
	name := os.Getenv("SUDO_USER")
	if u, err := user.Current(); name == "" && err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return name + "@" + host
}

// run ends the term of name that e names, and says what happens next.
func (e *ending) run(ctx context.Context, cmd *cobra.Command, con console, name, what string) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	if strings.TrimSpace(e.rev.Why) == "" {
		return failf(exitUsage, "reason %q: say why, for the holder and the history", e.rev.Why)
	}
	if err := e.rev.Check(); err != nil {
		return err
	}
	token := fence.Token(e.token)
	if token == 0 && !con.interactive {
		return failf(exitUsage, "%s %q: give --token, the token of the term to end; \"tenure lease get %s\" shows the current one", what, name, name)
	}
	if token == 0 {
		var r store.Record
		err := withStore(ctx, cmd, *e.timeout, func(ctx context.Context, st store.Store) (err error) {
			r, err = st.Get(ctx, name)
			return err
		})
		if err != nil {
			return err
		}
		if r.Status != store.Held {
			return failf(exitConflict, "%s %q: no term is held (%s); nothing was changed", what, name, state(&r))
		}
		if err := con.confirm(ctx, fmt.Sprintf("%s %s, token %s, held by %s?", what, name, r.Token, r.Holder)); err != nil {
			return err
		}
		token = r.Token
	}
	return withStore(ctx, cmd, *e.timeout, func(ctx context.Context, st store.Store) error {
		if err := st.Revoke(ctx, name, token, e.rev); errors.Is(err, store.ErrSuperseded) {
			return notCurrent(ctx, cmd, st, fmt.Errorf("%s %q, token %s: %w", what, name, token, err), name)
		} else if err != nil {
			return fmt.Errorf("%s %q, token %s: %w", what, name, token, err)
		}
		r, err := st.Get(ctx, name)
		if err != nil {
			return fmt.Errorf("%s %q: done; the record could not be read afterwards: %w", what, name, err)
		}
		fmt.Fprintln(cmd.ErrOrStderr(), escape(e.outcome(&r, token)))
		return nil
	})
}

// notCurrent says in place of err, about a token of name, which one is current.
func notCurrent(ctx context.Context, cmd *cobra.Command, st store.Store, err error, name string) error {
	loc, locErr := chosenStore(cmd)
	r, getErr := st.Get(ctx, name)
	if locErr != nil || getErr != nil {
		return err // says all that is known
	}
	return &explained{err: err, msg: fmt.Sprintf("lease %q: nothing was changed, since the current token is %s (%s); see: %s", name, r.Token, state(&r), loc.command("lease get "+name))}
}

// outcome says what a person must know after the term was ended.
func (e *ending) outcome(r *store.Record, token fence.Token) string {
	next := ""
	if e.rev.HandoffTo != "" {
		next = fmt.Sprintf(" It is then reserved for %s for %s.", e.rev.HandoffTo, shortDuration(store.HandoffTime(r.TTL)))
	}
	if e.rev.Now {
		return fmt.Sprintf("%s: token %s is ended and the lease is free. Until its holder learns of it two may act; only a fence refuses the old one's writes.%s", r.Name, token, next)
	}
	if r.Status == store.Held && r.Token == token {
		return fmt.Sprintf("%s: token %s is revoked. The lease is free when its holder has stopped, in %s at the latest.%s", r.Name, token, left(r.Remaining), next)
	}
	return fmt.Sprintf("%s: token %s is ended.%s", r.Name, token, next)
}

// confirm asks a person. Anything but yes ends the command.
func (c console) confirm(ctx context.Context, question string) error {
	fmt.Fprint(c.err, escape(question), " [y/N] ")
	answer := make(chan string, 1)
	go func() { // ends with the program if nobody answers
		line, _ := bufio.NewReader(c.in).ReadString('\n')
		answer <- line
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case a := <-answer:
		switch strings.ToLower(strings.TrimSpace(a)) {
		case "y", "yes":
			return nil
		}
		return failf(exitUsage, "not confirmed; nothing was changed")
	}
}

func newLeaseRevoke(con console) *cobra.Command {
	cmd := &cobra.Command{
		Use:                   "revoke NAME --reason WHY [--token N] [--now]",
		DisableFlagsInUseLine: true,
		Short:                 "End a term: its holder is refused at its next renewal",
		Long: `Mark the term with exactly this token so that every later renewal of it is
refused. The holder stops its work and releases the lease; nobody else gets it
before that, or before the term expires. With --now the lease is free at once,
and two may act until the old holder learns of it.`,
		Args: oneName,
	}
	e := addEnding(cmd)
	cmd.Flags().BoolVar(&e.rev.Now, "now", false, "free the lease at once; two may act until the old holder learns of it")
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		return e.run(ctx, cmd, con, args[0], "revoke")
	})
	return cmd
}

func newLeaseHandoff(con console) *cobra.Command {
	cmd := &cobra.Command{
		Use:                   "handoff NAME --to HOLDER --reason WHY [--token N]",
		DisableFlagsInUseLine: true,
		Short:                 "End a term and reserve the lease for a named holder",
		Long: fmt.Sprintf(`End a term as revoke does, and reserve the lease for a named holder afterwards:
for the term's TTL, at most %s, then it is free to all. HOLDER is a holder's full
identity, or the part before its first slash, which is its host.`, shortDuration(store.MaxHandoff)),
		Args: oneName,
	}
	e := addEnding(cmd)
	cmd.Flags().StringVar(&e.rev.HandoffTo, "to", "", "holder, or host, that may acquire it first (required)")
	must(cmd.MarkFlagRequired("to"))
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		if err := store.CheckHolder(e.rev.HandoffTo); err != nil {
			return err
		}
		return e.run(ctx, cmd, con, args[0], "handoff")
	})
	return cmd
}

func newLeaseRaiseFloor() *cobra.Command {
	var floor tokenFlag
	var all bool
	cmd := &cobra.Command{
		Use:                   "raise-floor {NAME|--all} --to TOKEN",
		DisableFlagsInUseLine: true,
		Short:                 "Make every later token larger than TOKEN",
		Long: `Make every later token of NAME larger than TOKEN; with --all of every name, also of
those that the store does not know. Do this after a store was restored from a
backup, with the largest token that any target may have seen. A live term at or
below the floor ends as if revoked. A floor never goes down.`,
		Args: cobra.MaximumNArgs(1),
	}
	timeout := addTimeout(cmd)
	cmd.Flags().Var(&floor, "to", "the floor (required)")
	cmd.Flags().BoolVar(&all, "all", false, "for every name")
	must(cmd.MarkFlagRequired("to"))
	cmd.ValidArgsFunction = completeNames
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		if all == (len(args) == 1) {
			return failf(exitUsage, "raise-floor: give either one NAME or --all")
		}
		name, whose := "", "every name"
		if !all {
			name, whose = args[0], args[0]
			if err := notStore(name); err != nil {
				return err
			}
			if err := store.CheckName(name); err != nil {
				return err
			}
		}
		if err := store.CheckFloor(name, fence.Token(floor)); err != nil {
			return err
		}
		loc, err := chosenStore(cmd)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		// Unchecked, since a raised floor is what puts a copied file in use.
		st, closeStore, _, err := openUnchecked(ctx, loc, false)
		if err != nil {
			return err
		}
		defer closeStore()
		if err := st.RaiseFloor(ctx, name, fence.Token(floor)); err != nil {
			return explain(loc, fmt.Errorf("raise-floor of %s to %s: %w", whose, fence.Token(floor), err))
		}
		// No store tells the floor of all names; that of one name is in its record.
		if r, err := st.Get(ctx, name); !all && err == nil && r.Floor > fence.Token(floor) {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: the floor is %s already; nothing was changed\n", whose, r.Floor)
			return nil
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: every later token is larger than %s\n", whose, fence.Token(floor))
		return nil
	})
	return cmd
}

func newLeaseClean() *cobra.Command {
	var idle time.Duration
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "Drop the records of leases that are not used any more",
		Long: `Drop the records of leases whose last term ended long ago. The floor for unknown
names is raised in the same step, so that tokens go on growing.`,
		Args: cobra.NoArgs,
	}
	timeout, out := addTimeout(cmd), addFormat(cmd)
	addDuration(cmd.Flags(), &idle, "idle", 30*24*time.Hour, time.Minute, 10*store.MaxHold, "how long ago the last term must have ended")
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		return withStore(ctx, cmd, *timeout, func(ctx context.Context, st store.Store) error {
			cleaner, ok := st.(store.Cleaner)
			if !ok {
				return fmt.Errorf("clean: this store drops no records: %w", store.ErrUnsupported)
			}
			n, err := cleaner.Clean(ctx, idle)
			if err != nil {
				return fmt.Errorf("clean: %w", err)
			}
			if *out == asJSON {
				return printJSON(cmd.OutOrStdout(), map[string]any{"removed": n})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "removed %d records of leases not held for %s\n", n, shortDuration(idle))
			return err
		})
	})
	return cmd
}
