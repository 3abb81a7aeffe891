package resourcelock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/internal/term"
	"github.com/tenurehq/tenure/store"
)

// holding is one term of this process.
type holding struct {
	name   string
	token  fence.Token
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	m     *term.Machine
	timer *time.Timer // at TrustedUntil, as far as the monotonic clock tells
}

// sent is an acquire without an answer.
type sent struct {
	attempt store.Attempt
	at      clock.Reading
	ttl     time.Duration
}

// acquire contends once.
func (l *Lease) acquire(ctx context.Context, ttl time.Duration) error {
	margin := l.cfg.Margin
	if margin == 0 {
		margin = ttl / 5
	}
	if margin >= ttl {
		return &store.InvalidError{Field: "margin", Value: margin.String(), Rule: fmt.Sprintf("less than the elector's LeaseDuration %s in whole seconds", ttl)}
	}
	attempt := store.NewAttempt()
	req := store.Request{Name: l.name, Holder: l.cfg.Identity, TTL: ttl, Attempt: attempt, Known: l.unanswered(), Meta: l.cfg.Meta}
	left := clock.Now()
	rec, err := l.st.Acquire(ctx, req)
	got := clock.Now()
	if err != nil {
		l.unheard(err, sent{attempt, left, ttl})
		return fmt.Errorf("acquire: %w", err)
	}
	h := &holding{name: l.name, token: rec.Token, m: term.New(term.Params{TTL: ttl, Margin: margin}, attempt, left, got, rec.TTL)}
	h.ctx, h.cancel = context.WithCancelCause(context.Background())
	h.mu.Lock()
	h.timer = time.AfterFunc(h.m.Left(got), func() { h.look() })
	h.mu.Unlock()
	slow := h.look() == term.Lost
	l.mu.Lock()
	l.sent = nil
	if !slow {
		l.held = h
	}
	l.mu.Unlock()
	if slow { // the elector must not take it for one that it leads under
		return errors.Join(fmt.Errorf("acquire %q: won after %s, margin %s leaves nothing of TTL %s", l.name, got.Elapsed(left), margin, rec.TTL), l.release(ctx, h))
	}
	return nil
}

// unanswered returns the attempts of earlier acquires that may have won a term
// which has not lapsed.
func (l *Lease) unanswered() (known []store.Attempt) {
	now := clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent = slices.DeleteFunc(l.sent, func(s sent) bool { return now.Elapsed(s.at) > 2*s.ttl })
	if extra := len(l.sent) - (store.MaxKnown - 1); extra > 0 {
		l.sent = slices.Delete(l.sent, 0, extra)
	}
	for _, s := range l.sent {
		known = append(known, s.attempt)
	}
	return known
}

// unheard takes in the error of an acquire.
func (l *Lease) unheard(err error, s sent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case errors.Is(err, store.ErrHeld): // decided: nothing is open any more
		l.sent = nil
	case store.Classify(err) == store.CodeNoContact:
		l.sent = append(l.sent, s)
	}
}

// renew extends h once.
func (l *Lease) renew(ctx context.Context, h *holding, ttl time.Duration) error {
	attempt := store.NewAttempt()
	h.mu.Lock()
	known := h.m.Known()
	may := h.m.Sent(attempt, clock.Now())
	h.mu.Unlock()
	if !may { // and nothing is sent
		h.look()
		return h.lost()
	}
	results, err := l.st.Renew(ctx, []store.Grant{{Name: l.name, Token: h.token, TTL: ttl, Attempt: attempt, Known: known}})
	if err == nil && len(results) != 1 {
		err = fmt.Errorf("resourcelock: the store answered for %d terms, not 1", len(results))
	}
	if err == nil {
		err = results[0].Err
	}
	switch {
	case err == nil:
		if !h.confirm(attempt, results[0].Record.TTL) {
			return h.lost()
		}
		return nil
	case store.Definite(err):
		h.lose(string(store.Classify(err)), err)
		return h.lost()
	}
	h.mu.Lock()
	h.m.Fail(string(store.Classify(err)), clock.Now())
	h.mu.Unlock()
	return fmt.Errorf("renew: %w", err)
}

// release gives h back.
func (l *Lease) release(ctx context.Context, h *holding) error {
	if h == nil {
		return nil // over already
	}
	h.mu.Lock()
	g := store.Grant{Name: l.name, Token: h.token, Attempt: store.NewAttempt(), Known: h.m.Known()}
	h.mu.Unlock()
	h.lose("released", nil) // before somebody else can have it
	results, err := l.st.Release(ctx, []store.Grant{g})
	if err == nil && len(results) == 1 {
		err = results[0].Err
	}
	if err != nil && !store.Definite(err) {
		return fmt.Errorf("release: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == h {
		l.held = nil
	}
	return nil
}

// owns reports whether rec is this term, by what the store goes by.
func (h *holding) owns(rec *store.Record) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return rec.Token == h.token && slices.Contains(h.m.Known(), rec.Attempt)
}

// look brings the term up to the clocks, and ends the context if it is over.
func (h *holding) look() term.State {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := clock.Now()
	h.m.Check(now)
	return h.settle(now, nil)
}

// confirm notes a renewal that was accepted, and reports whether the term goes on.
func (h *holding) confirm(attempt store.Attempt, ttl time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := clock.Now()
	h.m.Confirm(attempt, now, ttl)
	return h.settle(now, nil) != term.Lost
}

// lose ends the term for a reason that is certain.
func (h *holding) lose(reason string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := clock.Now()
	h.m.Lose(reason, now)
	h.settle(now, err)
}

// settle ends the context of a term that is over, and else sets the timer that
// will. mu is held.
func (h *holding) settle(now clock.Reading, err error) term.State {
	state := h.m.State()
	switch {
	case state != term.Lost:
		h.timer.Reset(max(h.m.Left(now), time.Millisecond))
	case h.ctx.Err() == nil:
		h.timer.Stop()
		cause := fmt.Errorf("%w: %q (token %s): %s", ErrLost, h.name, h.token, h.m.Reason())
		if err != nil {
			cause = fmt.Errorf("%w: %w", cause, err)
		}
		h.cancel(cause)
	}
	return state
}

// lost returns why the term is over.
func (h *holding) lost() error { return context.Cause(h.ctx) }
