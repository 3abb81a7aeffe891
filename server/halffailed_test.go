package server

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"path/filepath"
	"testing"

	modernc "modernc.org/sqlite"

	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store/sqlite"
)

// connector opens connections to a SQLite file and runs a statement in each.
type connector struct {
	dsn, statement string
}

func (c connector) Driver() driver.Driver { return new(modernc.Driver) }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Driver().Open(c.dsn)
	if err == nil && c.statement != "" {
		_, err = conn.(driver.ExecerContext).ExecContext(ctx, c.statement, nil)
	}
	return conn, err
}

// over starts a replica whose leases are in d and whose registry is reached by c. It
// does not wait until it is ready.
func (d *database) over(c connector, cfg Config) *Server {
	d.t.Helper()
	st, _ := d.open()
	db := sql.OpenDB(c)
	d.t.Cleanup(func() { db.Close() })
	host, err := sqlite.ThisHost()
	if err != nil {
		d.t.Fatal(err)
	}
	reg, err := registry.New(db, registry.Config{Dialect: d.kind, Clock: registry.Clock{Domain: host.Domain, Boot: host.Boot, Wall: host.Wall}})
	if err != nil {
		d.t.Fatal(err)
	}
	s, err := New(st, reg, cfg)
	if err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	d.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			d.t.Errorf("run: %v", err)
		}
	})
	return s
}

// TestHalfFailedReconciler (C71): a replica that can renew the reconciler's lease
// and can write nothing else gives it back, so that another goes on, and shows that
// it failed.
func TestHalfFailedReconciler(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, registry.SQLite)
	half := d.over(connector{dsn: sqlite.ModerncDSN(d.at) + "&_pragma=query_only(1)"}, braking())
	eventually(t, "the half-failed one reconciles", half.active.Load)
	b := d.replica(braking())
	b.crowd("n", 2, nil)
	b.queue("w", fleet.Request{})
	eventually(t, "placed by the other", func() bool { return b.work("w").State == fleet.Placed })
	if err := half.Ready(); err != nil {
		t.Errorf("the half-failed one: %v, want it ready, for it can answer", err)
	}
	if half.active.Load() || half.failed.Load() == nil || b.failed.Load() != nil {
		t.Errorf("the half-failed one: active %v, failing %+v; the other: failing %+v; want only the first failing, and not active",
			half.active.Load(), half.failed.Load(), b.failed.Load())
	}
	if r := half.reconciling(t.Context()); r.Idle() || r.Here || r.Failing == "" || r.FailingSince.IsZero() {
		t.Errorf("the half-failed one tells %+v, want that it failed, and that another reconciles", r)
	}
	if r := b.reconciling(t.Context()); r.Idle() || !r.Here || r.Failing != "" {
		t.Errorf("the other tells %+v, want that it reconciles", r)
	}
}

// TestHalfFailedReconcilerOfBeats (C71): a replica that can do everything but give
// work to a node as the reconciler takes in what agents say all the while. That is
// nothing done under its term.
func TestHalfFailedReconcilerOfBeats(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, registry.SQLite)
	half := &bed{t: t, db: d, Server: d.over(connector{
		dsn:       sqlite.ModerncDSN(d.at),
		statement: "CREATE TEMP TRIGGER half BEFORE UPDATE OF owner ON main.fleet_work BEGIN SELECT RAISE(ABORT, 'half failed'); END",
	}, braking())}
	eventually(t, "the half-failed one reconciles", half.active.Load)
	agents := half.crowd("n", 2, nil)
	half.observed()
	b := d.replica(braking())
	half.queue("w", fleet.Request{})
	told := 0
	eventually(t, "placed by the other", func() bool {
		told++
		agents[0].change(func(f *fleet.Facts) { f.Config = fmt.Sprint(told) })
		return b.work("w").State == fleet.Placed
	})
	if n := half.reg.Accepted() - half.reg.Fenced(); n < 5 {
		t.Errorf("%d writes by the half-failed one, want that the agents made it write", n)
	}
}

// TestUnreadReplica (C71): one that could not read the registry yet does
// not ask for the reconciler's lease.
func TestUnreadReplica(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, registry.SQLite)
	unread := d.over(connector{dsn: sqlite.ModerncDSN(filepath.Join(t.TempDir(), "empty.db"))}, quick())
	eventually(t, "it tried", func() bool { return unread.failing.Load() != nil })
	b := d.replica(quick())
	eventually(t, "the other reconciles", b.active.Load)
	if unread.active.Load() {
		t.Error("the one that has not read the registry reconciles")
	}
}
