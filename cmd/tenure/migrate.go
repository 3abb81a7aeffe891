package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

// adopter is a backend that can take over a file that was copied from another
// host.
type adopter interface {
	Adopt(ctx context.Context) error
}

// migrateFleet makes or upgrades the tables of the fleet, beside those of the
// leases.
func migrateFleet(ctx context.Context, st backend) error {
	f, ok := st.(fleetBackend)
	if !ok {
		return nil
	}
	reg, err := f.Fleet()
	if err != nil {
		return err
	}
	if err := reg.Migrate(ctx); err != nil {
		return err
	}
	return reg.Check(ctx)
}

func newMigrate() *cobra.Command {
	var adopt bool
	cmd := &cobra.Command{
		Use:   "migrate [STORE]",
		Short: "Create or upgrade the tables of a store",
		Long: `Create or upgrade tenure's tables in the store that STORE or --store names: those
of the leases, those that "tenure server" keeps a fleet in, and those of "tenure
publish". It may be repeated, and changes nothing that is in place. Only the
default SQLite file is set up without this command.`,
		Args: cobra.MaximumNArgs(1),
	}
	timeout := addTimeout(cmd)
	cmd.Flags().BoolVar(&adopt, "adopt", false, "take over a SQLite file that was copied from another host and is out of use there")
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		if err := takeStore(cmd, args); err != nil {
			return err
		}
		loc, err := chosenStore(cmd)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		st, closeStore, _, err := openUnchecked(ctx, loc, true)
		if err != nil {
			return err
		}
		defer closeStore()
		if adopt {
			a, ok := st.(adopter)
			if !ok {
				return failf(exitUsage, "migrate --adopt: only a SQLite file can be adopted, not %s", loc)
			}
			if err := a.Adopt(ctx); err != nil {
				return explain(loc, err)
			}
		}
		if err := st.Migrate(ctx); err != nil {
			return explain(loc, err)
		}
		if err := migrateFleet(ctx, st); err != nil {
			return explain(loc, err)
		}
		if err := migratePublications(ctx, st); err != nil {
			return explain(loc, err)
		}
		if err := st.Check(ctx); err != nil {
			return explain(loc, err)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: ready\n", escape(loc.String()))
		return nil
	})
	return cmd
}
