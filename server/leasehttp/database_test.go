package leasehttp_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "modernc.org/sqlite"

	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
	"github.com/tenurehq/tenure/store/sqlite"
	"github.com/tenurehq/tenure/store/storetest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// slow is a TTL that a loaded machine does not let lapse while a subtest holds it.
const slow = 200 * time.Millisecond

func TestConformanceSQLite(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		return harness(t, openSQLite(t), storetest.Harness{MinTTL: slow})
	})
}

func openSQLite(t *testing.T) store.Store {
	t.Helper()
	db, err := sql.Open("sqlite", sqlite.ModerncDSN(filepath.Join(t.TempDir(), "tenure.db")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	st, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	if err := st.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return st
}

func TestConformancePostgres(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		return harness(t, openPostgres(t), storetest.Harness{MinTTL: slow})
	})
}

func openPostgres(t *testing.T) store.Store {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 40 // some subtests ask 50 at a time, beside others
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	st, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	if err := st.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return st
}
