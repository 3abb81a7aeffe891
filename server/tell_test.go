package server

import (
	"fmt"
	"testing"

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
