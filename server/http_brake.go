package server

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/endpoint"
	"github.com/tenurehq/tenure/server/leasehttp"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
)

func (h *handler) registerBrake(a huma.API) {
	endpoint.Register(a, operation(http.MethodGet, "/v1/brake", "brake", leasehttp.Read, "what is held back, and why"), h.brake, h.log)
	endpoint.Register(a, operation(http.MethodPost, "/v1/brake/confirm", "brake-confirm", leasehttp.Operate, "say that a loss is real: let its consequences happen"), h.orderBrake("confirm"), h.log)
	endpoint.Register(a, operation(http.MethodPost, "/v1/brake/release", "brake-release", leasehttp.Operate, "let the brake of a domain go"), h.orderBrake("release"), h.log)
}

func wireBrakeState(b *fleet.BrakeState) api.BrakeState {
	wire := api.BrakeState{
		Domain: b.Domain, Engaged: b.Engaged, Code: b.Code, Reason: b.Reason, Since: b.Since, Down: b.Down, Of: b.Of,
		LetsGoMS: b.LetsGo.Milliseconds(), Text: b.Text,
	}
	if b.Let == fleet.LetConfirmed {
		by := b.By
		wire.Confirmed = &by
	}
	return wire
}

func (h *handler) brake(ctx context.Context, _ *struct{}) (*of[api.Brake], error) {
	kept, err := h.reg.Brake(ctx)
	if err != nil {
		return nil, err
	}
	states, err := brakeStates(kept)
	if err != nil {
		return nil, err
	}
	shiftBrakes(states, -time.Duration(h.skew.Load()))
	out := api.Brake{Domains: []api.BrakeState{}}
	for i := range states {
		b := wireBrakeState(&states[i])
		if b.Engaged {
			out.Engaged = true
			if b.Withheld, err = h.withheld(ctx, &states[i]); err != nil {
				return nil, err
			}
		}
		if b.Engaged || b.Confirmed != nil {
			out.Domains = append(out.Domains, b)
		}
	}
	return answer(out)
}

// withheld returns what a brake keeps from happening now.
func (h *handler) withheld(ctx context.Context, b *fleet.BrakeState) ([]api.Withheld, error) {
	var all []api.Withheld
	byID := map[string]fleet.Node{}
	for _, n := range h.Nodes() {
		byID[n.ID] = n
		if b.Code == fleet.CodeNotReady && b.Covers(n) {
			all = append(all, api.Withheld{Action: "exclusion", Node: n.ID})
		}
	}
	lapsed, err := h.reg.Lapsed(ctx)
	if err != nil {
		return nil, err
	}
	for _, o := range lapsed {
		if n, ok := byID[o.Work.Owner]; ok && o.Work.Movable && b.HoldsWork(n) {
			all = append(all, api.Withheld{Action: "takeover", Node: n.ID, Work: o.Work.ID})
		}
	}
	return all, nil
}

// orderBrake returns the handler of an operator's word, which waits until the
// active replica has taken it in, wherever that is, for as long as that takes it
// when all is well.
func (h *handler) orderBrake(what string) func(context.Context, *of[api.BrakeRequest]) (*of[api.Brake], error) {
	return func(ctx context.Context, in *of[api.BrakeRequest]) (*of[api.Brake], error) {
		b := &in.Body
		if err := (fleet.Mark{Actor: b.Actor, Reason: b.Reason}).Check(); err != nil {
			return nil, err
		}
		domain := cmp.Or(b.Domain, fleet.DomainAll)
		if err := h.engaged(ctx, domain, what); err != nil {
			return nil, err
		}
		err := h.reg.OrderBrake(ctx, registry.BrakeOrder{Domain: domain, What: what, Order: registry.Order{Actor: b.Actor, Reason: b.Reason}})
		if err != nil {
			return nil, err
		}
		h.hasten()
		poll := time.NewTicker(50 * time.Millisecond)
		defer poll.Stop()
		for until := time.Now().Add(min(2*h.cfg.Reconcile, 10*time.Second)); time.Now().Before(until); {
			kept, err := h.reg.Brake(ctx)
			if err != nil || len(kept.Orders) == 0 {
				break
			}
			select {
			case <-poll.C:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		return h.brake(ctx, nil)
	}
}

// engaged refuses a word on a brake that holds nothing.
func (h *handler) engaged(ctx context.Context, domain, what string) error {
	if len(domain) > fleet.MaxText {
		return &store.InvalidError{Field: "domain", Value: clip(domain), Rule: fmt.Sprintf("at most %d bytes", fleet.MaxText)}
	}
	kept, err := h.reg.Brake(ctx)
	if err != nil {
		return err
	}
	states, err := brakeStates(kept)
	if err != nil {
		return err
	}
	for i := range states {
		if states[i].Engaged && states[i].Domain == domain {
			return nil
		}
	}
	return api.Refuse(fleet.CodeWrongState, "no brake of domain %q is engaged: there is nothing to %s", clip(domain), what)
}
