package postgres_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
	"github.com/tenurehq/tenure/store/storetest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// limit bounds what must happen, on a slow machine.
const limit = 30 * time.Second

// openPool opens a pool that is closed when the test ends.
func openPool(t testing.TB, url string, adjust ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range adjust {
		f(cfg)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func open(t testing.TB, pool *pgxpool.Pool, cfg postgres.Config) *postgres.Store {
	t.Helper()
	s, err := postgres.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// fresh returns a store on an empty, migrated database, and a pool of another
// client of it.
func fresh(t testing.TB, adjust ...func(*pgxpool.Config)) (*postgres.Store, *pgxpool.Pool) {
	t.Helper()
	url := pgtest.Database(t)
	s := open(t, openPool(t, url, adjust...), postgres.Config{})
	if err := s.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	return s, openPool(t, url)
}

func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

func many(c *pgxpool.Config) { c.MaxConns = 40 }

// quiet is a server on which nothing moves the log but what a test does.
var quiet = []string{"autovacuum=off", "wal_level=minimal", "max_wal_senders=0", "checkpoint_timeout=1h", "max_connections=200"}

func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		srv := pgtest.Start(t, pgtest.Options{StepClock: true, Settings: quiet})
		url := srv.Database(t)
		pool := openPool(t, url, many)
		s := open(t, pool, postgres.Config{})
		if err := s.Migrate(bounded(t)); err != nil {
			t.Fatal(err)
		}
		if _, err := pool.Exec(t.Context(), "CREATE TABLE target (name text, token bigint)"); err != nil {
			t.Fatal(err)
		}
		var stepped time.Duration
		return storetest.Harness{
			Store:  s,
			MinTTL: 200 * time.Millisecond, // a loaded machine needs longer than the store
			Second: func(t *testing.T) store.Store { return open(t, openPool(t, url, many), postgres.Config{}) },
			Restart: func(t *testing.T) {
				srv.Kill()
				srv.Restart(t)
				srv.StepClock(t, stepped)
			},
			Writes: func(t *testing.T) int64 { return walPosition(t, pool) },
			Guard: func(ctx context.Context, name string, token fence.Token) error {
				return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return guardedWrite(ctx, tx, name, token) })
			},
			GuardTx: func(ctx context.Context, name string, token fence.Token) (commit func() error, rollback func(), err error) {
				tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
				if err != nil {
					return nil, nil, err
				}
				if err := guardedWrite(ctx, tx, name, token); err != nil {
					return nil, nil, errors.Join(err, tx.Rollback(ctx))
				}
				return func() error { return tx.Commit(ctx) }, func() { _ = tx.Rollback(ctx) }, nil
			},
			StepClock: func(t *testing.T, d time.Duration) {
				stepped += d
				srv.StepClock(t, stepped)
			},
			LockRow: func(t *testing.T, name string) func() { return lockRow(t, pool, name) },
		}
	})
}

func guardedWrite(ctx context.Context, tx pgx.Tx, name string, token fence.Token) error {
	if err := postgres.Guard(ctx, tx, "", name, token); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "INSERT INTO target VALUES ($1, $2)", name, int64(token))
	return err
}

// walPosition returns where the next record of the write-ahead log would go.
func walPosition(t testing.TB, pool *pgxpool.Pool) int64 {
	t.Helper()
	var at int64
	if err := pool.QueryRow(bounded(t), "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").Scan(&at); err != nil {
		t.Fatal(err)
	}
	return at
}

// lockRow locks a lease as a stranger would, until unlock.
func lockRow(t testing.TB, pool *pgxpool.Pool, name string) (unlock func()) {
	t.Helper()
	tx, err := pool.Begin(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(bounded(t), "SELECT FROM tenure_lease WHERE name = $1 FOR UPDATE", name); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(bounded(t)); err != nil {
			t.Error(err)
		}
	}
}
