package tenure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/internal/term"
	"github.com/tenurehq/tenure/store"
)

// AcquireOption changes one Acquire or TryAcquire.
type AcquireOption func(*acquireOptions)

type acquireOptions struct {
	ttl        time.Duration
	minHold    time.Duration
	stallAfter time.Duration
	meta       map[string]string
	replace    *store.Grant
	onWait     func(*store.HeldError)
	onConfirm  func(*Term)
	marks      []termMarks
}

// WithTTL gives the term a TTL of its own; interval and margin keep their
// proportion to it.
func WithTTL(ttl time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.ttl = ttl }
}

// WithMinHold keeps the lease from starting another term before this long after
// this one began, however it ends. The store keeps it.
func WithMinHold(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.minHold = d }
}

// WithStallAfter ends the term with ReasonNoProgress when Term.Progress was not
// called with a new marker for this long. Time in which this process or its host
// stood still does not count.
func WithStallAfter(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.stallAfter = d }
}

// WithMeta keeps key-value pairs with the lease for people to read; at most
// store.MaxMeta bytes as JSON.
func WithMeta(meta map[string]string) AcquireOption {
	return func(o *acquireOptions) { o.meta = meta }
}

// WithReplace lets the term begin although the term that g shows is unexpired,
// with a larger token, if the store recognises g as it would for a renewal. It
// is for the successor of a process of the same host that has certainly ended:
// the caller must have proof of that, since a holder that still runs would act
// until its own next renewal.
func WithReplace(g store.Grant) AcquireOption {
	return func(o *acquireOptions) { o.replace = &g }
}

// WithWait calls f each time the store says that the lease is not free, before
// waiting. f must return quickly.
func WithWait(f func(*store.HeldError)) AcquireOption {
	return func(o *acquireOptions) { o.onWait = f }
}

// WithConfirm calls f once the term was won and after each confirmed renewal.
// f must return quickly and must not call the Keeper; Term.TrustedUntil is allowed.
func WithConfirm(f func(*Term)) AcquireOption {
	return func(o *acquireOptions) { o.onConfirm = f }
}

// TryAcquire asks the store once. The error matches store.ErrHeld
// (*store.HeldError) if somebody else holds the lease, ErrTooSlow if the answer
// came so late that nothing was left to act on, ErrClosed, ErrNotRunning, or one
// of package store's. After an unknown outcome it gives back what may have been won.
func (k *Keeper) TryAcquire(ctx context.Context, name string, opts ...AcquireOption) (*Term, error) {
	w, err := k.contend(ctx, name, opts)
	if err != nil {
		return nil, err
	}
	t, err := w.try(ctx)
	if err != nil {
		w.giveBack()
		return nil, fmt.Errorf("acquire: %w", err)
	}
	if err := t.raiseMarks(ctx); err != nil {
		return nil, fmt.Errorf("acquire: %w", err)
	}
	return t, nil
}

// Acquire waits until it holds the lease or ctx ends. While it waits it sends
// nothing until the holder's expiry, if the store tells of ends and starts of
// terms; otherwise it asks once an interval. It gives up on answers that
// waiting will not change: store.ErrInvalid, ErrPermission, ErrSchema,
// ErrCopied, ErrUnsupported, and ErrReadOnly if the store never decided; and on
// ErrClosed and ErrNotRunning. When ctx ends, the error matches its cause and
// the last answer.
func (k *Keeper) Acquire(ctx context.Context, name string, opts ...AcquireOption) (*Term, error) {
	w, err := k.contend(ctx, name, opts)
	if err != nil {
		return nil, err
	}
	t, err := w.wait(ctx)
	if err != nil {
		w.giveBack()
		return nil, fmt.Errorf("acquire: %w", err)
	}
	if err := t.raiseMarks(ctx); err != nil {
		return nil, fmt.Errorf("acquire: %w", err)
	}
	return t, nil
}

// contender is one Acquire.
type contender struct {
	k       *Keeper
	name    string
	opts    acquireOptions
	times   times
	sent    []sentAttempt      // without an answer
	clock   term.Progress      // of the store's clock, as this contender saw it
	watch   *observation       // after a step of the store's clock
	watcher store.Watcher      // nil if the store cannot tell
	watches chan registration  // nil unless a Watch is under way
	events  <-chan store.Event // nil unless the store tells
	asked   clock.Reading      // when a Watch was last asked for
	last    error              // the last answer
	heard   bool               // the store has decided once
	told    clock.Reading      // when a refusal was last told
}

type sentAttempt struct {
	attempt store.Attempt
	at      clock.Reading
}

func (k *Keeper) contend(ctx context.Context, name string, opts []AcquireOption) (*contender, error) {
	w := &contender{k: k, name: name}
	for _, o := range opts {
		o(&w.opts)
	}
	if w.opts.ttl == 0 {
		w.opts.ttl = k.cfg.TTL
	}
	w.times = k.cfg.scaled(w.opts.ttl)
	req, _ := w.request(store.NewAttempt())
	if err := req.Check(k.st.Features().MinTTL); err != nil {
		return nil, err
	}
	if w.opts.stallAfter < 0 {
		return nil, &store.InvalidError{Field: "stall_after", Value: w.opts.stallAfter.String(), Rule: "0s or more"}
	}
	select {
	case <-k.started:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(5 * time.Second):
		return nil, ErrNotRunning
	}
	return w, nil
}

// request also returns the generation of doubts that it belongs to.
func (w *contender) request(attempt store.Attempt) (store.Request, generation) {
	k := w.k
	req := store.Request{Name: w.name, TTL: w.times.ttl, Attempt: attempt, MinHold: w.opts.minHold, Meta: w.opts.meta}
	for _, s := range w.sent {
		req.Known = append(req.Known, s.attempt)
	}
	if g := w.opts.replace; g != nil {
		shown := *g
		req.Replace = &shown
	}
	k.mu.Lock()
	req.Holder = k.holder
	since := k.doubts
	if r, ok := k.replace[w.name]; ok {
		req.Replace = &r.grant
	}
	k.mu.Unlock()
	now := k.now()
	switch bound, ok := w.clock.Bound(now); {
	case w.watch != nil && w.watch.left(now) <= 0:
		req.IfRevision = w.watch.revision
	case w.watch != nil:
		req.ClockNotAfter = never
	case ok: // the request itself may take as long as its timeout
		req.ClockNotAfter = bound.Add(w.times.margin + w.timeout())
	}
	return req, since
}

// never is before any store's clock: as Request.ClockNotAfter it asks for what
// is free alone, and not for what lapsed.
var never = time.Unix(1, 0)

// timeout bounds one request.
func (w *contender) timeout() time.Duration { return w.times.interval }

// bound is the context of one request: it ends with ctx, with its time, and with
// the Keeper's Run.
func (w *contender) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, w.timeout())
	stop := context.AfterFunc(w.k.closing, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// try asks once, and once more if a restore was told meanwhile: what was won
// then belongs to an earlier life, and may be replaced.
func (w *contender) try(ctx context.Context) (*Term, error) {
	t, err := w.ask(ctx)
	if errors.Is(err, errRestored) {
		t, err = w.ask(ctx)
	}
	return t, err
}

func (w *contender) ask(ctx context.Context) (*Term, error) {
	k := w.k
	if k.isClosing() {
		return nil, ErrClosed
	}
	w.forget()
	attempt := store.NewAttempt()
	req, since := w.request(attempt)
	one, cancel := w.bound(ctx)
	sent := k.now()
	w.sent = append(w.sent, sentAttempt{attempt, sent})
	rec, err := k.st.Acquire(one, req)
	cancel()
	got := k.now()
	var held *store.HeldError
	switch {
	case err == nil:
		w.clock.Step(sent, got, rec.Now)
	case errors.As(err, &held):
		w.heard = true
		if step := w.clock.Step(sent, got, held.Record.Now); step > w.times.margin && held.Record.Status == store.Held {
			w.follow(&held.Record, got)
		}
	}
	switch {
	case err == nil, errors.As(err, &held): // decided: nothing is open any more
		w.sent = nil
	case store.Classify(err) != store.CodeNoContact: // refused, so not applied; what went before may be
		w.sent = w.sent[:len(w.sent)-1]
	}
	if err != nil && k.isClosing() && store.Classify(err) == store.CodeNoContact {
		err = errors.Join(ErrClosed, err)
	}
	w.last = err
	if err != nil {
		return nil, err
	}
	return w.won(ctx, req, since, rec, sent, got)
}

// forget drops attempts that can no longer be found in a live record: a term
// that they won would have ended.
func (w *contender) forget() {
	now := w.k.now()
	for len(w.sent) > 0 && (now.Elapsed(w.sent[0].at) > 2*w.times.ttl || len(w.sent) >= store.MaxKnown) {
		w.sent = w.sent[1:]
	}
}

// won makes the Term, or gives it back if nothing of it is left.
func (w *contender) won(ctx context.Context, req store.Request, since generation, rec store.Record, sent, got clock.Reading) (*Term, error) {
	k := w.k
	k.watchClock(sent, got, rec.Now)
	params := term.Params{TTL: w.times.ttl, Margin: w.times.margin, StallAfter: w.opts.stallAfter}
	if rec.TTL < w.times.ttl { // the store grants less: keep the proportions
		w.times = k.cfg.scaled(rec.TTL)
		params.TTL, params.Margin = w.times.ttl, w.times.margin
	}
	t := &Term{
		k: k, name: w.name, holder: req.Holder, token: rec.Token, times: w.times, opts: w.opts,
		m: term.New(params, req.Attempt, sent, got, rec.TTL),
	}
	if req.Replace != nil {
		k.dropReplace(req.Replace.Name, req.Replace.Token)
	}
	slow := t.m.Check(k.now()) == term.Lost
	var err error
	if !slow {
		t.ctx, t.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
		t.telling.Lock() // the loop may find the term over before it is told of
		var doubted bool
		if doubted, err = k.add(t, since); err == nil {
			k.emit(Event{Kind: EventAcquired, Lease: t.name, Holder: t.holder, Token: t.token})
		}
		if doubted {
			k.emit(Event{Kind: EventDoubt, Lease: t.name, Holder: t.holder, Token: t.token})
		}
		t.telling.Unlock()
	}
	if slow {
		err = fmt.Errorf("%w: %q was won after %s, margin %s leaves nothing of TTL %s", ErrTooSlow, w.name,
			got.Elapsed(sent).Round(time.Millisecond), w.times.margin, w.times.ttl)
	}
	if errors.Is(err, errRestored) {
		return nil, err
	}
	if err != nil { // as if the reply had been lost: recognised by the next try, or given back
		w.sent = []sentAttempt{{req.Attempt, sent}}
		return nil, err
	}
	t.check()
	if w.opts.onConfirm != nil {
		w.opts.onConfirm(t)
	}
	return t, nil
}

// giveBack releases what an attempt without an answer may have won. Nobody
// waits for its outcome: the term would lapse by itself.
func (w *contender) giveBack() {
	if len(w.sent) == 0 {
		return
	}
	g := store.Grant{Name: w.name, Attempt: store.NewAttempt()}
	for _, s := range w.sent {
		g.Known = append(g.Known, s.attempt)
	}
	w.sent = nil
	ctx, cancel := context.WithTimeout(w.k.logCtx, min(w.k.cfg.ReleaseTimeout, 2*time.Second))
	defer cancel()
	if _, err := w.k.st.Release(ctx, []store.Grant{g}); err != nil {
		w.k.cfg.Logger.Warn("an acquire without an answer may hold the lease until it lapses", "lease", w.name, "err", err)
	}
}
