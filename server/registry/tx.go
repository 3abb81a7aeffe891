package registry

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tenurehq/tenure/fleet"
)

// lockWait bounds each wait for a row on Postgres.
const lockWait = "5s"

// tx is one transaction. On SQLite a write has the file's write lock from its
// first step on. On Postgres it is at READ COMMITTED, so that each statement sees
// what was committed before it, and a write says where it found the ledger; see
// tx.complete.
type tx struct {
	*dialect
	ctx     context.Context
	conn    *sql.Conn
	clock   func() (wall, boot int64) // SQLite
	wall    int64                     // µs
	boot    int64                     // ns; SQLite
	domain  string
	changed int64 // SQLite; 0 until something changed
}

// mode is what a transaction is for.
type mode int

const (
	reading mode = iota
	writing
	migrating
)

// op names the mode to an observer.
func (m mode) op() string {
	if m == reading {
		return "read"
	}
	return "write"
}

// transact runs run in a transaction. It is committed if run says so, and an
// error of run ends it.
func (r *Registry) transact(ctx context.Context, doing string, m mode, run func(*tx) (commit bool, err error)) (err error) {
	if observe := r.observe.Load(); observe != nil {
		began := time.Now()
		defer func() { (*observe)(m.op(), time.Since(began), err) }()
	}
	if r.name == SQLite && m >= writing {
		select { // the file has one write lock: this process's writes take turns without spinning on it
		case r.turn <- struct{}{}:
			defer func() { <-r.turn }()
		case <-ctx.Done():
			return fmt.Errorf("registry: %s: not begun: %w", doing, ctx.Err())
		}
	}
	conn, err := r.db.Conn(ctx)
	if err != nil {
		return r.failure(doing, err)
	}
	defer conn.Close()
	t := &tx{dialect: &r.dialect, ctx: ctx, conn: conn, clock: r.clock, domain: r.domain}
	if err := t.begin(m); err != nil {
		t.discard()
		return r.failure(doing, err)
	}
	var commit bool
	if r.lost != nil {
		err = r.lost()
	}
	if err == nil {
		commit, err = run(t)
	}
	if err != nil || !commit {
		t.discard()
		if err != nil {
			return r.failure(doing, err)
		}
		return nil
	}
	if _, err := conn.ExecContext(t.ctx, "COMMIT"); err != nil {
		t.discard()
		return r.failure(doing+": commit", err)
	}
	return nil
}

func (t *tx) begin(m mode) error {
	if t.name == Postgres {
		begin := "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL jit = off; SET LOCAL lock_timeout = '" + lockWait + "'; "
		switch m {
		case reading:
			begin += "SELECT {s}tenure_begin()"
		case writing:
			begin += "SELECT {s}tenure_begin(); " + t.announce()
		case migrating:
			begin += fmt.Sprintf("SELECT pg_advisory_xact_lock(%d, 0)", t.space("migrations"))
		}
		if _, err := t.conn.ExecContext(t.ctx, t.sql(begin)); err != nil || m == migrating {
			return err
		}
		return t.readClock()
	}
	if m < writing {
		_, err := t.conn.ExecContext(t.ctx, "BEGIN")
		t.wall, t.boot = t.clock()
		return err
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 25*time.Millisecond) {
		_, err := t.conn.ExecContext(t.ctx, "BEGIN IMMEDIATE")
		if err == nil {
			break
		}
		if !isBusy(err) {
			return err
		}
		select {
		case <-t.ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
	// From here on it takes no longer than the disk does, and is not broken off.
	t.ctx = context.WithoutCancel(t.ctx)
	t.wall, t.boot = t.clock()
	return nil
}

// discard ends the transaction without a trace, and the connection too if its
// state is in doubt.
func (t *tx) discard() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), 5*time.Second)
	defer cancel()
	if _, err := t.conn.ExecContext(ctx, "ROLLBACK"); err != nil {
		_ = t.conn.Raw(func(any) error { return driver.ErrBadConn })
	}
}

// readClock reads the clock anew. On SQLite nothing changes while the write lock
// is held, so that one reading is enough.
func (t *tx) readClock() error {
	if t.name == SQLite {
		t.wall, t.boot = t.clock()
		return nil
	}
	return t.row("SELECT {s}tenure_clock()").Scan(&t.wall)
}

// sql puts in what the marks of a statement stand for.
func (t *tx) sql(statement string) string {
	statement = t.marks.Replace(statement)
	if !strings.Contains(statement, "{") {
		return statement
	}
	return strings.NewReplacer(
		"{now}", strconv.FormatInt(t.wall, 10),
		"{boot}", strconv.FormatInt(t.boot, 10),
		"{domain}", "'"+strings.ReplaceAll(t.domain, "'", "''")+"'",
		"{changed}", strconv.FormatInt(t.changed, 10),
	).Replace(statement)
}

func (t *tx) exec(statement string, args ...any) (int64, error) {
	result, err := t.conn.ExecContext(t.ctx, t.sql(statement), t.args(args)...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (t *tx) row(statement string, args ...any) *sql.Row {
	return t.conn.QueryRowContext(t.ctx, t.sql(statement), t.args(args)...)
}

// each calls scan for each row of a query.
func (t *tx) each(scan func(scanner) error, statement string, args ...any) error {
	rows, err := t.conn.QueryContext(t.ctx, t.sql(statement), t.args(args)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// change numbers the change that this transaction makes, for {changed}.
func (t *tx) change() error {
	if t.name == Postgres || t.changed > 0 {
		return nil
	}
	return t.row("UPDATE fleet_single SET changed = changed + 1 RETURNING changed").Scan(&t.changed)
}

// guard makes the transaction one of the term of f: it can commit only before the
// next term of that lease is granted. It reports whether the term is current. The
// rule is that of postgres.Guard and sqlite.Guard.
func (t *tx) guard(f Fence) (bool, error) {
	if f == (Fence{}) {
		return true, nil
	}
	if t.name == Postgres {
		_, err := t.exec("SELECT {s}tenure_guard($1, $2)", f.Lease, int64(f.Token))
		if sqlState(err) == "TN001" {
			return false, nil
		}
		return err == nil, err
	}
	var current bool
	err := t.row("SELECT token = $2 AND token > floor AND NOT revoked AND ended_us = 0 FROM tenure_lease WHERE name = $1", f.Lease, int64(f.Token)).Scan(&current)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return current, err
}

// decide runs a conditional write under a fence: it is committed if run answers no
// code, and otherwise has changed nothing.
func (r *Registry) decide(ctx context.Context, doing string, f Fence, work string, run func(*tx) (Verdict, error)) (Verdict, error) {
	var v Verdict
	err := r.transact(ctx, doing, writing, func(t *tx) (bool, error) {
		current, err := t.guard(f)
		if err != nil {
			return false, err
		}
		if !current {
			v = Verdict{Code: fleet.CodeStaleToken, Deposed: true, Text: fmt.Sprintf("token %s of %q is not the current one: this replica's term is over", f.Token, f.Lease)}
			return false, nil
		}
		v, err = run(t)
		return v.Code == "", err
	})
	if err != nil {
		return Verdict{}, err
	}
	v.Work = work
	r.count(v.Code, f)
	return v, nil
}

// read runs queries that see one state of the database on SQLite, and each its own
// on Postgres.
func (r *Registry) read(ctx context.Context, doing string, run func(*tx) error) error {
	return r.transact(ctx, doing, reading, func(t *tx) (bool, error) { return true, run(t) })
}

func refused(code fleet.Code, format string, args ...any) Verdict {
	return Verdict{Code: code, Text: fmt.Sprintf(format, args...)}
}

func instant(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// micro is the reverse of instant.
func micro(at time.Time) int64 {
	if at.IsZero() {
		return 0
	}
	return at.UnixMicro()
}

func microseconds(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// scanner is a row to read.
type scanner interface {
	Scan(into ...any) error
}
