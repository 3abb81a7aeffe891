package tenure_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
)

// stepStore is a store whose clock a test can step.
func stepStore() (*faults, *atomic.Int64) {
	start := time.Now()
	var step atomic.Int64
	clock := func() time.Duration { return time.Since(start) + time.Duration(step.Load()) }
	return &faults{Store: memory.NewWith(memory.Config{Clock: clock})}, &step
}

// toldStore is a store whose watches tell what the test says, or none at all.
type toldStore struct {
	*faults
	tell chan store.Event // nil: it cannot watch
	get  atomic.Pointer[func(context.Context) error]
}

func (s *toldStore) Watch(ctx context.Context, _ string) (<-chan store.Event, error) {
	if s.tell == nil {
		return nil, store.ErrUnsupported
	}
	return s.tell, nil
}

func (s *toldStore) Get(ctx context.Context, name string) (store.Record, error) {
	if get := s.get.Load(); get != nil {
		if err := (*get)(ctx); err != nil {
			return store.Record{}, err
		}
	}
	return s.faults.Get(ctx, name)
}

// waiter is a keeper over st with one Acquire of "a" under way.
type waiter struct {
	k      *tenure.Keeper
	events *events
	cancel context.CancelFunc // of the Acquire
	got    chan *tenure.Term  // nil if the Acquire failed
	err    error
	stop   func()
}

func wait(t *testing.T, st store.Store) *waiter {
	t.Helper()
	w := &waiter{events: &events{}, got: make(chan *tenure.Term)}
	h := newHost()
	k, err := tenure.NewKeeper(st, tenure.WithClock(tenure.Config{TTL: ttl, OnEvent: w.events.add}, h.now))
	if err != nil {
		t.Fatal(err)
	}
	w.k = k
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- k.Run(ctx) }()
	w.stop = func() { cancel(); <-ended }
	acquiring, giveUp := context.WithCancel(context.Background())
	w.cancel = giveUp
	go func() {
		var term *tenure.Term
		term, w.err = k.Acquire(acquiring, "a")
		w.got <- term
	}()
	return w
}

// Events may be told twice and late: what is told while a record is watched,
// because the store's clock stepped, does not cut that short if the record did
// not move.
func TestObservationOutlastsAStaleEvent(t *testing.T) {
	for what, told := range map[string]store.Event{"end": {Waiters: 1}, "start": {Held: true, Remaining: time.Second, Waiters: 1}} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				faulty, step := stepStore()
				st := &toldStore{faults: faulty, tell: make(chan store.Event, 8)}
				a := newRig(t, faulty, tenure.Config{})
				term := a.acquire("a")
				hole := blackHole
				faulty.renew.Store(&hole)
				w := wait(t, st)
				time.Sleep(time.Second)
				step.Store(int64(2 * time.Hour))
				for !strings.Contains(w.events.kinds(), "store_clock_step") {
					time.Sleep(10 * time.Millisecond)
				}
				seen := time.Now()
				for range 3 {
					time.Sleep(500 * time.Millisecond)
					st.tell <- told
				}
				got := <-w.got
				if d := time.Since(seen); d < ttl-20*time.Millisecond || d > ttl+2*time.Second {
					t.Errorf("taken over %s after the step was seen, want a full TTL of watching", d)
				}
				if n := strings.Count(w.events.kinds(), "store_clock_step"); n != 1 {
					t.Errorf("the step was told %d times", n)
				}
				faulty.renew.Store(nil)
				_, _ = term.Release(t.Context()), got.Release(t.Context())
				w.stop()
				_ = a.close()
			})
		})
	}
}

// What is watched and then released is taken at once.
func TestObservationEndsWithARelease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		faulty, step := stepStore()
		st := &toldStore{faults: faulty, tell: make(chan store.Event, 8)}
		a := newRig(t, faulty, tenure.Config{})
		term := a.acquire("a")
		hole := blackHole
		faulty.renew.Store(&hole)
		w := wait(t, st)
		time.Sleep(time.Second)
		step.Store(int64(2 * time.Hour))
		for !strings.Contains(w.events.kinds(), "store_clock_step") {
			time.Sleep(10 * time.Millisecond)
		}
		if err := term.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		at := time.Now()
		st.tell <- store.Event{Name: "a", Waiters: 1}
		got := <-w.got
		if d := time.Since(at); d > time.Second {
			t.Errorf("taken %s after the release", d)
		}
		faulty.renew.Store(nil)
		_ = got.Release(t.Context())
		w.stop()
		_ = a.close()
	})
}

// A step that shows while the lease is still held is a step, too: the expiry
// that the store tells from then on is not to be trusted.
func TestWaiterMistrustsAStepSeenWhileHeld(t *testing.T) {
	bubble(t, func(t *testing.T) {
		faulty, step := stepStore()
		st := &toldStore{faults: faulty} // asked once an interval
		a := newRig(t, faulty, tenure.Config{})
		term := a.acquire("a")
		hole := blackHole
		faulty.renew.Store(&hole)
		w := wait(t, st)
		time.Sleep(time.Second)
		step.Store(int64(5 * time.Second)) // more than the margin, less than what is left
		got := <-w.got
		if mayAct(term) {
			t.Error("two may act")
		}
		if kinds := w.events.kinds(); !strings.Contains(kinds, "store_clock_step") {
			t.Errorf("events %q do not tell of the step", kinds)
		}
		faulty.renew.Store(nil)
		_ = got.Release(t.Context())
		w.stop()
		_ = a.close()
	})
}

// A holder that goes on renewing after a step is believed again.
func TestStepWhileHeldIsForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		faulty, step := stepStore()
		st := &toldStore{faults: faulty}
		a := newRig(t, faulty, tenure.Config{})
		term := a.acquire("a")
		w := wait(t, st)
		time.Sleep(time.Second)
		step.Store(int64(5 * time.Second))
		time.Sleep(5 * ttl)
		if !mayAct(term) {
			t.Fatal(term.Err())
		}
		hole := blackHole
		faulty.renew.Store(&hole)
		at := time.Now()
		got := <-w.got
		if d := time.Since(at); d > ttl+ttl/3 {
			t.Errorf("taken over %s after the last renewal, want after its TTL", d)
		}
		_ = got.Release(t.Context())
		w.stop()
		_ = a.close()
	})
}

// Whoever gives up waiting need not wait for an answer, at no step.
func TestWaiterIsCancelledAtEachStep(t *testing.T) {
	steps := map[string]func(*toldStore, *atomic.Int64){
		"acquire": func(st *toldStore, _ *atomic.Int64) {
			hang := func(ctx context.Context, _ store.Request) (store.Record, error) {
				<-ctx.Done()
				return store.Record{}, ctx.Err()
			}
			st.acquire.Store(&hang)
		},
		"sleep": func(*toldStore, *atomic.Int64) {},
		"get": func(st *toldStore, step *atomic.Int64) {
			hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
			st.get.Store(&hang)
			step.Store(int64(2 * time.Hour))
		},
	}
	for name, arrange := range steps {
		for _, how := range []string{"context", "shutdown"} {
			t.Run(name+"/"+how, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					faulty, step := stepStore()
					st := &toldStore{faults: faulty, tell: make(chan store.Event, 8)}
					a := newRig(t, faulty, tenure.Config{})
					term := a.acquire("a")
					hole := blackHole
					faulty.renew.Store(&hole)
					w := wait(t, st)
					synctest.Wait()
					arrange(st, step)
					st.tell <- store.Event{Name: "a", Waiters: 1}
					time.Sleep(100 * time.Millisecond)
					at := time.Now()
					var want error
					if how == "context" {
						w.cancel()
						want = context.Canceled
					} else {
						go w.stop()
						want = tenure.ErrClosed
					}
					<-w.got
					if d := time.Since(at); d > 0 || !errors.Is(w.err, want) {
						t.Errorf("ended %s later with %v, want at once with %v", d, w.err, want)
					}
					if how == "context" {
						w.stop()
					}
					if strings.Contains(w.events.kinds(), "acquire_failed:no_contact") {
						t.Errorf("events %q: giving up is told as a failure of the store", w.events.kinds())
					}
					faulty.renew.Store(nil)
					_ = term.Release(t.Context())
					synctest.Wait()
					_ = a.close()
				})
			})
		}
	}
}

// flapStore is a store whose watches end as soon as they began.
type flapStore struct{ *faults }

func (flapStore) Watch(context.Context, string) (<-chan store.Event, error) {
	events := make(chan store.Event)
	close(events)
	return events, nil
}

// A watch that comes about and ends again at once costs little more than none.
func TestWatchThatFlaps(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		a := newRig(t, st, tenure.Config{})
		term := a.acquire("a")
		before := st.count(&st.acquires)
		w := wait(t, flapStore{st})
		const intervals = 30
		time.Sleep(intervals * ttl / 3)
		if n := st.count(&st.acquires) - before; n > 4*intervals {
			t.Errorf("%d requests in %d intervals", n, intervals)
		}
		_ = term.Release(t.Context())
		at := time.Now()
		got := <-w.got
		if d := time.Since(at); d > ttl/3 {
			t.Errorf("held %s after the release, want within an interval", d)
		}
		_ = got.Release(t.Context())
		w.stop()
		_ = a.close()
	})
}

// What an acquire won whose reply was still on its way at the shutdown is given
// back at once.
func TestShutdownDuringAcquire(t *testing.T) {
	for what, acquire := range map[string]func(*tenure.Keeper) (*tenure.Term, error){
		"wait": func(k *tenure.Keeper) (*tenure.Term, error) { return k.Acquire(context.Background(), "a") },
		"try":  func(k *tenure.Keeper) (*tenure.Term, error) { return k.TryAcquire(context.Background(), "a") },
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				st := newStore()
				deaf := func(ctx context.Context, req store.Request) (store.Record, error) {
					_, _ = st.Store.Acquire(context.Background(), req)
					<-ctx.Done()
					return store.Record{}, ctx.Err()
				}
				st.acquire.Store(&deaf)
				r := newRig(t, st, tenure.Config{})
				got := make(chan error)
				go func() { _, err := acquire(r.k); got <- err }()
				synctest.Wait()
				at := time.Now()
				if err := r.close(); err != nil {
					t.Error(err)
				}
				if err := <-got; !errors.Is(err, tenure.ErrClosed) || time.Since(at) > 0 {
					t.Errorf("ended after %s with %v, want ErrClosed at once", time.Since(at), err)
				}
				if rec, err := st.Get(t.Context(), "a"); rec.Status != store.Released {
					t.Errorf("the lease is %s (%v), want it given back", rec.Status, err)
				}
			})
		})
	}
}
