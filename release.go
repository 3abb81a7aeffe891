package tenure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/internal/term"
	"github.com/tenurehq/tenure/store"
)

// release is one term on its way back to the store.
type release struct {
	t     *Term
	grant store.Grant
	sent  bool          // an earlier send went without an answer
	done  chan struct{} // closed when err is final
	err   error
}

// Release gives the term back. Call it after the work under it has ended: from
// then on somebody else may act. Renewals stop and the term's context ends at
// once. It returns nil if the term ended, even if meanwhile it passed to
// somebody else; *LostError if it was lost before by an answer of the store;
// and an error matching ErrNotReleased if the store did not answer within
// Config.ReleaseTimeout: the lease then lapses by itself. ctx bounds only the
// waiting. Calling it again gives the same answer.
func (t *Term) Release(ctx context.Context) error { return t.release(ctx, "") }

// Handoff is Release with the lease reserved for another holder, named whole or
// by its host, for the smaller of the TTL and 10 s. After that it is free to all.
func (t *Term) Handoff(ctx context.Context, to string) error {
	if err := store.CheckHolder(to); err != nil {
		return err
	}
	return t.release(ctx, to)
}

func (t *Term) release(ctx context.Context, to string) error {
	var r *release
	first := false
	t.apply(func(m *term.Machine, now clock.Reading) {
		if r = t.releasing; r != nil {
			return
		}
		m.Check(now)
		m.Release()
		r = &release{t: t, grant: t.grant(store.NewAttempt()), done: make(chan struct{})}
		r.grant.HandoffTo = to
		t.releasing, first = r, true
	})
	if first {
		t.mu.Lock()
		err := t.err
		t.mu.Unlock()
		if settled(err) {
			r.err = err
			close(r.done)
		} else {
			t.k.dropReplace(t)
			t.k.enqueue(r)
		}
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return fmt.Errorf("release %q: %w", t.name, context.Cause(ctx))
	}
}

// settled reports whether the term ended in a way that leaves nothing to give
// back: by an answer of the store, in a forked child, which must not speak for
// its parent.
func settled(err error) bool {
	var lost *LostError
	if !errors.As(err, &lost) {
		return false
	}
	switch lost.Reason {
	case ReasonSuperseded, ReasonExpired, ReasonMissing, ReasonEnded, ReasonForked:
		return true
	}
	return false
}

// dropReplace forgets that a restored term could be replaced: it is given back.
func (k *Keeper) dropReplace(t *Term) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if g, ok := k.replace[t.name]; ok && g.Token == t.token {
		delete(k.replace, t.name)
	}
}

// enqueue has r sent. Whatever is asked for while a request is on its way goes
// together into the next one.
func (k *Keeper) enqueue(r *release) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pending = append(k.pending, r)
	switch {
	case k.sending:
	case k.closed: // Run is gone or waits for what it knows of; the caller waits for this
		k.sending = true
		go k.sendReleases()
	default:
		k.sending = true
		k.work.Go(k.sendReleases)
	}
}

func (k *Keeper) sendReleases() {
	for {
		k.mu.Lock()
		var batch, later []*release
		names := map[string]bool{}
		for _, r := range k.pending {
			if names[r.grant.Name] { // an earlier term of the name that did not know its end
				later = append(later, r)
				continue
			}
			names[r.grant.Name] = true
			batch = append(batch, r)
		}
		k.pending = later
		if len(batch) == 0 {
			k.sending = false
			k.mu.Unlock()
			k.nudge()
			return
		}
		k.mu.Unlock()
		k.sendRelease(batch)
	}
}

// sendRelease tries until every release of the batch is decided or the time is up.
func (k *Keeper) sendRelease(batch []*release) {
	ctx, cancel := context.WithTimeout(k.logCtx, k.cfg.ReleaseTimeout)
	defer cancel()
	for try := 0; len(batch) > 0; try++ {
		grants := make([]store.Grant, len(batch))
		for i, r := range batch {
			if try > 0 {
				r.grant.Attempt = store.NewAttempt()
			}
			grants[i] = r.grant
		}
		one, cancelOne := context.WithTimeout(ctx, max(k.cfg.ReleaseTimeout/3, time.Millisecond))
		results, err := k.st.Release(one, grants)
		cancelOne()
		if err == nil && len(results) != len(batch) {
			err = errors.New("tenure: the store answered for another number of terms than it was asked for")
		}
		var again []*release
		for i, r := range batch {
			res := store.Result{Err: err}
			if err == nil {
				res = results[i]
			}
			if !r.decide(res, ctx.Err() != nil) {
				again = append(again, r)
			}
		}
		if batch = again; len(batch) > 0 {
			select {
			case <-time.After(min(50*time.Millisecond, k.cfg.ReleaseTimeout/10)):
			case <-ctx.Done():
			}
		}
	}
}

// decide takes in one answer and reports whether it is final. last says that no
// further try will be made.
func (r *release) decide(res store.Result, last bool) bool {
	t := r.t
	e := Event{Kind: EventReleased, Lease: t.name, Holder: t.holder, Token: t.token}
	switch {
	case res.Err == nil:
	case store.Definite(res.Err) && r.sent:
		e.Reason = ReasonEnded // by the send whose reply was lost; somebody may hold it by now
	case store.Definite(res.Err):
		t.mu.Lock()
		t.lastErr, t.rival = res.Err, res.Record
		lost := t.lost(Reason(store.Classify(res.Err)), t.k.now())
		known := errors.Is(t.err, ErrLost)
		t.mu.Unlock()
		r.err = lost
		if known { // its loss was told when it happened
			close(r.done)
			return true
		}
		e.Kind, e.Reason, e.Err = EventLost, lost.Reason, lost
	case !last:
		if store.Classify(res.Err) == store.CodeNoContact {
			r.sent = true
			r.grant.Known = append(r.grant.Known, r.grant.Attempt)
			if n := len(r.grant.Known); n > store.MaxKnown { // the oldest is the confirmed one
				r.grant.Known = slices.Delete(r.grant.Known, 1, 1+n-store.MaxKnown)
			}
		}
		return false
	default:
		r.err = fmt.Errorf("%w: %q (token %s), within %s: %w", ErrNotReleased, t.name, t.token, t.times.ttl, res.Err)
		e.Kind, e.Reason, e.Err = EventExpiring, Reason(store.Classify(res.Err)), r.err
	}
	t.telling.Lock()
	t.k.emit(e)
	t.telling.Unlock()
	close(r.done)
	return true
}
