package tenure

import (
	"time"

	"github.com/tenurehq/tenure/internal/clock"
)

// WithClock gives cfg a clock of the test's own.
func WithClock(cfg Config, c clock.Source) Config {
	cfg.clock = c
	return cfg
}

// ForgetProcess makes the keeper believe that this process is a fork of its own.
func (k *Keeper) ForgetProcess() { k.fork = forgottenMark() }

// Replaceable returns how many restored terms the keeper remembers.
func (k *Keeper) Replaceable() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.replace)
}

// Allows is the rule of the fast path of MayAct.
func Allows(left, slack, mono, wall time.Duration) bool {
	return (&view{left: left, slack: slack}).allows(mono, wall)
}
