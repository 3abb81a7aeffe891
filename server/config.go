package server

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/registry"
)

// ErrConfig reports settings that contradict each other.
var ErrConfig = errors.New("server: invalid configuration")

// Config sets a Server's times. The zero value of each field means its default.
type Config struct {
	// Name is this replica's name, for the ledger. Default host name and pid.
	Name string

	// Interval is how often a node should beat. Default 10 s. A shorter one finds
	// silence sooner and costs a share of a commit a beat.
	Interval time.Duration
	// LateAfter and SuspectAfter are how many intervals of silence make a node
	// late and suspect. Default 1 and 3.
	LateAfter, SuspectAfter int
	// NodeTTL is the life of a node's lease. Default 60 s. It must be longer than
	// the time until a node is suspect, so that no new work comes to a node that
	// is about to lose what it has.
	NodeTTL time.Duration
	// Reconcile is how often the reconciler looks. Default 5 s.
	Reconcile time.Duration
	// ReconcilerTTL is the life of the reconciler's own lease. Default 15 s.
	ReconcilerTTL time.Duration
	// Window is how long the first renewal of a request waits for others.
	// Default 20 ms.
	Window time.Duration
	// Refresh is how often a replica reads what others have changed. Default 1 s.
	// It is the age of a positive answer from the cache; negatives are read anew.
	Refresh time.Duration
	// Takeover says when work may be taken from a node whose lease is over. Its
	// Wait is what Interval leaves of Reconcile and of the time in which a lapse is
	// seen, so that a restarted agent of the same node wins its lease first and the
	// takeover still begins within NodeTTL + Interval.
	Takeover fleet.TakeoverRules
	// Flap says when a node that lost its lease again and again gets no new work.
	// Default fleet.NodeFlapRule.
	Flap fleet.FlapRule
	// Retention is what the ledger keeps. Default 30 days and a million events;
	// work that ended for 7 days; nodes that were removed for a day. Takeovers are kept
	// as long as events, and as long as Takeover.Flap asks for them.
	Retention registry.Retention
	// Brake is when the observer doubts itself.
	Brake fleet.BrakeConfig
	// Probes are for nodes that cannot call out.
	Probes []Probe

	// Logger gets one line for each change of state. Nil discards.
	Logger *slog.Logger
}

// Filled returns c with its defaults in place of zero fields, as New uses it, and an
// error matching ErrConfig that names all that contradicts itself.
func (c Config) Filled() (Config, error) {
	c.Interval = cmp.Or(c.Interval, 10*time.Second)
	c.LateAfter = cmp.Or(c.LateAfter, 1)
	c.SuspectAfter = cmp.Or(c.SuspectAfter, 3)
	c.NodeTTL = cmp.Or(c.NodeTTL, 6*c.Interval)
	c.Reconcile = cmp.Or(c.Reconcile, min(5*time.Second, c.Interval/2))
	c.ReconcilerTTL = cmp.Or(c.ReconcilerTTL, 3*c.Reconcile)
	c.Window = cmp.Or(c.Window, 20*time.Millisecond)
	c.Refresh = cmp.Or(c.Refresh, min(time.Second, c.Interval/2))
	c.Takeover.Wait = max(c.Interval-c.Reconcile-c.tick()-c.Window, time.Millisecond)
	c.Takeover = c.Takeover.Filled()
	c.Flap = cmp.Or(c.Flap, fleet.NodeFlapRule())
	c.Retention.Events = cmp.Or(c.Retention.Events, 30*24*time.Hour)
	c.Retention.MaxEvents = cmp.Or(c.Retention.MaxEvents, 1_000_000)
	c.Retention.Ended = cmp.Or(c.Retention.Ended, 7*24*time.Hour)
	c.Retention.Removed = cmp.Or(c.Retention.Removed, 24*time.Hour)
	// Who judges whether an item flaps asks for its last takeovers.
	c.Retention.Takeovers = max(c.Retention.Events, c.Takeover.Flap.Window+c.Takeover.Flap.Quiet)
	c.Brake.Window = cmp.Or(c.Brake.Window, time.Duration(c.SuspectAfter)*c.Interval)
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unnamed"
		}
		c.Name = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...)))
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"interval", c.Interval}, {"node TTL", c.NodeTTL}, {"reconcile", c.Reconcile}, {"reconciler TTL", c.ReconcilerTTL}, {"window", c.Window}, {"refresh", c.Refresh}} {
		if d.d <= 0 {
			bad("%s is %s; it must be positive", d.name, d.d)
		}
	}
	if c.LateAfter < 1 || c.SuspectAfter <= c.LateAfter {
		bad("late after %d and suspect after %d intervals; want 1 ≤ late < suspect", c.LateAfter, c.SuspectAfter)
	}
	if c.Interval > c.NodeTTL/2 {
		bad("interval %s is more than half of the node TTL %s: one lost beat would cost the lease", c.Interval, c.NodeTTL)
	}
	if s := c.suspect(); s >= c.NodeTTL {
		bad("a node is suspect after %s (%d intervals of %s), which is not before its lease lapses (node TTL %s)", s, c.SuspectAfter, c.Interval, c.NodeTTL)
	}
	if c.Reconcile > c.Interval {
		bad("reconcile %s is more than the interval %s, which the takeover bound counts with", c.Reconcile, c.Interval)
	}
	if c.Reconcile > c.ReconcilerTTL {
		bad("reconcile %s is more than the reconciler's TTL %s", c.Reconcile, c.ReconcilerTTL)
	}
	if c.Refresh > c.NodeTTL/2 {
		bad("refresh %s is more than half of the node TTL %s: a replica that has not read the registry for a TTL answers nothing", c.Refresh, c.NodeTTL)
	}
	if c.Window > c.Interval/4 {
		bad("window %s is more than a quarter of the interval %s: renewals would be late by it", c.Window, c.Interval)
	}
	for _, check := range []func() error{c.Brake.Check, c.Takeover.Flap.Check, c.Flap.Check} {
		if err := check(); err != nil {
			bad("%v", err)
		}
	}
	probes, named := make([]Probe, len(c.Probes)), map[string]bool{}
	for i, p := range c.Probes {
		var err error
		if probes[i], err = p.withDefaults(c.Interval); err != nil {
			bad("%v", err)
		}
		if named[p.Node] {
			bad("node %q has two probes", p.Node)
		}
		named[p.Node] = true
	}
	c.Probes = probes
	return c, errors.Join(errs...)
}

// suspect is the silence after which a node is suspect.
func (c *Config) suspect() time.Duration { return time.Duration(c.SuspectAfter) * c.Interval }

// Effective is what the settings come to.
type Effective struct {
	IntervalMS        int64    `json:"interval_ms"`
	SuspectAfterMS    int64    `json:"suspect_after_ms"`
	NodeTTLMS         int64    `json:"node_ttl_ms"`
	ReconcileMS       int64    `json:"reconcile_ms"`
	ReconcilerTTLMS   int64    `json:"reconciler_ttl_ms"`
	WindowMS          int64    `json:"window_ms"`
	RefreshMS         int64    `json:"refresh_ms"`
	TakeoverRate      float64  `json:"takeover_rate"`           // takeovers a second, beyond the burst
	ToleratedMisses   int      `json:"tolerated_misses"`        // beats that may be lost without suspicion
	ToleratedRenewals int      `json:"tolerated_lost_renewals"` // renewals that may be lost without losing the lease
	DetectionMS       [2]int64 `json:"detection_ms"`            // from a crash to suspicion, at best and at worst
	TakeoverMS        int64    `json:"takeover_within_ms"`      // from a crash until its work moves, at worst
	TakeoverDeadMS    int64    `json:"takeover_within_if_reconciler_dies_ms"`
	// RowsPerSecond and CommitsPerSecond are what a number of nodes costs the
	// database while nothing changes: each beat renews a lease, and when it came is
	// flushed beside it.
	RowsPerSecond    float64 `json:"rows_per_second_per_1000_nodes"`
	CommitsPerSecond float64 `json:"commits_per_second_at_most"`
}

// Effective returns what falls out of the settings.
func (c *Config) Effective() Effective {
	ms := time.Duration.Milliseconds
	margin := c.NodeTTL / 5
	detection := [2]int64{ms(c.suspect() - c.Interval), ms(c.suspect() + c.tick())}
	takeover := c.NodeTTL + c.Interval
	succession := c.ReconcilerTTL + c.Reconcile + c.suspect() // until a new reconciler takes over work
	return Effective{
		IntervalMS: ms(c.Interval), SuspectAfterMS: ms(c.suspect()), NodeTTLMS: ms(c.NodeTTL), ReconcileMS: ms(c.Reconcile),
		ReconcilerTTLMS: ms(c.ReconcilerTTL), WindowMS: ms(c.Window), RefreshMS: ms(c.Refresh),
		ToleratedMisses:   c.SuspectAfter - 1,
		ToleratedRenewals: int((c.NodeTTL-margin-1)/c.Interval) - 1,
		DetectionMS:       detection,
		TakeoverMS:        ms(takeover),
		TakeoverDeadMS:    ms(takeover + succession),
		TakeoverRate:      1 / c.Takeover.Rate.Every.Seconds(),
		RowsPerSecond:     rowsPerBeat * 1000 / c.Interval.Seconds(),
		CommitsPerSecond:  1/c.Window.Seconds() + flushes/c.Interval.Seconds() + 3/c.ReconcilerTTL.Seconds(),
	}
}

const (
	rowsPerBeat = 2   // its node's lease, and when it was last seen
	flushes     = 2.5 // in an interval
)

// tick is how often liveness is judged.
func (c *Config) tick() time.Duration { return min(time.Second, c.Interval/4) }
