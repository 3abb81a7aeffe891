package tenure_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
)

// Terms that a restore ended and that nobody asks for again are not remembered
// for longer than the store can hold them.
func TestRestoredTermsAreForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		for round := range 10 {
			for i := range 100 {
				r.acquire(fmt.Sprintf("round%d/%d", round, i))
			}
			r.k.Doubt(tenure.DoubtRestore, "")
			if n := r.k.Replaceable(); n != 100 {
				t.Fatalf("round %d: %d terms can be replaced, want 100", round, n)
			}
			time.Sleep(2*ttl + time.Second)
		}
		// What was remembered for less than that still serves.
		term := r.acquire("a")
		r.k.Doubt(tenure.DoubtRestore, "")
		if again := r.acquire("a"); again.Token() != term.Token()+1 {
			t.Errorf("token %s after %s", again.Token(), term.Token())
		} else {
			_ = again.Release(t.Context())
		}
		_ = r.close()
	})
}

// Whoever learns of a restore by the end of the term's context can replace it at
// once.
func TestRestoredTermCanBeReplacedWhenItEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		told := func(e tenure.Event) {
			if e.Kind == tenure.EventLost {
				time.Sleep(time.Millisecond) // a hook takes a moment
			}
		}
		k, err := tenure.NewKeeper(st, tenure.WithClock(tenure.Config{TTL: ttl, OnEvent: told}, newHost().now))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- k.Run(ctx) }()
		term, err := k.TryAcquire(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		doubted := make(chan struct{})
		go func() { k.Doubt(tenure.DoubtRestore, ""); close(doubted) }()
		<-term.Context().Done()
		if again, err := k.TryAcquire(ctx, "a"); err != nil {
			t.Error(err)
		} else {
			_ = again.Release(ctx)
		}
		<-doubted
		cancel()
		<-ended
	})
}
