package server

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/fleet"
)

// hindsight counts judgements of nodes that did not last: what the figures of the
// moment do not show. It looks when nodes are judged and costs a beat nothing.
type hindsight struct {
	suspicions atomic.Uint64 // nodes that became suspect
	unfounded  atomic.Uint64 // of them, those that were heard again as the same incarnation
	late       atomic.Uint64 // beats that came late
	brief      tally[fleet.Code]
	evidence   tally[evidence]

	// Of the loop that judges liveness.
	suspects map[*slot]string // the incarnation that fell silent
	// Of hindsightLoop.
	nodes map[string]verdict
}

// evidence is on what a node's work was taken from it.
type evidence struct {
	lease    fleet.LeaseState
	liveness fleet.Liveness
}

// verdict is whether a node could get new work when it was looked at last.
type verdict struct {
	code fleet.Code // the first reason against it; "" if there was none
	// since is when a node that could get work was found excluded; zero if it was
	// not seen to be eligible before.
	since time.Time
	seen  bool // in the present look
}

func newHindsight() *hindsight {
	return &hindsight{suspects: map[*slot]string{}, nodes: map[string]verdict{}}
}

// judged takes in a node whose liveness was just judged. A suspicion is unfounded
// if the process lived all the while: the same incarnation is heard again. The
// caller holds n.mu and is the loop that judges.
func (h *hindsight) judged(n *slot) {
	was, suspected := h.suspects[n]
	switch {
	case n.liveness == fleet.Suspect && !suspected:
		h.suspicions.Add(1)
		h.suspects[n] = n.incarnation
	case n.liveness != fleet.Suspect && suspected:
		delete(h.suspects, n)
		if n.incarnation == was && n.heard {
			h.unfounded.Add(1)
		}
	}
}

// forget drops nodes that are no longer there. The caller is the loop that judges.
func (h *hindsight) forget(there []*slot) {
	if len(h.suspects) == 0 {
		return
	}
	kept := make(map[*slot]string, len(h.suspects))
	for _, n := range there {
		if incarnation, ok := h.suspects[n]; ok {
			kept[n] = incarnation
		}
	}
	h.suspects = kept
}

// hindsightLoop looks for nodes that were left out and are back within one
// detection window, the time in which silence makes a node suspect.
func (s *Server) hindsightLoop(ctx context.Context) {
	window := s.cfg.suspect()
	every(ctx, max(window/10, s.cfg.tick()), nil, func(context.Context) {
		if s.loaded.Load() {
			s.hindsight.look(s.Nodes(), s.conditions(), time.Now(), window)
		}
	})
}

func (h *hindsight) look(nodes []fleet.Node, c fleet.Conditions, now time.Time, window time.Duration) {
	for i := range nodes {
		n := &nodes[i]
		was, known := h.nodes[n.ID]
		is := verdict{seen: true}
		if !fleet.Eligible(*n, c) {
			is.code, is.since = fleet.Exclusions(*n, fleet.Request{}, now, c)[0].Code, was.since
			if known && was.code == "" {
				is.since = now
			}
		} else if !was.since.IsZero() && now.Sub(was.since) <= window {
			h.brief.add(was.code, 1)
		}
		h.nodes[n.ID] = is
	}
	for id, v := range h.nodes {
		if !v.seen {
			delete(h.nodes, id)
			continue
		}
		v.seen = false
		h.nodes[id] = v
	}
}
