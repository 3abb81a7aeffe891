package server

import (
	"reflect"
	"testing"
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
