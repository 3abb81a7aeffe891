//go:build !linux

package clock

import "time"

var start = time.Now()

// Now reads the clocks that this system offers to Go. Without a boot clock of
// its own, Boot follows the larger progress of the monotonic and wall clocks: a
// suspend then shows as time that passed, and so does a forward wall step.
func Now() Reading {
	now := time.Now()
	mono := now.Sub(start)
	wall := time.Duration(now.UnixNano())
	return Reading{Mono: mono, Wall: wall, Boot: max(mono, wall-time.Duration(start.UnixNano()))}
}

// Boot reads what stands for the boot clock.
func Boot() time.Duration { return Now().Boot }
