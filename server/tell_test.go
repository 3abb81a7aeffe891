package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/registry"
)

// mayBeTaken waits until the lease of a node that was hushed has been over for
// long enough.
func (b *bed) mayBeTaken(node string) {
	b.t.Helper()
	eventually(b.t, "lapsed", func() bool {
		n := b.show(node)
		return n.Liveness == fleet.Suspect && n.Lease.Over > b.cfg.Takeover.Wait
	})
}

// steps has a reconciler look some times.
func (r *reconciler) steps(t testing.TB, n int) {
	t.Helper()
	for range n {
		if err := r.step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOrderlyEndIsNoEvent: pinned work of an agent that gave its lease back is told of
// as held back only if none has come for it in the time of a term.
func TestOrderlyEndIsNoEvent(t *testing.T) {
	t.Parallel()
	b, r := newDatabase(t, registry.SQLite).manual(braking())
	a := b.enter("n1", fleet.Facts{})
	spec := fleet.Spec{ID: "w", Command: []string{"true"}}
	if v, err := b.reg.SubmitTo(t.Context(), spec.Filled(), registry.Placement{Node: "n1", Lease: b.show("n1").Lease.Token, Actor: "test"}); err != nil || v.Code != "" {
		t.Fatal(v, err)
	}
	a.goodbye(b)
	over := func() (d time.Duration) {
		t.Helper()
		lapsed, err := b.reg.Lapsed(t.Context())
		if err != nil || len(lapsed) != 1 || lapsed[0].Lease.State != fleet.LeaseReleased {
			t.Fatalf("got %+v, %v, want one item of a lease that was given back", lapsed, err)
		}
		return lapsed[0].Lease.Over
	}
	eventually(t, "the lease may be taken over", func() bool { return over() > b.cfg.Takeover.Wait })
	r.steps(t, 1)
	if e := b.ledger(fleet.EventWithheld); len(e) > 0 && over() < b.cfg.NodeTTL {
		t.Errorf("got %+v, want nothing yet", e)
	}
	eventually(t, "the time of a term", func() bool { return over() > b.cfg.NodeTTL })
	r.steps(t, 2)
	if e := b.ledger(fleet.EventWithheld); len(e) != 1 || e[0].Code != fleet.CodeHostGone {
		t.Errorf("got %+v, want once that its host is gone", e)
	}
	next := newReconciler(b.Server, r.fence.Token) // as after the next "tenure up": its agent comes too
	next.steps(t, 2)
	if e := b.ledger(fleet.EventWithheld); len(e) != 1 {
		t.Errorf("a reconciler that has just begun: got %+v, want nothing new", e[1:])
	}
	next.began -= time.Hour
	next.steps(t, 2)
	if e := b.ledger(fleet.EventWithheld); len(e) != 2 || e[1].Code != fleet.CodeHostGone {
		t.Errorf("one that has observed: got %+v, want that its host is gone", e)
	}
}

// TestEventsOutliveAFailure (P10): what is to be told and could not be written is
// written by the next step, and what cannot be written keeps nothing else back.
func TestEventsOutliveAFailure(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, registry.SQLite)
	b, r := d.manual(braking())
	agents := b.crowd("n", 8, nil)
	b.observed()
	r.steps(t, 1)
	refuse := func(kind fleet.EventKind) (again func()) {
		exec := func(q string) {
			if _, err := d.sql.ExecContext(t.Context(), q); err != nil {
				t.Fatal(err)
			}
		}
		exec(fmt.Sprintf("CREATE TRIGGER refuse BEFORE INSERT ON fleet_event WHEN NEW.kind = '%s' BEGIN SELECT RAISE(ABORT, 'refused'); END", kind))
		return func() { exec("DROP TRIGGER refuse") }
	}
	hush(agents[0])
	eventually(t, "suspect", func() bool { return b.show(agents[0].id).Liveness == fleet.Suspect })
	again := refuse(fleet.EventSuspect)
	if err := r.step(t.Context()); err == nil {
		t.Fatal("a step that could not write said nothing")
	}
	again()
	b.mayBeTaken(agents[0].id)
	again = refuse(fleet.EventLapsed)
	if err := r.step(t.Context()); err == nil {
		t.Fatal("a step that could not note a lapse said nothing")
	}
	if e := b.ledger(fleet.EventSuspect); len(e) != 1 || e[0].Node != agents[0].id {
		t.Errorf("written of the suspicion: %+v, want one", e)
	}
	again()
	r.steps(t, 2)
	for _, kind := range []fleet.EventKind{fleet.EventSuspect, fleet.EventLapsed} {
		if e := b.ledger(kind); len(e) != 1 || e[0].Node != agents[0].id {
			t.Errorf("written of %s: %+v, want one", kind, e)
		}
	}
}

// TestReadinessIsToldOnce: a change of readiness is one event, which is written with it.
func TestReadinessIsToldOnce(t *testing.T) {
	t.Parallel()
	b, r := newDatabase(t, registry.SQLite).manual(braking())
	a := b.enter("n1", fleet.Facts{})
	r.steps(t, 1)
	for _, ready := range []bool{false, true} {
		a.change(func(f *fleet.Facts) {
			f.Readiness = fleet.Readiness{Ready: ready}
			if !ready {
				f.Readiness.Reason = "disk"
			}
		})
		kind := map[bool]fleet.EventKind{false: fleet.EventNotReady, true: fleet.EventReady}[ready]
		eventually(t, "told", func() bool { return len(b.ledger(kind)) > 0 && b.show("n1").Facts.Readiness.Ready == ready })
		r.steps(t, 2)
	}
	if e := b.ledger(fleet.EventNotReady); len(e) != 1 || e[0].Code != "disk" || e[0].Actor != "n1" {
		t.Errorf("not ready: got %+v, want one by n1 with its code", e)
	}
	if e := b.ledger(fleet.EventReady); len(e) != 1 {
		t.Errorf("ready: got %+v, want one", e)
	}
}

// TestSuspectAsReconcilersChange: a node turns suspect after the last step of one
// reconciler and before the first of the next, which tells of it, and no third does.
func TestSuspectAsReconcilersChange(t *testing.T) {
	both(t, func(t *testing.T, kind registry.Dialect) {
		b, r := newDatabase(t, kind).manual(braking())
		agents := b.crowd("n", 8, nil)
		b.observed()
		r.steps(t, 1)
		again := func(a *agent, events int, when string) {
			t.Helper()
			eventually(t, "suspect", func() bool { return b.show(a.id).Liveness == fleet.Suspect })
			for range 2 {
				next := newReconciler(b.Server, r.fence.Token)
				before := len(b.ledger(fleet.EventSuspect))
				next.steps(t, 2)
				if n := len(b.ledger(fleet.EventSuspect)); n != before {
					t.Errorf("%s: %d events by one that has just begun, want none", when, n-before)
				}
				next.began -= time.Hour
				next.steps(t, 2)
			}
			if e := b.ledger(fleet.EventSuspect); len(e) != events || e[len(e)-1].Node != a.id {
				t.Errorf("%s: got %+v, want %d, the last of %s", when, e, events, a.id)
			}
		}
		hush(agents[0])
		again(agents[0], 1, "the first time")
		agents[0].start()
		eventually(t, "heard", func() bool { return b.show(agents[0].id).Liveness == fleet.Alive })
		next := newReconciler(b.Server, r.fence.Token)
		next.known[agents[0].id] = fleet.Suspect // as one that goes on has it
		next.steps(t, 1)
		hush(agents[0])
		again(agents[0], 2, "the second time")
	})
}
