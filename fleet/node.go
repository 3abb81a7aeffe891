package fleet

import (
	"time"

	"github.com/tenurehq/tenure/fence"
)

// LeasePrefix begins the names of the leases of nodes.
const LeasePrefix = "node/"

// LeaseName returns the name of the lease of a node.
func LeaseName(node string) string { return LeasePrefix + node }

// Resources are amounts by name, such as memory_mb, cpu_milli or slots. The
// units are the operator's; they are compared and added, nothing else.
type Resources map[string]int64

// Facts are what a node says of itself. They change rarely.
type Facts struct {
	// Address is where the node's work can be reached, for lookups.
	Address   string            `json:"address,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Features  []string          `json:"features,omitempty"`
	Artifacts []string          `json:"artifacts,omitempty"`
	Capacity  Resources         `json:"capacity,omitempty"`
	// Used is what the node finds in use, by whatever it does. Placement counts
	// the larger of this and what is reserved.
	Used      Resources `json:"used,omitempty"`
	Readiness Readiness `json:"readiness"`
	// Config names the configuration that the node runs with, for people.
	Config string `json:"config,omitempty"`
	// Leftovers live on the node's host and are not the node's, as its agent sees it.
	// They may be some of the node's own for a moment after it got a new term.
	Leftovers []Leftover `json:"leftovers,omitempty"`
}

// Leftover is a copy of a work item that lives where the item is not any more, or that
// has outlived the item.
type Leftover struct {
	Work  string      `json:"work"`
	Token fence.Token `json:"token"` // under which it was started
	PID   int         `json:"pid,omitempty"`
}

// Readiness is what a node says of its fitness for new work.
type Readiness struct {
	Ready bool `json:"ready"`
	// Reason is a code of the node's own for why it is not ready, the same for
	// all nodes with one trouble: the brake compares it.
	Reason string `json:"reason,omitempty"`
	Text   string `json:"text,omitempty"`
}

// Liveness says whether a node is heard. It is a suspicion, and proves nothing.
type Liveness string

// The states of liveness.
const (
	// Observing: nobody has listened long enough to tell.
	Observing Liveness = "observing"
	Alive     Liveness = "alive"
	Late      Liveness = "late"
	Suspect   Liveness = "suspect"
)

// LeaseState says how the lease of a node stands, by the store's clock.
type LeaseState string

// The states of a node's lease.
const (
	LeaseNone     LeaseState = "none"
	LeaseHeld     LeaseState = "held"
	LeaseRevoked  LeaseState = "revoked" // unexpired, but every renewal is refused
	LeaseLapsed   LeaseState = "lapsed"
	LeaseReleased LeaseState = "released"
)

// Lease is a node's right to act.
type Lease struct {
	State     LeaseState
	Token     fence.Token
	Holder    string
	Remaining time.Duration // until expiry; 0 if it is over
	Over      time.Duration // since it was over; 0 if it is not
}

// Live reports whether the holder may still act. A revoked term is live until
// it expires or is released.
func (l Lease) Live() bool { return l.State == LeaseHeld || l.State == LeaseRevoked }

// Node is one node as a snapshot shows it.
type Node struct {
	ID          string
	Incarnation string // one run of its agent
	Probed      bool   // it is asked whether it is there, and has no agent
	Facts       Facts
	NotReady    time.Time // since when it is not ready; zero if it is
	WasReady    bool      // it was ready before NotReady

	Liveness Liveness
	// Age is the listened time since the last beat that any replica heard; see
	// package detect.
	Age   time.Duration
	Since time.Time // of Liveness
	// Gone is when the node fell silent for too long to those who watched before
	// this observer began to, and were hearing others; zero if that is not known, or
	// it was heard since.
	Gone time.Time

	Lease  Lease
	Intent Intent

	Reserved  Resources // by the work assigned to it
	Work      int       // items assigned to it and not ended
	Stuck     int       // of them, those without progress
	Flapping  bool      // lost its lease, or was suspect, too often lately
	CalmAt    time.Time // until when it counts as flapping if nothing more happens
	Duplicate string    // another incarnation that uses its name now; "" if none
}
