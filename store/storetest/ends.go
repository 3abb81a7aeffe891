package storetest

import (
	"errors"
	"sync"
	"time"

	"github.com/tenurehq/tenure/store"
)

var releaseTests = []subtest{
	// After a release nobody waits for a TTL.
	{name: "C24", run: func(e *env) {
		t := e.hold(e.st, e.name("job"), "a")
		e.ok("release", e.release(t, ""))
		switch rec := e.get(e.second, t.rec.Name); {
		case rec.Status != store.Released || rec.Remaining != 0 || rec.Wait != 0 || rec.EndedAt.IsZero():
			e.Errorf("record: got %s, remaining %s, wait %s, ended at %s", rec.Status, rec.Remaining, rec.Wait, rec.EndedAt)
		case rec.Holder != "a" || rec.Token != t.rec.Token || !rec.AcquiredAt.Equal(t.rec.AcquiredAt):
			e.Errorf("record after a release: got %+v, want that of the last term, %+v", stateOf(rec), stateOf(t.rec))
		}
		e.hold(e.second, t.rec.Name, "b")
	}},
	// What lapsed or was revoked can be released too.
	{name: "Release_ended", run: func(e *env) {
		lapsed, revoked := e.must(e.st, request(e.name("lapsed"), "a", e.short)), e.hold(e.st, e.name("revoked"), "a")
		e.ok("Revoke", e.st.Revoke(e.ctx, revoked.rec.Name, revoked.rec.Token, store.Revocation{Why: "test"}))
		e.ok("release of a revoked term", e.release(revoked, ""))
		e.lapse(lapsed.rec.Name)
		e.ok("release of a lapsed term", e.release(lapsed, ""))
		for _, t := range []*term{lapsed, revoked} {
			if rec := e.get(e.st, t.rec.Name); rec.Status != store.Released {
				e.Errorf("record: got %s, want released", rec.Status)
			}
			e.hold(e.second, t.rec.Name, "b")
		}
	}},
	// A late release does not end the next holder's term.
	{name: "C27", run: func(e *env) {
		a := e.must(e.st, request(e.name("job"), "same", e.short))
		e.lapse(a.rec.Name)
		b := e.hold(e.second, a.rec.Name, "same")
		e.is("release of a term that was taken over", e.release(a, ""), store.ErrSuperseded)
		e.unchanged("release of an earlier term", b.rec)
		late := a.copy(e.st)
		late.grant.Token = b.rec.Token
		e.is("release with the right holder and token but another attempt", e.release(late, ""), store.ErrSuperseded)
		e.unchanged("release with another attempt", b.rec)
		old := b.copy(e.st)
		old.grant.Token = a.rec.Token
		e.is("release with the right attempt but an earlier token", e.release(old, ""), store.ErrSuperseded)
		e.unchanged("release with an earlier token", b.rec)
		e.refused(e.st, a.rec.Name, "c", store.HeldByTerm)
	}},
	// One bad release does not stop the others.
	{name: "C28", run: func(e *env) {
		grants := make([]store.Grant, 5)
		for i := range grants {
			grants[i] = e.hold(e.st, e.name(numbered("job", i)), "a").next()
		}
		grants[1].Known = []store.Attempt{store.NewAttempt()}
		results, err := e.st.Release(e.ctx, grants)
		e.ok("Release", err)
		for i, res := range results {
			if i == 1 {
				e.is("the bad release", res.Err, store.ErrSuperseded)
				e.refused(e.second, grants[i].Name, "b", store.HeldByTerm)
			} else {
				e.ok("another release", res.Err)
				e.hold(e.second, grants[i].Name, "b")
			}
		}
	}},
	// A renewal that races with the release does not bring the term back.
	{name: "C28_renewal_in_flight", run: func(e *env) {
		for round := range e.rounds(100) {
			t := e.hold(e.st, e.name(numbered("job", round)), "a")
			renewal := t.next()
			t.sent(renewal)
			release := t.next()
			var renewed, released store.Result
			var renewErr, releaseErr error
			var sends sync.WaitGroup
			renewing := func() {
				var results []store.Result
				if results, renewErr = e.second.Renew(e.ctx, []store.Grant{renewal}); renewErr == nil {
					renewed = results[0]
				}
			}
			releasing := func() {
				for {
					var results []store.Result
					if results, releaseErr = e.st.Release(e.ctx, []store.Grant{release}); releaseErr != nil {
						return
					}
					if released = results[0]; !errors.Is(released.Err, store.ErrBusy) {
						return
					}
					release = t.next() // nothing was decided: there is nothing to be found of it
				}
			}
			if round%2 == 0 { // the scheduler favours one of them
				renewing, releasing = releasing, renewing
			}
			sends.Go(renewing)
			sends.Go(releasing)
			sends.Wait()
			e.ok("Renew", renewErr)
			e.ok("Release", releaseErr)
			e.ok("release", released.Err)
			switch store.Classify(renewed.Err) {
			case "", store.CodeReleased, store.CodeBusy:
			default:
				e.Errorf("renewal that races with the release: got error %v", renewed.Err)
			}
			if rec := e.get(e.st, t.rec.Name); rec.Status != store.Released {
				e.Fatalf("round %d: record after the release: got %s", round, rec.Status)
			}
			e.is("a later renewal", e.one(e.st.Renew(e.ctx, []store.Grant{t.next()})).Err, store.ErrReleased)
		}
	}},
}

var revokeTests = []subtest{
	{name: "Revoke", run: func(e *env) {
		t := e.hold(e.st, e.name("job"), "a")
		e.ok("Revoke", e.second.Revoke(e.ctx, t.rec.Name, t.rec.Token, store.Revocation{Why: "disk is full", By: "ops/ann"}))
		rec := e.get(e.st, t.rec.Name)
		if rec.Status != store.Held || !rec.Revoked || rec.Why != "disk is full" || rec.RevokedBy != "ops/ann" || rec.Token != t.rec.Token {
			e.Errorf("record: got %+v, want it held and revoked with the reason", stateOf(rec))
		}
		if !rec.ExpiresAt.Equal(t.rec.ExpiresAt) {
			e.Errorf("expiry: got %s, want it left at %s", rec.ExpiresAt, t.rec.ExpiresAt)
		}
		res := e.one(t.st.Renew(e.ctx, []store.Grant{t.next()}))
		e.is("renewal of a revoked term", res.Err, store.ErrRevoked)
		if res.Record.Why != "disk is full" {
			e.Errorf("reason in the refusal: got %q", res.Record.Why)
		}
		e.is("renewal of a revoked term, again", e.renew(t), store.ErrRevoked)
		e.refused(e.second, t.rec.Name, "b", store.HeldByTerm)
		retry := request(t.rec.Name, "a", long)
		retry.Known = t.grant.Known
		_, err := e.st.Acquire(e.ctx, retry)
		e.is("retry of the revoked term's acquire", err, store.ErrHeld)
		e.ok("release", e.release(t, ""))
		next := e.hold(e.second, t.rec.Name, "b")
		if next.rec.Revoked || next.rec.Why != "" || next.rec.RevokedBy != "" {
			e.Errorf("next term: got %+v, want no trace of the revocation", stateOf(next.rec))
		}
		e.ok("renewal of the next term", e.renew(next))
	}},
	{name: "Revoke_lapses", run: func(e *env) {
		var t *term
		for ttl := e.short; ; ttl *= 2 { // until it comes in time
			t = e.must(e.st, request(e.name("job"), "a", ttl))
			err := e.st.Revoke(e.ctx, t.rec.Name, t.rec.Token, store.Revocation{Why: "test"})
			if !errors.Is(err, store.ErrSuperseded) || ttl > patient {
				e.ok("Revoke", err)
				break
			}
			e.lapse(t.rec.Name)
		}
		e.lapse(t.rec.Name)
		e.is("renewal of a revoked term that lapsed", e.renew(t), store.ErrRevoked)
		e.hold(e.second, t.rec.Name, "b")
	}},
	{name: "Revoke_now", run: func(e *env) {
		req := request(e.name("job"), "a", long)
		req.MinHold = time.Hour
		t := e.must(e.st, req)
		e.ok("Revoke", e.st.Revoke(e.ctx, t.rec.Name, t.rec.Token, store.Revocation{Why: "test", Now: true}))
		if rec := e.get(e.st, t.rec.Name); rec.Status != store.Released || rec.Wait != 0 || !rec.Revoked || rec.Why != "test" {
			e.Errorf("record: got %s, wait %s, revoked %t, reason %q, want it free", rec.Status, rec.Wait, rec.Revoked, rec.Why)
		}
		e.is("renewal", e.renew(t), store.ErrRevoked)
		e.ok("release of what was freed already", e.release(t, ""))
		b := e.hold(e.second, t.rec.Name, "b")
		e.larger("Revoke now", t.rec.Token, b.rec.Token)
		e.is("renewal after a successor", e.renew(t), store.ErrSuperseded)
		e.is("release after a successor", e.release(t, ""), store.ErrSuperseded)
		e.unchanged("what the revoked holder sent", b.rec)
	}},
	{name: "Revoke_wrong_token", run: func(e *env) {
		first := e.hold(e.st, e.name("job"), "a")
		e.ok("release", e.release(first, ""))
		t := e.hold(e.st, first.rec.Name, "a")
		rev := store.Revocation{Why: "test", Now: true}
		e.is("Revoke of an earlier token", e.st.Revoke(e.ctx, t.rec.Name, first.rec.Token, rev), store.ErrSuperseded)
		e.is("Revoke of a later token", e.st.Revoke(e.ctx, t.rec.Name, t.rec.Token+1, rev), store.ErrSuperseded)
		e.is("Revoke without a record", e.st.Revoke(e.ctx, e.name("none"), 1, rev), store.ErrNotFound)
		e.unchanged("a refused Revoke", t.rec)
	}},
	{name: "Revoke_ended_term", run: func(e *env) {
		released, lapsed := e.hold(e.st, e.name("released"), "a"), e.must(e.st, request(e.name("lapsed"), "a", e.short))
		e.ok("release", e.release(released, ""))
		e.lapse(lapsed.rec.Name)
		for _, t := range []*term{released, lapsed} {
			before := e.get(e.st, t.rec.Name)
			err := e.st.Revoke(e.ctx, t.rec.Name, t.rec.Token, store.Revocation{Why: "test"})
			e.is("Revoke of an ended term", err, store.ErrSuperseded)
			e.unchanged("Revoke of an ended term", before)
		}
	}},
	{name: "Revoke_handoff", run: func(e *env) {
		for _, now := range []bool{false, true} {
			t := e.hold(e.st, e.name(map[bool]string{false: "later", true: "now"}[now]), "a")
			rev := store.Revocation{Why: "move", HandoffTo: "host-b", Now: now}
			e.ok("Revoke", e.st.Revoke(e.ctx, t.rec.Name, t.rec.Token, rev))
			if !now {
				e.refused(e.second, t.rec.Name, "host-b/1", store.HeldByTerm)
				e.ok("release", e.release(t, ""))
			}
			e.refused(e.second, t.rec.Name, "host-c/1", store.HeldReserved)
			e.hold(e.second, t.rec.Name, "host-b/1")
		}
	}},
}

// Min-hold, reservations, and the store's clock.
var holdTests = []subtest{
	{name: "MinHold", run: func(e *env) {
		for what, end := range map[string]func(*term){
			"released": func(t *term) { e.ok("release", e.release(t, "")) },
			"lapsed":   func(t *term) { e.lapse(t.rec.Name) },
			"handoff":  func(t *term) { e.ok("release", e.release(t, "b")) },
		} {
			req := request(e.name(what), "a", e.short)
			req.MinHold = time.Hour
			t := e.must(e.st, req)
			if t.rec.Wait <= 0 || t.rec.Wait > time.Hour {
				e.Errorf("%s: wait while held: got %s, want more than 0s and at most 1h", what, t.rec.Wait)
			}
			end(t)
			rec := e.get(e.second, t.rec.Name)
			if rec.Wait <= e.short || rec.Wait > time.Hour || rec.ReservedFor != "" || rec.Free("b") {
				e.Errorf("%s: got wait %s, reserved for %q, free %t; nobody may enter during a min-hold", what, rec.Wait, rec.ReservedFor, rec.Free("b"))
			}
			for _, holder := range []string{"a", "b"} {
				if held := e.refused(e.second, t.rec.Name, holder, store.HeldByMinHold); held.Remaining <= e.short {
					e.Errorf("%s: remaining: got %s, want what is left of the min-hold", what, held.Remaining)
				}
			}
		}
	}},
	// It counts from the beginning of the term, and then it is over.
	{name: "MinHold_ends", run: func(e *env) {
		req := request(e.name("job"), "a", long)
		req.MinHold = 2 * e.short
		t := e.must(e.st, req)
		e.ok("renew", e.renew(t))
		e.ok("release", e.release(t, ""))
		_, rec, err := e.contend(e.ctx, e.second, request(req.Name, "b", long), e.short/20)
		e.ok("acquire", err)
		if since := rec.AcquiredAt.Sub(t.rec.AcquiredAt); since < req.MinHold {
			e.Errorf("next term began %s after this one, want at least %s", since, req.MinHold)
		}
		if rec.Wait != 0 {
			e.Errorf("wait of a term without min-hold: got %s, want 0s", rec.Wait)
		}
	}},
	// The holder itself may begin another term; the hold goes on.
	{name: "MinHold_replace", run: func(e *env) {
		req := request(e.name("job"), "a", long)
		req.MinHold = time.Hour
		t := e.must(e.st, req)
		again := request(req.Name, "a", long)
		own := t.next()
		again.Replace = &own
		next := e.must(e.st, again)
		e.larger("replacement", t.rec.Token, next.rec.Token)
		e.ok("release", e.release(next, ""))
		e.refused(e.second, req.Name, "b", store.HeldByMinHold)
	}},
	{name: "Handoff", run: func(e *env) {
		t := e.hold(e.st, e.name("job"), "host-a/1")
		e.ok("release", e.release(t, "host-b"))
		rec := e.get(e.st, t.rec.Name)
		if most := store.HandoffTime(long); rec.ReservedFor != "host-b" || rec.Wait <= 0 || rec.Wait > most {
			e.Errorf("record: got reserved for %q for %s, want for %q for at most %s", rec.ReservedFor, rec.Wait, "host-b", most)
		}
		if !rec.Free("host-b/1") || rec.Free("host-c/1") {
			e.Errorf("free: got %t for the one it is reserved for and %t for another", rec.Free("host-b/1"), rec.Free("host-c/1"))
		}
		e.refused(e.second, t.rec.Name, "host-c/1", store.HeldReserved)
		e.refused(e.second, t.rec.Name, "host-b2/1", store.HeldReserved)
		next := e.hold(e.second, t.rec.Name, "host-b/1")
		e.larger("handoff", t.rec.Token, next.rec.Token)
		if next.rec.ReservedFor != "" || next.rec.Wait != 0 {
			e.Errorf("next term: got reserved for %q for %s, want no reservation", next.rec.ReservedFor, next.rec.Wait)
		}
		e.ok("release", e.release(next, ""))
		e.hold(e.st, t.rec.Name, "host-c/1")
	}},
	// A reservation lasts as long as a TTL, then all are let in.
	{name: "Handoff_ends", run: func(e *env) {
		t := e.must(e.st, request(e.name("job"), "a", e.short))
		e.ok("release", e.release(t, "nobody"))
		_, rec, err := e.contend(e.ctx, e.second, request(t.rec.Name, "b", long), e.short/20)
		e.ok("acquire", err)
		if since := rec.AcquiredAt.Sub(t.rec.EndedAt); since < store.HandoffTime(e.short) {
			e.Errorf("another was let in %s after the release, want at least %s", since, store.HandoffTime(e.short))
		}
	}},
	// Time that passes behind a stranger's lock is not taken off the term.
	{name: "C34", run: func(e *env) {
		if e.h.LockRow == nil {
			e.Skip("the harness cannot lock a record")
		}
		t := e.must(e.st, request(e.name("job"), "a", e.short))
		e.lapse(t.rec.Name)
		unlock := sync.OnceFunc(e.h.LockRow(e.T, t.rec.Name))
		defer unlock()
		var req store.Request
		var rec store.Record
		var err error
		var waiting sync.WaitGroup
		waiting.Go(func() {
			req, rec, err = e.contend(e.ctx, e.second, request(t.rec.Name, "b", long), time.Millisecond)
		})
		e.pause(2 * e.short)
		held := e.get(e.st, t.rec.Name).Now
		unlock()
		waiting.Wait()
		e.ok("acquire behind a lock", err)
		e.won(e.second, req, rec)
		grain := e.st.Features().Granularity
		if rec.AcquiredAt.Add(grain).Before(held) {
			e.Errorf("term began at %s, while the record was still locked at %s", rec.AcquiredAt, held)
		}
		if life := rec.ExpiresAt.Sub(held); life < long-grain {
			e.Errorf("expiry: got %s after the lock was held last, want at least %s", life, long)
		}
		if rec.Remaining < long-grain {
			e.Errorf("remaining: got %s, want %s", rec.Remaining, long)
		}
	}},
	{name: "ClockNotAfter", alone: true, run: func(e *env) {
		if e.h.StepClock == nil {
			e.Skip("the harness cannot step the store's clock")
		}
		t, free := e.hold(e.st, e.name("job"), "a"), e.hold(e.st, e.name("free"), "a")
		e.ok("release", e.release(free, ""))
		most := t.rec.Now.Add(2 * long)
		e.h.StepClock(e.T, 24*time.Hour)
		before := e.get(e.st, t.rec.Name)
		if before.Status != store.Lapsed || !before.Now.After(most) {
			e.Fatalf("record after a step of the clock: got %s at %s, want lapsed", before.Status, before.Now)
		}
		req := request(t.rec.Name, "b", long)
		req.ClockNotAfter = most
		_, err := e.second.Acquire(e.ctx, req)
		e.is("acquire of a term that ended by the step alone", err, store.ErrClockStep)
		e.unchanged("a refused Acquire", before)
		e.is("renewal", e.renew(t), store.ErrExpired)
		req = request(free.rec.Name, "b", long)
		req.ClockNotAfter = most
		e.must(e.second, req)
		req = request(t.rec.Name, "b", long)
		req.ClockNotAfter = before.Now.Add(long)
		e.larger("a step of the clock", t.rec.Token, e.must(e.second, req).rec.Token)
	}},
	// The same, where the clock cannot be stepped: an early limit.
	{name: "ClockNotAfter_limit", run: func(e *env) {
		t := e.must(e.st, request(e.name("job"), "a", e.short))
		lapsed := e.lapse(t.rec.Name)
		req := request(t.rec.Name, "b", long)
		req.ClockNotAfter = lapsed.Now.Add(-time.Hour)
		_, err := e.second.Acquire(e.ctx, req)
		e.is("acquire by a clock that shows too much", err, store.ErrClockStep)
		e.unchanged("a refused Acquire", lapsed)
		req.Attempt, req.ClockNotAfter = store.NewAttempt(), lapsed.Now.Add(time.Hour)
		free := e.must(e.second, req)
		e.ok("release", e.release(free, ""))
		req.Attempt, req.ClockNotAfter = store.NewAttempt(), lapsed.Now.Add(-time.Hour)
		e.must(e.second, req)
	}},
}
