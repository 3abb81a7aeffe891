package api

import "github.com/tenurehq/tenure/fleet"

// Events answers GET events, in order of their numbers. Next is the "after" of
// what follows.
type Events struct {
	Events []fleet.Event `json:"events"`
	Next   int64         `json:"next"`
}

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
