package detect

import (
	"fmt"
	"time"
)

// ChenConfig sets a Chen detector. The zero value of each field means its
// default.
type ChenConfig struct {
	// Interval is the time between two beats of the node. Default 10 s, from
	// 1 ms to 24 h.
	Interval time.Duration

	// Margin is how long after its expected arrival a beat is awaited. Default
	// 2 × Interval, so that two beats may be lost. A crash is found at most
	// Interval + Margin, and the usual delay of a beat, after the last beat
	// left.
	Margin time.Duration
}

// arrivals is over how many beats the expected arrival is an average.
const arrivals = 16

// Chen is the detector NFD-E of Chen, Toueg and Aguilera: it expects the next
// beat one interval after the average phase at which the last ones came, and
// suspects when it is later than a margin. A single beat that was delayed moves
// the expectation little, where a fixed timeout would count from it.
//
// It differs from the paper in two things. Beats are not numbered here, so the
// number of intervals since the last beat is the one nearest to the gap; a second
// beat within the same interval is a catch-up and no sample. And the average over
// the last 16 beats is exponential, which needs no window. The limit is
// therefore within half an interval of Interval + Margin, whatever was learnt.
// After an outage, and after Begin, the phase is learnt anew.
//
// The zero Chen suspects everybody; use NewChen.
type Chen struct {
	watch
	interval time.Duration
	margin   time.Duration
	due      time.Duration // expected arrival of the next beat
	n        uint8         // beats in the average, at most arrivals
}

var _ Detector = (*Chen)(nil)

// NewChen returns a detector that watches from instant 0. Errors match ErrConfig.
func NewChen(cfg ChenConfig) (Chen, error) {
	if cfg.Interval == 0 {
		cfg.Interval = 10 * time.Second
	}
	if err := checkInterval(cfg.Interval); err != nil {
		return Chen{}, err
	}
	if cfg.Margin == 0 {
		cfg.Margin = 2 * cfg.Interval
	}
	if cfg.Margin < 0 || cfg.Margin > longestLimit-cfg.Interval {
		return Chen{}, fmt.Errorf("%w: margin %v is not between 0 and %v less the interval %v", ErrConfig, cfg.Margin, longestLimit, cfg.Interval)
	}
	c := Chen{interval: cfg.Interval, margin: cfg.Margin}
	c.expect(cfg.Interval)
	return c, nil
}

// Begin starts the watch anew and forgets the phase. See [Detector].
func (c *Chen) Begin(at time.Duration) {
	c.begin(at)
	c.expect(add(c.last, c.interval))
}

// Observe takes in a beat.
func (c *Chen) Observe(at time.Duration) {
	at = max(at, c.last)
	known := c.heard && c.silent(at) <= c.Limit()
	c.observe(at)
	if !known {
		c.n = 1
		c.expect(add(at, c.interval))
		return
	}
	// The beat belongs to the multiple of the interval after due that is nearest,
	// so lost ones are skipped. One that is nearer to the last beat is an extra one.
	late := sub(at, c.due)
	if late < -c.interval/2 {
		c.expect(c.due)
		return
	}
	c.n = min(c.n+1, arrivals)
	late = (late+c.interval/2)%c.interval - c.interval/2
	c.expect(add(at, c.interval-late+late/time.Duration(c.n)))
}

// expect sets the next expected arrival, and the bounds that follow from it.
func (c *Chen) expect(due time.Duration) {
	c.due = due
	wait := max(sub(due, c.last), 0)
	c.limit = wait + c.margin
	c.late = min(wait+c.interval/10, c.limit)
}

// Explain gives the figures behind State.
func (c *Chen) Explain(now time.Duration) Explanation {
	e := c.explain(now, "chen")
	e.Expected = sub(c.due, c.last)
	e.Suspicion = c.Suspicion(now)
	e.Samples = int(c.n)
	e.Rule = fmt.Sprintf("%s after the expected arrival, by the phase of %d beats of %s", round(c.margin), c.n, round(c.interval))
	return e
}
