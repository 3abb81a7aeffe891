package registry

import (
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
)

// Node is a node as the registry keeps it. What it says of liveness is only
// when the node was last seen by any replica.
type Node struct {
	ID          string
	Incarnation string
	Facts       fleet.Facts
	NotReady    time.Time
	FirstSeen   time.Time
	LastSeen    time.Time // as flushed
	// Age is that of LastSeen, by the database's clock at the answer. It is below 0,
	// and tells nothing, if that clock was set back since.
	Age      time.Duration
	Lease    fleet.Lease
	Intent   fleet.Intent
	Reserved fleet.Resources
	Work     int
	Stuck    int
	// Orders is the revision of what the node is to do: it grows with each change
	// of its intent or its work.
	Orders  uint64
	Lapses  []time.Time // the last lapses of its lease, newest last, at most 8
	Removed bool
	// Version grows with each change of the row. A restored database may have an
	// older one.
	Version int64
}

// Report is what a node said when it joined, or when its facts changed.
type Report struct {
	Node        string
	Incarnation string
	Facts       fleet.Facts
	// Intent is what operators are known to want of the node. It counts only if the
	// registry knows nothing of the node, whose row may have been lost.
	Intent fleet.Intent
}

// Seen says when a replica last heard a node.
type Seen struct {
	Node        string
	Incarnation string
	Age         time.Duration // at the time of the call
}

// Change is a report of an owner about its item; see api.WorkReport.
type Change struct {
	Work     string
	Node     string
	Token    fence.Token // of the item
	Lease    fence.Token // of the node's own term
	State    fleet.WorkState
	Progress string
	ExitCode int
	Text     string
}

// Verdict answers a Change or another conditional write. Code is "" if it was
// made.
type Verdict struct {
	Work    string
	Code    fleet.Code
	Text    string
	Owner   string      // of the item now
	Current fence.Token // its token now
	// Deposed: the Fence's term is over. OfTarget: the code speaks of the node that was
	// to get the work, so that another may do.
	Deposed, OfTarget bool
	// Event is what the change wrote to the ledger; zero if nothing.
	Event fleet.Event
}

// Fence is the term under which a replica acts; the writes that carry it do
// nothing once a later term was granted. The zero Fence is an operator's or a
// client's write, which needs none.
type Fence struct {
	Lease string
	Token fence.Token
}

// Placement assigns an item that has no owner, conditionally.
type Placement struct {
	Work  string
	Token fence.Token // the item's token as it was read
	Node  string
	Lease fence.Token // of the node's live term as it was read
	Actor string
	Fence Fence
}

// Takeover moves an item from a node whose lease is over, conditionally.
type Takeover struct {
	Placement
	Evidence fleet.Evidence // From, FromToken, LeaseToken and the phases so far
}

// Order is an operator's change of a work item or a node.
type Order struct {
	Actor, Reason string
}

// Assignment is an item as it is assigned.
type Assignment struct {
	fleet.Work
	Lease fence.Token // of the owner's term under which it got its token
}

// Owned is an item whose node's lease is over.
type Owned struct {
	Work  fleet.Work
	Lease fleet.Lease
}

// Filter chooses work items.
type Filter struct {
	States []fleet.WorkState
	Owner  string
	Stuck  bool   // only items that are stuck
	After  string // id; for paging in order of id
	Limit  int    // 0: 1,000
}

// EventFilter chooses events.
type EventFilter struct {
	After  int64 // Seq
	Before int64 // Seq; 0 for no bound
	Node   string
	Work   string
	Kind   fleet.EventKind
	Limit  int  // 0: 1,000
	Last   bool // the newest Limit events, still in order of Seq
}

// EventPage is a part of the ledger.
type EventPage struct {
	Events []fleet.Event
	// Pruned is the Seq of the last event that Prune has deleted, 0 if none: up to it
	// others may be missing too.
	Pruned int64
}
