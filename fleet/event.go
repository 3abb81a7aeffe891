package fleet

import (
	"time"

	"github.com/tenurehq/tenure/fence"
)

// Event is one entry of the ledger. Beats and renewals make none.
type Event struct {
	Seq    int64       `json:"seq"` // grows; the order of history
	At     time.Time   `json:"at"`
	Kind   EventKind   `json:"kind"`
	Node   string      `json:"node,omitempty"`
	Work   string      `json:"work,omitempty"`
	Token  fence.Token `json:"token,omitzero"`
	Code   Code        `json:"code,omitempty"`
	Actor  string      `json:"actor,omitempty"` // an operator, or the replica that decided
	Text   string      `json:"text,omitempty"`
	Fields any         `json:"fields,omitempty"` // evidence: for a takeover, *Evidence
}

// EventKind says what happened.
type EventKind string

// The kinds of event.
const (
	EventJoined    EventKind = "node_joined" // a new incarnation
	EventSuspect   EventKind = "node_suspect"
	EventAlive     EventKind = "node_alive" // again
	EventLapsed    EventKind = "node_lapsed"
	EventLeased    EventKind = "node_leased"
	EventReady     EventKind = "node_ready"
	EventNotReady  EventKind = "node_not_ready"
	EventCordoned  EventKind = "node_cordoned"
	EventDraining  EventKind = "node_draining"
	EventDrained   EventKind = "node_drained"
	EventResumed   EventKind = "node_resumed"
	EventRemoved   EventKind = "node_removed"
	EventDuplicate EventKind = "node_duplicate"
	EventSubmitted EventKind = "work_submitted"
	EventPlaced    EventKind = "work_placed"
	EventStarted   EventKind = "work_started"
	EventRestarted EventKind = "work_restarted" // assigned anew to its node, which ended it without the right to act, or cannot tell whether it was started
	EventStopping  EventKind = "work_stopping"
	EventEnded     EventKind = "work_ended"
	EventForgotten EventKind = "work_removed"
	EventStuck     EventKind = "work_stuck"
	EventUnstuck   EventKind = "work_unstuck"
	EventTakeover  EventKind = "work_takeover"
	EventWithheld  EventKind = "takeover_withheld"
	EventBrakeOn   EventKind = "brake_engaged"
	EventBrakeOff  EventKind = "brake_released"
)

// EventKinds returns all kinds of event, in the order in which they stand above.
func EventKinds() []EventKind {
	return []EventKind{
		EventJoined, EventSuspect, EventAlive, EventLapsed, EventLeased, EventReady, EventNotReady,
		EventCordoned, EventDraining, EventDrained, EventResumed, EventRemoved, EventDuplicate,
		EventSubmitted, EventPlaced, EventStarted, EventRestarted, EventStopping, EventEnded, EventForgotten, EventStuck, EventUnstuck,
		EventTakeover, EventWithheld, EventBrakeOn, EventBrakeOff,
	}
}

// Evidence says why work was taken from a node, and when each phase was. Zero
// instants are phases that have not come yet.
type Evidence struct {
	From       string      `json:"from"`
	FromToken  fence.Token `json:"from_token"`
	To         string      `json:"to"`
	ToToken    fence.Token `json:"to_token"`
	LeaseToken fence.Token `json:"lease_token"` // of the term of From that lapsed
	LeaseState LeaseState  `json:"lease_state"`
	Progress   string      `json:"progress,omitempty"` // the last accepted marker
	Silence    time.Time   `json:"silence,omitzero"`   // the last beat
	Suspect    time.Time   `json:"suspect,omitzero"`
	Lapse      time.Time   `json:"lapse,omitzero"`
	Recorded   time.Time   `json:"recorded,omitzero"`
	Started    time.Time   `json:"started,omitzero"`
	Redirected time.Time   `json:"redirected,omitzero"` // the first lookup that answered To
}
