package publish

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure/store"
)

//go:embed schema.sql
var schema string

// Version is the version of the tables that this package needs.
const Version = 1

// lockWait bounds each wait for a row on Postgres.
const lockWait = "5s"

// marks returns what stands for the marks in a statement:
//
//	{s}      the prefix of a table's name
//	{text}   the type of text that is compared by its bytes
//	{now}    the database's clock, in microseconds
//	{lock}   locks the rows read against every other change and {share}
//	{share}  locks the rows read against changes
func marks(d Dialect, schema string) *strings.Replacer {
	if d == Postgres {
		return strings.NewReplacer(
			"{s}", `"`+schema+`".`,
			"{text}", `text COLLATE "C"`,
			"{now}", "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
			"{lock}", " FOR UPDATE",
			"{share}", " FOR SHARE",
		)
	}
	return strings.NewReplacer(
		"$", "?",
		"{s}", "",
		"{text}", "TEXT",
		"{now}", "(CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)",
		"{lock}", "",
		"{share}", "",
	)
}

// tx is one transaction that writes.
type tx struct {
	*Ledger
	ctx context.Context
	tx  *sql.Tx
}

// transact runs run in a transaction, at READ COMMITTED on Postgres and with the
// file's write lock from the start on SQLite. An error of run undoes it.
func (l *Ledger) transact(ctx context.Context, doing string, run func(*tx) error) error {
	if l.dialect == SQLite {
		select { // the writes of this process take turns, without spinning on the file
		case l.turn <- struct{}{}:
			defer func() { <-l.turn }()
		case <-ctx.Done():
			return fmt.Errorf("publish: %s: not begun: %w", doing, context.Cause(ctx))
		}
	}
	t := &tx{Ledger: l, ctx: ctx}
	if err := t.begin(); err != nil {
		return failure(doing, err)
	}
	defer func() { _ = t.tx.Rollback() }() // after a commit it does nothing
	if err := run(t); err != nil {
		return failure(doing, err)
	}
	if err := t.tx.Commit(); err != nil {
		return failure(doing+": commit", err)
	}
	return nil
}

func (t *tx) begin() (err error) {
	if t.dialect == Postgres {
		if t.tx, err = t.db.BeginTx(t.ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted}); err != nil {
			return err
		}
		if _, err = t.exec("SELECT set_config('search_path', 'pg_catalog, pg_temp', true), set_config('lock_timeout', '" + lockWait + "', true)"); err != nil {
			_ = t.tx.Rollback()
		}
		return err
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 25*time.Millisecond) {
		// _txlock=immediate of the lease store's data source takes the write lock here.
		if t.tx, err = t.db.BeginTx(t.ctx, nil); !isBusy(err) {
			return err
		}
		select {
		case <-t.ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// durable sees to it on Postgres that the server may decide and that the commit
// is on disk when it is acknowledged.
func (t *tx) durable() error {
	if t.dialect == SQLite {
		return nil
	}
	_, err := t.exec("SELECT {s}tenure_begin()")
	return err
}

func (t *tx) exec(statement string, args ...any) (int64, error) {
	result, err := t.tx.ExecContext(t.ctx, t.marks.Replace(statement), t.arguments(args)...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (t *tx) row(statement string, args ...any) *sql.Row {
	return t.tx.QueryRowContext(t.ctx, t.marks.Replace(statement), t.arguments(args)...)
}

// arguments puts the driver's options before those of a statement.
func (l *Ledger) arguments(args []any) []any {
	return append(append([]any(nil), l.options...), args...)
}

func (l *Ledger) one(ctx context.Context, statement string, args ...any) *sql.Row {
	return l.db.QueryRowContext(ctx, l.marks.Replace(statement), l.arguments(args)...)
}

// each calls scan for each row of a query.
func (l *Ledger) each(ctx context.Context, scan func(scanner) error, statement string, args ...any) error {
	rows, err := l.db.QueryContext(ctx, l.marks.Replace(statement), l.arguments(args)...)
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

// scanner is a row to read.
type scanner interface{ Scan(into ...any) error }

// Migrate makes the tables, in one transaction, unless they are there. The tables
// of the leases must be. It returns an error matching store.ErrSchema if they are
// not, or if the tables are of a later version.
func (l *Ledger) Migrate(ctx context.Context) error {
	return l.transact(ctx, "migrate", func(t *tx) error {
		if t.dialect == Postgres {
			if _, err := t.exec("SELECT pg_advisory_xact_lock(hashtext($1), 0)", "tenure publication "+l.schema); err != nil {
				return err
			}
		}
		if found, err := t.hasTable("tenure_lease"); err != nil {
			return err
		} else if !found {
			return fmt.Errorf("%w: the lease tables are not there: run the lease store's Migrate first", store.ErrSchema)
		}
		found, err := t.hasTable("tenure_publication_schema")
		if err != nil {
			return err
		}
		if found {
			present := 0
			if err := t.row("SELECT coalesce(max(version), 0) FROM {s}tenure_publication_schema").Scan(&present); err != nil {
				return err
			}
			return judgeVersion(present)
		}
		for statement := range strings.SplitSeq(schema, ";\n") {
			if strings.TrimSpace(statement) == "" {
				continue
			}
			if _, err := t.exec(statement); err != nil {
				return err
			}
		}
		if _, err := t.exec("CREATE TABLE {s}tenure_publication_schema (version bigint PRIMARY KEY)"); err != nil {
			return err
		}
		_, err = t.exec("INSERT INTO {s}tenure_publication_schema (version) VALUES ($1)", Version)
		return err
	})
}

func (t *tx) hasTable(name string) (bool, error) {
	var n int
	var err error
	if t.dialect == Postgres {
		err = t.row("SELECT count(*) FROM pg_tables WHERE schemaname = $1 AND tablename = $2", t.schema, name).Scan(&n)
	} else {
		err = t.row("SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = $1", name).Scan(&n)
	}
	return n > 0, err
}

func judgeVersion(present int) error {
	if present == Version {
		return nil
	}
	next := "run: tenure migrate"
	if present > Version {
		next = "use a newer program"
	}
	return fmt.Errorf("%w: the tables of publications are of version %d, this program knows %d: %s", store.ErrSchema, present, Version, next)
}

// Check reports whether the tables are as this package needs them, with an error
// matching store.ErrSchema that names the next step. It changes nothing.
func (l *Ledger) Check(ctx context.Context) error {
	present := 0
	if err := l.one(ctx, "SELECT coalesce(max(version), 0) FROM {s}tenure_publication_schema").Scan(&present); err != nil {
		return failure("check", err)
	}
	if err := judgeVersion(present); err != nil {
		return failure("check", err)
	}
	return nil
}
