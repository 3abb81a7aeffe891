package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"gocloud.dev/gcerrors"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/publish"
	"github.com/tenurehq/tenure/fence/publish/target"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
	"github.com/tenurehq/tenure/store/sqlite"
)

// publishBackend is a backend whose database holds the record of what is
// published, beside the leases.
type publishBackend interface {
	backend
	// Ledger returns that record.
	Ledger() (*publish.Ledger, error)
}

var (
	_ publishBackend = (*sqliteBackend)(nil)
	_ publishBackend = (*postgresBackend)(nil)
)

// Ledger implements publishBackend.
func (b *sqliteBackend) Ledger() (*publish.Ledger, error) {
	return publish.NewLedger(b.db, publish.Config{
		Dialect: publish.SQLite,
		Guard: func(ctx context.Context, tx *sql.Tx, name string, token fence.Token) error {
			return sqlite.Guard(ctx, tx, name, token)
		},
	})
}

// Ledger implements publishBackend.
func (b *postgresBackend) Ledger() (*publish.Ledger, error) {
	return publish.NewLedger(b.db, publish.Config{
		Dialect: publish.Postgres,
		Guard: func(ctx context.Context, tx *sql.Tx, name string, token fence.Token) error {
			return postgres.GuardSQL(ctx, tx, "", name, token)
		},
		Options: []any{pgx.QueryExecModeExec},
	})
}

// migratePublications makes or upgrades the tables of publications, beside those
// of the leases.
func migratePublications(ctx context.Context, st backend) error {
	b, ok := st.(publishBackend)
	if !ok {
		return nil
	}
	ledger, err := b.Ledger()
	if err != nil {
		return err
	}
	return errors.Join(ledger.Migrate(ctx), ledger.Check(ctx))
}

// openLedger opens the chosen store and the record of publications in it.
func openLedger(ctx context.Context, cmd *cobra.Command) (store.Store, *publish.Ledger, closeFunc, error) {
	loc, err := chosenStore(cmd)
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	st, closeStore, err := openAt(ctx, loc)
	if err != nil {
		return nil, nil, nil, err
	}
	b, ok := st.(publishBackend)
	if !ok {
		closeStore()
		return nil, nil, nil, failf(exitConfig, "store %s: what is published is recorded in the database itself: name that with --store, a SQLite file or postgres://USER@HOST/NAME", loc)
	}
	ledger, err := b.Ledger()
	if err == nil && loc.own {
		err = ledger.Migrate(ctx)
	} else if err == nil {
		err = ledger.Check(ctx)
	}
	if err != nil {
		closeStore()
		return nil, nil, nil, explain(loc, err)
	}
	return st, ledger, closeStore, nil
}

const targetEnv = "TENURE_TARGET"

// chosenTarget returns the target that --target or the environment names, "" if neither.
func chosenTarget(flag string) (string, error) {
	s := cmp.Or(flag, os.Getenv(targetEnv))
	if s == "" {
		return "", nil
	}
	return target.Clean(s)
}

// openRecorded opens the target that the record names, or the one that was chosen
// in its place.
func openRecorded(chosen string) publish.OpenTargetFunc {
	return func(ctx context.Context, url string) (*publish.Target, error) {
		return target.Open(ctx, cmp.Or(chosen, url), false)
	}
}

// publishError gives an error of a publication its exit code, and says what to do.
func publishError(cmd *cobra.Command, name string, err error) error {
	var stale *fence.StaleError
	var bucket *publish.BucketError
	var lost *tenure.LostError
	var here *publish.LocalError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &stale):
		return &explained{err: err, msg: stale.Error() + "; nothing was published, and what was uploaded is removed by \"tenure sweep " + name + "\" after the retention"}
	case errors.As(err, &lost):
		return failf(exitLost, "%w; nothing was published: run the same command again, files that arrived are not sent again", err)
	case errors.Is(err, publish.ErrDamaged):
		return failf(exitDamaged, "%w; publish %q again", err, name)
	case errors.Is(err, publish.ErrDropped):
		return failf(exitConflict, "%w; run the same command again", err)
	case errors.Is(err, publish.ErrChanged):
		return failf(exitUsage, "%w; nothing was published: run the same command again when DIR does not change", err)
	case errors.Is(err, publish.ErrOccupied):
		return failf(exitUsage, "%w; name a directory that is not there yet", err)
	case errors.Is(err, publish.ErrFetching):
		return failf(exitUnavailable, "%w", err)
	case errors.Is(err, publish.ErrNone):
		return &explained{err: err, msg: err.Error() + "; run: tenure publish " + name + " DIR --target TARGET"}
	case errors.As(err, &here):
		code, next := exitUnavailable, "nothing was changed: put it right and run the same command again"
		if errors.Is(err, os.ErrPermission) {
			code = exitPermission
		}
		return failf(code, "%w; %s", err, next)
	case errors.As(err, &bucket):
		code, next := exitUnavailable, "check the target and try again"
		switch kind := gcerrors.Code(bucket.Err); {
		case bucket.Denied():
			code, next = exitPermission, "check the credentials of the target"
		case kind == gcerrors.NotFound:
			code, next = exitConfig, "make the bucket or the directory first, or name another with --target"
		case kind == gcerrors.Unimplemented:
			code, next = exitConfig, "this target cannot refuse to overwrite (If-None-Match): use another"
		}
		if errors.Is(err, os.ErrNotExist) {
			code, next = exitConfig, "make the bucket or the directory first, or name another with --target"
		}
		return failf(code, "%w; %s", err, next)
	case errors.Is(err, os.ErrPermission):
		return failf(exitPermission, "%w", err)
	}
	return explainHere(cmd, err)
}
