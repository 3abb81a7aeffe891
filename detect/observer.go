package detect

import (
	"fmt"
	"time"
)

// ObserverConfig sets an Observer. The zero value of each field means its
// default.
type ObserverConfig struct {
	// Tick is the time between two calls of Tick. Default 1 s.
	Tick time.Duration

	// Slack is by how much a tick may be late and still count as in time.
	// Default Tick/2. Tick + Slack is the most silence that a gap of the
	// observer's can add to each node. So that a node which beats is not
	// suspected for it, keep that below the detectors' limit less two
	// intervals.
	Slack time.Duration

	// Restart is the length from which a gap starts every watch anew. Default
	// 10 s, above Tick + Slack. Shorter gaps are left out of silence and nothing
	// else happens, so that an observer which stumbles often still finds who is
	// gone. Longer ones outlast connections and retries of the nodes, which
	// then get a full limit to report.
	Restart time.Duration
}

// Observer keeps the axis of listened time: it advances with the clock while the
// observer is seen to listen, and stands still when it is not. A detector that is
// given instants of this axis counts no silence that nobody could have broken
// (P9), and stores nothing for it.
//
//	clock    ─┬───┬───┬──────────────────────┬───┬───►   ticks
//	listened ─┬───┬───┬────┬ ─ ─ stands ─ ─ ─┬───┬───►
//	                        ◄─── missed ────►
//
// What counts as listening is the caller's to say: it calls Tick when its loop
// comes round and it could have heard every node. A process that was stopped or
// starved does not come round. One that shares the nodes with other replicas and
// cannot read what those heard, as the store is stalled, does not call. A restart
// is a new Observer.
//
// Its clock is monotonic, and should be one that goes on while the host is
// suspended: after one that stands still, no gap shows.
//
// Not safe for concurrent use, but a copy is: whoever ticks may publish copies, on
// which others call At.
type Observer struct {
	step    time.Duration // the most that the axis advances in one tick
	restart time.Duration

	ticked   time.Duration // on the clock
	listened time.Duration // on the axis, at the last tick
	since    time.Duration // on the axis: last start of the watch
	missed   time.Duration // sum
	gaps     int
}

// NewObserver begins to listen at now, on the clock; that is 0 on the axis. Errors
// match ErrConfig.
func NewObserver(cfg ObserverConfig, now time.Duration) (Observer, error) {
	if cfg.Tick == 0 {
		cfg.Tick = time.Second
	}
	if cfg.Slack == 0 {
		cfg.Slack = cfg.Tick / 2
	}
	if cfg.Restart == 0 {
		cfg.Restart = 10 * time.Second
	}
	switch {
	case cfg.Tick < 0 || cfg.Tick > longestInterval:
		return Observer{}, fmt.Errorf("%w: tick %v is not between 0 and %v", ErrConfig, cfg.Tick, longestInterval)
	case cfg.Slack < 0 || cfg.Slack > longestInterval:
		return Observer{}, fmt.Errorf("%w: slack %v is not between 0 and %v", ErrConfig, cfg.Slack, longestInterval)
	case cfg.Restart <= cfg.Tick+cfg.Slack:
		return Observer{}, fmt.Errorf("%w: restart %v is not above tick and slack together, %v", ErrConfig, cfg.Restart, cfg.Tick+cfg.Slack)
	}
	return Observer{step: cfg.Tick + cfg.Slack, restart: cfg.Restart, ticked: now}, nil
}

// Gap is what a tick found.
type Gap struct {
	Missed  time.Duration // time left out of the axis; 0 if the tick was in time
	Restart bool          // begin every watch anew, those of suspects excepted
}

// Tick says that the observer has come round at now and could have heard every
// node that reported before. If it was not seen for longer than Tick + Slack, the
// rest is a gap.
//
// After a Gap with Restart the caller calls Begin(At(now)) of each detector that
// was not suspect, before it judges any: those get a full limit of fresh
// observation, and a suspect stays so until it is heard.
func (o *Observer) Tick(now time.Duration) Gap {
	elapsed := max(sub(now, o.ticked), 0)
	o.ticked = max(o.ticked, now)
	step := min(elapsed, o.step)
	o.listened = add(o.listened, step)
	g := Gap{Missed: elapsed - step, Restart: elapsed >= o.restart}
	if g.Missed > 0 {
		o.gaps++
		o.missed = add(o.missed, g.Missed)
	}
	if g.Restart {
		o.since = o.listened
	}
	return g
}

// At converts an instant of the clock, since the last tick, into one of the axis.
// It does not run ahead of the next tick: beats that are read after a gap and
// before the tick that notices it lie where that tick will be. An instant from
// before the last tick is taken for the tick's.
func (o *Observer) At(now time.Duration) time.Duration {
	return add(o.listened, min(max(sub(now, o.ticked), 0), o.step))
}

// Since is the instant, on the axis, from which all nodes have been watched:
// 0, or the last restart. At(now) less Since is for how long.
func (o *Observer) Since() time.Duration { return o.since }

// Missed returns how many gaps there were, and their sum.
func (o *Observer) Missed() (gaps int, sum time.Duration) { return o.gaps, o.missed }

// Lag is for how long the observer has not come round, at now on the clock. About
// a tick is the course of things.
func (o *Observer) Lag(now time.Duration) time.Duration { return max(sub(now, o.ticked), 0) }
