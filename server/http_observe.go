package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/server/endpoint"
	"github.com/tenurehq/tenure/server/leasehttp"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
)

// registerObserve adds what people look at and no agent needs.
func (h *handler) registerObserve(a huma.API) {
	who := operation(http.MethodGet, "/v1/whoami", "whoami", leasehttp.Read, "whom the server takes the sender for")
	who.Metadata[always] = true
	endpoint.Register(a, who, h.whoami, h.log)
	endpoint.Register(a, operation(http.MethodGet, "/v1/fleet", "fleet", leasehttp.Read, "all nodes in figures"), h.getFleet, h.log)
	endpoint.Register(a, operation(http.MethodGet, "/v1/fleet/ages", "fleet-ages", leasehttp.Read, "how old the last beats of the nodes were over the last hour, as this replica saw it"), h.getAges, h.log)
	endpoint.Register(a, operation(http.MethodGet, "/v1/nodes/{id}/timeline", "node-timeline", leasehttp.Read, "the last beats of a node, as this replica heard of them"), h.timeline, h.log)
	endpoint.Register(a, operation(http.MethodGet, "/v1/takeovers", "takeovers", leasehttp.Read, "takeovers of the ledger with their phases, in order"), h.takeovers, h.log)
}

func (h *handler) whoami(ctx context.Context, _ *struct{}) (*of[api.Identity], error) {
	id := identity(ctx)
	return answer(api.Identity{Role: string(id.Role), Node: id.Node})
}

func (h *handler) getFleet(ctx context.Context, _ *struct{}) (*of[api.Fleet], error) {
	f := h.fleet(h.view())
	f.Reconciler = h.reconciling(ctx)
	return answer(f)
}

// reconciling asks the store who reconciles. That it does not answer is part of the
// answer: all else that is known of the fleet is in memory.
func (s *Server) reconciling(ctx context.Context) api.Reconciler {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Interval)
	defer cancel()
	r := api.Reconciler{Here: s.active.Load()}
	if failed := s.failed.Load(); failed != nil {
		r.Failing, r.FailingSince = failed.text, failed.since
	}
	rec, err := s.st.Get(ctx, ReconcilerLease)
	if errors.Is(err, store.ErrNotFound) {
		rec, err = store.Record{Status: store.Unheld}, nil
	}
	if err != nil {
		r.Error = err.Error()
		return r
	}
	r.Status, r.Holder, r.Token, r.Revoked = rec.Status, rec.Holder, rec.Token, rec.Revoked
	switch rec.Status {
	case store.Held:
		r.Since = rec.AcquiredAt
	case store.Lapsed:
		r.Since = rec.ExpiresAt
	case store.Released:
		r.Since = rec.EndedAt
	}
	if !r.Since.IsZero() {
		r.Since = r.Since.UTC()
	}
	return r
}

func (h *handler) getAges(context.Context, *struct{}) (*of[api.Ages], error) {
	h.history.mu.Lock()
	defer h.history.mu.Unlock()
	return answer(api.Ages{Server: h.cfg.Name, Samples: nonNil(slices.Clone(h.history.samples))})
}

func (h *handler) timeline(ctx context.Context, in *workInput) (*of[api.Timeline], error) {
	if err := fleet.CheckID("id", in.ID); err != nil {
		return nil, err
	}
	n := h.in.find(in.ID)
	if n == nil {
		if _, err := h.authoritativeNode(ctx, in.ID); err != nil { // no is never said from a cache (P8)
			return nil, err
		}
		n = h.in.slot(in.ID)
	}
	now, at := time.Now(), h.in.at()
	n.mu.Lock()
	e := n.detector.Explain(at)
	out := api.Timeline{
		Node: in.ID, Server: h.cfg.Name, At: now.UTC(), Heard: n.heard, SilentMS: e.Silent.Milliseconds(), Suspicion: e.Suspicion,
		LimitMS: e.Limit.Milliseconds(), IntervalMS: h.cfg.Interval.Milliseconds(), Beats: []api.BeatMark{},
	}
	if r := n.extended; r.at != 0 {
		out.RenewedAt, out.RenewUS = now.Add(r.at-clock.Now().Boot).UTC(), api.Microseconds(r.took)
	}
	n.mu.Unlock()
	h.history.mu.Lock()
	defer h.history.mu.Unlock()
	if b := h.history.beats[n]; b != nil {
		out.Beats = b.marks(now, at, h.cfg.Interval)
	}
	return answer(out)
}

type takeoversInput struct {
	After  int64  `query:"after" minimum:"0" maximum:"9223372036854775807" doc:"the number after which the page begins"`
	Before int64  `query:"before" minimum:"0" maximum:"9223372036854775807" doc:"the number before which the page ends; 0 for no bound"`
	Work   string `query:"work" doc:"of this work item only"`
	Node   string `query:"node" doc:"only those in which this node lost or got an item"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" doc:"takeovers on the page; 1000 if left out"`
	Last   bool   `query:"last" doc:"the newest ones, still in order"`
}

func (h *handler) takeovers(ctx context.Context, in *takeoversInput) (*of[api.Takeovers], error) {
	for field, id := range map[string]string{"work": in.Work, "node": in.Node} {
		if id == "" {
			continue
		}
		if err := fleet.CheckID(field, id); err != nil {
			return nil, err
		}
	}
	taken, err := h.reg.Takeovers(ctx, registry.TakeoverFilter{After: in.After, Before: in.Before, Work: in.Work, Node: in.Node, Limit: in.Limit, Last: in.Last})
	if err != nil {
		return nil, err
	}
	out := api.Takeovers{Takeovers: make([]api.Takeover, len(taken)), Next: in.After}
	for i, t := range taken {
		out.Takeovers[i] = api.Takeover{Seq: t.Seq, Work: t.Work, Actor: t.Actor, Evidence: t.Evidence}
		out.Next = t.Seq
	}
	return answer(out)
}

// query returns what a request for nodes asks for; false if for all of them.
func (in *nodesInput) query() (api.NodeQuery, bool, error) {
	q := api.NodeQuery{Match: in.Match, Reason: fleet.Code(in.Reason), Label: in.Label, Sort: in.Sort, Offset: in.Offset, Limit: in.Limit}
	if in.Is != "" {
		q.Is = strings.Split(in.Is, ",")
	}
	bad := func(field, value, rule string) (api.NodeQuery, bool, error) {
		return q, false, &store.InvalidError{Field: field, Value: clip(value), Rule: rule}
	}
	for _, trait := range q.Is {
		if !slices.Contains(api.NodeTraits(), trait) {
			return bad("is", trait, fmt.Sprintf("some of %q, joined by commas", api.NodeTraits()))
		}
	}
	if by := strings.TrimPrefix(q.Sort, "-"); by != "" && !slices.Contains(api.NodeOrders(), by) {
		return bad("sort", q.Sort, fmt.Sprintf("one of %q, with a minus before it for the other way round", api.NodeOrders()))
	}
	if q.Reason != "" {
		if _, ok := fleet.ReasonOf(q.Reason); !ok {
			return bad("reason", in.Reason, "a code of exclusion, such as lease_lapsed")
		}
	}
	if q.Label != "" && !strings.Contains(q.Label, "=") {
		return bad("label", q.Label, "KEY=VALUE")
	}
	some := q.Match+in.Reason+q.Label+q.Sort+in.Is != "" || q.Offset != 0 || q.Limit != 0
	return q, some, nil
}

// someNodes answers a request for some of the nodes from what this replica knows.
func (h *handler) someNodes(q *api.NodeQuery) api.Nodes {
	v := h.view()
	found := v.find(q)
	page := found[min(q.Offset, len(found)):]
	if q.Limit > 0 {
		page = page[:min(q.Limit, len(page))]
	}
	out := api.Nodes{Nodes: make([]api.Node, len(page)), Matched: len(found)}
	for i, at := range page {
		out.Nodes[i] = h.wireNode(&v.nodes[at])
	}
	return out
}
