package tenure

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store"
)

// ErrConfig reports settings that contradict each other.
var ErrConfig = errors.New("tenure: invalid configuration")

// Config sets a Keeper's times and hooks. The zero value of each field means
// its default.
type Config struct {
	// TTL is the life of a term in the store, on the store's clock. Default
	// 30 s. A shorter one shortens the time until somebody else may take over
	// after a crash, and costs requests and tolerance of outages.
	TTL time.Duration

	// Interval is the longest time between two renewals. Default TTL/3, at most
	// TTL/2. Jitter only shortens it.
	Interval time.Duration

	// Margin is how long before the store's expiry the holder stops. It must
	// cover the drift between the two clocks and the time that work needs to
	// stop. Default TTL/5.
	Margin time.Duration

	// Drift is the assumed difference in speed between this host's clocks and
	// the store's, as a fraction. Default 0.001. A margin below twice the drift
	// over a TTL is refused.
	Drift float64

	// WarnLeft is the time before TrustedUntil at which an unconfirmed term is
	// reported as Warning. Default Interval.
	WarnLeft time.Duration

	// DrainTimeout is how long Run goes on renewing after its context ended,
	// for terms that were not released yet. Default TTL. What is not released
	// by then is left to expire.
	DrainTimeout time.Duration

	// ReleaseTimeout bounds a release with all its tries. Default Margin, but
	// from 1 s to 5 s.
	ReleaseTimeout time.Duration

	// Host begins the identity of this process, before the first slash.
	// Reservations may name it. Default the host name.
	Host string

	// StandDownOnError ends a term at the first renewal that fails instead of
	// at TrustedUntil. It moves work at every blip of the store; the margin and
	// the fence make waiting safe.
	StandDownOnError bool

	// Logger gets one line for each change of state. Nil discards.
	Logger *slog.Logger

	// OnEvent is called for each change of state, one call at a time for each
	// term. It must return quickly and must not call the Keeper or its Terms.
	OnEvent func(Event)

	// OnRenewal is called after each request that renewed terms, answered or not,
	// one call at a time. It must return quickly and must not call the Keeper or its
	// Terms. It is where the latency of renewals is measured at their holder.
	OnRenewal func(Renewal)

	// clock replaces the host's clocks in tests. Nil: this host's.
	clock clock.Source
}

// withDefaults fills and checks cfg. The warning is "" unless the settings are
// legal and unwise.
func (cfg Config) withDefaults() (_ Config, warning string, err error) {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&cfg.TTL, 30*time.Second)
	def(&cfg.Interval, cfg.TTL/3)
	def(&cfg.Margin, cfg.TTL/5)
	def(&cfg.WarnLeft, cfg.Interval)
	def(&cfg.DrainTimeout, cfg.TTL)
	def(&cfg.ReleaseTimeout, min(max(cfg.Margin, time.Second), 5*time.Second))
	if cfg.Drift == 0 {
		cfg.Drift = 0.001
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	fail := func(format string, args ...any) (Config, string, error) {
		return cfg, "", fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
	}
	least := time.Duration(2 * cfg.Drift * float64(cfg.TTL))
	switch {
	case cfg.TTL < 0 || cfg.TTL > store.MaxTTL:
		return fail("TTL %s must be from 0s to %s", cfg.TTL, store.MaxTTL)
	case cfg.Interval < 0 || cfg.Interval > cfg.TTL/2:
		return fail("interval %s must be at most half of the TTL %s, so that one renewal may fail", cfg.Interval, cfg.TTL)
	case cfg.Drift < 0 || cfg.Drift > 0.25:
		return fail("drift %g must be from 0 to 0.25", cfg.Drift)
	case cfg.Margin < least:
		return fail("margin %s must be at least %s, twice the assumed drift %g over the TTL %s", cfg.Margin, least, cfg.Drift, cfg.TTL)
	case cfg.Margin > cfg.TTL-cfg.Interval:
		return fail("margin %s leaves no time for a renewal: interval %s and margin must fit into the TTL %s", cfg.Margin, cfg.Interval, cfg.TTL)
	case cfg.WarnLeft < 0 || cfg.DrainTimeout < 0 || cfg.ReleaseTimeout < 0:
		return fail("durations must not be negative")
	}
	if tries := (cfg.TTL - cfg.Margin) / cfg.Interval; tries < 2 {
		warning = fmt.Sprintf("interval %s leaves %d renewals before TTL %s minus margin %s; at least 2 are advised", cfg.Interval, tries, cfg.TTL, cfg.Margin)
	}
	return cfg, warning, nil
}

// scaled returns the times for a term with its own TTL, in the same proportions.
func (cfg *Config) scaled(ttl time.Duration) times {
	f := float64(ttl) / float64(cfg.TTL)
	scale := func(d time.Duration) time.Duration { return max(time.Duration(float64(d)*f), 1) }
	return times{ttl: ttl, interval: scale(cfg.Interval), margin: scale(cfg.Margin), warn: scale(cfg.WarnLeft)}
}

// times are the durations of one term.
type times struct{ ttl, interval, margin, warn time.Duration }

// tick is how often the clocks must be looked at while the term is held.
func (t times) tick() time.Duration { return min(time.Second, t.margin/4) }
