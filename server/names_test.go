package server

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/registry"
)

func (b *bed) submitSlots(id string, n int64) answered {
	return b.send(http.MethodPost, "/v1/work", api.SubmitRequest{Actor: "test", Spec: fleet.Spec{ID: id, Command: []string{"true"}, Request: fleet.Request{Resources: fleet.Resources{"slots": n}}}})
}

// TestSameNameNewMachine (C54): n1 leaves with three of four slots used and is back
// as another machine within a second, at once or after a restart of the control
// plane. Its work was of the old machine and ended with it, so four are placed; what
// the old incarnation still says is refused.
func TestSameNameNewMachine(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			t.Parallel()
			b := newBed(t, quick(), HTTPConfig{})
			facts := fleet.Facts{Capacity: fleet.Resources{"slots": 4}}
			old := b.newAgent("n1", "old", facts)
			for i := range 3 {
				if a := b.submitSlots(fmt.Sprint("old", i), 1); a.status != http.StatusOK && a.status != http.StatusCreated {
					t.Fatalf("submit: %d %s", a.status, a.body)
				}
			}
			old.stop = func() {}
			old.goodbye(b)
			if restart {
				b.end()
				b.replace()
				b.run()
				old.home.Store(b)
			}
			now := b.newAgent("n1", "new", facts)
			now.start()
			// The new machine has none of it, and says so.
			for i := range 3 {
				w := b.work(fmt.Sprint("old", i))
				if v, err := b.reg.Apply(t.Context(), []registry.Change{{Work: w.ID, Node: "n1", Token: w.Token, Lease: now.token, State: fleet.Failed, Text: "it is not here"}}); err != nil || v[0].Code != "" {
					t.Fatal(v, err)
				}
			}
			for i := range 4 {
				if a := b.submitSlots(fmt.Sprint("new", i), 1); a.status != http.StatusOK && a.status != http.StatusCreated {
					t.Fatalf("placement %d: %d %s", i, a.status, a.body)
				}
			}
			if p := b.submitSlots("over", 1); p.status != http.StatusServiceUnavailable || p.problem(t).Code != string(fleet.CodeNoCapacity) {
				t.Errorf("the fifth: %d %s, want no_capacity", p.status, p.body)
			}
			// Now the old one is heard again, late.
			ghost := old.token
			reply, err := old.beat(t.Context())
			if err != nil || reply.Code != fleet.CodeReplaced {
				t.Errorf("beat of the old incarnation: %+v, %v; want incarnation_replaced", reply, err)
			}
			v, err := b.reg.Apply(t.Context(), []registry.Change{{Work: "new0", Node: "n1", Token: 1, Lease: ghost, State: fleet.Succeeded}})
			if err != nil || v[0].Code == "" {
				t.Errorf("report of the old incarnation: %+v, %v; want it refused", v, err)
			}
			if w := b.work("new0"); w.State != fleet.Placed {
				t.Errorf("after it: %+v", w)
			}
			eventually(t, "cached and fresh agree", func() bool {
				shown := must[api.Node](b, http.MethodGet, "/v1/nodes/n1", nil)
				cached := b.show("n1")
				return shown.Incarnation == "new" && cached.Incarnation == "new" && cached.Free("slots") == 0 && shown.Reserved["slots"] == 4
			})
		})
	}
}

// TestExactlyFull (C56): 3 × 40 places for 121 items: 120 are placed and one waits,
// with the reason for each node; a place that is given back is used at once. A node
// whose renewals are late by half a TTL keeps its items; one that is late by one and a
// half loses them, and each has one owner or waits for one.
func TestExactlyFull(t *testing.T) {
	t.Parallel()
	cfg := braking()
	b := newBed(t, cfg, HTTPConfig{})
	agents := b.crowd("n", 3, func(int) fleet.Facts { return fleet.Facts{Capacity: fleet.Resources{"slots": 40}} })
	var all sync.WaitGroup
	for i := range 121 {
		all.Go(func() {
			spec := fleet.Spec{ID: fmt.Sprintf("w%03d", i), Command: []string{"true"}, Movable: true, Request: fleet.Request{Resources: fleet.Resources{"slots": 1}}}
			if _, _, err := b.Submit(t.Context(), spec, "test", true); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	owners := func() (owned map[string]int, pending []string) {
		works, err := b.reg.Works(t.Context(), registry.Filter{})
		if err != nil {
			t.Fatal(err)
		}
		owned = map[string]int{}
		for _, w := range works {
			switch {
			case w.State == fleet.Pending:
				pending = append(pending, w.ID)
			case w.State.Owned():
				owned[w.Owner]++
			}
		}
		return owned, pending
	}
	owned, pending := owners()
	if len(pending) != 1 || owned["n0000"] != 40 || owned["n0001"] != 40 || owned["n0002"] != 40 {
		t.Fatalf("got %v and %v pending, want 40 each and one", owned, pending)
	}
	why := must[api.WorkWhy](b, http.MethodGet, "/v1/why/work/"+pending[0], nil)
	if text := fmt.Sprintf("%+v", why); strings.Count(text, "insufficient_slots") < 3 {
		t.Errorf("why: %s, want a reason for each node", text)
	}
	finished, err := b.reg.Works(t.Context(), registry.Filter{Owner: "n0001", Limit: 1})
	if err != nil || len(finished) != 1 {
		t.Fatal(finished, err)
	}
	if v, err := b.reg.Apply(t.Context(), []registry.Change{{Work: finished[0].ID, Node: "n0001", Token: finished[0].Token, Lease: agents[1].token, State: fleet.Succeeded}}); err != nil || v[0].Code != "" {
		t.Fatal(v, err)
	}
	eventually(t, "the place is used", func() bool { return b.work(pending[0]).Owner == "n0001" })

	b.observed()
	before := b.takeovers()
	late := func(by time.Duration) {
		agents[2].home.Store(nil)
		wait(by)
		agents[2].home.Store(b)
	}
	late(cfg.NodeTTL / 2)
	throughout(t, cfg.NodeTTL, func() {
		if n := b.takeovers(); n != before {
			t.Fatalf("late by half a TTL, and %d takeovers", n-before)
		}
	})
	more := b.enter("n0003", fleet.Facts{Capacity: fleet.Resources{"slots": 40}})
	late(cfg.NodeTTL * 3 / 2)
	eventually(t, "each has one owner", func() bool {
		owned, pending := owners()
		return len(pending) == 0 && owned["n0000"] == 40 && owned["n0001"] == 40 && owned["n0002"]+owned[more.id] == 40
	})
}

// TestSkewedSenders (C53): a node's own clock decides nothing: each lives while it is
// heard, and is suspect by the timeout after that.
func TestSkewedSenders(t *testing.T) {
	t.Parallel()
	b := newBed(t, quick(), HTTPConfig{})
	skews := map[string]time.Time{"ahead": time.Now().AddDate(0, 0, 1), "behind": time.Now().AddDate(0, 0, -1), "zero": {}}
	nodes := map[string]*node{}
	for id, at := range skews {
		nodes[id] = b.join(id)
		nodes[id].beat.SentAt = at
	}
	b.observed()
	var last time.Time
	for range 8 {
		for _, n := range nodes {
			n.next()
		}
		last = time.Now()
		wait(b.cfg.Interval / 2)
		for id := range skews {
			if l := b.show(id).Liveness; l == fleet.Suspect {
				t.Fatalf("%s is %s while it is heard", id, l)
			}
		}
	}
	bad := b.send(http.MethodPost, beatPath, `{"node":"ahead","incarnation":"i-ahead","seq":99,"sent_at":"yesterday","facts_version":1,"orders":0}`)
	if bad.status != http.StatusBadRequest {
		t.Errorf("a malformed time: %d %s, want 400", bad.status, bad.body)
	}
	eventually(t, "all are suspect", func() bool { return b.liveness()[fleet.Suspect] == len(skews) })
	if took := time.Since(last); took < b.cfg.suspect()-b.cfg.Interval {
		t.Errorf("suspect %s after the last beat", took)
	}
}

// TestFinishedAndTakenAtOnce (C48): an owner reports the end of its items over the
// interface at the moment at which the reconciler takes them. Each ends once or moves
// once, and what comes later is refused with who has it.
func TestFinishedAndTakenAtOnce(t *testing.T) {
	both(t, func(t *testing.T, kind registry.Dialect) {
		d := newDatabase(t, kind)
		b, r := d.manual(braking())
		r.cfg.Takeover.Rate = fleet.Rate{Burst: 1000, Every: time.Millisecond}
		const size = 40 // the registry is tested with 1000
		facts := fleet.Facts{Capacity: fleet.Resources{"slots": size}}
		n1 := b.newAgent("n1", "i1", facts)
		n1.patience = 1 << 30
		n1.start()
		for i := range size {
			b.give(fmt.Sprintf("w%04d", i), "n1")
		}
		for range 8 {
			b.enter(fmt.Sprintf("n%d", 2+len(b.Nodes())), facts)
		}
		b.observed()
		n1.stop()
		ended := make([]registry.Verdict, size)
		var all sync.WaitGroup
		d.lapse(t, fleet.LeaseName("n1"))
		var lapsed []registry.Owned
		eventually(t, "over", func() bool {
			var err error
			lapsed, err = b.reg.Lapsed(t.Context())
			return err == nil && len(lapsed) == size && lapsed[0].Lease.Over > b.cfg.Takeover.Wait
		})
		kept, err := b.reg.Brake(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := r.restoreBrake(kept); err != nil {
			t.Fatal(err)
		}
		// It wins the lease back while the reconciler is under way.
		all.Go(func() {
			if err := r.takeovers(t.Context(), lapsed, b.Nodes()); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			eventually(t, "the first is taken", func() bool { return b.takeovers() > 0 })
			n1.acquire(b)
			n1.start()
			for i := range ended {
				all.Go(func() {
					v, err := b.reg.Apply(t.Context(), []registry.Change{{Work: fmt.Sprintf("w%04d", i), Node: "n1", Token: 1, Lease: n1.token, State: fleet.Succeeded}})
					if err != nil {
						t.Error(err)
						return
					}
					ended[i] = v[0]
				})
			}
		})
		all.Wait()
		moved := 0
		for i, v := range ended {
			w := b.work(fmt.Sprintf("w%04d", i))
			switch {
			case v.Code == "" && w.State == fleet.Succeeded && w.Token == 1 && w.Owner == "n1":
			case slices.Contains([]fleet.Code{fleet.CodeNotOwner, fleet.CodeStaleToken}, v.Code) && w.State == fleet.Placed && w.Token == 2 && w.Owner != "n1":
				moved++
			default:
				t.Errorf("report got %q (%s), and the item is %s of %s with token %s", v.Code, v.Text, w.State, w.Owner, w.Token)
			}
		}
		if n := b.takeovers(); n != moved {
			t.Errorf("%d takeovers are recorded, %d were made", n, moved)
		}
		t.Logf("of %d races %d moved", size, moved)
	})
}
