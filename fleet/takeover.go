package fleet

import "time"

// Action is what a decision does with a work item.
type Action string

// The actions.
const (
	Hold Action = "hold" // nothing now
	Move Action = "move" // place it on another node
	End  Action = "end"  // record it as stopped: it was to stop, and has
)

// Decision says what is to be done with a work item, and why.
type Decision struct {
	Action Action    `json:"action"`
	Code   Code      `json:"code,omitempty"` // why it is held
	Until  time.Time `json:"until,omitzero"` // when to look again; zero if time alone changes nothing
	Text   string    `json:"text"`
}

// TakeoverRules say when work may be taken from a node whose lease is over. A
// zero field means its default.
type TakeoverRules struct {
	Wait time.Duration // how long the lease has been over; 5 s
	Flap FlapRule      // of one item; 3 in 30 min, then 1 h
	Rate Rate          // of all takeovers; 50 at once, then one each 100 ms
}

// TakeoverCase is one item and its owner.
type TakeoverCase struct {
	Work   Work
	Owner  Node        // as read with Work; with its Lease authoritative
	Recent []time.Time // the last takeovers of the item, in order
	// Operator: a person asks for it, so neither Flap nor Rate holds it.
	Operator bool
}

// Judge says whether the item may be taken over, and returns the bucket after it.
func (r TakeoverRules) Judge(c TakeoverCase, brakes []BrakeState, observing bool, b Bucket, now time.Time) (Decision, Bucket) {
	return Decision{}, b
}

// JudgeReturn says whether a taken-over item goes back to the node that lost it.
func JudgeReturn(w Work, from Node, now time.Time, c Conditions) Decision { return Decision{} }
