package api

import "github.com/tenurehq/tenure/fleet"

// Events answers GET events, in order of their numbers. Next is the "after" of
// what follows.
type Events struct {
	Events []fleet.Event `json:"events"`
	Next   int64         `json:"next"`
	// Pruned says that entries which were asked for are not here and will not come,
	// since they are older than what the server keeps: those between "after", or the
	// beginning, and the first one here. Whether they would have been of the node, work
	// or kind that was asked for is not known.
	Pruned bool `json:"pruned"`
	// Text says so for people.
	Text string `json:"text,omitempty"`
}

// EventPruned is the kind of an event that a stream has in the place of entries which
// were dropped before their reader got them. It is no entry of the ledger. Its
// number is that of the last of them, and its text says so for people. It comes
// whatever node, work or kind was asked for.
const EventPruned fleet.EventKind = "events_pruned"

// EventQuery chooses events. Its zero value is the whole ledger from its beginning.
type EventQuery struct {
	After  int64
	Before int64 // 0 for no bound; with Last, the page before the one that begins there
	Node   string
	Work   string
	Kind   fleet.EventKind
	Limit  int  // 0 is the server's
	Last   bool // the newest Limit, still in order
}
