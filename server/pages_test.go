package server

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
)

// TestPages: the ledger and the terms of a lease are read in pages from either end,
// and each entry stands on one page.
func TestPages(t *testing.T) {
	t.Parallel()
	b := newBed(t, Config{}, HTTPConfig{})
	for i := range 7 {
		if v, err := b.reg.Append(t.Context(), registry.Fence{}, fleet.Event{Kind: fleet.EventSuspect, Node: fmt.Sprint("n", i)}); err != nil || v.Code != "" {
			t.Fatal(v, err)
		}
	}
	var forth, back []string
	for after, next := int64(0), int64(-1); next != after; {
		after = max(next, 0)
		page := must[api.Events](b, http.MethodGet, fmt.Sprintf("/v1/events?kind=node_suspect&limit=3&after=%d", after), nil)
		for _, e := range page.Events {
			forth = append(forth, e.Node)
		}
		next = page.Next
	}
	for before := int64(0); before >= 0; {
		page := must[api.Events](b, http.MethodGet, fmt.Sprintf("/v1/events?kind=node_suspect&limit=3&last=true&before=%d", before), nil)
		before = -1
		for i, e := range slices.Backward(page.Events) {
			back = append(back, e.Node)
			if i == 0 {
				before = e.Seq
			}
		}
	}
	slices.Reverse(back)
	if want := []string{"n0", "n1", "n2", "n3", "n4", "n5", "n6"}; !slices.Equal(forth, want) || !slices.Equal(back, want) {
		t.Errorf("got %q forwards and %q backwards, want %q", forth, back, want)
	}

	for range 5 {
		attempt := store.NewAttempt()
		rec, err := b.st.Acquire(t.Context(), store.Request{Name: "job", Holder: "h", TTL: time.Minute, Attempt: attempt})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.st.Release(t.Context(), []store.Grant{{Name: "job", Token: rec.Token, Attempt: store.NewAttempt(), Known: []store.Attempt{attempt}}}); err != nil {
			t.Fatal(err)
		}
	}
	var pages []string
	for before := "0"; before != ""; {
		page := must[api.History](b, http.MethodGet, "/v1/leases/history?name=job&limit=2&before="+before, nil)
		text := ""
		for _, term := range page.Terms {
			text += term.Token.String()
		}
		pages, before = append(pages, text), ""
		if page.Next > 0 {
			before = page.Next.String()
		}
	}
	if want := []string{"54", "32", "1"}; !slices.Equal(pages, want) {
		t.Errorf("terms: got %q, want %q", pages, want)
	}
	if page := must[api.History](b, http.MethodGet, "/v1/leases/history?name=job&after=3", nil); len(page.Terms) != 2 || page.Next != 0 {
		t.Errorf("terms after the third: got %+v, want two", page)
	}
	for _, bad := range []string{"/v1/events?before=-1", "/v1/takeovers?before=x", "/v1/leases/history?name=job&limit=0", "/v1/leases/history?name=job&before=-1"} {
		if a := b.send(http.MethodGet, bad, nil); a.status != http.StatusBadRequest {
			t.Errorf("%s: got %d %s, want 400", bad, a.status, a.body)
		}
	}
}

// TestRetention: one setting leaves the others at their defaults, and takeovers are
// kept as long as somebody asks for them.
func TestRetention(t *testing.T) {
	t.Parallel()
	cfg, err := Config{Retention: registry.Retention{Events: time.Minute}}.Filled()
	if err != nil {
		t.Fatal(err)
	}
	day := 24 * time.Hour
	flap := fleet.WorkFlapRule()
	if want := (registry.Retention{Events: time.Minute, Takeovers: flap.Window + flap.Quiet, MaxEvents: 1_000_000, Ended: 7 * day, Removed: day}); cfg.Retention != want {
		t.Errorf("got %+v, want %+v", cfg.Retention, want)
	}
	if cfg, err = (Config{}).Filled(); err != nil || cfg.Retention.Events != 30*day || cfg.Retention.Takeovers != 30*day {
		t.Errorf("defaults: got %+v, %v, want 30 days", cfg.Retention, err)
	}
}

// TestForgetOld: the reconciler drops old history in several batches, and one that
// was deposed drops none.
func TestForgetOld(t *testing.T) {
	t.Parallel()
	b := newIdleBed(t, Config{}, HTTPConfig{})
	ctx := t.Context()
	var many []fleet.Event
	for range registry.PruneBatch + 1 {
		many = append(many, fleet.Event{Kind: fleet.EventSuspect})
	}
	for range 2 {
		if v, err := b.reg.Append(ctx, registry.Fence{}, many...); err != nil || v.Code != "" {
			t.Fatal(v, err)
		}
	}
	b.cfg.Retention = registry.Retention{MaxEvents: 5}
	count := func() int {
		events, err := b.reg.Events(ctx, registry.EventFilter{})
		if err != nil {
			t.Fatal(err)
		}
		return len(events)
	}
	rec, err := b.st.Acquire(ctx, store.Request{Name: ReconcilerLease, Holder: "h", TTL: time.Minute, Attempt: store.NewAttempt()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newReconciler(b.Server, rec.Token-1).forgetOld(ctx); err == nil || count() < 100 {
		t.Errorf("deposed: got %v with %d events left, want a refusal that changed nothing", err, count())
	}
	more, err := newReconciler(b.Server, rec.Token).forgetOld(ctx)
	if err != nil || more || count() != 5 {
		t.Errorf("got %v, %v with %d events left, want the newest 5", more, err, count())
	}
}
