package server

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/endpoint"
	"github.com/tenurehq/tenure/server/leasehttp"
	"github.com/tenurehq/tenure/server/registry"
)

// whyEvents is how many of the last events an answer to "why" brings.
const whyEvents = 20

func (h *handler) registerWhy(a huma.API) {
	endpoint.Register(a, operation(http.MethodGet, "/v1/why/nodes/{id}", "why-node", leasehttp.Read, "all that there is to say of how a node stands"), h.whyNode, h.log)
	endpoint.Register(a, operation(http.MethodGet, "/v1/why/work/{id}", "why-work", leasehttp.Read, "where a work item is, why, and what has to happen for it to go on"), h.whyWork, h.log)
}

func (h *handler) whyNode(ctx context.Context, in *workInput) (*of[api.NodeWhy], error) {
	n, err := h.oneNode(ctx, in.ID, true)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	why := api.NodeWhy{Node: h.wireNode(&n), Text: fleet.WhyNode(n, h.conditions(), now), Brake: h.brakeOver(n)}
	if slot := h.in.find(n.ID); slot != nil {
		at := h.in.at()
		slot.mu.Lock()
		why.Detector = slot.detector.Explain(at).String()
		slot.mu.Unlock()
	}
	if n.Intent.Drain != nil || len(n.Facts.Leftovers) > 0 {
		works, err := h.reg.Works(ctx, registry.Filter{Owner: n.ID, States: []fleet.WorkState{fleet.Placed, fleet.Running, fleet.Stopping}})
		if err != nil {
			return nil, err
		}
		why.Leftovers = fleet.Leftovers(n, works)
		if n.Intent.Drain != nil {
			for _, w := range works {
				why.Blockers = append(why.Blockers, wireWork(w, now))
			}
			for _, b := range fleet.Blockers(n, works, now) {
				why.Text = append(why.Text, "  blocked by "+b.Work+": "+b.Text)
			}
		} else {
			for _, l := range why.Leftovers {
				why.Text = append(why.Text, "  left over "+l.Work+": "+l.String())
			}
		}
	}
	if why.Events, err = h.lastEvents(ctx, registry.EventFilter{Node: n.ID}); err != nil {
		return nil, err
	}
	return answer(why)
}

func (h *handler) lastEvents(ctx context.Context, f registry.EventFilter) ([]fleet.Event, error) {
	f.Last, f.Limit = true, whyEvents
	events, err := h.reg.Events(ctx, f)
	return nonNil(events), err
}

// brakeOver returns the brake that holds a node or its work; nil if none does.
func (h *handler) brakeOver(n fleet.Node) *api.BrakeState {
	for _, b := range *h.brakes.Load() {
		if b.Covers(n) || b.HoldsWork(n) {
			wire := wireBrakeState(&b)
			return &wire
		}
	}
	return nil
}

func (h *handler) whyWork(ctx context.Context, in *workInput) (*of[api.WorkWhy], error) {
	if err := fleet.CheckID("id", in.ID); err != nil {
		return nil, err
	}
	l, ok, err := h.reg.Locate(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, api.Refuse(fleet.CodeNoSuchWork, "no work %q", in.ID)
	}
	w, now := l.Work, time.Now()
	facts := fleet.WorkFacts{Work: w}
	// Whoever asks why is not directed to the owner by it, which is a phase of a takeover.
	why := api.WorkWhy{Work: wireWork(w, now), Owner: ownerOf(l)}
	switch {
	case w.State.Owned():
		if err := h.whyOwned(ctx, l, &facts, &why, now); err != nil {
			return nil, err
		}
	case w.State == fleet.Pending:
		if err := h.whyNodes(ctx, w, &facts, &why, now); err != nil {
			return nil, err
		}
	}
	why.Text = fleet.WhyWork(facts, now)
	why.Next = why.Text[len(why.Text)-1]
	if why.Events, err = h.lastEvents(ctx, registry.EventFilter{Work: w.ID}); err != nil {
		return nil, err
	}
	return answer(why)
}

// whyOwned adds what there is to say of an item's owner, and whether the item may
// be taken from it.
func (h *handler) whyOwned(ctx context.Context, l registry.Location, facts *fleet.WorkFacts, why *api.WorkWhy, now time.Time) error {
	owner := fleet.Node{ID: l.Work.Owner, Liveness: fleet.Observing}
	if n, ok := h.known(l.Work.Owner); ok {
		owner = n
	}
	owner.Lease = l.Lease
	facts.Owner, why.Brake = &owner, h.brakeOver(owner)
	lease := wireLease(l.Lease)
	why.Lease = &lease
	if l.Lease.Live() {
		return nil
	}
	recent, err := h.recent(ctx, l.Work)
	if err != nil {
		return err
	}
	_, observing := h.Observing()
	// The rate of takeovers is the reconciler's: whoever may be taken over waits for it.
	d, _ := fleet.JudgeTakeover(fleet.TakeoverCase{
		Work: l.Work, Owner: owner, Recent: recent, Brakes: *h.brakes.Load(), Observing: observing,
	}, h.cfg.Takeover, fleet.Bucket{}, now)
	facts.Takeover = &d
	if d.Action == fleet.Move {
		return h.whyNodes(ctx, l.Work, facts, why, now)
	}
	return nil
}

// whyNodes adds how many nodes may get an item, and why each other one is left out.
func (h *handler) whyNodes(ctx context.Context, w fleet.Work, facts *fleet.WorkFacts, why *api.WorkWhy, now time.Time) error {
	nodes, err := h.authoritative(ctx)
	if err != nil {
		return err
	}
	req := away(w)
	c := h.conditions()
	why.Counts = map[fleet.Code]int{}
	for _, n := range nodes {
		ex := fleet.Exclusions(n, req, now, c)
		if len(ex) == 0 {
			facts.Fit++
			continue
		}
		why.Nodes = append(why.Nodes, api.Eligible{Node: n.ID, Exclusions: ex})
		seen := map[fleet.Code]bool{}
		for _, e := range ex {
			if !seen[e.Code] {
				seen[e.Code] = true
				why.Counts[e.Code]++
			}
		}
	}
	facts.Counts = why.Counts
	return nil
}

// away is the request of an item that goes to another node than the one that has it,
// or from which it is being moved. One that lost it with its lease may have it again.
func away(w fleet.Work) fleet.Request {
	req := w.Needs()
	if w.Owner != "" && (w.State != fleet.Pending || w.Moving) {
		req.Exclude = append(slices.Clone(req.Exclude), w.Owner)
	}
	return req
}
