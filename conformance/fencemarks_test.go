package conformance_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/fencetest"
	"github.com/tenurehq/tenure/fence/sqlfence"
	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store/sqlite"
)

// openPostgres opens a fresh database as an application that knows only
// database/sql does.
func openPostgres(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(20)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close the database: %v", err)
		}
	})
	return db
}

func execSQL(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func ownMarks(t testing.TB, db *sql.DB, dialect sqlfence.Dialect) *sqlfence.Marks {
	t.Helper()
	m, err := sqlfence.New(db, dialect)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds it done
		if err := m.Create(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// columnMarks are marks in a table of accounts, with a column whose name is a
// word of SQL.
func columnMarks(t testing.TB, db *sql.DB, dialect sqlfence.Dialect) *sqlfence.Marks {
	t.Helper()
	execSQL(t, db, `CREATE TABLE "Order" (id text PRIMARY KEY, total bigint NOT NULL DEFAULT 0, "check" bigint)`)
	m, err := sqlfence.NewColumn(db, dialect, sqlfence.Column{Table: "Order", Key: "id", Token: "check"})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

// joinedMarks run each call in a transaction as a caller would: with a write of
// its own, and again where the database asks for it.
type joinedMarks struct {
	db    *sql.DB
	marks *sqlfence.Marks
	level sql.IsolationLevel
}

func (j joinedMarks) run(ctx context.Context, f func(fence.Marks) error) error {
	for {
		tx, err := j.db.BeginTx(ctx, &sql.TxOptions{Isolation: j.level})
		if err != nil {
			return err
		}
		err = f(j.marks.In(tx))
		if err == nil || errors.Is(err, fence.ErrSlotDone) {
			if cerr := tx.Commit(); cerr != nil {
				err = cerr
			}
		} else {
			_ = tx.Rollback()
		}
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "40001" {
			continue
		}
		return err
	}
}

func (j joinedMarks) Raise(ctx context.Context, resource string, token fence.Token) (current fence.Token, err error) {
	err = j.run(ctx, func(m fence.Marks) error {
		var err error
		current, err = m.Raise(ctx, resource, token)
		return err
	})
	return current, err
}

func (j joinedMarks) Once(ctx context.Context, resource, slot string, token fence.Token) (first bool, err error) {
	err = j.run(ctx, func(m fence.Marks) error {
		var err error
		first, err = m.Once(ctx, resource, slot, token)
		return err
	})
	return first, err
}

// databases are the two that package sqlfence knows.
var databases = map[sqlfence.Dialect]func(t testing.TB) *sql.DB{
	sqlfence.Postgres: openPostgres,
	sqlfence.SQLite: func(t testing.TB) *sql.DB {
		// A hundred writers at once wait for each other for longer than a store should.
		dsn := strings.Replace(sqlite.ModerncDSN(filepath.Join(t.TempDir(), "data.db")), "busy_timeout(200)", "busy_timeout(30000)", 1)
		db, err := sql.Open("sqlite", dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		return db
	},
}

func TestSQLMarks(t *testing.T) {
	t.Parallel()
	for dialect, open := range databases {
		levels := []sql.IsolationLevel{sql.LevelDefault}
		if dialect == sqlfence.Postgres {
			levels = []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}
		}
		for place, make := range map[string]func(testing.TB, *sql.DB, sqlfence.Dialect) *sqlfence.Marks{"own table": ownMarks, "column": columnMarks} {
			prepare := func(db *sql.DB) func(t *testing.T, resource string) {
				if place == "own table" {
					return nil
				}
				insert := `INSERT INTO "Order" (id) VALUES (` + map[sqlfence.Dialect]string{sqlfence.Postgres: "$1", sqlfence.SQLite: "?1"}[dialect] + `)`
				return func(t *testing.T, resource string) { execSQL(t, db, insert, resource) }
			}
			t.Run(fmt.Sprintf("%s/%s/alone", dialect, place), func(t *testing.T) {
				t.Parallel()
				db := open(t)
				m := make(t, db, dialect)
				fencetest.Run(t, func(t *testing.T) fencetest.Harness { return fencetest.Harness{Marks: m, Prepare: prepare(db)} })
			})
			for _, level := range levels {
				t.Run(fmt.Sprintf("%s/%s/joined/%s", dialect, place, level), func(t *testing.T) {
					t.Parallel()
					db := open(t)
					m := joinedMarks{db, make(t, db, dialect), level}
					fencetest.Run(t, func(t *testing.T) fencetest.Harness {
						return fencetest.Harness{Marks: m, Prepare: prepare(db), Parallel: 40}
					})
				})
			}
		}
	}
}

// TestSQLMarksCreateTogether: the first start of several processes makes the tables
// once, and none of them fails. (In SQLite one writes at a time anyway.)
func TestSQLMarksCreateTogether(t *testing.T) {
	t.Parallel()
	for range 5 { // each on a new database
		db := openPostgres(t)
		m, err := sqlfence.New(db, sqlfence.Postgres)
		if err != nil {
			t.Fatal(err)
		}
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				if err := m.Create(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if _, err := m.Raise(t.Context(), "data", 1); err != nil {
			t.Error(err)
		}
	}
}

// A resource that has no row in the caller's table is neither accepted nor stale.
func TestSQLMarksNoRow(t *testing.T) {
	t.Parallel()
	for dialect, open := range databases {
		t.Run(string(dialect), func(t *testing.T) {
			t.Parallel()
			m := columnMarks(t, open(t), dialect)
			if _, err := m.Raise(t.Context(), "nobody", 1); !errors.Is(err, sqlfence.ErrNoRow) || errors.Is(err, fence.ErrStale) {
				t.Errorf("Raise: got %v, want ErrNoRow", err)
			}
			if first, err := m.Once(t.Context(), "nobody", "night", 1); first || !errors.Is(err, sqlfence.ErrNoRow) {
				t.Errorf("Once: got %v, %v; want ErrNoRow", first, err)
			}
		})
	}
}

// Two tables may have rows with the same key, and a key need not be text.
func TestSQLMarksColumns(t *testing.T) {
	t.Parallel()
	for dialect, open := range databases {
		t.Run(string(dialect), func(t *testing.T) {
			t.Parallel()
			db := open(t)
			var marks []*sqlfence.Marks
			for _, table := range []string{"a", "b"} {
				execSQL(t, db, "CREATE TABLE "+table+" (id bigint PRIMARY KEY, fence bigint)")
				execSQL(t, db, "INSERT INTO "+table+" VALUES (17, NULL)")
				m, err := sqlfence.NewColumn(db, dialect, sqlfence.Column{Table: table, Key: "id", Token: "fence"})
				if err != nil {
					t.Fatal(err)
				}
				if err := m.Create(t.Context()); err != nil {
					t.Fatal(err)
				}
				marks = append(marks, m)
			}
			for i, m := range marks {
				if first, err := m.Once(t.Context(), "17", "night", fence.Token(9-i)); err != nil || !first {
					t.Errorf("table %d: got %v, %v; want the first", i, first, err)
				}
			}
			if _, err := marks[0].Raise(t.Context(), "17", 8); !errors.Is(err, fence.ErrStale) {
				t.Errorf("got %v, want ErrStale", err)
			}
		})
	}
}

func TestSQLMarksArguments(t *testing.T) {
	t.Parallel()
	if _, err := sqlfence.New(nil, "mysql"); err == nil || !strings.Contains(err.Error(), `"mysql"`) {
		t.Errorf("a dialect that it does not know: got %v", err)
	}
	for _, at := range [][3]string{
		{}, {"t", "", "c"}, {"t", "k", ""}, {`t"`, "k", "c"}, {"t", "k;", "c"}, {"t", "k", "1c"}, {"s..t", "k", "c"}, {".t", "k", "c"}, {"t", "k.k", "c"},
	} {
		if _, err := sqlfence.NewColumn(nil, sqlfence.Postgres, sqlfence.Column{Table: at[0], Key: at[1], Token: at[2]}); err == nil {
			t.Errorf("%q was accepted", at)
		}
	}
}

// A takeover waits for a transaction that holds the mark, and a stale transaction
// that began before the takeover commits nothing, at every isolation level.
func TestSQLMarksHold(t *testing.T) {
	t.Parallel()
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			db := openPostgres(t)
			m := ownMarks(t, db, sqlfence.Postgres)
			execSQL(t, db, "CREATE TABLE data (token bigint)")
			begin := func() *sql.Tx {
				tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = tx.Rollback() })
				return tx
			}
			for _, token := range []fence.Token{5, 7} { // with the row inserted, and shared
				if token == 7 {
					if _, err := m.Raise(t.Context(), "data", 7); err != nil {
						t.Fatal(err)
					}
				}
				late := begin() // its snapshot is from before the takeover
				if err := late.QueryRowContext(t.Context(), "SELECT count(*) FROM data").Scan(new(int)); err != nil {
					t.Fatal(err)
				}
				tx := begin()
				if _, err := m.In(tx).Raise(t.Context(), "data", token); err != nil {
					t.Fatal(err)
				}
				if _, err := tx.ExecContext(t.Context(), "INSERT INTO data VALUES ($1)", int64(token)); err != nil {
					t.Fatal(err)
				}
				raised := make(chan error, 1)
				go func() {
					_, err := m.Raise(context.WithoutCancel(t.Context()), "data", token+1)
					raised <- err
				}()
				eventually(t, "the takeover waits", func() bool {
					var n int
					return db.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&n) == nil && n == 1
				})
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				if err := <-raised; err != nil {
					t.Fatal(err)
				}
				_, err := m.In(late).Raise(t.Context(), "data", token)
				var pg *pgconn.PgError
				if tooOld := errors.As(err, &pg) && pg.Code == "40001"; !tooOld && !errors.Is(err, fence.ErrStale) || tooOld && level == sql.LevelReadCommitted {
					t.Errorf("token %s after the takeover: got %v", token, err)
				}
				// late stays open, and in nobody's way.
				if _, err := m.Raise(boundedContext(t), "data", token+1); err != nil {
					t.Errorf("while a refused transaction is open: %v", err)
				}
			}
		})
	}
}

// boundedContext ends before a test that hangs is ended for it.
func boundedContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}
