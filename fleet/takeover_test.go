package fleet_test

import (
	"testing"
	"time"

	"github.com/tenurehq/tenure/fleet"
)

// lapsed is movable work running on a node whose lease is over for long.
func lapsed() fleet.TakeoverCase {
	return fleet.TakeoverCase{
		Work: movable(work("w", "n1", fleet.Running)),
		Owner: with(good("n1"), func(n *fleet.Node) {
			n.Liveness, n.Since = fleet.Suspect, t0.Add(-time.Minute)
			n.Lease = fleet.Lease{State: fleet.LeaseLapsed, Token: 7, Over: 30 * time.Second}
		}),
	}
}

func TestJudgeTakeover(t *testing.T) {
	t.Parallel()
	engaged := silentBrake()
	engaged.LetsGo = 4 * time.Minute
	elsewhere, off, readiness := engaged, engaged, engaged
	elsewhere.Domain = "zone=a"
	off.Engaged = false
	readiness.Code, readiness.Reason = fleet.CodeNotReady, "db"
	for _, tc := range []struct {
		what   string
		change func(*fleet.TakeoverCase)
		action fleet.Action
		code   fleet.Code
		until  time.Duration // 0: none
	}{
		{"movable and lapsed", func(*fleet.TakeoverCase) {}, fleet.Move, "", 0},
		{"released", func(c *fleet.TakeoverCase) { c.Owner.Lease.State = fleet.LeaseReleased }, fleet.Move, "", 0},
		{"record cleaned away", func(c *fleet.TakeoverCase) { c.Owner.Lease = fleet.Lease{State: fleet.LeaseNone} }, fleet.Move, "", 0},
		{"heard, but lapsed", func(c *fleet.TakeoverCase) { c.Owner.Liveness = fleet.Alive }, fleet.Move, "", 0},
		{"silent, but holding", func(c *fleet.TakeoverCase) {
			c.Owner.Lease = fleet.Lease{State: fleet.LeaseHeld, Token: 7, Remaining: time.Second}
		}, fleet.Hold, "lease_held", time.Second},
		{"revoked, not over", func(c *fleet.TakeoverCase) {
			c.Owner.Lease = fleet.Lease{State: fleet.LeaseRevoked, Token: 7, Remaining: 9 * time.Second}
		}, fleet.Hold, "lease_held", 9 * time.Second},
		{"lease not read", func(c *fleet.TakeoverCase) { c.Owner.Lease = fleet.Lease{} }, fleet.Hold, "lease_held", 0},
		{"just over", func(c *fleet.TakeoverCase) { c.Owner.Lease.Over = 4999 * time.Millisecond }, fleet.Hold, "lease_recent", time.Millisecond},
		{"over for the wait", func(c *fleet.TakeoverCase) { c.Owner.Lease.Over = 5 * time.Second }, fleet.Move, "", 0},
		{"pinned", func(c *fleet.TakeoverCase) { c.Work.Movable = false }, fleet.Hold, "host_gone", 0},
		{"pinned, and an operator asks", func(c *fleet.TakeoverCase) { c.Work.Movable, c.Operator = false, true }, fleet.Hold, "host_gone", 0},
		{"placed", func(c *fleet.TakeoverCase) { c.Work.State = fleet.Placed }, fleet.Move, "", 0},
		{"stopping to move", func(c *fleet.TakeoverCase) { c.Work.State, c.Work.Moving = fleet.Stopping, true }, fleet.Move, "", 0},
		{"stopping to end", func(c *fleet.TakeoverCase) { c.Work.State = fleet.Stopping }, fleet.End, "", 0},
		{"stopping, ended with the lease", func(c *fleet.TakeoverCase) {
			c.Work.State, c.Work.Movable, c.Work.OnLoss = fleet.Stopping, false, fleet.Stop
		}, fleet.End, "", 0},
		{"stopping, kept alive", func(c *fleet.TakeoverCase) { c.Work.State, c.Work.Movable = fleet.Stopping, false }, fleet.Hold, "host_gone", 0},
		{"ended", func(c *fleet.TakeoverCase) { c.Work.State = fleet.Succeeded }, fleet.Hold, "wrong_state", 0},
		{"pending", func(c *fleet.TakeoverCase) { c.Work.State = fleet.Pending }, fleet.Hold, "wrong_state", 0},
		{"of another", func(c *fleet.TakeoverCase) { c.Work.Owner = "n2" }, fleet.Hold, "not_owner", 0},
		{"observer is new", func(c *fleet.TakeoverCase) { c.Observing = true }, fleet.Hold, "observing", 0},
		{"node is observed", func(c *fleet.TakeoverCase) { c.Owner.Liveness = fleet.Observing }, fleet.Hold, "observing", 0},
		{"brake", func(c *fleet.TakeoverCase) { c.Brakes = []fleet.BrakeState{engaged} }, fleet.Hold, "brake", 4 * time.Minute},
		{"brake, for one that is heard", func(c *fleet.TakeoverCase) {
			c.Brakes, c.Owner.Liveness = []fleet.BrakeState{engaged}, fleet.Alive
		}, fleet.Hold, "brake", 4 * time.Minute},
		{"brake, stopping", func(c *fleet.TakeoverCase) { c.Brakes, c.Work.State = []fleet.BrakeState{engaged}, fleet.Stopping }, fleet.Hold, "brake", 4 * time.Minute},
		{"brake elsewhere, let go, or of readiness", func(c *fleet.TakeoverCase) { c.Brakes = []fleet.BrakeState{elsewhere, off, readiness} }, fleet.Move, "", 0},
		{"an operator does not get round the brake", func(c *fleet.TakeoverCase) { c.Brakes, c.Operator = []fleet.BrakeState{engaged}, true }, fleet.Hold, "brake", 4 * time.Minute},
	} {
		c := lapsed()
		tc.change(&c)
		d, b := fleet.JudgeTakeover(c, fleet.TakeoverRules{}, fleet.Bucket{}, t0)
		var until time.Time
		if tc.until != 0 {
			until = t0.Add(tc.until)
		}
		if d.Action != tc.action || d.Code != tc.code || !d.Until.Equal(until) || d.Text == "" {
			t.Errorf("%s: got %+v, want %s %q until %v", tc.what, d, tc.action, tc.code, until)
		}
		if taken := b != (fleet.Bucket{}); taken != (d.Action == fleet.Move && !c.Operator) {
			t.Errorf("%s: got the bucket changed %v", tc.what, taken)
		}
	}
}

// C69 c: after some takeovers in the window the item needs an operator, or a long
// back-off.
func TestTakeoverC69(t *testing.T) {
	t.Parallel()
	c := lapsed()
	moved := 0
	var held fleet.Decision
	now := t0
	for range 6 { // six losses in ten minutes
		d, _ := fleet.JudgeTakeover(c, fleet.TakeoverRules{}, fleet.Bucket{}, now)
		if d.Action == fleet.Move {
			moved++
			c.Recent = append(c.Recent, now)
		} else {
			held = d
		}
		now = now.Add(100 * time.Second)
	}
	if moved != 3 || held.Code != fleet.CodeFlapping {
		t.Errorf("got %d takeovers, then %+v, want 3, then flapping", moved, held)
	}
	contains(t, "text", held.Text, "3 times within 30m", "operator")
	c.Operator = true
	if d, _ := fleet.JudgeTakeover(c, fleet.TakeoverRules{}, fleet.Bucket{}, now); d.Action != fleet.Move {
		t.Errorf("an operator asks: got %+v, want move", d)
	}
	c.Operator = false
	if d, _ := fleet.JudgeTakeover(c, fleet.TakeoverRules{}, fleet.Bucket{}, held.Until); d.Action != fleet.Move {
		t.Errorf("after the back-off: got %+v, want move", d)
	}
}

// Many items of one lost node are taken over at the rate, and none is forgotten.
func TestTakeoverRate(t *testing.T) {
	t.Parallel()
	rules := fleet.TakeoverRules{Rate: fleet.Rate{Burst: 5, Every: time.Second}}
	var b fleet.Bucket
	now, rounds, left := t0, 0, 40
	for left > 0 {
		var until time.Time
		for range left {
			d, after := fleet.JudgeTakeover(lapsed(), rules, b, now)
			b = after
			if d.Action == fleet.Move {
				left--
			} else if d.Code != fleet.CodeRateLimited || !d.Until.After(now) {
				t.Fatalf("got %+v, want rate_limited until later", d)
			} else {
				until = d.Until
			}
		}
		if left > 0 {
			now = until
		}
		rounds++
	}
	if got := now.Sub(t0); got != 35*time.Second {
		t.Errorf("40 items: got %v in %d rounds, want 35 s", got, rounds)
	}
}

func TestJudgeReturn(t *testing.T) {
	t.Parallel()
	taken := func(change func(*fleet.Work)) fleet.Work {
		w := movable(work("w", "n2", fleet.Running))
		w.TakenFrom, w.Takeovers, w.OnReturn = "n1", 1, fleet.KeepOriginal
		w.Request = fleet.Request{Exclude: []string{"n1"}, Resources: fleet.Resources{"slots": 1}}
		change(&w)
		return w
	}
	for _, tc := range []struct {
		what   string
		work   fleet.Work
		node   fleet.Node
		action fleet.Action
		code   fleet.Code
	}{
		{"keep-original", taken(func(*fleet.Work) {}), good("n1"), fleet.Move, ""},
		{"keep-replacement", taken(func(w *fleet.Work) { w.OnReturn = fleet.KeepReplacement }), good("n1"), fleet.Hold, "not_owner"},
		{"by default", taken(func(w *fleet.Work) { w.OnReturn = "" }), good("n1"), fleet.Hold, "not_owner"},
		{"another node", taken(func(*fleet.Work) {}), good("n3"), fleet.Hold, "not_owner"},
		{"its own already", taken(func(w *fleet.Work) { w.Owner = "n1" }), good("n1"), fleet.Hold, "not_owner"},
		{"never taken", taken(func(w *fleet.Work) { w.TakenFrom = "" }), good("n1"), fleet.Hold, "not_owner"},
		{"moving already", taken(func(w *fleet.Work) { w.State = fleet.Stopping }), good("n1"), fleet.Hold, "wrong_state"},
		{"ended", taken(func(w *fleet.Work) { w.State = fleet.Failed }), good("n1"), fleet.Hold, "wrong_state"},
		{"not eligible", taken(func(*fleet.Work) {}), with(good("n1"), func(n *fleet.Node) { n.Flapping = true }), fleet.Hold, "flapping"},
		{"no room", taken(func(*fleet.Work) {}), with(good("n1"), func(n *fleet.Node) { n.Reserved = fleet.Resources{"slots": 40} }), fleet.Hold, "insufficient_slots"},
	} {
		d := fleet.JudgeReturn(tc.work, tc.node, t0, fleet.Conditions{})
		if d.Action != tc.action || d.Code != tc.code || d.Text == "" {
			t.Errorf("%s: got %+v, want %s %q", tc.what, d, tc.action, tc.code)
		}
		if len(tc.work.Request.Exclude) != 1 {
			t.Errorf("%s: the request was changed", tc.what)
		}
	}
}

func TestTakeoverRules(t *testing.T) {
	t.Parallel()
	refused(t, "defaults", fleet.TakeoverRules{}.Check(), "")
	for field, r := range map[string]fleet.TakeoverRules{
		"takeover wait":  {Wait: -1},
		"takeover burst": {Rate: fleet.Rate{Every: time.Second}},
		"takeover every": {Rate: fleet.Rate{Burst: 1, Every: -1}},
		"flap times":     {Flap: fleet.FlapRule{Times: 1, Window: 1, Quiet: 1}},
	} {
		refused(t, field, r.Check(), field)
	}
}
