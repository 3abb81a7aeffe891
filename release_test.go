package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// Run does not end between the end of a term and the departure of its release:
// a program that exits with Run would leave the lease to lapse.
func TestRunWaitsForAReleaseThatBegins(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		h := newHost()
		told := func(e tenure.Event) {
			if e.Kind == tenure.EventLost {
				time.Sleep(time.Millisecond) // a hook takes a moment
			}
		}
		k, err := tenure.NewKeeper(st, tenure.WithClock(tenure.Config{TTL: ttl, OnEvent: told}, h.now))
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
		cancel()
		synctest.Wait()
		h.boot.Add(int64(8 * time.Second)) // the release finds the trust over
		released := make(chan error)
		go func() { released <- term.Release(context.Background()) }()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if rec, _ := st.Get(t.Context(), "a"); rec.Status != store.Released {
			t.Errorf("Run ended, and the lease is %s", rec.Status)
		}
		if err := <-released; err != nil {
			t.Error(err)
		}
	})
}

// A record that is busy, and a refusal, hold up no other release: neither those
// that left with it nor those that come later.
func TestReleaseDoesNotWaitForABusyRecord(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		const names = 50
		var terms []*tenure.Term
		for i := range names {
			terms = append(terms, r.acquire(fmt.Sprint("n", i)))
		}
		stuck := r.acquire("stuck")
		tries := 0
		busy := func(ctx context.Context, g []store.Grant) ([]store.Result, error) {
			time.Sleep(time.Millisecond)
			out := make([]store.Result, len(g))
			for i := range g {
				if g[i].Name == "stuck" {
					tries++
					out[i].Err = store.ErrBusy
					continue
				}
				one, err := st.Store.Release(ctx, g[i:i+1])
				if err != nil {
					return nil, err
				}
				out[i] = one[0]
			}
			return out, nil
		}
		st.release.Store(&busy)
		at := time.Now()
		stuckErr := make(chan error, 1)
		go func() { stuckErr <- stuck.Release(context.Background()) }()
		for i, term := range terms {
			if i%10 == 0 {
				time.Sleep(15 * time.Millisecond)
			}
			begin := time.Now()
			if err := term.Release(t.Context()); err != nil {
				t.Error(err)
			}
			if d := time.Since(begin); d > 20*time.Millisecond {
				t.Errorf("release %d took %s", i, d)
			}
		}
		if err := <-stuckErr; !errors.Is(err, tenure.ErrNotReleased) || !errors.Is(err, store.ErrBusy) {
			t.Errorf("the busy release: %v", err)
		}
		if d := time.Since(at); d > 2*time.Second+100*time.Millisecond { // ReleaseTimeout is the margin, 2 s
			t.Errorf("given up after %s", d)
		}
		if tries < 20 || tries > 60 {
			t.Errorf("%d tries of the busy record in 2 s, want one each 50 ms", tries)
		}
		_ = r.close()
	})
}

// All terms of a shutdown leave in one request, also if a request is quick: the
// first to be given back waits a moment for the others, and a lone one does not.
func TestShutdownReleasesTogether(t *testing.T) {
	for _, n := range []int{1, 200} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				st := newStore()
				r := newRig(t, st, tenure.Config{})
				var sizes []int
				count := func(ctx context.Context, g []store.Grant) ([]store.Result, error) {
					sizes = append(sizes, len(g))
					return st.Store.Release(ctx, g)
				}
				st.release.Store(&count)
				for i := range n {
					term := r.acquire(fmt.Sprint("n", i))
					go func() {
						<-term.Context().Done()
						time.Sleep(time.Duration(i) * time.Microsecond)
						_ = term.Release(context.Background()) // Run says what was not released
					}()
				}
				at := time.Now()
				if err := r.close(); err != nil {
					t.Error(err)
				}
				if len(sizes) != 1 || sizes[0] != n {
					t.Errorf("%d terms left in requests of %v, want one of all", n, sizes)
				}
				if d := time.Since(at); n == 1 && d > 0 {
					t.Errorf("a lone term waited %s", d)
				}
			})
		})
	}
}
