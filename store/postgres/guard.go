package postgres

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// Guard makes tx a guarded transaction of the term that token numbers: it can
// commit only before the next term of name is granted (P7). schema is that of
// the tables, "" for "public".
//
// Guard returns *fence.StaleError if token is not the current one or not above
// the floor; the transaction is then aborted. Above READ COMMITTED it returns
// an error matching store.ErrBusy, with SQLSTATE 40001 inside, if the snapshot
// is too old to tell: run the transaction again. Other errors are those of tx.
//
// Call it first in the transaction, and not inside a savepoint that may be
// rolled back, which would give up its hold. While the transaction is open, a
// takeover waits for it, for a bounded time; renewals do not. So keep it short.
// Other languages call SELECT tenure_guard(name, token); a role needs no right
// on the leases for it. The error's SQLSTATE is TN001 and its detail the
// current token.
//
// # Why this is enough
//
// The guard locks the row that has this name and this token FOR KEY SHARE, to
// the end of the transaction. Because of UNIQUE (name, token), an UPDATE that
// changes the token changes a key, and PostgreSQL makes it, whoever sends it,
// take the one row lock that conflicts with FOR KEY SHARE. So of a guard and a
// grant of the next term, one comes first:
//
//   - The guard first: the grant waits for the guarded transaction to end. It is
//     not made before that commit, or it gives up.
//   - The grant first, and committed: at READ COMMITTED the guard sees the new
//     token and refuses. Above it the guard may see the old row in its snapshot,
//     but cannot lock it, since a later version changed the key: PostgreSQL
//     raises a serialization failure. This does not depend on SERIALIZABLE, or
//     on what else the transactions read.
//   - The grant first, and not committed: the guard waits for it, and one of the
//     above follows.
//
// Without the index a change of token by a plain UPDATE or an upsert is no
// change of a key, the second case fails above READ COMMITTED (the old row can
// be locked although a newer one exists), and a stale writer commits. Acquire
// takes the stronger lock beforehand, but a restore, an older program or a hand
// at psql may not. Therefore Check insists on the index.
func Guard(ctx context.Context, tx pgx.Tx, schema, name string, token fence.Token) error {
	schema, err := checkSchema(schema)
	if err != nil {
		return err
	}
	if err := store.CheckName(name); err != nil {
		return err
	}
	var c call
	c.WriteString(`SELECT "` + schema + `".tenure_guard(`)
	c.text(name)
	c.number(int64(token))
	c.WriteString(")")
	if _, err = tx.Conn().PgConn().Exec(ctx, c.String()).ReadAll(); err == nil {
		return nil
	}
	pg, ok := serverError(err)
	switch {
	case ok && pg.Code == codeStale:
		current, _ := strconv.ParseInt(pg.Detail, 10, 64) // 0, "cannot tell", if it is none
		return &fence.StaleError{Resource: name, Token: token, Current: fence.Token(current)}
	case ok && pg.Code == codeSerialization:
		return fmt.Errorf("postgres: guard of %q: the transaction's snapshot is older than the lease, run it again: %w: %w", name, store.ErrBusy, err)
	}
	return failure("guard", tx.Conn().Config(), err)
}
