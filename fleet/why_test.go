package fleet_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fleet"
)

// The words of why, in testdata/why.txt. They are read in review.
func TestWhy(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	show := func(what string, lines []string) {
		fmt.Fprintf(&b, "== %s\n%s\n\n", what, strings.Join(lines, "\n"))
		for _, l := range lines {
			if strings.ContainsAny(l, "\n\r\x1b") {
				t.Errorf("%s: got a line with control characters: %q", what, l)
			}
		}
	}
	brakes := fleet.Conditions{Brakes: []fleet.BrakeState{silentBrake()}}
	node := func(what string, c fleet.Conditions, change func(*fleet.Node)) {
		show("node: "+what, fleet.WhyNode(with(good("n1"), change), c, t0))
	}
	node("good", fleet.Conditions{}, func(n *fleet.Node) {
		n.Work, n.Reserved = 3, fleet.Resources{"slots": 3, "memory_mb": 1024}
		n.Facts.Used = fleet.Resources{"memory_mb": 2048}
	})
	show("node: everything wrong", fleet.WhyNode(lost(), brakes, t0))
	node("probed", fleet.Conditions{}, func(n *fleet.Node) { n.Probed = true })
	node("beats go on, lease revoked", fleet.Conditions{}, func(n *fleet.Node) {
		n.Lease.State, n.Lease.Remaining = fleet.LeaseRevoked, 21*time.Second
	})
	node("drained", fleet.Conditions{}, func(n *fleet.Node) {
		n.Intent.Drain = &fleet.Drain{Mark: fleet.Mark{Actor: "anna", Reason: "retire\x1b[2J", At: t0.Add(-50 * time.Hour)}, Done: t0.Add(-26 * time.Hour)}
	})
	dep := fleet.BrakeState{Domain: fleet.DomainAll, Engaged: true, Code: fleet.CodeNotReady, Reason: "db", From: t0.Add(-time.Hour), Text: "300 of 300 nodes turned not ready"}
	node("not ready, and doubted", fleet.Conditions{Brakes: []fleet.BrakeState{dep}}, func(n *fleet.Node) {
		n.Facts.Readiness, n.NotReady, n.WasReady = fleet.Readiness{Reason: "db", Text: "connection refused"}, t0.Add(-time.Minute), true
	})

	item := func(what string, change func(*fleet.WorkFacts)) {
		owner := good("n1")
		f := fleet.WorkFacts{Work: work("w1", "n1", fleet.Running), Owner: &owner}
		change(&f)
		show("work: "+what, fleet.WhyWork(f, t0))
	}
	item("running", func(*fleet.WorkFacts) {})
	item("stuck", func(f *fleet.WorkFacts) {
		f.Work.StuckAfterMS, f.Work.Progress, f.Work.ProgressAt = 60_000, "page 7", t0.Add(-5*time.Minute)
	})
	item("placed", func(f *fleet.WorkFacts) { f.Work.State, f.Work.Started = fleet.Placed, time.Time{} })
	item("moving", func(f *fleet.WorkFacts) {
		f.Work.State, f.Work.Moving, f.Work.Why = fleet.Stopping, true, "drain: retire"
	})
	item("unplaced", func(f *fleet.WorkFacts) {
		f.Work.State, f.Owner = fleet.Pending, nil
		f.Counts = map[fleet.Code]int{"insufficient_slots": 3, "cordoned": 1, "missing_label": 3}
	})
	item("to be placed", func(f *fleet.WorkFacts) { f.Work.State, f.Owner, f.Fit = fleet.Pending, nil, 2 })
	for _, tc := range []struct {
		what   string
		change func(*fleet.TakeoverCase)
	}{
		{"host gone", func(c *fleet.TakeoverCase) { c.Work.Movable = false }},
		{"to be taken over", func(*fleet.TakeoverCase) {}},
		{"held by the brake", func(c *fleet.TakeoverCase) { c.Brakes = brakes.Brakes }},
		{"flapping", func(c *fleet.TakeoverCase) { c.Recent = []time.Time{t0, t0, t0} }},
		{"owner may come back", func(c *fleet.TakeoverCase) { c.Owner.Lease.Over = time.Second }},
	} {
		c := lapsed()
		tc.change(&c)
		d, _ := fleet.JudgeTakeover(c, fleet.TakeoverRules{}, fleet.Bucket{}, t0)
		f := fleet.WorkFacts{Work: c.Work, Owner: &c.Owner, Takeover: &d, Fit: 2}
		show("work: "+tc.what, fleet.WhyWork(f, t0))
		if d.Action == fleet.Move {
			f.Fit, f.Counts = 0, map[fleet.Code]int{"insufficient_slots": 3, "missing_label": 1}
			show("work: "+tc.what+", and fits nowhere", fleet.WhyWork(f, t0))
		}
	}
	item("taken over, and done", func(f *fleet.WorkFacts) {
		f.Work.State, f.Work.Owner, f.Work.Token, f.Work.TakenFrom, f.Work.Takeovers = fleet.Failed, "n2", 2, "n1", 1
		f.Work.ExitCode, f.Work.Result, f.Work.EndedAt = 3, "out of memory", t0.Add(-90*time.Second)
	})
	item("owner unknown", func(f *fleet.WorkFacts) { f.Owner = nil })
	golden(t, "why.txt", b.String())
}
