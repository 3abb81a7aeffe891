package fleet

import "time"

// IntentState is the intent for a node in one word.
type IntentState string

// The states of intent.
const (
	Active   IntentState = "active"
	Cordoned IntentState = "cordoned"
	Draining IntentState = "draining"
	Drained  IntentState = "drained"
)

// Mark says who wanted something, why and since when.
type Mark struct {
	Actor  string    `json:"actor"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// Drain is the wish that a node be emptied. It ends only with Resume.
type Drain struct {
	Mark
	Deadline time.Time `json:"deadline,omitzero"` // for people; past it the drain is overdue
	Move     bool      `json:"move,omitempty"`    // movable work is moved away and not waited for
	Done     time.Time `json:"done,omitzero"`     // when nothing was left
}

// Intent is what operators want of a node. Cordon and drain are separate facts,
// so that calling off a drain leaves a node that was cordoned before cordoned.
// It is durable and belongs to the node's name, not to an incarnation.
type Intent struct {
	Cordon *Mark  `json:"cordon,omitempty"`
	Drain  *Drain `json:"drain,omitempty"`
}

// State returns the intent in one word.
func (i Intent) State() IntentState {
	switch {
	case i.Drain != nil && !i.Drain.Done.IsZero():
		return Drained
	case i.Drain != nil:
		return Draining
	case i.Cordon != nil:
		return Cordoned
	}
	return Active
}

// Check returns an error matching store.ErrInvalid unless actor and reason are there.
func (m Mark) Check() error { return nil }

// What Resumed ends.
const (
	ResumeDrain = "drain" // the drain; a cordon stays
	ResumeAll   = "all"
)

// WithCordon returns the intent with a cordon. It reports whether anything changed.
func (i Intent) WithCordon(m Mark) (Intent, bool) { return i, false }

// WithDrain returns the intent with a drain. It reports whether anything changed.
func (i Intent) WithDrain(m Mark, deadline time.Time, move bool) (Intent, bool) { return i, false }

// Resumed returns the intent without the drain, or without drain and cordon.
func (i Intent) Resumed(what string) (Intent, bool) { return i, false }

// Completed returns the intent with its drain done.
func (i Intent) Completed(at time.Time) (Intent, bool) { return i, false }
