package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// Tx is what Guard needs of a transaction. A pgx.Tx has it, and so has a
// *pgx.Conn on which BEGIN was run.
type Tx interface {
	Exec(ctx context.Context, statement string, arguments ...any) (pgconn.CommandTag, error)
}

// SQLTx is what GuardSQL needs of a transaction. A *sql.Tx has it, and so has a
// *sql.Conn on which BEGIN was run.
type SQLTx interface {
	ExecContext(ctx context.Context, statement string, arguments ...any) (sql.Result, error)
}

// Guard makes tx a guarded transaction of the term that token numbers: it can
// commit only before the next term of name is granted (P7). schema is that of
// the tables, "" for "public".
//
// Guard returns *fence.StaleError if token is not the current one, or its term was
// revoked, released or ended by a floor; the transaction is then aborted. Above READ COMMITTED it returns
// an error matching store.ErrBusy, with SQLSTATE 40001 inside, if the snapshot
// is too old to tell: run the transaction again. Other errors are those of tx.
//
// Call it first in the transaction, and not inside a savepoint that may be
// rolled back, which would give up its hold. While the transaction is open, a
// takeover waits for it, and then answers a *store.BusyError that names whom it
// waits for, a prepared transaction too. It takes two locks and waits at most
// Config.TakeoverWait for each. Renewals do not wait. So keep it short.
// Other languages call SELECT tenure_guard(name, token), or tenure_fence (see
// PlanFence), which tables with a guard of their own need; a role needs no right
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
// A release, a revocation and a renewal change no key, so they go past a guard:
// until the next term is granted nobody else writes. A guard that sees that the
// term was released or revoked refuses, though the proof does not need it: no
// such term comes back, so that to see it early or late is the same. That it has
// expired a guard does not ask: a later renewal would make its snapshot wrong.
//
// An advisory lock on the name, shared by guards and taken alone by a grant, comes
// before the row's. The proof does not need it either. It makes the queue fair: a
// grant waits once for the guards that are there, at most Config.TakeoverWait, and
// those that come later wait behind it, where a row lock would let them pass for
// as long as there are any. PostgreSQL asks for no right on an advisory lock: any
// role that can connect to the database can take this one, by its numbers, and so
// block the guarded writes and the takeovers of a name for as long as it is
// connected. It cannot make a stale writer commit. A savepoint that is rolled
// back gives the lock up with all that was written since, and what the guarded
// transaction writes later is then unguarded.
//
// Without the index a change of token by a plain UPDATE or an upsert is no
// change of a key, the second case fails above READ COMMITTED (the old row can
// be locked although a newer one exists), and a stale writer commits. Acquire
// takes the stronger lock beforehand, but a restore, an older program or a hand
// at psql may not. Therefore Check insists on the index.
func Guard(ctx context.Context, tx Tx, schema, name string, token fence.Token) error {
	return guard(schema, name, token, func(statement string) error {
		_, err := tx.Exec(ctx, statement)
		return err
	})
}

// GuardSQL is Guard for a transaction of database/sql, whatever its driver. A
// driver that does not tell the server's SQLSTATE, by a method SQLState of its
// errors, leaves them unclassified.
func GuardSQL(ctx context.Context, tx SQLTx, schema, name string, token fence.Token) error {
	return guard(schema, name, token, func(statement string) error {
		_, err := tx.ExecContext(ctx, statement)
		return err
	})
}

func guard(schema, name string, token fence.Token, run func(statement string) error) error {
	schema, err := checkSchema(schema)
	if err != nil {
		return err
	}
	if err := store.CheckName(name); err != nil {
		return err
	}
	// Without arguments the drivers send it as it is, and prepare nothing.
	var c call
	c.WriteString(`SELECT "` + schema + `".tenure_guard(`)
	c.text(name)
	c.number(int64(token))
	c.WriteString(")")
	if err = run(c.String()); err == nil {
		return nil
	}
	switch sqlState(err) {
	case codeStale:
		current, _ := strconv.ParseInt(detail(err), 10, 64) // 0, "cannot tell", if it is none
		return &fence.StaleError{Resource: name, Token: token, Current: fence.Token(current)}
	case codeSerialization:
		return fmt.Errorf("postgres: guard of %q: the transaction's snapshot is older than the lease, run it again: %w: %w", name, store.ErrBusy, err)
	}
	return failure("guard", nil, err)
}

// sqlState is the server's code for err, of whichever driver; "" if it tells none.
func sqlState(err error) string {
	if coded, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return coded.SQLState()
	}
	return ""
}

// detail is the detail field of a server's error.
func detail(err error) string {
	if pg, ok := serverError(err); ok {
		return pg.Detail
	}
	if fields, ok := errors.AsType[interface { // lib/pq
		error
		Get(field byte) string
	}](err); ok {
		return fields.Get('D')
	}
	return ""
}
