package agent

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
)

// view is what the node knows of its orders. Only a newer complete list changes
// them (C64); whatever else comes makes the view stale.
type view struct {
	a *Agent

	mu     sync.Mutex
	known  bool // there are orders, perhaps those of a former agent
	orders api.Orders
	stale  string        // why, "" if it is not
	heard  clock.Reading // when a server last confirmed them
	lease  fence.Token   // the term under which that was asked for; 0 if none was held
}

func newView(a *Agent) *view { return &view{a: a, stale: "not heard from a server yet"} }

// restore takes in what a former agent has saved. It stays stale.
func (v *view) restore(o api.Orders) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.known, v.orders = true, o
}

func (v *view) revision() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.orders.Revision
}

// read returns the revision of the orders, and the term under which they were last
// confirmed.
func (v *view) read() (revision uint64, under fence.Token) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.orders.Revision, v.lease
}

// askUnder returns the revision with which a beat under lease asks for other orders:
// 0, which brings the list, until one was read under this term. A replica may compare
// with what it read before the term began.
func (v *view) askUnder(lease fence.Token) uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	if lease != 0 && v.lease != lease {
		return 0
	}
	return v.orders.Revision
}

// get returns the orders; none if none were ever received.
func (v *view) get() api.Orders {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.orders
}

// staleness says why the orders may not be what the server wants now; "" if they
// are confirmed.
func (v *view) staleness() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.stale == "" {
		if age := clock.Now().Elapsed(v.heard); age > v.a.cfg.TTL/2 {
			return fmt.Sprintf("not confirmed for %s", age.Round(time.Second))
		}
	}
	return v.stale
}

// confirmedUnder reports whether the orders were confirmed under this term of
// the node, and are not stale.
func (v *view) confirmedUnder(lease fence.Token) bool {
	v.mu.Lock()
	under := v.known && v.lease == lease && lease != 0
	v.mu.Unlock()
	return under && v.staleness() == ""
}

// doubt marks the view stale and changes nothing.
func (v *view) doubt(why string) {
	v.mu.Lock()
	told := v.stale != ""
	v.stale = why
	v.mu.Unlock()
	if !told {
		v.a.emit(Event{Kind: EventStale, Text: why})
	}
}

// confirm notes that a server, asked under lease, knows of no other orders.
func (v *view) confirm(revision uint64, lease fence.Token) {
	v.mu.Lock()
	if !v.known || v.orders.Revision != revision {
		v.mu.Unlock()
		return
	}
	v.fresh(lease)
}

// fresh ends with v.mu unlocked.
func (v *view) fresh(lease fence.Token) {
	was := v.stale
	v.stale, v.heard, v.lease = "", clock.Now(), max(v.lease, lease)
	v.mu.Unlock()
	if was != "" {
		v.a.emit(Event{Kind: EventFresh})
	}
}

// take judges orders that a server sent to a request made under lease. It
// reports whether they are new; they are on the disk then. The worker alone
// calls it.
func (v *view) take(o *api.Orders, lease fence.Token) (changed bool) {
	if why := wrong(o); why != "" {
		v.doubt(why)
		return false
	}
	v.mu.Lock()
	switch {
	case v.known && o.Revision < v.orders.Revision:
		have := v.orders.Revision
		v.mu.Unlock()
		v.doubt(fmt.Sprintf("a server sent revision %d, older than %d", o.Revision, have))
		return false
	case v.known && o.Revision == v.orders.Revision:
		v.fresh(lease)
		return false
	}
	before := v.orders.Intent
	v.mu.Unlock()
	// On the disk first: what was acted on must not be forgotten.
	if err := v.a.state.saveOrders(v.a.cfg.Node, *o); err != nil {
		v.a.emit(Event{Kind: EventStateFailed, Err: err})
	}
	v.mu.Lock()
	v.known, v.orders = true, *o
	v.fresh(lease)
	if o.Intent != before {
		v.a.emit(Event{Kind: EventIntent, Code: string(o.Intent)})
	}
	return true
}

// wrong says what keeps orders from being complete and readable.
func wrong(o *api.Orders) string {
	switch {
	case o == nil:
		return "empty orders"
	case !slices.Contains([]fleet.IntentState{fleet.Active, fleet.Cordoned, fleet.Draining, fleet.Drained}, o.Intent):
		return fmt.Sprintf("orders with intent %q", o.Intent)
	}
	seen := map[string]bool{}
	for _, w := range o.Work {
		if fleet.CheckID("work", w.Spec.ID) != nil || seen[w.Spec.ID] || w.Token < 1 {
			return fmt.Sprintf("orders with item %q, which is no id, is there twice or has no token", w.Spec.ID)
		}
		seen[w.Spec.ID] = true
	}
	return ""
}
