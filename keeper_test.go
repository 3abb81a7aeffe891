package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
)

// host is a machine with three clocks that a test can move. It follows package
// time, so it works inside a synctest bubble.
type host struct {
	start            time.Time
	mono, boot, wall atomic.Int64 // moved by the test, on top of package time
}

func newHost() *host { return &host{start: time.Now()} }

func (h *host) now() clock.Reading {
	d := time.Since(h.start)
	return clock.Reading{Mono: d + time.Duration(h.mono.Load()), Boot: d + time.Duration(h.boot.Load()), Wall: d + time.Duration(h.wall.Load())}
}

// faults wraps a store; each hook may stand in for the call behind it.
type faults struct {
	*memory.Store
	renew   atomic.Pointer[func(context.Context, []store.Grant) ([]store.Result, error)]
	acquire atomic.Pointer[func(context.Context, store.Request) (store.Record, error)]
	release atomic.Pointer[func(context.Context, []store.Grant) ([]store.Result, error)]

	mu                         sync.Mutex
	renews, acquires, releases [][]string // names of each request
}

func (f *faults) note(list *[][]string, grants []store.Grant) {
	var names []string
	for _, g := range grants {
		names = append(names, g.Name)
	}
	f.mu.Lock()
	*list = append(*list, names)
	f.mu.Unlock()
}

func (f *faults) count(list *[][]string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(*list)
}

func (f *faults) Renew(ctx context.Context, g []store.Grant) ([]store.Result, error) {
	f.note(&f.renews, g)
	if h := f.renew.Load(); h != nil {
		return (*h)(ctx, g)
	}
	return f.Store.Renew(ctx, g)
}

func (f *faults) Acquire(ctx context.Context, r store.Request) (store.Record, error) {
	f.note(&f.acquires, []store.Grant{{Name: r.Name}})
	if h := f.acquire.Load(); h != nil {
		return (*h)(ctx, r)
	}
	return f.Store.Acquire(ctx, r)
}

func (f *faults) Release(ctx context.Context, g []store.Grant) ([]store.Result, error) {
	f.note(&f.releases, g)
	if h := f.release.Load(); h != nil {
		return (*h)(ctx, g)
	}
	return f.Store.Release(ctx, g)
}

func blackHole(ctx context.Context, _ []store.Grant) ([]store.Result, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// rig is one keeper on one host over one store, inside a synctest bubble.
type rig struct {
	t      *testing.T
	st     *faults
	host   *host
	k      *tenure.Keeper
	stop   context.CancelFunc
	ended  chan error
	events *events
}

type events struct {
	mu   sync.Mutex
	list []tenure.Event
}

func (e *events) add(v tenure.Event) {
	e.mu.Lock()
	e.list = append(e.list, v)
	e.mu.Unlock()
}

func (e *events) kinds() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var s []string
	for _, v := range e.list {
		if v.Reason != "" {
			s = append(s, string(v.Kind)+":"+string(v.Reason))
		} else {
			s = append(s, string(v.Kind))
		}
	}
	return strings.Join(s, " ")
}

const ttl = 10 * time.Second // interval 3.33 s, margin 2 s, trust 8 s

func newStore() *faults {
	start := time.Now()
	return &faults{Store: memory.NewWith(memory.Config{Clock: func() time.Duration { return time.Since(start) }})}
}

func newRig(t *testing.T, st *faults, cfg tenure.Config) *rig {
	t.Helper()
	r := &rig{t: t, st: st, host: newHost(), ended: make(chan error, 1), events: &events{}}
	if cfg.TTL == 0 {
		cfg.TTL = ttl
	}
	cfg.OnEvent = r.events.add
	k, err := tenure.NewKeeper(st, tenure.WithClock(cfg, r.host.now))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.k, r.stop = k, cancel
	go func() { r.ended <- k.Run(ctx) }()
	return r
}

func (r *rig) acquire(name string, opts ...tenure.AcquireOption) *tenure.Term {
	r.t.Helper()
	term, err := r.k.TryAcquire(context.Background(), name, opts...)
	if err != nil {
		r.t.Fatal(err)
	}
	return term
}

// close ends the keeper and reports what Run returned.
func (r *rig) close() error {
	r.stop()
	return <-r.ended
}

func (r *rig) reason(term *tenure.Term) tenure.Reason {
	r.t.Helper()
	var lost *tenure.LostError
	if !errors.As(term.Err(), &lost) {
		r.t.Fatalf("term's error is %v, want *LostError", term.Err())
	}
	if cause := context.Cause(term.Context()); !errors.Is(cause, tenure.ErrLost) {
		r.t.Fatalf("context ended with %v, want the loss", cause)
	}
	return lost.Reason
}

func mayAct(term *tenure.Term) bool { _, ok := term.MayAct(); return ok }

func bubble(t *testing.T, f func(t *testing.T)) { t.Helper(); t.Parallel(); synctest.Test(t, f) }

func TestKeeperHoldsAndReleases(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newStore(), tenure.Config{})
		term := r.acquire("a")
		for range 100 {
			time.Sleep(time.Second)
			if !mayAct(term) {
				t.Fatalf("may not act: %v", term.Err())
			}
		}
		if err := term.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if mayAct(term) || !errors.Is(term.Err(), tenure.ErrReleased) || !errors.Is(context.Cause(term.Context()), tenure.ErrReleased) {
			t.Errorf("after release: may act %v, err %v", mayAct(term), term.Err())
		}
		second := r.acquire("a")
		if second.Token() <= term.Token() {
			t.Errorf("token went from %s to %s", term.Token(), second.Token())
		}
		_ = second.Release(t.Context())
		if err := r.close(); err != nil {
			t.Error(err)
		}
		if got, want := r.events.kinds(), "acquired released acquired released"; got != want {
			t.Errorf("events %q, want %q", got, want)
		}
	})
}

// The right ends at the departure of the last confirmed request + TTL - margin,
// and the context with it, long before the store could grant to another.
func TestP3StopFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		term := r.acquire("a")
		var departed time.Time
		slow := func(ctx context.Context, g []store.Grant) ([]store.Result, error) {
			departed = time.Now()
			res, err := st.Store.Renew(ctx, g)
			time.Sleep(700 * time.Millisecond) // a slow reply must not stretch the trust
			hole := blackHole
			st.renew.Store(&hole)
			return res, err
		}
		st.renew.Store(&slow)
		<-term.Context().Done()
		if got, want := time.Since(departed), 8*time.Second; got != want {
			t.Errorf("lost %s after the departure of the last confirmed request, want %s", got, want)
		}
		if got := r.reason(term); got != tenure.ReasonNoContact {
			t.Errorf("reason %q, want no_contact", got)
		}
		rec, err := st.Get(t.Context(), "a")
		if err != nil || rec.Status != store.Held || rec.Remaining < time.Second {
			t.Errorf("at the loss the record was %v with %v left (%v); want it held for the margin", rec.Status, rec.Remaining, err)
		}
		n := st.count(&st.renews)
		time.Sleep(time.Minute)
		if got := st.count(&st.renews); got != n {
			t.Errorf("%d renewals were sent after the loss", got-n)
		}
		_ = r.close()
	})
}

// One failure is no loss, and the next try comes sooner than an interval later.
func TestP3OneFailureIsNoLoss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		term := r.acquire("a")
		fail := func(context.Context, []store.Grant) ([]store.Result, error) {
			st.renew.Store(nil)
			return nil, fmt.Errorf("renew: %w", store.ErrReadOnly)
		}
		st.renew.Store(&fail)
		time.Sleep(20 * time.Second)
		if !mayAct(term) {
			t.Fatalf("lost: %v", term.Err())
		}
		if got := r.events.kinds(); got != "acquired renewal_failed:read_only" {
			t.Errorf("events %q", got)
		}
		_ = term.Release(t.Context())
		_ = r.close()
	})
}

// C09: a refusal for good is retried until TrustedUntil and becomes the reason.
func TestC09RefusalBecomesTheReason(t *testing.T) {
	for _, c := range []struct {
		err  error
		want tenure.Reason
	}{
		{store.ErrPermission, tenure.ReasonPermission}, {store.ErrReadOnly, tenure.ReasonReadOnly}, {store.ErrSchema, tenure.ReasonSchema},
		{store.ErrBusy, tenure.ReasonBusy}, {store.ErrCopied, tenure.ReasonCopied}, {store.ErrUnavailable, tenure.ReasonNoContact}, {errors.New("odd"), tenure.ReasonNoContact},
	} {
		t.Run(string(c.want), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				st := newStore()
				r := newRig(t, st, tenure.Config{})
				term := r.acquire("a")
				fail := func(context.Context, []store.Grant) ([]store.Result, error) { return nil, c.err }
				st.renew.Store(&fail)
				start := time.Now()
				<-term.Context().Done()
				if d := time.Since(start); d != 8*time.Second {
					t.Errorf("lost after %s, want 8s", d)
				}
				if got := r.reason(term); got != c.want {
					t.Errorf("reason %q, want %q", got, c.want)
				}
				if n := st.count(&st.renews); n < 3 || n > 30 {
					t.Errorf("%d tries within the trust, want a few and no hot loop", n)
				}
				if !errors.Is(term.Err(), c.err) {
					t.Errorf("loss %v does not match the answer %v", term.Err(), c.err)
				}
				_ = r.close()
			})
		})
	}
}

// A definite answer ends the term at once, with a reason of its own (P10, C01, C79).
func TestP10DefiniteLoss(t *testing.T) {
	for _, c := range []struct {
		err  error
		want tenure.Reason
	}{
		{store.ErrSuperseded, tenure.ReasonSuperseded}, {store.ErrExpired, tenure.ReasonExpired}, {store.ErrMissing, tenure.ReasonMissing},
		{store.ErrRevoked, tenure.ReasonRevoked}, {store.ErrReleased, tenure.ReasonEnded},
	} {
		t.Run(string(c.want), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				st := newStore()
				r := newRig(t, st, tenure.Config{})
				term := r.acquire("a")
				before := r.k.Holder()
				answer := func(_ context.Context, g []store.Grant) ([]store.Result, error) {
					return []store.Result{{Err: c.err, Record: store.Record{Name: "a", Holder: "b/1", Token: 9, Why: "words"}}}, nil
				}
				st.renew.Store(&answer)
				start := time.Now()
				<-term.Context().Done()
				if d := time.Since(start); d > ttl/3 {
					t.Errorf("lost after %s, want within one interval", d)
				}
				var lost *tenure.LostError
				if !errors.As(term.Err(), &lost) || lost.Reason != c.want || lost.Rival != "b/1" || lost.Current != 9 || lost.Lease != "a" || lost.Token != 1 {
					t.Errorf("loss %+v, want %s with its evidence", lost, c.want)
				}
				if renamed := r.k.Holder() != before; renamed != (c.want == tenure.ReasonSuperseded) {
					t.Errorf("identity remade: %v", renamed)
				}
				writes := st.Writes()
				time.Sleep(time.Minute)
				if st.Writes() != writes {
					t.Error("the record was written after the loss")
				}
				if got, want := r.events.kinds(), "acquired lost:"+string(c.want); got != want {
					t.Errorf("events %q, want %q", got, want)
				}
				_ = r.close()
			})
		})
	}
}

// P4: a suspend is refused at the first check, and the context ends within a tick.
func TestP4Suspend(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newStore(), tenure.Config{})
		term := r.acquire("a")
		time.Sleep(time.Second)
		r.host.boot.Add(int64(60 * time.Second))
		r.host.wall.Add(int64(60 * time.Second))
		r.host.mono.Add(int64(50 * time.Millisecond))
		if mayAct(term) {
			t.Fatal("may act after a suspend of 60 s")
		}
		if got := r.reason(term); got != tenure.ReasonPaused {
			t.Errorf("reason %q, want paused", got)
		}
		_ = r.close()
	})
	// Nobody checks: the loop finds it.
	t.Run("tick", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r := newRig(t, newStore(), tenure.Config{})
			term := r.acquire("a")
			time.Sleep(time.Second + time.Millisecond)
			r.host.boot.Add(int64(60 * time.Second))
			at := time.Now()
			<-term.Context().Done()
			if d := time.Since(at); d > 500*time.Millisecond {
				t.Errorf("context ended %s after the wake, want within a tick of margin/4", d)
			}
			_ = r.close()
		})
	})
}

// P4: a wall step is a doubt that a renewal clears; the token stays.
func TestP4WallStep(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				st := newStore()
				r := newRig(t, st, tenure.Config{})
				term := r.acquire("a")
				time.Sleep(time.Second)
				r.host.wall.Add(int64(step))
				if mayAct(term) || term.State() != tenure.StateDoubt {
					t.Fatalf("state %s after a wall step, want doubt", term.State())
				}
				time.Sleep(time.Second)
				if !mayAct(term) {
					t.Fatalf("the doubt was not cleared: %v", term.Err())
				}
				if got, want := r.events.kinds(), "acquired doubt:wall_step confirmed"; got != want {
					t.Errorf("events %q, want %q", got, want)
				}
				// A renewal that left before the step does not clear it.
				held := make(chan struct{})
				hole := blackHole
				late := func(ctx context.Context, g []store.Grant) ([]store.Result, error) {
					st.renew.Store(&hole)
					res, err := st.Store.Renew(ctx, g)
					close(held)
					time.Sleep(500 * time.Millisecond)
					return res, err
				}
				st.renew.Store(&late)
				<-held
				r.host.wall.Add(int64(-step))
				if mayAct(term) {
					t.Fatal("may act in doubt")
				}
				time.Sleep(600 * time.Millisecond)
				if mayAct(term) {
					t.Fatal("an answer to a request from before the step cleared the doubt")
				}
				st.renew.Store(nil)
				time.Sleep(ttl / 2)
				if !mayAct(term) || term.Token() != 1 {
					t.Fatalf("not cleared by the next renewal: %v", term.Err())
				}
				_ = term.Release(t.Context())
				_ = r.close()
			})
		})
	}
}

func TestP4Fork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		term := r.acquire("a")
		r.k.ForgetProcess()
		if mayAct(term) {
			t.Fatal("a forked child may act")
		}
		if got := r.reason(term); got != tenure.ReasonForked {
			t.Errorf("reason %q, want forked", got)
		}
		var lost *tenure.LostError
		if err := term.Release(t.Context()); !errors.As(err, &lost) {
			t.Errorf("release in a fork: %v, want the loss", err)
		}
		time.Sleep(time.Minute)
		if st.count(&st.renews)+st.count(&st.releases) != 0 {
			t.Error("a forked child spoke to the store")
		}
		_ = r.close()
	})
}

// P5: two processes continue from one image; at most one is confirmed.
func TestP5Copies(t *testing.T) {
	for _, first := range []int{0, 1} {
		t.Run(fmt.Sprintf("%d renews first", first), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				st := newStore()
				original := newRig(t, st, tenure.Config{})
				term := original.acquire("a")
				copied := newRig(t, st, tenure.Config{})
				twin, err := copied.k.Resume(term.Image())
				if err != nil {
					t.Fatal(err)
				}
				pair := []*tenure.Term{term, twin}
				pair[first].Progress("x") // no meaning; both are alive
				if first == 0 {
					original.k.Doubt(tenure.DoubtWake, "") // renews at once
				} else {
					copied.k.Doubt(tenure.DoubtWake, "")
				}
				synctest.Wait()
				if !mayAct(pair[first]) {
					t.Fatalf("the first to renew may not act: %v", pair[first].Err())
				}
				time.Sleep(ttl / 3)
				if mayAct(pair[1-first]) || !mayAct(pair[first]) {
					t.Fatalf("after one interval both or none may act: %v / %v", pair[0].Err(), pair[1].Err())
				}
				losing := original
				if first == 0 {
					losing = copied
				}
				if got := losing.reason(pair[1-first]); got != tenure.ReasonSuperseded {
					t.Errorf("reason %q, want superseded", got)
				}
				if original.k.Holder() == copied.k.Holder() {
					t.Error("both go on under one identity")
				}
				// The loser's release must not end the winner's term.
				if err := pair[1-first].Release(t.Context()); !errors.Is(err, tenure.ErrLost) {
					t.Errorf("release by the loser: %v, want the loss", err)
				}
				time.Sleep(3 * ttl)
				if !mayAct(pair[first]) {
					t.Errorf("the winner lost: %v", pair[first].Err())
				}
				_ = pair[first].Release(t.Context())
				_ = original.close()
				_ = copied.close()
			})
		})
	}
}

// With Doubt(restore) told to both, nobody may act until one has a new term.
func TestP5RestoreTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		a, b := newRig(t, st, tenure.Config{}), newRig(t, st, tenure.Config{})
		term := a.acquire("a")
		twin, err := b.k.Resume(term.Image())
		if err != nil {
			t.Fatal(err)
		}
		a.k.Doubt(tenure.DoubtRestore, "snapshot 7")
		b.k.Doubt(tenure.DoubtRestore, "snapshot 7")
		if mayAct(term) || mayAct(twin) {
			t.Fatal("may act after a restore was told")
		}
		if got := a.reason(term); got != tenure.ReasonRestored {
			t.Errorf("reason %q, want restored", got)
		}
		won, err := a.k.TryAcquire(t.Context(), "a")
		if err != nil || won.Token() != 2 {
			t.Fatalf("replacing the restored term: %v", err)
		}
		if _, err := b.k.TryAcquire(t.Context(), "a"); !errors.Is(err, store.ErrHeld) {
			t.Fatalf("the other copy got %v, want ErrHeld", err)
		}
		_ = won.Release(t.Context())
		_ = a.close()
		_ = b.close()
	})
}

// P6 and C06: one reply lost costs nothing; token and term go on.
func TestP6LostReplies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		lostAcquire := func(ctx context.Context, req store.Request) (store.Record, error) {
			st.acquire.Store(nil)
			_, _ = st.Store.Acquire(ctx, req)
			<-ctx.Done()
			return store.Record{}, ctx.Err()
		}
		st.acquire.Store(&lostAcquire)
		term, err := r.k.Acquire(t.Context(), "a")
		if err != nil || term.Token() != 1 {
			t.Fatalf("acquire whose first reply was lost: %v", err)
		}
		lostRenew := func(ctx context.Context, g []store.Grant) ([]store.Result, error) {
			st.renew.Store(nil)
			_, _ = st.Store.Renew(ctx, g)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		for range 5 {
			st.renew.Store(&lostRenew)
			time.Sleep(ttl)
		}
		if !mayAct(term) {
			t.Fatalf("lost: %v", term.Err())
		}
		lostRelease := func(ctx context.Context, g []store.Grant) ([]store.Result, error) {
			st.release.Store(nil)
			_, _ = st.Store.Release(ctx, g)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		st.release.Store(&lostRelease)
		if err := term.Release(t.Context()); err != nil {
			t.Errorf("release whose first reply was lost: %v", err)
		}
		if got := r.events.kinds(); !strings.HasSuffix(got, " released") {
			t.Errorf("events %q, want the release claimed: nobody came in between", got)
		}
		_ = r.close()
	})
	// The retry of a lost release finds a successor: ended, neither error nor claim.
	t.Run("release finds a successor", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			st := newStore()
			a, b := newRig(t, st, tenure.Config{}), newRig(t, st, tenure.Config{})
			term := a.acquire("a")
			lost := func(ctx context.Context, g []store.Grant) ([]store.Result, error) {
				st.release.Store(nil)
				_, _ = st.Store.Release(ctx, g)
				_ = b.acquire("a")
				<-ctx.Done()
				return nil, ctx.Err()
			}
			st.release.Store(&lost)
			if err := term.Release(t.Context()); err != nil {
				t.Errorf("release: %v, want nil", err)
			}
			if got, want := a.events.kinds(), "acquired released:released"; got != want {
				t.Errorf("events %q, want %q", got, want)
			}
			rec, _ := st.Get(t.Context(), "a")
			if rec.Status != store.Held || rec.Token != 2 {
				t.Errorf("successor's record is %v token %s", rec.Status, rec.Token)
			}
			_ = a.close()
			_ = b.close()
		})
	})
}

// Requests arrive and replies never do: the holder stops, and so the lease lapses.
func TestP3OneWayLoss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		term := r.acquire("a")
		start := time.Now()
		deaf := func(ctx context.Context, g []store.Grant) ([]store.Result, error) {
			_, _ = st.Store.Renew(context.Background(), g)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		st.renew.Store(&deaf)
		<-term.Context().Done()
		if d := time.Since(start); d != 8*time.Second {
			t.Errorf("stopped after %s, want 8s", d)
		}
		other := newRig(t, st, tenure.Config{})
		won, err := other.k.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d > 18*time.Second+100*time.Millisecond {
			t.Errorf("the lease was kept for %s by renewals without replies", d)
		}
		_ = won.Release(t.Context())
		_ = r.close()
		_ = other.close()
	})
}

// B2: whatever the number of terms, one request an interval.
func TestOneRequestAnInterval(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{TTL: 30 * time.Second})
		var terms []*tenure.Term
		for i := range 200 {
			terms = append(terms, r.acquire(fmt.Sprintf("n/%d", i)))
			time.Sleep(31 * time.Millisecond)
		}
		short := r.acquire("short", tenure.WithTTL(6*time.Second))
		time.Sleep(30 * time.Second)
		before := st.count(&st.renews)
		time.Sleep(10 * time.Minute)
		st.mu.Lock()
		large, small := 0, 0
		for _, names := range st.renews[before:] {
			if slices.Contains(names, "n/0") {
				large++
				if len(names) < 200 {
					t.Errorf("a request carried %d terms, want all 200 together", len(names))
				}
			} else {
				small++
				if len(names) != 1 {
					t.Errorf("the short term's request carried %d terms", len(names))
				}
			}
		}
		st.mu.Unlock()
		if large < 60 || large > 62 {
			t.Errorf("%d requests in 10 minutes for the long terms, want 60 to 62", large)
		}
		if small < 240 || small > 310 {
			t.Errorf("%d requests in 10 minutes for the short term, want about 300", small)
		}
		if !mayAct(short) || !mayAct(terms[0]) || !mayAct(terms[199]) {
			t.Error("a term was lost")
		}
		slow := func(ctx context.Context, g []store.Grant) ([]store.Result, error) {
			time.Sleep(time.Millisecond) // what a request takes
			return st.Store.Release(ctx, g)
		}
		st.release.Store(&slow)
		r.stop()
		synctest.Wait()
		var g sync.WaitGroup
		for _, term := range append(terms, short) {
			g.Go(func() { _ = term.Release(t.Context()) })
		}
		g.Wait()
		if n := st.count(&st.releases); n > 3 {
			t.Errorf("%d release requests for 201 terms, want at most 3", n)
		}
		if err := <-r.ended; err != nil {
			t.Error(err)
		}
	})
}

// A term that comes in while the loop looks around is renewed all the same.
func TestNoTermIsForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newStore(), tenure.Config{})
		for i := range 300 {
			var (
				g    sync.WaitGroup
				done atomic.Bool
			)
			g.Go(func() {
				for !done.Load() {
					r.k.Doubt(tenure.DoubtWake, "") // keeps the loop awake
				}
			})
			term := r.acquire(fmt.Sprint("a", i))
			done.Store(true)
			g.Wait()
			time.Sleep(ttl)
			if !mayAct(term) {
				t.Fatalf("round %d: %v", i, term.Err())
			}
			_ = term.Release(t.Context())
		}
		_ = r.close()
	})
}

// A busy record is tried again alone and sooner; nobody else waits for it.
func TestBusyGoesAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		a, b := r.acquire("a"), r.acquire("b")
		until := time.Now().Add(6 * time.Second)
		busy := func(ctx context.Context, g []store.Grant) ([]store.Result, error) {
			res, err := st.Store.Renew(ctx, slices.DeleteFunc(slices.Clone(g), func(g store.Grant) bool { return g.Name == "a" && time.Now().Before(until) }))
			out := make([]store.Result, len(g))
			for i, j := 0, 0; i < len(g); i++ {
				if g[i].Name == "a" && time.Now().Before(until) {
					out[i] = store.Result{Err: store.ErrBusy}
				} else {
					out[i], j = res[j], j+1
				}
			}
			return out, err
		}
		st.renew.Store(&busy)
		time.Sleep(20 * time.Second)
		if !mayAct(a) || !mayAct(b) {
			t.Fatalf("lost: %v / %v", a.Err(), b.Err())
		}
		st.mu.Lock()
		alone := 0
		for _, names := range st.renews {
			if len(names) == 1 && names[0] == "a" {
				alone++
			}
		}
		st.mu.Unlock()
		if alone < 2 {
			t.Errorf("the busy record was tried alone %d times, want at least 2", alone)
		}
		_ = a.Release(t.Context())
		_ = b.Release(t.Context())
		_ = r.close()
	})
}

// C12: a term that was won too slowly is given back and never handed out.
func TestC12TooSlow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		cfg := tenure.Config{Interval: ttl / 2, Margin: 5 * time.Second} // trust 5 s, timeout 5 s
		r := newRig(t, st, cfg)
		slow := func(ctx context.Context, req store.Request) (store.Record, error) {
			rec, err := st.Store.Acquire(ctx, req)
			time.Sleep(5 * time.Second)
			return rec, err
		}
		st.acquire.Store(&slow)
		if term, err := r.k.TryAcquire(t.Context(), "a"); !errors.Is(err, tenure.ErrTooSlow) {
			t.Fatalf("got %v, %v; want ErrTooSlow", term, err)
		}
		if rec, _ := st.Get(t.Context(), "a"); rec.Status != store.Released {
			t.Errorf("the record is %s, want it given back", rec.Status)
		}
		_ = r.close()
	})
	// Remaining counts from the winning try, not from the first.
	t.Run("waited", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			st := newStore()
			a, b := newRig(t, st, tenure.Config{}), newRig(t, st, tenure.Config{})
			term := a.acquire("a")
			got := make(chan *tenure.Term)
			go func() { w, _ := b.k.Acquire(context.Background(), "a"); got <- w }()
			time.Sleep(3 * ttl)
			_ = term.Release(t.Context())
			w := <-got
			if left := w.Left(); left < 7900*time.Millisecond || left > 8*time.Second {
				t.Errorf("a term won after waiting has %s left, want 8s", left)
			}
			_ = w.Release(t.Context())
			_ = a.close()
			_ = b.close()
		})
	})
}

// A waiter asks when the holder's time is up, and is woken by a release; it
// asks nothing in between and writes nothing.
func TestB3WaiterIsQuiet(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		a, b := newRig(t, st, tenure.Config{TTL: 30 * time.Second}), newRig(t, st, tenure.Config{TTL: 30 * time.Second})
		term := a.acquire("a")
		got := make(chan *tenure.Term)
		go func() { w, _ := b.k.Acquire(context.Background(), "a"); got <- w }()
		synctest.Wait()
		before := st.count(&st.acquires)
		time.Sleep(10 * time.Minute)
		if n := st.count(&st.acquires) - before; n > 26 {
			t.Errorf("a waiter asked %d times in 10 minutes, want one for each remaining TTL", n)
		}
		at := time.Now()
		_ = term.Release(t.Context())
		w := <-got
		if d := time.Since(at); d > 0 {
			t.Errorf("the only waiter was served %s after the release, want at once", d)
		}
		_ = w.Release(t.Context())
		_ = a.close()
		_ = b.close()
	})
}

// C17: of many that wait, few ask at once when the lease is released.
func TestC17NoStampede(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		a, b := newRig(t, st, tenure.Config{}), newRig(t, st, tenure.Config{})
		term := a.acquire("a")
		won := make(chan *tenure.Term, 200)
		waiting, giveUp := context.WithCancel(context.Background())
		var g sync.WaitGroup
		for range 200 {
			g.Go(func() {
				if w, err := b.k.Acquire(waiting, "a"); err == nil {
					won <- w
				}
			})
		}
		synctest.Wait()
		before := st.count(&st.acquires)
		_ = term.Release(t.Context())
		w := <-won
		time.Sleep(200 * time.Millisecond)
		if n := st.count(&st.acquires) - before; n > 12 {
			t.Errorf("%d of 200 waiters asked after one release, want few", n)
		}
		if len(won) != 0 {
			t.Error("more than one holds")
		}
		giveUp()
		g.Wait()
		_ = w.Release(t.Context())
		_ = a.close()
		_ = b.close()
	})
}

// The store's clock jumps ahead: a waiter that saw it before does not believe
// the expiry and watches the record for a full TTL.
func TestWaiterMistrustsAStep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		start := time.Now()
		var step atomic.Int64
		st := &faults{Store: memory.NewWith(memory.Config{Clock: func() time.Duration { return time.Since(start) + time.Duration(step.Load()) }})}
		a, b := newRig(t, st, tenure.Config{}), newRig(t, st, tenure.Config{})
		term := a.acquire("a")
		hole := blackHole // the holder cannot renew; its term is good by its own clocks
		st.renew.Store(&hole)
		got := make(chan *tenure.Term)
		go func() { w, _ := b.k.Acquire(context.Background(), "a"); got <- w }()
		time.Sleep(time.Second)
		step.Store(int64(2 * time.Hour))
		w := <-got
		if mayAct(term) {
			t.Fatal("two may act")
		}
		if d := time.Since(start); d < 2*ttl-2*time.Second {
			t.Errorf("taken over after %s, want a full TTL of watching after the step was seen", d)
		}
		if !strings.Contains(b.events.kinds(), "store_clock_step") {
			t.Errorf("events %q do not tell of the step", b.events.kinds())
		}
		st.renew.Store(nil)
		_ = w.Release(t.Context())
		_ = a.close()
		_ = b.close()
	})
}

// The record that is watched changes, and the clock steps again: what lapsed by
// it is not what was watched.
func TestWaiterWatchesOneRevision(t *testing.T) {
	bubble(t, func(t *testing.T) {
		start := time.Now()
		var step atomic.Int64
		st := &faults{Store: memory.NewWith(memory.Config{Clock: func() time.Duration { return time.Since(start) + time.Duration(step.Load()) }})}
		a, b := newRig(t, st, tenure.Config{}), newRig(t, st, tenure.Config{})
		term := a.acquire("a")
		hole := blackHole
		st.renew.Store(&hole)
		got := make(chan *tenure.Term)
		go func() { w, _ := b.k.Acquire(context.Background(), "a"); got <- w }()
		time.Sleep(time.Second)
		step.Store(int64(2 * time.Hour))
		for !strings.Contains(b.events.kinds(), "store_clock_step") {
			time.Sleep(100 * time.Millisecond)
		}
		// A newcomer believes the clock and takes over; then the clock steps again,
		// so that the newcomer's record lapses by the step alone.
		if _, err := st.Store.Acquire(t.Context(), store.Request{Name: "a", Holder: "new", TTL: ttl, Attempt: store.NewAttempt()}); err != nil {
			t.Fatal(err)
		}
		taken := time.Now()
		step.Add(int64(2 * time.Hour))
		w := <-got
		if d := time.Since(taken); d < ttl {
			t.Errorf("taken over %s after the record was made, want a full TTL of watching that record", d)
		}
		st.renew.Store(nil)
		_ = w.Release(t.Context())
		_ = term.Release(t.Context())
		_ = a.close()
		_ = b.close()
	})
}

func TestHolderReportsAStep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		start := time.Now()
		var step atomic.Int64
		st := &faults{Store: memory.NewWith(memory.Config{Clock: func() time.Duration { return time.Since(start) + time.Duration(step.Load()) }})}
		r := newRig(t, st, tenure.Config{})
		term := r.acquire("a") // and no renewal before the step
		step.Store(int64(2 * time.Hour))
		<-term.Context().Done()
		if got := r.reason(term); got != tenure.ReasonExpired {
			t.Errorf("reason %q, want expired: the store's clock decides", got)
		}
		if !strings.Contains(r.events.kinds(), "store_clock_step") {
			t.Errorf("events %q do not tell of the step", r.events.kinds())
		}
		_ = r.close()
	})
}

func TestNoProgress(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		term := r.acquire("a", tenure.WithStallAfter(15*time.Second))
		for i := range 10 {
			time.Sleep(10 * time.Second)
			term.Progress(fmt.Sprint(i))
		}
		if !mayAct(term) {
			t.Fatalf("lost while it got on: %v", term.Err())
		}
		at := time.Now()
		for range 3 {
			time.Sleep(4 * time.Second)
			term.Progress("9") // the same marker is no progress
		}
		<-term.Context().Done()
		if d := time.Since(at); d < 15*time.Second || d > 16*time.Second {
			t.Errorf("lost %s after the last progress, want 15s", d)
		}
		if got := r.reason(term); got != tenure.ReasonNoProgress {
			t.Errorf("reason %q", got)
		}
		if err := term.Release(t.Context()); err != nil {
			t.Errorf("giving back a stalled term: %v", err)
		}
		if rec, _ := st.Get(t.Context(), "a"); rec.Status != store.Released {
			t.Errorf("the record is %s, want released", rec.Status)
		}
		_ = r.close()
	})
}

// A stall shorter than the keeper's tick is found as well.
func TestNoProgressSoon(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newStore(), tenure.Config{})
		at := time.Now()
		term := r.acquire("a", tenure.WithStallAfter(time.Second))
		<-term.Context().Done()
		if d := time.Since(at); d < time.Second || d > 1500*time.Millisecond || r.reason(term) != tenure.ReasonNoProgress {
			t.Errorf("lost for %q after %s, want no_progress after 1s", r.reason(term), d)
		}
		_ = r.close()
	})
}

// C02: held, lost, candidate, held again with a larger token; nothing carries
// the old token after the loss.
func TestC02DoContendsAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		ctx, cancel := context.WithCancel(context.Background())
		var tokens []string
		finished := make(chan error)
		go func() {
			finished <- tenure.Do(ctx, r.k, "a", func(ctx context.Context, term *tenure.Term) error {
				tokens = append(tokens, term.Token().String())
				if len(tokens) == 2 {
					return errors.New("done")
				}
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), tenure.ErrLost) {
					t.Errorf("work was stopped by %v", context.Cause(ctx))
				}
				return ctx.Err()
			})
		}()
		synctest.Wait()
		hole := blackHole
		holeAcquire := func(ctx context.Context, _ store.Request) (store.Record, error) {
			<-ctx.Done()
			return store.Record{}, ctx.Err()
		}
		st.renew.Store(&hole)
		st.release.Store(&hole)
		st.acquire.Store(&holeAcquire)
		time.Sleep(ttl + 5*time.Second)
		st.renew.Store(nil)
		st.release.Store(nil)
		st.acquire.Store(nil)
		back := time.Now()
		err := <-finished
		if err == nil || !strings.Contains(err.Error(), "done") {
			t.Errorf("Do returned %v", err)
		}
		if d := time.Since(back); d > ttl+2*ttl/3 {
			t.Errorf("held again %s after the store came back", d)
		}
		if got := strings.Join(tokens, " "); got != "1 2" {
			t.Errorf("tokens %q, want 1 2", got)
		}
		cancel()
		_ = r.close()
	})
}

// Shutdown: work is asked to stop, renewals go on until it has, then all is
// released; what is not given back is named.
func TestShutdownDrains(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{DrainTimeout: time.Minute})
		quick, stuck := r.acquire("quick"), r.acquire("stuck")
		r.stop()
		<-quick.Context().Done()
		var lost *tenure.LostError
		if cause := context.Cause(quick.Context()); !errors.As(cause, &lost) || lost.Reason != tenure.ReasonShutdown || errors.Is(cause, tenure.ErrLost) {
			t.Errorf("asked to stop with %v", cause)
		}
		time.Sleep(2 * ttl)
		if !mayAct(quick) {
			t.Errorf("draining work lost its term: %v", quick.Err())
		}
		if err := quick.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := r.k.TryAcquire(t.Context(), "new"); !errors.Is(err, tenure.ErrClosed) {
			t.Errorf("acquire while closing: %v", err)
		}
		err := <-r.ended
		if !errors.Is(err, tenure.ErrNotReleased) || !strings.Contains(err.Error(), `"stuck"`) || strings.Contains(err.Error(), `"quick"`) {
			t.Errorf("Run returned %v, want it to name the term that was not released", err)
		}
		if mayAct(stuck) {
			t.Error("a term outlived its keeper")
		}
		if err := stuck.Release(t.Context()); err != nil {
			t.Errorf("late release: %v", err)
		}
	})
}

// C24 and C28: a release with the store down ends within its bound and says so.
func TestC24ReleaseIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{ReleaseTimeout: time.Second})
		term := r.acquire("a")
		hole := blackHole
		st.release.Store(&hole)
		at := time.Now()
		err := term.Release(t.Context())
		if !errors.Is(err, tenure.ErrNotReleased) {
			t.Errorf("release: %v, want ErrNotReleased", err)
		}
		if d := time.Since(at); d > 2*time.Second {
			t.Errorf("release took %s", d)
		}
		n := st.count(&st.renews)
		time.Sleep(ttl)
		if st.count(&st.renews) != n {
			t.Error("a renewal was sent after the release")
		}
		if got, want := r.events.kinds(), "acquired left_to_expire:no_contact"; got != want {
			t.Errorf("events %q, want %q", got, want)
		}
		_ = r.close()
	})
}

// A record that is busy for long is released once it is free: what decided
// nothing does not push the confirmed attempt off the list.
func TestReleaseOutlastsABusyRecord(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{ReleaseTimeout: time.Minute})
		term := r.acquire("a")
		tries := 0
		busy := func(ctx context.Context, g []store.Grant) ([]store.Result, error) {
			if tries++; tries <= 2*store.MaxKnown {
				return []store.Result{{Err: store.ErrBusy}}, nil
			}
			if tries <= 4*store.MaxKnown {
				return nil, errors.New("reset")
			}
			return st.Store.Release(ctx, g)
		}
		st.release.Store(&busy)
		if err := term.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if rec, _ := st.Get(t.Context(), "a"); rec.Status != store.Released {
			t.Errorf("the record is %s", rec.Status)
		}
		_ = r.close()
	})
}

// A renewal that nobody answers does not hold up the end of Run.
func TestShutdownWithASilentStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		term := r.acquire("a")
		hole := blackHole
		st.renew.Store(&hole)
		for st.count(&st.renews) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		_ = term.Release(t.Context())
		at := time.Now()
		_ = r.close()
		if d := time.Since(at); d > 0 {
			t.Errorf("Run ended %s after its last term, want at once", d)
		}
	})
}

// C28: one refused release does not keep the others.
func TestC28OneBadRelease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{ReleaseTimeout: time.Second})
		var terms []*tenure.Term
		for i := range 5 {
			terms = append(terms, r.acquire(fmt.Sprint("x", i)))
		}
		refuse := func(ctx context.Context, g []store.Grant) ([]store.Result, error) {
			out := make([]store.Result, len(g))
			for i := range g {
				if g[i].Name == "x1" {
					out[i].Err = store.ErrPermission
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
		st.release.Store(&refuse)
		var g sync.WaitGroup
		errs := make([]error, 5)
		for i, term := range terms {
			g.Go(func() { errs[i] = term.Release(t.Context()) })
		}
		g.Wait()
		for i, err := range errs {
			if (err != nil) != (i == 1) {
				t.Errorf("release %d: %v", i, err)
			}
		}
		if !errors.Is(errs[1], store.ErrPermission) || !strings.Contains(errs[1].Error(), `"x1"`) {
			t.Errorf("the refused release says %v", errs[1])
		}
		_ = r.close()
	})
}

func TestHandoff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		a, b, c := newRig(t, st, tenure.Config{Host: "ha"}), newRig(t, st, tenure.Config{Host: "hb"}), newRig(t, st, tenure.Config{Host: "hc"})
		term := a.acquire("a")
		got := make(chan *tenure.Term, 2)
		for _, r := range []*rig{b, c} {
			go func() {
				if w, err := r.k.Acquire(context.Background(), "a"); err == nil {
					got <- w
				}
			}()
		}
		synctest.Wait()
		if err := term.Handoff(t.Context(), "hc"); err != nil {
			t.Fatal(err)
		}
		w := <-got
		if !strings.HasPrefix(w.Holder(), "hc/") || w.Token() != 2 {
			t.Errorf("handed to %s with token %s, want host hc and 2", w.Holder(), w.Token())
		}
		_ = w.Release(t.Context())
		w = <-got
		_ = w.Release(t.Context())
		for _, r := range []*rig{a, b, c} {
			_ = r.close()
		}
	})
}

// An acquire whose replies never came is given back when its caller gives up.
func TestAcquireGivesBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		deaf := func(ctx context.Context, req store.Request) (store.Record, error) {
			_, _ = st.Store.Acquire(context.Background(), req)
			<-ctx.Done()
			return store.Record{}, ctx.Err()
		}
		st.acquire.Store(&deaf)
		ctx, cancel := context.WithTimeout(context.Background(), 6*time.Second)
		defer cancel()
		if _, err := r.k.Acquire(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("acquire: %v", err)
		}
		if rec, _ := st.Get(t.Context(), "a"); rec.Status != store.Released {
			t.Errorf("the record is %s, want given back", rec.Status)
		}
		_ = r.close()
	})
}

// A waiter that gets no decision says so, and gives up on a store that was
// read-only from the first; one that had an answer before waits for it to come back.
func TestWaiterTellsOfRefusals(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		refuse := func(context.Context, store.Request) (store.Record, error) { return store.Record{}, store.ErrReadOnly }
		st.acquire.Store(&refuse)
		if _, err := r.k.Acquire(t.Context(), "a"); !errors.Is(err, store.ErrReadOnly) {
			t.Fatalf("acquire from a read-only store: %v", err)
		}
		st.acquire.Store(nil)
		first := r.acquire("a")
		got := make(chan *tenure.Term)
		go func() { w, _ := r.k.Acquire(context.Background(), "a"); got <- w }()
		synctest.Wait()
		st.acquire.Store(&refuse)
		_ = first.Release(t.Context())
		time.Sleep(2 * ttl)
		st.acquire.Store(nil)
		w := <-got
		_ = w.Release(t.Context())
		_ = r.close()
		if n := strings.Count(r.events.kinds(), "acquire_failed:read_only"); n < 3 || n > 8 {
			t.Errorf("events %q: %d tell of refusals in %s of waiting, want about one an interval", r.events.kinds(), n, 2*ttl)
		}
	})
}

func TestWarningComesEarly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{})
		term := r.acquire("a")
		hole := blackHole
		st.renew.Store(&hole)
		time.Sleep(4900 * time.Millisecond) // the first renewal is stuck until 5 s at least
		st.renew.Store(nil)
		time.Sleep(2 * time.Second)
		if !mayAct(term) {
			t.Fatal(term.Err())
		}
		if got, want := r.events.kinds(), "acquired warning renewal_failed:no_contact confirmed"; got != want {
			t.Errorf("events %q, want %q", got, want)
		}
		_ = term.Release(t.Context())
		_ = r.close()
	})
}

func TestStandDownOnError(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := newStore()
		r := newRig(t, st, tenure.Config{StandDownOnError: true})
		term := r.acquire("a")
		fail := func(context.Context, []store.Grant) ([]store.Result, error) { return nil, store.ErrReadOnly }
		st.renew.Store(&fail)
		time.Sleep(ttl / 3)
		if mayAct(term) {
			t.Error("still holds after a failed renewal")
		}
		_ = r.close()
	})
}

func TestConfigRelations(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cfg  tenure.Config
		want []string // both values are named
	}{
		{tenure.Config{TTL: 10 * time.Second, Interval: 6 * time.Second}, []string{"6s", "10s"}},
		{tenure.Config{TTL: 10 * time.Second, Margin: time.Millisecond}, []string{"1ms", "20ms"}},
		{tenure.Config{TTL: 10 * time.Second, Margin: 8 * time.Second}, []string{"8s", "10s"}},
		{tenure.Config{TTL: 25 * time.Hour}, []string{"25h0m0s", "24h0m0s"}},
		{tenure.Config{TTL: -1}, []string{"-1ns"}},
		{tenure.Config{Drift: 3}, []string{"3"}},
		{tenure.Config{TTL: time.Microsecond}, []string{"1µs", "1ms"}},
	} {
		_, err := tenure.NewKeeper(memory.New(), c.cfg)
		if !errors.Is(err, tenure.ErrConfig) {
			t.Errorf("%+v: %v, want ErrConfig", c.cfg, err)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v does not name %s", err, w)
			}
		}
	}
	if _, err := tenure.NewKeeper(memory.New(), tenure.Config{}); err != nil {
		t.Error(err)
	}
}

func TestFastPathRule(t *testing.T) {
	t.Parallel()
	const left, slack = 8 * time.Second, 250 * time.Millisecond
	for _, c := range []struct {
		mono, wall time.Duration
		want       bool
	}{
		{0, 0, true}, {7 * time.Second, 7 * time.Second, true}, {8 * time.Second, 8 * time.Second, false},
		{time.Second, time.Second + slack, false}, {time.Second, time.Second - slack, false}, {time.Second, time.Second + slack - 1, true},
		{50 * time.Millisecond, 60 * time.Second, false}, {time.Second, -time.Hour, false},
	} {
		if got := tenure.Allows(left, slack, c.mono, c.wall); got != c.want {
			t.Errorf("mono %s wall %s: %v, want %v", c.mono, c.wall, got, c.want)
		}
	}
}

// B6: the check allocates nothing. Real clocks.
func TestMayActAllocatesNothing(t *testing.T) {
	k, err := tenure.NewKeeper(memory.New(), tenure.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- k.Run(ctx) }()
	term, err := k.TryAcquire(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1000, func() { term.MayAct() }); n != 0 {
		t.Errorf("MayAct makes %v allocations", n)
	}
	if !mayAct(term) {
		t.Error("may not act")
	}
	_ = term.Release(ctx)
	cancel()
	<-ended
}

func BenchmarkMayAct(b *testing.B) {
	k, err := tenure.NewKeeper(memory.New(), tenure.Config{})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error)
	go func() { ended <- k.Run(ctx) }()
	term, err := k.TryAcquire(ctx, "a")
	if err != nil {
		b.Fatal(err)
	}
	b.Run("fast", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			term.MayAct()
		}
	})
	b.Run("full", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			term.State()
		}
	})
	_ = term.Release(ctx)
	cancel()
	<-ended
}
