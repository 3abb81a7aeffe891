package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/registry"
)

// stream opens the stream of events.
func (b *bed) stream(path string, header ...string) (next func() fleet.Event) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute) // what never comes is not waited for
	b.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.url+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		b.t.Fatalf("%s: got %d %s", path, resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	lines := bufio.NewScanner(resp.Body)
	return func() fleet.Event {
		b.t.Helper()
		id := ""
		for lines.Scan() {
			if n, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
				id = n
			}
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				var e fleet.Event
				if err := json.Unmarshal([]byte(data), &e); err != nil || id != strconv.FormatInt(e.Seq, 10) {
					b.t.Fatalf("event %q with id %q: %v", data, id, err)
				}
				return e
			}
		}
		b.t.Fatalf("the stream ended: %v", lines.Err())
		return fleet.Event{}
	}
}

// TestEventStream: events come as they happen, also those that another replica
// writes, and a reader goes on after the last one that it saw.
func TestEventStream(t *testing.T) {
	t.Parallel()
	b := newBed(t, Config{Refresh: 50 * time.Millisecond}, HTTPConfig{})
	next := b.stream("/v1/events/stream")
	b.join("n1")
	joined := next()
	if joined.Kind != fleet.EventJoined || joined.Node != "n1" {
		t.Fatalf("first event: got %+v, want that n1 joined", joined)
	}
	must[api.Node](b, "POST", "/v1/nodes/n1/cordon", api.CordonRequest{Actor: "ann", Reason: "look"})
	cordoned := next()
	if cordoned.Kind != fleet.EventCordoned || cordoned.Actor != "ann" {
		t.Errorf("got %+v, want the cordon", cordoned)
	}
	// Another replica writes to the same ledger, and tells this one nothing.
	if _, err := b.reg.Append(t.Context(), registry.Fence{}, fleet.Event{Kind: fleet.EventStuck, Work: "w1", Actor: "other"}); err != nil {
		t.Fatal(err)
	}
	if e := next(); e.Kind != fleet.EventStuck {
		t.Errorf("got %+v, want what another replica wrote", e)
	}
	after := strconv.FormatInt(joined.Seq, 10)
	if e := b.stream("/v1/events/stream?after=" + after)(); e.Seq != cordoned.Seq {
		t.Errorf("after %s: got %+v, want the cordon", after, e)
	}
	if e := b.stream("/v1/events/stream?after=0", "Last-Event-ID", after)(); e.Seq != cordoned.Seq {
		t.Errorf("Last-Event-ID %s: got %+v, want the cordon", after, e)
	}
	if e := b.stream("/v1/events/stream?work=w1")(); e.Kind != fleet.EventStuck {
		t.Errorf("of work w1: got %+v", e)
	}
	if a := b.send("GET", "/v1/events/stream", nil, "Last-Event-ID", "x"); a.status != 400 {
		t.Errorf("Last-Event-ID x: got %d, want 400", a.status)
	}
	page := must[api.Events](b, "GET", "/v1/events?limit=1&after="+after, nil)
	if len(page.Events) != 1 || page.Next != cordoned.Seq {
		t.Errorf("page: got %+v", page)
	}
	last := must[api.Events](b, "GET", "/v1/events?last=true&limit=2", nil)
	if len(last.Events) != 2 || last.Events[1].Kind != fleet.EventStuck || last.Events[0].Seq >= last.Events[1].Seq {
		t.Errorf("last: got %+v", last)
	}
	if none := must[api.Events](b, "GET", "/v1/events?node=nobody", nil); none.Events == nil || len(none.Events) > 0 {
		t.Errorf("of nobody: got %+v, want []", none)
	}
}

// TestStreamLimit: so many streams and not one more.
func TestStreamLimit(t *testing.T) {
	t.Parallel()
	b := newIdleBed(t, Config{}, HTTPConfig{})
	h, ok := b.Handler(HTTPConfig{}).(*handler)
	if !ok {
		t.Fatal("Handler returns another type")
	}
	for range maxStreams {
		h.streams <- struct{}{}
	}
	b.run()
	rec, req := newRecorder(), newRequest(t, "GET", "http://localhost/v1/events/stream")
	h.ServeHTTP(rec, req)
	if rec.Code != 503 || rec.Header().Get("Retry-After") == "" {
		t.Errorf("got %d %s, want 503 and Retry-After", rec.Code, rec.Body)
	}
}

// TestPrunedCursor: whoever asks for events that were dropped is told so, in a page
// and in a stream, once and in their place; whoever had them is not.
func TestPrunedCursor(t *testing.T) {
	t.Parallel()
	b := newBed(t, Config{Refresh: 50 * time.Millisecond}, HTTPConfig{})
	add := func(n int) {
		t.Helper()
		many := make([]fleet.Event, n)
		for i := range many {
			many[i] = fleet.Event{Kind: fleet.EventSuspect, Node: "n" + strconv.Itoa(i)}
		}
		if v, err := b.reg.Append(t.Context(), registry.Fence{}, many...); err != nil || v.Code != "" {
			t.Fatal(v, err)
		}
	}
	prune := func(keep int64) {
		t.Helper()
		if _, _, v, err := b.reg.Prune(t.Context(), registry.Fence{}, registry.Retention{MaxEvents: keep}); err != nil || v.Code != "" {
			t.Fatal(v, err)
		}
	}
	add(10)
	if page := must[api.Events](b, "GET", "/v1/events?last=true", nil); page.Pruned || page.Text != "" {
		t.Errorf("nothing was dropped: got %+v", page)
	}
	live := b.stream("/v1/events/stream?node=n0")
	end := live().Seq + 9
	prune(4)
	first := end - 3
	const text = "events before %d were dropped (retention 30d, at most 1000000)"
	for query, want := range map[string]bool{
		"after=" + strconv.FormatInt(end-5, 10): true, "after=" + strconv.FormatInt(first-1, 10): false, "after=0&limit=2": true, "after=0&node=nobody": true,
		"last=true&limit=4": false, "last=true&limit=5": true, "last=true&before=" + strconv.FormatInt(first, 10): true,
	} {
		page := must[api.Events](b, "GET", "/v1/events?"+query, nil)
		if page.Pruned != want || want != (page.Text == fmt.Sprintf(text, first)) {
			t.Errorf("%s: got pruned %v, %q, want %v", query, page.Pruned, page.Text, want)
		}
	}
	next := b.stream("/v1/events/stream?after=" + strconv.FormatInt(end-5, 10))
	if e := next(); e.Kind != api.EventPruned || e.Seq != first-1 || e.Text != fmt.Sprintf(text, first) {
		t.Errorf("got %+v, want that events before %d were dropped", e, first)
	}
	for i := range int64(4) {
		if e := next(); e.Seq != first+i || e.Kind != fleet.EventSuspect {
			t.Errorf("got %+v, want number %d", e, first+i)
		}
	}
	if e := b.stream("/v1/events/stream", "Last-Event-ID", strconv.FormatInt(first-1, 10))(); e.Seq != first || e.Kind != fleet.EventSuspect {
		t.Errorf("after the notice: got %+v, want number %d", e, first)
	}

	// One that follows has had what is dropped afterwards, and is told nothing.
	for i := range int64(2) {
		add(10)
		if e := live(); e.Seq != end+10*i+1 || e.Kind != fleet.EventSuspect {
			t.Errorf("of one that follows: got %+v, want number %d and no notice", e, end+10*i+1)
		}
		prune(1)
	}

	// More than a stream reads at a time.
	add(eventsPage + 5)
	end += 20 + eventsPage + 5
	from := end - eventsPage - 2
	next = b.stream("/v1/events/stream?after=" + strconv.FormatInt(from, 10))
	for seq := from + 1; seq <= end; seq++ {
		if e := next(); e.Seq != seq || e.Kind != fleet.EventSuspect {
			t.Fatalf("got %+v, want number %d", e, seq)
		}
	}
}
