package fleet

import (
	"cmp"
	"fmt"
	"strconv"
	"time"
)

// Action is what a decision does with a work item.
type Action string

// The actions.
const (
	Hold Action = "hold" // nothing now
	Move Action = "move" // place it on another node
	End  Action = "end"  // record it as stopped: it was told to stop, and must have
)

// Decision says what is to be done with a work item, and why.
type Decision struct {
	Action Action    `json:"action"`
	Code   Code      `json:"code,omitempty"` // why it is held
	Until  time.Time `json:"until,omitzero"` // when to judge again; zero if time alone changes nothing
	Text   string    `json:"text"`
}

// TakeoverRules say when work may be taken from a node whose lease is over. A
// zero field means its default.
type TakeoverRules struct {
	// Wait is for how long the lease has to be over, so that a restarted agent wins
	// back its own lease first; 5 s, the interval of heartbeats less that of the
	// reconciler.
	Wait time.Duration
	// Flap is for the takeovers of one item; WorkFlapRule.
	Flap FlapRule
	// Rate is for all takeovers together; 50 at once and 10 a second.
	Rate Rate
}

// Filled returns r with its defaults in place of zero fields.
func (r TakeoverRules) Filled() TakeoverRules {
	return TakeoverRules{
		Wait: cmp.Or(r.Wait, 5*time.Second), Flap: cmp.Or(r.Flap, WorkFlapRule()),
		Rate: cmp.Or(r.Rate, Rate{Burst: 50, Every: 100 * time.Millisecond}),
	}
}

// Check returns an error matching store.ErrInvalid that names the first field
// which breaks its rule, with its default filled in.
func (r TakeoverRules) Check() error {
	r = r.Filled()
	switch {
	case r.Wait < 0:
		return invalid("takeover wait", r.Wait.String(), "not below 0")
	case r.Rate.Burst < 1:
		return invalid("takeover burst", strconv.Itoa(r.Rate.Burst), "at least 1")
	case r.Rate.Every < 0:
		return invalid("takeover every", r.Rate.Every.String(), "not below 0")
	}
	return r.Flap.Check()
}

// TakeoverCase is one item, its owner, and the observer that judges.
type TakeoverCase struct {
	Work   Work
	Owner  Node        // its Lease is read from the store, not from a cache
	Recent []time.Time // the last takeovers of the item; see MaxFlaps
	Brakes []BrakeState
	// Observing: the observer has not yet been well for one suspect timeout (P9).
	Observing bool
	// Operator: a person asks for it, so that neither Flap nor Rate holds it.
	Operator bool
}

// JudgeTakeover says whether an item may be taken from its owner, and returns the
// bucket after it, which counts only if the takeover is made: where there is no room
// none is. Silence is no reason: only a lease that is over by the store's
// clock is. Pinned work is held with CodeHostGone, for its data is there.
//
// An item that was told to stop and not to run again, and whose policy ends it
// with the lease, is recorded as stopped.
func JudgeTakeover(c TakeoverCase, r TakeoverRules, b Bucket, now time.Time) (Decision, Bucket) {
	r = r.Filled()
	w, lease := &c.Work, c.Owner.Lease
	hold := func(code Code, until time.Time, format string, args ...any) (Decision, Bucket) {
		return Decision{Action: Hold, Code: code, Until: until, Text: fmt.Sprintf(format, args...)}, b
	}
	switch {
	case !w.State.Owned():
		return hold(CodeWrongState, time.Time{}, "it is %s, so nobody has it", w.State)
	case w.Owner != c.Owner.ID:
		return hold(CodeNotOwner, time.Time{}, "its owner is %s, not %s", w.Owner, c.Owner.ID)
	case !lease.over():
		var until time.Time
		if lease.Live() {
			until = now.Add(lease.Remaining)
		}
		return hold(CodeLeaseHeld, until, "its owner %s may still act (lease %s)", w.Owner, lease.text())
	case lease.State != LeaseNone && lease.Over < r.Wait:
		return hold(CodeLeaseRecent, now.Add(r.Wait-lease.Over),
			"the lease of its owner %s has been over for %s of the %s in which the owner may win it back", w.Owner, span(lease.Over), span(r.Wait))
	}
	ends := w.State == Stopping && !w.Moving && w.Filled().OnLoss == Stop
	if !w.Movable && !ends {
		return hold(CodeHostGone, time.Time{}, "its host %s is gone (lease %s): it is pinned and waits for its host", w.Owner, lease.text())
	}
	if c.Observing || c.Owner.Liveness == Observing {
		return hold(CodeObserving, time.Time{}, "the observer has not been well for a full timeout yet, so it takes nothing over")
	}
	for _, s := range c.Brakes {
		if s.HoldsWork(c.Owner) {
			return hold(CodeBrake, now.Add(s.LetsGo), "%s", s.Text)
		}
	}
	if ends {
		return Decision{Action: End, Text: fmt.Sprintf("it was to stop, and its owner %s had to end it before its lease was over (%s)", w.Owner, lease.text())}, b
	}
	if !c.Operator {
		if until, flapping := r.Flap.Judge(c.Recent, now); flapping {
			return hold(CodeFlapping, until, "taken over %d times within %s: it waits until %s, or for an operator", r.Flap.Times, span(r.Flap.Window), instant(until))
		}
		after, wait := r.Rate.Take(b, now)
		if wait > 0 {
			return hold(CodeRateLimited, now.Add(wait), "other takeovers come first: %d at once, then one each %s", r.Rate.Burst, r.Rate.Every)
		}
		b = after
	}
	return Decision{Action: Move, Text: fmt.Sprintf("the lease of its owner %s is over (%s)", w.Owner, lease.text())}, b
}

// over reports whether the term is over by the store's clock. A state that is
// unknown is not over.
func (l Lease) over() bool {
	return l.State == LeaseLapsed || l.State == LeaseReleased || l.State == LeaseNone
}
