package tenure

import (
	"log/slog"
	"maps"
	"time"

	"github.com/tenurehq/tenure/fence"
)

// EventKind says what happened.
type EventKind string

// The kinds of event.
const (
	EventWaiting   EventKind = "waiting"   // somebody else holds it
	EventAcquired  EventKind = "acquired"  // a term began
	EventDoubt     EventKind = "doubt"     // may not act until a renewal confirms
	EventConfirmed EventKind = "confirmed" // a doubt or a warning is over
	EventWarning   EventKind = "warning"   // no confirmation for a while; Left remains
	EventLost      EventKind = "lost"
	EventReleased  EventKind = "released"
	// EventExpiring says that a term could not be released and will expire.
	EventExpiring EventKind = "left_to_expire"
	// EventClockStep says that the store's clock went further, or less far, by
	// Step than ours between two replies.
	EventClockStep EventKind = "store_clock_step"
	// EventFailing says that a renewal brought no decision, EventRefused the same
	// of an acquire that goes on waiting. At most one an interval each.
	EventFailing EventKind = "renewal_failed"
	EventRefused EventKind = "acquire_failed"
)

// Event is one change of state. Renewals that are confirmed make none.
type Event struct {
	Kind   EventKind
	Lease  string // "" for events of the store
	Holder string
	Token  fence.Token
	Reason Reason
	Left   time.Duration // until TrustedUntil, for EventWarning; until expiry, for EventWaiting
	Step   time.Duration // for EventClockStep
	Terms  int           // for EventFailing: how many terms the request carried
	Err    error         // *LostError for EventLost
}

// Renewal is what came of one request that renewed terms.
type Renewal struct {
	Terms  int           // that the request carried
	Failed int           // of them, those that it left undecided
	Took   time.Duration // until the answer or the timeout, by the host's clock
	// Reason is the first of those for which terms were left undecided, "" if none
	// were; Err is the error behind it.
	Reason Reason
	Err    error
}

// Count names a counter: how often a kind of event came for a reason.
type Count struct {
	Kind   EventKind
	Reason Reason // "" for events that have none
}

// Counts returns how often each event has come since the Keeper was made.
func (k *Keeper) Counts() map[Count]int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.counts)
}

// emit counts an event and tells hook and log. It must not be called with a term's or the keeper's
// state locked.
func (k *Keeper) emit(e Event) {
	k.mu.Lock()
	k.counts[Count{e.Kind, e.Reason}]++
	k.mu.Unlock()
	level := slog.LevelInfo
	switch e.Kind {
	case EventDoubt, EventWarning, EventLost, EventExpiring, EventClockStep, EventFailing, EventRefused:
		level = slog.LevelWarn
	}
	attrs := make([]any, 0, 16)
	add := func(key string, show bool, value any) {
		if show {
			attrs = append(attrs, key, value)
		}
	}
	add("lease", e.Lease != "", e.Lease)
	add("holder", e.Holder != "", e.Holder)
	add("token", e.Token != 0, e.Token.String())
	add("reason", e.Reason != "", string(e.Reason))
	add("left_ms", e.Left != 0, e.Left.Milliseconds())
	add("step_ms", e.Step != 0, e.Step.Milliseconds())
	add("terms", e.Terms != 0, e.Terms)
	add("err", e.Err != nil, e.Err)
	k.cfg.Logger.Log(k.logCtx, level, string(e.Kind), attrs...)
	if k.cfg.OnEvent != nil {
		k.cfg.OnEvent(e)
	}
}
