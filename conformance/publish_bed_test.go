//go:build linux

package conformance_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/publish"
	publishtarget "github.com/tenurehq/tenure/fence/publish/target"
	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
	"github.com/tenurehq/tenure/store/sqlite"
)

// publishBed is a database with leases and publications, and a target.
type publishBed struct {
	store     store.Store
	ledger    *publish.Ledger
	unguarded *publish.Ledger // a broken double: its guard lets everybody pass
	database  string          // a path or a URL
	target    string
}

// migrating is what both backends have.
type migrating interface {
	store.Store
	Migrate(ctx context.Context) error
}

// openPublishStore opens the leases and the ledger of a database.
func openPublishStore(ctx context.Context, database string) (migrating, *sql.DB, publish.Config, func(), error) {
	if strings.Contains(database, "://") {
		pool, err := pgxpool.New(ctx, database)
		if err != nil {
			return nil, nil, publish.Config{}, nil, err
		}
		st, err := postgres.New(pool, postgres.Config{})
		db := stdlib.OpenDBFromPool(pool)
		return st, db, publish.Config{
			Dialect: publish.Postgres, Options: []any{pgx.QueryExecModeExec},
			Guard: func(ctx context.Context, tx *sql.Tx, name string, token fence.Token) error {
				return postgres.GuardSQL(ctx, tx, "", name, token)
			},
		}, func() { st.Close(); db.Close(); pool.Close() }, err
	}
	db, err := sql.Open("sqlite", sqlite.ModerncDSN(database))
	if err != nil {
		return nil, nil, publish.Config{}, nil, err
	}
	st, err := sqlite.New(db, sqlite.Config{})
	return st, db, publish.Config{
		Dialect: publish.SQLite,
		Guard: func(ctx context.Context, tx *sql.Tx, name string, token fence.Token) error {
			return sqlite.Guard(ctx, tx, name, token)
		},
	}, func() { st.Close(); db.Close() }, err
}

func newPublishBed(t *testing.T, database, to string) *publishBed {
	t.Helper()
	b := &publishBed{database: database, target: to}
	st, db, cfg, end, err := openPublishStore(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	b.store = st
	if b.ledger, err = publish.NewLedger(db, cfg); err != nil {
		t.Fatal(err)
	}
	cfg.Guard = func(context.Context, *sql.Tx, string, fence.Token) error { return nil }
	if b.unguarded, err = publish.NewLedger(db, cfg); err != nil {
		t.Fatal(err)
	}
	if err := st.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.ledger.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

// publishBeds runs f with each database and each kind of target.
func publishBeds(t *testing.T, f func(t *testing.T, b *publishBed)) {
	for _, kind := range []string{"sqlite", "postgres"} {
		for _, place := range []string{"directory", "s3"} {
			t.Run(kind+"/"+place, func(t *testing.T) {
				t.Parallel()
				database := filepath.Join(t.TempDir(), "tenure.db")
				if kind == "postgres" {
					database = pgtest.Database(t)
				}
				to := t.TempDir()
				if place == "s3" {
					to = fakeS3(t)
				}
				f(t, newPublishBed(t, database, to))
			})
		}
	}
}

// fakeS3 starts an S3 server and returns the URL of a bucket in it. Any credentials
// pass there.
func fakeS3(t *testing.T) string {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("results"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server())
	t.Cleanup(server.Close)
	return "s3://results?" + url.Values{"endpoint": {server.URL}, "region": {"eu-north-1"}, "use_path_style": {"true"}}.Encode()
}

func init() {
	for k, v := range map[string]string{"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"} {
		os.Setenv(k, v)
	}
}

func openPublishTarget(ctx context.Context, url string) (*publish.Target, error) {
	return publishtarget.Open(ctx, url, true)
}

// grant starts the next term of name and ends the one before it at once.
func (b *publishBed) grant(ctx context.Context, name string, before fence.Token) (fence.Token, error) {
	if before > 0 {
		if err := b.store.Revoke(ctx, name, before, store.Revocation{Why: "next", By: "test", Now: true}); err != nil {
			return 0, err
		}
	}
	r, err := b.store.Acquire(ctx, store.Request{Name: name, Holder: "publisher", TTL: time.Hour, Attempt: store.NewAttempt()})
	return r.Token, err
}

// taggedFiles is a set whose every file says the same.
func taggedFiles(tag string) fstest.MapFS {
	m := fstest.MapFS{}
	for i := range 4 {
		m[fmt.Sprintf("part-%d", i)] = &fstest.MapFile{Data: []byte(tag)}
	}
	return m
}
