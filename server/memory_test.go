package server

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
)

// TestOneCopyOfFacts: what a node says and what the registry has of it are most of
// its memory, and are kept once (B9).
func TestOneCopyOfFacts(t *testing.T) {
	t.Parallel()
	b := newBed(t, Config{}, HTTPConfig{})
	b.join("n1")
	s := b.in.find("n1")
	shared := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return reflect.ValueOf(s.facts.Labels).Pointer() == reflect.ValueOf(s.row.Facts.Labels).Pointer()
	}
	if !shared() {
		t.Error("after it joined: got two copies of the labels, want one")
	}
	b.touch(t.Context(), "n1")
	if !shared() {
		t.Error("after its row was read again: got two copies of the labels, want one")
	}
}

// TestUnknownNodes: beats under names that nobody has joined under leave nothing.
func TestUnknownNodes(t *testing.T) {
	t.Parallel()
	b := newBed(t, Config{}, HTTPConfig{})
	bad := api.Beat{Incarnation: "i", Seq: 1, Facts: &fleet.Facts{Labels: map[string]string{"": "no name"}}}
	for i := range 50 {
		plain := api.Beat{Node: fmt.Sprint("n", i), Incarnation: "i", Seq: 1}
		if reply := must[api.BeatReply](b, "POST", "/v1/beat", plain); !reply.NeedFacts {
			t.Fatalf("an unknown node without facts: got %+v, want that facts are asked for", reply)
		}
		bad.Node = fmt.Sprint("m", i)
		b.send("POST", "/v1/beat", bad)
	}
	if n := len(b.in.all()); n != 0 {
		t.Errorf("got %d slots, want none", n)
	}
}
