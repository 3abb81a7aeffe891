package api

import (
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// Beat is one heartbeat of a node. Facts are there in the first beat to a
// server, when they changed, and when the last reply asked for them.
type Beat struct {
	Node        string `json:"node"`
	Incarnation string `json:"incarnation"`
	// Seq grows with each beat of an incarnation. An older one changes nothing.
	Seq          uint64       `json:"seq"`
	Facts        *fleet.Facts `json:"facts,omitempty"`
	FactsVersion uint64       `json:"facts_version"`
	// LateMS is by how much the sender's own timers were late at most since the
	// beat before. It widens the time after which it is suspect.
	LateMS int64    `json:"late_ms,omitempty" minimum:"0" maximum:"86400000"`
	Doubts []string `json:"doubts,omitempty"`
	// SentAt is the sender's wall clock, shown and compared with nothing.
	SentAt time.Time `json:"sent_at,omitzero"`
	// Orders is the revision of the orders that the node follows. 0 asks for the list,
	// as the registry has it now: a node does so first under each term of its lease.
	Orders uint64       `json:"orders"`
	Work   []WorkReport `json:"work,omitempty"` // what changed
	Renew  *Renewal     `json:"renew,omitempty"`
}

// Renewal extends the term of the node's lease. The server adds nothing to it
// but the name.
type Renewal struct {
	Token   fence.Token     `json:"token"`
	TTLMS   int64           `json:"ttl_ms" minimum:"1" maximum:"86400000"`
	Attempt store.Attempt   `json:"attempt"`
	Known   []store.Attempt `json:"known"`
}

// WorkReport is what an owner says of one of its items.
type WorkReport struct {
	Work  string      `json:"work"`
	Token fence.Token `json:"token"`
	// Lease is the token of the node's own term under which it speaks.
	Lease fence.Token `json:"lease"`
	// State is running, stopping, or how it ended; placed if the node has ended it
	// without the right to act, or cannot know whether it was started, and it is to
	// run. That is a new assignment: the orders bring its token. Said again after the
	// reply was lost, it is answered with stale_token, the sender as Owner and the new
	// token as Current.
	State    fleet.WorkState `json:"state"`
	Progress string          `json:"progress,omitempty"`
	ExitCode int             `json:"exit_code,omitempty"`
	Text     string          `json:"text,omitempty"`
}

// WorkVerdict answers a report. Code is "" if the change was made.
type WorkVerdict struct {
	Work    string      `json:"work"`
	Code    fleet.Code  `json:"code,omitempty"`
	Owner   string      `json:"owner,omitempty"`   // who has it, if not the sender
	Current fence.Token `json:"current,omitempty"` // its token, if not the sent one
}

// BeatReply answers a beat. A beat may be accepted while its lease is refused.
type BeatReply struct {
	Node string `json:"node"`
	// Code is "" if the beat was accepted.
	Code       fleet.Code        `json:"code,omitempty"`
	Text       string            `json:"text,omitempty"`
	NeedFacts  bool              `json:"need_facts,omitempty"`
	IntervalMS int64             `json:"interval_ms"` // until the next beat
	Intent     fleet.IntentState `json:"intent,omitempty"`
	// Leftovers says that the server takes Facts.Leftovers. One of before they were told
	// refuses a beat with them.
	Leftovers bool `json:"leftovers,omitempty"`
	// Renewed is there if the beat had a renewal.
	Renewed *RenewResult `json:"renewed,omitempty"`
	// Orders is there if the node follows other ones than these.
	Orders *Orders       `json:"orders,omitempty"`
	Work   []WorkVerdict `json:"work,omitempty"`
}

// RenewResult is the store's answer to one renewal or release. Code is "" if the
// term was extended or ended.
type RenewResult struct {
	Code   store.Code `json:"code,omitempty"`
	Text   string     `json:"text,omitempty"`
	Record *Record    `json:"record,omitempty"`
	Busy   *BusyFacts `json:"busy,omitempty"`
}

// Orders is all that a node is to do, at one revision. There is no partial form:
// what is not in it is not the node's.
type Orders struct {
	Revision uint64            `json:"revision"`
	Intent   fleet.IntentState `json:"intent"`
	Work     []Order           `json:"work"`
}

// Order is one item of a node.
type Order struct {
	Spec  fleet.Spec  `json:"spec"`
	Token fence.Token `json:"token"`
	// Lease is the token of the node's own term under which the item got its Token.
	// Only an agent with this term knows what was started under that Token: another,
	// that has no trace of the item, reports it as placed and does not start it.
	Lease fence.Token `json:"lease"`
	// Stop orders its end; otherwise it is to run.
	Stop bool   `json:"stop,omitempty"`
	Why  string `json:"why,omitempty"`
	// Progress is the last accepted marker, of whoever had the item.
	Progress string `json:"progress,omitempty"`
}
