package fleet_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fleet"
)

const (
	tick    = 5 * time.Second
	timeout = 30 * time.Second
)

// world is a fleet as an honest detector shows it, step by step.
type world struct {
	t       *testing.T
	brake   *fleet.Brake
	nodes   []fleet.Node
	silent  map[string]bool
	now     time.Time
	health  fleet.Health
	changes []fleet.BrakeState
}

func newWorld(t *testing.T, cfg fleet.BrakeConfig) *world {
	t.Helper()
	b, err := fleet.NewBrake(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, brake: b, silent: map[string]bool{}, now: t0, health: fleet.Health{OK: true}}
}

// join adds n nodes in a zone; "" is none.
func (w *world) join(n int, zone string) *world {
	for range n {
		w.nodes = append(w.nodes, with(good(fmt.Sprintf("n%04d", len(w.nodes))), func(n *fleet.Node) {
			n.Facts.Labels = nil
			if zone != "" {
				n.Facts.Labels = map[string]string{"zone": zone}
			}
			n.Since, n.WasReady = w.now, true
		}))
	}
	return w
}

// hush and hear are of the nodes with numbers from to below to.
func (w *world) hush(from, to int) {
	for i := from; i < to; i++ {
		w.silent[w.nodes[i].ID] = true
	}
}

func (w *world) hear(from, to int) {
	for i := from; i < to; i++ {
		delete(w.silent, w.nodes[i].ID)
	}
}

func (w *world) notReady(from, to int, reason string) {
	for i := from; i < to; i++ {
		w.nodes[i].Facts.Readiness, w.nodes[i].NotReady = fleet.Readiness{Reason: reason}, w.now
	}
}

func (w *world) ready(from, to int) {
	for i := from; i < to; i++ {
		w.nodes[i].Facts.Readiness, w.nodes[i].NotReady = fleet.Readiness{Ready: true}, time.Time{}
	}
}

// remove takes nodes out of the registry.
func (w *world) remove(from, to int) { w.nodes = slices.Delete(w.nodes, from, to) }

// run lets time pass and returns what changed in it.
func (w *world) run(d time.Duration) []fleet.BrakeState {
	w.t.Helper()
	first := len(w.changes)
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(tick)
		for i := range w.nodes {
			switch n := &w.nodes[i]; {
			case !w.silent[n.ID]:
				if n.Liveness != fleet.Alive {
					n.Since = w.now
				}
				n.Liveness, n.Age, n.Gone = fleet.Alive, tick, time.Time{}
			default:
				n.Age += tick
				if n.Age > timeout && n.Liveness != fleet.Suspect {
					n.Liveness, n.Since = fleet.Suspect, w.now
				}
			}
		}
		w.step()
	}
	return w.changes[first:]
}

func (w *world) step() {
	w.changes = append(w.changes, w.brake.Step(w.nodes, w.now, w.health)...)
}

// engaged returns the domains that are engaged.
func (w *world) engaged() []string {
	var all []string
	for _, s := range w.brake.States() {
		if s.Engaged {
			all = append(all, s.Domain)
		}
	}
	return all
}

// held counts the nodes from which the brake keeps work from being taken.
func (w *world) held() int {
	n := 0
	for _, node := range w.nodes {
		if slices.ContainsFunc(w.brake.States(), func(s fleet.BrakeState) bool { return s.HoldsWork(node) }) {
			n++
		}
	}
	return n
}

func (w *world) want(what string, domains ...string) {
	w.t.Helper()
	if got := w.engaged(); !slices.Equal(got, domains) {
		w.t.Errorf("%s: got engaged %v, want %v", what, got, domains)
	}
}

// C66: 499 of 500 fall silent at once. All of it is held before a lease of 60 s can
// be over, with the figures; it lets go after 10 min of proven health, and then
// holds no more.
func TestBrakeAlmostAllSilent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fleet.BrakeConfig{}).join(500, "")
	w.run(time.Minute)
	w.want("before")
	w.hush(1, 500)
	changed := w.run(40 * time.Second)
	w.want("after 40 s", "all")
	if len(changed) != 1 || changed[0].Down != 499 || changed[0].Of != 500 || changed[0].Code != fleet.CodeStaleHeartbeat || w.held() != 500 {
		t.Fatalf("got %+v, %d held, want 499 of 500 and all held", changed, w.held())
	}
	contains(t, "text", changed[0].Text, "499 of 500", "observer is doubted", "no work is taken", "fewer than 275", "10m more")
	since := changed[0].Since

	changed = w.run(15 * time.Minute)
	if len(changed) != 1 || changed[0].Engaged || changed[0].Let != fleet.LetTimeout {
		t.Fatalf("got %+v, want it to let go by timeout", changed)
	}
	if held := changed[0].LetAt.Sub(since); held != 10*time.Minute {
		t.Errorf("held for %v, want 10 min", held)
	}
	if changed = w.run(90 * time.Minute); len(changed) != 0 || w.held() != 0 {
		t.Errorf("later: got %+v, %d held, want nothing", changed, w.held())
	}
	equal(t, "known", w.brake.Known(), map[string]int{"all": 1})
}

// Nodes that come back let it go as soon as all are there, or one window after
// fewer are out than would engage it.
func TestBrakeRecovery(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fleet.BrakeConfig{}).join(100, "")
	w.hush(0, 100)
	w.run(time.Minute)
	w.want("cut off", "all")
	w.hear(0, 60)
	if changed := w.run(25 * time.Second); len(changed) != 0 {
		t.Errorf("40 out for 25 s: got %+v, want it to hold", changed)
	}
	w.hear(60, 100)
	changed := w.run(tick)
	if len(changed) != 1 || changed[0].Let != fleet.LetRecovery || changed[0].Down != 0 {
		t.Errorf("all back: got %+v, want recovery", changed)
	}
	if w.run(tick); len(w.brake.States()) != 0 {
		t.Errorf("all back: got %+v, want no state", w.brake.States())
	}

	w.hush(0, 60)
	w.run(time.Minute)
	w.want("60 of 100", "all")
	w.hear(0, 30)
	changed = w.run(5 * time.Minute)
	if len(changed) != 1 || changed[0].Let != fleet.LetRecovery || changed[0].Down != 30 {
		t.Errorf("30 of 100 stay out: got %+v, want recovery", changed)
	}
}

// One zone of three: its work is held, that of others is not.
func TestBrakeOneZone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fleet.BrakeConfig{}).join(100, "a").join(100, "b").join(100, "c").join(20, "")
	w.run(time.Minute)
	equal(t, "known", w.brake.Known(), map[string]int{"all": 320, "zone=a": 100, "zone=b": 100, "zone=c": 100})
	w.hush(100, 200)
	w.hush(0, 2)
	w.run(time.Minute)
	w.want("zone b", "zone=b")
	if w.held() != 100 {
		t.Errorf("got %d held, want the 100 of zone b", w.held())
	}
	w.hush(2, 100)
	w.run(time.Minute)
	w.want("zones a and b", "zone=a", "zone=b") // not all: zone b fell in an earlier window
}

// Nodes that are lost one after the other are no event, however many.
func TestBrakeSlowCreep(t *testing.T) {
	t.Parallel()
	for _, every := range []time.Duration{tick, 40 * time.Second, 10 * time.Minute} {
		w := newWorld(t, fleet.BrakeConfig{}).join(100, "b")
		for i := range 90 {
			w.hush(i, i+1)
			w.run(every)
		}
		if len(w.changes) != 0 {
			t.Errorf("one each %v: got %+v, want nothing", every, w.changes)
		}
	}
}

// What says goodbye or is removed leaves the domain, and engages nothing.
func TestBrakeScaleIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fleet.BrakeConfig{}).join(100, "b")
	w.run(time.Minute)
	for i := range 30 {
		w.nodes[i].Lease = fleet.Lease{State: fleet.LeaseReleased, Token: 7}
	}
	w.hush(0, 30)
	w.run(2 * time.Minute)
	w.remove(90, 100)
	w.run(time.Minute)
	if len(w.changes) != 0 {
		t.Fatalf("40 of 100 left: got %+v, want nothing", w.changes)
	}
	equal(t, "known", w.brake.Known(), map[string]int{"all": 60, "zone=b": 60})
	w.hush(30, 62)
	w.run(time.Minute)
	w.want("32 of 60")
	w.hear(30, 62)
	w.run(time.Minute)
	w.hush(30, 63)
	w.run(time.Minute)
	w.want("33 of 60", "all", "zone=b")

	// All but one go within one window: with goodbye, or after they were drained.
	for what, leave := range map[string]func(*fleet.Node){
		"goodbye": func(n *fleet.Node) { n.Lease = fleet.Lease{State: fleet.LeaseReleased, Token: 7} },
		"drained": func(n *fleet.Node) { n.Intent.Drain = &fleet.Drain{Done: t0} },
	} {
		w = newWorld(t, fleet.BrakeConfig{}).join(100, "")
		w.run(time.Minute)
		for i := range 99 {
			leave(&w.nodes[i])
		}
		w.hush(0, 99)
		w.run(time.Minute)
		w.want(what)
		equal(t, what, w.brake.Known(), map[string]int{"all": 1})
	}
}

// 300 of 300 report one failed dependency: they stay eligible until they recover,
// or until the time is over.
func TestBrakeSameDependency(t *testing.T) {
	t.Parallel()
	eligible := func(w *world) (n int) {
		for _, node := range w.nodes {
			if fleet.Eligible(node, fleet.Conditions{Brakes: w.brake.States()}) {
				n++
			}
		}
		return n
	}
	w := newWorld(t, fleet.BrakeConfig{}).join(300, "")
	w.run(time.Minute)
	w.notReady(0, 300, "db")
	changed := w.run(tick)
	if len(changed) != 1 || changed[0].Code != fleet.CodeNotReady || changed[0].Reason != "db" || changed[0].Down != 300 || changed[0].Of != 300 {
		t.Fatalf("got %+v, want 300 of 300 not ready for db", changed)
	}
	contains(t, "text", changed[0].Text, "300 of 300", "(db)", "count as ready", "what they share is doubted")
	if eligible(w) != 300 || w.held() != 0 {
		t.Errorf("got %d eligible and %d held, want 300 and none", eligible(w), w.held())
	}
	w.ready(0, 300)
	if changed = w.run(tick); len(changed) != 1 || changed[0].Let != fleet.LetRecovery {
		t.Errorf("ready again: got %+v, want recovery", changed)
	}

	w.notReady(0, 300, "db")
	w.run(11 * time.Minute)
	w.want("after 10 min")
	if eligible(w) != 0 {
		t.Errorf("after 10 min: got %d eligible, want none", eligible(w))
	}

	for what, change := range map[string]func(w *world){
		"reasons differ": func(w *world) {
			for i := range 300 {
				w.notReady(i, i+1, fmt.Sprint("disk", i%3))
			}
		},
		"no reason is no common one": func(w *world) { w.notReady(0, 300, "") },
		"none ever was ready": func(w *world) {
			w.notReady(0, 300, "starting")
			for i := range w.nodes {
				w.nodes[i].WasReady = false
			}
		},
		"half": func(w *world) { w.notReady(0, 164, "db") },
	} {
		w := newWorld(t, fleet.BrakeConfig{}).join(300, "")
		w.run(time.Minute)
		change(w)
		w.run(time.Minute)
		w.want(what)
	}
}

// Small fleets that lose a node are never held, nor is one of two ever.
func TestBrakeSmallFleets(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		size, lost int
		held       bool
	}{{1, 1, false}, {2, 1, false}, {2, 2, false}, {3, 1, false}, {3, 2, false}, {3, 3, true}, {4, 2, false}, {4, 3, true}, {5, 3, true}, {6, 3, false}, {20, 10, false}, {20, 11, true}, {100, 54, false}, {100, 55, true}} {
		for _, zone := range []string{"", "b"} {
			w := newWorld(t, fleet.BrakeConfig{}).join(tc.size, zone)
			w.run(time.Minute)
			w.hush(0, tc.lost)
			w.run(time.Minute)
			if held := w.held() > 0; held != tc.held {
				t.Errorf("%d of %d in zone %q: got held %v, want %v", tc.lost, tc.size, zone, held, tc.held)
			}
		}
	}
}

// C68: kill and restart under new ids, without goodbye. The domain is what was
// heard within an hour, and what is gone for good does not hold for ever.
func TestBrakeC68(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fleet.BrakeConfig{}).join(65, "b")
	w.run(time.Minute)
	for g := range 4 {
		w.hush(65*g, 65*(g+1))
		w.join(65, "b")
		w.run(2 * time.Minute)
	}
	equal(t, "known", w.brake.Known(), map[string]int{"all": 325, "zone=b": 325})
	w.hush(260, 286) // 40 % of 65
	w.run(15 * time.Minute)
	w.want("15 min later")
	w.run(time.Hour)
	w.want("an hour later")
	if len(w.brake.States()) != 0 {
		t.Errorf("an hour later: got %+v, want no state", w.brake.States())
	}
	equal(t, "known", w.brake.Known(), map[string]int{"all": 39, "zone=b": 39})
	w.hush(286, 286+22)
	w.run(time.Minute)
	w.want("22 of the 39 that are left", "all", "zone=b")
}

// An operator's word lets go at once. What was said to be gone engages nothing
// until it is back and falls silent again.
func TestBrakeRelease(t *testing.T) {
	t.Parallel()
	for _, how := range []fleet.Let{fleet.LetConfirmed, fleet.LetReleased} {
		w := newWorld(t, fleet.BrakeConfig{}).join(100, "b").join(100, "c")
		w.hush(0, 100)
		w.run(time.Minute)
		w.want("zone b", "zone=b")
		by := fleet.Mark{Actor: "anna", Reason: "the rack burns", At: w.now}
		if got := w.brake.Release("zone=c", how, by); len(got) != 0 {
			t.Errorf("another zone: got %+v, want nothing", got)
		}
		got := w.brake.Release("zone=b", how, by)
		if len(got) != 1 || got[0].Let != how || got[0].By != by || w.held() != 0 {
			t.Fatalf("got %+v, %d held, want it to let go", got, w.held())
		}
		contains(t, "text", got[0].Text, string(how), `"anna": "the rack burns"`)
		if changed := w.run(30 * time.Minute); len(changed) != 0 {
			t.Errorf("later: got %+v, want nothing", changed)
		}
		states := w.brake.States()
		if len(states) != 1 || states[0].Engaged || states[0].Let != how || states[0].Down != 100 {
			t.Errorf("later: got %+v, want the word to stand while they are out", states)
		}
		w.hear(0, 100)
		w.run(time.Minute)
		if len(w.brake.States()) != 0 {
			t.Errorf("back: got %+v, want no state", w.brake.States())
		}
		w.hush(0, 100)
		w.run(time.Minute)
		w.want("silent again", "zone=b")
	}
}

// Let go while the rest of an event still comes in: what is gone is not counted
// again, and a further loss of most of the rest is a new event.
func TestBrakeReleaseInTheMiddle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fleet.BrakeConfig{}).join(100, "")
	w.hush(0, 60)
	w.run(40 * time.Second)
	w.want("60 of 100", "all")
	w.hush(60, 80)
	w.brake.Release(fleet.DomainAll, fleet.LetConfirmed, fleet.Mark{Actor: "anna", Reason: "x", At: w.now})
	w.run(time.Minute)
	w.want("20 of the 40 left")
	w.hush(80, 100)
	w.hear(60, 80)
	w.run(10 * time.Second)
	w.hush(60, 80)
	changed := w.run(time.Minute)
	if len(changed) == 0 || changed[len(changed)-1].Of != 40 || changed[len(changed)-1].Down != 40 {
		t.Errorf("the other 40: got %+v, want 40 of 40", changed)
	}
}

// What an operator confirmed is not doubted by an event that follows at once.
func TestBrakeConfirmedIsNotDoubted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fleet.BrakeConfig{}).join(100, "")
	w.run(time.Minute)
	w.notReady(0, 60, "db")
	w.run(tick)
	w.want("60 of 100", "all")
	w.brake.Release(fleet.DomainAll, fleet.LetConfirmed, fleet.Mark{Actor: "anna", Reason: "x", At: w.now})
	w.run(tick)
	w.notReady(60, 100, "db")
	w.run(tick)
	w.want("the other 40", "all")
	s := w.brake.States()[0]
	if s.Covers(w.nodes[0]) || !s.Covers(w.nodes[99]) || s.Of != 40 {
		t.Errorf("got %+v, which doubts the first %v and the last %v, want the last 40 only", s, s.Covers(w.nodes[0]), s.Covers(w.nodes[99]))
	}
}

// Only health that is proven counts, and only without a break.
func TestBrakeHealth(t *testing.T) {
	t.Parallel()
	cut := func(heard int) *world {
		w := newWorld(t, fleet.BrakeConfig{}).join(100, "")
		w.hush(0, 100-heard)
		w.run(time.Minute)
		w.want("cut off", "all")
		return w
	}

	w := cut(0)
	w.run(2 * time.Hour)
	w.want("silence of everybody proves nothing", "all")
	if s := w.brake.States()[0]; s.Proven != 0 || s.Of != 100 {
		t.Errorf("got %+v, want no health, and nobody forgotten", s)
	}
	w.join(1, "")
	w.run(11 * time.Minute)
	w.want("10 min after one node is heard")

	w = cut(1)
	w.health = fleet.Health{Text: "store slow"}
	w.run(2 * time.Hour)
	w.want("the store does not answer", "all")
	contains(t, "text", w.brake.States()[0].Text, "store slow")
	w.health = fleet.Health{OK: true}
	w.run(9 * time.Minute)
	w.health = fleet.Health{}
	w.run(tick)
	w.health = fleet.Health{OK: true}
	w.run(9 * time.Minute)
	w.want("a break after 9 min", "all")
	w.run(2 * time.Minute)
	w.want("10 min without one")

	w = cut(1)
	w.now = w.now.Add(time.Hour) // stopped with its timers, and not aware of it
	w.step()
	w.want("a pause of the observer", "all")
}

// C66: the control plane comes back and has heard nobody. While it observes nothing
// engages; when it has waited for the timeout in vain, all is held.
func TestBrakeAfterRestart(t *testing.T) {
	t.Parallel()
	back := func() *world {
		w := newWorld(t, fleet.BrakeConfig{}).join(100, "")
		for i := range w.nodes {
			w.nodes[i].Liveness = fleet.Observing
		}
		return w
	}
	w := back()
	w.step()
	w.run(5 * time.Minute)
	if len(w.changes) != 0 {
		t.Errorf("all report: got %+v, want nothing", w.changes)
	}
	w = back()
	w.hush(0, 100)
	w.step()
	w.want("observing")
	w.run(time.Minute)
	w.want("cut from all nodes", "all")
	if w.held() != 100 {
		t.Errorf("got %d held, want all", w.held())
	}
}

// Another observer takes the brake over, one that has watched all along or one that
// has just begun: what was engaged is held until that one has proven its own
// health, what an operator confirmed stays so, and nothing lets go because nobody
// has been heard yet.
func TestBrakeRestore(t *testing.T) {
	t.Parallel()
	for name, fresh := range map[string]bool{"watched all along": false, "just begun": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, fleet.BrakeConfig{}).join(100, "")
			w.run(time.Minute)
			w.hush(0, 60)
			w.run(2 * time.Minute)
			w.want("60 of 100", "all")
			w.handOver(fresh)
			w.step()
			w.want("handed over", "all")
			w.run(9 * time.Minute)
			w.want("before its own health is proven", "all")
			w.brake.Release("all", fleet.LetConfirmed, fleet.Mark{Actor: "a", Reason: "b", At: w.now})
			w.run(time.Minute)
			w.handOver(fresh)
			w.step()
			w.run(2 * time.Minute)
			w.want("confirmed before")
			if s := w.brake.States(); len(s) != 1 || s[0].Let != fleet.LetConfirmed || s[0].By.Actor != "a" {
				t.Errorf("got %+v, want that the confirmation is known", s)
			}
			w.hush(60, 90)
			w.run(time.Minute)
			w.want("30 of the other 40", "all")
			w.handOver(fresh)
			w.hear(0, 100)
			w.run(time.Minute)
			w.want("all are back")
			if s := w.brake.States(); len(s) != 0 {
				t.Errorf("got %+v, want nothing", s)
			}
		})
	}
}

// Nodes that were gone long before this observer began engage nothing, and are no
// part of the fleet (C68).
func TestBrakeOldGhosts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fleet.BrakeConfig{}).join(195, "").join(65, "")
	w.hush(0, 195)
	for i := range 195 {
		w.nodes[i].Liveness, w.nodes[i].Age, w.nodes[i].Gone = fleet.Observing, 0, t0.Add(-2*time.Hour)
	}
	w.run(2 * time.Minute)
	w.want("ghosts")
	if got := w.brake.Known()["all"]; got != 65 {
		t.Errorf("got %d known, want 65", got)
	}
	w.hush(195, 195+40)
	w.run(time.Minute)
	w.want("40 of the 65", "all")
}

// handOver gives the brake to another observer, which may know the nodes only from
// what the one before it wrote down.
func (w *world) handOver(fresh bool) {
	w.t.Helper()
	states := w.brake.States()
	b, err := fleet.NewBrake(fleet.BrakeConfig{})
	if err != nil {
		w.t.Fatal(err)
	}
	b.Restore(states)
	w.brake = b
	for i := range w.nodes {
		if n := &w.nodes[i]; fresh {
			if n.Liveness == fleet.Suspect && n.Gone.IsZero() {
				n.Gone = n.Since
			}
			n.Liveness, n.Since, n.Age = fleet.Observing, w.now, 0
		}
	}
}

func TestBrakeConfig(t *testing.T) {
	t.Parallel()
	refused(t, "defaults", fleet.BrakeConfig{}.Check(), "")
	for field, c := range map[string]fleet.BrakeConfig{
		"brake share":   {Share: 1.1},
		"brake least":   {Least: 2},
		"brake window":  {Window: -1},
		"brake known":   {Known: time.Second},
		"brake release": {Release: time.Second},
		"brake label":   {Label: "a b"},
	} {
		refused(t, field, c.Check(), field)
		if _, err := fleet.NewBrake(c); err == nil {
			t.Errorf("%s: got a brake", field)
		}
	}
	w := newWorld(t, fleet.BrakeConfig{Share: 0.2, Least: 5, Label: "rack"}).join(20, "b")
	w.hush(0, 5)
	w.run(time.Minute)
	w.want("a fifth, and another label", "all")
}

// However nodes come and go: what engages has the figures for it, fewer than three
// never do, and once things are quiet and the observer well, nothing holds for
// longer than the release.
func TestBrakeAnyHistory(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 3))
	for round := range 20 {
		w := newWorld(t, fleet.BrakeConfig{}).join(1+r.IntN(40), "").join(r.IntN(20), "a").join(r.IntN(20), "b")
		for range 30 {
			from := r.IntN(len(w.nodes))
			to := from + 1 + r.IntN(len(w.nodes)-from)
			switch r.IntN(7) {
			case 0, 1:
				w.hush(from, to)
			case 2:
				w.hear(from, to)
			case 3:
				w.notReady(from, to, "db")
			case 4:
				w.ready(from, to)
			case 5:
				w.health.OK = !w.health.OK
			case 6:
				if e := w.engaged(); len(e) > 0 {
					w.brake.Release(e[0], fleet.LetConfirmed, fleet.Mark{Actor: "a", Reason: "b", At: w.now})
				}
			}
			for _, s := range w.run(time.Duration(1+r.IntN(20)) * tick) {
				if s.Engaged && (s.Down < 3 || float64(s.Down) < 0.55*float64(s.Of)-1e-9 || s.Down > s.Of) {
					t.Fatalf("seed %d round %d: engaged with %+v", seed, round, s)
				}
				if s.Text == "" || !s.Engaged && s.Let == "" {
					t.Fatalf("seed %d round %d: got %+v, want text, and how it let go", seed, round, s)
				}
			}
			if len(w.nodes) < 3 && len(w.engaged()) > 0 {
				t.Fatalf("seed %d round %d: a fleet of %d is held", seed, round, len(w.nodes))
			}
		}
		w.health.OK = true
		w.hear(0, 1)
		w.run(timeout + tick)
		w.run(10*time.Minute + tick)
		if e := w.engaged(); len(e) > 0 {
			t.Fatalf("seed %d round %d: held for ever: %+v", seed, round, w.brake.States())
		}
	}
}

func BenchmarkBrakeStep(b *testing.B) {
	brake, err := fleet.NewBrake(fleet.BrakeConfig{})
	if err != nil {
		b.Fatal(err)
	}
	nodes := make([]fleet.Node, 50_000)
	for i := range nodes {
		nodes[i] = good(fmt.Sprintf("n%05d", i))
	}
	for b.Loop() {
		brake.Step(nodes, t0, fleet.Health{OK: true})
	}
}
