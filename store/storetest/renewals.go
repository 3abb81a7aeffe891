package storetest

import (
	"context"
	"sync"
	"time"

	"github.com/tenurehq/tenure/store"
)

var renewTests = []subtest{
	{name: "Renew", run: func(e *env) {
		t := e.hold(e.st, e.name("job"), "a")
		for range 3 {
			before := t.rec
			e.ok("renew", e.renew(t))
			switch {
			case t.rec.Token != before.Token || !t.rec.AcquiredAt.Equal(before.AcquiredAt) || t.rec.Holder != "a":
				e.Errorf("term after a renewal: got %+v, want the same term as %+v", stateOf(t.rec), stateOf(before))
			case t.rec.ExpiresAt.Before(before.ExpiresAt) || t.rec.RenewedAt.Before(before.RenewedAt):
				e.Errorf("expiry went back from %s to %s", before.ExpiresAt, t.rec.ExpiresAt)
			case t.rec.Remaining <= 0 || t.rec.Remaining > long:
				e.Errorf("remaining after a renewal: got %s, want more than 0s and at most %s", t.rec.Remaining, long)
			}
			e.unchanged("the answer to a renewal", t.rec)
		}
	}},
	// A term lives for the TTL of its last renewal, be it shorter.
	{name: "Renew_TTL", run: func(e *env) {
		t := e.hold(e.st, e.name("job"), "a")
		t.grant.TTL = e.short
		e.ok("renew", e.renew(t))
		if t.rec.TTL != e.short || t.rec.Remaining > e.short {
			e.Errorf("after a renewal for %s: got a TTL of %s with %s remaining", e.short, t.rec.TTL, t.rec.Remaining)
		}
		e.lapse(t.rec.Name)
		e.hold(e.second, t.rec.Name, "b")
	}},
	// A renewal creates no record.
	{name: "Renew_missing", run: func(e *env) {
		t := e.hold(e.st, e.name("job"), "a")
		t.grant.Name = e.name("other")
		res := e.one(e.st.Renew(e.ctx, []store.Grant{t.next()}))
		e.is("renewal without a record", res.Err, store.ErrMissing)
		_, err := e.st.Get(e.ctx, t.grant.Name)
		e.is("Get after it", err, store.ErrNotFound)
		ahead := t.copy(e.st)
		ahead.grant.Name, ahead.grant.Token = t.rec.Name, t.rec.Token+5
		e.is("renewal with a larger token than the record's", e.renew(ahead), store.ErrMissing)
		e.unchanged("a renewal with a larger token", t.rec)
	}},
	// A holder is recognised by attempt: neither name nor token proves anything.
	{name: "Renew_stranger", run: func(e *env) {
		t := e.hold(e.st, e.name("job"), "a")
		stranger := t.copy(e.second)
		stranger.grant.Known = []store.Attempt{store.NewAttempt()}
		res := e.one(e.second.Renew(e.ctx, []store.Grant{stranger.next()}))
		e.is("renewal with an unknown attempt", res.Err, store.ErrSuperseded)
		if res.Record.Token != t.rec.Token {
			e.Errorf("record in the refusal: got token %s, want the one found, %s", res.Record.Token, t.rec.Token)
		}
		e.unchanged("a renewal with an unknown attempt", t.rec)
		e.ok("renewal by the holder", e.renew(t))
	}},
	// A term that somebody else took is not renewed, with the holder's own name either.
	{name: "Renew_earlier_term", run: func(e *env) {
		a := e.hold(e.st, e.name("job"), "same")
		e.ok("release", e.release(a.copy(e.st), ""))
		b := e.hold(e.second, a.rec.Name, "same")
		e.is("renewal of an earlier term", e.renew(a), store.ErrSuperseded)
		e.unchanged("renewal of an earlier term", b.rec)
	}},
}

var copyTests = []subtest{
	// Of two copies of a holder at most one is confirmed at each renewal.
	{name: "P5", run: func(e *env) {
		a := e.hold(e.st, e.name("job"), "a")
		b := a.copy(e.second)
		e.ok("first renewal", e.renew(b))
		e.is("renewal by the other copy", e.renew(a), store.ErrSuperseded)
		e.is("release by the other copy", e.release(a, ""), store.ErrSuperseded)
		e.unchanged("what the other copy sent", b.rec)
		e.ok("renewal by the copy that was first", e.renew(b))
	}},
	{name: "P5_concurrent", run: func(e *env) {
		for round := range e.rounds(20) {
			t := e.hold(e.st, e.name(numbered("job", round)), "a")
			copies := make([]store.Result, 8)
			var sends sync.WaitGroup
			for i := range copies {
				c := t.copy(e.st)
				if i%2 == 1 {
					c.st = e.second
				}
				sends.Go(func() {
					for {
						results, err := c.st.Renew(e.ctx, []store.Grant{c.next()})
						if err != nil {
							copies[i].Err = err
							return
						}
						if copies[i] = results[0]; store.Classify(results[0].Err) != store.CodeBusy {
							return
						}
					}
				})
			}
			sends.Wait()
			confirmed := 0
			for _, res := range copies {
				if res.Err == nil {
					confirmed++
				} else {
					e.is("renewal by a copy", res.Err, store.ErrSuperseded)
				}
			}
			if confirmed != 1 {
				e.Fatalf("round %d: %d of %d copies were confirmed, want 1", round, confirmed, len(copies))
			}
		}
	}},
	// An attempt is on its way when the copy is taken, and both know it. It
	// arrives first: whoever renews next is the one.
	{name: "P5_outstanding_applied", run: func(e *env) {
		a := e.hold(e.st, e.name("job"), "a")
		outstanding := a.next()
		a.sent(outstanding)
		b := a.copy(e.second)
		e.ok("the outstanding renewal", e.one(e.st.Renew(e.ctx, []store.Grant{outstanding})).Err)
		e.ok("first renewal", e.renew(b))
		e.is("renewal by the other copy", e.renew(a), store.ErrSuperseded)
		e.unchanged("what the other copy sent", b.rec)
	}},
	// It arrives after a copy renewed: it is refused, and that copy goes on.
	{name: "P5_outstanding_late", run: func(e *env) {
		a := e.hold(e.st, e.name("job"), "a")
		outstanding := a.next()
		a.sent(outstanding)
		b := a.copy(e.second)
		e.ok("first renewal", e.renew(b))
		e.is("the outstanding renewal", e.one(e.st.Renew(e.ctx, []store.Grant{outstanding})).Err, store.ErrSuperseded)
		e.is("renewal by the other copy", e.renew(a), store.ErrSuperseded)
		e.unchanged("what the other copy sent", b.rec)
		e.ok("renewal by the copy that was first", e.renew(b))
	}},
}

// Lost replies do no harm (P6), and keep nothing alive.
var replyTests = []subtest{
	// A term whose every reply is lost once: acquire, renewal and release.
	{name: "P6", run: func(e *env) {
		lossy := NewFaulty(e.st)
		lost := Fault{DropReply: true, Err: store.ErrUnavailable}
		for _, op := range []Op{OpAcquire, OpRenew, OpRelease} {
			lossy.Script(op, lost)
		}
		req := request(e.name("job"), "a", long)
		_, err := lossy.Acquire(e.ctx, req)
		e.is("Acquire", err, store.ErrUnavailable)
		first := e.get(e.second, req.Name)
		req.Known, req.Attempt = []store.Attempt{req.Attempt}, store.NewAttempt()
		t := e.must(lossy, req)
		for _, send := range []func(context.Context, []store.Grant) ([]store.Result, error){lossy.Renew, lossy.Release} {
			g := t.next()
			_, err := send(e.ctx, []store.Grant{g})
			e.is("a request whose reply is lost", err, store.ErrUnavailable)
			t.sent(g)
			g = t.next()
			res := e.one(send(e.ctx, []store.Grant{g}))
			e.ok("its retry", res.Err)
			t.confirmed(g, e.get(e.second, req.Name))
			if t.rec.Token != first.Token || !t.rec.AcquiredAt.Equal(first.AcquiredAt) {
				e.Errorf("retry: got %+v, want the term of %+v", stateOf(t.rec), stateOf(first))
			}
		}
		if rec := e.get(e.second, req.Name); rec.Status != store.Released || rec.Token != first.Token {
			e.Errorf("record: got %s with token %s, want released with %s", rec.Status, rec.Token, first.Token)
		}
	}},
	{name: "C06_renew", run: func(e *env) {
		t := e.hold(e.st, e.name("job"), "a")
		lost := t.next()
		e.ok("the renewal whose reply is lost", e.one(e.st.Renew(e.ctx, []store.Grant{lost})).Err)
		t.sent(lost)
		e.ok("next renewal", e.renew(t))
		if t.rec.Token != t.grant.Token {
			e.Errorf("token: got %s, want %s", t.rec.Token, t.grant.Token)
		}
		e.ok("the renewal after it", e.renew(t))
	}},
	// The retry overtakes the first send, which is then refused.
	{name: "C06_renew_late", run: func(e *env) {
		t := e.hold(e.st, e.name("job"), "a")
		late := t.next()
		t.sent(late)
		e.ok("the retry", e.renew(t))
		e.is("the first send, arriving late", e.one(e.st.Renew(e.ctx, []store.Grant{late})).Err, store.ErrSuperseded)
		e.unchanged("a send that arrives late", t.rec)
		e.ok("the renewal after it", e.renew(t))
	}},
	// A request that is delivered twice counts once: its own attempt is no proof.
	{name: "C06_renew_twice", run: func(e *env) {
		t := e.hold(e.st, e.name("job"), "a")
		g := t.next()
		res := e.one(e.st.Renew(e.ctx, []store.Grant{g}))
		e.ok("renew", res.Err)
		e.is("the same request again", e.one(e.st.Renew(e.ctx, []store.Grant{g})).Err, store.ErrSuperseded)
		e.unchanged("the same request again", e.extended(e.st, g, res.Record))
	}},
	{name: "C06_acquire", run: func(e *env) {
		lost := request(e.name("job"), "a", long)
		first := e.must(e.st, lost)
		retry := request(lost.Name, "a", long)
		retry.Known = []store.Attempt{lost.Attempt}
		t := e.must(e.st, retry)
		if t.rec.Token != first.rec.Token || !t.rec.AcquiredAt.Equal(first.rec.AcquiredAt) || t.rec.Revision == first.rec.Revision {
			e.Errorf("retry of an acquire: got %+v, want a new write in the term of %+v", stateOf(t.rec), stateOf(first.rec))
		}
		e.ok("renew", e.renew(t))
		e.is("renewal by the attempt whose reply was lost", e.renew(first), store.ErrSuperseded)
	}},
	{name: "C06_acquire_late", run: func(e *env) {
		late := request(e.name("job"), "a", long)
		retry := request(late.Name, "a", long)
		retry.Known = []store.Attempt{late.Attempt}
		t := e.must(e.st, retry)
		_, err := e.st.Acquire(e.ctx, late)
		e.is("the first send, arriving late", err, store.ErrHeld)
		e.unchanged("a send that arrives late", t.rec)
		e.ok("renew", e.renew(t))
	}},
	// Delivered twice, an acquire starts one term.
	{name: "C06_acquire_twice", run: func(e *env) {
		req := request(e.name("job"), "a", long)
		t := e.must(e.st, req)
		_, err := e.st.Acquire(e.ctx, req)
		e.is("the same request again", err, store.ErrHeld)
		e.unchanged("the same request again", t.rec)
	}},
	// The retry of an acquire is no renewal: what lapsed is a new term.
	{name: "C06_acquire_lapsed", run: func(e *env) {
		lost := request(e.name("job"), "a", e.short)
		first := e.must(e.st, lost)
		e.lapse(lost.Name)
		retry := request(lost.Name, "a", long)
		retry.Known = []store.Attempt{lost.Attempt}
		e.larger("expiry", first.rec.Token, e.must(e.st, retry).rec.Token)
	}},
	// An acquire whose reply never came is given back by its attempt.
	{name: "C06_acquire_given_back", run: func(e *env) {
		lost := request(e.name("job"), "a", long)
		e.must(e.st, lost)
		back := store.Grant{Name: lost.Name, Attempt: store.NewAttempt(), Known: []store.Attempt{lost.Attempt}}
		res := e.one(e.st.Release(e.ctx, []store.Grant{back}))
		e.ok("giving back", res.Err)
		if res.Record.Status != store.Released {
			e.Errorf("record: got %s, want released", res.Record.Status)
		}
		b := e.hold(e.second, lost.Name, "b")
		back.Attempt = store.NewAttempt()
		e.is("giving back what another has", e.one(e.st.Release(e.ctx, []store.Grant{back})).Err, store.ErrSuperseded)
		e.unchanged("giving back what another has", b.rec)
		back.Name = e.name("none")
		e.is("giving back without a record", e.one(e.st.Release(e.ctx, []store.Grant{back})).Err, store.ErrMissing)
	}},
	{name: "C06_release", run: func(e *env) {
		t := e.hold(e.st, e.name("job"), "a")
		lost := t.next()
		e.ok("the release whose reply is lost", e.one(e.st.Release(e.ctx, []store.Grant{lost})).Err)
		t.sent(lost)
		first := e.get(e.st, t.rec.Name)
		e.ok("next release", e.release(t, ""))
		if again := e.get(e.st, t.rec.Name); again.Status != store.Released || !again.EndedAt.Equal(first.EndedAt) {
			e.Errorf("record: got %s, ended at %s, want released once, at %s", again.Status, again.EndedAt, first.EndedAt)
		}
		b := e.hold(e.second, t.rec.Name, "b")
		e.is("a release that finds a successor", e.release(t, ""), store.ErrSuperseded)
		e.unchanged("a release that finds a successor", b.rec)
	}},
	{name: "C06_release_late", run: func(e *env) {
		t := e.hold(e.st, e.name("job"), "a")
		late := t.next()
		t.sent(late)
		e.ok("the retry", e.release(t, ""))
		before := e.get(e.st, t.rec.Name)
		if err := e.one(e.st.Release(e.ctx, []store.Grant{late})).Err; err != nil {
			e.is("the first send, arriving late", err, store.ErrReleased)
		}
		if after := e.get(e.st, t.rec.Name); after.Status != store.Released || after.Token != before.Token {
			e.Errorf("record: got %s with token %s, want released with %s", after.Status, after.Token, before.Token)
		}
		b := e.hold(e.second, t.rec.Name, "b")
		late.Attempt = store.NewAttempt()
		e.is("a send that finds a successor", e.one(e.st.Release(e.ctx, []store.Grant{late})).Err, store.ErrSuperseded)
		e.unchanged("a send that finds a successor", b.rec)
	}},
	// A renewal of unknown outcome is on record when the release comes.
	{name: "C06_release_after_lost_renewal", run: func(e *env) {
		t := e.hold(e.st, e.name("job"), "a")
		lost := t.next()
		e.ok("the renewal whose reply is lost", e.one(e.st.Renew(e.ctx, []store.Grant{lost})).Err)
		t.sent(lost)
		e.ok("release", e.release(t, ""))
		e.hold(e.second, t.rec.Name, "b")
	}},
	// Requests arrive, replies never do: each send extends the term, and when
	// the holder stops sending, as it must at TrustedUntil, the lease lapses.
	{name: "One_way_loss", run: func(e *env) {
		t := e.hold(e.st, e.name("job"), "a")
		var last store.Record
		var sends []store.Grant
		send := func() {
			e.Helper()
			g := t.next()
			res := e.one(e.st.Renew(e.ctx, []store.Grant{g}))
			e.ok("a renewal whose reply is lost", res.Err)
			rec := e.extended(e.st, g, res.Record)
			if rec.Revision == last.Revision {
				e.Errorf("a renewal whose reply is lost: got revision %q after %q", rec.Revision, last.Revision)
			}
			last = rec
			t.sent(g)
			sends = append(sends, g)
		}
		for range 5 {
			send()
		}
		for _, g := range sends { // the network delivers them again
			e.is("a request that was delivered twice", e.one(e.st.Renew(e.ctx, []store.Grant{g})).Err, store.ErrSuperseded)
		}
		e.unchanged("requests that were delivered twice", last)
		t.grant.TTL = e.short
		send()
		if end := e.lapse(last.Name); !end.ExpiresAt.Equal(last.ExpiresAt) {
			e.Errorf("lease lapsed at %s, want at the expiry of the last send, %s", end.ExpiresAt, last.ExpiresAt)
		}
		e.is("a renewal after that", e.renew(t), store.ErrExpired)
		e.larger("expiry", last.Token, e.hold(e.second, last.Name, "b").rec.Token)
	}},
	// As many attempts as may be listed are found, whichever was applied.
	{name: "Known_limit", run: func(e *env) {
		t := e.hold(e.st, e.name("job"), "a")
		for range store.MaxKnown - 1 {
			t.sent(t.next())
		}
		e.ok("renewal that lists as many attempts as it may", e.renew(t))
		for range store.MaxKnown {
			t.sent(t.next())
		}
		_, err := e.st.Renew(e.ctx, []store.Grant{t.next()})
		e.is("renewal that lists one more", err, store.ErrInvalid)
	}},
}

var batchTests = []subtest{
	{name: "Batch_empty", run: func(e *env) {
		for _, call := range []func() ([]store.Result, error){
			func() ([]store.Result, error) { return e.st.Renew(e.ctx, nil) },
			func() ([]store.Result, error) { return e.st.Release(e.ctx, nil) },
		} {
			if results, err := call(); err != nil || len(results) != 0 {
				e.Errorf("got %d results and error %v, want none", len(results), err)
			}
		}
	}},
	// Each grant has an outcome of its own, in the order of the call.
	{name: "Batch_outcomes", run: func(e *env) {
		held, revoked := e.hold(e.st, e.name("held"), "a"), e.hold(e.st, e.name("revoked"), "a")
		released, lapsed := e.hold(e.st, e.name("released"), "a"), e.must(e.st, request(e.name("lapsed"), "a", e.short))
		missing, copied := held.copy(e.st), e.hold(e.st, e.name("copied"), "a")
		missing.grant.Name = e.name("a-missing")
		e.ok("Revoke", e.st.Revoke(e.ctx, revoked.rec.Name, revoked.rec.Token, store.Revocation{Why: "test"}))
		e.ok("release", e.release(released, ""))
		e.ok("renewal by the copy", e.renew(copied.copy(e.second)))
		e.lapse(lapsed.rec.Name)
		last := e.hold(e.st, e.name("zz"), "a")
		terms := []*term{last, released, missing, copied, lapsed, revoked, held}
		wants := []error{nil, store.ErrReleased, store.ErrMissing, store.ErrSuperseded, store.ErrExpired, store.ErrRevoked, nil}
		grants := make([]store.Grant, len(terms))
		for i, t := range terms {
			grants[i] = t.next()
		}
		results, err := e.st.Renew(e.ctx, grants)
		e.ok("Renew", err)
		if len(results) != len(grants) {
			e.Fatalf("got %d results, want %d", len(results), len(grants))
		}
		for i, res := range results {
			if want := wants[i]; want == nil && res.Err == nil {
				if res.Record.Name != grants[i].Name || res.Record.Attempt != grants[i].Attempt {
					e.Errorf("result %d: got a record of %q, want the one that was renewed, %q", i, res.Record.Name, grants[i].Name)
				}
			} else if store.Classify(res.Err) != store.Classify(want) {
				e.Errorf("result %d, of %q: got error %v, want %v", i, grants[i].Name, res.Err, want)
			}
		}
	}},
	// A name occurs once in a call, or nothing is sent.
	{name: "Batch_duplicates", run: func(e *env) {
		t, other := e.hold(e.st, e.name("job"), "a"), e.hold(e.st, e.name("other"), "a")
		grants := []store.Grant{other.next(), t.next(), t.next()}
		_, err := e.st.Renew(e.ctx, grants)
		e.is("Renew of one name twice", err, store.ErrInvalid)
		_, err = e.st.Release(e.ctx, grants)
		e.is("Release of one name twice", err, store.ErrInvalid)
		e.unchanged("a refused call", t.rec)
		e.unchanged("a refused call", other.rec)
	}},
	{name: "Batch_invalid", run: func(e *env) {
		t := e.hold(e.st, e.name("job"), "a")
		bad := e.hold(e.st, e.name("other"), "a").next()
		for what, change := range map[string]func(*store.Grant){
			"a name with a space":   func(g *store.Grant) { g.Name = "a b" },
			"no known attempt":      func(g *store.Grant) { g.Known = nil },
			"no attempt":            func(g *store.Grant) { g.Attempt = store.Attempt{} },
			"its attempt as known":  func(g *store.Grant) { g.Known = []store.Attempt{g.Attempt} },
			"a zero known attempt":  func(g *store.Grant) { g.Known = []store.Attempt{{}} },
			"a negative token":      func(g *store.Grant) { g.Token = -1 },
			"too many known":        func(g *store.Grant) { g.Known = make([]store.Attempt, store.MaxKnown+1) },
			"a name that is empty":  func(g *store.Grant) { g.Name = "" },
			"a name with a newline": func(g *store.Grant) { g.Name = "a\n" },
		} {
			g := bad
			change(&g)
			_, err := e.st.Renew(e.ctx, []store.Grant{t.next(), g})
			e.is("Renew with "+what, err, store.ErrInvalid)
			_, err = e.st.Release(e.ctx, []store.Grant{t.next(), g})
			e.is("Release with "+what, err, store.ErrInvalid)
		}
		e.unchanged("a refused call", t.rec)
	}},
	{name: "Batch_2000", run: func(e *env) {
		n, stride := e.rounds(2000), 787 // coprime: every index once, far from sorted
		reqs := make(chan int)
		grants := make([]store.Grant, n)
		var acquiring sync.WaitGroup
		for range 8 {
			acquiring.Go(func() {
				for i := range reqs {
					req := request(e.name(numbered("job", i*stride%n)), "a", long)
					rec, err := e.try(e.ctx, e.st, req)
					if err != nil {
						e.Errorf("Acquire: %v", err)
					}
					grants[i] = store.Grant{Name: req.Name, Token: rec.Token, TTL: long, Known: []store.Attempt{req.Attempt}}
				}
			})
		}
		for i := range n {
			reqs <- i
		}
		close(reqs)
		acquiring.Wait()
		if e.Failed() {
			return
		}
		for _, call := range []struct {
			what string
			send func(context.Context, []store.Grant) ([]store.Result, error)
		}{{"Renew", e.st.Renew}, {"Release", e.st.Release}} {
			for i := range grants {
				grants[i].Attempt = store.NewAttempt()
			}
			results, err := call.send(e.ctx, grants)
			e.ok(call.what, err)
			if len(results) != n {
				e.Fatalf("%s: got %d results, want %d", call.what, len(results), n)
			}
			for i, res := range results {
				if res.Err != nil || res.Record.Name != grants[i].Name || res.Record.Attempt != grants[i].Attempt {
					e.Fatalf("%s: result %d: got a record of %q and error %v, want %q", call.what, i, res.Record.Name, res.Err, grants[i].Name)
				}
				grants[i].Known = []store.Attempt{grants[i].Attempt}
			}
		}
	}},
	// Batches that overlap in opposite orders wait for each other in one order.
	{name: "Batch_overlap", run: func(e *env) {
		const n = 50
		terms := make([]*term, n)
		for i := range terms {
			terms[i] = e.hold(e.st, e.name(numbered("job", i)), "a")
		}
		var senders sync.WaitGroup
		for sender := range 4 {
			st := e.st
			if sender%2 == 1 {
				st = e.second
			}
			senders.Go(func() {
				for round := range e.rounds(20) {
					grants := make([]store.Grant, n)
					for i := range grants {
						at := i
						if (sender+round)%2 == 1 {
							at = n - 1 - i
						}
						grants[i] = terms[at].next()
					}
					start := time.Now()
					results, err := st.Renew(e.ctx, grants)
					if err != nil {
						e.Errorf("overlapping Renew: got error %v after %s", err, time.Since(start))
						return
					}
					for _, res := range results {
						switch store.Classify(res.Err) {
						case "", store.CodeSuperseded, store.CodeBusy:
						default:
							e.Errorf("overlapping Renew: got error %v", res.Err)
						}
					}
				}
			})
		}
		senders.Wait()
	}},
	// A record that a stranger has locked is busy, and delays no other.
	{name: "Busy_row", run: func(e *env) {
		if e.h.LockRow == nil {
			e.Skip("the harness cannot lock a record")
		}
		terms := make([]*term, 5)
		grants := make([]store.Grant, len(terms))
		for i := range terms {
			terms[i] = e.hold(e.st, e.name(numbered("job", i)), "a")
			grants[i] = terms[i].next()
		}
		unlock := sync.OnceFunc(e.h.LockRow(e.T, terms[2].rec.Name))
		defer unlock()
		brief, cancel := context.WithTimeout(e.ctx, patient/3)
		defer cancel()
		results, err := e.st.Renew(brief, grants)
		e.ok("Renew of a batch with a busy record", err)
		for i, res := range results {
			if i == 2 {
				e.is("renewal of the busy record", res.Err, store.ErrBusy)
			} else {
				e.ok("renewal of another record", res.Err)
			}
		}
		e.unchanged("a busy record", terms[2].rec)
		res := e.one(e.second.Release(brief, []store.Grant{terms[2].next()}))
		e.is("release of the busy record", res.Err, store.ErrBusy)
		unlock()
		terms[2].sent(grants[2])
		e.eventually("the record is renewed once it is free", func() bool {
			err := e.renew(terms[2])
			if err != nil {
				e.is("renewal once the record is free", err, store.ErrBusy)
			}
			return err == nil
		})
	}},
}
