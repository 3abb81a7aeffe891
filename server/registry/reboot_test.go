package registry_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/sqlite"
)

// After a reboot of the host of a SQLite file nobody can tell whether a term is
// unexpired: nobody acts under it, and nothing is taken from its node before the
// lease store has watched it for its TTL.
func TestReboot(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, err := sql.Open("sqlite", sqlite.ModerncDSN(filepath.Join(t.TempDir(), "fleet.db")))
	must(t, err)
	defer func() { _ = db.Close() }()
	var boot atomic.Int64 // ns
	boot.Store(int64(time.Hour))
	wall := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	start := func(domain string) (*bed, *sqlite.Store) {
		host := sqlite.Host{ID: "machine", Domain: domain, Boot: func() time.Duration { return time.Duration(boot.Load()) }, Wall: func() time.Time { return wall }}
		st, err := sqlite.New(db, sqlite.Config{Host: host})
		must(t, err)
		must(t, st.Migrate(ctx))
		r, err := registry.New(db, registry.Config{Dialect: registry.SQLite, Clock: registry.Clock{Domain: domain, Boot: host.Boot, Wall: host.Wall}})
		must(t, err)
		must(t, r.Migrate(ctx))
		return &bed{Registry: r, t: t, ctx: ctx, kind: registry.SQLite, db: db, leases: st, known: map[string]store.Record{}}, st
	}
	before, st := start("boot-1")
	l1 := before.node("n1", 4)
	before.run("w", "n1", l1, true)
	flush(ctx, t, before, []registry.Seen{{Node: "n1", Incarnation: "i1"}})
	must(t, st.Close())

	boot.Store(int64(30 * time.Second))
	wall = wall.Add(2 * time.Minute)
	b, st := start("boot-2")
	defer func() { _ = st.Close() }()
	b.join("n2", "i1", 4)
	l2 := b.acquire("node/n2") // the first write of the lease store begins to watch
	b.code(fleet.CodeLeaseLapsed, b.report("w", "n1", 1, l1, fleet.Succeeded), nil)
	v, err := b.Takeover(ctx, takeover("w", "n1", 1, l1, "n2", l2))
	b.code(fleet.CodeWrongState, v, err)
	if lapsed, err := b.Lapsed(ctx); err != nil || len(lapsed) != 0 {
		t.Errorf("just after a reboot: got %v, %v, want nothing lapsed", lapsed, err)
	}
	n, _, err := b.Node(ctx, "n1")
	must(t, err)
	if n.Age != 2*time.Minute || n.Lease.State != fleet.LeaseHeld || n.Lease.Remaining != ttl {
		t.Errorf("n1: got age %s and lease %+v, want the wall clock's 2 minutes and a full TTL to watch", n.Age, n.Lease)
	}
	boot.Add(int64(ttl))
	l2 = b.acquire("node/n2")
	v, err = b.Takeover(ctx, takeover("w", "n1", 1, l1, "n2", l2))
	b.code("", v, err)
	b.is("w", fleet.Placed, "n2", 2)

	// A step of the wall clock is none of the registry's.
	wall = wall.Add(-24 * time.Hour)
	n, _, err = b.Node(ctx, "n2")
	must(t, err)
	if n.Age != ttl || n.Lease.State != fleet.LeaseHeld {
		t.Errorf("n2: got age %s and lease %+v", n.Age, n.Lease)
	}
}
