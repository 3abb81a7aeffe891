package api

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// Store keeps its leases in the store of a tenure server, so that a holder needs
// no credentials for the database, and need not be on its host. Every call is one
// request to one replica and is never repeated; the call after one that got no
// answer goes to the next replica, over a fresh connection. It is safe for
// concurrent use.
//
// Whatever is not a decoded answer of a tenure server matches
// store.ErrUnavailable: it says nothing of the term. A refused credential matches
// store.ErrPermission.
type Store struct {
	client   *Client
	features atomic.Pointer[store.Features]
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Watcher   = (*Store)(nil)
	_ store.Historian = (*Store)(nil)
	_ store.Slotter   = (*Store)(nil)
	_ store.Cleaner   = (*Store)(nil)
	_ store.Doctor    = (*Store)(nil)
)

// NewStore returns a store over c, which stays the caller's. It sends nothing.
func NewStore(c *Client) *Store { return &Store{client: c} }

const (
	leasesPath = "/v1/leases"
	// featuresTime bounds how long Features waits for a server.
	featuresTime = 2 * time.Second
	// pageSize is how many records List asks for at a time.
	pageSize = 1000
)

// Features returns what the server's store can ensure, for any host. It asks the
// server until one answered, for up to 2 s; where none does, it returns what
// holds for every tenure server, with the least TTL of a store on a disk.
func (s *Store) Features() store.Features {
	ctx, cancel := context.WithTimeout(context.Background(), featuresTime)
	defer cancel()
	f, err := s.fetchFeatures(ctx)
	if err != nil {
		const unknown = "unknown: no server answered"
		return store.Features{
			Backend: "tenure", Clock: store.ClockServer, MinTTL: 50 * time.Millisecond, Granularity: time.Microsecond,
			BatchRenew: true, Watch: true, Reach: reach, TokensReset: unknown, LosesWrites: unknown, ClockCaution: unknown,
		}
	}
	return f
}

const reach = "any host"

func (s *Store) fetchFeatures(ctx context.Context) (store.Features, error) {
	if f := s.features.Load(); f != nil {
		return *f, nil
	}
	var w Features
	err := s.get(ctx, "/features", nil, &w, func() string { return missing(w.Backend == "" || w.MinTTLUS <= 0, "backend") })
	if err != nil {
		return store.Features{}, err
	}
	f := store.Features{
		Backend: "tenure/" + w.Backend, Clock: w.Clock, MinTTL: duration(w.MinTTLUS), Granularity: max(duration(w.GranularityUS), time.Microsecond),
		BatchRenew: w.BatchRenew, Watch: w.Watch, Reach: reach, TokensReset: w.TokensReset, LosesWrites: w.LosesWrites, ClockCaution: w.ClockCaution,
	}
	s.features.Store(&f)
	return f, nil
}

// leastTTL returns the shortest TTL that is known to be granted; the server
// judges what passes here.
func (s *Store) leastTTL() time.Duration {
	if f := s.features.Load(); f != nil {
		return f.MinTTL
	}
	return 1
}

func (s *Store) get(ctx context.Context, path string, query url.Values, out any, check func() string) error {
	return s.client.send(ctx, call{lane: &s.client.calls, method: http.MethodGet, path: leasesPath + path, query: query, once: true}, out, check)
}

func (s *Store) post(ctx context.Context, path string, body, out any, check func() string) error {
	return s.client.send(ctx, call{lane: &s.client.calls, method: http.MethodPost, path: leasesPath + path, body: body, once: true}, out, check)
}

// Acquire implements store.Store. A TTL or min-hold that is no whole number of
// microseconds is rounded up to one.
func (s *Store) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	if err := req.Check(s.leastTTL()); err != nil {
		return store.Record{}, err
	}
	var w Record
	err := s.post(ctx, "/acquire", NewAcquireRequest(req), &w, func() string {
		if w.Name != req.Name || w.Attempt != req.Attempt || w.Status != store.Held || w.Token < 1 {
			return "it does not grant what was asked for"
		}
		return ""
	})
	if err != nil {
		return store.Record{}, err
	}
	return w.Store(), nil
}

// Renew implements store.Store: one request for all grants, on connections that
// nothing but renewals and heartbeats uses.
func (s *Store) Renew(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	least := s.leastTTL()
	w := RenewRequest{Grants: make([]RenewGrant, len(grants))}
	for i := range grants {
		g := &grants[i]
		if err := g.CheckRenew(least); err != nil {
			return nil, err
		}
		w.Grants[i] = RenewGrant{Name: g.Name, Token: g.Token, TTLUS: Microseconds(g.TTL), Attempt: g.Attempt, Known: g.Known}
	}
	return s.batch(ctx, call{lane: &s.client.beats, path: "/renew", body: w}, grants, func(i int, r *Record) bool {
		return r.Status == store.Held && r.Token == grants[i].Token && r.Attempt == grants[i].Attempt
	})
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	w := ReleaseRequest{Grants: make([]ReleaseGrant, len(grants))}
	for i := range grants {
		g := &grants[i]
		if err := g.CheckRelease(); err != nil {
			return nil, err
		}
		w.Grants[i] = ReleaseGrant{Name: g.Name, Token: g.Token, Attempt: g.Attempt, Known: g.Known, HandoffTo: g.HandoffTo}
	}
	return s.batch(ctx, call{lane: &s.client.calls, path: "/release", body: w}, grants, func(int, *Record) bool { return true })
}

// batch sends a request with one result for each grant. done reports whether a
// record is what a grant without an error leaves.
func (s *Store) batch(ctx context.Context, r call, grants []store.Grant, done func(int, *Record) bool) ([]store.Result, error) {
	r.method, r.path, r.once = http.MethodPost, leasesPath+r.path, true
	var w Results
	err := s.client.send(ctx, r, &w, func() string {
		if len(w.Results) != len(grants) {
			return fmt.Sprintf("it has %d results for %d grants", len(w.Results), len(grants))
		}
		for i := range w.Results {
			rec := w.Results[i].Record
			if rec != nil && rec.Name != grants[i].Name {
				return about(rec.Name, grants[i].Name)
			}
			if w.Results[i].Code == "" && (rec == nil || !done(i, rec)) {
				return fmt.Sprintf("it does not say what became of %q", grants[i].Name)
			}
		}
		return ""
	})
	if err != nil {
		return nil, err
	}
	results := make([]store.Result, len(grants))
	for i := range results {
		results[i] = w.Results[i].Store()
	}
	return results, nil
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, name string) (store.Record, error) {
	if err := store.CheckName(name); err != nil {
		return store.Record{}, err
	}
	var w Record
	if err := s.get(ctx, "/get", url.Values{"name": {name}}, &w, func() string { return about(w.Name, name) }); err != nil {
		return store.Record{}, err
	}
	return w.Store(), nil
}

// List implements store.Store. It reads pages of 1,000, each of one instant.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		if err := store.CheckPrefix(prefix); err != nil {
			yield(store.Record{}, err)
			return
		}
		query := url.Values{"limit": {strconv.Itoa(pageSize)}}
		if prefix != "" {
			query.Set("prefix", prefix)
		}
		for after := ""; ; {
			var page Leases
			err := s.get(ctx, "", query, &page, func() string { return page.wrong(after) })
			if err != nil {
				yield(store.Record{}, err)
				return
			}
			for i := range page.Leases {
				if !yield(page.Leases[i].Store(), nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			after = page.Next
			query.Set("after", after)
		}
	}
}

// wrong says what is wrong with the page that follows after.
func (l *Leases) wrong(after string) string {
	if l.Leases == nil {
		return missing(true, "leases")
	}
	for i := range l.Leases {
		if l.Leases[i].Name <= after {
			return "it is not in order"
		}
		after = l.Leases[i].Name
	}
	if l.Next != "" && (len(l.Leases) == 0 || l.Next != after) {
		return "its pages lead nowhere"
	}
	return ""
}

// Revoke implements store.Store.
func (s *Store) Revoke(ctx context.Context, name string, token fence.Token, rev store.Revocation) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	if err := rev.Check(); err != nil {
		return err
	}
	body := RevokeRequest{Name: name, Token: token, Why: rev.Why, By: rev.By, Now: rev.Now, HandoffTo: rev.HandoffTo}
	var w TermRef
	return s.post(ctx, "/revoke", body, &w, func() string { return about(w.Name, name) })
}

// RaiseFloor implements store.Store.
func (s *Store) RaiseFloor(ctx context.Context, name string, floor fence.Token) error {
	if err := store.CheckFloor(name, floor); err != nil {
		return err
	}
	body := FloorRequest{Name: name, All: name == "", Floor: floor}
	var w FloorRequest
	return s.post(ctx, "/floor", body, &w, func() string {
		if w != body {
			return "it is about another floor"
		}
		return ""
	})
}

// Done implements store.Slotter.
func (s *Store) Done(ctx context.Context, g store.Grant, slot string) error {
	if err := g.CheckRelease(); err != nil {
		return err
	}
	if err := store.CheckSlot(slot); err != nil {
		return err
	}
	want := SlotRef{Name: g.Name, Slot: slot}
	var w SlotRef
	return s.post(ctx, "/done", DoneRequest{Name: g.Name, Token: g.Token, Attempt: g.Attempt, Known: g.Known, Slot: slot}, &w, func() string {
		if w != want {
			return "it is about another slot"
		}
		return ""
	})
}

// Slot implements store.Slotter.
func (s *Store) Slot(ctx context.Context, name, slot string) (store.Slot, error) {
	if err := store.CheckName(name); err != nil {
		return store.Slot{}, err
	}
	if err := store.CheckSlot(slot); err != nil {
		return store.Slot{}, err
	}
	var w Slot
	err := s.get(ctx, "/slot", url.Values{"name": {name}, "slot": {slot}}, &w, func() string {
		if w.Name != name || w.Slot != slot {
			return "it is about another slot"
		}
		return ""
	})
	if err != nil {
		return store.Slot{}, err
	}
	return w.Store(), nil
}

// Clean implements store.Cleaner. An idle time is rounded up to microseconds.
func (s *Store) Clean(ctx context.Context, idle time.Duration) (int, error) {
	if idle < 0 || idle > store.MaxHold {
		return 0, &store.InvalidError{Field: "idle", Value: idle.String(), Rule: fmt.Sprintf("from 0s to %s", store.MaxHold)}
	}
	w := Cleaned{Removed: -1}
	if err := s.post(ctx, "/clean", CleanRequest{IdleUS: Microseconds(idle)}, &w, func() string { return missing(w.Removed < 0, "removed") }); err != nil {
		return 0, err
	}
	return w.Removed, nil
}

// History implements store.Historian.
func (s *Store) History(ctx context.Context, name string) iter.Seq2[store.Term, error] {
	return func(yield func(store.Term, error) bool) {
		if err := store.CheckName(name); err != nil {
			yield(store.Term{}, err)
			return
		}
		var w History
		err := s.get(ctx, "/history", url.Values{"name": {name}}, &w, func() string {
			if w.Terms == nil {
				return missing(true, "terms")
			}
			return about(w.Name, name)
		})
		if err != nil {
			yield(store.Term{}, err)
			return
		}
		for i := range w.Terms {
			if !yield(w.Terms[i].Store(), nil) {
				return
			}
		}
	}
}

// Diagnose implements store.Doctor: the server looks at its database.
func (s *Store) Diagnose(ctx context.Context) ([]store.Finding, error) {
	var w Findings
	if err := s.get(ctx, "/doctor", nil, &w, func() string { return missing(w.Findings == nil, "findings") }); err != nil {
		return nil, err
	}
	all := make([]store.Finding, len(w.Findings))
	for i, f := range w.Findings {
		all[i] = store.Finding{Code: f.Code, Severity: f.Severity, Text: f.Text, Fix: f.Fix}
	}
	return all, nil
}

// Watch implements store.Watcher, with one connection for each watch. A slow
// reader gets the newest event only.
func (s *Store) Watch(ctx context.Context, name string) (<-chan store.Event, error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	stream, err := s.client.open(ctx, leasesPath+"/watch", url.Values{"name": {name}})
	if err != nil {
		return nil, err
	}
	events := make(chan store.Event, 1)
	go func() { // ends with the stream, which ends with ctx
		defer close(events)
		defer stream.close()
		for {
			data, err := stream.next()
			if err != nil {
				return // the reader sees the channel close, and asks
			}
			var w LeaseEvent
			if whole(data, &w) != nil || w.Name != name {
				return
			}
			select {
			case <-events:
			default:
			}
			events <- store.Event{Name: w.Name, Held: w.Held, Remaining: duration(w.RemainingUS), Waiters: max(w.Waiters, 1)}
		}
	}()
	return events, nil
}
