package tenure_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
)

// TestBrokenOffIsNoFailure: a renewal that is broken off by a release of its term is
// no failure of the store.
func TestBrokenOffIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &faults{Store: memory.New()}
		k, err := tenure.NewKeeper(f, tenure.Config{
			TTL: 30 * time.Second,
			OnRenewal: func(r tenure.Renewal) {
				t.Errorf("renewal: got %+v, want none", r)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		running, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- k.Run(running) }()
		asked := make(chan struct{})
		silent := func(ctx context.Context, _ []store.Grant) ([]store.Result, error) {
			close(asked)
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		f.renew.Store(&silent)
		term, err := k.Acquire(t.Context(), "job")
		if err != nil {
			t.Fatal(err)
		}
		<-asked
		if err := term.Release(t.Context()); err != nil {
			t.Errorf("release: %v", err)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for c, n := range k.Counts() {
			if c.Kind == tenure.EventFailing {
				t.Errorf("got %d events of failing renewals (%s), want none", n, c.Reason)
			}
		}
	})
}

// TestBrokenOffForAnother: a renewal that is broken off for the sake of a shorter term
// is no failure for the terms in it, of which one error would end the term.
func TestBrokenOffForAnother(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{TTL: 30 * time.Minute, StandDownOnError: true})
		long := r.acquire("long")
		asked := make(chan struct{})
		slow := func(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
			st.renew.Store(nil)
			close(asked)
			return blackHole(ctx, grants)
		}
		st.renew.Store(&slow)
		<-asked
		short := r.acquire("short", tenure.WithTTL(ttl))
		time.Sleep(ttl)
		if !mayAct(long) || !mayAct(short) {
			t.Errorf("lost: %v, %v", long.Err(), short.Err())
		}
		_ = r.close()
	})
}
