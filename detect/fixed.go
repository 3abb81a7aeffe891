package detect

import (
	"fmt"
	"time"
)

// FixedConfig sets a Fixed detector. The zero value of each field means its
// default.
type FixedConfig struct {
	// Interval is the time between two beats of the node. Default 10 s, from
	// 1 ms to 24 h.
	Interval time.Duration

	// Late is the number of missed beats after which a node is late. Default 1,
	// at most Misses.
	Late int

	// Misses is the number of missed beats after which a node is suspect: at a
	// silence of more than Misses × Interval. Default 3, at most 1000. A
	// crash between two beats is found after (Misses − 1) × Interval to Misses ×
	// Interval. One that is 1 takes every beat that the network delays for a
	// crash.
	Misses int

	// Jitter is by how much a beat may be overdue before the node is late, so
	// that the way of a beat through the network does not show as lateness. It
	// does not delay suspicion. Default Interval/10, below Interval.
	Jitter time.Duration
}

// Fixed suspects a node after a number of missed beats. The zero Fixed suspects
// everybody; use NewFixed.
type Fixed struct {
	watch
	interval time.Duration
}

var _ Detector = (*Fixed)(nil)

// NewFixed returns a detector that watches from instant 0. Errors match ErrConfig.
func NewFixed(cfg FixedConfig) (Fixed, error) {
	if cfg.Interval == 0 {
		cfg.Interval = 10 * time.Second
	}
	if err := checkInterval(cfg.Interval); err != nil {
		return Fixed{}, err
	}
	if cfg.Misses == 0 {
		cfg.Misses = 3
	}
	if cfg.Late == 0 {
		cfg.Late = 1
	}
	if cfg.Jitter == 0 {
		cfg.Jitter = cfg.Interval / 10
	}
	switch {
	case cfg.Misses < 1 || cfg.Misses > 1000:
		return Fixed{}, fmt.Errorf("%w: suspicion after %d missed beats is not between 1 and 1000", ErrConfig, cfg.Misses)
	case time.Duration(cfg.Misses)*cfg.Interval > longestLimit:
		return Fixed{}, fmt.Errorf("%w: %d missed beats of %v are more than %v", ErrConfig, cfg.Misses, cfg.Interval, longestLimit)
	case cfg.Late < 1 || cfg.Late > cfg.Misses:
		return Fixed{}, fmt.Errorf("%w: late after %d missed beats is not between 1 and suspicion after %d", ErrConfig, cfg.Late, cfg.Misses)
	case cfg.Jitter < 0 || cfg.Jitter >= cfg.Interval:
		return Fixed{}, fmt.Errorf("%w: jitter %v is not between 0 and the interval %v", ErrConfig, cfg.Jitter, cfg.Interval)
	}
	limit := time.Duration(cfg.Misses) * cfg.Interval
	return Fixed{
		watch:    watch{late: min(time.Duration(cfg.Late)*cfg.Interval+cfg.Jitter, limit), limit: limit},
		interval: cfg.Interval,
	}, nil
}

// Begin starts the watch anew. See [Detector].
func (f *Fixed) Begin(at time.Duration) { f.begin(at) }

// Observe takes in a beat.
func (f *Fixed) Observe(at time.Duration) { f.observe(at) }

// Explain gives the figures behind State.
func (f *Fixed) Explain(now time.Duration) Explanation {
	e := f.explain(now, "fixed")
	e.Expected = f.interval
	e.Suspicion = f.Suspicion(now)
	misses := int(f.limit / max(f.interval, 1))
	beats := "beats"
	if misses == 1 {
		beats = "beat"
	}
	e.Rule = fmt.Sprintf("%d missed %s of %s", misses, beats, round(f.interval))
	return e
}
