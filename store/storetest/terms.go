package storetest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

var termTests = []subtest{
	// At most one term is unexpired, by the store's clock.
	{name: "P2", run: func(e *env) {
		name := e.name("job")
		a := e.must(e.st, request(name, "a", e.short))
		_, rec, err := e.contend(e.ctx, e.second, request(name, "b", long), e.short/20)
		e.ok("acquire after expiry", err)
		if early := a.rec.ExpiresAt.Sub(rec.AcquiredAt); early > 0 {
			e.Errorf("second term began %s before the first expired, by the store's clock", early)
		}
		e.refused(e.st, name, "a", store.HeldByTerm)
	}},
	// Nobody else can be granted within a TTL of the moment the winning request
	// left, which is what a holder counts on.
	{name: "P3", run: func(e *env) {
		name := e.name("job")
		a := e.hold(e.st, name, "a")
		a.grant.TTL = e.short
		sent := time.Now()
		e.ok("renew", e.renew(a))
		_, _, err := e.contend(e.ctx, e.second, request(name, "b", long), e.short/20)
		e.ok("acquire after expiry", err)
		if waited := time.Since(sent); waited < e.short-e.short/100 {
			e.Errorf("second term was granted %s after the last renewal left, want at least %s", waited, e.short)
		}
	}},
	// A holder that slept learns for certain that its term is over.
	{name: "P4", run: func(e *env) {
		untaken, taken := e.must(e.st, request(e.name("untaken"), "a", e.short)), e.must(e.st, request(e.name("taken"), "a", e.short))
		e.lapse(untaken.rec.Name)
		e.lapse(taken.rec.Name)
		e.hold(e.second, taken.rec.Name, "b")
		e.is("renewal of an expired term", e.renew(untaken), store.ErrExpired)
		e.is("renewal of a term that was taken over", e.renew(taken), store.ErrSuperseded)
	}},
	// An expired term is not revived, even if nobody took it.
	{name: "Expired_untaken", run: func(e *env) {
		t := e.must(e.st, request(e.name("job"), "a", e.short))
		before := e.lapse(t.rec.Name)
		if before.Status != store.Lapsed || before.Remaining != 0 || before.Token != t.rec.Token {
			e.Errorf("record: got %s, remaining %s, token %s, want lapsed, 0s, %s", before.Status, before.Remaining, before.Token, t.rec.Token)
		}
		for range 2 {
			e.is("renewal", e.renew(t), store.ErrExpired)
		}
		e.unchanged("renewal of an expired term", before)
		e.larger("expiry", t.rec.Token, e.hold(e.st, t.rec.Name, "a").rec.Token)
	}},
	// Each reason has a name of its own.
	{name: "P10", run: func(e *env) {
		code := func(what string, err error, want store.Code) {
			e.Helper()
			if got := store.Classify(err); got != want {
				e.Errorf("%s: got code %q (%v), want %q", what, got, err, want)
			}
		}
		name := e.name("job")
		a := e.hold(e.st, name, "a")
		missing, future := a.copy(e.st), a.copy(e.st)
		missing.grant.Name, future.grant.Token = e.name("missing"), a.rec.Token+1
		code("renewal without a record", e.renew(missing), store.CodeMissing)
		code("release without a record", e.release(missing, ""), store.CodeMissing)
		code("renewal of a larger token", e.renew(future), store.CodeMissing)
		_, err := e.st.Get(e.ctx, e.name("missing"))
		code("Get without a record", err, store.CodeNotFound)
		_, err = e.st.Acquire(e.ctx, request(name, "b", long))
		code("Acquire of a held lease", err, store.CodeHeld)
		copied := a.copy(e.second)
		e.ok("renew", e.renew(a))
		code("renewal of a copy", e.renew(copied), store.CodeSuperseded)
		e.ok("release", e.release(a, ""))
		code("renewal of a released term", e.renew(a), store.CodeReleased)
		code("release of a released term by its copy", e.release(copied, ""), store.CodeReleased)
		b := e.must(e.st, request(name, "b", e.short))
		code("renewal of an earlier term", e.renew(a), store.CodeSuperseded)
		e.lapse(name)
		code("renewal of an expired term", e.renew(b), store.CodeExpired)
		c := e.hold(e.st, name, "c")
		e.ok("Revoke", e.st.Revoke(e.ctx, name, c.rec.Token, store.Revocation{Why: "test", By: "op"}))
		code("renewal of a revoked term", e.renew(c), store.CodeRevoked)
	}},
}

var acquireTests = []subtest{
	{name: "Acquire_held", run: func(e *env) {
		name := e.name("job")
		a := e.hold(e.st, name, "host-a/1")
		held := e.refused(e.second, name, "host-b/1", store.HeldByTerm)
		if held.Record.Holder != "host-a/1" || held.Record.Token != a.rec.Token || held.Record.Name != name {
			e.Errorf("facts of the refusal: got holder %q, token %s, want %q, %s", held.Record.Holder, held.Record.Token, "host-a/1", a.rec.Token)
		}
		if held.Remaining <= 0 || held.Remaining > long {
			e.Errorf("remaining: got %s, want more than 0s and at most %s", held.Remaining, long)
		}
		// The holder's own name is no proof.
		e.refused(e.st, name, "host-a/1", store.HeldByTerm)
		e.unchanged("a losing Acquire", a.rec)
	}},
	// A waiter's own term is live at the moment it is granted.
	{name: "C11", run: func(e *env) {
		name, last := e.name("job"), fence.Token(0)
		for round := range e.rounds(20) {
			a := e.must(e.st, request(name, "a", long))
			e.larger(numbered("round", round), last, a.rec.Token)
			var b store.Record
			var req store.Request
			var err error
			var waiting sync.WaitGroup
			waiting.Go(func() {
				req, b, err = e.contend(e.ctx, e.second, request(name, "b", long), time.Millisecond)
			})
			released := e.release(a, "")
			waiting.Wait()
			e.ok("release", released)
			e.ok("acquire by the waiter", err)
			t := e.won(e.second, req, b)
			if rec := e.get(e.st, name); rec.Status != store.Held || rec.Token != b.Token || rec.Holder != "b" {
				e.Errorf("record after the waiter won: got %s by %q with token %s, want held by b with %s", rec.Status, rec.Holder, rec.Token, b.Token)
			}
			e.larger("the waiter's turn", a.rec.Token, b.Token)
			e.ok("release", e.release(t, ""))
			last = b.Token
		}
	}},
	// What remains counts from the write that won, never from an earlier try.
	{name: "C12", run: func(e *env) {
		name := e.name("job")
		e.must(e.st, request(name, "a", e.short))
		req, rec, err := e.contend(e.ctx, e.second, request(name, "b", long), e.short/20)
		e.ok("acquire after waiting", err)
		e.won(e.second, req, rec)
		grain := e.st.Features().Granularity
		if life := rec.ExpiresAt.Sub(rec.AcquiredAt); life < long || life > long+grain {
			e.Errorf("term of %s, want %s and at most %s more", life, long, grain)
		}
		if rec.Remaining < long-grain {
			e.Errorf("remaining when granted: got %s, want %s", rec.Remaining, long)
		}
		later := e.get(e.second, name)
		if later.Remaining > rec.Remaining || later.Now.Before(rec.Now) {
			e.Errorf("remaining grew from %s to %s, or the clock went from %s to %s", rec.Remaining, later.Remaining, rec.Now, later.Now)
		}
	}},
	// An abandoned lease is obtained by tries that do not wait; a live one is not.
	{name: "C15", run: func(e *env) {
		name := e.name("abandoned")
		a := e.must(e.st, request(name, "a", e.short))
		e.refused(e.second, e.hold(e.st, e.name("live"), "a").rec.Name, "b", store.HeldByTerm)
		e.lapse(name)
		rec, err := e.second.Acquire(e.ctx, request(name, "b", long))
		e.ok("first try after expiry", err)
		e.larger("expiry", a.rec.Token, rec.Token)
	}},
	{name: "C15_renewing", run: func(e *env) {
		name, ttl := e.name("job"), max(40*e.short, 4*time.Second)
		a := e.must(e.st, request(name, "a", ttl))
		for range 10 {
			e.pause(e.short / 4)
			e.ok("renew", e.renew(a))
			if held := e.refused(e.second, name, "b", store.HeldByTerm); held.Remaining > ttl {
				e.Errorf("remaining: got %s, want at most %s", held.Remaining, ttl)
			}
		}
	}},
	// Of many contenders one wins, and the others write nothing.
	{name: "C17", run: func(e *env) {
		const contenders = 50
		name, last := e.name("job"), fence.Token(0)
		for round := range e.rounds(40) {
			w := e.race(name, contenders)
			if len(w) != 1 {
				e.Fatalf("round %d: %d winners of %d, want 1", round, len(w), contenders)
			}
			e.larger(numbered("round", round), last, w[0].rec.Token)
			last = w[0].rec.Token
			e.unchanged("losing tries", w[0].rec)
			e.ok("release", e.release(w[0], ""))
		}
	}},
	{name: "C17_writes", alone: true, run: func(e *env) {
		if e.h.Writes == nil {
			e.Skip("the harness counts no writes")
		}
		a := e.hold(e.st, e.name("job"), "a")
		before := e.h.Writes(e.T)
		for range 10 {
			e.refused(e.st, a.rec.Name, "a", store.HeldByTerm)
			e.refused(e.second, a.rec.Name, "b", store.HeldByTerm)
		}
		if after := e.h.Writes(e.T); after != before {
			e.Errorf("20 losing tries moved the count of writes from %d to %d", before, after)
		}
		e.unchanged("a losing Acquire", a.rec)
		e.ok("renew", e.renew(a))
		if after := e.h.Writes(e.T); after == before {
			e.Errorf("a renewal did not move the count of writes, so it proves nothing")
		}
	}},
	{name: "Replace", run: func(e *env) {
		name := e.name("job")
		a := e.hold(e.st, name, "a")
		req := request(name, "a2", long)
		own := a.next()
		req.Replace = &own
		b := e.must(e.st, req)
		e.larger("replacement", a.rec.Token, b.rec.Token)
		if b.rec.Holder != "a2" {
			e.Errorf("holder: got %q, want the new one", b.rec.Holder)
		}
		e.is("renewal of the replaced term", e.renew(a), store.ErrSuperseded)
		e.is("release of the replaced term", e.release(a, ""), store.ErrSuperseded)
		e.ok("renewal of the new term", e.renew(b))
	}},
	// Both copies of a holder may try: one wins.
	{name: "Replace_by_copies", run: func(e *env) {
		name := e.name("job")
		a := e.hold(e.st, name, "a")
		other := a.copy(e.second)
		req := request(name, "a1", long)
		own := a.next()
		req.Replace = &own
		e.must(e.st, req)
		again := request(name, "a2", long)
		stale := other.next()
		again.Replace = &stale
		_, err := e.second.Acquire(e.ctx, again)
		e.is("replacement by the second copy", err, store.ErrHeld)
		e.is("renewal by the second copy", e.renew(other), store.ErrSuperseded)
	}},
	{name: "Replace_not_own", run: func(e *env) {
		name := e.name("job")
		a := e.hold(e.st, name, "a")
		for what, change := range map[string]func(*store.Grant){
			"with another attempt": func(g *store.Grant) { g.Known = []store.Attempt{store.NewAttempt()} },
			"with a larger token":  func(g *store.Grant) { g.Token++ },
		} {
			req := request(name, "a", long)
			g := a.next()
			change(&g)
			req.Replace = &g
			_, err := e.second.Acquire(e.ctx, req)
			e.is("replacement "+what, err, store.ErrHeld)
		}
		e.unchanged("a refused replacement", a.rec)
		e.ok("Revoke", e.st.Revoke(e.ctx, name, a.rec.Token, store.Revocation{Why: "test"}))
		req := request(name, "a", long)
		g := a.next()
		req.Replace = &g
		_, err := e.st.Acquire(e.ctx, req)
		e.is("replacement of a revoked term", err, store.ErrHeld)
	}},
	{name: "IfRevision", run: func(e *env) {
		name := e.name("job")
		a := e.hold(e.st, name, "a")
		e.ok("release", e.release(a, ""))
		seen := e.get(e.st, name).Revision
		first := request(name, "b", e.short)
		first.IfRevision = seen
		e.must(e.st, first)
		e.lapse(name)
		late := request(name, "c", long)
		late.IfRevision = seen
		_, err := e.second.Acquire(e.ctx, late)
		held, ok := errors.AsType[*store.HeldError](err)
		if !ok || held.Reason != store.HeldChanged {
			e.Errorf("Acquire at an earlier revision: got error %v, want a *HeldError for %q", err, store.HeldChanged)
		}
		none := request(e.name("none"), "c", long)
		none.IfRevision = seen
		_, err = e.second.Acquire(e.ctx, none)
		if err == nil {
			e.Errorf("Acquire at a revision of a record that is not there: got no error")
		}
	}},
	{name: "Revision", run: func(e *env) {
		t := e.hold(e.st, e.name("job"), "a")
		seen := map[store.Revision]bool{t.rec.Revision: true}
		step := func(what string) {
			e.Helper()
			rec := e.get(e.second, t.rec.Name)
			if seen[rec.Revision] {
				e.Errorf("revision after %s: got %q, which was there before", what, rec.Revision)
			}
			seen[rec.Revision] = true
			if again := e.get(e.st, t.rec.Name); again.Revision != rec.Revision {
				e.Errorf("revision changed from %q to %q without a write", rec.Revision, again.Revision)
			}
		}
		e.ok("renew", e.renew(t))
		step("a renewal")
		e.ok("Revoke", e.st.Revoke(e.ctx, t.rec.Name, t.rec.Token, store.Revocation{Why: "test"}))
		step("a revocation")
		e.ok("release", e.release(t, ""))
		step("a release")
		e.ok("RaiseFloor", e.st.RaiseFloor(e.ctx, t.rec.Name, t.rec.Token+1))
		step("a floor")
		e.hold(e.st, t.rec.Name, "a")
		step("an acquire")
	}},
}

// race lets many contenders try once each, and returns who won.
func (e *env) race(name string, contenders int) []*term {
	e.Helper()
	var mu sync.Mutex
	var winners []*term
	var failures []error
	var tries sync.WaitGroup
	start := make(chan struct{})
	for i := range contenders {
		st := e.st
		if i%2 == 1 {
			st = e.second
		}
		req := request(name, numbered("host", i), long)
		tries.Go(func() {
			<-start
			rec, err := e.try(e.ctx, st, req)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				winners = append(winners, &term{st: st, rec: rec, grant: store.Grant{
					Name: name, Token: rec.Token, TTL: rec.TTL, Known: []store.Attempt{rec.Attempt},
				}})
			case !errors.Is(err, store.ErrHeld):
				failures = append(failures, err)
			}
		})
	}
	close(start)
	tries.Wait()
	if len(failures) > 0 {
		e.Fatalf("%d of %d tries failed, the first: %v", len(failures), contenders, failures[0])
	}
	return winners
}

// try acquires once, and again while the record is busy.
func (e *env) try(ctx context.Context, st store.Store, req store.Request) (store.Record, error) {
	for {
		rec, err := st.Acquire(ctx, req)
		if !errors.Is(err, store.ErrBusy) || ctx.Err() != nil {
			return rec, err
		}
		req.Attempt = store.NewAttempt()
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
		}
	}
}
