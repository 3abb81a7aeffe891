package registry_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/registry"
)

func TestWorkLife(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		lease := b.node("n1", 4)
		v, err := b.Submit(b.ctx, spec("w", false), "alice")
		b.code("", v, err)
		b.is("w", fleet.Pending, "", 0)
		v, err = b.Place(b.ctx, registry.Placement{Work: "w", Node: "n1", Lease: lease, Actor: "r1"})
		b.code("", v, err)
		if v.Owner != "n1" || v.Current != 1 || v.Event.Kind != fleet.EventPlaced || v.Event.Seq == 0 {
			t.Errorf("placed: got %+v", v)
		}
		// The reply was lost, and the placement is sent again.
		v, err = b.Place(b.ctx, registry.Placement{Work: "w", Node: "n1", Lease: lease, Actor: "r1"})
		b.code("", v, err)
		b.is("w", fleet.Placed, "n1", 1)

		b.code("", b.report("w", "n1", 1, lease, fleet.Running), nil)
		vs, err := b.Apply(b.ctx, []registry.Change{{Work: "w", Node: "n1", Token: 1, Lease: lease, State: fleet.Running, Progress: "7"}})
		must(t, err)
		b.code("", vs[0], nil)
		if w := b.is("w", fleet.Running, "n1", 1); w.Progress != "7" || w.ProgressAt.IsZero() || w.Started.IsZero() {
			t.Errorf("running: got %+v", w)
		}
		for range 2 { // the second is a retry after a lost reply
			vs, err = b.Apply(b.ctx, []registry.Change{{Work: "w", Node: "n1", Token: 1, Lease: lease, State: fleet.Failed, ExitCode: 3, Text: "exit 3"}})
			must(t, err)
			b.code("", vs[0], nil)
		}
		if w := b.is("w", fleet.Failed, "n1", 1); w.ExitCode != 3 || w.Result != "exit 3" || w.EndedAt.IsZero() {
			t.Errorf("failed: got %+v", w)
		}
		b.code(fleet.CodeWrongState, b.report("w", "n1", 1, lease, fleet.Succeeded), nil)
		b.code(fleet.CodeNoSuchWork, b.report("x", "n1", 1, lease, fleet.Succeeded), nil)
		want := []fleet.EventKind{fleet.EventSubmitted, fleet.EventPlaced, fleet.EventStarted, fleet.EventEnded}
		if got := b.kinds(registry.EventFilter{Work: "w"}); !slices.Equal(got, want) {
			t.Errorf("events: got %v, want %v", got, want)
		}
		if got := b.kinds(registry.EventFilter{Work: "w", Last: true, Limit: 2}); !slices.Equal(got, want[2:]) {
			t.Errorf("last events: got %v, want %v", got, want[2:])
		}
		if n := b.Refusals(); n[fleet.CodeWrongState] != 1 || n[fleet.CodeNoSuchWork] != 1 {
			t.Errorf("refusals: got %v", n)
		}
	})
}

func TestSubmitTwice(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		lease := b.node("n1", 4)
		for range 2 {
			v, err := b.SubmitTo(b.ctx, spec("w", false), registry.Placement{Node: "n1", Lease: lease})
			b.code("", v, err)
			if v.Owner != "n1" || v.Current != 1 {
				t.Errorf("got owner %q and token %s, want n1 and 1", v.Owner, v.Current)
			}
		}
		again := spec("w", false)
		again.Env, again.Request.Labels = map[string]string{}, map[string]string{} // the same, in other words
		v, err := b.Submit(b.ctx, again, "")
		b.code("", v, err)
		other := spec("w", false)
		other.Dir = "/"
		v, err = b.Submit(b.ctx, other, "")
		b.code(fleet.CodeWorkExists, v, err)
		v, err = b.SubmitTo(b.ctx, other, registry.Placement{Node: "n1", Lease: lease})
		b.code(fleet.CodeWorkExists, v, err)
		b.is("w", fleet.Placed, "n1", 1)
		// Stored and placed, or nothing.
		v, err = b.SubmitTo(b.ctx, spec("v", false), registry.Placement{Node: "n9", Lease: 1})
		b.code(fleet.CodeNoSuchNode, v, err)
		if _, found, err := b.Work(b.ctx, "v"); found || err != nil {
			t.Errorf("refused work: found %t, %v, want nothing", found, err)
		}
	})
}

// TestForget: an item that has ended is forgotten, and its name begins above its token.
func TestForget(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		lease := b.node("n1", 4)
		ann := registry.Order{Actor: "ann", Reason: "again"}
		v, err := b.Forget(b.ctx, "w", ann)
		b.code(fleet.CodeNoSuchWork, v, err)
		b.run("w", "n1", lease, false)
		v, err = b.Forget(b.ctx, "w", ann)
		b.code(fleet.CodeWrongState, v, err)
		b.exec("UPDATE fleet_work SET token = 7")
		b.code("", b.report("w", "n1", 7, lease, fleet.Succeeded), nil)
		v, err = b.Forget(b.ctx, "w", ann)
		b.code("", v, err)
		if v.Event.Kind != fleet.EventForgotten || v.Event.Token != 7 || v.Event.Actor != "ann" {
			t.Errorf("got event %+v, want that ann removed it at token 7", v.Event)
		}
		v, err = b.SubmitTo(b.ctx, spec("w", true), registry.Placement{Node: "n1", Lease: lease})
		b.code("", v, err)
		b.is("w", fleet.Placed, "n1", 8)
	})
}

func TestPlaceRefusals(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		lease := b.node("n1", 1)
		for _, id := range []string{"w", "full"} {
			v, err := b.Submit(b.ctx, spec(id, false), "")
			b.code("", v, err)
		}
		place := func(work, node string, token, lease int64) (registry.Verdict, error) {
			return b.Place(b.ctx, registry.Placement{Work: work, Token: fenceToken(token), Node: node, Lease: fenceToken(lease)})
		}
		expect := func(want fleet.Code, work, node string, token, lease int64) {
			t.Helper()
			v, err := place(work, node, token, lease)
			b.code(want, v, err)
		}
		expect(fleet.CodeNoSuchWork, "x", "n1", 0, int64(lease))
		expect(fleet.CodeNoSuchNode, "w", "n2", 0, int64(lease))
		expect(fleet.CodeStaleToken, "w", "n1", 1, int64(lease))
		expect(fleet.CodeStaleToken, "w", "n1", 0, int64(lease)+1)
		expect("", "full", "n1", 0, int64(lease))
		expect("insufficient_slots", "w", "n1", 0, int64(lease))
		expect(fleet.CodeWrongState, "full", "n2", 1, int64(lease))

		b.join("n2", "i1", 9)
		expect(fleet.CodeNoLease, "w", "n2", 0, 1)
		l2 := int64(b.acquire("node/n2"))
		_, v, err := b.SetIntent(b.ctx, "n2", registry.Order{Actor: "a", Reason: "r"}, cordon)
		b.code("", v, err)
		expect(fleet.CodeCordoned, "w", "n2", 0, l2)
		_, v, err = b.SetIntent(b.ctx, "n2", registry.Order{Actor: "a", Reason: "r"}, drain)
		b.code("", v, err)
		expect(fleet.CodeDraining, "w", "n2", 0, l2)
		v, err = b.CompleteDrain(b.ctx, registry.Fence{}, "n2", "")
		b.code("", v, err)
		expect(fleet.CodeDrained, "w", "n2", 0, l2)
		_, v, err = b.SetIntent(b.ctx, "n2", registry.Order{Actor: "a", Reason: "r"}, resumeAll)
		b.code("", v, err)
		must(t, b.leases.Revoke(b.ctx, "node/n2", fenceToken(l2), storeRevocation("why")))
		expect(fleet.CodeLeaseRevoked, "w", "n2", 0, l2)
		b.lapse("node/n2")
		expect(fleet.CodeLeaseLapsed, "w", "n2", 0, l2)
		l2 = int64(b.acquire("node/n2"))
		b.release("node/n2")
		expect(fleet.CodeLeaseReleased, "w", "n2", 0, l2)
		b.is("w", fleet.Pending, "", 0)
	})
}

// 200 placements at once, into 50 places: exactly 50 are made.
func TestNeverOversubscribed(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		const nodes, slots, works = 5, 10, 200
		var leases [nodes]int64
		for i := range nodes {
			leases[i] = int64(b.node(fmt.Sprintf("n%d", i), slots))
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		codes := map[fleet.Code]int{}
		for i := range works {
			wg.Go(func() {
				// Each tries the nodes in an order of its own, as its snapshot may say.
				for k := range nodes {
					n := (i + k) % nodes
					v, err := b.SubmitTo(b.ctx, spec(fmt.Sprintf("w%03d", i), false), registry.Placement{Node: fmt.Sprintf("n%d", n), Lease: fenceToken(leases[n])})
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					codes[v.Code]++
					mu.Unlock()
					if v.Code == "" {
						return
					}
				}
			})
		}
		wg.Wait()
		if made := codes[""]; made != nodes*slots || len(codes) != 2 {
			t.Errorf("got %v, want %d made and the others without room", codes, nodes*slots)
		}
		all, _, err := b.Nodes(b.ctx, 0)
		must(t, err)
		for _, n := range all {
			if n.Reserved["slots"] != slots || n.Work != slots {
				t.Errorf("node %s: got %d reserved by %d items, want %d", n.ID, n.Reserved["slots"], n.Work, slots)
			}
		}
	})
}

// A sweep from one node's view ("running, and not updated for long") touches
// nothing of another node's.
func TestDangerousSweep(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		l1, l2 := b.node("n1", 9), b.node("n2", 9)
		for i := range 5 {
			b.run(fmt.Sprintf("w%d", i), "n1", l1, true)
		}
		before, err := b.Works(b.ctx, registry.Filter{})
		must(t, err)
		for i := range 5 {
			id := fmt.Sprintf("w%d", i)
			for _, state := range []fleet.WorkState{fleet.Failed, fleet.Stopped, fleet.Running} {
				b.code(fleet.CodeNotOwner, b.report(id, "n2", 1, l2, state), nil)
				b.code(fleet.CodeStaleToken, b.report(id, "n1", 1, l1+1, state), nil) // in another's name, by a guess
			}
			v, err := b.Takeover(b.ctx, takeover(id, "n1", 1, l1, "n2", l2)) // the lease of n1 is live
			b.code(fleet.CodeWrongState, v, err)
			v, err = b.Takeover(b.ctx, takeover(id, "n2", 1, l2, "n2", l2))
			b.code(fleet.CodeNotOwner, v, err)
			v, err = b.Takeover(b.ctx, takeover(id, "n1", 1, l1-1, "n2", l2))
			b.code(fleet.CodeStaleToken, v, err)
			v, err = b.Takeover(b.ctx, takeover(id, "n1", 1, 0, "n2", l2))
			b.code(fleet.CodeStaleToken, v, err)
			v, err = b.ReleaseToPending(b.ctx, takeover(id, "n1", 1, l1, "", 0))
			b.code(fleet.CodeWrongState, v, err)
		}
		after, err := b.Works(b.ctx, registry.Filter{})
		must(t, err)
		if !reflect.DeepEqual(before, after) {
			t.Errorf("work: got %+v, want %+v", after, before)
		}
		lapsed, err := b.Lapsed(b.ctx)
		must(t, err)
		if len(lapsed) != 0 {
			t.Errorf("lapsed: got %v, want none", lapsed)
		}
	})
}

func TestTakeover(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		l1, l2 := b.node("n1", 9), b.node("n2", 1)
		b.run("w", "n1", l1, true)
		b.run("pinned", "n1", l1, false)
		b.run("second", "n1", l1, true)
		vs, err := b.Apply(b.ctx, []registry.Change{{Work: "w", Node: "n1", Token: 1, Lease: l1, State: fleet.Running, Progress: "half"}})
		must(t, err)
		b.code("", vs[0], nil)
		b.lapse("node/n1")
		lapsed, err := b.Lapsed(b.ctx)
		must(t, err)
		if len(lapsed) != 3 || lapsed[0].Work.ID != "pinned" || lapsed[0].Lease.State != fleet.LeaseLapsed || lapsed[0].Lease.Token != l1 {
			t.Fatalf("lapsed: got %+v, want the three items of n1", lapsed)
		}
		v, err := b.Takeover(b.ctx, takeover("pinned", "n1", 1, l1, "n2", l2))
		b.code(fleet.CodeHostGone, v, err)
		b.code(fleet.CodeLeaseLapsed, b.report("w", "n1", 1, l1, fleet.Succeeded), nil)
		for range 2 { // the second is a retry after a lost reply
			v, err = b.Takeover(b.ctx, takeover("w", "n1", 1, l1, "n2", l2))
			b.code("", v, err)
		}
		if w := b.is("w", fleet.Placed, "n2", 2); w.TakenFrom != "n1" || w.Takeovers != 1 || w.Progress != "half" || !w.Started.IsZero() {
			t.Errorf("taken over: got %+v", w)
		}
		v, err = b.Takeover(b.ctx, takeover("second", "n1", 1, l1, "n2", l2))
		b.code("insufficient_slots", v, err)
		v, err = b.ReleaseToPending(b.ctx, takeover("second", "n1", 1, l1, "", 0))
		b.code("", v, err)
		b.is("second", fleet.Pending, "n1", 1)

		// The old copy, in every way.
		for _, state := range []fleet.WorkState{fleet.Running, fleet.Succeeded, fleet.Stopped} {
			b.code(fleet.CodeNotOwner, b.report("w", "n1", 1, l1, state), nil)
			b.code(fleet.CodeNotOwner, b.report("second", "n1", 1, l1, state), nil)
		}
		l1 = b.acquire("node/n1")
		b.code(fleet.CodeNotOwner, b.report("w", "n1", 1, l1, fleet.Succeeded), nil)
		b.code(fleet.CodeNotOwner, b.report("second", "n1", 1, l1, fleet.Succeeded), nil)

		b.code("", b.report("w", "n2", 2, l2, fleet.Running), nil)
		must(t, b.MarkRedirected(b.ctx, "w", 2))
		all, err := b.Takeovers(b.ctx, registry.TakeoverFilter{})
		must(t, err)
		if len(all) != 2 || all[0].Work != "w" || all[1].To != "" {
			t.Fatalf("ledger: got %+v, want two takeovers", all)
		}
		k := all[0]
		if k.From != "n1" || k.To != "n2" || k.ToToken != 2 || k.LeaseState != fleet.LeaseLapsed || k.Progress != "half" ||
			k.Lapse.IsZero() || k.Recorded.Before(k.Lapse) || k.Started.Before(k.Recorded) || k.Redirected.Before(k.Started) {
			t.Errorf("ledger: got %+v, want the phases in order", k)
		}
		redirected := k.Redirected
		must(t, b.MarkRedirected(b.ctx, "w", 2))
		v, err = b.Place(b.ctx, registry.Placement{Work: "second", Token: 1, Node: "n1", Lease: l1})
		b.code("", v, err)
		all, err = b.Takeovers(b.ctx, registry.TakeoverFilter{})
		must(t, err)
		if all[0].Redirected != redirected || all[1].To != "n1" || all[1].ToToken != 2 {
			t.Errorf("ledger: got %+v, want the first lookup and the late owner", all)
		}
		events, err := b.Events(b.ctx, registry.EventFilter{Kind: fleet.EventTakeover})
		must(t, err)
		if e, ok := events[0].Fields.(*fleet.Evidence); len(events) != 2 || !ok || e.From != "n1" || e.ToToken != 2 {
			t.Errorf("events: got %+v, want the evidence", events)
		}
		at, found, err := b.Locate(b.ctx, "w")
		must(t, err)
		if !found || at.Work.Owner != "n2" || at.Address != "n2:80" || at.Lease.State != fleet.LeaseHeld || at.Lease.Token != l2 {
			t.Errorf("located: got %+v", at)
		}
	})
}

func TestStopAndMove(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		l1 := b.node("n1", 9)
		o := registry.Order{Actor: "alice", Reason: "upgrade"}
		stop := func(want fleet.Code, id string) {
			t.Helper()
			v, err := b.Stop(b.ctx, id, o)
			b.code(want, v, err)
		}
		move := func(want fleet.Code, id string) {
			t.Helper()
			v, err := b.Move(b.ctx, registry.Fence{}, id, o)
			b.code(want, v, err)
		}
		stop(fleet.CodeNoSuchWork, "x")
		v, err := b.Submit(b.ctx, spec("pending", true), "")
		b.code("", v, err)
		move(fleet.CodeWrongState, "pending")
		stop("", "pending")
		stop("", "pending")
		b.is("pending", fleet.Stopped, "", 0)

		b.run("pinned", "n1", l1, false)
		move(fleet.CodeWrongState, "pinned")
		before, _, err := b.Orders(b.ctx, "n1")
		must(t, err)
		stop("", "pinned")
		stop("", "pinned")
		w := b.is("pinned", fleet.Stopping, "n1", 1)
		after, _, err := b.Orders(b.ctx, "n1")
		must(t, err)
		if w.Why != "upgrade" || after.Revision <= before.Revision || len(after.Work) != 1 || after.Work[0].State != fleet.Stopping {
			t.Errorf("stopping: got %+v and orders %+v after %d", w, after, before.Revision)
		}
		b.code("", b.report("pinned", "n1", 1, l1, fleet.Stopping), nil)
		b.code("", b.report("pinned", "n1", 1, l1, fleet.Stopped), nil)
		b.is("pinned", fleet.Stopped, "n1", 1)
		after, _, err = b.Orders(b.ctx, "n1")
		must(t, err)
		if len(after.Work) != 0 {
			t.Errorf("orders: got %+v, want none", after)
		}

		b.run("moving", "n1", l1, true)
		move("", "moving")
		move("", "moving")
		for range 2 { // the second is a retry after a lost reply
			b.code("", b.report("moving", "n1", 1, l1, fleet.Stopped), nil)
			if w := b.is("moving", fleet.Pending, "n1", 1); !w.Moving {
				t.Error("pending: got not moving, want its last owner excluded")
			}
		}
		l2 := b.node("n2", 9)
		v, err = b.Place(b.ctx, registry.Placement{Work: "moving", Token: 1, Node: "n2", Lease: l2})
		b.code("", v, err)
		if w := b.is("moving", fleet.Placed, "n2", 2); w.Moving || !w.EndedAt.IsZero() {
			t.Errorf("moved: got %+v", w)
		}
		b.code(fleet.CodeNotOwner, b.report("moving", "n1", 1, l1, fleet.Stopped), nil)
		move("", "moving")
		stop("", "moving") // for good
		move(fleet.CodeWrongState, "moving")

		// What was to be stopped for good ends with its node's lease.
		b.lapse("node/n2")
		v, err = b.Takeover(b.ctx, takeover("moving", "n2", 2, l2, "n1", l1))
		b.code(fleet.CodeWrongState, v, err)
		v, err = b.ReleaseToPending(b.ctx, takeover("moving", "n2", 2, l2, "", 0))
		b.code("", v, err)
		b.is("moving", fleet.Stopped, "n2", 2)

		// What ended by itself has ended, though it was to be moved.
		b.run("done", "n1", l1, true)
		move("", "done")
		b.code("", b.report("done", "n1", 1, l1, fleet.Succeeded), nil)
		b.is("done", fleet.Succeeded, "n1", 1)
		stop(fleet.CodeWrongState, "done")
	})
}

// A late report of an earlier assignment to the same node changes nothing.
func TestTokenDecides(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		l := b.node("n1", 9)
		b.run("w", "n1", l, true)
		v, err := b.Move(b.ctx, registry.Fence{}, "w", registry.Order{Actor: "a", Reason: "r"})
		b.code("", v, err)
		b.code("", b.report("w", "n1", 1, l, fleet.Stopped), nil)
		v, err = b.Place(b.ctx, registry.Placement{Work: "w", Token: 1, Node: "n1", Lease: l})
		b.code("", v, err)
		for _, state := range []fleet.WorkState{fleet.Running, fleet.Stopping, fleet.Stopped, fleet.Failed, fleet.Succeeded} {
			b.code(fleet.CodeStaleToken, b.report("w", "n1", 1, l, state), nil)
			b.code(fleet.CodeStaleToken, b.report("w", "n1", 3, l, state), nil)
		}
		b.is("w", fleet.Placed, "n1", 2)
		b.lapse("node/n1")
		l2 := b.node("n2", 9)
		v, err = b.Takeover(b.ctx, takeover("w", "n1", 1, l, "n2", l2))
		b.code(fleet.CodeStaleToken, v, err)
		v, err = b.ReleaseToPending(b.ctx, takeover("w", "n1", 1, l, "", 0))
		b.code(fleet.CodeStaleToken, v, err)
		b.is("w", fleet.Placed, "n1", 2)
	})
}

// The owner's term decides over its reports: live also when revoked, until it
// ends.
func TestLiveTerm(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		progress := func(want fleet.Code, lease int64) {
			t.Helper()
			b.code(want, b.report("w", "n1", 1, fenceToken(lease), fleet.Running), nil)
		}
		l := int64(b.node("n1", 9))
		b.run("w", "n1", fenceToken(l), false)
		progress("", l)
		progress(fleet.CodeStaleToken, l-1)
		progress(fleet.CodeStaleToken, l+1)
		must(t, b.leases.Revoke(b.ctx, "node/n1", fenceToken(l), storeRevocation("why")))
		progress("", l)
		b.lapse("node/n1")
		progress(fleet.CodeLeaseLapsed, l)
		old := l
		l = int64(b.acquire("node/n1"))
		progress(fleet.CodeStaleToken, old)
		progress("", l)
		b.release("node/n1")
		progress(fleet.CodeLeaseReleased, l)
		l = int64(b.acquire("node/n1"))
		must(t, b.leases.RaiseFloor(b.ctx, "node/n1", fenceToken(l)))
		progress(fleet.CodeLeaseRevoked, l)
		lapsed, err := b.Lapsed(b.ctx)
		must(t, err)
		if len(lapsed) != 0 {
			t.Errorf("lapsed: got %+v, want none: the holder may still act", lapsed)
		}
		b.exec("DELETE FROM tenure_lease")
		progress(fleet.CodeNoLease, l)
		lapsed, err = b.Lapsed(b.ctx)
		must(t, err)
		if len(lapsed) != 1 || lapsed[0].Lease.State != fleet.LeaseNone {
			t.Errorf("lapsed: got %+v, want the item of a node without a lease", lapsed)
		}
	})
}

// Tokens of work do not start over when an id comes again after it was pruned.
func TestTokensGrowThroughPrune(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		l := b.node("n1", 9)
		b.run("w", "n1", l, true)
		b.code("", b.report("w", "n1", 1, l, fleet.Succeeded), nil)
		deleted, _, v, err := b.Prune(b.ctx, registry.Fence{}, registry.Retention{Ended: 1})
		b.code("", v, err)
		if deleted != 1 {
			t.Errorf("deleted: got %d, want 1", deleted)
		}
		v, err = b.SubmitTo(b.ctx, spec("w", true), registry.Placement{Node: "n1", Lease: l})
		b.code("", v, err)
		b.is("w", fleet.Placed, "n1", 2)
		n, _, v, err := b.Prune(b.ctx, registry.Fence{}, registry.Retention{MaxEvents: 2})
		b.code("", v, err)
		if got := b.kinds(registry.EventFilter{}); len(got) != 2 || n == 0 {
			t.Errorf("events: got %v after %d were deleted, want 2", got, n)
		}
	})
}

func TestBatchOfReports(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		l1, l2 := b.node("n1", 200), b.node("n2", 200)
		var changes []registry.Change
		for i := range 150 {
			id := fmt.Sprintf("w%03d", i)
			b.run(id, "n1", l1, false)
			c := registry.Change{Work: id, Node: "n1", Token: 1, Lease: l1, State: fleet.Succeeded}
			if i%3 == 0 {
				c.Node, c.Lease = "n2", l2
			}
			changes = append(changes, c)
		}
		slices.Reverse(changes)
		verdicts, err := b.Apply(b.ctx, changes)
		must(t, err)
		for i, v := range verdicts {
			want := fleet.Code("")
			if changes[i].Node == "n2" {
				want = fleet.CodeNotOwner
			}
			if v.Code != want || v.Work != changes[i].Work {
				t.Fatalf("report %d of %s: got %q of %s, want %q", i, changes[i].Work, v.Code, v.Work, want)
			}
		}
		ended, err := b.Works(b.ctx, registry.Filter{States: []fleet.WorkState{fleet.Succeeded}})
		must(t, err)
		running, err := b.Works(b.ctx, registry.Filter{Owner: "n1", States: []fleet.WorkState{fleet.Running}, Limit: 20, After: "w100"})
		must(t, err)
		if len(ended) != 100 || len(running) != 16 || running[0].ID != "w102" {
			t.Errorf("got %d ended and a page of %d running, want 100 and 16", len(ended), len(running))
		}
	})
}

// Works finds the items that are stuck, by the database's clock.
func TestStuckWorks(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		l := b.node("n1", 9)
		for id, limit := range map[string]int64{"never": 0, "later": 3_600_000, "stuck": 1} {
			s := spec(id, true)
			s.StuckAfterMS = limit
			v, err := b.SubmitTo(b.ctx, s, registry.Placement{Node: "n1", Lease: l})
			b.code("", v, err)
			b.code("", b.report(id, "n1", 1, l, fleet.Running), nil)
		}
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for bound := time.Now().Add(10 * time.Second); ; <-tick.C {
			stuck, err := b.Works(b.ctx, registry.Filter{Stuck: true, Owner: "n1"})
			must(t, err)
			if len(stuck) == 1 && stuck[0].ID == "stuck" {
				return
			}
			if len(stuck) > 0 || time.Now().After(bound) {
				t.Fatalf("got %+v, want the one that is", stuck)
			}
		}
	})
}

// C48: of a completion and a takeover at the same moment exactly one is made.
func TestC48FinishedAndTakenAtOnce(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		rounds, workers := 1000, 8
		if testing.Short() {
			rounds = 100
		}
		l2 := b.node("n2", 1<<40)
		var wg sync.WaitGroup
		var mu sync.Mutex
		outcome := map[string]int{}
		for k := range workers {
			node := fmt.Sprintf("a%d", k)
			b.join(node, "i1", 1<<40)
			wg.Go(func() {
				for i := range rounds / workers {
					id, lease := fmt.Sprintf("w-%d-%d", k, i), b.restart(node)
					v, err := b.SubmitTo(b.ctx, spec(id, true), registry.Placement{Node: node, Lease: lease})
					if err != nil || v.Code != "" {
						t.Errorf("submit: %v %v", v, err)
						return
					}
					// The lease lapses some time around the two.
					var race sync.WaitGroup
					var done, late, took registry.Verdict
					race.Go(func() { b.lapseOf(node) })
					race.Go(func() {
						vs, err := b.Apply(b.ctx, []registry.Change{{Work: id, Node: node, Token: 1, Lease: lease, State: fleet.Succeeded}})
						if err != nil {
							t.Error(err)
							return
						}
						done = vs[0]
					})
					race.Go(func() {
						for range 200 {
							v, err := b.Takeover(b.ctx, takeover(id, node, 1, lease, "n2", l2))
							if err != nil {
								t.Error(err)
								return
							}
							if took = v; v.Code == "" || !strings.Contains(v.Text, "for another") {
								return
							}
						}
					})
					race.Wait()
					vs, err := b.Apply(b.ctx, []registry.Change{{Work: id, Node: node, Token: 1, Lease: lease, State: fleet.Running}})
					if err != nil {
						t.Error(err)
						return
					}
					late = vs[0]
					w, _, err := b.Work(b.ctx, id)
					if err != nil {
						t.Error(err)
						return
					}
					ok := done.Code == "" && took.Code == fleet.CodeWrongState && w.State == fleet.Succeeded && w.Owner == node && w.Token == 1 && late.Code == fleet.CodeWrongState ||
						done.Code != "" && took.Code == "" && w.State == fleet.Placed && w.Owner == "n2" && w.Token == 2 && late.Code == fleet.CodeNotOwner
					if !ok {
						t.Errorf("%s: completion %q, takeover %q, late report %q, and it is %s of %s with token %s", id, done.Code, took.Code, late.Code, w.State, w.Owner, w.Token)
						return
					}
					mu.Lock()
					outcome[string(w.State)]++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		taken, err := b.Takeovers(b.ctx, registry.TakeoverFilter{Limit: 2 * rounds})
		must(t, err)
		if len(taken) != outcome["placed"] {
			t.Errorf("ledger: got %d takeovers, want %d", len(taken), outcome["placed"])
		}
		t.Logf("of %d races: %v", rounds, outcome)
	})
}

// An item that its node ended for want of the right to act, and is to run again, is
// a new assignment to the same node, and in the ledger.
func TestRestartInPlace(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		l := b.node("n1", 9)
		b.run("w", "n1", l, true)
		before, _, err := b.Orders(b.ctx, "n1")
		must(t, err)
		if len(before.Work) != 1 || before.Work[0].Lease != l {
			t.Errorf("orders: got %+v, want the item under term %s", before, l)
		}
		again := registry.Change{Work: "w", Node: "n1", Token: 1, Lease: l, State: fleet.Placed, Progress: "7", Text: "the node lost its right to act"}
		apply := func(c registry.Change) registry.Verdict {
			t.Helper()
			vs, err := b.Apply(b.ctx, []registry.Change{c})
			must(t, err)
			return vs[0]
		}
		b.lapse("node/n1")
		b.code(fleet.CodeLeaseLapsed, apply(again), nil)
		b.is("w", fleet.Running, "n1", 1)
		again.Lease = b.acquire("node/n1")
		b.node("n2", 9)
		foreign := again
		foreign.Node = "n2"
		b.code(fleet.CodeNotOwner, apply(foreign), nil)
		b.is("w", fleet.Running, "n1", 1)

		v := apply(again)
		b.code("", v, nil)
		if v.Owner != "n1" || v.Current != 2 || v.Event.Kind != fleet.EventRestarted || v.Event.Token != 2 || v.Event.Text != again.Text {
			t.Errorf("restarted: got %+v", v)
		}
		if w := b.is("w", fleet.Placed, "n1", 2); !w.Started.IsZero() || w.Progress != "7" {
			t.Errorf("restarted: got %+v, want not started, with its marker", w)
		}
		after, _, err := b.Orders(b.ctx, "n1")
		must(t, err)
		if after.Revision <= before.Revision || len(after.Work) != 1 || after.Work[0].Token != 2 || after.Work[0].Lease != again.Lease {
			t.Errorf("orders: got %+v after revision %d, want token 2 under term %s", after, before.Revision, again.Lease)
		}
		v = apply(again) // the reply was lost
		b.code(fleet.CodeStaleToken, v, nil)
		if v.Owner != "n1" || v.Current != 2 {
			t.Errorf("repeated: got %+v, want owner n1 and token 2", v)
		}
		b.code(fleet.CodeStaleToken, b.report("w", "n1", 1, again.Lease, fleet.Running), nil) // of the killed copy
		b.code("", b.report("w", "n1", 2, again.Lease, fleet.Running), nil)
		if w := b.is("w", fleet.Running, "n1", 2); w.Started.IsZero() {
			t.Error("started again: got no instant")
		}
		want := []fleet.EventKind{fleet.EventSubmitted, fleet.EventPlaced, fleet.EventStarted, fleet.EventRestarted, fleet.EventStarted}
		if got := b.kinds(registry.EventFilter{Work: "w"}); !slices.Equal(got, want) {
			t.Errorf("events: got %v, want %v", got, want)
		}

		// What is to be stopped is not to run again.
		v, err = b.Stop(b.ctx, "w", registry.Order{Actor: "alice", Reason: "r"})
		b.code("", v, err)
		b.code(fleet.CodeWrongState, b.report("w", "n1", 2, again.Lease, fleet.Placed), nil)
		b.is("w", fleet.Stopping, "n1", 2)
	})
}

// The orders name the term of the node under which each item got its token,
// whichever way it got it.
func TestOrdersNameTheTerm(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		b.node("n1", 9)
		b.release("node/n1")
		l1 := b.acquire("node/n1") // larger than the tokens of the items
		b.node("n2", 9)
		for range 2 {
			b.release("node/n2")
			b.acquire("node/n2")
		}
		l2 := b.known["node/n2"].Token
		check := func(node, work string, token, lease fence.Token) {
			t.Helper()
			o, _, err := b.Orders(b.ctx, node)
			must(t, err)
			for _, a := range o.Work {
				if a.ID == work && a.Token == token && a.Lease == lease {
					return
				}
			}
			t.Errorf("orders of %s: got %+v, want %s with token %s under term %s", node, o.Work, work, token, lease)
		}
		b.run("a", "n1", l1, true)
		check("n1", "a", 1, l1)

		v, err := b.Submit(b.ctx, spec("b", true), "test")
		b.code("", v, err)
		v, err = b.Place(b.ctx, registry.Placement{Work: "b", Node: "n1", Lease: l1})
		b.code("", v, err)
		check("n1", "b", 1, l1)

		b.lapse("node/n1")
		v, err = b.Takeover(b.ctx, takeover("a", "n1", 1, l1, "n2", l2))
		b.code("", v, err)
		check("n2", "a", 2, l2)
	})
}
