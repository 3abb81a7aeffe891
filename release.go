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
	grant store.Grant   // its attempt is that of the last send
	sent  bool          // an earlier send went without an answer
	done  chan struct{} // closed when err is final
	err   error

	deadline time.Time // of all its tries
	after    time.Time // of the next try; zero before the first
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
	t.k.leave(1)
	var r *release
	first := false
	t.apply(func(m *term.Machine, now clock.Reading) {
		if r = t.releasing; r != nil {
			return
		}
		m.Check(now)
		m.Release()
		r = &release{t: t, grant: t.grant(store.Attempt{}), done: make(chan struct{})}
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
			t.k.dropReplace(t.name, t.token)
			t.k.enqueue(r)
		}
	}
	t.k.leave(-1)
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

// leave counts the calls of Release that have not had theirs sent: Run must not
// end between the end of a term and its release.
func (k *Keeper) leave(n int) {
	k.mu.Lock()
	k.leaving += n
	last := k.leaving == 0 && len(k.terms) == 0
	k.mu.Unlock()
	if last {
		k.nudge()
	}
}

// enqueue has r sent. Whatever is asked for while a request is on its way goes
// together into the next one.
func (k *Keeper) enqueue(r *release) {
	r.deadline = time.Now().Add(k.cfg.ReleaseTimeout)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pending = append(k.pending, r)
	switch {
	case k.sending:
		select {
		case k.more <- struct{}{}:
		default:
		}
	case k.closed: // Run is gone or waits for what it knows of; the caller waits for this
		k.sending = true
		go k.sendReleases()
	default:
		k.sending = true
		k.work.Go(k.sendReleases)
	}
}

// sendReleases sends what is pending until nothing is. What was left undecided
// goes again after a while, and whatever is asked for does not wait for it.
func (k *Keeper) sendReleases() {
	again := min(50*time.Millisecond, k.cfg.ReleaseTimeout/10)
	for {
		k.gather()
		batch, wait := k.leavingNow()
		switch {
		case len(batch) > 0:
			undecided, err := k.sendRelease(batch)
			for _, r := range undecided {
				r.after = time.Now().Add(again)
			}
			k.mu.Lock()
			k.pending = append(k.pending, undecided...)
			k.mu.Unlock()
			if err != nil { // of the request as a whole: another one would fare no better
				<-time.After(again)
			}
		case wait > 0:
			select {
			case <-time.After(wait):
			case <-k.more:
			}
		default:
			k.nudge()
			return
		}
	}
}

// How long the releases of a shutdown wait for each other: until none has come
// for a lull, and never longer than the most.
const (
	gatherLull = 500 * time.Microsecond
	gatherMost = 5 * time.Millisecond
)

// gather waits for releases that will come at once, since all work was asked to
// stop at once, so that one request takes them and not a second one all but the
// first. It waits for nobody unless Run is ending and terms are still held.
func (k *Keeper) gather() {
	if !k.isClosing() {
		return
	}
	for before, waited := 0, time.Duration(0); waited < gatherMost; waited += gatherLull {
		k.mu.Lock()
		pending, more := len(k.pending), len(k.terms) > 0 || k.leaving > 1 // one may be in pending already
		k.mu.Unlock()
		if !more || pending == before {
			return
		}
		before = pending
		<-time.After(gatherLull)
	}
}

// leavingNow takes off the pending releases those that go into the next request,
// or returns the time until there is one; 0 says that nothing is pending and that
// the caller has ended its work.
func (k *Keeper) leavingNow() (batch []*release, wait time.Duration) {
	now := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	var later []*release
	names := map[string]bool{}
	for _, r := range k.pending {
		left := r.after.Sub(now)
		if left > 0 && (wait == 0 || left < wait) {
			wait = left
		}
		if left > 0 || names[r.grant.Name] { // an earlier term of the name that did not know its end
			later = append(later, r)
			continue
		}
		names[r.grant.Name] = true
		batch = append(batch, r)
	}
	k.pending, k.sending = later, len(batch)+len(later) > 0
	return batch, wait
}

// sendRelease sends one request and returns those that it left undecided and
// that have time for another, and the error of the request as a whole.
func (k *Keeper) sendRelease(batch []*release) (undecided []*release, err error) {
	grants := make([]store.Grant, len(batch))
	last := batch[0].deadline
	attempts := store.NewAttempts(len(batch))
	for i, r := range batch {
		r.grant.Attempt = attempts[i]
		grants[i] = r.grant
		if r.deadline.After(last) {
			last = r.deadline
		}
	}
	ctx, cancel := context.WithTimeout(k.logCtx, max(min(k.cfg.ReleaseTimeout/3, time.Until(last)), time.Millisecond))
	results, err := k.st.Release(ctx, grants)
	cancel()
	if err == nil && len(results) != len(batch) {
		err = errors.New("tenure: the store answered for another number of terms than it was asked for")
	}
	now := time.Now()
	for i, r := range batch {
		res := store.Result{Err: err}
		if err == nil {
			res = results[i]
		}
		if !r.decide(res, !now.Before(r.deadline)) {
			undecided = append(undecided, r)
		}
	}
	return undecided, err
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
