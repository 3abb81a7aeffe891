package leasehttp

import (
	"context"
	"strings"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/server/endpoint"
	"github.com/tenurehq/tenure/store"
)

type nameInput struct {
	Name string `query:"name" required:"true" doc:"the name of the lease"`
}

func (h handlers) get(ctx context.Context, in *nameInput) (*of[api.Record], error) {
	rec, err := h.st.Get(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	return answer(api.NewRecord(rec)), nil
}

type listInput struct {
	Prefix string `query:"prefix" doc:"what the names begin with; all if left out"`
	After  string `query:"after" doc:"the name after which the page begins"`
	Limit  int    `query:"limit" minimum:"1" maximum:"10000" doc:"records on the page; 10000 if left out"`
}

func (h handlers) list(ctx context.Context, in *listInput) (*of[api.Leases], error) {
	limit := in.Limit
	if limit == 0 {
		limit = maxPage
	}
	page := api.Leases{Leases: []api.Record{}}
	for rec, err := range h.st.List(ctx, in.Prefix) {
		if err != nil {
			return nil, err
		}
		if strings.Compare(rec.Name, in.After) <= 0 {
			continue
		}
		if len(page.Leases) == limit {
			page.Next = page.Leases[limit-1].Name
			break
		}
		page.Leases = append(page.Leases, api.NewRecord(rec))
	}
	return answer(page), nil
}

type historyInput struct {
	Name   string `query:"name" required:"true" doc:"the name of the lease"`
	Before int64  `query:"before" minimum:"0" maximum:"9223372036854775807" doc:"the token before which the page begins; 0 for the newest"`
	After  int64  `query:"after" minimum:"0" maximum:"9223372036854775807" doc:"the token at which it ends, which is not on it"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" doc:"terms on the page; all that the store keeps if left out"`
}

func (h handlers) history(ctx context.Context, in *historyInput) (*of[api.History], error) {
	historian, ok := h.st.(store.Historian)
	if !ok {
		return nil, unsupported("keeps no past terms")
	}
	page := api.History{Name: in.Name, Terms: []api.Term{}}
	for term, err := range historian.History(ctx, in.Name) {
		switch {
		case err != nil:
			return nil, err
		case in.Before > 0 && int64(term.Token) >= in.Before || int64(term.Token) <= in.After:
			continue
		case in.Limit > 0 && len(page.Terms) == in.Limit:
			page.Next = page.Terms[in.Limit-1].Token
			return answer(page), nil
		}
		page.Terms = append(page.Terms, api.NewTerm(term))
	}
	return answer(page), nil
}

type slotInput struct {
	Name string `query:"name" required:"true" doc:"the name of the lease"`
	Slot string `query:"slot" required:"true" doc:"the slot"`
}

func (h handlers) slot(ctx context.Context, in *slotInput) (*of[api.Slot], error) {
	slotter, ok := h.st.(store.Slotter)
	if !ok {
		return nil, unsupported("keeps no slots")
	}
	slot, err := slotter.Slot(ctx, in.Name, in.Slot)
	if err != nil {
		return nil, err
	}
	return answer(api.NewSlot(slot)), nil
}

func (h handlers) features(context.Context, *struct{}) (*of[api.Features], error) {
	f := api.NewFeatures(h.st.Features())
	if _, ok := h.st.(store.Watcher); !ok {
		f.Watch = false
	}
	return answer(f), nil
}

func (h handlers) doctor(ctx context.Context, _ *struct{}) (*of[api.Findings], error) {
	doctor, ok := h.st.(store.Doctor)
	if !ok {
		return nil, unsupported("has nothing to look at")
	}
	findings, err := doctor.Diagnose(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]api.Finding, len(findings))
	for i, f := range findings {
		out[i] = api.Finding{Code: f.Code, Severity: f.Severity, Text: f.Text, Fix: f.Fix}
	}
	return answer(api.Findings{Findings: out}), nil
}

func (h handlers) watch(ctx context.Context, in *nameInput) (<-chan endpoint.Event[api.LeaseEvent], error) {
	watcher, ok := h.st.(store.Watcher)
	if !ok {
		return nil, unsupported("cannot tell of starts and ends of terms")
	}
	events, err := watcher.Watch(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	out := make(chan endpoint.Event[api.LeaseEvent])
	go func() { // ends with events, which end with ctx
		defer close(out)
		for e := range events {
			select {
			case out <- endpoint.Event[api.LeaseEvent]{Data: api.NewLeaseEvent(e)}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}
