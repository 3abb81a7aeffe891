package fleet

import "slices"

// changes are the states that may follow a state:
//
//	pending ──► placed ──► running ──► succeeded, failed, stopped
//	   ▲           │          │
//	   │           ▼          ▼
//	   └──────── stopping ◄───┘
//
// An item whose owner's lease is over goes from any owned state to placed on
// another node, or to pending, with a larger token.
func (s WorkState) changes() []WorkState {
	switch s {
	case Pending:
		return []WorkState{Placed, Stopped}
	case Placed:
		return []WorkState{Pending, Placed, Running, Stopping, Succeeded, Failed, Stopped}
	case Running:
		return []WorkState{Pending, Placed, Stopping, Succeeded, Failed, Stopped}
	case Stopping:
		return []WorkState{Pending, Placed, Succeeded, Failed, Stopped}
	}
	return nil
}

// CanBecome reports whether an item in state s may go to another state, whoever
// makes the change. Placed may follow placed: that is another assignment.
func (s WorkState) CanBecome(to WorkState) bool { return slices.Contains(s.changes(), to) }

// CanReport reports whether the owner of an item in state s may report that it
// is in state to. To report the state that it is in says that it makes progress,
// but for placed: that says that the owner has ended the item for want of the right
// to act, and that it is to run again, under a larger token. An owner never gives
// an item to another, and what is stopping does not run again.
func (s WorkState) CanReport(to WorkState) bool {
	switch {
	case !s.Owned() || to == Pending || s == Stopping && to == Placed:
		return false
	default:
		return to == s || s.CanBecome(to)
	}
}
