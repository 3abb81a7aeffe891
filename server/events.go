package server

import (
	"cmp"
	"context"
	"fmt"
	"math"
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
	// eventsLimit is how many events a page has at most, as registry.EventFilter has it.
	eventsLimit = 1000
)

type lastEventKey struct{}

func (h *handler) registerEvents(a huma.API) {
	endpoint.Register(a, operation(http.MethodGet, "/v1/events", "events", leasehttp.Read, "entries of the ledger, in order"), h.events, h.log)
	stream := operation(http.MethodGet, "/v1/events/stream", "events-stream", leasehttp.Read, "entries of the ledger, as they come; goes on after the header Last-Event-ID, if it is there. In the place of entries that were dropped it has one of the kind "+string(api.EventPruned))
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
	page, err := h.reg.EventPage(ctx, f)
	if err != nil {
		return nil, err
	}
	out := api.Events{Events: nonNil(page.Events), Next: in.After}
	if n := len(page.Events); n > 0 {
		out.Next = page.Events[n-1].Seq
	}
	// What is before a full page of the last entries was not asked for yet.
	if page.Pruned > f.After && (!f.Last || len(page.Events) < cmp.Or(f.Limit, eventsLimit)) {
		out.Pruned, out.Text = true, h.prunedText(page.Pruned)
	}
	return answer(out)
}

// prunedText says for people up to which entry the ledger was dropped, and why.
func (h *handler) prunedText(last int64) string {
	age := h.cfg.Retention.Events.String()
	if hours := h.cfg.Retention.Events.Hours(); math.Mod(hours, 24) == 0 {
		age = fmt.Sprintf("%.0fd", hours/24)
	}
	return fmt.Sprintf("events before %d were dropped (retention %s, at most %d)", last+1, age, h.cfg.Retention.MaxEvents)
}

// withPruned returns the entries of a page that begins after a number, with an
// EventPruned in the place of those that were dropped. If the page is full it may be
// that those come after it.
func (h *handler) withPruned(page registry.EventPage, after int64) []fleet.Event {
	if page.Pruned <= after {
		return page.Events
	}
	i, found := slices.BinarySearchFunc(page.Events, page.Pruned, func(e fleet.Event, seq int64) int { return cmp.Compare(e.Seq, seq) })
	if i == eventsPage {
		return page.Events
	}
	notice := fleet.Event{Seq: page.Pruned, At: h.dbNow(), Kind: api.EventPruned, Actor: h.cfg.Name, Text: h.prunedText(page.Pruned)}
	if found { // it was read just before it was dropped
		page.Events[i] = notice
		return page.Events
	}
	return slices.Insert(page.Events, i, notice)
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
	first, err := h.reg.EventPage(ctx, f)
	if err != nil {
		return nil, err
	}
	out := make(chan endpoint.Event[fleet.Event])
	go h.feed(ctx, f, first, grown, out)
	return out, nil
}

// feed sends events until ctx ends or the ledger cannot be read.
func (h *handler) feed(ctx context.Context, f registry.EventFilter, page registry.EventPage, grown <-chan struct{}, out chan<- endpoint.Event[fleet.Event]) {
	defer close(out)
	poll := time.NewTicker(h.cfg.Refresh) // other replicas write too
	defer poll.Stop()
	for live := false; ; { // once it has the newest entry, it has had all that are dropped later
		full := len(page.Events) == eventsPage
		if !live {
			page.Events = h.withPruned(page, f.After)
		}
		live = !full
		for e := range slices.Values(page.Events) {
			select {
			case out <- endpoint.Event[fleet.Event]{ID: e.Seq, Data: e}:
				f.After = e.Seq
			case <-ctx.Done():
				return
			}
		}
		if !full {
			select {
			case <-grown:
			case <-poll.C:
			case <-ctx.Done():
				return
			}
		}
		grown = h.grown()
		var err error
		if page, err = h.reg.EventPage(ctx, f); err != nil {
			return
		}
	}
}
