package detect

import (
	"fmt"
	"strings"
	"time"
)

// Explanation is the evidence behind a state.
type Explanation struct {
	Detector  string // "fixed", "phi", "chen" or "progress"
	State     State
	Heard     bool          // a beat came since the watch began
	Silent    time.Duration // since the last beat, or since the watch began
	Expected  time.Duration // after the last beat, the next one was expected
	Late      time.Duration // late if silent for longer
	Limit     time.Duration // suspect if silent for longer
	Widened   time.Duration // part of Late and Limit that the node's own lateness adds
	Suspicion float64       // above 1 exactly if suspect
	Rule      string        // where Limit comes from, for people

	// What was learnt. Zero for detectors that do not learn it.
	Samples      int
	Mean, StdDev time.Duration // of the gaps between beats
	Phi          float64
	Threshold    float64 // of Phi
}

// String returns one sentence: the state, how long nothing came, what was
// expected, and the limit.
func (e Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ", e.State)
	switch {
	case e.Detector == "progress":
		fmt.Fprintf(&b, "no progress reported for %s", round(e.Silent))
	case !e.Heard:
		fmt.Fprintf(&b, "no beat since the watch began %s ago", round(e.Silent))
	case e.State == Alive:
		fmt.Fprintf(&b, "last beat %s ago", round(e.Silent))
	default:
		fmt.Fprintf(&b, "silent for %s, a beat was expected after %s", round(e.Silent), round(e.Expected))
	}
	fmt.Fprintf(&b, "; suspect after %s (%s)", round(e.Limit), e.Rule)
	if e.Widened > 0 {
		fmt.Fprintf(&b, ", of which %s because the node reports its own timers late", round(e.Widened))
	}
	return b.String()
}

func (w *watch) explain(now time.Duration, detector string) Explanation {
	return Explanation{
		Detector: detector,
		State:    w.State(now),
		Heard:    w.heard,
		Silent:   w.silent(now),
		Late:     add(w.late, w.extra()),
		Limit:    w.Limit(),
		Widened:  w.extra(),
	}
}

// round leaves the digits that a person reads.
func round(d time.Duration) time.Duration {
	switch {
	case d >= time.Minute:
		return d.Round(100 * time.Millisecond)
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond)
	}
	return d
}
