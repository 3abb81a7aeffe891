package registry_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/registry"
)

// TestPrune: what is older than the retention goes, in batches and under a term;
// what is newer stays, and what belongs to a takeover that is under way.
func TestPrune(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		l1, l2 := b.node("n1", 9), b.node("n2", 9)
		for _, w := range []string{"done", "way"} {
			b.run(w, "n1", l1, true)
		}
		b.lapseOf("n1")
		for _, w := range []string{"done", "way"} {
			v, err := b.Takeover(b.ctx, takeover(w, "n1", 1, l1, "n2", l2))
			b.code("", v, err)
		}
		b.code("", b.report("done", "n2", 2, l2, fleet.Running), nil)
		var many []fleet.Event
		for i := range registry.PruneBatch {
			many = append(many, fleet.Event{Kind: fleet.EventSuspect, Node: fmt.Sprint("old", i)})
		}
		v, err := b.Append(b.ctx, registry.Fence{}, many...)
		b.code("", v, err)
		b.exec("UPDATE fleet_event SET at_us = at_us - 100000000")
		b.exec("UPDATE fleet_takeover SET recorded_us = recorded_us - 100000000")
		v, err = b.Append(b.ctx, registry.Fence{}, fleet.Event{Kind: fleet.EventAlive, Node: "new"})
		b.code("", v, err)

		// A term that is over prunes nothing.
		first := b.acquire("tenure/reconciler")
		b.release("tenure/reconciler")
		token := b.acquire("tenure/reconciler")
		keep := registry.Retention{Events: time.Minute, Takeovers: time.Minute}
		n, more, v, err := b.Prune(b.ctx, registry.Fence{Lease: "tenure/reconciler", Token: first}, keep)
		if b.code(fleet.CodeStaleToken, v, err); !v.Deposed || n != 0 || more {
			t.Errorf("deposed: got %d rows, more %v, %+v, want none", n, more, v)
		}

		term := registry.Fence{Lease: "tenure/reconciler", Token: token}
		n, more, v, err = b.Prune(b.ctx, term, keep)
		if b.code("", v, err); n != registry.PruneBatch+1 || !more { // and one takeover
			t.Errorf("first batch: got %d rows, more %v, want %d and more", n, more, registry.PruneBatch+1)
		}
		n, more, v, err = b.Prune(b.ctx, term, keep)
		if b.code("", v, err); n == 0 || more {
			t.Errorf("second batch: got %d rows, more %v, want the rest", n, more)
		}
		n, more, v, err = b.Prune(b.ctx, term, keep)
		if b.code("", v, err); n != 0 || more {
			t.Errorf("third batch: got %d rows, more %v, want none", n, more)
		}
		left := func() (text []string) {
			events, err := b.Events(b.ctx, registry.EventFilter{})
			must(t, err)
			for _, e := range events {
				text = append(text, string(e.Kind)+" "+e.Work+e.Node)
			}
			taken, err := b.Takeovers(b.ctx, registry.TakeoverFilter{})
			must(t, err)
			for _, k := range taken {
				text = append(text, "takeover of "+k.Work)
			}
			return text
		}
		if got, want := left(), []string{"work_takeover wayn2", "node_alive new", "takeover of way"}; !slices.Equal(got, want) {
			t.Errorf("left: got %q, want %q", got, want)
		}

		// Once it has started it is history like any other.
		b.code("", b.report("way", "n2", 2, l2, fleet.Running), nil)
		if _, _, v, err = b.Prune(b.ctx, term, keep); v.Code != "" || err != nil {
			t.Errorf("got %+v, %v", v, err)
		}
		if got, want := left(), []string{"node_alive new", "work_started wayn2"}; !slices.Equal(got, want) {
			t.Errorf("left in the end: got %q, want %q", got, want)
		}
		page, err := b.EventPage(b.ctx, registry.EventFilter{})
		if must(t, err); page.Pruned == 0 || page.Pruned >= page.Events[0].Seq {
			t.Errorf("got %+v, want the number of the last event that was deleted", page)
		}
		if _, _, v, err = b.Prune(b.ctx, term, registry.Retention{}); v.Code != "" || err != nil || len(left()) != 2 {
			t.Errorf("a retention that keeps all: got %+v, %v, left %q", v, err, left())
		}
	})
}

// TestPages goes through the ledger from both ends.
func TestPages(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		var many []fleet.Event
		for i := range 7 {
			many = append(many, fleet.Event{Kind: fleet.EventSuspect, Node: fmt.Sprint("n", i)})
		}
		v, err := b.Append(b.ctx, registry.Fence{}, many...)
		b.code("", v, err)
		page := func(f registry.EventFilter) (nodes []string, first, last int64) {
			events, err := b.Events(b.ctx, f)
			must(t, err)
			for _, e := range events {
				nodes = append(nodes, e.Node)
			}
			if len(events) > 0 {
				first, last = events[0].Seq, events[len(events)-1].Seq
			}
			return nodes, first, last
		}
		var got [][]string
		for after := int64(0); ; {
			nodes, _, last := page(registry.EventFilter{After: after, Limit: 3})
			if nodes == nil {
				break
			}
			got, after = append(got, nodes), last
		}
		for before := int64(0); ; {
			nodes, first, _ := page(registry.EventFilter{Before: before, Limit: 3, Last: true})
			if nodes == nil {
				break
			}
			got, before = append(got, nodes), first
		}
		want := "[[n0 n1 n2] [n3 n4 n5] [n6] [n4 n5 n6] [n1 n2 n3] [n0]]"
		if fmt.Sprint(got) != want {
			t.Errorf("got %v, want %s", got, want)
		}
		_, first, last := page(registry.EventFilter{})
		if nodes, _, _ := page(registry.EventFilter{After: first, Before: last}); len(nodes) != 5 {
			t.Errorf("between the first and the last: got %v, want 5", nodes)
		}
	})
}
