package tenure

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/internal/term"
	"github.com/tenurehq/tenure/store"
)

// State is where a term stands for its holder.
type State string

// The states of a Term.
const (
	StateHeld     State = "held"
	StateDoubt    State = "doubt"
	StateLost     State = "lost"
	StateReleased State = "released"
)

var states = map[term.State]State{term.Held: StateHeld, term.Doubt: StateDoubt, term.Lost: StateLost, term.Released: StateReleased}

// Term is one unbroken holding of a lease by this process. It is safe for
// concurrent use. A Term that was lost or released stays so; Acquire gives a new one.
type Term struct {
	k      *Keeper
	name   string
	holder string
	token  fence.Token
	times  times
	opts   acquireOptions
	ctx    context.Context
	cancel context.CancelCauseFunc

	view    atomic.Pointer[view]
	telling sync.Mutex // orders events; taken while mu is held

	mu        sync.Mutex
	m         *term.Machine
	warned    bool
	apart     bool // the next renewal goes apart from the beat, at retryAt
	retryAt   clock.Reading
	lastErr   error
	rival     store.Record
	why       string
	err       error // once lost or released
	releasing *release
}

// view is what the last full reading allows until the next one.
type view struct {
	base  time.Time     // read just before it, with its monotonic part
	left  time.Duration // monotonic time from base in which the holder may act
	slack time.Duration // how far wall and monotonic progress may differ
}

// Name returns the lease's name.
func (t *Term) Name() string { return t.name }

// Token returns the term's fencing token. It says nothing about the right to
// act: see MayAct.
func (t *Term) Token() fence.Token { return t.token }

// Holder returns the identity under which the term was won.
func (t *Term) Holder() string { return t.holder }

// Context ends when the term does: context.Cause is a *LostError or
// ErrReleased. It also ends, with ReasonShutdown, when Run's context does; the
// term is then still held and renewed until it is released.
func (t *Term) Context() context.Context { return t.ctx }

// MayAct returns the token, and whether the holder may act now. It does no
// I/O and costs about one reading of the clock. False means not now: the term
// is over, or in doubt until a renewal confirms (State tells).
func (t *Term) MayAct() (fence.Token, bool) {
	if v := t.view.Load(); v != nil && t.k.cfg.clock == nil && !t.k.fork.forked() {
		now := time.Now()
		if v.allows(now.Sub(v.base), time.Duration(now.UnixNano()-v.base.UnixNano())) {
			return t.token, true
		}
	}
	return t.token, t.check() == term.Held
}

// allows is the fast path: true if the monotonic clock has not used up what the
// last full reading left, and the wall clock agrees with it. A suspend moves
// wall and monotonic clock apart; then the full reading decides.
func (v *view) allows(mono, wall time.Duration) bool {
	diff := wall - mono
	return mono < v.left && diff < v.slack && diff > -v.slack
}

// State returns the state after a full reading of the clocks.
func (t *Term) State() State { return states[t.check()] }

// Err returns nil while the term is held or in doubt, *LostError once it is
// lost, and ErrReleased once it was released.
func (t *Term) Err() error {
	t.check()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// Left returns how long the holder may act at most if no renewal is confirmed;
// 0 if it may not act.
func (t *Term) Left() time.Duration {
	var left time.Duration
	t.apply(func(m *term.Machine, now clock.Reading) {
		if m.Check(now) == term.Held {
			left = max(0, m.Left(now))
		}
	})
	return left
}

// TrustedUntil returns the last instant at which the holder may act, on
// CLOCK_BOOTTIME of this host (on systems without it, on a clock of this
// process). A supervisor that outlives this process's pauses sets its own timer
// by it. It moves with each confirmed renewal.
func (t *Term) TrustedUntil() (boot time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.m.TrustedUntil().Boot
}

// Confirmed returns how long ago the last confirmed request left.
func (t *Term) Confirmed() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.k.now().Elapsed(t.m.Confirmed())
}

// Progress notes the work's own marker: an offset, a count, anything that
// changes while the work gets on. Where the term was acquired with
// WithStallAfter and the marker stays the same for that long, the term is lost
// with ReasonNoProgress, so that somebody else may try.
func (t *Term) Progress(marker string) {
	t.apply(func(m *term.Machine, now clock.Reading) { m.Progress(marker, now) })
}

// Grant returns what the store needs to recognise this term, for operations
// beside renewal (store.Slotter). The attempt in it is fresh.
func (t *Term) Grant() store.Grant {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.grant(store.NewAttempt())
}

// grant makes a grant with a fresh attempt. t.mu is held.
func (t *Term) grant(attempt store.Attempt) store.Grant {
	return store.Grant{Name: t.name, Token: t.token, TTL: t.times.ttl, Attempt: attempt, Known: t.m.Known()}
}

func (t *Term) check() term.State {
	return t.apply(func(m *term.Machine, now clock.Reading) { m.Check(now) })
}

// apply runs f on the machine with a full reading of the clocks, publishes what
// the fast path may rely on, and then lets the consequences happen. It returns
// the state that f left.
func (t *Term) apply(f func(*term.Machine, clock.Reading)) term.State {
	t.mu.Lock()
	before := t.m.State()
	if t.k.fork.forked() {
		t.m.Lose(string(ReasonForked), t.m.At())
	}
	base := time.Now() // before the full reading, so that left is not counted too long
	now := t.k.now()
	f(t.m, now)
	after := t.m.State()
	if after == term.Held {
		t.view.Store(&view{base: base, left: t.m.Left(now), slack: max(t.times.margin/8, time.Microsecond)})
	} else {
		t.view.Store(nil)
	}
	events, cause := t.changes(before, after, now)
	if len(events) > 0 { // taken in the order of the changes, held while they are told
		t.telling.Lock()
		defer t.telling.Unlock()
	}
	t.mu.Unlock()
	if cause != nil {
		t.cancel(cause)
		t.k.ended(t)
	}
	for _, e := range events {
		t.k.emit(e)
	}
	return after
}

// changes returns the events of a step, and the cause with which the term's
// context ends, if it does. t.mu is held.
func (t *Term) changes(before, after term.State, now clock.Reading) (events []Event, cause error) {
	e := Event{Lease: t.name, Holder: t.holder, Token: t.token}
	left := t.m.Left(now)
	switch {
	case before == after:
		if after != term.Held && after != term.Doubt {
			return nil, nil
		}
		if !t.warned && left <= t.times.warn {
			t.warned = true
			e.Kind, e.Left, e.Err = EventWarning, left, t.lastErr
			return []Event{e}, nil
		}
		if t.warned && left > t.times.warn && after == term.Held {
			t.warned = false
			e.Kind = EventConfirmed
			return []Event{e}, nil
		}
		return nil, nil
	case after == term.Doubt:
		e.Kind, e.Reason = EventDoubt, Reason(t.m.Reason())
	case after == term.Held:
		e.Kind, t.warned = EventConfirmed, false
	case after == term.Released:
		t.err = ErrReleased
		return nil, t.err // the store's answer makes the event
	case after == term.Lost:
		lost := t.lost(Reason(t.m.Reason()), now)
		t.err = lost
		e.Kind, e.Reason, e.Err = EventLost, lost.Reason, lost
		if lost.Reason == ReasonExpiring {
			e.Kind = EventExpiring
		}
		return []Event{e}, lost
	}
	return []Event{e}, nil
}

// lost describes why the term ended. t.mu is held.
func (t *Term) lost(reason Reason, now clock.Reading) *LostError {
	e := &LostError{
		Reason: reason, Lease: t.name, Holder: t.holder, Token: t.token, Why: t.why, Err: t.lastErr,
		Held: now.Elapsed(t.m.Began()), Age: now.Elapsed(t.m.Confirmed()),
	}
	if t.rival.Token != 0 {
		e.Rival, e.Current = t.rival.Holder, t.rival.Token
	}
	return e
}
