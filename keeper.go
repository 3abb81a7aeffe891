package tenure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/internal/term"
	"github.com/tenurehq/tenure/store"
)

// Keeper holds terms of leases in one store for one process. It is safe for
// concurrent use. Use one for each store.
type Keeper struct {
	st     store.Store
	cfg    Config
	fork   *forkMark
	now    clock.Source
	logCtx context.Context // carries nothing; slog wants one

	started chan struct{}      // closed when Run begins
	closing context.Context    // ended when Run's context has
	shut    context.CancelFunc // ends closing
	wake    chan struct{}      // one pending nudge of Run's loop
	signs   chan chan struct{} // asks Run's loop to close what it is given
	more    chan struct{}      // the same of sendReleases
	work    sync.WaitGroup

	mu      sync.Mutex
	holder  string
	running bool
	closed  bool // Run has returned
	terms   map[*Term]struct{}
	beats   map[time.Duration]*beat // by interval: terms of one interval are renewed together
	replace map[string]restored     // terms that a restore ended and a new Acquire may replace
	clock   term.Progress           // of the store's clock
	failed  clock.Reading           // when a failing renewal was last told
	counts  map[Count]int64
	doubts  generation
	single  bool               // the last request was for terms that go apart; of the loop
	flight  context.CancelFunc // ends the renewal on its way, if that may be cut short for another term
	leaving int                // calls of Release that have not put theirs into pending
	pending []*release         // asked for and not decided, but for what is on its way
	sending bool               // sendReleases is at work
}

// generation numbers the doubts that the Keeper was told of, so that an answer
// can be told from one that was asked for before.
type generation struct{ wakes, restores int }

// beat is the schedule of all terms with one interval.
type beat struct {
	from clock.Reading // when the last request left
	wait time.Duration // until the next
}

// NewKeeper checks cfg and returns a Keeper over st. It starts nothing: call Run.
// The error matches ErrConfig.
func NewKeeper(st store.Store, cfg Config) (*Keeper, error) {
	cfg, warning, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := store.CheckTTL(cfg.TTL, st.Features().MinTTL); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	k := &Keeper{
		st: st, cfg: cfg, fork: newForkMark(), now: cfg.clock, logCtx: context.Background(),
		started: make(chan struct{}), wake: make(chan struct{}, 1), signs: make(chan chan struct{}), more: make(chan struct{}, 1),
		holder: newHolder(cfg.Host),
		terms:  map[*Term]struct{}{}, beats: map[time.Duration]*beat{}, replace: map[string]restored{}, counts: map[Count]int64{},
	}
	k.closing, k.shut = context.WithCancel(k.logCtx)
	if k.now == nil {
		k.now = clock.Now
	}
	if warning != "" {
		cfg.Logger.Warn("few renewals fit into a term", "advice", warning)
	}
	return k, nil
}

// Config returns the settings in force, defaults filled in.
func (k *Keeper) Config() Config { return k.cfg }

// Store returns the store that the Keeper was made with.
func (k *Keeper) Store() store.Store { return k.st }

// Holder returns the identity under which the Keeper contends at present.
func (k *Keeper) Holder() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.holder
}

// Terms returns the terms that are held or in doubt, in order of their names.
// Their clocks are looked at: one that is over by now is not among them.
func (k *Keeper) Terms() []*Term {
	terms := slices.DeleteFunc(k.list(), func(t *Term) bool {
		s := t.check()
		return s != term.Held && s != term.Doubt
	})
	slices.SortFunc(terms, func(a, b *Term) int { return cmp.Or(strings.Compare(a.name, b.name), cmp.Compare(a.token, b.token)) })
	return terms
}

// Run renews terms until ctx ends. It then asks the work under each term to
// stop (the terms' contexts end with ReasonShutdown), goes on renewing until
// each was released or DrainTimeout has passed, and returns when nothing that
// it started is left. It returns nil, or an error matching ErrNotReleased that
// names the terms left to expire. It can be called once.
func (k *Keeper) Run(ctx context.Context) error {
	k.mu.Lock()
	if k.running {
		k.mu.Unlock()
		return errors.New("tenure: Run was called twice")
	}
	k.running = true
	close(k.started)
	k.mu.Unlock()

	requests, cancel := context.WithCancel(k.logCtx) // a renewal on its way ends with the last term
	defer cancel()
	stop := ctx.Done()
	var drained <-chan time.Time
	answers := make(chan struct{}, 1)
	inFlight := false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-k.wake:
		case sign := <-k.signs:
			close(sign)
			continue // the timer stays as it is
		case <-answers:
			inFlight = false
		case <-stop:
			stop = nil
			drained = time.After(k.cfg.DrainTimeout)
			k.drain()
			if !k.idle() {
				continue // the terms stay as they are, and so does the timer
			}
		case <-drained:
			return k.close(cancel)
		}
		tick := k.look()
		if stop == nil && k.idle() {
			return k.close(cancel)
		}
		if !inFlight {
			due, next := k.due()
			if len(due) > 0 {
				inFlight = true
				k.work.Go(func() {
					k.renew(requests, due)
					answers <- struct{}{}
				})
			}
			tick = min(tick, next)
		}
		timer.Reset(tick)
	}
}

// Alive returns nil as soon as Run's loop has answered, which no store can delay,
// and otherwise the cause of ctx's end. It is for the watchdog of a process
// supervisor: a process whose keeper does not answer should be started anew. It
// says nothing of the terms. Concurrent calls are safe.
func (k *Keeper) Alive(ctx context.Context) error {
	sign := make(chan struct{})
	select {
	case k.signs <- sign:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-sign:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// nudge makes Run's loop look around at once.
func (k *Keeper) nudge() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// look checks every term against the clocks, which ends those whose time is
// over, and returns how long the loop may sleep.
func (k *Keeper) look() time.Duration {
	sleep := time.Duration(1<<62 - 1)
	for _, t := range k.list() {
		if s := t.check(); s != term.Held && s != term.Doubt {
			continue
		}
		sleep = min(sleep, t.times.tick())
		if t.opts.stallAfter > 0 {
			sleep = min(sleep, t.opts.stallAfter/4)
		}
		t.mu.Lock()
		if left := t.m.Left(t.m.At()); left > 0 { // to the very end, not to the next tick
			sleep = min(sleep, left)
		}
		t.mu.Unlock()
	}
	return max(sleep, time.Microsecond)
}

func (k *Keeper) list() []*Term {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := make([]*Term, 0, len(k.terms))
	for t := range k.terms {
		list = append(list, t)
	}
	return list
}

// due returns the terms to put into the next request, and the time until
// something will be due otherwise. Terms whose records were busy go apart.
func (k *Keeper) due() (due []*Term, next time.Duration) {
	now := k.now()
	var apart []*Term
	wait := time.Duration(1<<62 - 1) // until the next that goes apart
	terms := k.list()
	for _, t := range terms {
		t.mu.Lock()
		left := -now.Elapsed(t.retryAt)
		switch s := t.m.State(); {
		case !t.apart || s != term.Held && s != term.Doubt:
		case left <= 0:
			apart = append(apart, t)
		default:
			wait = min(wait, left)
		}
		t.mu.Unlock()
	}
	// By turns, so that neither busy records nor all others starve.
	if k.single = len(apart) > 0 && !k.single; k.single {
		return distinct(apart, now), 0
	}
	ready, next := k.strike(now)
	for _, t := range terms {
		t.mu.Lock()
		if s := t.m.State(); (s == term.Held || s == term.Doubt) && !t.apart && (ready[t.times.interval] || t.m.Urgent()) {
			due = append(due, t)
		}
		t.mu.Unlock()
	}
	next = min(next, wait)
	if len(apart) > 0 {
		next = 0
	}
	return distinct(due, now), next
}

// distinct sorts terms by name and takes out all but the earliest of each: a
// name stands once in a request. The store has ended the earliest, which does
// not know it yet; the others go apart, right after.
func distinct(terms []*Term, now clock.Reading) []*Term {
	slices.SortFunc(terms, func(a, b *Term) int {
		return cmp.Or(strings.Compare(a.name, b.name), cmp.Compare(a.token, b.token))
	})
	kept := terms[:0]
	for _, t := range terms {
		if n := len(kept); n > 0 && kept[n-1].name == t.name {
			t.mu.Lock()
			t.apart, t.retryAt = true, now
			t.mu.Unlock()
			continue
		}
		kept = append(kept, t)
	}
	return kept
}

// strike returns which intervals are due now, sets their next beat, and returns
// the time until the first of the others. Beats without terms are dropped.
func (k *Keeper) strike(now clock.Reading) (ready map[time.Duration]bool, next time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	used := map[time.Duration]bool{}
	for t := range k.terms {
		used[t.times.interval] = true
	}
	ready, next = map[time.Duration]bool{}, 1<<62-1
	for interval, b := range k.beats {
		left := b.wait - now.Elapsed(b.from)
		switch {
		case !used[interval]:
			delete(k.beats, interval)
		case left <= 0:
			ready[interval] = true
			b.from, b.wait = now, shorten(interval, 0.01)
		default:
			next = min(next, left)
		}
	}
	return ready, next
}

// shorten takes a random part, at most the given fraction, off d.
func shorten(d time.Duration, fraction float64) time.Duration {
	return d - time.Duration(rand.Float64()*fraction*float64(d))
}

// errRestored reports that a restore was told while an acquire was on its way.
var errRestored = errors.New("tenure: a restore was told while the lease was being acquired")

// add takes in a new term, asked for when since was the generation of doubts,
// and puts it on the beat of its interval. A beat that begins now begins at a
// random phase, so that processes started together spread out.
// doubted says that the term begins in doubt.
func (k *Keeper) add(t *Term, since generation) (doubted bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.isClosing():
		return false, ErrClosed
	case k.doubts.restores != since.restores:
		// As for a term that was held at the restore: the next Acquire replaces it.
		k.replace[t.name] = restored{t.grant(store.NewAttempt()), k.now()} // nobody else has the term yet
		return false, errRestored
	case k.doubts.wakes != since.wakes:
		t.m.Doubt(string(ReasonWake), k.now()) // nobody else has the term yet
	}
	doubted = t.m.State() == term.Doubt
	k.terms[t] = struct{}{}
	if k.beats[t.times.interval] == nil {
		k.beats[t.times.interval] = &beat{from: k.now(), wait: shorten(t.times.interval, 0.5)}
	}
	if k.flight != nil { // it may have the time of longer terms
		time.AfterFunc(t.times.interval, k.flight)
	}
	k.nudge()
	return doubted, nil
}

// isClosing reports whether Run's context has ended.
func (k *Keeper) isClosing() bool { return k.closing.Err() != nil }

// ended takes a term that is over out of the schedule. Run's loop, which looks at
// all that are left, wants to know only of the last one.
func (k *Keeper) ended(t *Term) {
	k.mu.Lock()
	delete(k.terms, t)
	last := len(k.terms) == 0
	k.mu.Unlock()
	if last {
		k.nudge()
	}
}

// drain asks all work to stop. The terms stay held.
func (k *Keeper) drain() {
	k.mu.Lock()
	k.shut() // under mu: whatever add took in before is in the list below
	k.mu.Unlock()
	now := k.now()
	for _, t := range k.list() {
		t.mu.Lock()
		cause := t.lost(ReasonShutdown, now)
		t.mu.Unlock()
		t.cancel(cause)
	}
}

// idle reports whether nothing is held and nothing is being released.
func (k *Keeper) idle() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.terms) == 0 && k.leaving == 0 && len(k.pending) == 0 && !k.sending
}

// close ends Run: it cuts short the renewal that may be on its way, waits for
// releases, and names what is left.
func (k *Keeper) close(cutShort context.CancelFunc) error {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	var left []error
	for _, t := range k.list() {
		left = append(left, fmt.Errorf("%w: %q (token %s)", ErrNotReleased, t.name, t.token))
		t.apply(func(m *term.Machine, now clock.Reading) { m.Lose(string(ReasonExpiring), now) })
	}
	cutShort()
	k.work.Wait()
	return errors.Join(left...)
}

// DoubtKind says what the platform knows.
type DoubtKind string

// The kinds of doubt.
const (
	// DoubtWake: this host was asleep or stood still. A renewal clears the doubt.
	DoubtWake DoubtKind = "wake"
	// DoubtRestore: this host or process may run twice, or go on from an older
	// state. Every term ends at once, and the identity with it; the next Acquire
	// of the same name may replace the old term, with a larger token, if no copy
	// has done so first.
	DoubtRestore DoubtKind = "restore"
)

// Doubt tells the Keeper what it cannot see itself. When it returns, MayAct
// answers false for every term, until a renewal that left afterwards confirms
// (DoubtWake) or for good (DoubtRestore). why is for people; "" is allowed.
func (k *Keeper) Doubt(kind DoubtKind, why string) {
	k.mu.Lock()
	if kind == DoubtWake {
		k.doubts.wakes++
	} else {
		k.doubts.restores++
		k.holder = newHolder(k.cfg.Host)
		now := k.now()
		maps.DeleteFunc(k.replace, func(_ string, r restored) bool { return r.lapsed(now) })
	}
	k.mu.Unlock()
	for _, t := range k.list() { // what comes in later has seen the count
		if kind == DoubtWake {
			t.apply(func(m *term.Machine, now clock.Reading) {
				m.Check(now) // what is over is over for its own reason
				m.Doubt(string(ReasonWake), now)
			})
			continue
		}
		k.restore(t, why)
	}
	k.nudge()
}

// restored is a term that a restore ended.
type restored struct {
	grant store.Grant
	at    clock.Reading
}

// lapsed reports whether the store cannot hold the term any more.
func (r *restored) lapsed(now clock.Reading) bool { return now.Elapsed(r.at) > 2*r.grant.TTL }

// restore ends t and keeps its grant for the Acquire that may replace it.
func (k *Keeper) restore(t *Term, why string) {
	t.apply(func(m *term.Machine, now clock.Reading) {
		if s := m.Check(now); s != term.Held && s != term.Doubt {
			return
		}
		k.mu.Lock() // before the context ends: whoever waits for that may ask at once
		k.replace[t.name] = restored{t.grant(store.NewAttempt()), now}
		k.mu.Unlock()
		t.why = why
		m.Lose(string(ReasonRestored), now)
	})
}

// dropReplace forgets that the term can be replaced: it was, or is given back.
func (k *Keeper) dropReplace(name string, token fence.Token) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r, ok := k.replace[name]; ok && r.grant.Token == token {
		delete(k.replace, name)
	}
}

func (k *Keeper) renameHolder() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.holder = newHolder(k.cfg.Host)
}
