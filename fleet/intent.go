package fleet

import (
	"fmt"
	"time"
)

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

// What Resumed ends.
const (
	ResumeDrain = "drain" // the drain; a cordon stays
	ResumeAll   = "all"
)

// WithCordon returns the intent with a cordon, and whether that changed anything.
// A newer mark of another actor or reason takes the place of the old one.
func (i Intent) WithCordon(m Mark) (Intent, bool) {
	if i.Cordon != nil && i.Cordon.same(m) {
		return i, false
	}
	i.Cordon = &m
	return i, true
}

// WithDrain returns the intent with a drain, and whether that changed anything. A
// node that is drained stays so: nothing has been placed on it since.
func (i Intent) WithDrain(m Mark, deadline time.Time, move bool) (Intent, bool) {
	d := Drain{Mark: m, Deadline: deadline, Move: move}
	if old := i.Drain; old != nil {
		if old.Mark.same(m) && old.Deadline.Equal(deadline) && old.Move == move {
			return i, false
		}
		d.Done = old.Done
	}
	i.Drain = &d
	return i, true
}

// Resumed returns the intent without what it names, and whether that changed
// anything. Without the drain a node is what it was before: a cordon stays.
func (i Intent) Resumed(what string) (Intent, bool) {
	after := i
	switch what {
	case ResumeDrain:
		after.Drain = nil
	case ResumeAll:
		after = Intent{}
	}
	return after, after != i
}

// Completed returns the intent with its drain done, and whether that changed
// anything. The node gets no new work until it is resumed.
func (i Intent) Completed(at time.Time) (Intent, bool) {
	if i.Drain == nil || !i.Drain.Done.IsZero() {
		return i, false
	}
	d := *i.Drain
	d.Done = at
	i.Drain = &d
	return i, true
}

// same reports whether a repeated request says nothing new.
func (m Mark) same(o Mark) bool { return m.Actor == o.Actor && m.Reason == o.Reason }

func (m Mark) text() string { return fmt.Sprintf("%q: %q", m.Actor, m.Reason) }

// overdue says by how much a drain has missed its deadline; "" if it has not.
func (d Drain) overdue(now time.Time) string {
	if d.Deadline.IsZero() || !d.Done.IsZero() || !now.After(d.Deadline) {
		return ""
	}
	return ", overdue by " + span(now.Sub(d.Deadline))
}
