package server

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

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

// TestOneReadingForAll: a queue that fits nowhere costs a step one authoritative
// reading, not one for each item, be it pending or of a node that is gone.
func TestOneReadingForAll(t *testing.T) {
	t.Parallel()
	b, r := newDatabase(t, registry.SQLite).manual(braking())
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
}
