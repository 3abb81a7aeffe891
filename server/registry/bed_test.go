package registry_test

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
	"github.com/tenurehq/tenure/store/sqlite"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// ttl is longer than any test takes: terms end when a test says so.
const ttl = 10 * time.Minute

// bed is a registry on an empty database of one kind.
type bed struct {
	*registry.Registry
	t      *testing.T
	ctx    context.Context
	kind   registry.Dialect
	db     *sql.DB
	leases store.Store
	reopen func() *registry.Registry // as a server that was started again has it
	known  map[string]store.Record
}

// both runs a test against both databases.
func both(t *testing.T, test func(*testing.T, *bed)) {
	t.Parallel()
	for _, kind := range []registry.Dialect{registry.SQLite, registry.Postgres} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			b := newBed(t, kind)
			must(t, b.Migrate(b.ctx))
			must(t, b.Check(b.ctx))
			test(t, b)
		})
	}
}

// newBed makes the lease tables, and not yet those of the registry.
func newBed(t *testing.T, kind registry.Dialect) *bed {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	b := &bed{t: t, ctx: ctx, kind: kind, known: map[string]store.Record{}}
	var open func() (*sql.DB, registry.Config)
	if kind == registry.SQLite {
		host, err := sqlite.ThisHost()
		must(t, err)
		path := filepath.Join(t.TempDir(), "fleet.db")
		open = func() (*sql.DB, registry.Config) {
			db, err := sql.Open("sqlite", sqlite.ModerncDSN(path))
			must(t, err)
			t.Cleanup(func() { _ = db.Close() })
			return db, registry.Config{Dialect: kind, Clock: registry.Clock{Domain: host.Domain, Boot: host.Boot, Wall: host.Wall}}
		}
		db, _ := open()
		st, err := sqlite.New(db, sqlite.Config{Host: host})
		must(t, err)
		t.Cleanup(func() { _ = st.Close() })
		must(t, st.Migrate(ctx))
		b.leases = st
	} else {
		url := pgtest.Database(t)
		newPool := func() *pgxpool.Pool {
			cfg, err := pgxpool.ParseConfig(url)
			must(t, err)
			cfg.MaxConns = 20
			pool, err := pgxpool.NewWithConfig(ctx, cfg)
			must(t, err)
			t.Cleanup(pool.Close)
			return pool
		}
		open = func() (*sql.DB, registry.Config) {
			db := stdlib.OpenDBFromPool(newPool())
			t.Cleanup(func() { _ = db.Close() })
			return db, registry.Config{Dialect: kind}
		}
		st, err := postgres.New(newPool(), postgres.Config{})
		must(t, err)
		t.Cleanup(st.Close)
		must(t, st.Migrate(ctx))
		b.leases = st
	}
	b.reopen = func() *registry.Registry {
		db, cfg := open()
		r, err := registry.New(db, cfg)
		must(t, err)
		b.db = db
		return r
	}
	b.Registry = b.reopen()
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// acquire starts a term of a lease.
func (b *bed) acquire(name string) fence.Token {
	b.t.Helper()
	rec, err := b.leases.Acquire(b.ctx, store.Request{Name: name, Holder: "h", TTL: ttl, Attempt: store.NewAttempt()})
	must(b.t, err)
	b.known[name] = rec
	return rec.Token
}

// lapse lets the term of a lease pass its expiry.
func (b *bed) lapse(name string) {
	b.t.Helper()
	q := "UPDATE tenure_lease SET expires_us = tenure_clock() - 1000 WHERE name = $1"
	if b.kind == registry.SQLite {
		q = "UPDATE tenure_lease SET expires_ns = renewed_us * 0 + (expires_ns - ttl_ns), ttl_ns = 1 WHERE name = $1"
	}
	b.exec(q, name)
}

func (b *bed) release(name string) {
	b.t.Helper()
	rec := b.known[name]
	res, err := b.leases.Release(b.ctx, []store.Grant{{Name: name, Token: rec.Token, Attempt: store.NewAttempt(), Known: []store.Attempt{rec.Attempt}}})
	must(b.t, err)
	must(b.t, res[0].Err)
}

func (b *bed) exec(q string, args ...any) int64 {
	b.t.Helper()
	res, err := b.db.ExecContext(b.ctx, q, args...)
	must(b.t, err)
	n, err := res.RowsAffected()
	must(b.t, err)
	return n
}

// flush records signs of life, and checks which nodes have no row.
func flush(ctx context.Context, t *testing.T, r interface {
	Flush(ctx context.Context, seen []registry.Seen) ([]string, error)
}, seen []registry.Seen, want ...string) {
	t.Helper()
	lost, err := r.Flush(ctx, seen)
	must(t, err)
	if !slices.Equal(lost, want) {
		t.Errorf("without a row: got %q, want %q", lost, want)
	}
}

// node joins a node with a lease and room for slots.
func (b *bed) node(id string, slots int64) fence.Token {
	b.t.Helper()
	b.join(id, "i1", slots)
	return b.acquire(fleet.LeaseName(id))
}

func (b *bed) join(id, incarnation string, slots int64) registry.Verdict {
	b.t.Helper()
	v, err := b.Join(b.ctx, report(id, incarnation, slots))
	must(b.t, err)
	return v
}

func report(id, incarnation string, slots int64) registry.Report {
	return registry.Report{Node: id, Incarnation: incarnation, Facts: fleet.Facts{
		Address: id + ":80", Capacity: fleet.Resources{"slots": slots}, Readiness: fleet.Readiness{Ready: true},
	}}
}

func spec(id string, movable bool) fleet.Spec {
	s := fleet.Spec{ID: id, Command: []string{"true"}, Movable: movable, Request: fleet.Request{Resources: fleet.Resources{"slots": 1}}}
	if movable {
		s.OnLoss = fleet.Stop
	}
	return s
}

// run submits an item to a node and starts it.
func (b *bed) run(id, node string, lease fence.Token, movable bool) {
	b.t.Helper()
	v, err := b.SubmitTo(b.ctx, spec(id, movable), registry.Placement{Node: node, Lease: lease, Actor: "test"})
	b.code("", v, err)
	b.code("", b.report(id, node, v.Current, lease, fleet.Running), nil)
}

// report is what an owner says of its item.
func (b *bed) report(work, node string, token, lease fence.Token, state fleet.WorkState) registry.Verdict {
	b.t.Helper()
	v, err := b.Apply(b.ctx, []registry.Change{{Work: work, Node: node, Token: token, Lease: lease, State: state}})
	must(b.t, err)
	return v[0]
}

// takeover is one whose conditions are as given.
func takeover(work, from string, token, lease fence.Token, to string, toLease fence.Token) registry.Takeover {
	return registry.Takeover{
		Placement: registry.Placement{Work: work, Node: to, Lease: toLease, Actor: "reconciler"},
		Evidence:  fleet.Evidence{From: from, FromToken: token, LeaseToken: lease},
	}
}

func (b *bed) code(want fleet.Code, v registry.Verdict, err error) {
	b.t.Helper()
	must(b.t, err)
	if v.Code != want {
		b.t.Fatalf("code: got %q (%s), want %q", v.Code, v.Text, want)
	}
}

func (b *bed) work(id string) fleet.Work {
	b.t.Helper()
	w, found, err := b.Work(b.ctx, id)
	must(b.t, err)
	if !found {
		b.t.Fatalf("work %q: not found", id)
	}
	return w
}

// is checks where an item stands.
func (b *bed) is(id string, state fleet.WorkState, owner string, token fence.Token) fleet.Work {
	b.t.Helper()
	w := b.work(id)
	if w.State != state || w.Owner != owner || w.Token != token {
		b.t.Fatalf("work %q: got %s of %q with token %s, want %s of %q with token %s", id, w.State, w.Owner, w.Token, state, owner, token)
	}
	return w
}

func (b *bed) kinds(f registry.EventFilter) []fleet.EventKind {
	b.t.Helper()
	events, err := b.Events(b.ctx, f)
	must(b.t, err)
	var kinds []fleet.EventKind
	for _, e := range events {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}
