// Package clock reads the three clocks by which a holder judges its own time.
//
// Monotonic time stops while the machine is suspended, boot time goes on, and
// the wall clock may be set by anybody. No single one of them is enough: see
// "Time" in docs/ARCHITECTURE.md.
package clock

import "time"

// Reading is one instant on the three clocks, taken together. The fields count
// from origins that are unrelated to each other and mean nothing on another
// machine; only differences between two readings of one host are used.
type Reading struct {
	Mono time.Duration // monotonic: stops in suspend
	Boot time.Duration // since boot: counts suspend
	Wall time.Duration // since the Unix epoch, by the host's settable clock
}

// Elapsed returns the time from earlier to r as a holder must count it: the
// larger of the monotonic and the boot clock's progress.
func (r Reading) Elapsed(earlier Reading) time.Duration {
	return max(r.Mono-earlier.Mono, r.Boot-earlier.Boot)
}

// Add returns the reading that lies d later on all three clocks.
func (r Reading) Add(d time.Duration) Reading {
	return Reading{Mono: r.Mono + d, Boot: r.Boot + d, Wall: r.Wall + d}
}

// Source gives readings. A test brings its own to inject a suspend or a step.
type Source func() Reading
