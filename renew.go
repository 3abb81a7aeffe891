package tenure

import (
	"context"
	"errors"
	"time"

	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/internal/term"
	"github.com/tenurehq/tenure/store"
)

// renew sends one request for the given terms and takes in the answers. Run
// has at most one of them on its way.
func (k *Keeper) renew(ctx context.Context, due []*Term) {
	var (
		terms   []*Term
		grants  []store.Grant
		timeout = store.MaxTTL
		most    time.Duration // left to the term that has most: one that ends cuts no other short
		need    time.Duration // of those that have no time for another try: the longest interval
	)
	attempts := store.NewAttempts(len(due))
	for i, t := range due {
		var (
			grant store.Grant
			ok    bool
		)
		t.apply(func(m *term.Machine, now clock.Reading) {
			grant = t.grant(attempts[i])
			if ok = m.Sent(grant.Attempt, now); ok {
				left := m.Left(now)
				if most = max(most, left); left <= t.times.interval {
					need = max(need, t.times.interval)
				}
			}
		})
		if ok {
			terms, grants = append(terms, t), append(grants, grant)
		}
	}
	if len(terms) == 0 {
		return
	}
	k.mu.Lock()
	for t := range k.terms { // whoever is not in this request waits for its end
		timeout = min(timeout, t.times.interval)
	}
	ctx, cancel := context.WithTimeout(ctx, max(min(max(timeout, need), most), time.Millisecond))
	if need == 0 {
		k.flight = cancel
	}
	k.mu.Unlock()
	sent := k.now()
	results, err := k.st.Renew(ctx, grants)
	// Broken off by us: for a shorter term that waits for its end, or since none is left.
	broken := err != nil && errors.Is(ctx.Err(), context.Canceled)
	k.mu.Lock()
	k.flight = nil
	k.mu.Unlock()
	cancel()
	if err == nil && len(results) != len(grants) {
		err = errors.New("tenure: the store answered for another number of terms than it was asked for")
	}
	got := k.now()
	failed, renamed := 0, false
	var firstErr error
	for i, t := range terms {
		r := store.Result{Err: err}
		if err == nil {
			r = results[i]
			if i == 0 {
				k.watchClock(sent, got, r.Record.Now)
			}
		}
		lost := t.answered(grants[i].Attempt, r, err == nil, broken)
		if r.Err != nil && !lost {
			failed++
			if firstErr == nil {
				firstErr = r.Err
			}
		}
		renamed = renamed || lost && errors.Is(r.Err, store.ErrSuperseded)
	}
	if k.cfg.OnRenewal != nil && !broken {
		r := Renewal{Terms: len(terms), Failed: failed, Took: got.Elapsed(sent), Err: firstErr}
		if firstErr != nil {
			r.Reason = Reason(store.Classify(firstErr))
		}
		k.cfg.OnRenewal(r)
	}
	if renamed { // a copy of this process may be at work: go on under another name
		k.renameHolder()
	}
	if failed > 0 {
		k.retrySoon(terms, sent, err != nil)
		if !broken {
			k.tellFailing(failed, terms[0].times.interval, firstErr)
		}
	}
}

// answered takes in the answer for one term; own says that it is for this term
// and not for the request as a whole, broken that the request was broken off by the
// keeper itself, which is no failure. It reports whether the answer ended it.
func (t *Term) answered(attempt store.Attempt, r store.Result, own, broken bool) (lost bool) {
	confirmed := false
	t.apply(func(m *term.Machine, now clock.Reading) {
		t.apart = false
		if s := m.Check(now); s != term.Held && s != term.Doubt {
			return
		}
		switch {
		case r.Err == nil:
			t.lastErr = nil
			confirmed = m.Confirm(attempt, now, r.Record.TTL)
		case store.Definite(r.Err):
			t.lastErr, t.rival, t.why = r.Err, r.Record, r.Record.Why
			m.Lose(string(store.Classify(r.Err)), now)
			lost = true
		case broken:
		default:
			t.lastErr = r.Err
			if own && errors.Is(r.Err, store.ErrBusy) {
				t.apart, t.retryAt = true, now.Add(t.times.interval/8)
			}
			m.Fail(string(store.Classify(r.Err)), now)
			if t.k.cfg.StandDownOnError {
				m.Lose(string(store.Classify(r.Err)), now)
			}
		}
	})
	if confirmed && t.opts.onConfirm != nil {
		t.opts.onConfirm(t)
	}
	return lost
}

// retrySoon brings the next try forward after a request that failed as a
// whole: a quarter of the interval after it left, so at once if it timed out.
func (k *Keeper) retrySoon(terms []*Term, left clock.Reading, whole bool) {
	if !whole {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range terms {
		if b := k.beats[t.times.interval]; b != nil {
			b.from, b.wait = left, shorten(t.times.interval/4, 0.2)
		}
	}
}

// tellFailing reports failing renewals, at most once an interval.
func (k *Keeper) tellFailing(terms int, interval time.Duration, err error) {
	now := k.now()
	k.mu.Lock()
	quiet := k.failed != (clock.Reading{}) && now.Elapsed(k.failed) < interval
	if !quiet {
		k.failed = now
	}
	k.mu.Unlock()
	if !quiet {
		k.emit(Event{Kind: EventFailing, Reason: Reason(store.Classify(err)), Terms: terms, Err: err})
	}
}

// watchClock reports a step of the store's clock by more than the margin.
func (k *Keeper) watchClock(sent, got clock.Reading, storeNow time.Time) {
	k.mu.Lock()
	step := k.clock.Step(sent, got, storeNow)
	k.mu.Unlock()
	if step > k.cfg.Margin || step < -k.cfg.Margin {
		k.emit(Event{Kind: EventClockStep, Step: step})
	}
}
