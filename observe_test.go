package tenure_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// TestTerms: what is shown as held is held at that moment, and not when the loop
// last looked.
func TestTerms(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newStore(), tenure.Config{})
		names := func() (names []string) {
			for _, term := range r.k.Terms() {
				names = append(names, term.Name())
			}
			return names
		}
		if got := names(); got != nil {
			t.Errorf("before any: got %q, want none", got)
		}
		b := r.acquire("b")
		r.acquire("a")
		if got := names(); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("two: got %q, want both in order", got)
		}
		if err := b.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
		if got := names(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("one released: got %q, want the other", got)
		}
		r.host.boot.Add(int64(time.Minute)) // a suspend of which the loop does not know yet
		if got := names(); got != nil {
			t.Errorf("after a suspend: got %q, want none", got)
		}
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
}

// TestOnRenewal: each request is told once, with its time and what came of it.
func TestOnRenewal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var got []tenure.Renewal
		st := newStore()
		r := newRig(t, st, tenure.Config{OnRenewal: func(r tenure.Renewal) { got = append(got, r) }})
		a, b := r.acquire("a"), r.acquire("b")
		slow := func(ctx context.Context, g []store.Grant) ([]store.Result, error) {
			time.Sleep(70 * time.Millisecond)
			return st.Store.Renew(ctx, g)
		}
		st.renew.Store(&slow)
		time.Sleep(ttl / 3)
		synctest.Wait()
		if len(got) != 1 || got[0] != (tenure.Renewal{Terms: 2, Took: 70 * time.Millisecond}) {
			t.Fatalf("an interval: got %+v, want one renewal of two terms that took 70ms", got)
		}
		got = nil
		hole := blackHole
		st.renew.Store(&hole)
		for b.State() == tenure.StateHeld {
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if len(got) < 2 || got[0].Failed != 2 || got[0].Reason != tenure.ReasonNoContact || !errors.Is(got[0].Err, context.DeadlineExceeded) || got[0].Took < ttl/4 {
			t.Errorf("without contact: got %+v, want renewals of two that were given up after an interval", got)
		}
		if a.State() != tenure.StateLost {
			t.Errorf("state is %s, want lost", a.State())
		}
		_ = r.close()
	})
}
