package server

import (
	"context"
	"database/sql"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
	"github.com/tenurehq/tenure/store/sqlite"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// database is where a control plane keeps everything. Each replica has
// connections of its own.
type database struct {
	t    testing.TB
	kind registry.Dialect
	at   string         // path or URL
	pg   *pgtest.Server // of this database alone; nil unless the test asked for one
	sql  *sql.DB        // for the test
}

// newDatabase makes a migrated database.
func newDatabase(t testing.TB, kind registry.Dialect) *database {
	t.Helper()
	if kind == registry.Postgres {
		return migrated(t, &database{t: t, kind: kind, at: pgtest.Database(t)})
	}
	return migrated(t, &database{t: t, kind: kind, at: filepath.Join(t.TempDir(), "tenure.db")})
}

// openDatabase connects to a new SQLite file.
func openDatabase(t testing.TB) (store.Store, *registry.Registry) {
	t.Helper()
	return newDatabase(t, registry.SQLite).open()
}

// newServer makes a migrated database on a Postgres server of its own, which can
// be paused.
func newServer(t testing.TB, opts pgtest.Options) *database {
	t.Helper()
	pg := pgtest.Start(t, opts)
	return migrated(t, &database{t: t, kind: registry.Postgres, pg: pg, at: pg.Database(t)})
}

func migrated(t testing.TB, d *database) *database {
	t.Helper()
	st, reg := d.open()
	m := st.(interface{ Migrate(context.Context) error })
	if err := m.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := reg.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return d
}

// open connects a replica.
func (d *database) open() (store.Store, *registry.Registry) {
	t := d.t
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if d.kind == registry.SQLite {
		db, err := sql.Open("sqlite", sqlite.ModerncDSN(d.at))
		check(err)
		db.SetMaxIdleConns(8)
		t.Cleanup(func() { db.Close() })
		st, err := sqlite.New(db, sqlite.Config{})
		check(err)
		t.Cleanup(func() { st.Close() })
		host, err := sqlite.ThisHost()
		check(err)
		reg, err := registry.New(db, registry.Config{Dialect: d.kind, Clock: registry.Clock{Domain: host.Domain, Boot: host.Boot, Wall: host.Wall}, Lost: st.Lost})
		check(err)
		d.sql = db
		return st, reg
	}
	cfg, err := pgxpool.ParseConfig(d.at)
	check(err)
	cfg.MaxConns = 12
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	check(err)
	t.Cleanup(pool.Close)
	st, err := postgres.New(pool, postgres.Config{})
	check(err)
	t.Cleanup(st.Close)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { db.Close() })
	reg, err := registry.New(db, registry.Config{Dialect: d.kind})
	check(err)
	d.sql = db
	return st, reg
}

// replica starts a replica and waits until it is ready.
func (d *database) replica(cfg Config) *bed {
	d.t.Helper()
	b := d.idle(cfg, HTTPConfig{})
	b.run()
	return b
}

// idle serves a replica that does not run yet.
func (d *database) idle(cfg Config, opts HTTPConfig) *bed {
	d.t.Helper()
	b := &bed{t: d.t, db: d, opts: opts, cfgGiven: cfg}
	b.replace()
	web := httptest.NewUnstartedServer(nil)
	web.Config = b.HTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*b.serve.Load()).ServeHTTP(w, r) }))
	web.Start()
	d.t.Cleanup(web.Close)
	b.url = web.URL
	return b
}

// both runs a test against both databases.
func both(t *testing.T, test func(*testing.T, registry.Dialect)) {
	t.Parallel()
	for _, kind := range []registry.Dialect{registry.SQLite, registry.Postgres} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}
