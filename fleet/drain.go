package fleet

import "time"

// Blocker is one item that a drain waits for.
type Blocker struct {
	Work  string    `json:"work"`
	State WorkState `json:"state"`
	Code  Code      `json:"code,omitempty"` // host_gone, if the node cannot end it any more
	Text  string    `json:"text"`
}

// Blockers returns what the drain of n waits for, in order of id. The node is
// drained when there is none.
func Blockers(n Node, works []Work, now time.Time) []Blocker { return nil }
