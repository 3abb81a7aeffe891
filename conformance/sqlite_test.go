package conformance_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/sqlite"
	"github.com/tenurehq/tenure/store/storetest"
)

func TestSQLiteConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		path := filepath.Join(t.TempDir(), "tenure.db")
		var stepped atomic.Int64
		this, err := sqlite.ThisHost()
		if err != nil {
			t.Fatal(err)
		}
		stepping := sqlite.Config{Host: sqlite.Host{
			Boot: func() time.Duration { return this.Boot() + time.Duration(stepped.Load()) },
			Wall: func() time.Time { return this.Wall().Add(time.Duration(stepped.Load())) },
		}}
		st := migrated(t, path, stepping)

		data := openSQLite(t, path)
		if _, err := data.Exec("CREATE TABLE guarded (name TEXT PRIMARY KEY, token INTEGER)"); err != nil {
			t.Fatal(err)
		}
		return storetest.Harness{
			Store: st,
			Second: func(t *testing.T) store.Store {
				// Another process: its own pool, its own connections.
				return openStore(t, path, stepping)
			},
			MinTTL:    200 * time.Millisecond, // a slow disk must not let terms lapse that a subtest holds
			Writes:    dataVersion(t, path),
			StepClock: func(_ *testing.T, d time.Duration) { stepped.Add(int64(d)) },
			// GuardTx is left out: an open write transaction stalls all writers of
			// a SQLite file, the other subtests among them. TestSQLiteGuard shows
			// what it would.
			Guard: func(ctx context.Context, name string, token fence.Token) error {
				tx, err := guarded(ctx, data, name, token)
				if err != nil {
					return err
				}
				return tx.Commit()
			},
		}
	})
}

// openSQLite opens path as the documentation says.
func openSQLite(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", sqlite.ModerncDSN(path))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close the database: %v", err)
		}
	})
	return db
}

// openStore opens a store in path as another process would.
func openStore(t *testing.T, path string, cfg sqlite.Config) *sqlite.Store {
	t.Helper()
	st, err := sqlite.New(openSQLite(t, path), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	return st
}

// migrated opens a store in path and makes its tables.
func migrated(t *testing.T, path string, cfg sqlite.Config) *sqlite.Store {
	t.Helper()
	st := openStore(t, path, cfg)
	if err := st.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return st
}

// guarded begins a transaction and writes in it under token.
func guarded(ctx context.Context, db *sql.DB, name string, token fence.Token) (*sql.Tx, error) {
	tx, err := beginBusy(ctx, db)
	if err != nil {
		return nil, err
	}
	err = sqlite.Guard(ctx, tx, name, token)
	if err == nil {
		_, err = tx.ExecContext(ctx, "INSERT INTO guarded VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET token = ?2", name, token)
	}
	if err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	return tx, nil
}

// beginBusy begins an immediate transaction, however long others write.
func beginBusy(ctx context.Context, db *sql.DB) (*sql.Tx, error) {
	for {
		tx, err := db.BeginTx(ctx, nil)
		if err == nil || ctx.Err() != nil || store.Classify(err) != store.CodeNoContact {
			return tx, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
}

// dataVersion returns a counter that grows with commits of other connections.
func dataVersion(t *testing.T, path string) func(*testing.T) int64 {
	conn, err := openSQLite(t, path).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return func(t *testing.T) int64 {
		var n int64
		if err := conn.QueryRowContext(t.Context(), "PRAGMA data_version").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// TestSQLiteHistoryIsBounded: terms are kept for 30 days, the newest 100 for longer,
// and no more than 10,000.
func TestSQLiteHistoryIsBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	st := migrated(t, path, sqlite.Config{})
	db := openSQLite(t, path)
	terms := func(n int) {
		t.Helper()
		for range n {
			attempt := store.NewAttempt()
			rec, err := st.Acquire(t.Context(), store.Request{Name: "job", Holder: "h", TTL: time.Minute, Attempt: attempt})
			if err == nil {
				_, err = st.Release(t.Context(), []store.Grant{{Name: "job", Token: rec.Token, Attempt: store.NewAttempt(), Known: []store.Attempt{attempt}}})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(what string, n int, newest, oldest fence.Token) {
		t.Helper()
		var tokens []fence.Token
		for term, err := range st.History(t.Context(), "job") {
			if err != nil {
				t.Fatal(err)
			}
			tokens = append(tokens, term.Token)
		}
		if len(tokens) != n || tokens[0] != newest || tokens[n-1] != oldest {
			t.Errorf("%s: got %d terms from %s to %s, want %d from %s to %s", what, len(tokens), tokens[0], tokens[len(tokens)-1], n, newest, oldest)
		}
	}
	exec := func(statement string) {
		t.Helper()
		if _, err := db.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	terms(110)
	check("young terms", 110, 110, 1)
	exec("UPDATE tenure_term SET ended_at = '2001' || substr(ended_at, 5) WHERE token <= 5")
	terms(1)
	check("five are old", 106, 111, 6)
	exec("UPDATE tenure_term SET ended_at = '2001' || substr(ended_at, 5)")
	terms(1)
	check("all are old", 100, 112, 13)
	exec(`WITH RECURSIVE s(n) AS (SELECT 200 UNION ALL SELECT n + 1 FROM s WHERE n < 10298)
		INSERT INTO tenure_term SELECT 'job', n, 'h', '2020-01-01T00:00:00.000000Z', '9999-01-01T00:00:00.000000Z', 'released', '' FROM s`)
	if err := st.RaiseFloor(t.Context(), "job", 10_299); err != nil {
		t.Fatal(err)
	}
	terms(1)
	check("many are young", 10_000, 10_300, 300)
}
