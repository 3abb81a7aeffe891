// Package sqlfence keeps fence.Marks in a SQL database: in a table of their own,
// or in a column of the caller's table. For Postgres and SQLite, through
// database/sql and any driver.
//
// It is for data that lies in another database than the leases. Where both are in
// one, postgres.Guard and sqlite.Guard check the lease itself.
//
//	marks, err := sqlfence.New(db, sqlfence.Postgres)
//	err = marks.Create(ctx)
//	…
//	tx, err := db.BeginTx(ctx, nil)
//	first, err := marks.In(tx).Once(ctx, "invoices", "2026-11-30", token)
//	// errors.Is(err, fence.ErrStale): roll back and stop; !first: it is done
//	// … the writes …
//	err = tx.Commit()
//
// # Promised
//
// Inside the caller's transaction ([Marks.In]) the mark is checked and raised in
// the same write as the data: they commit together or not at all, and no
// transaction of an older term commits after a newer term's Raise or Once has
// returned. The mark is as durable as the data, since it lies beside it. Where a
// server's settings or an unlogged table take that back, "tenure doctor" on this
// database says so.
//
// # Not promised
//
// Called alone, Raise and Once decide about the mark and about nothing that the
// caller writes afterwards. That is right for the start of a term
// (tenure.WithMarks), and for a target that checks the mark again in its write.
//
// # How
//
// An accepted token leaves the mark's row locked to the end of the transaction,
// against everybody who wants to raise it. So of a write under an old token and the
// raise of a new one, one comes first: the raise waits for the commit, or the write
// finds the new mark. In Postgres writers with the token that already is the mark
// share the row (FOR SHARE) and do not wait for each other; above READ COMMITTED
// a transaction whose snapshot is too old to tell gets a serialization failure
// (SQLSTATE 40001) and is run again. In SQLite the first statement takes the
// write lock of the file, where BEGIN has not.
//
// So call it first in the transaction, not inside a savepoint that may be rolled
// back, and keep the transaction short: a successor waits for it, as long as its
// own context, lock_timeout or busy_timeout lets it.
package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/tenurehq/tenure/fence"
)

// Dialect says which database it is.
type Dialect string

// The dialects.
const (
	Postgres Dialect = "postgres" // 9.5 or later
	SQLite   Dialect = "sqlite"   // 3.35 or later
)

// Default names of the tables that Create makes.
const (
	markTable = "tenure_mark"
	slotTable = "tenure_mark_slot"
)

// ErrNoRow reports that the caller's table has no row for a resource.
var ErrNoRow = errors.New("sqlfence: no row for the resource")

// Column is where the marks are in a table of the caller's: the row whose Key
// column equals the resource has its mark in the Token column. Names are as the
// database has them, case included; Table may have a schema before a dot. NULL is
// no mark. Rows are only updated, never inserted.
type Column struct {
	Table string
	Key   string // unique; of any type that compares with text of the resource's form
	Token string // a bigint (Postgres) or an INTEGER (SQLite)
}

// Tx is what Marks.In needs of a transaction: a *sql.Tx, or a *sql.Conn on which
// BEGIN was run.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Marks are fence.Marks that run each call in a transaction of its own. They are
// safe for concurrent use.
type Marks struct {
	db    *sql.DB
	level sql.IsolationLevel
	statements
}

var (
	_ fence.Marks = (*Marks)(nil)
	_ fence.Marks = joined{}
)

// New returns Marks in tables of their own, tenure_mark and tenure_mark_slot,
// which Create makes. The caller keeps db and closes it.
func New(db *sql.DB, dialect Dialect) (*Marks, error) {
	return newMarks(db, dialect, Column{Table: markTable, Key: "resource", Token: "token"}, true)
}

// NewColumn returns Marks in a column of the caller's table. Only the slots of
// Once are in a table of their own, tenure_mark_slot. A resource without a row
// is refused with an error matching ErrNoRow.
func NewColumn(db *sql.DB, dialect Dialect, at Column) (*Marks, error) {
	return newMarks(db, dialect, at, false)
}

func newMarks(db *sql.DB, dialect Dialect, at Column, own bool) (*Marks, error) {
	if dialect != Postgres && dialect != SQLite {
		return nil, fmt.Errorf("sqlfence: dialect %q is neither %q nor %q", dialect, Postgres, SQLite)
	}
	table, err := quote(strings.Split(at.Table, ".")...)
	if err != nil {
		return nil, err
	}
	key, err := quote(at.Key)
	if err != nil {
		return nil, err
	}
	token, err := quote(at.Token)
	if err != nil {
		return nil, err
	}
	m := &Marks{db: db, statements: write(dialect, table, key, token, own)}
	if dialect == Postgres { // also if the database has another default, which would only add retries
		m.level = sql.LevelReadCommitted
	}
	return m, nil
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

func quote(parts ...string) (string, error) {
	for _, p := range parts {
		if !identifier.MatchString(p) {
			return "", fmt.Errorf("sqlfence: name %q must have 1 to 63 letters, digits and underscores, and not begin with a digit", strings.Join(parts, "."))
		}
	}
	return `"` + strings.Join(parts, `"."`) + `"`, nil
}

// Create makes the tables that are Marks' own and missing. It never touches the
// caller's. Several may call it at once.
func (m *Marks) Create(ctx context.Context) error {
	if err := m.makeTables(ctx); err != nil {
		return fmt.Errorf("sqlfence: create: %w", err)
	}
	return nil
}

func (m *Marks) makeTables(ctx context.Context) error {
	if m.turn == "" { // each statement is whole by itself, and waits for the file
		return execute(ctx, m.db, m.create)
	}
	tx, err := m.db.BeginTx(ctx, &sql.TxOptions{Isolation: m.level})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := execute(ctx, tx, append([]string{m.turn}, m.create...)); err != nil {
		return err
	}
	return tx.Commit()
}

func execute(ctx context.Context, on interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, statements []string) error {
	for _, q := range statements {
		if _, err := on.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// Schema returns the statements of Create, for those who keep their schema
// elsewhere.
func (m *Marks) Schema() []string { return append([]string(nil), m.create...) }

// In returns the same marks inside tx, a transaction that the caller began and
// ends. They are for one goroutine at a time, as tx is. After an error that is
// neither *fence.StaleError nor *fence.SlotError roll tx back, and it is the
// caller's to do so after these too: nothing but the mark was written.
func (m *Marks) In(tx Tx) fence.Marks { return joined{tx, &m.statements} }

// Raise is that of fence.Marks, in a transaction of its own.
func (m *Marks) Raise(ctx context.Context, resource string, token fence.Token) (fence.Token, error) {
	if err := fence.CheckMark(token, resource); err != nil {
		return 0, err
	}
	// Without a transaction: each of its statements decides by itself.
	return joined{m.db, &m.statements}.Raise(ctx, resource, token)
}

// Once is that of fence.Marks, in a transaction of its own.
func (m *Marks) Once(ctx context.Context, resource, slot string, token fence.Token) (first bool, err error) {
	if err := fence.CheckMark(token, resource, slot); err != nil {
		return false, err
	}
	tx, err := m.db.BeginTx(ctx, &sql.TxOptions{Isolation: m.level})
	if err != nil {
		return false, fmt.Errorf("sqlfence: once: %w", err)
	}
	first, err = m.In(tx).Once(ctx, resource, slot, token)
	var done *fence.SlotError
	if err != nil && !errors.As(err, &done) { // which has raised the mark
		_ = tx.Rollback() // the error at hand matters more
		return false, err
	}
	if cerr := tx.Commit(); cerr != nil {
		return false, fmt.Errorf("sqlfence: once: %w", cerr)
	}
	return first, err
}

// joined are the marks inside a transaction.
type joined struct {
	tx Tx
	*statements
}

// Raise is that of fence.Marks.
func (j joined) Raise(ctx context.Context, resource string, token fence.Token) (fence.Token, error) {
	if err := fence.CheckMark(token, resource); err != nil {
		return 0, err
	}
	for _, q := range j.raise {
		var got fence.Token
		err := j.tx.QueryRowContext(ctx, q, resource, int64(token)).Scan(&got)
		if err == nil {
			return got, nil
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return 0, failure("raise", resource, err)
		}
	}
	var current sql.Null[fence.Token]
	err := j.tx.QueryRowContext(ctx, j.current, resource).Scan(&current)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, fmt.Errorf("%w: %q", ErrNoRow, resource)
	case err != nil:
		return 0, failure("raise", resource, err)
	}
	return current.V, &fence.StaleError{Resource: resource, Token: token, Current: current.V}
}

// Once is that of fence.Marks.
func (j joined) Once(ctx context.Context, resource, slot string, token fence.Token) (first bool, err error) {
	if err := fence.CheckMark(token, resource, slot); err != nil {
		return false, err
	}
	_, stale := j.Raise(ctx, resource, token)
	if stale != nil && !errors.Is(stale, fence.ErrStale) {
		return false, stale
	}
	if stale == nil {
		r, err := j.tx.ExecContext(ctx, j.record, resource, slot, int64(token))
		if err != nil {
			return false, failure("once", resource, err)
		}
		if n, err := r.RowsAffected(); err != nil || n == 1 {
			return err == nil, err
		}
	}
	var by fence.Token
	err = j.tx.QueryRowContext(ctx, j.slot, resource, slot).Scan(&by)
	switch {
	case err == nil && by == token:
		return false, nil
	case err != nil && !errors.Is(err, sql.ErrNoRows):
		return false, failure("once", resource, err)
	case stale != nil:
		return false, stale
	case err != nil:
		return false, failure("once", resource, err) // somebody took the record away
	}
	return false, &fence.SlotError{Resource: resource, Slot: slot, Token: token, By: by}
}

func failure(verb, resource string, err error) error {
	return fmt.Errorf("sqlfence: %s the mark of %q: %w", verb, resource, err)
}
