package fleet_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fleet"
)

func work(id, owner string, state fleet.WorkState) fleet.Work {
	return fleet.Work{
		Spec: fleet.Spec{ID: id, Command: []string{"x"}}, State: state, Owner: owner, Token: 1,
		Submitted: t0.Add(-time.Hour), Assigned: t0.Add(-50 * time.Minute), Started: t0.Add(-49 * time.Minute),
	}
}

func movable(w fleet.Work) fleet.Work {
	w.Movable = true
	return w
}

func TestBlockers(t *testing.T) {
	t.Parallel()
	n := with(good("n1"), func(n *fleet.Node) { n.Intent.Drain = &fleet.Drain{} })
	moving := with(n, func(n *fleet.Node) { n.Intent.Drain = &fleet.Drain{Move: true} })
	gone := with(n, func(n *fleet.Node) {
		n.Lease = fleet.Lease{State: fleet.LeaseLapsed, Token: 7, Over: 3 * time.Minute}
	})
	stopping := work("w", "n1", fleet.Stopping)
	stopping.Why = "rebalance"
	stuck := work("w", "n1", fleet.Running)
	stuck.StuckAfterMS = 60_000
	for _, tc := range []struct {
		what string
		node fleet.Node
		work fleet.Work
		code fleet.Code
		text string // "" if it does not block
	}{
		{"placed", n, work("w", "n1", fleet.Placed), "", "placed 50m ago, and not started yet"},
		{"pinned", n, work("w", "n1", fleet.Running), "", "running for 49m: it is pinned"},
		{"movable, not moved", n, movable(work("w", "n1", fleet.Running)), "", "does not move"},
		{"movable, moved", moving, movable(work("w", "n1", fleet.Running)), "", "placed elsewhere"},
		{"pinned is not moved", moving, work("w", "n1", fleet.Running), "", "it is pinned"},
		{"stopping is not stopped", n, stopping, "", `not ended yet ("rebalance")`},
		{"stuck", n, stuck, "", "stuck for 48m"},
		{"host gone", gone, work("w", "n1", fleet.Running), "host_gone", "its host is gone (lease lapsed 3m ago, token 7): it is pinned"},
		{"host gone, movable", gone, movable(work("w", "n1", fleet.Stopping)), "host_gone", "taken over"},
		{"of another", n, work("w", "n2", fleet.Running), "", ""},
		{"succeeded", n, work("w", "n1", fleet.Succeeded), "", ""},
		{"failed", n, work("w", "n1", fleet.Failed), "", ""},
		{"stopped", n, work("w", "n1", fleet.Stopped), "", ""},
		{"pending, was here", n, work("w", "n1", fleet.Pending), "", ""},
	} {
		got := fleet.Blockers(tc.node, []fleet.Work{tc.work}, t0)
		if tc.text == "" {
			if len(got) != 0 {
				t.Errorf("%s: got %+v, want nothing", tc.what, got)
			}
			continue
		}
		if len(got) != 1 || got[0].Work != "w" || got[0].State != tc.work.State || got[0].Code != tc.code {
			t.Errorf("%s: got %+v, want one for w with code %q", tc.what, got, tc.code)
			continue
		}
		contains(t, tc.what, got[0].Text, tc.text)
	}
}

// A copy that lives where its item is not blocks, too; one of the node's own does not
// twice.
func TestLeftoversBlock(t *testing.T) {
	t.Parallel()
	n := with(good("n1"), func(n *fleet.Node) {
		n.Facts.Leftovers = []fleet.Leftover{{Work: "ended", Token: 1, PID: 4}, {Work: "moved", Token: 1}, {Work: "old", Token: 0}, {Work: "own", Token: 1}}
	})
	works := []fleet.Work{work("own", "n1", fleet.Running), work("ended", "n1", fleet.Failed), work("moved", "n2", fleet.Running), work("old", "n1", fleet.Running)}
	var got []string
	for _, b := range fleet.Blockers(n, works, t0) {
		got = append(got, b.Work+" "+string(b.State)+string(b.Code))
	}
	if want := []string{"ended not_owner", "moved not_owner", "old running", "old not_owner", "own running"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Each owned item blocks, by name and in order.
func TestBlockersNamesAll(t *testing.T) {
	t.Parallel()
	works := []fleet.Work{work("c", "n1", fleet.Running), work("a", "n1", fleet.Stopping), work("b", "n1", fleet.Placed), work("d", "n2", fleet.Running)}
	var got []string
	for _, b := range fleet.Blockers(good("n1"), works, t0) {
		got = append(got, b.Work)
	}
	if !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("got %v, want a, b and c", got)
	}
}
