package tenure

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store"
)

// wait tries until it holds the lease.
func (w *contender) wait(ctx context.Context) (*Term, error) {
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	w.watcher, _ = w.k.st.(store.Watcher)
	told := false
	for {
		t, err := w.try(ctx)
		if err == nil {
			return t, nil
		}
		if w.final(err) {
			return nil, err
		}
		if cause := context.Cause(ctx); cause != nil {
			return nil, errors.Join(cause, err)
		}
		var held *store.HeldError
		switch {
		case errors.Is(err, store.ErrClockStep): // told when the watching begins
		case !errors.As(err, &held):
			w.refused(err)
		default:
			if !told || held.Reason != store.HeldByTerm {
				told = true
				w.k.emit(Event{Kind: EventWaiting, Lease: w.name, Holder: held.Record.Holder, Token: held.Record.Token, Reason: Reason(held.Reason), Left: held.Remaining})
			}
			if w.opts.onWait != nil {
				w.opts.onWait(held)
			}
			w.register(watching)
		}
		if err := w.sleep(ctx, w.pause(ctx, err, held)); err != nil {
			return nil, errors.Join(err, w.last)
		}
	}
}

// register asks the store, in the background, to tell of ends and starts of
// terms. A network that swallows new connections must not hold up the waiter,
// and a watch that ends again and again must not make it ask all the time.
func (w *contender) register(ctx context.Context) {
	now := w.k.now()
	again := w.asked == (clock.Reading{}) || now.Elapsed(w.asked) >= w.times.interval/2
	if w.watcher == nil || w.events != nil || w.watches != nil || !again {
		return
	}
	w.asked = now
	watches := make(chan registration, 1)
	w.watches = watches
	go func() {
		events, err := w.watcher.Watch(ctx, w.name)
		watches <- registration{events, err}
	}()
}

// registration is the outcome of a Watch.
type registration struct {
	events <-chan store.Event
	err    error
}

// final reports whether waiting cannot change the answer.
func (w *contender) final(err error) bool {
	switch store.Classify(err) {
	case store.CodeInvalid, store.CodePermission, store.CodeSchema, store.CodeCopied, store.CodeUnsupported:
		return true
	case store.CodeMissing: // without a revision asked for: the store's file is another
		return w.watch == nil
	}
	return errors.Is(err, ErrClosed) || errors.Is(err, store.ErrReadOnly) && !w.heard
}

// refused tells, at most once an interval, that the store does not decide.
func (w *contender) refused(err error) {
	now := w.k.now()
	if w.told == (clock.Reading{}) || now.Elapsed(w.told) >= w.times.interval {
		w.told = now
		w.k.emit(Event{Kind: EventRefused, Lease: w.name, Reason: Reason(store.Classify(err)), Err: err})
	}
}

// pause returns how long to wait after an answer.
func (w *contender) pause(ctx context.Context, err error, held *store.HeldError) time.Duration {
	interval := w.times.interval
	switch {
	case errors.Is(err, store.ErrClockStep):
		// Judge the expiry by watching the record for its whole TTL instead.
		return w.observe(ctx)
	case w.watch != nil && held != nil && held.Record.Status == store.Lapsed:
		return w.observe(ctx) // perhaps another record than was watched, and lapsed by the same clock
	case w.watch != nil && (errors.Is(err, store.ErrMissing) || held != nil && held.Record.Revision != w.watch.revision):
		w.watch = nil // somebody holds, released or removed it since: the clock goes on from there
	}
	switch {
	case held == nil:
		return shorten(interval, 0.5)
	case w.events != nil:
		return held.Remaining + w.spread()
	default:
		return min(held.Remaining+w.spread(), shorten(interval, 0.2))
	}
}

// spread is a random part of the time over which those who wait for the same
// expiry ask: short, as the lease is free meanwhile.
func (w *contender) spread() time.Duration {
	return jitter(min(50*time.Millisecond, w.times.margin/4))
}

// handover is about what passing a lease on takes at the least. Of many who are
// told of an end, about one asks in each.
const handover = 2 * time.Millisecond

func jitter(most time.Duration) time.Duration { return time.Duration(rand.Float64() * float64(most)) }

// observation is a record that is watched for a full TTL, because the store's
// clock is not to be trusted with its expiry. Whatever is told or asked
// meanwhile, only a record that is released or that moved ends it sooner.
type observation struct {
	revision store.Revision
	ttl      time.Duration
	from     time.Duration // the monotonic clock at the arrival of the first reply that showed the revision
}

// left is how long the record must still be watched.
func (o *observation) left(now clock.Reading) time.Duration { return o.from + o.ttl - now.Mono }

// observe begins or goes on with watching the record, and returns for how long.
func (w *contender) observe(ctx context.Context) time.Duration {
	one, cancel := w.bound(ctx)
	defer cancel()
	rec, err := w.k.st.Get(one, w.name)
	switch {
	case err != nil:
		return shorten(w.times.interval, 0.5)
	case rec.Status != store.Lapsed: // it moved since
		w.watch = nil
		return jitter(w.times.interval / 4)
	}
	w.follow(&rec, w.k.now())
	return max(w.watch.left(w.k.now()), 0)
}

// follow watches rec, which arrived at got, unless it is being watched.
func (w *contender) follow(rec *store.Record, got clock.Reading) {
	if w.watch != nil && w.watch.revision == rec.Revision {
		return
	}
	w.watch = &observation{revision: rec.Revision, ttl: rec.TTL, from: got.Mono}
	w.k.emit(Event{Kind: EventClockStep, Lease: w.name, Holder: rec.Holder, Token: rec.Token})
}

// sleep waits for d, or until the store tells that the lease may be free.
func (w *contender) sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.k.closing.Done():
			return ErrClosed
		case r := <-w.watches:
			w.watches, w.events = nil, r.events
			if r.err == nil {
				return nil // ask again: the term may have ended before the watch began
			}
			if errors.Is(r.err, store.ErrUnsupported) {
				w.watcher = nil
			}
		case e, ok := <-w.events:
			switch {
			case !ok: // ask, and watch anew if it can be; many lose their watch together
				w.events = nil
				timer.Reset(jitter(min(d, w.times.interval/4)))
			case e.Held:
				timer.Reset(e.Remaining + w.spread())
			default: // who is told of a new term before its turn does not ask at all
				timer.Reset(jitter(min(w.times.margin/4, time.Duration(max(e.Waiters-1, 0))*handover)))
			}
		}
	}
}
