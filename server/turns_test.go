package server

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/registry"
)

// gpu is what one node in these tests has, at most.
var gpu = fleet.Request{Features: []string{"gpu"}}

// onlyFirst gives the first of a crowd its feature.
func onlyFirst(i int) fleet.Facts {
	if i == 0 {
		return fleet.Facts{Features: gpu.Features}
	}
	return fleet.Facts{}
}

// assign gives movable work to one node, by a request of its own.
func (b *bed) assign(id, node string, req fleet.Request) {
	b.t.Helper()
	spec := fleet.Spec{ID: id, Command: []string{"true"}, Movable: true, Request: req}
	v, err := b.reg.SubmitTo(b.t.Context(), spec.Filled(), registry.Placement{Node: node, Lease: b.show(node).Lease.Token, Actor: "test"})
	if err != nil || v.Code != "" {
		b.t.Fatalf("assign %s to %s: %+v, %v", id, node, v, err)
	}
}

// queue stores work that is to be placed later.
func (b *bed) queue(id string, req fleet.Request) {
	b.t.Helper()
	v, err := b.reg.Submit(b.t.Context(), fleet.Spec{ID: id, Command: []string{"true"}, Request: req}.Filled(), "test")
	if err != nil || v.Code != "" {
		b.t.Fatalf("queue %s: %+v, %v", id, v, err)
	}
}

// TestNoRoomCostsNoTurn: items for which there is no room spend nothing of the rate
// of takeovers, so that those after them move. That an item is held back is written
// once, and why tells what has to happen.
func TestNoRoomCostsNoTurn(t *testing.T) {
	t.Parallel()
	cfg := unhurried()
	cfg.Takeover.Rate = fleet.Rate{Burst: 2, Every: time.Hour}
	b, r := newDatabase(t, registry.SQLite).manual(cfg)
	agents := b.crowd("n", 8, onlyFirst)
	for i := range 5 {
		b.assign(fmt.Sprintf("a%d", i), agents[0].id, gpu)
	}
	for i := range 3 {
		b.assign(fmt.Sprintf("z%d", i), agents[0].id, fleet.Request{})
	}
	b.observed()
	r.steps(t, 1)
	hush(agents[0])
	b.mayBeTaken(agents[0].id)
	r.steps(t, 4)

	if n := b.takeovers(); n != 2 {
		t.Errorf("%d takeovers, want the 2 that the rate allows", n)
	}
	written := map[string][]fleet.Code{}
	for _, e := range b.ledger(fleet.EventWithheld) {
		written[e.Work] = append(written[e.Work], e.Code)
	}
	for work, want := range map[string]fleet.Code{"a0": fleet.CodeNoCapacity, "a4": fleet.CodeNoCapacity, "z2": fleet.CodeRateLimited} {
		if got := written[work]; len(got) != 1 || got[0] != want {
			t.Errorf("%s: written as withheld for %v, want once for %s", work, got, want)
		}
	}
	for work, want := range map[string]string{
		"a0": "next: one of these has to clear, or the request has to ask for less",
		"z2": "next: it is placed on one of the nodes that fit: 7",
	} {
		if why := must[api.WorkWhy](b, http.MethodGet, "/v1/why/work/"+work, nil); !strings.HasPrefix(strings.TrimSpace(why.Next), want) {
			t.Errorf("why %s: %q, want the last line to be %q", work, why.Text, want)
		}
	}
}

// TestOneReadingForAll: a queue that fits nowhere costs a step one authoritative
// reading, not one for each item, be it pending or of a node that is gone.
func TestOneReadingForAll(t *testing.T) {
	t.Parallel()
	b, r := newDatabase(t, registry.SQLite).manual(unhurried())
	agents := b.crowd("n", 8, onlyFirst)
	const items = 60
	for i := range items {
		b.assign(fmt.Sprintf("a%02d", i), agents[0].id, gpu)
	}
	b.observed()
	r.steps(t, 1)
	hush(agents[0])
	b.mayBeTaken(agents[0].id)
	for i := range items {
		b.queue(fmt.Sprintf("p%02d", i), gpu)
	}
	r.share = time.Minute
	var reads atomic.Int64
	b.reg.Observe(func(op string, _ time.Duration, _ error) {
		if op == "read" {
			reads.Add(1)
		}
	})
	r.steps(t, 1)
	if n := reads.Load(); n > items {
		t.Errorf("%d reads in one step over twice %d items that fit nowhere, want a few", n, items)
	}
	if held := (*b.heldBack.Load())[fleet.CodeNoCapacity]; held != items {
		t.Errorf("%d are held back for want of room, want %d", held, items)
	}
}

// TestStagesShareAStep: when there is time for one takeover and one placement in a
// step, what comes after them is done all the same, and each item gets its turn.
func TestStagesShareAStep(t *testing.T) {
	t.Parallel()
	b, r := newDatabase(t, registry.SQLite).manual(unhurried())
	r.share = 0
	agents := b.crowd("n", 8, onlyFirst)
	for i := range 3 {
		b.assign(fmt.Sprintf("a%d", i), agents[0].id, gpu)
		b.queue(fmt.Sprintf("p%d", i), gpu)
	}
	b.assign("z", agents[0].id, fleet.Request{})
	b.observed()
	hush(agents[0])
	b.mayBeTaken(agents[0].id)
	b.queue("q", fleet.Request{})
	if _, v, err := b.reg.SetIntent(t.Context(), agents[1].id, registry.Order{Actor: "ann", Reason: "test"}, func(i fleet.Intent, m fleet.Mark) (fleet.Intent, fleet.Code) {
		i, _ = i.WithDrain(m, time.Time{}, false)
		return i, ""
	}); err != nil || v.Code != "" {
		t.Fatal(v, err)
	}
	eventually(t, "the drain is seen", func() bool { return b.show(agents[1].id).Intent.Drain != nil })
	r.steps(t, 1)
	if s := b.show(agents[1].id).Intent.State(); s != fleet.Drained {
		t.Errorf("after one step: the empty node is %s, want drained", s)
	}
	if r.scan.IsZero() {
		t.Error("after one step: running work was not looked at")
	}
	r.steps(t, 4)
	if w := b.work("z"); w.Token != 2 {
		t.Errorf("after a step for each: %+v, want it taken over", w)
	}
	if w := b.work("q"); w.State != fleet.Placed {
		t.Errorf("after a step for each: %+v, want it placed", w)
	}
	if n := len(b.ledger(fleet.EventWithheld)); n != 3 {
		t.Errorf("%d times written that an item is held back, want once for each of 3", n)
	}
	r.steps(t, 5)
	if n := len(b.ledger(fleet.EventWithheld)); n != 3 {
		t.Errorf("after another round: %d times written that an item is held back, want the 3", n)
	}
}

// unhurried is braking for a reconciler whose steps a busy machine does not cut.
func unhurried() Config {
	cfg := braking()
	cfg.ReconcilerTTL = 30 * time.Second
	return cfg
}
