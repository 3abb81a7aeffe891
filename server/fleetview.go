package server

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
)

// viewAge is how old a fleetView may be. Whoever asks within it shares one.
const viewAge = 500 * time.Millisecond

// fleetView is the fleet as this replica knew it at one time, judged once for all
// who look at it. It is not changed.
type fleetView struct {
	at         time.Time
	grown      <-chan struct{} // closed when the ledger may have grown since
	nodes      []fleet.Node    // oldest beat first
	exclusions [][]fleet.Exclusion
}

// views keeps the newest fleetView.
type views struct {
	mu   sync.Mutex // held while a view is made, so that it is made once
	last *fleetView
}

// view returns the fleet as it was at most viewAge ago, and never as it was before
// a change that this replica has made.
func (s *Server) view() *fleetView {
	s.views.mu.Lock()
	defer s.views.mu.Unlock()
	if v := s.views.last; v != nil && time.Since(v.at) < viewAge {
		select {
		case <-v.grown:
		default:
			return v
		}
	}
	v := &fleetView{at: time.Now(), grown: s.grown(), nodes: s.Nodes()}
	slices.SortFunc(v.nodes, func(a, b fleet.Node) int {
		return cmp.Or(cmp.Compare(b.Age, a.Age), cmp.Compare(a.ID, b.ID))
	})
	v.exclusions = make([][]fleet.Exclusion, len(v.nodes))
	c := s.conditions()
	for i := range v.nodes {
		if !fleet.Eligible(v.nodes[i], c) {
			v.exclusions[i] = fleet.Exclusions(v.nodes[i], fleet.Request{}, v.at, c)
		}
	}
	s.views.last = v
	return v
}

// has reports whether a node of the view has a trait.
func (v *fleetView) has(i int, trait string) bool {
	n := &v.nodes[i]
	switch trait {
	case api.TraitEligible:
		return len(v.exclusions[i]) == 0
	case api.TraitExcluded:
		return len(v.exclusions[i]) > 0
	case api.TraitLate:
		return n.Liveness == fleet.Late
	case api.TraitStale:
		return stale(n)
	case api.TraitFenced:
		return fenced(n)
	case api.TraitDraining:
		return draining(n)
	case api.TraitCordoned:
		return n.Intent.Cordon != nil
	case api.TraitNotReady:
		return !n.Facts.Readiness.Ready
	case api.TraitStuck:
		return n.Stuck > 0
	case api.TraitFlapping:
		return n.Flapping
	}
	return false
}

// Liveness, lease and intent in a word each.
func stale(n *fleet.Node) bool    { return n.Liveness == fleet.Suspect }
func fenced(n *fleet.Node) bool   { return n.Lease.State != fleet.LeaseHeld }
func draining(n *fleet.Node) bool { return n.Intent.Drain != nil }

// find returns the indexes of the nodes that a query asks for, in its order.
func (v *fleetView) find(q *api.NodeQuery) []int {
	key, value, labelled := strings.Cut(q.Label, "=")
	var found []int
	for i := range v.nodes {
		n := &v.nodes[i]
		fits := strings.Contains(n.ID, q.Match) &&
			!slices.ContainsFunc(q.Is, func(trait string) bool { return !v.has(i, trait) }) &&
			(q.Reason == "" || slices.ContainsFunc(v.exclusions[i], func(e fleet.Exclusion) bool { return e.Code == q.Reason })) &&
			(!labelled || n.Facts.Labels[key] == value)
		if fits {
			found = append(found, i)
		}
	}
	by, reversed := strings.CutPrefix(q.Sort, "-")
	slices.SortStableFunc(found, func(i, j int) int {
		a, b := &v.nodes[i], &v.nodes[j]
		var order int
		switch by {
		case api.ByID:
			order = cmp.Compare(a.ID, b.ID)
		case api.ByLease:
			order = cmp.Compare(a.Lease.Remaining-a.Lease.Over, b.Lease.Remaining-b.Lease.Over)
		case api.ByWork:
			order = cmp.Compare(b.Work, a.Work)
		case api.ByStuck:
			order = cmp.Compare(b.Stuck, a.Stuck)
		default:
			order = cmp.Compare(i, j)
		}
		if reversed {
			order = -order
		}
		return order
	})
	return found
}

// fleet returns the view in figures.
func (s *Server) fleet(v *fleetView) api.Fleet {
	watched, tooShort := s.Observing()
	f := api.Fleet{
		Server: s.cfg.Name, At: v.at.UTC(), Nodes: len(v.nodes),
		Liveness: map[fleet.Liveness]int{}, Lease: map[fleet.LeaseState]int{}, Intent: map[fleet.IntentState]int{},
		Reasons: []api.ReasonCount{}, Age: ages(v.at, v.nodes), WatchedMS: watched.Milliseconds(), Watching: !tooShort,
		IntervalMS: s.cfg.Interval.Milliseconds(), SuspectMS: s.cfg.suspect().Milliseconds(), NodeTTLMS: s.cfg.NodeTTL.Milliseconds(),
	}
	counts := map[fleet.Code]int{}
	for i := range v.nodes {
		n := &v.nodes[i]
		f.Liveness[n.Liveness]++
		f.Lease[n.Lease.State]++
		f.Intent[n.Intent.State()]++
		f.Work, f.Stuck = f.Work+n.Work, f.Stuck+n.Stuck
		f.Eligible += one(len(v.exclusions[i]) == 0)
		f.Stale += one(stale(n))
		f.Fenced += one(fenced(n))
		f.Draining += one(draining(n))
		var last fleet.Code
		for _, e := range v.exclusions[i] {
			if e.Code != last { // several brakes may hold one node
				counts[e.Code]++
			}
			last = e.Code
		}
	}
	for _, r := range fleet.Reasons() {
		if n := counts[r.Code]; n > 0 {
			f.Reasons = append(f.Reasons, api.ReasonCount{Code: r.Code, Nodes: n, Severity: r.Severity, Text: r.Text})
		}
	}
	return f
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}
