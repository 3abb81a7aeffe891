package api

import (
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// Identity answers GET whoami: whom the server takes the sender for.
type Identity struct {
	Role string `json:"role"`           // viewer, agent or operator
	Node string `json:"node,omitempty"` // of an agent
}

// NodeQuery chooses and orders nodes. Its zero value is all of them, oldest beat
// first. Every condition must hold.
type NodeQuery struct {
	Match  string     // part of the id
	Is     []string   // of NodeTraits
	Reason fleet.Code // among its exclusions
	Label  string     // KEY=VALUE
	// Sort is one of NodeOrders; with a minus before it, the other way round.
	Sort   string
	Offset int
	Limit  int // 0: all
}

// What NodeQuery.Is may say of a node.
const (
	TraitEligible = "eligible" // it may get new work
	TraitExcluded = "excluded" // it may not
	TraitLate     = "late"
	TraitStale    = "stale"
	TraitFenced   = "fenced"
	TraitDraining = "draining" // or drained
	TraitCordoned = "cordoned"
	TraitNotReady = "not_ready"
	TraitStuck    = "stuck" // work of it is
	TraitFlapping = "flapping"
)

// NodeTraits returns what NodeQuery.Is may say.
func NodeTraits() []string {
	return []string{TraitEligible, TraitExcluded, TraitLate, TraitStale, TraitFenced, TraitDraining, TraitCordoned, TraitNotReady, TraitStuck, TraitFlapping}
}

// The orders of nodes.
const (
	ByAge   = "age"   // oldest beat first
	ByID    = "id"    // in byte order
	ByLease = "lease" // the lease that is over, or ends, soonest first
	ByWork  = "work"  // most work first
	ByStuck = "stuck" // most stuck work first
)

// NodeOrders returns what NodeQuery.Sort may say.
func NodeOrders() []string { return []string{ByAge, ByID, ByLease, ByWork, ByStuck} }

// Fleet answers GET fleet: all nodes in figures, as the asked replica knows them.
type Fleet struct {
	Server string    `json:"server"` // this replica
	At     time.Time `json:"at"`     // when it counted
	Nodes  int       `json:"nodes"`
	// Eligible nodes may get new work.
	Eligible int `json:"eligible"`
	// Stale, Fenced and Draining are counted apart: a node may be all three.
	Stale    int `json:"stale"`
	Fenced   int `json:"fenced"`
	Draining int `json:"draining"`

	Liveness map[fleet.Liveness]int    `json:"liveness"`
	Lease    map[fleet.LeaseState]int  `json:"lease"`
	Intent   map[fleet.IntentState]int `json:"intent"`
	// Reasons are the reasons that exclude nodes, gravest first; a node may have
	// several.
	Reasons []ReasonCount `json:"reasons"`

	Work  int `json:"work"`  // items that nodes own
	Stuck int `json:"stuck"` // of them, those without progress

	// Age is over the nodes that are to beat: all but those that gave their lease
	// back or never had one.
	Age AgeSample `json:"age"`
	// WatchedMS is for how long this replica has listened to all nodes without a
	// break; Watching says that this is long enough to judge silence.
	WatchedMS int64 `json:"watched_ms"`
	Watching  bool  `json:"watching"`

	// Reconciler says whether anybody moves and places work.
	Reconciler Reconciler `json:"reconciler"`

	IntervalMS int64 `json:"interval_ms"`
	SuspectMS  int64 `json:"suspect_ms"`
	NodeTTLMS  int64 `json:"node_ttl_ms"`
}

// Reconciler says who reconciles, by the lease for it, as the store answered just
// now. While nobody does, nothing is placed, taken over or drained, and the brake
// judges nothing.
type Reconciler struct {
	// Status is that of the lease; "unheld" also if nobody ever had it. It is "" if
	// the store could not be asked, which Error explains.
	Status store.Status `json:"status,omitempty"`
	Error  string       `json:"error,omitempty"`
	Holder string       `json:"holder,omitempty"` // of the term, or of the last one
	Token  fence.Token  `json:"token,omitzero"`
	// Revoked: an operator ended the term, whose holder may go on until it hears of it.
	Revoked bool `json:"revoked,omitempty"`
	// Since is when the term began; if there is none, when the last one was over; zero
	// if there was none yet.
	Since time.Time `json:"since,omitzero"`
	// Here: the asked replica is the one that reconciles.
	Here bool `json:"here,omitempty"`
	// Failing says what the last step of the asked replica as reconciler failed with,
	// and FailingSince when the first one did since one went well. It stays, after
	// this replica gave the lease back for that, until a step of its own goes well.
	// Only the replica itself knows it.
	Failing      string    `json:"failing,omitempty"`
	FailingSince time.Time `json:"failing_since,omitzero"`
}

// Idle reports whether nobody is known to reconcile.
func (r *Reconciler) Idle() bool { return r.Status != store.Held || r.Revoked }

// ReasonCount says how many nodes a reason excludes.
type ReasonCount struct {
	Code     fleet.Code     `json:"code"`
	Nodes    int            `json:"nodes"`
	Severity fleet.Severity `json:"severity"`
	Text     string         `json:"text"`
}

// AgeSample is how old the last beats of the nodes were at one time, in listened
// time.
type AgeSample struct {
	At    time.Time `json:"at"`
	P50MS int64     `json:"p50_ms"`
	P95MS int64     `json:"p95_ms"`
	P99MS int64     `json:"p99_ms"`
	MaxMS int64     `json:"max_ms"`
	Nodes int       `json:"nodes"` // that were to beat
	Stale int       `json:"stale"` // of them
}

// Ages answers GET fleet/ages: what the asked replica has seen, oldest first. It
// samples once an interval, at most once a second, and keeps an hour of it, at
// most 720 samples, in memory.
type Ages struct {
	Server  string      `json:"server"`
	Samples []AgeSample `json:"samples"`
}

// Timeline answers GET nodes/{id}/timeline: the last beats of a node, at most 54,
// as the asked replica heard of them since it started.
type Timeline struct {
	Node   string    `json:"node"`
	Server string    `json:"server"`
	At     time.Time `json:"at"` // of the answer
	// Heard: a beat came since this replica began to listen. SilentMS is how much
	// it has listened since the last beat, and Suspicion that silence as a share of
	// LimitMS, the silence beyond which the node is suspect.
	Heard      bool    `json:"heard"`
	SilentMS   int64   `json:"silent_ms"`
	Suspicion  float64 `json:"suspicion"`
	LimitMS    int64   `json:"limit_ms"`
	IntervalMS int64   `json:"interval_ms"`
	// RenewedAt is when this replica last extended the node's lease, and RenewUS how
	// long that took, from its beat to the store's answer; zero if it did not yet.
	RenewedAt time.Time `json:"renewed_at,omitzero"`
	RenewUS   int64     `json:"renew_us,omitempty"`
	// Beats are oldest first.
	Beats []BeatMark `json:"beats"`
}

// BeatMark is one beat of a Timeline. Instants and gaps are of listened time,
// rounded to 1/256 of an interval.
type BeatMark struct {
	At time.Time `json:"at"`
	// GapMS is how long there was none before it; it ends at 127 intervals.
	GapMS int64 `json:"gap_ms"`
	// Renewed: the node's lease was extended with this beat.
	Renewed bool `json:"renewed"`
}

// TakeoverQuery chooses takeovers. Its zero value is all from the first.
type TakeoverQuery struct {
	After  int64
	Before int64 // 0 for no bound; with Last, the page before the one that begins there
	Work   string
	Node   string // that lost or got the item
	Limit  int    // 0 is the server's
	Last   bool   // the newest Limit, still in order
}

// Takeovers answers GET takeovers, in order of their numbers. Next is the "after"
// of what follows.
type Takeovers struct {
	Takeovers []Takeover `json:"takeovers"`
	Next      int64      `json:"next"`
}

// Takeover is one takeover of the ledger, with its phases as they are known now.
type Takeover struct {
	Seq   int64  `json:"seq"`
	Work  string `json:"work"`
	Actor string `json:"actor"` // the replica that decided
	fleet.Evidence
}

// LeaseQuery chooses leases. Its zero value is all of them.
type LeaseQuery struct {
	Prefix string
	After  string // the name after which to begin
	Limit  int    // 0 is the server's
}
