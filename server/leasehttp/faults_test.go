package leasehttp_test

import (
	"context"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/server/leasehttp"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
	"github.com/tenurehq/tenure/store/storetest"
)

const patient = 30 * time.Second

// proxied returns a proxy before a server of st.
func proxied(t *testing.T, st store.Store) *storetest.Proxy {
	t.Helper()
	srv := httptest.NewServer(leasehttp.Handler(st, nil))
	p, err := storetest.NewProxy("tcp", strings.TrimPrefix(srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Close) // after its connections, which the proxy cuts
	t.Cleanup(func() { p.Close() })
	return p
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patient); !done(); {
		if time.Now().After(deadline) {
			t.Fatalf("still not so after %s: %s", patient, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// told collects a keeper's events.
type told struct {
	mu     sync.Mutex
	events []tenure.Event
}

func (l *told) add(e tenure.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

func (l *told) count(kind tenure.EventKind) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, e := range l.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// TestC04: a holder whose connections, or whose replica, fall into a black hole
// or go away renews over a fresh connection before its term is over, in 20 runs
// of 20, with at most two failed renewals each. It is not parallel to the rest,
// which keeps a small machine busy for longer than a renewal has.
func TestC04(t *testing.T) {
	runs, ttl := 20, 10*time.Second
	if testing.Short() {
		runs, ttl = 3, 3*time.Second
	}
	for name, fault := range map[string]struct {
		replicas int
		strike   func(*storetest.Proxy)
	}{
		"connections": {1, (*storetest.Proxy).HoldExisting},
		"replica":     {2, func(p *storetest.Proxy) { p.HoldNew(); p.HoldExisting() }},
		"replies":     {2, (*storetest.Proxy).HoldReplies},
		"gone":        {2, func(p *storetest.Proxy) { p.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var running sync.WaitGroup
			for range runs {
				st := memory.New()
				var proxies []*storetest.Proxy
				var servers []string
				for range fault.replicas {
					p := proxied(t, st)
					proxies, servers = append(proxies, p), append(servers, "tenure://"+p.Addr())
				}
				client := open(t, servers...)
				running.Go(func() { survive(t, client, st, ttl, func() { fault.strike(proxies[0]) }) })
			}
			running.Wait()
		})
	}
}

// survive holds a lease of st through client, over a fault, for longer than ttl.
func survive(t *testing.T, client, st store.Store, ttl time.Duration, strike func()) {
	var log told
	k, err := tenure.NewKeeper(client, tenure.Config{TTL: ttl, OnEvent: log.add, DrainTimeout: time.Millisecond})
	if err != nil {
		t.Error(err)
		return
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- k.Run(ctx) }()
	defer func() { cancel(); <-ran }()
	held, err := k.Acquire(ctx, "job")
	if err != nil {
		t.Error(err)
		return
	}
	// renewedAfter waits for a renewal that began that long after now.
	renewedAfter := func(d time.Duration) {
		rec, err := st.Get(ctx, "job")
		for start := rec.Now; err == nil && !rec.RenewedAt.After(start.Add(d)) && log.count(tenure.EventLost) == 0; rec, err = st.Get(ctx, "job") {
			if rec.Now.Sub(start) > patient {
				t.Errorf("not renewed within %s", patient)
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil {
			t.Error(err)
		}
	}
	renewedAfter(0)
	strike()
	renewedAfter(ttl)
	if n := log.count(tenure.EventLost); n != 0 {
		t.Errorf("lost %d times, want none: %v", n, held.Err())
	}
	if n := log.count(tenure.EventFailing); n > 2 {
		t.Errorf("%d renewals failed, want 2 at most", n)
	}
	if token, ok := held.MayAct(); !ok || token != 1 {
		t.Errorf("may act: got %t with token %s, want it to with 1", ok, token)
	}
}

// TestC04Pool: no connection is used again after a request on it ran out of time.
func TestC04Pool(t *testing.T) {
	t.Parallel()
	p := proxied(t, memory.New())
	st := open(t, "tenure://"+p.Addr())
	ask := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		_, err := st.Get(ctx, "job")
		return err
	}
	// Several connections stand in the pool.
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			if err := ask(patient); store.Classify(err) != store.CodeNotFound {
				t.Errorf("got error %v, want not_found", err)
			}
		})
	}
	asking.Wait()
	before := p.Accepted()
	p.HoldExisting()
	if err := ask(100 * time.Millisecond); store.Classify(err) != store.CodeNoContact {
		t.Fatalf("on a dead connection: got error %v, want no contact", err)
	}
	for i := range 3 {
		if err := ask(patient); store.Classify(err) != store.CodeNotFound {
			t.Fatalf("request %d after it: got error %v, want not_found", i+1, err)
		}
	}
	if n := p.Accepted() - before; n != 1 {
		t.Errorf("%d connections were opened after one died, want 1 for all that followed", n)
	}
}

// TestC06: a request that was applied and never answered says nothing, and is
// recognised when it comes again.
func TestC06(t *testing.T) {
	t.Parallel()
	backend := memory.New()
	p := proxied(t, backend)
	st := open(t, "tenure://"+p.Addr())
	// lost sends a request whose answer does not come, once it was applied.
	lost := func(what string, applied func() bool, send func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patient)
		defer cancel()
		p.HoldReplies()
		failed := make(chan error, 1)
		go func() { failed <- send(ctx) }()
		eventually(t, what+" is applied", applied)
		p.Reset()
		p.Pass()
		if err := <-failed; store.Classify(err) != store.CodeNoContact || store.Definite(err) {
			t.Errorf("%s whose reply was lost: got error %v, want no contact", what, err)
		}
	}
	record := func() store.Record {
		rec, err := backend.Get(t.Context(), "job")
		if err != nil {
			return store.Record{}
		}
		return rec
	}

	req := store.Request{Name: "job", Holder: "a", TTL: time.Minute, Attempt: store.NewAttempt()}
	lost("acquire", func() bool { return record().Attempt == req.Attempt }, func(ctx context.Context) error {
		_, err := st.Acquire(ctx, req)
		return err
	})
	req.Known, req.Attempt = []store.Attempt{req.Attempt}, store.NewAttempt()
	rec, err := st.Acquire(t.Context(), req)
	if err != nil || rec.Token != 1 {
		t.Fatalf("acquire again: got token %s and error %v, want 1", rec.Token, err)
	}

	g := store.Grant{Name: "job", Token: rec.Token, TTL: time.Minute, Attempt: store.NewAttempt(), Known: []store.Attempt{rec.Attempt}}
	again := func() { g.Known, g.Attempt = append(slices.Clone(g.Known), g.Attempt), store.NewAttempt() }
	lost("renew", func() bool { return record().Attempt == g.Attempt }, func(ctx context.Context) error {
		_, err := st.Renew(ctx, []store.Grant{g})
		return err
	})
	again()
	if res, err := st.Renew(t.Context(), []store.Grant{g}); err != nil || res[0].Err != nil || res[0].Record.Token != 1 {
		t.Fatalf("renew again: got %+v and error %v", res, err)
	}
	again()
	lost("release", func() bool { return record().Status == store.Released }, func(ctx context.Context) error {
		_, err := st.Release(ctx, []store.Grant{g})
		return err
	})
	again()
	if res, err := st.Release(t.Context(), []store.Grant{g}); err != nil || res[0].Err != nil {
		t.Fatalf("release again: got %+v and error %v", res, err)
	}
}

// TestDelay: a slow network only makes slow.
func TestDelay(t *testing.T) {
	t.Parallel()
	p := proxied(t, memory.New())
	p.Delay(30 * time.Millisecond)
	st := open(t, "tenure://"+p.Addr())
	rec, err := st.Acquire(t.Context(), store.Request{Name: "job", Holder: "a", TTL: time.Minute, Attempt: store.NewAttempt()})
	if err != nil || rec.Token != 1 {
		t.Errorf("got token %s and error %v, want 1", rec.Token, err)
	}
}

// TestWatchEnds: when its server goes, a watch ends, and the waiter asks.
func TestWatchEnds(t *testing.T) {
	t.Parallel()
	p := proxied(t, memory.New())
	events, err := open(t, "tenure://"+p.Addr()).Watch(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	p.Reset()
	select {
	case e, open := <-events:
		if open {
			t.Errorf("got event %+v, want the channel closed", e)
		}
	case <-time.After(patient):
		t.Errorf("the channel is open %s after its connection was cut", patient)
	}
}

// TestServerStoreDown: a server whose own store does not answer says so, and the
// answer decides nothing.
func TestServerStoreDown(t *testing.T) {
	t.Parallel()
	faulty := storetest.NewFaulty(memory.New())
	st := open(t, serve(t, faulty))
	for _, failure := range []error{store.ErrUnavailable, store.ErrReadOnly, store.ErrSchema, store.ErrPermission, store.ErrCopied, &store.BusyError{Name: "job", Blockers: []string{"pid 1"}}} {
		faulty.Script(storetest.OpRenew, storetest.Fault{DropRequest: true, Err: failure})
		_, err := st.Renew(t.Context(), []store.Grant{{Name: "job", Token: 1, TTL: time.Minute, Attempt: store.NewAttempt(), Known: []store.Attempt{store.NewAttempt()}}})
		if store.Classify(err) != store.Classify(failure) || store.Definite(err) {
			t.Errorf("got error %v, want the code of %v", err, failure)
		}
	}
}
