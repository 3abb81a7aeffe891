package server

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store/sqlite"
)

// over starts a replica whose leases are in d and whose registry is in the file at
// dsn. It does not wait until it is ready.
func (d *database) over(dsn string, cfg Config) *Server {
	d.t.Helper()
	st, _ := d.open()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		d.t.Fatal(err)
	}
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
	half := d.over(sqlite.ModerncDSN(d.at)+"&_pragma=query_only(1)", braking())
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

// TestUnreadReplica (C71): one that could not read the registry yet does
// not ask for the reconciler's lease.
func TestUnreadReplica(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, registry.SQLite)
	unread := d.over(sqlite.ModerncDSN(filepath.Join(t.TempDir(), "empty.db")), quick())
	eventually(t, "it tried", func() bool { return unread.failing.Load() != nil })
	b := d.replica(quick())
	eventually(t, "the other reconciles", b.active.Load)
	if unread.active.Load() {
		t.Error("the one that has not read the registry reconciles")
	}
}
