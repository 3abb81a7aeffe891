package server

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"reflect"
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

func (h *handler) registerNodes(a huma.API) {
	const node = "/v1/nodes/{id}"
	get := func(path, id, access, summary string) huma.Operation {
		return operation(http.MethodGet, path, id, access, summary)
	}
	operate := func(path, id, summary string) huma.Operation {
		return operation(http.MethodPost, node+path, id, leasehttp.Operate, summary)
	}
	endpoint.Register(a, get("/v1/nodes", "nodes", leasehttp.Read, "all nodes, the one with the oldest beat first"), h.nodes, h.log)
	endpoint.Register(a, get(node, "node", leasehttp.Read, "one node, with all reasons why it gets no new work"), h.getNode, h.log)

	eligible := get(node+"/eligible", "node-eligible", leasehttp.Read, "whether a node may get new work, as status 200 or 503 for load balancers")
	schemas := a.OpenAPI().Components.Schemas
	eligible.Responses = map[string]*huma.Response{"503": {
		Description: "it may not, or this replica cannot tell",
		Content: map[string]*huma.MediaType{
			"application/json": {Schema: schemas.Schema(reflect.TypeFor[api.Eligible](), true, "Eligible")},
			api.ProblemType:    {Schema: schemas.Schema(reflect.TypeFor[api.Problem](), true, "Problem")},
		},
	}}
	endpoint.Register(a, eligible, h.eligible, h.log)

	endpoint.Register(a, get(node+"/orders", "node-orders", report, "all that a node is to do, once the revision is another than after, or when wait_ms has passed"), h.getOrders, h.log)
	endpoint.Register(a, operate("/cordon", "node-cordon", "keep new work from a node"), h.cordon, h.log)
	endpoint.Register(a, operate("/drain", "node-drain", "empty a node"), h.drain, h.log)
	endpoint.Register(a, operate("/resume", "node-resume", "end a drain, or a cordon too"), h.resume, h.log)
	endpoint.Register(a, operation(http.MethodDelete, node, "node-remove", leasehttp.Operate, "forget a node that owns nothing"), h.remove, h.log)
}

type nodesInput struct {
	Authoritative bool   `query:"authoritative" doc:"read the registry now, in place of what this replica read last; of all nodes, without the other parameters"`
	Match         string `query:"match" doc:"only those with this in their id"`
	Is            string `query:"is" doc:"only those that are all of these, joined by commas: eligible, excluded, late, stale, fenced, draining, cordoned, not_ready, stuck, flapping"`
	Reason        string `query:"reason" doc:"only those that this reason excludes"`
	Label         string `query:"label" doc:"only those with this label, as KEY=VALUE"`
	Sort          string `query:"sort" doc:"age (oldest beat first, as if left out), id, lease, work or stuck; with a minus before it, the other way round"`
	Offset        int    `query:"offset" minimum:"0" maximum:"1000000" doc:"nodes to pass over"`
	Limit         int    `query:"limit" minimum:"1" maximum:"10000" doc:"nodes on the page; all if left out"`
}

func (h *handler) nodes(ctx context.Context, in *nodesInput) (*of[api.Nodes], error) {
	q, some, err := in.query()
	if err != nil {
		return nil, err
	}
	if some {
		if in.Authoritative {
			return nil, &store.InvalidError{Field: "authoritative", Value: "true", Rule: "goes with no other parameter"}
		}
		return answer(h.someNodes(&q))
	}
	nodes := h.Nodes()
	if in.Authoritative || len(nodes) == 0 {
		var err error
		if nodes, err = h.authoritative(ctx); err != nil {
			return nil, err
		}
	}
	return answer(api.Nodes{Nodes: h.wireNodes(nodes), Matched: len(nodes)})
}

type nodeInput struct {
	ID            string `path:"id" doc:"the name of the node"`
	Authoritative bool   `query:"authoritative" doc:"read the registry now also for a yes"`
}

func (h *handler) getNode(ctx context.Context, in *nodeInput) (*of[api.Node], error) {
	n, err := h.oneNode(ctx, in.ID, in.Authoritative)
	if err != nil {
		return nil, err
	}
	return answer(h.wireNode(&n))
}

// oneNode returns a node as this replica knows it if it may get new work, and
// otherwise as the registry has it now: no is never said from a cache (P8).
func (h *handler) oneNode(ctx context.Context, id string, authoritative bool) (fleet.Node, error) {
	if err := fleet.CheckID("id", id); err != nil {
		return fleet.Node{}, err
	}
	if n, ok := h.known(id); ok && !authoritative && fleet.Eligible(n, h.conditions()) {
		return n, nil
	}
	return h.authoritativeNode(ctx, id)
}

// known returns a node as this replica knows it.
func (s *Server) known(id string) (fleet.Node, bool) {
	n := s.in.find(id)
	if n == nil {
		return fleet.Node{}, false
	}
	at, now := s.in.at(), clock.Now().Boot
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.row == nil {
		return fleet.Node{}, false
	}
	return n.node(at, now, time.Duration(s.skew.Load()), s.cfg.Flap), true
}

type eligibleOutput struct {
	Status int
	Body   api.Eligible
}

func (h *handler) eligible(ctx context.Context, in *nodeInput) (*eligibleOutput, error) {
	n, err := h.oneNode(ctx, in.ID, in.Authoritative)
	if err != nil {
		return nil, err
	}
	out := eligibleOutput{Status: http.StatusOK, Body: api.Eligible{Node: n.ID, Eligible: true, Exclusions: h.wireNode(&n).Exclusions}}
	if len(out.Body.Exclusions) > 0 {
		out.Status, out.Body.Eligible = http.StatusServiceUnavailable, false
	}
	return &out, nil
}

type ordersInput struct {
	ID     string `path:"id" doc:"the name of the node"`
	After  uint64 `query:"after" doc:"the revision that the node follows"`
	WaitMS int64  `query:"wait_ms" minimum:"0" maximum:"60000" doc:"how long to wait for another revision"`
}

func (h *handler) getOrders(ctx context.Context, in *ordersInput) (*of[api.Orders], error) {
	if err := fleet.CheckID("id", in.ID); err != nil {
		return nil, err
	}
	if err := identity(ctx).speaksFor(in.ID); err != nil {
		return nil, err
	}
	orders, err := h.WaitOrders(ctx, in.ID, in.After, time.Duration(in.WaitMS)*time.Millisecond)
	if err != nil {
		return nil, err
	}
	return answer(*orders)
}

type nodeOrder[B any] struct {
	ID   string `path:"id" doc:"the name of the node"`
	Body B
}

func (h *handler) cordon(ctx context.Context, in *nodeOrder[api.CordonRequest]) (*of[api.Node], error) {
	return h.setIntent(ctx, in.ID, in.Body.Actor, in.Body.Reason, func(i fleet.Intent, m fleet.Mark) (fleet.Intent, fleet.Code) {
		i, _ = i.WithCordon(m)
		return i, ""
	})
}

func (h *handler) drain(ctx context.Context, in *nodeOrder[api.DrainRequest]) (*of[api.Node], error) {
	b := &in.Body
	return h.setIntent(ctx, in.ID, b.Actor, b.Reason, func(i fleet.Intent, m fleet.Mark) (fleet.Intent, fleet.Code) {
		var deadline time.Time
		if b.DeadlineMS > 0 {
			deadline = m.At.Add(time.Duration(b.DeadlineMS) * time.Millisecond)
		}
		i, _ = i.WithDrain(m, deadline, b.Move)
		return i, ""
	})
}

func (h *handler) resume(ctx context.Context, in *nodeOrder[api.ResumeRequest]) (*of[api.Node], error) {
	b := &in.Body
	if b.What != fleet.ResumeDrain && b.What != fleet.ResumeAll {
		return nil, &store.InvalidError{Field: "what", Value: clip(b.What), Rule: fmt.Sprintf("%q or %q", fleet.ResumeDrain, fleet.ResumeAll)}
	}
	return h.setIntent(ctx, in.ID, b.Actor, cmp.Or(b.Reason, "resume "+b.What), func(i fleet.Intent, _ fleet.Mark) (fleet.Intent, fleet.Code) {
		i, _ = i.Resumed(b.What)
		return i, ""
	})
}

// setIntent changes what is wanted of a node, and returns the node after it.
func (h *handler) setIntent(ctx context.Context, id, actor, reason string, change registry.IntentFunc) (*of[api.Node], error) {
	if err := fleet.CheckID("id", id); err != nil {
		return nil, err
	}
	if err := (fleet.Mark{Actor: actor, Reason: reason}).Check(); err != nil {
		return nil, err
	}
	_, v, err := h.reg.SetIntent(ctx, id, registry.Order{Actor: actor, Reason: reason}, change)
	if err != nil {
		return nil, err
	}
	if v.Code != "" {
		return nil, refusal(v)
	}
	h.hasten()
	return h.getNode(ctx, &nodeInput{ID: id, Authoritative: true})
}

type removeInput struct {
	ID     string `path:"id" doc:"the name of the node"`
	Actor  string `query:"actor" required:"true" doc:"who wants it"`
	Reason string `query:"reason" required:"true" doc:"why"`
	Gone   bool   `query:"gone" doc:"the host never comes back: what is pinned to it ends as failed"`
}

func (h *handler) remove(ctx context.Context, in *removeInput) (*of[api.Node], error) {
	if err := (fleet.Mark{Actor: in.Actor, Reason: in.Reason}).Check(); err != nil {
		return nil, err
	}
	n, err := h.oneNode(ctx, in.ID, true)
	if err != nil {
		return nil, err
	}
	v, err := h.reg.Remove(ctx, in.ID, registry.Order{Actor: in.Actor, Reason: in.Reason}, in.Gone)
	if err != nil {
		return nil, err
	}
	if v.Code != "" {
		return nil, refusal(v)
	}
	h.in.forget(in.ID)
	h.tellEvents()
	return answer(h.wireNode(&n))
}
