package server

import (
	"testing"
	"time"

	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/server/registry"
)

// TestReadingsOverlap: of readings at the same time none undoes or hides what
// another saw, whichever began first.
func TestReadingsOverlap(t *testing.T) {
	t.Parallel()
	b := newBed(t, Config{Interval: 2 * time.Minute, Refresh: time.Minute}, HTTPConfig{})
	b.join("n1")
	read := func() []registry.Node {
		t.Helper()
		rows, _, err := b.reg.Nodes(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	take := func(rows []registry.Node, began clock.Reading) {
		t.Helper()
		for i := range rows {
			b.take(&rows[i], began.Boot)
		}
	}
	intend := func(state fleet.IntentState) {
		t.Helper()
		_, v, err := b.reg.SetIntent(t.Context(), "n1", registry.Order{Actor: "a", Reason: "r"}, func(i fleet.Intent, m fleet.Mark) (fleet.Intent, fleet.Code) {
			changed, _ := i.WithCordon(m)
			if state == fleet.Active {
				changed, _ = i.Resumed("all")
			}
			return changed, ""
		})
		if err != nil || v.Code != "" {
			t.Fatalf("%s: %+v, error %v", state, v, err)
		}
	}
	want := func(state fleet.IntentState, when string) {
		t.Helper()
		n := b.in.find("n1")
		n.mu.Lock()
		defer n.mu.Unlock()
		if got := n.row.Intent.State(); got != state {
			t.Errorf("%s: got %s, want %s", when, got, state)
		}
	}

	slow := clock.Now()
	b.touch(t.Context(), "n1")
	intend(fleet.Cordoned)
	take(read(), slow) // it waited for a connection, and then saw more
	want(fleet.Cordoned, "a reading that began early and saw late")

	early := clock.Now()
	late := clock.Now()
	old := read()
	intend(fleet.Active)
	take(read(), early)
	take(old, late)
	want(fleet.Active, "a reading that began late and saw early")
}
