package server

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/registry"
)

// TestFactsChangeElsewhere: an agent that beat to one replica goes to another and
// tells it of a change. The first believes the registry, not what it heard before.
func TestFactsChangeElsewhere(t *testing.T) {
	both(t, func(t *testing.T, kind registry.Dialect) {
		d := newDatabase(t, kind)
		first, second := d.replica(braking()), d.replica(braking())
		a := first.enter("n1", fleet.Facts{Capacity: fleet.Resources{"slots": 4}, Features: []string{"gpu"}})
		eventually(t, "known to the second", func() bool { return second.show("n1").ID != "" })
		a.home.Store(second)

		a.change(func(f *fleet.Facts) { f.Readiness = fleet.Readiness{Reason: "disk"} })
		eventually(t, "not ready at the first", func() bool { return !first.show("n1").Facts.Readiness.Ready })
		if got := first.send("GET", "/v1/nodes/n1/eligible", nil); got.status != 503 {
			t.Errorf("eligible at the first: got %d, want 503", got.status)
		}
		a.change(func(f *fleet.Facts) {
			f.Readiness, f.Capacity, f.Features = fleet.Readiness{Ready: true}, fleet.Resources{"slots": 1}, nil
		})
		eventually(t, "smaller at the first", func() bool { return first.show("n1").Facts.Capacity["slots"] == 1 })
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		for _, req := range []fleet.Request{{Resources: fleet.Resources{"slots": 2}}, {Features: []string{"gpu"}}} {
			_, _, err := first.Submit(ctx, fleet.Spec{ID: "w", Command: []string{"true"}, Request: req}, "test", false)
			if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != string(fleet.CodeNoCapacity) {
				t.Errorf("%+v: got %v, want no_capacity", req, err)
			}
		}

		// When it comes back, the first asks for its facts again and has them whole.
		a.home.Store(first)
		a.change(func(f *fleet.Facts) { f.Used = fleet.Resources{"slots": 1} })
		eventually(t, "heard by the first", func() bool { return first.show("n1").Facts.Used["slots"] == 1 })
	})
}

// TestSameRefusal: what a replica shows of a node and what the registry allows
// disagree. A placement ends with the registry's reason after few tries.
func TestSameRefusal(t *testing.T) {
	t.Parallel()
	b := newBed(t, Config{Interval: 2 * time.Minute, Refresh: time.Minute}, HTTPConfig{})
	b.join("n1")
	tries := 0
	refuse := func(p registry.Placement) (registry.Verdict, error) {
		tries++
		return registry.Verdict{Code: fleet.CodeLeaseLapsed, Text: "nothing shows that it is unexpired", OfTarget: true}, nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := b.place(ctx, fleet.Request{}, new(bool), refuse)
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Code != string(fleet.CodeNoCapacity) || e.Counts[fleet.CodeLeaseLapsed] != 1 {
		t.Errorf("after %d tries: got %v, want no_capacity for lease_lapsed", tries, err)
	}
	if tries < 1 || tries > 3 {
		t.Errorf("%d tries, want few", tries)
	}

	// As long as its row changes between them, it is tried again (P8).
	tries = 0
	changing := func(p registry.Placement) (registry.Verdict, error) {
		if v, err := refuse(p); tries < 6 {
			b.cordonAndResume("n1")
			return v, err
		}
		return registry.Verdict{}, nil
	}
	if v, err := b.place(ctx, fleet.Request{}, new(bool), changing); err != nil || v.Code != "" || tries != 6 {
		t.Errorf("got %+v, %v after %d tries, want it placed at the 6th", v, err, tries)
	}
}

// cordonAndResume changes the row of a node and leaves it as it was.
func (b *bed) cordonAndResume(node string) {
	b.t.Helper()
	for _, change := range []registry.IntentFunc{
		func(i fleet.Intent, m fleet.Mark) (fleet.Intent, fleet.Code) { i, _ = i.WithCordon(m); return i, "" },
		func(i fleet.Intent, _ fleet.Mark) (fleet.Intent, fleet.Code) { i, _ = i.Resumed("all"); return i, "" },
	} {
		if _, v, err := b.reg.SetIntent(b.t.Context(), node, registry.Order{Actor: "ann", Reason: "test"}, change); err != nil || v.Code != "" {
			b.t.Fatal(v, err)
		}
	}
}

// TestLostRow: a failover that lost a write, or a restored backup, has taken the row
// of a node that beats. It is back within a few intervals, as what operators wanted
// it to be, and meanwhile placements are answered.
func TestLostRow(t *testing.T) {
	both(t, func(t *testing.T, kind registry.Dialect) {
		d := newDatabase(t, kind)
		b, other := d.replica(braking()), d.replica(braking())
		agents := b.crowd("n", 2, nil)
		must[api.Node](b, "POST", "/v1/nodes/n0001/cordon", api.CordonRequest{Actor: "ann", Reason: "look"})
		for _, at := range []*bed{b, other} {
			eventually(t, "known at both", func() bool {
				return at.show("n0000").ID != "" && at.show("n0001").Intent.State() == fleet.Cordoned
			})
		}
		if _, err := d.sql.ExecContext(t.Context(), "DELETE FROM fleet_node"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		for _, at := range []*bed{b, other} {
			_, _, err := at.Submit(ctx, fleet.Spec{ID: "w", Command: []string{"true"}}, "test", false)
			if e, ok := errors.AsType[*api.Error](err); err != nil && (!ok || e.Code != string(fleet.CodeNoCapacity)) {
				t.Errorf("submit: got %v, want an answer", err)
			}
		}
		eventually(t, "back", func() bool {
			rows, _, err := b.reg.Nodes(t.Context(), 0)
			return err == nil && len(rows) == 2
		})
		t.Logf("back after %s, the interval is %s", time.Since(began), b.cfg.Interval)
		for _, at := range []*bed{b, other} {
			eventually(t, "shown as before", func() bool {
				n := at.show("n0001")
				return n.Liveness == fleet.Alive && n.Intent.State() == fleet.Cordoned && n.Intent.Cordon.Actor == "ann" && at.show("n0000").Intent.State() == fleet.Active
			})
		}
		eventually(t, "gets work", func() bool {
			w, _, err := other.Submit(t.Context(), fleet.Spec{ID: "w", Command: []string{"true"}}, "test", false)
			return err == nil && w.Owner == "n0000"
		})
		for _, a := range agents {
			a.mu.Lock()
			if a.losses > 0 || a.codes[fleet.CodeReplaced]+a.codes[fleet.CodeDuplicateNode] > 0 {
				t.Errorf("%s: %d terms lost, replies %v", a.id, a.losses, a.codes)
			}
			a.mu.Unlock()
		}
	})
}

// TestLostRowOfTheDead: one whose row is lost and that is not heard any more is
// forgotten, whether a full reading or a placement finds out.
func TestLostRowOfTheDead(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, registry.SQLite)
	b := d.replica(quick())
	a := b.enter("n1", fleet.Facts{})
	hush(a)
	eventually(t, "suspect", func() bool { return b.show("n1").Liveness == fleet.Suspect })
	if _, err := d.sql.ExecContext(t.Context(), "DELETE FROM fleet_node"); err != nil {
		t.Fatal(err)
	}
	b.touch(t.Context(), "n1")
	if n := b.show("n1"); n.ID != "" {
		t.Errorf("after a reading of the node: got %+v, want none", n)
	}
	b.reread(t.Context())
	if b.in.find("n1") != nil {
		t.Error("after a full reading it is still in memory")
	}
}
