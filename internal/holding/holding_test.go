package holding_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/holding"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
)

func run(t *testing.T, w *holding.Watch, st store.Store, cfg tenure.Config) *tenure.Keeper {
	t.Helper()
	k, err := w.NewKeeper(st, cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return k
}

func acquire(t *testing.T, k *tenure.Keeper, name string) *tenure.Term {
	t.Helper()
	term, err := k.TryAcquire(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return term
}

func TestLeases(t *testing.T) {
	t.Parallel()
	var w holding.Watch
	if got := w.Leases(); len(got) != 0 {
		t.Errorf("no keeper: got %+v, want nothing", got)
	}
	told := 0
	st := memory.New()
	k := run(t, &w, st, tenure.Config{OnEvent: func(tenure.Event) { told++ }, DrainTimeout: 1})
	other := run(t, &w, memory.New(), tenure.Config{DrainTimeout: 1})
	term := acquire(t, k, "a")
	acquire(t, other, "b")
	if told != 1 {
		t.Errorf("the hook of the configuration was called %d times, want once", told)
	}
	got := w.Leases()
	if len(got) != 2 || got[0].Name != "a" || !got[0].Held || got[0].Doubt || got[0].Token != 1 || got[0].Acquired != 1 || got[0].Left <= 0 || got[1].Name != "b" {
		t.Fatalf("held: got %+v, want a and b", got)
	}
	if err := term.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := w.Leases()[0]; got != (holding.Lease{Name: "a", Acquired: 1}) {
		t.Errorf("released: got %+v, want that it was held and nothing else", got)
	}
	acquire(t, k, "a")
	if got := w.Leases()[0]; !got.Held || got.Acquired != 2 || got.Token != 2 {
		t.Errorf("held again: got %+v, want the second term", got)
	}
}

// TestLeasesBounded: what a process held once is not remembered for ever.
func TestLeasesBounded(t *testing.T) {
	t.Parallel()
	var w holding.Watch
	k := run(t, &w, memory.New(), tenure.Config{DrainTimeout: time.Millisecond})
	acquire(t, k, "kept")
	w.Expect("expected")
	for i := range holding.MaxLeases + 10 {
		if err := acquire(t, k, fmt.Sprintf("n%04d", i)).Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	got := w.Leases()
	if len(got) != holding.MaxLeases+2 || got[0] != (holding.Lease{Name: "expected"}) || got[1].Name != "kept" || got[2].Name != "n0010" {
		t.Errorf("got %d leases from %+v, %q and %q on, want %d, without the oldest that are not held", len(got), got[0], got[1].Name, got[2].Name, holding.MaxLeases+2)
	}
}
