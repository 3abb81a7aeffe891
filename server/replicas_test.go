package server

import (
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/registry"
)

// TestTwoReplicas: nodes that beat to one replica only are alive at the other as
// well, which places work on them and shows the first one's changes as they happen.
// Nodes that go from one to the other and back are never suspect at either.
func TestTwoReplicas(t *testing.T) {
	both(t, func(t *testing.T, kind registry.Dialect) {
		cfg := braking()
		d := newDatabase(t, kind)
		first, second := d.replica(cfg), d.replica(cfg)
		next := second.stream("/v1/events/stream?kind=" + string(fleet.EventCordoned))
		loyal := first.crowd("loyal", 6, nil)
		fickle := first.crowd("fickle", 6, nil)
		unsuspected := func() {
			for _, b := range []*bed{first, second} {
				for _, n := range b.Nodes() {
					if n.Liveness == fleet.Suspect {
						t.Fatalf("%s is suspect, silent for %s", n.ID, n.Age)
					}
				}
			}
		}
		eventually(t, "known to the second", func() bool { return len(second.Nodes()) == 12 })
		second.observed()
		throughout(t, 2*first.cfg.suspect(), unsuspected)
		// Asked authoritatively, the second says the same.
		nodes, err := second.authoritative(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes {
			if n.Liveness != fleet.Alive && n.Liveness != fleet.Late {
				t.Errorf("%s is %s at the replica that it does not beat to", n.ID, n.Liveness)
			}
		}
		w, _, err := second.Submit(t.Context(), fleet.Spec{ID: "w", Command: []string{"true"}, Request: fleet.Request{Node: loyal[0].id}}, "test", false)
		if err != nil || w.Owner != loyal[0].id {
			t.Errorf("placed by the replica that the node does not beat to: %+v, %v", w, err)
		}
		must[api.Node](first, "POST", "/v1/nodes/"+loyal[1].id+"/cordon", api.CordonRequest{Actor: "ann", Reason: "look"})
		if e := next(); e.Node != loyal[1].id || e.Actor != "ann" {
			t.Errorf("stream of the second: got %+v, want the first one's cordon", e)
		}

		turn := time.NewTicker(cfg.Interval * 3 / 4)
		defer turn.Stop()
		for round := range 12 {
			for _, a := range fickle {
				a.home.Store([]*bed{first, second}[round%2])
			}
			throughout(t, cfg.Interval/2, unsuspected)
			<-turn.C
		}
		if e := first.ledger(fleet.EventSuspect); len(e) != 0 {
			t.Errorf("events %+v", e)
		}
		for _, a := range append(loyal, fickle...) {
			a.mu.Lock()
			if a.losses != 0 || len(a.codes) != 1 {
				t.Errorf("%s: %d terms lost, replies %v; want none but yes", a.id, a.losses, a.codes)
			}
			a.mu.Unlock()
		}

		// Who dies is suspect at both, within the bound and no sooner.
		hush(loyal[0])
		died := time.Now()
		eventually(t, "suspect at both", func() bool {
			return first.show(loyal[0].id).Liveness == fleet.Suspect && second.show(loyal[0].id).Liveness == fleet.Suspect
		})
		if took := time.Since(died); took < first.cfg.suspect()-first.cfg.Interval {
			t.Errorf("suspect after %s", took)
		}
	})
}
