package fleet

import "time"

// Conditions are what a replica knows beside the node.
type Conditions struct {
	Brakes []BrakeState
	// StuckAllowed is how many stuck items a node may have and still get new work.
	StuckAllowed int
}

// Exclusions returns all reasons why a node gets no work of this request, most
// severe first. It is empty if the node may get it.
func Exclusions(n Node, req Request, now time.Time, c Conditions) []Exclusion { return nil }

// Eligible reports whether nothing of the node's own keeps new work from it,
// whatever is asked of it.
func Eligible(n Node, now time.Time, c Conditions) bool { return false }
