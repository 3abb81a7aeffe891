package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/registry"
)

// TestStaleNegative: two replicas whose caches are never refreshed, hosts that join
// at the other replica, renew late and leave. The only room is always on a host that
// the replica which is asked has not heard of, or holds for lapsed or full. No
// placement is refused while a host has room, nothing is oversubscribed, and no
// lookup says "lapsed" or "no owner" of what the database's history shows as owned.
func TestStaleNegative(t *testing.T) {
	both(t, func(t *testing.T, kind registry.Dialect) {
		cfg := Config{Interval: 2 * time.Second, NodeTTL: 10 * time.Second, Refresh: 5 * time.Second} // the longest that is allowed
		d := newDatabase(t, kind)
		beds := []*bed{d.replica(cfg), d.replica(cfg)}
		rounds, slots := sized(15, 500), 20
		var mu sync.Mutex
		var placed []string // work on hosts that stay
		var lookups, negatives atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		var lookers sync.WaitGroup
		defer lookers.Wait()
		defer cancel()
		for i := range 4 {
			lookers.Go(func() {
				for n := i; ctx.Err() == nil; n++ {
					mu.Lock()
					work := ""
					if len(placed) > 0 {
						work = placed[n*7919%len(placed)]
					}
					mu.Unlock()
					if work == "" {
						wait(5 * time.Millisecond)
						continue
					}
					asked := time.Now()
					o, err := beds[n%2].Owner(ctx, work)
					if ctx.Err() != nil {
						return
					}
					lookups.Add(1)
					if err != nil {
						t.Errorf("lookup of %s: %v", work, err)
						return
					}
					if o.Answer != api.OwnerFound {
						negatives.Add(1)
						if !d.wasOver(t, beds[0], work, asked, time.Now()) {
							t.Errorf("lookup of %s: %+v, and the history shows it as owned then", work, o)
						}
					}
					wait(2 * time.Millisecond)
				}
			})
		}
		var leavers []*agent
		placements := 0
		for round := range rounds {
			joins, asked := beds[round%2], beds[(round+1)%2]
			a := joins.newAgent(fmt.Sprintf("h%04d", round), "i1", fleet.Facts{Capacity: fleet.Resources{"slots": int64(slots)}})
			if round%2 == 1 {
				a.every *= 2 // it renews late
			}
			a.start()
			var all sync.WaitGroup
			ids := make([]string, slots)
			for i := range ids {
				ids[i] = fmt.Sprintf("w%04d-%02d", round, i)
				all.Go(func() {
					w, _, err := asked.Submit(ctx, fleet.Spec{ID: ids[i], Command: []string{"true"}, Request: fleet.Request{Resources: fleet.Resources{"slots": 1}}}, "test", false)
					if err != nil || w.Owner != a.id {
						t.Errorf("placement of %s: %q, %v; host %s has room", ids[i], w.Owner, err, a.id)
					}
				})
			}
			all.Wait()
			placements += slots
			// Now everything is full, and that is true.
			_, _, err := joins.Submit(ctx, fleet.Spec{ID: fmt.Sprint("over", round), Command: []string{"true"}, Request: fleet.Request{Resources: fleet.Resources{"slots": 1}}}, "test", false)
			if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != string(fleet.CodeNoCapacity) || e.Counts[fleet.Insufficient("slots")] == 0 {
				t.Errorf("placement on a full fleet: %v; want no_capacity with its counts", err)
			}
			mu.Lock()
			placed = append(placed, ids...)
			mu.Unlock()
			if round%3 == 2 {
				leavers = append(leavers, a)
			}
			if len(leavers) > 2 {
				leavers[0].goodbye(beds[0])
				leavers = leavers[1:]
			}
			if t.Failed() {
				break
			}
		}
		target := int64(sized(1_000, 10_000))
		if !t.Failed() {
			for deadline := time.Now().Add(2 * time.Minute); lookups.Load() < target && time.Now().Before(deadline); {
				wait(10 * time.Millisecond)
			}
		}
		cancel()
		lookers.Wait()
		nodes, _, err := beds[0].reg.Nodes(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes {
			if n.Reserved["slots"] > int64(slots) {
				t.Errorf("%s has %d of %d slots reserved", n.ID, n.Reserved["slots"], slots)
			}
		}
		t.Logf("%d placements, %d lookups, %d of them negative", placements, lookups.Load(), negatives.Load())
	})
}

// wasOver reports whether the database's history agrees that nobody was to be found
// who had an item at some moment of a span: the term of its owner had ended.
func (d *database) wasOver(t testing.TB, b *bed, work string, from, to time.Time) bool {
	w, ok, err := b.reg.Work(context.Background(), work)
	if err != nil || !ok || !w.State.Owned() {
		t.Errorf("history of %s: %+v, %v", work, w, err)
		return false
	}
	// Newest first: what lies between two terms, or after the last, is nobody's time.
	next := time.Now()
	for term, err := range b.st.History(context.Background(), fleet.LeaseName(w.Owner)) {
		if err != nil {
			t.Errorf("history of %s: %v", w.Owner, err)
			return false
		}
		if !term.EndedAt.IsZero() && !term.EndedAt.After(to) && !next.Before(from) {
			return true
		}
		next = term.AcquiredAt
	}
	return false
}

// TestConcurrentPlacements: 200 placements at once through two replicas for 100
// places: 100 get one, the others are refused, and no host has more than it can.
func TestConcurrentPlacements(t *testing.T) {
	both(t, func(t *testing.T, kind registry.Dialect) {
		cfg := Config{Interval: 2 * time.Second, NodeTTL: 20 * time.Second, Refresh: 10 * time.Second}
		d := newDatabase(t, kind)
		beds := []*bed{d.replica(cfg), d.replica(cfg)}
		beds[0].crowd("h", 10, func(int) fleet.Facts { return fleet.Facts{Capacity: fleet.Resources{"slots": 10}} })
		var yes, no atomic.Int64
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				_, _, err := beds[i%2].Submit(t.Context(), fleet.Spec{ID: fmt.Sprint("w", i), Command: []string{"true"}, Request: fleet.Request{Resources: fleet.Resources{"slots": 1}}}, "test", false)
				e, refused := errors.AsType[*api.Error](err)
				switch {
				case err == nil:
					yes.Add(1)
				case refused && e.Code == string(fleet.CodeNoCapacity):
					no.Add(1)
				default:
					t.Errorf("placement %d: %v", i, err)
				}
			})
		}
		all.Wait()
		if yes.Load() != 100 || no.Load() != 100 {
			t.Errorf("%d placed and %d refused, want 100 and 100", yes.Load(), no.Load())
		}
		nodes, _, err := beds[0].reg.Nodes(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes {
			if n.Reserved["slots"] != 10 {
				t.Errorf("%s has %d of 10 slots reserved", n.ID, n.Reserved["slots"])
			}
		}
	})
}
