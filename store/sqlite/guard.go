package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// Tx is what Guard needs of a transaction.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Guard checks, inside the transaction of a caller whose data lies in the same
// database, that token still is the current one of name, and takes the write
// lock, so that nobody can start the next term before the transaction ends. The
// lock stalls every other writer of the file: keep the transaction short. Call
// Guard first in the transaction. It returns *fence.StaleError if the token is
// not the current one, or its term was revoked, released or ended by a floor, and
// an error matching
// store.ErrBusy if somebody else is writing, or has written since this
// transaction first read: roll back and begin again. tx is a *sql.Tx, or a
// *sql.Conn on which BEGIN was run. InGuard does all of this, and bounds it.
//
// The write lock suffices because a file has one writer: from Guard to the end of
// the transaction no grant, release or revocation can be written, by whatever
// process or program, and a snapshot that is older than the last commit cannot
// become a writer (SQLITE_BUSY_SNAPSHOT). It also keeps every renewal of the file
// waiting, which is why it must be short. A savepoint that is rolled back keeps
// the lock.
func Guard(ctx context.Context, tx Tx, name string, token fence.Token) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	// It changes no row; to SQLite it is a writer from its first step on.
	if _, err := tx.ExecContext(ctx, "UPDATE tenure_lease SET token = token WHERE name = ?1 AND token < 0", name); err != nil {
		return classify("guard", err)
	}
	var current fence.Token
	var over bool
	err := tx.QueryRowContext(ctx, "SELECT coalesce(max(token), 0), coalesce(max(token <= floor OR revoked OR ended_us <> 0), 1) FROM tenure_lease WHERE name = ?1", name).Scan(&current, &over)
	if err != nil {
		return classify("guard", err)
	}
	if token == current && !over {
		return nil
	}
	if token == current {
		current = 0 // it has ended, and there is no next one yet
	}
	return &fence.StaleError{Resource: name, Token: token, Current: current}
}

// ErrTooLong reports that a guarded transaction was rolled back since it held the
// write lock for longer than half the margin.
var ErrTooLong = errors.New("sqlite: guarded transaction took too long")

// InGuard runs f in a transaction of db that is guarded by the term that token
// numbers, and commits it if f returns nil. It waits for other writers until ctx
// ends.
//
// The transaction keeps all renewals of the file waiting, those of its own term
// too. So it may take half of margin, which is that of the keeper (Config.Margin):
// the other half is left for a renewal that came due meanwhile. What takes longer
// is rolled back, even while f still runs, and answered with an error matching
// ErrTooLong; the context of f ends then. Do slow work before it, and write in
// parts. The time for which it waits for other writers is not counted. Run each
// statement under the context that f is given: one that runs under another is not
// interrupted, and holds the lock until it ends. The other errors are those of
// Guard, of f and of the commit.
func InGuard(ctx context.Context, db *sql.DB, name string, token fence.Token, margin time.Duration, f func(ctx context.Context, tx *sql.Tx) error) error {
	if margin <= 0 {
		return &store.InvalidError{Field: "margin", Value: margin.String(), Rule: "longer than 0s: that of the keeper"}
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 25*time.Millisecond) {
		began, err := inGuard(ctx, db, name, token, margin/2, f)
		if began || !errors.Is(err, store.ErrBusy) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// inGuard is one try of InGuard. It reports whether f was called.
func inGuard(ctx context.Context, db *sql.DB, name string, token fence.Token, most time.Duration, f func(ctx context.Context, tx *sql.Tx) error) (began bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	tx, err := db.BeginTx(ctx, nil) // which ends with ctx
	if err != nil {
		return false, classify("guard", err)
	}
	defer func() { _ = tx.Rollback() }() // of what was not committed
	if err = Guard(ctx, tx, name, token); err == nil {
		began = true
		defer time.AfterFunc(most, func() { cancel(ErrTooLong) }).Stop() // it has the lock now
		if err = f(ctx, tx); err == nil {
			if err = tx.Commit(); err == nil {
				return true, nil
			}
			err = classify("commit", err)
		}
	}
	if errors.Is(context.Cause(ctx), ErrTooLong) {
		return true, fmt.Errorf("%w: %q, token %s: more than %s, half the margin: it was rolled back: %w", ErrTooLong, name, token, most, err)
	}
	return began, err
}
