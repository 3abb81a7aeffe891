package api

import (
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
)

// Beats is the body of POST beats, by which a relay brings the beats of many.
type Beats struct {
	Beats []Beat `json:"beats"`
}

// BeatReplies answers Beats, one for each, in order.
type BeatReplies struct {
	Replies []BeatReply `json:"replies"`
}

// Node is a fleet.Node in JSON, with what it comes to.
type Node struct {
	ID          string      `json:"id"`
	Incarnation string      `json:"incarnation,omitempty"`
	Facts       fleet.Facts `json:"facts"`
	NotReady    time.Time   `json:"not_ready_since,omitzero"`

	Liveness fleet.Liveness `json:"liveness"`
	AgeMS    int64          `json:"age_ms"` // listened time since the last beat
	Since    time.Time      `json:"liveness_since,omitzero"`

	Lease NodeLease `json:"lease"`

	Intent      fleet.IntentState `json:"intent"`
	IntentMarks fleet.Intent      `json:"intent_marks,omitzero"`

	Reserved  fleet.Resources `json:"reserved,omitempty"`
	Work      int             `json:"work"`
	Stuck     int             `json:"stuck,omitempty"`
	Flapping  bool            `json:"flapping,omitempty"`
	Duplicate string          `json:"duplicate,omitempty"`

	// Stale, Fenced and Draining are liveness, lease and intent in a word each.
	Stale    bool `json:"stale"`    // it is suspect
	Fenced   bool `json:"fenced"`   // its lease gives it no right to act, or no further renewal
	Draining bool `json:"draining"` // it is draining or drained
	// Exclusions are all reasons why it gets no new work; empty if it may.
	Exclusions []fleet.Exclusion `json:"exclusions"`
}

// NodeLease is a fleet.Lease in JSON.
type NodeLease struct {
	State       fleet.LeaseState `json:"state"`
	Token       fence.Token      `json:"token,omitzero"`
	Holder      string           `json:"holder,omitempty"`
	RemainingMS int64            `json:"remaining_ms"`
	OverMS      int64            `json:"over_ms,omitempty"`
}

// Nodes answers GET nodes, oldest beat first unless another order was asked for.
type Nodes struct {
	Nodes []Node `json:"nodes"`
	// Matched is how many nodes fit the question, on this page or not.
	Matched int `json:"matched"`
}

// Eligible answers GET nodes/{id}/eligible, with status 200 or 503.
type Eligible struct {
	Node       string            `json:"node"`
	Eligible   bool              `json:"eligible"`
	Exclusions []fleet.Exclusion `json:"exclusions"`
}

// CordonRequest is the body of POST nodes/{id}/cordon, which answers the Node.
// Actor and reason are mandatory.
type CordonRequest struct {
	Actor  string `json:"actor"`
	Reason string `json:"reason"`
}

// DrainRequest is the body of POST nodes/{id}/drain, which answers the Node.
// Actor and reason are mandatory.
type DrainRequest struct {
	Actor  string `json:"actor"`
	Reason string `json:"reason"`
	// DeadlineMS is after how long the drain counts as overdue; 0: never.
	DeadlineMS int64 `json:"deadline_ms,omitempty" minimum:"0" maximum:"31622400000"`
	// Move moves movable work away in place of waiting for it.
	Move bool `json:"move,omitempty"`
}

// What ResumeRequest ends.
const (
	ResumeDrain = "drain" // the drain; a cordon stays
	ResumeAll   = "all"
)

// ResumeRequest is the body of POST nodes/{id}/resume, which answers the Node.
type ResumeRequest struct {
	Actor  string `json:"actor"`
	Reason string `json:"reason,omitempty"`
	What   string `json:"what"`
}

// NodeWhy answers GET why/nodes/{id}.
type NodeWhy struct {
	Node Node `json:"node"`
	// Text says all of it in lines, for people.
	Text []string `json:"text"`
	// Detector explains the liveness in figures.
	Detector string `json:"detector"`
	// Blockers is the work that a drain waits for.
	Blockers []Work `json:"blockers,omitempty"`
	// Leftovers are copies that live on its host of what is not the node's any more. A
	// drain waits for their end, too.
	Leftovers []fleet.Leftover `json:"leftovers,omitempty"`
	Brake     *BrakeState      `json:"brake,omitempty"` // that holds it, if one does
	Events    []fleet.Event    `json:"events"`          // the last ones, in order
}
