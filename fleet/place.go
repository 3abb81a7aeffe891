package fleet

import "time"

// Candidate is a node that may get the work.
type Candidate struct {
	Index int     // in the snapshot
	Node  string  // id
	Free  float64 // share of the deciding resource that is free after placement
}

// Rank returns the nodes that may get the work, best first, and how many are
// left out for each code.
func Rank(nodes []Node, req Request, now time.Time, c Conditions) ([]Candidate, map[Code]int) {
	return nil, nil
}
