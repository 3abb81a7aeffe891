package detect

import (
	"iter"
	"time"
)

// Change is a node that became suspect, or was heard again.
type Change struct {
	At    time.Duration
	State State // Suspect or Alive
}

// Replay gives a detector beats in order, and the time until end, and returns
// each change at the instant at which it takes place. It goes on from the state
// of the detector. Lateness is no change.
func Replay(d Detector, beats iter.Seq[time.Duration], end time.Duration) []Change {
	var changes []Change
	suspect := false
	lapse := func(now time.Duration) {
		if !suspect && now > d.Deadline() {
			suspect = true
			changes = append(changes, Change{d.Deadline(), Suspect})
		}
	}
	for at := range beats {
		lapse(at)
		d.Observe(at)
		if suspect {
			suspect = false
			changes = append(changes, Change{at, Alive})
		}
	}
	lapse(end)
	return changes
}

// Survey describes the gaps of a trace of beats. A mean hides a late beat and
// the one that catches up after it, so they are listed apart.
type Survey struct {
	Gaps    int
	Mean    time.Duration
	Worst   time.Duration
	Late    []Gapped // longer than one and a half intervals
	CatchUp []Gapped // shorter than three quarters of an interval
}

// Gapped is one gap of a trace.
type Gapped struct {
	At     time.Duration // of the beat that ended it
	Length time.Duration
}

// NewSurvey reads the beats of a node, in order, that should come at an
// interval.
func NewSurvey(beats iter.Seq[time.Duration], interval time.Duration) Survey {
	var (
		s     Survey
		first time.Duration
		last  time.Duration
		begun bool
	)
	for at := range beats {
		if !begun {
			first, last, begun = at, at, true
			continue
		}
		gap := max(sub(at, last), 0)
		last = max(last, at)
		s.Gaps++
		s.Worst = max(s.Worst, gap)
		switch {
		case gap > interval+interval/2:
			s.Late = append(s.Late, Gapped{at, gap})
		case catchesUp(gap, interval):
			s.CatchUp = append(s.CatchUp, Gapped{at, gap})
		}
	}
	if s.Gaps > 0 {
		s.Mean = sub(last, first) / time.Duration(s.Gaps)
	}
	return s
}

// Safe is the shortest timeout that would have suspected nobody over the trace
// and left a margin besides. With few gaps it says little: report Gaps with it.
func (s Survey) Safe(margin time.Duration) time.Duration { return add(s.Worst, margin) }
