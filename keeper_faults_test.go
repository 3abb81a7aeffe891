package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
)

// A process can hold one name twice for a while: the store ended the first term
// and it does not know yet. No store takes a name twice in one request, and no
// other term may suffer.
func TestTwoTermsOfOneName(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		other, first := r.acquire("other"), r.acquire("a")
		if err := st.Store.Revoke(t.Context(), "a", first.Token(), store.Revocation{Now: true}); err != nil {
			t.Fatal(err)
		}
		second := r.acquire("a")
		time.Sleep(2 * ttl)
		if !mayAct(other) || !mayAct(second) {
			t.Errorf("other: %v; second: %v", other.Err(), second.Err())
		}
		if got := r.reason(first); got != tenure.ReasonSuperseded && got != tenure.ReasonRevoked {
			t.Errorf("first: lost for %q, want an answer of the store", got)
		}
		for _, term := range []*tenure.Term{other, second} {
			if err := term.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
		_ = r.close()
	})
	t.Run("release", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			st := newStore()
			r := newRig(t, st, tenure.Config{})
			first := r.acquire("a")
			_ = st.Store.Revoke(t.Context(), "a", first.Token(), store.Revocation{Now: true})
			second := r.acquire("a")
			slow := func(ctx context.Context, g []store.Grant) ([]store.Result, error) {
				time.Sleep(time.Millisecond)
				return st.Store.Release(ctx, g)
			}
			st.release.Store(&slow)
			errs := make(chan error, 3)
			go func() { errs <- r.acquire("other").Release(context.Background()) }() // holds the line
			time.Sleep(100 * time.Microsecond)
			go func() { errs <- first.Release(context.Background()) }()
			go func() { errs <- second.Release(context.Background()) }()
			lost := 0
			for range 3 {
				if err := <-errs; errors.Is(err, tenure.ErrLost) {
					lost++
				} else if err != nil {
					t.Error(err)
				}
			}
			if rec, _ := st.Get(t.Context(), "a"); rec.Status != store.Released || lost > 1 {
				t.Errorf("record %s, %d losses", rec.Status, lost)
			}
			_ = r.close()
		})
	})
}

// A request that is refused as a whole is repeated as a whole.
func TestBusyAsAWhole(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		var terms []*tenure.Term
		for i := range 300 {
			terms = append(terms, r.acquire(fmt.Sprint("n", i)))
		}
		first := true
		locked := func(ctx context.Context, g []store.Grant) ([]store.Result, error) {
			if first {
				first = false
				<-ctx.Done()
				return nil, &store.BusyError{}
			}
			time.Sleep(20 * time.Millisecond)
			return st.Store.Renew(ctx, g)
		}
		st.renew.Store(&locked)
		time.Sleep(2 * ttl)
		if n := st.count(&st.renews); n > 12 {
			t.Errorf("%d requests in two TTLs, want one an interval", n)
		}
		for _, term := range terms {
			if !mayAct(term) {
				t.Fatalf("lost: %v", term.Err())
			}
			_ = term.Release(t.Context())
		}
		_ = r.close()
	})
}

// Doubt asks at once, and then no more often than any failing renewal.
func TestDoubtIsNoHotLoop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		term := r.acquire("a")
		refuse := func(context.Context, []store.Grant) ([]store.Result, error) {
			time.Sleep(time.Microsecond) // an answer takes a moment
			return nil, store.ErrUnavailable
		}
		st.renew.Store(&refuse)
		r.k.Doubt(tenure.DoubtWake, "")
		time.Sleep(5 * time.Second)
		if n := st.count(&st.renews); n < 2 || n > 12 {
			t.Errorf("%d renewals in 5 s of doubt, want a few", n)
		}
		st.renew.Store(nil)
		time.Sleep(time.Second)
		if !mayAct(term) {
			t.Errorf("not confirmed when the store came back: %v", term.Err())
		}
		_ = term.Release(t.Context())
		_ = r.close()
	})
}

// A doubt that comes while an acquire is on its way holds for the term it wins.
func TestP4DoubtMeetsAcquire(t *testing.T) {
	for _, kind := range []tenure.DoubtKind{tenure.DoubtWake, tenure.DoubtRestore} {
		t.Run(string(kind), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				st := newStore()
				r := newRig(t, st, tenure.Config{})
				late := func(ctx context.Context, req store.Request) (store.Record, error) {
					st.acquire.Store(nil)
					rec, err := st.Store.Acquire(ctx, req)
					time.Sleep(time.Second) // the reply is on its way
					return rec, err
				}
				st.acquire.Store(&late)
				hole := blackHole
				st.renew.Store(&hole)
				before := r.k.Holder()
				got := make(chan *tenure.Term)
				go func() { got <- r.acquire("a") }()
				time.Sleep(500 * time.Millisecond)
				r.k.Doubt(kind, "told")
				term := <-got
				switch kind {
				case tenure.DoubtWake:
					if mayAct(term) || term.State() != tenure.StateDoubt {
						t.Errorf("state %s, want doubt: nothing was confirmed since", term.State())
					}
				case tenure.DoubtRestore:
					if term.Token() != 2 || term.Holder() == before || !mayAct(term) {
						t.Errorf("token %s under %q, want a new term under a new identity", term.Token(), term.Holder())
					}
				}
				st.renew.Store(nil)
				_ = term.Release(t.Context())
				_ = r.close()
			})
		})
	}
}

// P6: what decided nothing does not make an earlier attempt forgotten.
func TestP6RefusalAfterALostReply(t *testing.T) {
	for _, mid := range []error{store.ErrBusy, store.ErrReadOnly, store.ErrPermission} {
		t.Run(string(store.Classify(mid)), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				st := newStore()
				r := newRig(t, st, tenure.Config{})
				n := 0
				hook := func(ctx context.Context, req store.Request) (store.Record, error) {
					switch n++; n {
					case 1:
						_, _ = st.Store.Acquire(ctx, req)
						return store.Record{}, store.ErrUnavailable
					case 2:
						return store.Record{}, mid
					}
					return st.Store.Acquire(ctx, req)
				}
				st.acquire.Store(&hook)
				at := time.Now()
				term, err := r.k.Acquire(t.Context(), "a")
				if err != nil {
					if rec, _ := st.Get(t.Context(), "a"); rec.Status != store.Released {
						t.Errorf("gave up with %v, and the lease is %s: what was won is not given back", err, rec.Status)
					}
				} else {
					if d := time.Since(at); d > ttl*9/10 || term.Token() != 1 {
						t.Errorf("token %s after %s, want the term that was won, with token 1", term.Token(), d)
					}
					_ = term.Release(t.Context())
				}
				_ = r.close()
			})
		})
	}
}

// A record that is removed while it is watched is free.
func TestWatchedRecordIsCleaned(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		a, b := newRig(t, st, tenure.Config{}), newRig(t, st, tenure.Config{})
		_ = a.acquire("a").Release(t.Context())
		step := func(context.Context, store.Request) (store.Record, error) {
			st.acquire.Store(nil)
			return store.Record{}, store.ErrClockStep
		}
		st.acquire.Store(&step)
		got := make(chan *tenure.Term)
		go func() { w, _ := b.k.Acquire(context.Background(), "a"); got <- w }()
		time.Sleep(5 * time.Second)
		if _, err := st.Store.Clean(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
		at := time.Now()
		w := <-got
		if d := time.Since(at); d > 2*ttl {
			t.Errorf("a name without a record was acquired after %s", d)
		}
		_ = w.Release(t.Context())
		_ = a.close()
		_ = b.close()
	})
}

// deafWatch is a store whose watch takes long to say that it cannot.
type deafWatch struct{ *faults }

func (deafWatch) Watch(ctx context.Context, _ string) (<-chan store.Event, error) {
	select {
	case <-time.After(20 * time.Second):
	case <-ctx.Done():
	}
	return nil, store.ErrUnavailable
}

// C35: a watch that does not come about slows a waiter by an interval at most.
func TestC35WatchThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		a := newRig(t, st, tenure.Config{})
		h := newHost()
		k, err := tenure.NewKeeper(deafWatch{st}, tenure.WithClock(tenure.Config{TTL: ttl}, h.now))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- k.Run(ctx) }()
		term := a.acquire("a")
		got := make(chan *tenure.Term)
		go func() { w, _ := k.Acquire(ctx, "a"); got <- w }()
		time.Sleep(time.Second)
		_ = term.Release(t.Context())
		at := time.Now()
		w := <-got
		if d := time.Since(at); d > ttl/3 {
			t.Errorf("held %s after the release, want within an interval", d)
		}
		_ = w.Release(t.Context())
		cancel()
		<-ended
		_ = a.close()
	})
}

// A term that is over before the keeper took it in is not kept for ever.
func TestTermThatEndsAtBirth(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for at := range 8 { // at each reading of the clocks after the answer
			st := newStore()
			h := newHost()
			armed, n := false, 0
			var k *tenure.Keeper
			now := func() clock.Reading {
				if armed {
					if n++; n == at+1 {
						h.mono.Add(int64(time.Hour))
						h.boot.Add(int64(time.Hour))
						h.wall.Add(int64(time.Hour))
					}
				}
				return h.now()
			}
			k, err := tenure.NewKeeper(st, tenure.WithClock(tenure.Config{TTL: ttl}, now))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error)
			go func() { ended <- k.Run(ctx) }()
			synctest.Wait() // the loop sleeps: only the acquire reads the clocks
			hook := func(ctx context.Context, req store.Request) (store.Record, error) {
				rec, err := st.Store.Acquire(ctx, req)
				armed = true
				return rec, err
			}
			st.acquire.Store(&hook)
			term, err := k.TryAcquire(ctx, "a")
			armed = false
			if err == nil {
				if mayAct(term) && n >= at+1 {
					t.Errorf("reading %d: may act after a pause of an hour", at)
				}
				_ = term.Release(t.Context())
			}
			begin := time.Now()
			cancel()
			if err := <-ended; err != nil || time.Since(begin) > 0 {
				t.Errorf("reading %d: Run ended after %s with %v", at, time.Since(begin), err)
			}
		}
	})
}

// P10: a counter for each kind and reason.
func TestP10Counters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		for range 3 {
			_ = r.acquire("a").Release(t.Context())
		}
		term := r.acquire("b")
		r.k.Doubt(tenure.DoubtRestore, "")
		counts := r.k.Counts()
		for c, want := range map[tenure.Count]int64{
			{Kind: tenure.EventAcquired}:                              4,
			{Kind: tenure.EventReleased}:                              3,
			{Kind: tenure.EventLost, Reason: tenure.ReasonRestored}:   1,
			{Kind: tenure.EventLost, Reason: tenure.ReasonSuperseded}: 0,
		} {
			if counts[c] != want {
				t.Errorf("%+v: %d, want %d", c, counts[c], want)
			}
		}
		_ = term.Release(t.Context())
		_ = r.close()
	})
}

// Work that panics has ended: its term is not renewed for nobody.
func TestDoReleasesWhenTheWorkPanics(t *testing.T) {
	for what, end := range map[string]func(){"panic": func() { panic("boom") }, "goexit": runtime.Goexit} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				st := newStore()
				r := newRig(t, st, tenure.Config{})
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer func() { _ = recover() }() // as a server does for a handler
					_ = tenure.Do(context.Background(), r.k, "a", func(context.Context, *tenure.Term) error {
						end()
						return nil
					})
				}()
				<-done
				if rec, _ := st.Get(t.Context(), "a"); rec.Status != store.Released {
					t.Errorf("the lease is %s, want released", rec.Status)
				}
				_ = r.close()
			})
		})
	}
}

// A hung request with the time of a long term does not lose a short one that
// was won meanwhile.
func TestHungRequestAndAShortTerm(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{TTL: 30 * time.Minute})
		long := r.acquire("long")
		first := true
		hang := func(ctx context.Context, g []store.Grant) ([]store.Result, error) {
			if first {
				first = false
				return blackHole(ctx, g)
			}
			return st.Store.Renew(ctx, g)
		}
		st.renew.Store(&hang)
		for st.count(&st.renews) == 0 {
			time.Sleep(time.Second)
		}
		short := r.acquire("short", tenure.WithTTL(3*time.Second))
		time.Sleep(time.Minute)
		if !mayAct(short) || !mayAct(long) {
			t.Errorf("short: %v; long: %v", short.Err(), long.Err())
		}
		_ = short.Release(t.Context())
		_ = long.Release(t.Context())
		_ = r.close()
	})
}

// One short term does not cost many long ones theirs, on a store that answers
// too slowly for it and quickly enough for them.
func TestShortTermDoesNotStarveLongOnes(t *testing.T) {
	for _, after := range []bool{false, true} { // it comes before them, or while their request is on its way
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				st := newStore()
				r := newRig(t, st, tenure.Config{TTL: 30 * time.Second})
				var terms []*tenure.Term
				for i := range 100 {
					terms = append(terms, r.acquire(fmt.Sprint("n", i)))
				}
				slow := func(ctx context.Context, g []store.Grant) ([]store.Result, error) {
					select {
					case <-time.After(500 * time.Millisecond):
						return st.Store.Renew(ctx, g)
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				}
				st.renew.Store(&slow)
				begin := time.Now()
				for i := 0; time.Since(begin) < 90*time.Second; i++ {
					if n := st.count(&st.renews); after {
						for st.count(&st.renews) == n && time.Since(begin) < 90*time.Second {
							time.Sleep(10 * time.Millisecond)
						}
					}
					short := r.acquire(fmt.Sprint("short", i), tenure.WithTTL(time.Second))
					<-short.Context().Done()
				}
				lost := 0
				for _, term := range terms {
					if !mayAct(term) {
						lost++
					}
					_ = term.Release(t.Context())
				}
				if lost > 0 {
					t.Errorf("%d of %d long terms were lost", lost, len(terms))
				}
				_ = r.close()
			})
		})
	}
}

// A record that was busy once is not left out because others are always due.
func TestBusyRecordDoesNotStarve(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		victim := r.acquire("victim")
		var terms []*tenure.Term
		for i := range 500 { // each with a beat of its own, so that something is always due
			terms = append(terms, r.acquire(fmt.Sprint("n", i), tenure.WithTTL(ttl/10+time.Duration(i)*time.Millisecond)))
		}
		busy, dense := true, time.Now().Add(ttl) // from then on something is due at every moment
		answer := func(ctx context.Context, g []store.Grant) ([]store.Result, error) {
			time.Sleep(20 * time.Millisecond)
			res, err := st.Store.Renew(ctx, g)
			for i := range g {
				if g[i].Name == "victim" && busy && time.Now().After(dense) {
					busy, res[i] = false, store.Result{Err: store.ErrBusy}
				}
			}
			return res, err
		}
		st.renew.Store(&answer)
		time.Sleep(3 * ttl)
		if !mayAct(victim) {
			t.Errorf("lost after one busy answer: %v", victim.Err())
		}
		st.renew.Store(nil)
		for _, term := range append(terms, victim) {
			_ = term.Release(t.Context())
		}
		_ = r.close()
	})
}

// Records that are busy one by one, as under a bulk update, go together when
// they are tried again.
func TestManyBusyRecords(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		var terms []*tenure.Term
		for i := range 2000 {
			terms = append(terms, r.acquire(fmt.Sprint("n", i)))
		}
		first := true
		answer := func(ctx context.Context, g []store.Grant) ([]store.Result, error) {
			time.Sleep(10 * time.Millisecond)
			if !first {
				return st.Store.Renew(ctx, g)
			}
			first = false
			res := make([]store.Result, len(g))
			for i := range res {
				res[i].Err = store.ErrBusy
			}
			return res, nil
		}
		st.renew.Store(&answer)
		time.Sleep(2 * ttl)
		lost := 0
		for _, term := range terms {
			if !mayAct(term) {
				lost++
			}
			_ = term.Release(t.Context())
		}
		if lost > 0 {
			t.Errorf("%d of %d terms were lost after one busy answer each", lost, len(terms))
		}
		_ = r.close()
	})
}

// The later term of a name is renewed in time although an earlier one stands in
// its way, with the longest interval that is allowed.
func TestLaterTermOfANameKeepsItsBeat(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{Interval: ttl / 2})
		first := r.acquire("a")
		_ = st.Store.Revoke(t.Context(), "a", first.Token(), store.Revocation{Now: true})
		second := r.acquire("a")
		time.Sleep(4 * ttl)
		if !mayAct(second) {
			t.Errorf("lost: %v", second.Err())
		}
		_ = second.Release(t.Context())
		_ = r.close()
	})
}

// A forked child says nothing to the store, also if a release is the first it does.
func TestP4ForkReleasesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		term := r.acquire("a")
		r.k.ForgetProcess()
		if err := term.Release(t.Context()); !errors.Is(err, tenure.ErrLost) {
			t.Errorf("release in a fork: %v, want the loss", err)
		}
		if rec, _ := st.Get(t.Context(), "a"); rec.Status != store.Held {
			t.Errorf("the parent's lease is %s", rec.Status)
		}
		_ = r.close()
	})
}

// closingWatch is a store whose watches end when it is told to.
type closingWatch struct {
	*faults
	end chan struct{}
}

func (c closingWatch) Watch(ctx context.Context, _ string) (<-chan store.Event, error) {
	events := make(chan store.Event)
	go func() {
		select {
		case <-c.end:
		case <-ctx.Done():
		}
		close(events)
	}()
	return events, nil
}

// A watch that ends, as in a failover, does not cut short the watching of a
// record whose expiry is not to be trusted.
func TestObservationOutlastsTheWatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		start := time.Now()
		var step atomic.Int64
		st := &faults{Store: memory.NewWith(memory.Config{Clock: func() time.Duration { return time.Since(start) + time.Duration(step.Load()) }})}
		a := newRig(t, st, tenure.Config{})
		closing := closingWatch{st, make(chan struct{})}
		h, told := newHost(), &events{}
		k, err := tenure.NewKeeper(closing, tenure.WithClock(tenure.Config{TTL: ttl, OnEvent: told.add}, h.now))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- k.Run(ctx) }()
		term := a.acquire("a")
		hole := blackHole
		st.renew.Store(&hole)
		got := make(chan *tenure.Term)
		go func() { w, _ := k.Acquire(ctx, "a"); got <- w }()
		time.Sleep(time.Second)
		step.Store(int64(2 * time.Hour))
		for !strings.Contains(told.kinds(), "store_clock_step") {
			time.Sleep(10 * time.Millisecond)
		}
		seen := time.Now()
		close(closing.end)
		w := <-got
		if d := time.Since(seen); d < ttl-20*time.Millisecond {
			t.Errorf("taken over %s after the step was seen, want a full TTL of watching", d)
		}
		st.renew.Store(nil)
		_ = term.Release(t.Context())
		_ = w.Release(t.Context())
		cancel()
		<-ended
		_ = a.close()
	})
}
