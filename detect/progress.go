package detect

import (
	"fmt"
	"time"
)

// Progress suspects work that reports and gets nowhere: its marker was the same
// in all reports of a time.
//
// It judges what was reported and nothing else. While no report comes, its
// state stands: that the reporter is silent is for another detector to say.
// It is never late.
//
// The zero Progress suspects everybody; use NewProgress.
type Progress struct {
	watch
	marker   string
	reported time.Duration // instant of the last report
}

var _ Detector = (*Progress)(nil)

// NewProgress returns a detector that suspects after a marker has not changed
// for longer than this. It watches from instant 0. Errors match ErrConfig.
func NewProgress(after time.Duration) (Progress, error) {
	if after < shortestInterval || after > longestLimit {
		return Progress{}, fmt.Errorf("%w: a marker unchanged for %v is not between %v and %v", ErrConfig, after, shortestInterval, longestLimit)
	}
	return Progress{watch: watch{late: after, limit: after}}, nil
}

// Report takes in a report with its marker, and tells whether that shows
// progress: it is the first since Begin, or differs from the one before.
// Reports from before the last are ignored.
func (p *Progress) Report(at time.Duration, marker string) bool {
	if at < p.reported {
		return false
	}
	p.reported = at
	if p.heard && marker == p.marker {
		return false
	}
	p.marker = marker
	p.observe(at)
	return true
}

// Marker is the last one that was reported.
func (p *Progress) Marker() string { return p.marker }

// Begin starts the watch anew. See [Detector].
func (p *Progress) Begin(at time.Duration) {
	p.begin(at)
	p.reported = max(p.reported, p.last)
}

// Observe takes in progress without a marker of its own.
func (p *Progress) Observe(at time.Duration) {
	p.observe(at)
	p.reported = max(p.reported, p.last)
}

// State judges the time up to the last report.
func (p *Progress) State(now time.Duration) State { return p.watch.State(min(now, p.reported)) }

// Suspicion is the time for which the marker was reported unchanged, in parts of
// the limit.
func (p *Progress) Suspicion(now time.Duration) float64 {
	return p.watch.Suspicion(min(now, p.reported))
}

// Explain gives the figures behind State. Silent is the time for which the
// marker was reported unchanged.
func (p *Progress) Explain(now time.Duration) Explanation {
	now = min(now, p.reported)
	e := p.explain(now, "progress")
	e.Suspicion = p.Suspicion(now)
	e.Expected = p.limit
	e.Rule = fmt.Sprintf("marker %.64q unchanged", p.marker)
	return e
}
