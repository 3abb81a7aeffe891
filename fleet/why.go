package fleet

import "time"

// WhyNode returns the lines that say how a node stands and why it gets no new work.
func WhyNode(n Node, ex []Exclusion, now time.Time) []string { return nil }

// WorkFacts are what WhyWork tells of.
type WorkFacts struct {
	Work     Work
	Owner    *Node     // nil if it has none, or it is unknown
	Decision *Decision // of the takeover, if the owner's lease is over
	Ranked   int       // nodes that may get it, if it has no owner
	Counts   map[Code]int
}

// WhyWork returns the lines that say how an item stands and what has to happen
// for it to go on.
func WhyWork(f WorkFacts, now time.Time) []string { return nil }
