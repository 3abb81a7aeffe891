package detect

import (
	"fmt"
	"math"
	"time"
)

// PhiConfig sets a Phi detector. The zero value of each field means its default.
type PhiConfig struct {
	// Interval is the time between two beats that the node was told. It is what
	// the detector assumes before it has learnt anything, and it tells a beat
	// from a catch-up. Default 10 s, from 1 ms to 24 h.
	Interval time.Duration

	// Threshold is the φ beyond which a node is suspect: a silence is suspect
	// if a beat comes that late, or later, once in 10^Threshold beats. Default 8,
	// from 1 to 100. A step costs little time and much probability, as far as
	// the arrivals have a normal distribution.
	Threshold float64

	// Pause is a silence that is accepted on top of the learnt mean: a
	// collection of garbage, a lost beat. Default Interval. It delays every
	// detection by as much.
	Pause time.Duration

	// MinStdDev is the least spread that is assumed, so that a very regular
	// node is not suspected for the first small delay. Default Interval/10, at
	// most Interval.
	MinStdDev time.Duration

	// Max is the longest limit that can be learnt, so that rough times do not
	// make the detector blind. Default 3 × (Interval + Pause), or twice the
	// least limit (Interval + Pause + the threshold's part of MinStdDev) if that
	// is longer. At least the least limit, at most 720 h.
	Max time.Duration
}

const (
	// window is the number of gaps that are remembered. Two bytes each.
	window = 64
	// perInterval is the resolution of a remembered gap: 1/1024 of the
	// interval. So a sample holds up to 64 intervals, and the sums are exact.
	perInterval = 1024
	// lateZ is the distance from the mean, in standard deviations, beyond which
	// a node is late: φ = 3, one beat in a thousand.
	lateZ = 3.09
)

// Phi is the φ accrual detector of Hayashibara and others: it keeps the last 64
// gaps between beats, takes them for normally distributed, and suspects a
// silence of which φ = −log10 P(a gap is longer) exceeds the threshold.
//
// It differs from the paper in that φ is not evaluated to judge: each beat
// computes the silence at which φ will reach the threshold, which is mean +
// Pause + z × standard deviation with a z that depends on the threshold alone. The
// window begins with two assumed gaps, a quarter below and above the interval.
//
// Not every gap is a sample. One that ended in a suspicion is an outage. One
// below three quarters of the interval is a beat that catches up after a delay,
// and the delay is in the gap before it; so the learnt mean is never below that
// either. A gap of the observer's that is shorter than its Restart shortens at
// most the samples it falls into, within the same bound.
//
// The zero Phi suspects everybody; use NewPhi.
type Phi struct {
	watch
	interval  time.Duration
	pause     time.Duration
	minStdDev time.Duration
	max       time.Duration
	threshold float64
	z         float64

	squares uint64 // of the samples in the window
	sum     uint32
	n, next uint16
	gaps    [window]uint16 // in parts of the interval
}

var _ Detector = (*Phi)(nil)

// NewPhi returns a detector that watches from instant 0. Errors match ErrConfig.
func NewPhi(cfg PhiConfig) (Phi, error) {
	if cfg.Interval == 0 {
		cfg.Interval = 10 * time.Second
	}
	if err := checkInterval(cfg.Interval); err != nil {
		return Phi{}, err
	}
	if cfg.Threshold == 0 {
		cfg.Threshold = 8
	}
	if cfg.Pause == 0 {
		cfg.Pause = cfg.Interval
	}
	if cfg.MinStdDev == 0 {
		cfg.MinStdDev = cfg.Interval / 10
	}
	switch {
	case !(cfg.Threshold >= 1 && cfg.Threshold <= 100): // NaN too
		return Phi{}, fmt.Errorf("%w: threshold %v is not between 1 and 100", ErrConfig, cfg.Threshold)
	case cfg.Pause < 0 || cfg.Pause > longestInterval:
		return Phi{}, fmt.Errorf("%w: pause %v is not between 0 and %v", ErrConfig, cfg.Pause, longestInterval)
	case cfg.MinStdDev < 0 || cfg.MinStdDev > cfg.Interval:
		return Phi{}, fmt.Errorf("%w: least standard deviation %v is not between 0 and the interval %v", ErrConfig, cfg.MinStdDev, cfg.Interval)
	}
	p := Phi{
		interval:  cfg.Interval,
		pause:     cfg.Pause,
		minStdDev: cfg.MinStdDev,
		threshold: cfg.Threshold,
		z:         quantile(cfg.Threshold),
	}
	least := cfg.Interval + cfg.Pause + time.Duration(p.z*float64(cfg.MinStdDev))
	if cfg.Max == 0 {
		cfg.Max = min(max(3*(cfg.Interval+cfg.Pause), 2*least), longestLimit)
	}
	if cfg.Max < least || cfg.Max > longestLimit {
		return Phi{}, fmt.Errorf("%w: longest limit %v is not between the least limit %v and %v", ErrConfig, cfg.Max, least, longestLimit)
	}
	p.max = cfg.Max
	p.sample(cfg.Interval * 3 / 4)
	p.sample(cfg.Interval * 5 / 4)
	p.judge()
	return p, nil
}

// Begin starts the watch anew and keeps what was learnt. See [Detector].
func (p *Phi) Begin(at time.Duration) { p.begin(at) }

// Observe takes in a beat.
func (p *Phi) Observe(at time.Duration) {
	gap := p.silent(at)
	learn := p.heard && gap <= p.Limit() && !catchesUp(gap, p.interval)
	p.observe(at)
	if learn {
		p.sample(gap)
		p.judge()
	}
}

// catchesUp reports that a gap is too short to be a gap between two beats that
// were sent in time and not delayed.
func catchesUp(gap, interval time.Duration) bool { return gap < interval*3/4 }

// sample remembers a gap in place of the oldest.
func (p *Phi) sample(gap time.Duration) {
	part := uint16(min(math.Round(float64(gap)*perInterval/float64(p.interval)), math.MaxUint16))
	if p.n == window {
		old := p.gaps[p.next]
		p.sum -= uint32(old)
		p.squares -= uint64(old) * uint64(old)
	} else {
		p.n++
	}
	p.gaps[p.next] = part
	p.next = (p.next + 1) % window
	p.sum += uint32(part)
	p.squares += uint64(part) * uint64(part)
}

// judge turns the window into the two bounds.
func (p *Phi) judge() {
	mean, dev := p.learnt()
	p.limit = min(time.Duration(mean+float64(p.pause)+p.z*dev), p.max)
	p.late = min(time.Duration(mean+lateZ*dev), p.limit)
}

// learnt returns the mean and the standard deviation of the window in
// nanoseconds, the latter at least as configured.
func (p *Phi) learnt() (mean, dev float64) {
	n := float64(max(p.n, 1))
	mean = float64(p.sum) / n
	variance := max(float64(p.squares)/n-mean*mean, 0)
	part := float64(p.interval) / perInterval
	return mean * part, max(math.Sqrt(variance)*part, float64(p.minStdDev))
}

// Phi returns φ at now: −log10 of the probability that a beat comes this late
// or later. It is 0 or more and finite.
func (p *Phi) Phi(now time.Duration) float64 {
	mean, dev := p.learnt()
	beyond := float64(p.silent(now)) - float64(p.extra()) - float64(p.pause) - mean
	return tail(beyond / max(dev, 1))
}

// tail is −log10 of the probability that a normally distributed value exceeds
// its mean by more than z standard deviations.
func tail(z float64) float64 {
	y := z / math.Sqrt2
	if y < 20 {
		return max(-math.Log10(math.Erfc(y)/2), 0)
	}
	// Further out erfc(y) leaves the range of a float; there it is e^−y² / (y√π).
	return (y*y + math.Log(2*y*math.Sqrt(math.Pi))) * math.Log10E
}

// quantile is the inverse of tail, for a φ from 1 to 100. math.Erfcinv goes by 1
// less its argument, which is 1 for a φ above 16.
func quantile(phi float64) float64 {
	low, high := 0.0, 30.0
	for range 60 {
		if z := (low + high) / 2; tail(z) < phi {
			low = z
		} else {
			high = z
		}
	}
	return high
}

// Suspicion is φ in parts of the threshold.
func (p *Phi) Suspicion(now time.Duration) float64 {
	return p.side(now, p.Phi(now)/max(p.threshold, 1))
}

// Explain gives the figures behind State.
func (p *Phi) Explain(now time.Duration) Explanation {
	e := p.explain(now, "phi")
	mean, dev := p.learnt()
	e.Expected = time.Duration(mean)
	e.Suspicion = p.Suspicion(now)
	e.Samples, e.Mean, e.StdDev, e.Phi, e.Threshold = int(p.n), time.Duration(mean), time.Duration(dev), p.Phi(now), p.threshold
	e.Rule = fmt.Sprintf("phi %.1f of %g; mean %s, standard deviation %s of %d gaps, pause %s",
		e.Phi, p.threshold, round(e.Mean), round(e.StdDev), p.n, round(p.pause))
	return e
}
