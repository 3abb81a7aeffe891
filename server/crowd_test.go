package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
)

// long reports whether the tests are to run in their full form, which takes
// minutes: TENURE_FLEET_LONG=1.
func long() bool { return os.Getenv("TENURE_FLEET_LONG") == "1" }

// sized chooses between the normal form of a test and its full form.
func sized[T any](normal, full T) T {
	if long() {
		return full
	}
	return normal
}

// agent is a node that beats by itself, past HTTP. The zero value of each switch
// is that of a healthy one.
type agent struct {
	id, incarnation string
	home            atomic.Pointer[bed] // the replica that it beats to; nil: cut off
	facts           fleet.Facts
	stop            func()
	every           time.Duration
	ttl             time.Duration

	mu      sync.Mutex
	version uint64
	token   fence.Token
	known   []store.Attempt
	asked   []store.Attempt // for a new term, without an answer
	seq     uint64
	send    *fleet.Facts
	orders  uint64
	codes   map[fleet.Code]int // of replies
	fails   int
	losses  int // terms that were over before they were renewed
	refused int // renewals since the last that was not

	patience int  // so many refusals later it starts a new term
	follow   bool // runs and ends its work as it is told
	reports  []api.WorkReport
}

// enter starts an agent and returns it once it has joined.
func (b *bed) enter(id string, facts fleet.Facts) *agent {
	b.t.Helper()
	a := b.newAgent(id, "i-"+id, facts)
	a.start()
	return a
}

// newAgent returns an agent that has joined and does not beat by itself yet.
func (b *bed) newAgent(id, incarnation string, facts fleet.Facts) *agent {
	b.t.Helper()
	if facts.Capacity == nil {
		facts.Capacity = fleet.Resources{"slots": 40}
	}
	if facts.Readiness == (fleet.Readiness{}) {
		facts.Readiness.Ready = true
	}
	a := &agent{id: id, incarnation: incarnation, facts: facts, version: 1, send: &facts, every: b.cfg.Interval, ttl: b.cfg.NodeTTL, codes: map[fleet.Code]int{}}
	a.home.Store(b)
	a.acquire(b)
	if reply, err := a.beat(b.t.Context()); err != nil || reply.Code != "" {
		b.t.Fatalf("first beat of %s: %+v, %v", id, reply, err)
	}
	return a
}

// acquire starts a term.
func (a *agent) acquire(b *bed) {
	b.t.Helper()
	attempt := store.NewAttempt()
	rec, err := b.st.Acquire(b.t.Context(), store.Request{Name: fleet.LeaseName(a.id), Holder: "agent/" + a.id, TTL: a.ttl, Attempt: attempt})
	if err != nil {
		b.t.Fatalf("acquire for %s: %v", a.id, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token, a.known = rec.Token, []store.Attempt{attempt}
}

// start has the agent beat until stop is called or the test ends.
func (a *agent) start() {
	b := a.home.Load()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(a.every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			bounded, cancel := context.WithTimeout(ctx, a.ttl)
			_, _ = a.beat(bounded) // what came of it is counted
			cancel()
		}
	})
	a.stop = sync.OnceFunc(func() { cancel(); done.Wait() })
	b.t.Cleanup(a.stop)
}

// beat sends one beat with a renewal to the replica that it beats to, if any.
func (a *agent) beat(ctx context.Context) (api.BeatReply, error) {
	b := a.home.Load()
	if b == nil {
		return api.BeatReply{}, store.ErrUnavailable
	}
	attempt := store.NewAttempt()
	a.mu.Lock()
	a.seq++
	beat := api.Beat{
		Node: a.id, Incarnation: a.incarnation, Seq: a.seq, FactsVersion: a.version, Facts: a.send, Orders: a.orders, Work: a.reports,
		Renew: &api.Renewal{Token: a.token, TTLMS: a.ttl.Milliseconds(), Attempt: attempt, Known: a.known},
	}
	sent := len(a.reports)
	a.mu.Unlock()
	reply, err := b.Beat(ctx, &beat)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.fails++
		a.known = append(a.known[max(0, len(a.known)-3):], attempt) // it may have been applied
		return reply, err
	}
	a.codes[reply.Code]++
	if r := reply.Renewed; r != nil && r.Code == "" {
		a.known, a.refused = []store.Attempt{attempt}, 0
	} else if a.refused++; r != nil && a.refused > a.patience {
		a.losses++
		a.refused = 0
		attempt := store.NewAttempt()
		ctx, cancel := context.WithTimeout(ctx, a.every/2) // no beat waits for it
		defer cancel()
		rec, err := b.st.Acquire(ctx, store.Request{Name: fleet.LeaseName(a.id), Holder: "agent/" + a.id, TTL: a.ttl, Attempt: attempt, Known: a.asked})
		if err == nil {
			a.token, a.known, a.asked = rec.Token, []store.Attempt{attempt}, nil
		} else if !errors.Is(err, store.ErrHeld) {
			a.asked = append(a.asked[max(0, len(a.asked)-store.MaxKnown+1):], attempt) // it may have been applied
		}
	}
	if a.send = nil; reply.NeedFacts {
		facts := a.facts
		a.send = &facts
	}
	if len(reply.Work) == sent {
		a.reports = a.reports[sent:]
	}
	if o := reply.Orders; o != nil {
		a.orders = o.Revision
		if a.follow {
			a.obey(o)
		}
	}
	return reply, nil
}

// obey starts what is to run and ends what is to stop, at once.
func (a *agent) obey(o *api.Orders) {
	for _, w := range o.Work {
		r := api.WorkReport{Work: w.Spec.ID, Token: w.Token, Lease: a.token, State: fleet.Running}
		if w.Stop {
			r.State = fleet.Stopped
		}
		a.reports = append(a.reports, r)
	}
}

// change changes the facts of the agent.
func (a *agent) change(f func(*fleet.Facts)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	facts := a.facts
	f(&facts)
	a.facts, a.version, a.send = facts, a.version+1, &facts
}

// goodbye ends the agent in order.
func (a *agent) goodbye(b *bed) {
	b.t.Helper()
	a.stop()
	a.mu.Lock()
	defer a.mu.Unlock()
	eventually(b.t, "release of "+a.id, func() bool { // its row may be locked for a moment
		res, err := b.st.Release(b.t.Context(), []store.Grant{{Name: fleet.LeaseName(a.id), Token: a.token, Attempt: store.NewAttempt(), Known: a.known}})
		return err == nil && res[0].Err == nil
	})
}

// crowd starts n agents at once, named by a prefix.
func (b *bed) crowd(prefix string, n int, facts func(i int) fleet.Facts) []*agent {
	b.t.Helper()
	agents := make([]*agent, n)
	var all sync.WaitGroup
	turns := make(chan struct{}, 16)
	for i := range agents {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			var f fleet.Facts
			if facts != nil {
				f = facts(i)
			}
			agents[i] = b.enter(fmt.Sprintf("%s%04d", prefix, i), f)
		})
	}
	all.Wait()
	return agents
}

// hush ends agents without a word, all at once.
func hush(agents ...*agent) {
	var all sync.WaitGroup
	for _, a := range agents {
		all.Go(a.stop)
	}
	all.Wait()
}

// give submits movable work to one node; it may go elsewhere.
func (b *bed) give(id, node string) {
	b.t.Helper()
	spec := fleet.Spec{ID: id, Command: []string{"true"}, Movable: true, Request: fleet.Request{Resources: fleet.Resources{"slots": 1}}}
	for _, n := range b.Nodes() {
		if n.ID == node {
			v, err := b.reg.SubmitTo(b.t.Context(), spec.Filled(), registry.Placement{Node: node, Lease: n.Lease.Token, Actor: "test"})
			if err != nil || v.Code != "" {
				b.t.Fatalf("give %s to %s: %+v, %v", id, node, v, err)
			}
			return
		}
	}
	b.t.Fatalf("give %s: no node %s", id, node)
}

// observed waits until a replica has listened for long enough to conclude from
// silence.
func (b *bed) observed() {
	b.t.Helper()
	eventually(b.t, "observed for a suspect timeout", func() bool { _, short := b.Observing(); return !short })
}

// events returns the ledger's entries of a kind.
func (b *bed) ledger(kind fleet.EventKind) []fleet.Event {
	b.t.Helper()
	events, err := b.reg.Events(b.t.Context(), registry.EventFilter{Kind: kind, Limit: 1000, Last: true})
	if err != nil {
		b.t.Fatal(err)
	}
	return events
}

// takeovers returns how many there were.
func (b *bed) takeovers() int {
	b.t.Helper()
	taken, err := b.reg.Takeovers(b.t.Context(), registry.TakeoverFilter{})
	if err != nil {
		b.t.Fatal(err)
	}
	return len(taken)
}

// liveness counts the nodes as a replica shows them.
func (b *bed) liveness() map[fleet.Liveness]int {
	count := map[fleet.Liveness]int{}
	for _, n := range b.Nodes() {
		count[n.Liveness]++
	}
	return count
}

// throughout checks a condition again and again for a while.
func throughout(t testing.TB, d time.Duration, check func()) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
		check()
	}
}
