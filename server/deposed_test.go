package server

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
)

// reconcilerTerm starts a term of the reconciler's lease for the test, after
// those before it are over.
func (b *bed) reconcilerTerm(ttl time.Duration) store.Record {
	b.t.Helper()
	var rec store.Record
	eventually(b.t, "a term for the test", func() bool {
		var err error
		rec, err = b.st.Acquire(b.t.Context(), store.Request{Name: ReconcilerLease, Holder: "test", TTL: ttl, Attempt: store.NewAttempt()})
		return err == nil
	})
	return rec
}

// manual starts a replica that never reconciles by itself, and returns a
// reconciler of it that has been so for a while.
func (d *database) manual(cfg Config) (*bed, *reconciler) {
	d.t.Helper()
	b := d.idle(cfg, HTTPConfig{})
	rec := b.reconcilerTerm(time.Hour)
	b.run()
	r := newReconciler(b.Server, rec.Token)
	r.began -= time.Hour
	return b, r
}

// dump returns all rows of the fleet's tables and the leases', but for what beats
// and renewals change.
func dump(t testing.TB, db *sql.DB) []string {
	t.Helper()
	var all []string
	for _, table := range []string{"fleet_node", "fleet_work", "fleet_event", "fleet_takeover", "fleet_brake_order", "fleet_single"} {
		rows, err := db.QueryContext(t.Context(), "SELECT * FROM "+table)
		if err != nil {
			t.Fatal(err)
		}
		columns, err := rows.Columns()
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			row := make([]any, len(columns))
			for i := range row {
				row[i] = new(any)
			}
			if err := rows.Scan(row...); err != nil {
				t.Fatal(err)
			}
			line := table
			for i := range row {
				line += fmt.Sprintf(" %s=%v", columns[i], *row[i].(*any))
			}
			all = append(all, line)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		rows.Close()
	}
	slices.Sort(all)
	return all
}

// TestDeposedReconcilerWritesNothing (C71): a reconciler whose term is over goes on
// with everything that it would do: a takeover, a placement, the end of a drain,
// work to move away, a brake to save, events to write. Not one row changes. Its
// successor does it all.
func TestDeposedReconcilerWritesNothing(t *testing.T) {
	both(t, func(t *testing.T, kind registry.Dialect) {
		d := newDatabase(t, kind)
		cfg := braking()
		b, old := d.manual(cfg)
		agents := b.crowd("n", 8, nil)
		b.give("taken", agents[0].id)
		b.give("moving", agents[1].id)
		b.observed()
		if err := old.step(t.Context()); err != nil {
			t.Fatal(err)
		}

		// Now there is something to do of every kind.
		hush(agents[0])
		for _, at := range []*agent{agents[1], agents[2]} {
			if _, v, err := b.reg.SetIntent(t.Context(), at.id, registry.Order{Actor: "ann", Reason: "test"}, func(i fleet.Intent, m fleet.Mark) (fleet.Intent, fleet.Code) {
				i, _ = i.WithDrain(m, time.Time{}, true)
				return i, ""
			}); err != nil || v.Code != "" {
				t.Fatal(v, err)
			}
		}
		if v, err := b.reg.Submit(t.Context(), fleet.Spec{ID: "pending", Command: []string{"true"}}.Filled(), "ann"); err != nil || v.Code != "" {
			t.Fatal(v, err)
		}
		if err := b.reg.OrderBrake(t.Context(), registry.BrakeOrder{Domain: fleet.DomainAll, What: "release", Order: registry.Order{Actor: "ann", Reason: "test"}}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "lapsed, and seen by all", func() bool {
			n := b.show(agents[0].id)
			return n.Liveness == fleet.Suspect && n.Lease.Over > b.cfg.Takeover.Wait && b.show(agents[2].id).Intent.Drain != nil
		})
		if err := b.st.Revoke(t.Context(), ReconcilerLease, old.fence.Token, store.Revocation{Why: "test", By: "test"}); err != nil {
			t.Fatal(err)
		}
		d.lapse(t, ReconcilerLease)
		rec := b.reconcilerTerm(time.Hour)

		before := dump(t, d.sql)
		nodes := b.Nodes()
		lapsed, err := b.reg.Lapsed(t.Context())
		if err != nil || len(lapsed) == 0 {
			t.Fatal(lapsed, err)
		}
		now := time.Now()
		for name, f := range map[string]func(context.Context) error{
			"step":      old.step,
			"brake":     func(ctx context.Context) error { return old.judgeBrake(ctx, nodes, now) },
			"tell":      func(ctx context.Context) error { return old.tell(ctx, nodes) },
			"takeovers": func(ctx context.Context) error { return old.takeovers(ctx, lapsed, nodes) },
			"pending":   func(ctx context.Context) error { return old.pending(ctx, nodes, now) },
			"drains":    func(ctx context.Context) error { return old.drains(ctx, nodes) },
		} {
			if err := f(t.Context()); err == nil || !strings.Contains(err.Error(), "term is over") {
				t.Errorf("%s of a deposed reconciler: got %v, want that its term is over", name, err)
			}
		}
		after := dump(t, d.sql)
		for _, row := range after {
			if !slices.Contains(before, row) {
				t.Errorf("written by a deposed reconciler: %s", row)
			}
		}
		if len(after) != len(before) {
			t.Errorf("%d rows, want the %d from before", len(after), len(before))
		}

		next := newReconciler(b.Server, rec.Token)
		next.began -= time.Hour
		if err := next.step(t.Context()); err != nil {
			t.Fatal(err)
		}
		if w := b.work("taken"); w.Token != 2 {
			t.Errorf("after the successor's step: %+v, want it taken over", w)
		}
		if w := b.work("moving"); w.State != fleet.Stopping || !w.Moving {
			t.Errorf("after the successor's step: %+v, want it moving", w)
		}
		if w := b.work("pending"); w.State != fleet.Placed {
			t.Errorf("after the successor's step: %+v, want it placed", w)
		}
		if s := b.show(agents[2].id).Intent.State(); s != fleet.Drained {
			t.Errorf("after the successor's step: %s, want drained", s)
		}
	})
}

// lapse lets the term of a lease pass its expiry.
func (d *database) lapse(t testing.TB, name string) {
	t.Helper()
	q := "UPDATE tenure_lease SET expires_us = tenure_clock() - 1000 WHERE name = $1"
	if d.kind == registry.SQLite {
		q = "UPDATE tenure_lease SET expires_ns = expires_ns - ttl_ns, ttl_ns = 1 WHERE name = $1"
	}
	if _, err := d.sql.ExecContext(t.Context(), q, name); err != nil {
		t.Fatal(err)
	}
}

// TestNewReconcilerWaits: a new term of the reconciler may follow on an outage of
// the store, in which nobody could renew, so the first thing that it sees may be
// lapsed leases of nodes that live. It takes nothing over for one suspect timeout.
func TestNewReconcilerWaits(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, registry.SQLite)
	b, r := d.manual(braking())
	n1 := b.enter("n1", fleet.Facts{})
	b.give("w", "n1")
	b.enter("n2", fleet.Facts{})
	b.observed()
	n1.patience = 1 << 30 // it beats, and is slow to win its lease back
	d.lapse(t, fleet.LeaseName("n1"))
	eventually(t, "over", func() bool {
		l := b.show("n1").Lease
		return l.State == fleet.LeaseLapsed && l.Over > b.cfg.Takeover.Wait
	})
	r.began = clock.Now().Boot
	if err := r.step(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w := b.work("w"); w.Token != 1 {
		t.Fatalf("got %+v, want that a new reconciler waits", w)
	}
	if e := b.ledger(fleet.EventWithheld); len(e) != 1 || e[0].Code != fleet.CodeObserving {
		t.Errorf("got %+v, want that it is withheld as observing", e)
	}
	r.began -= b.cfg.suspect() + time.Millisecond
	if err := r.step(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w := b.work("w"); w.Token != 2 || w.Owner != "n2" {
		t.Errorf("got %+v, want it taken over after that", w)
	}
}

// TestTakeoverOfOneThatIsBack: between the reading that shows two leases as over
// and the takeovers, one node wins its lease back. It keeps its work, and the
// takeover of the other's is not held up by that.
func TestTakeoverOfOneThatIsBack(t *testing.T) {
	both(t, func(t *testing.T, kind registry.Dialect) {
		d := newDatabase(t, kind)
		b, r := d.manual(braking())
		agents := b.crowd("n", 8, nil)
		b.give("a-back", agents[0].id)
		b.give("b-gone", agents[1].id)
		b.observed()
		hush(agents[0], agents[1])
		d.lapse(t, fleet.LeaseName(agents[0].id))
		d.lapse(t, fleet.LeaseName(agents[1].id))
		var lapsed []registry.Owned
		eventually(t, "over", func() bool {
			var err error
			lapsed, err = b.reg.Lapsed(t.Context())
			return err == nil && len(lapsed) == 2 && min(lapsed[0].Lease.Over, lapsed[1].Lease.Over) > b.cfg.Takeover.Wait
		})
		kept, err := b.reg.Brake(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := r.restoreBrake(kept); err != nil {
			t.Fatal(err)
		}
		nodes := b.Nodes()
		agents[0].acquire(b)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := r.takeovers(ctx, lapsed, nodes); err != nil {
			t.Fatal(err)
		}
		if w := b.work("a-back"); w.Token != 1 || w.Owner != agents[0].id {
			t.Errorf("got %+v, want it kept", w)
		}
		if w := b.work("b-gone"); w.Token != 2 {
			t.Errorf("got %+v, want it taken over", w)
		}
	})
}

// TestFlappingWorkStays (C69 c): an item is lost six times in ten minutes. After
// three takeovers it waits for an operator or an hour's calm, and says so.
func TestFlappingWorkStays(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, registry.SQLite)
	b, r := d.manual(braking())
	agents := b.crowd("n", 8, nil)
	b.give("w", agents[0].id)
	b.observed()
	for loss := 1; loss <= 6; loss++ {
		owner := b.work("w").Owner
		at := slices.IndexFunc(agents, func(a *agent) bool { return a.id == owner })
		agents[at].stop()
		d.lapse(t, fleet.LeaseName(owner))
		eventually(t, "over", func() bool {
			l, err := b.reg.Lapsed(t.Context())
			return err == nil && len(l) == 1 && l[0].Lease.Over > b.cfg.Takeover.Wait
		})
		if err := r.step(t.Context()); err != nil {
			t.Fatal(err)
		}
		if w := b.work("w"); w.Takeovers != min(loss, 3) {
			t.Fatalf("after loss %d: %d takeovers", loss, w.Takeovers)
		}
		if loss >= 4 {
			agents[at] = b.newAgent(owner, fmt.Sprint("again", loss), agents[at].facts)
			agents[at].start()
		}
	}
	events := b.ledger(fleet.EventWithheld)
	if len(events) == 0 || events[len(events)-1].Code != fleet.CodeFlapping {
		t.Errorf("got %+v, want that it is withheld as flapping", events)
	}
}

// TestSlowIsNotDead (C69 a): a node whose beats crawl, but whose renewals pass,
// keeps everything.
func TestSlowIsNotDead(t *testing.T) {
	t.Parallel()
	cfg := braking()
	b := newBed(t, cfg, HTTPConfig{})
	slow := b.newAgent("n1", "i1", fleet.Facts{})
	slow.every = cfg.NodeTTL * 7 / 10 // ten times too slow is not always; it is suspect now and then
	slow.start()
	b.give("w", "n1")
	b.enter("n2", fleet.Facts{})
	b.observed()
	suspect := false
	throughout(t, 4*cfg.NodeTTL, func() {
		suspect = suspect || b.show("n1").Liveness == fleet.Suspect
		if w := b.work("w"); w.Token != 1 {
			t.Fatalf("got %+v, want no takeover from one that renews", w)
		}
	})
	if !suspect {
		t.Error("it never was suspect, which this test is about")
	}
}
