package agent

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store"
)

// heart sends the heartbeats. Its goroutine has a thread to itself and waits for
// timers and for the server alone; everything else is handed to it ready-made or
// taken from it without waiting.
type heart struct {
	a        *Agent
	renewals chan *renewal
	nudged   chan struct{}

	facts   atomic.Pointer[factsVersion]
	hearing atomic.Pointer[hearing]

	// Owned by the loop.
	seq       uint64
	told      uint64           // the version of the facts that the server has
	takes     bool             // leftovers: a server of before they were told refuses them
	left      []fleet.Leftover // as last told
	changes   uint64           // of left
	interval  time.Duration
	sent      clock.Reading // when the last beat left
	failed    bool
	accepted  bool          // a beat, at any time
	trouble   string        // why the last one was refused; "" if it was not
	late      time.Duration // of own timers, at most since the last accepted beat
	suspended time.Duration // likewise, time in which the host was suspended
}

type factsVersion struct {
	facts   fleet.Facts
	version uint64
}

// renewal is a grant that waits for the next beat to take it along.
type renewal struct {
	ctx    context.Context
	grant  store.Grant
	answer chan store.Result // has room for one
}

// hearing is whether the last beat got an answer.
type hearing struct {
	ok      bool
	changed chan struct{} // closed when another value is in force
}

func newHeart(a *Agent) *heart {
	h := &heart{a: a, renewals: make(chan *renewal), nudged: make(chan struct{}, 1), interval: a.cfg.Interval}
	h.hearing.Store(&hearing{changed: make(chan struct{})})
	return h
}

// hears notes whether the last beat got an answer. The loop alone calls it.
func (h *heart) hears(ok bool) {
	if was := h.hearing.Load(); was.ok != ok {
		h.hearing.Store(&hearing{ok, make(chan struct{})})
		close(was.changed)
	}
}

// listening waits until a beat got an answer, and returns a context that ends
// when one gets none, or with ctx.
func (h *heart) listening(ctx context.Context) (context.Context, context.CancelFunc) {
	now := h.hearing.Load()
	for !now.ok && ctx.Err() == nil {
		select {
		case <-now.changed:
			now = h.hearing.Load()
		case <-ctx.Done():
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-now.changed:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// nudge brings the next beat forward.
func (h *heart) nudge() {
	select {
	case h.nudged <- struct{}{}:
	default:
	}
}

// renew sends one grant inside a beat.
func (h *heart) renew(ctx context.Context, g store.Grant) (store.Result, error) {
	r := &renewal{ctx: ctx, grant: g, answer: make(chan store.Result, 1)}
	select {
	case h.renewals <- r:
	case <-ctx.Done():
		return store.Result{}, errors.Join(store.ErrUnavailable, context.Cause(ctx))
	}
	select {
	case res := <-r.answer:
		return res, nil
	case <-ctx.Done(): // the beat ends with it, and then nobody waits for the answer
		return store.Result{}, errors.Join(store.ErrUnavailable, context.Cause(ctx))
	}
}

func (h *heart) run(ctx context.Context) {
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	next := clock.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		before := clock.Now()
		wait := min(-before.Elapsed(next), h.tick())
		timer.Reset(max(wait, 0))
		select {
		case <-ctx.Done():
			return
		case r := <-h.renewals:
			h.beat(r.ctx, r)
			next = h.sent.Add(h.pause())
			continue
		case <-h.nudged:
			// At most some twenty beats an interval, however much there is to tell.
			soon := h.sent.Add(h.interval / 20)
			if soon.Elapsed(next) < 0 {
				next = soon
			}
			continue
		case <-timer.C:
		}
		now := clock.Now()
		h.measure(before, now, max(wait, 0))
		if next.Elapsed(now) > 0 {
			continue
		}
		one, cancel := context.WithTimeout(ctx, h.interval)
		h.beat(one, nil)
		cancel()
		next = h.sent.Add(h.pause())
	}
}

// tick is how often the loop looks at its own timers.
func (h *heart) tick() time.Duration { return min(time.Second, h.interval/4) }

// pause is the time from one beat to the next. While a term is held the keeper's
// renewals come with a jitter of their own, and a bare beat is sent only where
// none came; otherwise up to a tenth is taken off. After a failure it is short.
func (h *heart) pause() time.Duration {
	switch {
	case h.failed:
		return shorten(h.interval/4, 0.2)
	case h.interval >= h.a.cfg.Interval && h.a.term.Load() != nil:
		return h.a.cfg.Interval
	}
	return shorten(h.interval, 0.1)
}

// shorten takes a random part, at most the given fraction, off d.
func shorten(d time.Duration, fraction float64) time.Duration {
	return d - time.Duration(rand.Float64()*fraction*float64(d))
}

// measure notes how late a timer was that was set at before for wait.
func (h *heart) measure(before, now clock.Reading, wait time.Duration) {
	h.late = max(h.late, now.Elapsed(before)-wait)
	h.suspended = max(h.suspended, (now.Boot-before.Boot)-(now.Mono-before.Mono))
}

// doubts names what the node finds wrong with itself.
func (h *heart) doubts() []string {
	var list []string
	if h.late >= h.interval/4 {
		list = append(list, "timer_late")
	}
	if h.suspended >= h.interval/4 {
		list = append(list, "suspended")
	}
	if t := h.a.term.Load(); t != nil {
		if _, may := t.MayAct(); !may {
			list = append(list, "lease_in_doubt")
		}
	}
	return list
}

// beat sends one beat, with a renewal or without.
func (h *heart) beat(ctx context.Context, r *renewal) {
	a := h.a
	h.sent = clock.Now()
	if a.fenced.Load() != nil { // nothing of this incarnation leaves any more
		if r != nil {
			r.answer <- store.Result{Err: errors.Join(store.ErrUnavailable, ErrReplaced)}
		}
		return
	}
	h.seq++
	b := &api.Beat{
		Node: a.cfg.Node, Incarnation: a.incarnation, Seq: h.seq,
		LateMS: min(h.late.Milliseconds(), 24*time.Hour.Milliseconds()), Doubts: h.doubts(),
		SentAt: time.Now().UTC(),
	}
	lease := a.leaseToken()
	var left []fleet.Leftover
	if h.takes {
		left = a.work.leftovers(lease)
	}
	if !slices.Equal(left, h.left) {
		h.left, h.changes = left, h.changes+1
	}
	f := h.facts.Load()
	if f != nil && h.accepted { // the first reply says what the server takes
		b.FactsVersion = f.version + h.changes
		if b.FactsVersion != h.told {
			facts := f.facts
			facts.Leftovers = h.left
			b.Facts = &facts
		}
	}
	b.Orders = a.view.askUnder(lease)
	if lease != 0 {
		b.Work = a.work.reports(lease)
	}
	if r != nil {
		b.Renew = &api.Renewal{Token: r.grant.Token, TTLMS: r.grant.TTL.Milliseconds(), Attempt: r.grant.Attempt, Known: r.grant.Known}
	}
	h.sent = clock.Now()
	limit, bounded := ctx.Deadline()
	reply, err := a.cfg.Server.Beat(ctx, b)
	if bounded { // the end of a send is a timer, too
		h.late = max(h.late, time.Since(limit))
	}
	if err == nil && reply.Node != a.cfg.Node {
		err = errors.Join(store.ErrUnavailable, errors.New("agent: the answer is about another node"))
	}
	if r != nil {
		r.answer <- renewed(reply, err)
	}
	h.hears(err == nil)
	if err != nil {
		h.told = 0 // whoever answers next may not have them
		h.takes = h.takes && !errors.Is(err, store.ErrInvalid)
		h.complain(err)
		if refused, ok := errors.AsType[*api.Error](err); ok && refused.Code == string(fleet.CodeReplaced) {
			a.replaced(refused.Message)
		}
		a.view.doubt("beat: " + err.Error())
		return
	}
	h.accepted, h.trouble = true, ""
	if h.failed {
		h.failed = false
		a.emit(Event{Kind: EventServer})
	}
	h.late, h.suspended, h.takes = 0, 0, reply.Leftovers
	if b.Facts != nil {
		h.told = b.FactsVersion
	}
	if reply.NeedFacts {
		h.told = 0
		if f != nil && b.Facts == nil {
			h.nudge()
		}
	}
	if d := time.Duration(reply.IntervalMS) * time.Millisecond; d > 0 {
		h.interval = min(max(d, a.cfg.Interval/10), a.cfg.TTL/3)
	}
	a.heard(b, lease, reply)
}

// complain tells of a beat that failed, if the last one did not fail for the same
// reason. An agent that was refused before it was ever heard has nothing to wait for.
func (h *heart) complain(err error) {
	e, trouble := Event{Kind: EventNoServer, Code: string(store.Classify(err)), Err: err}, ""
	if errors.Is(err, store.ErrPermission) {
		e.Kind, trouble = EventRefused, err.Error()
		if refusal, ok := errors.AsType[*api.Error](err); ok { // and not which server said it
			trouble = refusal.Code + ": " + refusal.Message
		}
	}
	if !h.failed || h.trouble != trouble {
		h.failed, h.trouble = true, trouble
		h.a.emit(e)
	}
	if trouble != "" && !h.accepted {
		h.a.end(&RefusedError{Node: h.a.cfg.Node, Err: err})
	}
}

// renewed is what the keeper is told of its renewal.
func renewed(reply *api.BeatReply, err error) store.Result {
	switch {
	case err != nil:
		return store.Result{Err: err}
	case reply.Renewed == nil:
		return store.Result{Err: errors.Join(store.ErrUnavailable, errors.New("agent: the beat was answered and its renewal was not"))}
	}
	return reply.Renewed.Store()
}
