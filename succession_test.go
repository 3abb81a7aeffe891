package tenure_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
)

// A successor that shows the grant of a process that has ended goes on at once
// with a larger token; one that shows what the store does not know waits.
func TestSuccessorReplaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := memory.New()
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		start := func() *tenure.Keeper {
			k, err := tenure.NewKeeper(st, tenure.Config{TTL: 30 * time.Second, DrainTimeout: 1})
			if err != nil {
				t.Fatal(err)
			}
			running.Go(func() { _ = k.Run(ctx) }) // leaves its term to expire, as a process that was killed does
			return k
		}
		died := start()
		first, err := died.Acquire(ctx, "node/a")
		if err != nil {
			t.Fatal(err)
		}
		grant := first.Grant()
		next := start()
		foreign := grant
		foreign.Known = []store.Attempt{store.NewAttempt()}
		if _, err := next.TryAcquire(ctx, "node/a", tenure.WithReplace(foreign)); !errors.Is(err, store.ErrHeld) {
			t.Fatalf("with attempts that the store does not know: got %v, want held", err)
		}
		second, err := next.TryAcquire(ctx, "node/a", tenure.WithReplace(grant))
		if err != nil {
			t.Fatal(err)
		}
		if second.Token() <= first.Token() {
			t.Errorf("got token %s after %s, want a larger one", second.Token(), first.Token())
		}
		cancel()
		running.Wait()
	})
}
