package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
)

// fencer is a backend whose database can guard tables by itself.
type fencer interface {
	PlanFence(ctx context.Context) ([]postgres.FenceStep, error)
	PlanFenceRemoval(ctx context.Context) ([]postgres.FenceStep, error)
	PlanGuard(ctx context.Context, g postgres.TableGuard) ([]postgres.FenceStep, error)
	PlanUnguard(ctx context.Context, table string, dropColumns bool) ([]postgres.FenceStep, error)
	RunFence(ctx context.Context, steps []postgres.FenceStep) error
	Guarded(ctx context.Context) ([]postgres.Guarded, error)
}

func newFence() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fence",
		Short: "Have a database refuse the writes of a term that is over",
		Long: `Have a Postgres database refuse the writes of a term that is over, in whatever
language they are written.

"tenure fence install" adds a function. In a transaction that has called
  SELECT tenure_fence('NAME', TOKEN)
nothing is committed after the next term of the lease NAME has begun. A token that is
not the current one raises SQLSTATE TN001. The caller needs no right on the leases.

"tenure fence guard TABLE" makes a table refuse who did not call it: an UPDATE or a
DELETE then changes no row, and is counted.

A SQLite file cannot keep what a transaction has stated, so there it is only a Go
program that can guard: sqlite.InGuard, or a mark (package fence/sqlfence).`,
		Args: cobra.NoArgs,
		RunE: helpOnly,
	}
	cmd.AddCommand(newFenceInstall(), newFenceGuard(), newFenceStatus(), newFenceRemove())
	return cmd
}

// fencing is what the verbs of fence have in common: they plan, show or run the
// plan, and say what came of it.
type fencing struct {
	timeout time.Duration
	dryRun  bool
}

func addFencing(cmd *cobra.Command, bound time.Duration) *fencing {
	f := &fencing{}
	addDuration(cmd.Flags(), &f.timeout, "timeout", bound, 100*time.Millisecond, 24*time.Hour, "how long it may take")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "print the SQL that would be run, and change nothing")
	return f
}

// run plans, and prints the plan or carries it out.
func (f *fencing) run(ctx context.Context, cmd *cobra.Command, subject string, plan func(context.Context, fencer) ([]postgres.FenceStep, error)) error {
	return withFencer(ctx, cmd, f.timeout, func(ctx context.Context, db fencer) error {
		steps, err := plan(ctx, db)
		if err != nil {
			return err
		}
		if f.dryRun {
			return printSteps(cmd, subject, steps)
		}
		for _, step := range steps {
			fmt.Fprintln(cmd.ErrOrStderr(), escape(subject+": "+step.What))
			if err := db.RunFence(ctx, []postgres.FenceStep{step}); err != nil {
				return err
			}
		}
		if len(steps) == 0 {
			fmt.Fprintln(cmd.ErrOrStderr(), escape(subject+": nothing to do, it is so already"))
		}
		return nil
	})
}

// printSteps prints a script for psql that does what the steps do.
func printSteps(cmd *cobra.Command, subject string, steps []postgres.FenceStep) error {
	if len(steps) == 0 {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "-- "+escape(subject)+": nothing to do, it is so already")
		return err
	}
	for _, step := range steps {
		begin, end := "BEGIN;\nSET LOCAL search_path = pg_catalog, pg_temp;\nSET LOCAL lock_timeout = '2s';\n", "COMMIT;\n" // as RunFence
		if step.Alone {
			begin, end = "", ""
		}
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "-- %s\n%s%s%s\n", escape(step.What), begin, step.SQL, end); err != nil {
			return err
		}
	}
	return nil
}

// withFencer runs f with the chosen store if its database can guard tables.
func withFencer(ctx context.Context, cmd *cobra.Command, timeout time.Duration, f func(context.Context, fencer) error) error {
	loc, err := chosenStore(cmd)
	if err != nil {
		return err
	}
	if loc.kind != kindPostgres {
		return failf(exitConfig, "fence: store %s is no Postgres database, and only that can refuse the writes of other programs by itself; in SQLite a Go program guards its own transactions (sqlite.InGuard)", loc)
	}
	return withStore(ctx, cmd, timeout, func(ctx context.Context, st store.Store) error {
		db, ok := st.(fencer)
		if !ok {
			return fmt.Errorf("fence: %w", store.ErrUnsupported)
		}
		err := f(ctx, db)
		if errors.Is(err, store.ErrNotFound) { // a table, and no lease
			return failf(exitNotFound, "store %s: %w", loc, err)
		}
		return err
	})
}

func newFenceInstall() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Add tenure_fence and what guarded tables need to a Postgres database",
		Long: `Add to the schema of the leases the function tenure_fence(NAME, TOKEN), for callers in
every language, and what guarded tables need. It may be repeated, and brings older
functions to this version. Run it as the role that runs "tenure migrate", since the
functions have the rights of the owner of the leases' tables. Guards of an older form
then go on, and "tenure fence status" names them, to be guarded again.`,
		Args: cobra.NoArgs,
	}
	f := addFencing(cmd, requestTime)
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		return f.run(ctx, cmd, "fence", func(ctx context.Context, db fencer) ([]postgres.FenceStep, error) { return db.PlanFence(ctx) })
	})
	return cmd
}

// oneTable wants the one argument of a command to be a table's name.
func oneTable(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("name one table: %s", strings.TrimSuffix(cmd.UseLine(), " [flags]"))
	}
	return notStore(args[0])
}

func newFenceGuard() *cobra.Command {
	var g postgres.TableGuard
	var onStale string
	cmd := &cobra.Command{
		Use:   "guard TABLE",
		Short: "Make a table refuse writes that state no current term",
		Long: `Make TABLE refuse each UPDATE and DELETE whose transaction has not stated a lease and
its current token:

  BEGIN;
  SELECT tenure_fence('NAME', TOKEN);
  UPDATE TABLE SET ... ;
  COMMIT;

Each row belongs to the lease that its owner column names, or to nobody if that is
null. A statement changes the rows of the stated lease and nobody's, and writes the
stated token beside the owner. Set the owner to claim a row, and to null to give it
up. Other rows are left as they are. INSERT is not guarded, TRUNCATE is refused. A term
that ends while the transaction runs makes its next statement fail.

The guard is of triggers: it holds for superusers too, but not in replication. A
partitioned or inherited table, a view and a foreign table cannot be guarded.`,
		Args: oneTable,
	}
	f := addFencing(cmd, time.Hour)
	flags := cmd.Flags()
	flags.BoolVar(&g.AddColumns, "add-columns", false, "add the columns that are missing and an index on both, without a rewrite and beside the table's writers")
	flags.StringVar(&g.Lease, "lease", "", "with --add-columns: the owner of all rows that are there, and of later ones unless they say otherwise (default nobody)")
	flags.StringVar(&g.Owner, "owner-column", "owner", "column of type text with the lease that owns the row")
	flags.StringVar(&g.Token, "token-column", "token", "column of type bigint with the token that the owner last wrote with")
	flags.StringVar(&onStale, "on-stale", string(postgres.Zero), "what a refused statement does: zero changes no row, raise aborts the transaction with SQLSTATE TN001")
	must(cmd.RegisterFlagCompletionFunc("on-stale", cobra.FixedCompletions([]string{string(postgres.Zero), string(postgres.Raise)}, cobra.ShellCompDirectiveNoFileComp)))
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		g.Table, g.OnStale = args[0], postgres.OnStale(onStale)
		return f.run(ctx, cmd, "table "+args[0], func(ctx context.Context, db fencer) ([]postgres.FenceStep, error) { return db.PlanGuard(ctx, g) })
	})
	return cmd
}

// guardedJSON is a guarded table as -o json prints it.
type guardedJSON struct {
	Table   string           `json:"table"`
	OnStale postgres.OnStale `json:"on_stale"`
	Enabled bool             `json:"enabled"`
	Fault   string           `json:"fault,omitempty"`
	Refused map[string]int64 `json:"refused"`
}

func newFenceStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the guarded tables and what they refused, by reason",
		Long: `Show the guarded tables and what they refused. Counted are statements that stated
nothing (not_stated) or a token that is not the current one (stale), TRUNCATEs, and
rows that belong to another lease (other_owner) or to a later term of the same
(newer_token). GUARD is "on", or tells what is wrong with it and what to do.`,
		Args: cobra.NoArgs,
	}
	timeout, out := addTimeout(cmd), addFormat(cmd)
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		return withFencer(ctx, cmd, *timeout, func(ctx context.Context, db fencer) error {
			guarded, err := db.Guarded(ctx)
			if err != nil {
				return err
			}
			tables := []guardedJSON{}
			rows := [][]string{{"TABLE", "ON STALE", "GUARD", "NOT STATED", "STALE", "OTHER OWNER", "NEWER TOKEN", "TRUNCATE"}}
			for _, g := range guarded {
				tables = append(tables, guardedJSON{g.Table, g.OnStale, g.Enabled, g.Fault, g.Refused})
				row := []string{g.Table, string(g.OnStale), cmp.Or(g.Fault, "on")}
				for _, reason := range []string{"not_stated", "stale", "other_owner", "newer_token", "truncate"} {
					row = append(row, fmt.Sprint(g.Refused[reason]))
				}
				rows = append(rows, row)
			}
			if *out == asJSON {
				return printJSON(cmd.OutOrStdout(), map[string]any{"tables": tables})
			}
			return table(cmd.OutOrStdout(), rows)
		})
	})
	return cmd
}

func newFenceRemove() *cobra.Command {
	dropColumns := false
	cmd := &cobra.Command{
		Use:   "remove [TABLE]",
		Short: "Take the guard off a table, or remove tenure_fence",
		Long: `Take the guard off TABLE, with its counters and the index that it made. The columns
stay, unless --drop-columns says that those go which the guard added. Without TABLE the
functions of "tenure fence install" are removed, once no table is guarded.`,
		Args: cobra.MaximumNArgs(1),
	}
	f := addFencing(cmd, time.Hour)
	cmd.Flags().BoolVar(&dropColumns, "drop-columns", false, "drop the columns that the guard added")
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		if len(args) == 0 && dropColumns {
			return failf(exitUsage, "fence remove: --drop-columns is about a table: name it")
		}
		if len(args) == 0 {
			return f.run(ctx, cmd, "fence", func(ctx context.Context, db fencer) ([]postgres.FenceStep, error) { return db.PlanFenceRemoval(ctx) })
		}
		if err := notStore(args[0]); err != nil {
			return err
		}
		return f.run(ctx, cmd, "table "+args[0], func(ctx context.Context, db fencer) ([]postgres.FenceStep, error) {
			return db.PlanUnguard(ctx, args[0], dropColumns)
		})
	})
	return cmd
}
