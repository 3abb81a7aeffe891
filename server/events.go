package server

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/endpoint"
	"github.com/tenurehq/tenure/server/leasehttp"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
)

const (
	// maxStreams is how many streams a replica keeps open. Each reads the ledger
	// once a refresh.
	maxStreams = 256
	// eventsPage is how many events a stream reads at a time: what it holds in
	// memory for a reader that is slow.
	eventsPage = 200
)

type lastEventKey struct{}

func (h *handler) registerEvents(a huma.API) {
	endpoint.Register(a, operation(http.MethodGet, "/v1/events", "events", leasehttp.Read, "entries of the ledger, in order"), h.events, h.log)
	stream := operation(http.MethodGet, "/v1/events/stream", "events-stream", leasehttp.Read, "entries of the ledger, as they come; goes on after the header Last-Event-ID, if it is there")
	endpoint.Stream(a, stream, h.follow, h.log)
}

// streamInput chooses events.
type streamInput struct {
	After int64  `query:"after" minimum:"0" maximum:"9223372036854775807" doc:"the number after which to begin"`
	Node  string `query:"node" doc:"of this node only"`
	Work  string `query:"work" doc:"of this work item only"`
	Kind  string `query:"kind" doc:"of this kind only"`
}

func (in *streamInput) filter() (registry.EventFilter, error) {
	for field, id := range map[string]string{"node": in.Node, "work": in.Work} {
		if id == "" {
			continue
		}
		if err := fleet.CheckID(field, id); err != nil {
			return registry.EventFilter{}, err
		}
	}
	if in.Kind != "" && store.CheckName(in.Kind) != nil {
		return registry.EventFilter{}, &store.InvalidError{Field: "kind", Value: clip(in.Kind), Rule: "a kind of event, such as work_takeover"}
	}
	return registry.EventFilter{After: in.After, Node: in.Node, Work: in.Work, Kind: fleet.EventKind(in.Kind)}, nil
}

type eventsInput struct {
	After  int64  `query:"after" minimum:"0" maximum:"9223372036854775807" doc:"the number after which the page begins"`
	Before int64  `query:"before" minimum:"0" maximum:"9223372036854775807" doc:"the number before which the page ends; 0 for no bound. With last it goes backwards: the next page is before the first number of this one"`
	Node   string `query:"node" doc:"of this node only"`
	Work   string `query:"work" doc:"of this work item only"`
	Kind   string `query:"kind" doc:"of this kind only"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" doc:"events on the page; 1000 if left out"`
	Last   bool   `query:"last" doc:"the newest ones, still in order"`
}

func (h *handler) events(ctx context.Context, in *eventsInput) (*of[api.Events], error) {
	f, err := (&streamInput{in.After, in.Node, in.Work, in.Kind}).filter()
	if err != nil {
		return nil, err
	}
	f.Before, f.Limit, f.Last = in.Before, in.Limit, in.Last
	events, err := h.reg.Events(ctx, f)
	if err != nil {
		return nil, err
	}
	out := api.Events{Events: nonNil(events), Next: in.After}
	if len(events) > 0 {
		out.Next = events[len(events)-1].Seq
	}
	return answer(out)
}

// follow streams the ledger. When it cannot be read the stream ends, and its
// reader opens another after the last event that it got.
func (h *handler) follow(ctx context.Context, in *streamInput) (<-chan endpoint.Event[fleet.Event], error) {
	if last, _ := ctx.Value(lastEventKey{}).(string); last != "" {
		n, err := strconv.ParseInt(last, 10, 64)
		if err != nil || n < 0 {
			return nil, &store.InvalidError{Field: "Last-Event-ID", Value: clip(last), Rule: "the number of an event"}
		}
		in.After = n
	}
	f, err := in.filter()
	if err != nil {
		return nil, err
	}
	f.Limit = eventsPage
	grown := h.grown() // before the first reading, so that nothing is missed after it
	first, err := h.reg.Events(ctx, f)
	if err != nil {
		return nil, err
	}
	out := make(chan endpoint.Event[fleet.Event])
	go h.feed(ctx, f, first, grown, out)
	return out, nil
}

// feed sends events until ctx ends or the ledger cannot be read.
func (h *handler) feed(ctx context.Context, f registry.EventFilter, page []fleet.Event, grown <-chan struct{}, out chan<- endpoint.Event[fleet.Event]) {
	defer close(out)
	poll := time.NewTicker(h.cfg.Refresh) // other replicas write too
	defer poll.Stop()
	for {
		for e := range slices.Values(page) {
			select {
			case out <- endpoint.Event[fleet.Event]{ID: e.Seq, Data: e}:
				f.After = e.Seq
			case <-ctx.Done():
				return
			}
		}
		if len(page) < eventsPage {
			select {
			case <-grown:
			case <-poll.C:
			case <-ctx.Done():
				return
			}
		}
		grown = h.grown()
		var err error
		if page, err = h.reg.Events(ctx, f); err != nil {
			return
		}
	}
}
