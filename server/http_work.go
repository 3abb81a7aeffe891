package server

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/endpoint"
	"github.com/tenurehq/tenure/server/leasehttp"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
)

// Limits of the interface to work.
const (
	maxSubmit  = 1 << 20 // bytes
	worksLimit = 1000    // items of one page
)

func (h *handler) registerWork(a huma.API) {
	const item = "/v1/work/{id}"
	get := func(path, id, summary string) huma.Operation {
		return operation(http.MethodGet, path, id, leasehttp.Read, summary)
	}
	submit := operation(http.MethodPost, "/v1/work", "work-submit", leasehttp.Operate, "place a work item, or store it to be placed later")
	submit.MaxBodyBytes = maxSubmit
	endpoint.Register(a, submit, h.submit, h.log)
	endpoint.Register(a, get("/v1/work", "works", "work items in order of id"), h.works, h.log)
	endpoint.Register(a, get(item, "work", "one work item"), h.getWork, h.log)
	endpoint.Register(a, get(item+"/owner", "work-owner", "who has a work item, and where"), h.owner, h.log)
	endpoint.Register(a, operation(http.MethodPost, item+"/stop", "work-stop", leasehttp.Operate, "end a work item for good"), h.stop, h.log)
	endpoint.Register(a, operation(http.MethodPost, item+"/move", "work-move", leasehttp.Operate, "end a movable work item, and place it elsewhere"), h.move, h.log)
	endpoint.Register(a, operation(http.MethodDelete, item, "work-remove", leasehttp.Operate, "forget a work item that has ended, so that its name can be used again"), h.removeWork, h.log)
	endpoint.Register(a, operation(http.MethodPost, item+"/progress", "work-progress", report, "record how far a work item is, for its owner"), h.progress, h.log)
}

// wireWork returns an item as the interface shows it.
func wireWork(w fleet.Work, now time.Time) api.Work {
	wire := api.NewWork(w)
	_, wire.Stuck = w.StuckSince(now)
	return wire
}

func (h *handler) submit(ctx context.Context, in *of[api.SubmitRequest]) (*of[api.Work], error) {
	actor := cmp.Or(in.Body.Actor, string(identity(ctx).Role))
	if err := (fleet.Mark{Actor: actor, Reason: "submit"}).Check(); err != nil {
		return nil, err
	}
	w, existing, err := h.Submit(ctx, in.Body.Spec, actor, in.Body.Queue)
	if err != nil {
		return nil, err
	}
	h.tellEvents()
	out := wireWork(w, time.Now())
	out.Existing = existing
	return answer(out)
}

type worksInput struct {
	State string `query:"state" doc:"only in these states, joined by commas"`
	Owner string `query:"owner" doc:"only those that this node has, or had last"`
	Stuck bool   `query:"stuck" doc:"only those that are stuck"`
	After string `query:"after" doc:"the id after which the page begins"`
	Limit int    `query:"limit" minimum:"1" maximum:"1000" doc:"items on the page; 1000 if left out"`
}

func (h *handler) works(ctx context.Context, in *worksInput) (*of[api.Works], error) {
	f := registry.Filter{Owner: in.Owner, Stuck: in.Stuck, After: in.After, Limit: cmp.Or(in.Limit, worksLimit)}
	if in.State != "" {
		for state := range strings.SplitSeq(in.State, ",") {
			if s := fleet.WorkState(state); slices.Contains(workStates, s) {
				f.States = append(f.States, s)
			} else {
				return nil, &store.InvalidError{Field: "state", Value: clip(state), Rule: fmt.Sprintf("some of %q, joined by commas", workStates)}
			}
		}
	}
	for field, id := range map[string]string{"owner": in.Owner, "after": in.After} {
		if id == "" {
			continue
		}
		if err := fleet.CheckID(field, id); err != nil {
			return nil, err
		}
	}
	works, err := h.reg.Works(ctx, f)
	if err != nil {
		return nil, err
	}
	page, now := api.Works{Work: make([]api.Work, len(works))}, time.Now()
	for i, w := range works {
		page.Work[i] = wireWork(w, now)
	}
	if len(works) == f.Limit {
		page.Next = works[len(works)-1].ID
	}
	return answer(page)
}

var workStates = []fleet.WorkState{fleet.Pending, fleet.Placed, fleet.Running, fleet.Stopping, fleet.Succeeded, fleet.Failed, fleet.Stopped}

type workInput struct {
	ID string `path:"id" doc:"the name of the work item"`
}

func (h *handler) getWork(ctx context.Context, in *workInput) (*of[api.Work], error) {
	w, err := h.oneWork(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return answer(wireWork(w, time.Now()))
}

func (h *handler) oneWork(ctx context.Context, id string) (fleet.Work, error) {
	if err := fleet.CheckID("id", id); err != nil {
		return fleet.Work{}, err
	}
	w, ok, err := h.reg.Work(ctx, id)
	if err != nil {
		return fleet.Work{}, err
	}
	if !ok {
		return fleet.Work{}, api.Refuse(fleet.CodeNoSuchWork, "no work %q", id)
	}
	return w, nil
}

func (h *handler) owner(ctx context.Context, in *workInput) (*of[api.Owner], error) {
	if err := fleet.CheckID("id", in.ID); err != nil {
		return nil, err
	}
	o, err := h.Owner(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return answer(o)
}

type workOrder struct {
	ID   string `path:"id" doc:"the name of the work item"`
	Body api.WorkOrder
}

func (h *handler) stop(ctx context.Context, in *workOrder) (*of[api.Work], error) {
	return h.order(ctx, in, h.reg.Stop)
}

func (h *handler) move(ctx context.Context, in *workOrder) (*of[api.Work], error) {
	return h.order(ctx, in, func(ctx context.Context, work string, o registry.Order) (registry.Verdict, error) {
		return h.reg.Move(ctx, registry.Fence{}, work, o)
	})
}

// order changes what is wanted of a work item, and returns the item after it.
func (h *handler) order(ctx context.Context, in *workOrder, change func(context.Context, string, registry.Order) (registry.Verdict, error)) (*of[api.Work], error) {
	b := &in.Body
	if err := fleet.CheckID("id", in.ID); err != nil {
		return nil, err
	}
	if err := (fleet.Mark{Actor: b.Actor, Reason: b.Reason}).Check(); err != nil {
		return nil, err
	}
	v, err := change(ctx, in.ID, registry.Order{Actor: b.Actor, Reason: b.Reason})
	if err != nil {
		return nil, err
	}
	if v.Code != "" {
		return nil, refusal(v)
	}
	w, err := h.oneWork(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if w.Owner != "" {
		h.touch(ctx, w.Owner)
	}
	h.hasten()
	return answer(wireWork(w, time.Now()))
}

type workRemoveInput struct {
	ID     string `path:"id" doc:"the name of the work item"`
	Actor  string `query:"actor" required:"true" doc:"who wants it"`
	Reason string `query:"reason" required:"true" doc:"why"`
}

func (h *handler) removeWork(ctx context.Context, in *workRemoveInput) (*of[api.Work], error) {
	if err := (fleet.Mark{Actor: in.Actor, Reason: in.Reason}).Check(); err != nil {
		return nil, err
	}
	w, err := h.oneWork(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	v, err := h.reg.Forget(ctx, in.ID, registry.Order{Actor: in.Actor, Reason: in.Reason})
	if err != nil {
		return nil, err
	}
	if v.Code != "" {
		return nil, refusal(v)
	}
	h.tellEvents()
	return answer(wireWork(w, time.Now()))
}

type progressInput struct {
	ID   string `path:"id" doc:"the name of the work item"`
	Body api.ProgressRequest
}

func (h *handler) progress(ctx context.Context, in *progressInput) (*of[api.WorkVerdict], error) {
	b := &in.Body
	if err := fleet.CheckID("id", in.ID); err != nil {
		return nil, err
	}
	if err := fleet.CheckID("node", b.Node); err != nil {
		return nil, err
	}
	if err := fleet.CheckMarker(b.Marker); err != nil {
		return nil, err
	}
	if err := identity(ctx).speaksFor(b.Node); err != nil {
		return nil, err
	}
	verdicts, err := h.reg.Apply(ctx, []registry.Change{{
		Work: in.ID, Node: b.Node, Token: b.Token, Lease: b.Lease, State: fleet.Running, Progress: b.Marker,
	}})
	if err != nil {
		return nil, err
	}
	v := verdicts[0]
	h.counts.add("work", string(v.Code))
	return answer(api.WorkVerdict{Work: in.ID, Code: v.Code, Owner: v.Owner, Current: v.Current})
}
