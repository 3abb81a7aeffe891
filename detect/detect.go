// Package detect tells how long a silence may last before a node is suspected.
//
// Four detectors share one small contract, [Detector]:
//
//   - [Fixed] suspects after k missed beats of a known interval. The default.
//   - [Phi] learns the rhythm and its spread, and suspects a silence that is as
//     improbable as its threshold says.
//   - [Chen] learns at which instant of the interval beats arrive, and suspects
//     when one is later than a margin.
//   - [Progress] suspects work whose marker stays the same. It is about getting
//     anywhere, the others are about being there.
//
// [Observer] keeps the axis of time on which they work: the time during which
// somebody was listening.
//
// # States
//
//	            beat                           silent for longer than
//	          ┌──────┐           the late bound                  Limit
//	          ▼      │          ┌──────────────► late ──────────────┐
//	Begin ─► alive ──┴──────────┘                 │                 ▼
//	          ▲                                   │              suspect
//	          └────────────── beat, Begin ────────┴─────────────────┘
//
// No other way leads out of suspect than a beat, with what it says by Widen, or
// Begin.
//
// # What is promised
//
//   - A node is suspect exactly while now > Deadline(), and Suspicion(now) > 1
//     exactly then. A beat that arrives at its deadline is in time. (Progress
//     needs a report after its deadline to suspect.)
//   - Only the instant of receipt counts. A detector never sees a sender's clock.
//   - Silence counts only while an observer was listening (P9), if instants come
//     from an [Observer].
//   - Outages stay out of the statistics. The silence that ended in a suspicion,
//     and the one that [Phi.Begin] cut, are no samples.
//   - Beats that were queued and arrive together do not make the rhythm look
//     faster: what comes well before its time is no sample.
//   - A limit is bounded, whatever was learnt: by its configuration, and by twice
//     that with what the node says of its own lateness.
//   - Memory is constant: 48 bytes for Fixed, 72 for Chen, 232 for Phi, and no method
//     allocates but Explain. No result is NaN or infinite.
//
// # What is not promised
//
// A suspicion may be wrong: that a node is silent does not show that it stopped,
// and may be acted upon only by not giving it new work. It never moves ownership,
// which the lease alone decides. A node that beats and does nothing is alive here
// until Progress says otherwise.
//
// # How
//
// Each beat turns what the detector knows into two bounds on silence, beyond which
// the node is late and suspect. To ask for the state is then one subtraction and
// one or two comparisons, for every detector, which is what a sweep over many nodes needs.
//
// The detectors are plain values without pointers (Progress holds its marker):
// make one with its constructor, and copy it into the slot of each node as its
// first state, followed by Begin. A slot must not be used from two goroutines at
// once.
//
// The package is pure: it reads no clock, starts no goroutine and does no I/O. An
// instant is a [time.Duration] on one axis of the observer, from 0.
//
// # Sources
//
// N. Hayashibara, X. Défago, R. Yared, T. Katayama: The φ accrual failure
// detector, SRDS 2004. W. Chen, S. Toueg, M. K. Aguilera: On the quality of
// service of failure detectors, IEEE Transactions on Computers 51(5), 2002
// (algorithm NFD-E).
package detect

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// ErrConfig reports settings that contradict each other or make no sense. The
// message names both values.
var ErrConfig = errors.New("detect: invalid configuration")

// Detector judges the silence of one node. All instants are on one axis, which
// begins at 0 and does not run backwards; see [Observer]. Not safe for concurrent
// use.
type Detector interface {
	// Begin starts the watch anew: silence counts from at, and the gap that
	// contains at is no sample. It is for a node that is new to this observer,
	// and after an observer's long gap (see [Observer.Tick]). It also ends a
	// suspicion; whoever wants it to stand until a beat leaves that node out.
	Begin(at time.Duration)

	// Observe takes in a beat received at this instant. One from before the
	// last is ignored.
	Observe(at time.Duration)

	// Widen sets by how much the node may be later than usual, as it reports
	// its own timers late. It stands until the next call. At most it doubles
	// the limit; a negative value is 0.
	Widen(by time.Duration)

	// Last is the instant from which silence counts: the last beat, or Begin
	// if that was later.
	Last() time.Duration

	// Deadline is the last instant at which the node is not suspect if no beat
	// comes. Only Observe, Begin and Widen move it.
	Deadline() time.Duration

	// Limit is Deadline less Last.
	Limit() time.Duration

	// State judges the silence at now.
	State(now time.Duration) State

	// Suspicion grows with silence from 0. It is above 1 exactly while the
	// node is suspect, so that the values of different detectors compare.
	Suspicion(now time.Duration) float64

	// Explain gives the figures behind State, and a sentence for people.
	Explain(now time.Duration) Explanation
}

// State is what a detector makes of a silence.
type State uint8

// The states, in order of suspicion.
const (
	Alive   State = iota // nothing is missing
	Late                 // a beat is missing; for display only
	Suspect              // silent beyond the limit: gets no new work
)

var stateNames = [...]string{Alive: "alive", Late: "late", Suspect: "suspect"}

// String returns "alive", "late" or "suspect".
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// MarshalText returns what String does.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (s *State) UnmarshalText(b []byte) error {
	for i, name := range stateNames {
		if string(b) == name {
			*s = State(i)
			return nil
		}
	}
	return fmt.Errorf("detect: %q is not a state (alive, late, suspect)", b)
}

// watch is the part that all detectors share: the last beat and the two bounds
// that it left. Instants and bounds stay below the overflow of a Duration by
// saturation.
type watch struct {
	last    time.Duration
	widened time.Duration
	late    time.Duration // silence beyond which the node is late
	limit   time.Duration // silence beyond which it is suspect; late <= limit
	heard   bool          // a beat came since Begin
}

func (w *watch) begin(at time.Duration) {
	w.last, w.heard = max(w.last, at), false
}

func (w *watch) observe(at time.Duration) {
	w.last, w.heard = max(w.last, at), true
}

// Widen sets by how much the node may be later than usual. See [Detector].
func (w *watch) Widen(by time.Duration) { w.widened = max(by, 0) }

// Last is the instant from which silence counts.
func (w *watch) Last() time.Duration { return w.last }

// Limit is the longest silence that is no suspicion, widening included.
func (w *watch) Limit() time.Duration { return add(w.limit, w.extra()) }

// Deadline is the last instant at which the node is not suspect.
func (w *watch) Deadline() time.Duration { return add(w.last, w.Limit()) }

// State judges the silence at now.
func (w *watch) State(now time.Duration) State {
	silent := w.silent(now)
	if silent <= w.late {
		return Alive
	}
	switch extra := w.extra(); {
	case silent <= add(w.late, extra):
		return Alive
	case silent <= add(w.limit, extra):
		return Late
	default:
		return Suspect
	}
}

// Suspicion is the silence at now in parts of the limit.
func (w *watch) Suspicion(now time.Duration) float64 {
	return w.side(now, float64(w.silent(now))/float64(max(w.Limit(), 1)))
}

// side keeps a suspicion on the side of 1 on which State is.
func (w *watch) side(now time.Duration, s float64) float64 {
	if w.silent(now) > w.Limit() {
		return max(s, math.Nextafter(1, 2))
	}
	return min(s, 1)
}

func (w *watch) extra() time.Duration { return min(w.widened, w.limit) }

func (w *watch) silent(now time.Duration) time.Duration { return max(sub(now, w.last), 0) }

// add and sub saturate.
func add(a, b time.Duration) time.Duration {
	if c := a + b; (c > a) == (b > 0) || b == 0 {
		return c
	}
	if b > 0 {
		return math.MaxInt64
	}
	return math.MinInt64
}

func sub(a, b time.Duration) time.Duration {
	if b == math.MinInt64 {
		return add(add(a, math.MaxInt64), 1)
	}
	return add(a, -b)
}

// Bounds of every configuration. They keep sums of its values far from overflow.
const (
	shortestInterval = time.Millisecond
	longestInterval  = 24 * time.Hour
	longestLimit     = 30 * 24 * time.Hour
)

func checkInterval(d time.Duration) error {
	if d < shortestInterval || d > longestInterval {
		return fmt.Errorf("%w: interval %v is not between %v and %v", ErrConfig, d, shortestInterval, longestInterval)
	}
	return nil
}
