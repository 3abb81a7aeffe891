package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
)

// counting counts requests and the grants in them, and answers after a while.
type counting struct {
	store.Store
	mu       sync.Mutex
	requests int
	grants   int
	twice    bool // a name stood twice in a request
	delay    time.Duration
}

func (c *counting) Renew(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	time.Sleep(c.delay)
	names := map[string]bool{}
	c.mu.Lock()
	c.requests++
	c.grants += len(grants)
	for _, g := range grants {
		c.twice = c.twice || names[g.Name]
		names[g.Name] = true
	}
	c.mu.Unlock()
	return c.Store.Renew(ctx, grants)
}

func TestRenewerShares(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := &counting{Store: memory.New(), delay: 5 * time.Millisecond}
		r := newRenewer(st, 20*time.Millisecond, time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		var running, senders sync.WaitGroup
		running.Go(func() { r.run(ctx) })
		const nodes = 500
		for i := range nodes {
			name := fmt.Sprintf("node/n%d", i)
			attempt := store.NewAttempt()
			rec, err := st.Acquire(ctx, store.Request{Name: name, Holder: "h", TTL: time.Minute, Attempt: attempt})
			if err != nil {
				t.Fatal(err)
			}
			senders.Go(func() {
				for range 2 { // the second is a retry on its way at the same time
					senders.Go(func() {
						got, err := r.renew(ctx, store.Grant{Name: name, Token: rec.Token, TTL: time.Minute, Attempt: store.NewAttempt(), Known: []store.Attempt{attempt}})
						if err != nil {
							t.Errorf("%s: %v", name, err)
						}
						// One of the two is recognised; the other shows an attempt that is not the last any more.
						if code := store.Classify(got.Err); code != "" && code != store.CodeSuperseded {
							t.Errorf("%s: got %q", name, code)
						}
					})
				}
			})
		}
		senders.Wait()
		cancel()
		running.Wait()
		if st.twice {
			t.Error("a name stood twice in one request")
		}
		if st.grants != 2*nodes {
			t.Errorf("got %d grants sent, want %d", st.grants, 2*nodes)
		}
		if st.requests > 6 {
			t.Errorf("%d grants took %d requests, want them to share", st.grants, st.requests)
		}
	})
}

func TestRenewerGoneSender(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := &counting{Store: memory.New(), delay: time.Minute}
		r := newRenewer(st, 20*time.Millisecond, time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.run(ctx) })
		gone, leave := context.WithTimeout(ctx, 100*time.Millisecond)
		defer leave()
		if _, err := r.renew(gone, store.Grant{Name: "node/a", Token: 1}); err == nil {
			t.Error("got an answer before the store gave one")
		}
		// The next sender is served although nobody took the first answer.
		if _, err := r.renew(ctx, store.Grant{Name: "node/b", Token: 1, TTL: time.Minute, Attempt: store.NewAttempt()}); err != nil {
			t.Error(err)
		}
		cancel()
		running.Wait()
	})
}

// TestRenewerEnds: who waits for an answer when the replica stops is told so, and
// so is who comes later, so that an agent goes to another replica at once.
func TestRenewerEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRenewer(&counting{Store: memory.New(), delay: time.Second}, 20*time.Millisecond, 10*time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		go r.run(ctx)
		var asked sync.WaitGroup
		ask := func(want error) {
			asked.Go(func() {
				_, err := r.renew(t.Context(), store.Grant{Name: "node/n", Token: 1, TTL: time.Minute, Attempt: store.NewAttempt(), Known: []store.Attempt{store.NewAttempt()}})
				if !errors.Is(err, want) {
					t.Errorf("got %v, want %v", err, want)
				}
			})
			synctest.Wait()
		}
		ask(nil)
		time.Sleep(100 * time.Millisecond) // the first is under way
		ask(store.ErrUnavailable)
		cancel()
		asked.Wait()
		ask(store.ErrUnavailable)
		asked.Wait()
	})
}
