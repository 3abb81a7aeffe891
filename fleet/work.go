package fleet

import (
	"time"

	"github.com/tenurehq/tenure/fence"
)

// LossPolicy says what becomes of a work item on its own node when the node may
// not act any more.
type LossPolicy string

// The loss policies.
const (
	Keep    LossPolicy = "keep"    // it goes on: its data is there, and the fence covers it
	Quiesce LossPolicy = "quiesce" // it is told to stop acting, and goes on living
	Stop    LossPolicy = "stop"    // it is ended before its work can run elsewhere
)

// ReturnPolicy says which copy stays when a node comes back after its work was
// taken over.
type ReturnPolicy string

// The return policies.
const (
	KeepReplacement ReturnPolicy = "keep-replacement"
	KeepOriginal    ReturnPolicy = "keep-original"
)

// Strategy says which of the nodes that fit is taken.
type Strategy string

// The strategies. Ties are broken by the fewest items, then by id.
const (
	MostFree Strategy = "most-free" // of memory_mb, or else of what the request names
	Spread   Strategy = "spread"    // fewest items
	BinPack  Strategy = "bin-pack"  // least free
)

// Request is what a work item needs of its node.
type Request struct {
	Resources Resources         `json:"resources,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Features  []string          `json:"features,omitempty"`
	Artifacts []string          `json:"artifacts,omitempty"`
	Node      string            `json:"node,omitempty"`    // this node and no other
	Exclude   []string          `json:"exclude,omitempty"` // none of these
	Strategy  Strategy          `json:"strategy,omitempty"`
	// Starts: a process is to be started, which takes an agent. [Spec.Needs] sets it.
	Starts bool `json:"-"`
}

// Spec is a work item as it was submitted. It does not change.
type Spec struct {
	ID      string            `json:"id"`
	Command []string          `json:"command"`
	Env     map[string]string `json:"env,omitempty"`
	Dir     string            `json:"dir,omitempty"`
	Request Request           `json:"request,omitzero"`
	// Movable lets the item run on another node when its own has lost its lease.
	// It requires OnLoss "stop". Other work is pinned: it waits for its node.
	Movable  bool         `json:"movable,omitempty"`
	OnLoss   LossPolicy   `json:"on_loss,omitempty"`   // "" is keep, or stop if movable
	OnReturn ReturnPolicy `json:"on_return,omitempty"` // "" is keep-replacement
	// StuckAfterMS is how long the progress marker may stay unchanged before the
	// item counts as stuck; 0: never.
	StuckAfterMS int64 `json:"stuck_after_ms,omitempty"`
	// GraceMS is how long after SIGTERM the item is killed; 0 is 2000.
	GraceMS int64 `json:"grace_ms,omitempty"`
}

// Needs returns what the item needs of its node: what it asks for, and an agent that
// runs its command.
func (s Spec) Needs() Request {
	req := s.Request
	req.Starts = len(s.Command) > 0
	return req
}

// WorkState says where a work item stands.
type WorkState string

// The states of work.
const (
	Pending   WorkState = "pending"  // has no owner
	Placed    WorkState = "placed"   // has an owner, who has not started it yet
	Running   WorkState = "running"  // its owner has started it
	Stopping  WorkState = "stopping" // its owner is to end it
	Succeeded WorkState = "succeeded"
	Failed    WorkState = "failed"
	Stopped   WorkState = "stopped"
)

// Ended reports whether a state is final.
func (s WorkState) Ended() bool { return s == Succeeded || s == Failed || s == Stopped }

// Owned reports whether an item in this state has an owner and takes its room.
func (s WorkState) Owned() bool { return s == Placed || s == Running || s == Stopping }

// Work is a work item as the registry keeps it.
type Work struct {
	Spec
	State WorkState
	// Owner is the node that has it, or had it last.
	Owner string
	// Token numbers the assignments of the item. Every change of it by its owner
	// carries the token, and changes nothing if another one is current.
	Token fence.Token
	// Moving: what is being stopped will be placed again.
	Moving bool
	// Why says why it is stopping or where it is: an operator's words, or a code.
	Why string

	Progress   string // the last marker that was accepted
	ProgressAt time.Time
	Submitted  time.Time
	Assigned   time.Time
	Started    time.Time
	EndedAt    time.Time
	ExitCode   int
	Result     string // text of the owner about the end
	// TakenFrom is the node that lost it in the last takeover; "" if none.
	TakenFrom string
	Takeovers int
}
