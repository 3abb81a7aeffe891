package fleet

import "time"

// DomainAll names the brake of the whole fleet. That of a failure domain is
// named "label=value", as in "zone=b".
const DomainAll = "all"

// BrakeConfig says when the observer is doubted before the nodes are. A zero
// field means its default.
type BrakeConfig struct {
	Share   float64       // of a domain that turns at once; 0.55
	Least   int           // nodes that turn at once at least; 3, and never less
	Window  time.Duration // at once means within this; 30 s
	Known   time.Duration // a domain is the nodes heard within this; 1 h
	Release time.Duration // of proven health, after which it lets go; 10 min
	Label   string        // whose value is a node's domain; "zone"
}

// Check returns an error that names the first field that breaks its rule.
func (c BrakeConfig) Check() error { return nil }

// Health is what the observer knows of itself: its own timers are on time and
// its store answers.
type Health struct {
	OK   bool
	Text string // why not
}

// Let says how a brake let go.
type Let string

// How a brake lets go.
const (
	LetRecovery  Let = "recovery"  // enough nodes are back
	LetConfirmed Let = "confirmed" // an operator said that the loss is real
	LetReleased  Let = "released"  // an operator let go
	LetTimeout   Let = "timeout"   // of the observer's own proven health
)

// BrakeState is the brake of one domain, engaged or let go.
type BrakeState struct {
	Domain  string
	Engaged bool
	Code    Code          // of what turned: stale_heartbeat or not_ready
	Reason  string        // that the not-ready nodes share
	Since   time.Time     // when it engaged
	From    time.Time     // what turned since then is doubted
	Down    int           // nodes that turned and have not come back
	Of      int           // nodes of the domain
	Proven  time.Duration // health so far
	LetsGo  time.Duration // of proven health to come until it lets go
	Let     Let           // how it let go
	LetAt   time.Time
	By      Mark // the operator who let go
	Text    string
}

// Covers reports whether the brake is engaged and doubts that this node is out:
// its domain fell silent with it, or turned not ready for its reason.
func (s BrakeState) Covers(n Node) bool { return false }

// HoldsWork reports whether the brake is engaged and no work may be taken from
// this node.
func (s BrakeState) HoldsWork(n Node) bool { return false }

// Brake is not safe for concurrent use.
type Brake struct{}

// NewBrake returns a brake that holds nothing.
func NewBrake(cfg BrakeConfig) (*Brake, error) { return &Brake{}, nil }

// Step takes in a snapshot and returns what engaged or let go by it.
func (b *Brake) Step(nodes []Node, now time.Time, h Health) []BrakeState { return nil }

// Release lets go of a domain for an operator. It reports whether it was engaged.
func (b *Brake) Release(domain string, how Let, by Mark) (BrakeState, bool) {
	return BrakeState{}, false
}

// States returns the engaged brakes and those let go whose nodes are still out,
// "all" first, then in order of domain.
func (b *Brake) States() []BrakeState { return nil }
