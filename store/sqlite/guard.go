package sqlite

import (
	"context"
	"database/sql"

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
// not the current one or a floor was raised above it, and an error matching
// store.ErrBusy if somebody else is writing, or has written since this
// transaction first read: roll back and begin again. tx is a *sql.Tx, or a
// *sql.Conn on which BEGIN was run.
func Guard(ctx context.Context, tx Tx, name string, token fence.Token) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	// It changes no row; to SQLite it is a writer from its first step on.
	if _, err := tx.ExecContext(ctx, "UPDATE tenure_lease SET token = token WHERE name = ?1 AND token < 0", name); err != nil {
		return classify("guard", err)
	}
	var current, floor fence.Token
	err := tx.QueryRowContext(ctx, "SELECT coalesce(max(token), 0), coalesce(max(floor), 0) FROM tenure_lease WHERE name = ?1", name).Scan(&current, &floor)
	if err != nil {
		return classify("guard", err)
	}
	if token == current && token > floor {
		return nil
	}
	if token == current {
		current = 0 // ended by the floor, and there is no next one yet
	}
	return &fence.StaleError{Resource: name, Token: token, Current: current}
}
