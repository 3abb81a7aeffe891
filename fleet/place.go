package fleet

import (
	"cmp"
	"slices"
	"strings"
)

// DefaultResource is what the most-free strategy compares if nodes offer it.
const DefaultResource = "memory_mb"

// Candidate is a node that may get the work.
type Candidate struct {
	Index int     // in the snapshot
	Node  string  // id
	Work  int     // items that it has
	Free  float64 // share of the deciding resource that is free after placement, 0 to 1
}

// Rank returns the nodes that may get the work, best first, and how many nodes
// are left out for each code; one that is left out for two counts in both.
//
// The deciding resource is memory_mb if one of the nodes that fit offers it, or
// else the first by name that the request names. Equal nodes are in order of
// their items, then of id, so the result does not depend on the order of nodes.
func Rank(nodes []Node, req Request, c Conditions) ([]Candidate, map[Code]int) {
	w := newWants(req)
	var ranked []Candidate
	var found []finding
	counts := map[Code]int{}
	for i := range nodes {
		n := &nodes[i]
		found = w.findings(found[:0], n, &c)
		for j, f := range found {
			// Findings of one code stand together: two missing labels count once.
			if j == 0 || f.code != found[j-1].code {
				counts[f.code]++
			}
		}
		if len(found) == 0 {
			ranked = append(ranked, Candidate{Index: i, Node: n.ID, Work: n.Work})
		}
	}
	if r := w.deciding(nodes, ranked); r != "" {
		for i := range ranked {
			n := &nodes[ranked[i].Index]
			if of := n.Facts.Capacity[r]; of > 0 {
				ranked[i].Free = max(float64(n.Free(r)-req.Resources[r])/float64(of), 0)
			}
		}
	}
	slices.SortFunc(ranked, func(a, b Candidate) int {
		var first int
		switch req.Strategy {
		case Spread:
		case BinPack:
			first = cmp.Compare(a.Free, b.Free)
		default:
			first = cmp.Compare(b.Free, a.Free)
		}
		return cmp.Or(first, cmp.Compare(a.Work, b.Work), strings.Compare(a.Node, b.Node))
	})
	return ranked, counts
}

// deciding returns the resource by which nodes are compared; "" if there is none.
func (w *wants) deciding(nodes []Node, ranked []Candidate) string {
	for _, c := range ranked {
		if nodes[c.Index].Facts.Capacity[DefaultResource] > 0 {
			return DefaultResource
		}
	}
	if len(w.resources) > 0 {
		return w.resources[0]
	}
	return ""
}
