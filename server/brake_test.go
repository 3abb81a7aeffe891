package server

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/registry"
)

// braking is a configuration under which a brake engages and lets go within
// seconds, in the normal form: a node is suspect after 1.5 s, and its lease is over
// after 3 s.
func braking() Config {
	unit := sized(500*time.Millisecond, 3*time.Second) // hundreds of nodes on a small machine
	return Config{Interval: unit, NodeTTL: 6 * unit, Reconcile: unit / 2, Brake: fleet.BrakeConfig{Release: 12 * unit}}
}

// zoned spreads agents over three zones.
func zoned(i int) fleet.Facts {
	return fleet.Facts{Labels: map[string]string{"zone": string(rune('a' + i%3))}}
}

func (b *bed) brake() api.Brake { return must[api.Brake](b, http.MethodGet, "/v1/brake", nil) }

// engaged returns the domains whose brake is engaged.
func (b *bed) engaged() []string {
	var all []string
	for _, d := range b.brake().Domains {
		if d.Engaged {
			all = append(all, d.Domain)
		}
	}
	return all
}

func (b *bed) order(what, domain string) {
	b.t.Helper()
	must[api.Brake](b, http.MethodPost, "/v1/brake/"+what, api.BrakeRequest{Domain: domain, Actor: "ann", Reason: "it is real"})
}

// TestBrakeHoldsAndLetsGo: all but one of a fleet fall silent at once. What would
// be taken from them is withheld and named, and it is let go by recovery, by an
// operator, or when the observer's health has been proven for long enough.
func TestBrakeHoldsAndLetsGo(t *testing.T) {
	t.Parallel()
	for _, how := range []fleet.Let{fleet.LetRecovery, fleet.LetConfirmed, fleet.LetReleased, fleet.LetTimeout} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			cfg := braking()
			if how != fleet.LetTimeout {
				cfg.Brake.Release = time.Hour
			}
			b := newBed(t, cfg, HTTPConfig{})
			agents := b.crowd("n", sized(30, 500), zoned)
			b.give("w1", agents[0].id)
			b.give("w2", agents[1].id)
			b.observed()
			gone := agents[:len(agents)-1]
			hush(gone...)
			silent := time.Now()
			eventually(t, "engaged", func() bool { return slices.Contains(b.engaged(), "all") })
			held := func() map[string]bool {
				works := map[string]bool{}
				for _, e := range b.ledger(fleet.EventWithheld) {
					if e.Code == fleet.CodeBrake && strings.Contains(e.Text, "fell silent") {
						works[e.Work] = true
					}
				}
				return works
			}
			eventually(t, "withheld", func() bool { works := held(); return works["w1"] && works["w2"] })
			shown := b.brake()
			named := map[string]bool{}
			for _, d := range shown.Domains {
				for _, w := range d.Withheld {
					if w.Action == "takeover" {
						named[w.Work] = true
					}
				}
				if d.Domain == "all" && (d.Down < len(gone)*55/100 || d.Of != len(agents)) {
					t.Errorf("shown with %d of %d, want the figures", d.Down, d.Of)
				}
			}
			if !shown.Engaged || !named["w1"] || !named["w2"] {
				t.Errorf("got %+v, want both takeovers named", shown)
			}
			if n := b.takeovers(); n != 0 {
				t.Fatalf("%d takeovers while the brake was engaged", n)
			}
			switch how {
			case fleet.LetRecovery:
				for i, a := range gone {
					if i%2 == 0 {
						back := b.newAgent(a.id, "again", a.facts)
						back.start()
					}
				}
				eventually(t, "let go", func() bool { return !b.brake().Engaged })
			case fleet.LetTimeout:
				eventually(t, "let go", func() bool { return !b.brake().Engaged })
				if took := time.Since(silent); took < cfg.Brake.Release {
					t.Errorf("let go after %s, want not before %s of proven health", took, cfg.Brake.Release)
				}
			default:
				throughout(t, cfg.NodeTTL, func() {
					if b.takeovers() != 0 {
						t.Fatal("taken over without a word")
					}
				})
				for _, d := range b.engaged() {
					b.order(map[fleet.Let]string{fleet.LetConfirmed: "confirm", fleet.LetReleased: "release"}[how], d)
				}
				if d := b.brake(); d.Engaged || how == fleet.LetConfirmed && (len(d.Domains) == 0 || d.Domains[0].Confirmed == nil || d.Domains[0].Confirmed.Actor != "ann") {
					t.Errorf("got %+v, want it let go at once, with who said so", d)
				}
			}
			last := agents[len(agents)-1].id
			if how != fleet.LetRecovery {
				eventually(t, "its consequences follow", func() bool { return b.work("w1").Owner == last && b.work("w2").Owner == last })
			} else if w := b.work("w1"); w.Owner != agents[0].id || w.Token != 1 {
				t.Errorf("after recovery: %+v, want that it stayed", w)
			}
			words := map[fleet.Let]string{fleet.LetRecovery: "are back", fleet.LetConfirmed: "confirmed", fleet.LetReleased: "released", fleet.LetTimeout: "proven health"}[how]
			eventually(t, "the ledger says how it was let go", func() bool {
				return slices.ContainsFunc(b.ledger(fleet.EventBrakeOff), func(e fleet.Event) bool { return strings.Contains(e.Text, words) })
			})
		})
	}
}

// TestBrakeOfAZone: one zone falls silent. Its work is withheld, a node of another
// zone that dies then loses its own.
func TestBrakeOfAZone(t *testing.T) {
	t.Parallel()
	cfg := braking()
	cfg.Brake.Release = time.Hour
	b := newBed(t, cfg, HTTPConfig{})
	agents := b.crowd("n", sized(30, 300), zoned)
	b.give("inside", agents[1].id)
	b.give("outside", agents[0].id)
	b.observed()
	var zone []*agent
	for i := 1; i < len(agents); i += 3 {
		zone = append(zone, agents[i])
	}
	hush(append(zone, agents[0])...)
	eventually(t, "the other zone's work moved", func() bool { return b.work("outside").Token == 2 })
	if got := b.engaged(); !slices.Equal(got, []string{"zone=b"}) {
		t.Errorf("got %v engaged, want zone=b alone", got)
	}
	throughout(t, cfg.NodeTTL, func() {
		if w := b.work("inside"); w.Token != 1 {
			t.Fatalf("got %+v, want that nothing is taken from the silent zone", w)
		}
	})
}

// TestBrakeLetsThrough: losses that are no event of the observer's are not held:
// a slow creep, a fleet that is made smaller with goodbyes or removed, and small
// fleets that lose one.
func TestBrakeLetsThrough(t *testing.T) {
	t.Parallel()
	cfg := braking()
	cfg.Brake.Release = time.Hour
	unheld := func(t *testing.T, b *bed) {
		t.Helper()
		if e := b.ledger(fleet.EventBrakeOn); len(e) != 0 {
			t.Errorf("the brake engaged: %+v", e)
		}
	}
	t.Run("creep", func(t *testing.T) {
		t.Parallel()
		b := newBed(t, cfg, HTTPConfig{})
		agents := b.crowd("n", 12, nil)
		b.observed()
		tick := time.NewTicker(b.cfg.Brake.Window / 2)
		defer tick.Stop()
		for i, a := range agents[:9] {
			b.give(fmt.Sprintf("w%d", i), a.id)
			hush(a)
			<-tick.C
		}
		for i := range 9 {
			eventually(t, "moved", func() bool { w := b.work(fmt.Sprintf("w%d", i)); return w.Token > 1 && w.Owner > agents[8].id })
		}
		unheld(t, b)
	})
	t.Run("scale in", func(t *testing.T) {
		t.Parallel()
		b := newBed(t, cfg, HTTPConfig{})
		agents := b.crowd("n", 30, zoned)
		b.give("w", agents[28].id)
		b.observed()
		for _, a := range agents[:24] {
			a.goodbye(b)
		}
		for _, a := range agents[24:27] {
			must[api.Node](b, http.MethodPost, "/v1/nodes/"+a.id+"/drain", api.DrainRequest{Actor: "ann", Reason: "fewer"})
		}
		eventually(t, "drained", func() bool { return b.show(agents[26].id).Intent.State() == fleet.Drained })
		hush(agents[24:27]...)
		eventually(t, "the drained are silent", func() bool { return b.show(agents[26].id).Liveness == fleet.Suspect })
		hush(agents[28]) // and one of the three that are left dies
		eventually(t, "moved", func() bool { return b.work("w").Token == 2 })
		unheld(t, b)
	})
	for size := 1; size <= 3; size++ {
		t.Run(fmt.Sprintf("fleet of %d", size), func(t *testing.T) {
			t.Parallel()
			b := newBed(t, cfg, HTTPConfig{})
			agents := b.crowd("n", size, nil)
			b.give("w", agents[0].id)
			b.observed()
			hush(agents[0])
			if size == 1 {
				eventually(t, "nobody to take it", func() bool {
					e := b.ledger(fleet.EventWithheld)
					return len(e) > 0 && e[len(e)-1].Code == fleet.CodeNoCapacity
				})
				b.enter("new", fleet.Facts{})
			}
			eventually(t, "moved", func() bool { return b.work("w").Token == 2 })
			unheld(t, b)
		})
	}
}

// TestBrakeOnReadiness: all nodes report the same failed dependency. They count as
// ready, as they last were, and new work is still placed.
func TestBrakeOnReadiness(t *testing.T) {
	t.Parallel()
	cfg := braking()
	cfg.Brake.Release = time.Hour
	b := newBed(t, cfg, HTTPConfig{})
	agents := b.crowd("n", sized(30, 300), nil)
	b.observed()
	for _, a := range agents {
		a.change(func(f *fleet.Facts) {
			f.Readiness = fleet.Readiness{Reason: "dns_down", Text: "no name server answers"}
		})
	}
	eventually(t, "engaged", func() bool { return len(b.engaged()) > 0 })
	eventually(t, "all said so", func() bool {
		for _, n := range b.Nodes() {
			if n.Facts.Readiness.Ready {
				return false
			}
		}
		return true
	})
	if _, _, err := b.Submit(t.Context(), fleet.Spec{ID: "w", Command: []string{"true"}}, "test", false); err != nil {
		t.Errorf("placement with every node doubted: %v", err)
	}
	shown := b.brake()
	if d := shown.Domains[0]; d.Code != fleet.CodeNotReady || d.Reason != "dns_down" || len(d.Withheld) != len(agents) || d.Withheld[0].Action != "exclusion" {
		t.Errorf("got %s %s with %d withheld, want the exclusion of all %d", d.Code, d.Reason, len(d.Withheld), len(agents))
	}
	agents[0].change(func(f *fleet.Facts) { f.Readiness = fleet.Readiness{Reason: "disk_full"} })
	eventually(t, "a trouble of its own counts", func() bool {
		n := b.wireNode(new(b.show(agents[0].id)))
		return len(n.Exclusions) > 0 && n.Exclusions[0].Code == fleet.CodeNotReady
	})
	for _, a := range agents {
		a.change(func(f *fleet.Facts) { f.Readiness = fleet.Readiness{Ready: true} })
	}
	eventually(t, "let go", func() bool { return !b.brake().Engaged })
}

// TestBrakeForgetsGhosts (C68): nodes are killed and started again under new names,
// again and again, and then the fleet shrinks for good. What counts is who was heard
// lately; and a control plane that is started again does not count the ghosts.
func TestBrakeForgetsGhosts(t *testing.T) {
	t.Parallel()
	cfg := braking()
	cfg.Brake.Known, cfg.Brake.Release = 4*time.Second, 5*time.Second
	b := newBed(t, cfg, HTTPConfig{})
	size := sized(15, 65)
	var agents []*agent
	for round := range 4 {
		hush(agents...)
		agents = b.crowd(fmt.Sprintf("r%d-", round), size, nil)
	}
	known := func() int {
		kept, err := b.reg.Brake(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		states, err := brakeStates(kept)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range states {
			if s.Domain == fleet.DomainAll && s.Engaged {
				return s.Of
			}
		}
		return 0
	}
	eventually(t, "let go", func() bool {
		return !b.brake().Engaged && b.liveness()[fleet.Suspect] == 3*size
	})
	for _, a := range agents[:size*4/10] {
		b.give("of-"+a.id, a.id)
	}
	hush(agents[:size*4/10]...)
	eventually(t, "work of the lost moved", func() bool { return b.takeovers() == size*4/10 })

	b.end()
	b.replace()
	b.run()
	for _, a := range agents[size*4/10:] {
		a.home.Store(b)
	}
	eventually(t, "ghosts are suspect", func() bool { return b.liveness()[fleet.Suspect] == 3*size+size*4/10 })
	throughout(t, b.cfg.Brake.Window, func() {
		if b.brake().Engaged {
			t.Fatalf("the ghosts engaged the brake, of %d", known())
		}
	})
	hush(agents[size*4/10:]...)
	eventually(t, "engaged", func() bool { return known() > 0 })
	if of := known(); of > size {
		t.Errorf("engaged with %d known, want at most the %d that were heard lately", of, size)
	}
}

// TestBrakeSurvivesItsReplica: the replica that reconciles is replaced while the
// brake is engaged, by one that has watched along or by one that has just begun.
// What is held stays held, and what an operator confirmed is not held again.
func TestBrakeSurvivesItsReplica(t *testing.T) {
	t.Parallel()
	for name, fresh := range map[string]bool{"one that has watched": false, "one that has just begun": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := braking()
			cfg.Brake.Release = time.Hour
			d := newDatabase(t, registry.SQLite)
			b := d.replica(cfg)
			eventually(t, "reconciles", b.active.Load)
			agents := b.crowd("n", 30, nil)
			var next *bed
			start := func() {
				next = d.replica(cfg)
				for _, a := range agents[20:] {
					a.home.Store(next)
				}
			}
			change := func() { // which replica reconciles
				if fresh {
					start()
				}
				b.end()
				eventually(t, "the other reconciles", next.active.Load)
				b = next
			}
			b.give("w", agents[0].id)
			b.observed()
			if !fresh {
				start()
				next.observed()
			}
			hush(agents[:20]...)
			eventually(t, "withheld", func() bool { return len(b.ledger(fleet.EventWithheld)) > 0 })
			change()
			b.observed()
			throughout(t, 2*cfg.NodeTTL, func() {
				if w := b.work("w"); w.Token != 1 || !b.brake().Engaged {
					t.Fatalf("after the change: %+v, brake %+v; want it held", w, b.brake())
				}
			})
			if !fresh {
				start()
				next.observed()
			}
			b.order("confirm", "all")
			eventually(t, "moved", func() bool { return b.work("w").Token == 2 })
			change()
			b.observed()
			on := len(b.ledger(fleet.EventBrakeOn))
			throughout(t, 2*b.cfg.Brake.Window, func() {
				if b.brake().Engaged {
					t.Fatal("what was confirmed is held again")
				}
			})
			if n := len(b.ledger(fleet.EventBrakeOn)); n != on {
				t.Errorf("%d brakes engaged after the confirmation", n-on)
			}
			if s := *b.brakes.Load(); len(s) == 0 || s[0].By.Actor != "ann" {
				t.Errorf("got %+v, want that the confirmation is known", s)
			}
		})
	}
}
