package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// What only some stores implement: watching, history and slots.

var watchTests = []subtest{
	{name: "Watch", run: func(e *env) {
		name := e.name("job")
		t := e.hold(e.st, name, "a")
		events, others := e.watch(e.ctx, e.second, name), e.watch(e.ctx, e.st, name)
		expect := func(what string, held bool) {
			e.Helper()
			for i, ch := range []<-chan store.Event{events, others} {
				event := e.event(fmt.Sprintf("%s, watcher %d", what, i), ch, held)
				if event.Name != name || event.Waiters < 1 || event.Remaining > long || held != (event.Remaining > 0) {
					e.Errorf("event of %s: got %+v", what, event)
				}
			}
		}
		e.ok("release", e.release(t, ""))
		expect("a release", false)
		t = e.hold(e.st, name, "b")
		expect("a grant", true)
		e.ok("Revoke", e.st.Revoke(e.ctx, name, t.rec.Token, store.Revocation{Now: true}))
		expect("a revocation", false)
	}},
	// The channel closes with its context, and another one stays.
	{name: "Watch_ends", run: func(e *env) {
		name := e.name("job")
		t := e.hold(e.st, name, "a")
		ctx, cancel := context.WithCancel(e.ctx)
		defer cancel()
		ended, stays := e.watch(ctx, e.st, name), e.watch(e.ctx, e.st, name)
		cancel()
		for {
			select {
			case _, open := <-ended:
				if open {
					continue
				}
			case <-time.After(patient):
				e.Fatalf("channel is still open %s after its context ended", patient)
			}
			break
		}
		e.ok("release", e.release(t, ""))
		e.event("a release after another watch ended", stays, false)
	}},
	// Nothing is lost between the registration and the end of a term.
	{name: "Watch_registered", run: func(e *env) {
		name := e.name("job")
		for round := range e.rounds(200) {
			t := e.hold(e.st, name, "a")
			ctx, cancel := context.WithCancel(e.ctx)
			events := e.watch(ctx, e.second, name)
			e.ok("release", e.release(t, ""))
			e.event(numbered("release in round", round), events, false)
			cancel()
		}
	}},
	{name: "Watch_other_name", run: func(e *env) {
		t := e.hold(e.st, e.name("job"), "a")
		other := e.hold(e.st, e.name("other"), "a")
		events := e.watch(e.ctx, e.st, t.rec.Name)
		e.ok("release", e.release(other, ""))
		e.ok("release", e.release(t, ""))
		for e.event("a release", events, false).Name != t.rec.Name {
			e.Errorf("got an event of another name")
		}
	}},
}

func (e *env) watch(ctx context.Context, st store.Store, name string) <-chan store.Event {
	e.Helper()
	watcher, ok := st.(store.Watcher)
	if !ok {
		e.Skip("the store is no Watcher")
	}
	events, err := watcher.Watch(ctx, name)
	if errors.Is(err, store.ErrUnsupported) {
		e.Skipf("the store cannot watch as it was opened: %v", err)
	}
	e.ok("Watch", err)
	return events
}

// event waits for an event that tells of a start, or of an end. Others may
// come before it, since events may be told twice.
func (e *env) event(what string, events <-chan store.Event, held bool) store.Event {
	e.Helper()
	deadline := time.After(patient)
	for {
		select {
		case event, open := <-events:
			if !open {
				e.Fatalf("%s: the channel closed", what)
			}
			if event.Held == held {
				return event
			}
		case <-deadline:
			e.Fatalf("%s: no event with held %t within %s", what, held, patient)
		}
	}
}

var historyTests = []subtest{
	{name: "History", run: func(e *env) {
		name := e.name("job")
		if terms := e.history(name); len(terms) != 0 {
			e.Errorf("history before the first term: got %d terms", len(terms))
		}
		released := e.hold(e.st, name, "a")
		e.ok("renew", e.renew(released))
		e.ok("release", e.release(released, ""))
		expired := e.must(e.st, request(name, "b", e.short))
		lapsed := e.lapse(name)
		revoked := e.hold(e.st, name, "c")
		e.ok("Revoke", e.st.Revoke(e.ctx, name, revoked.rec.Token, store.Revocation{Why: "disk is full"}))
		e.ok("release", e.release(revoked, ""))
		replaced := e.hold(e.st, name, "d")
		req := request(name, "e", long)
		own := replaced.next()
		req.Replace = &own
		now := e.must(e.st, req)
		freed := e.get(e.st, name)
		if freed.Token != now.rec.Token {
			e.Fatalf("record: got token %s, want %s", freed.Token, now.rec.Token)
		}
		want := []store.Term{
			{Holder: "e", Token: now.rec.Token},
			{Holder: "d", Token: replaced.rec.Token, End: "replaced"},
			{Holder: "c", Token: revoked.rec.Token, End: "revoked", Why: "disk is full"},
			{Holder: "b", Token: expired.rec.Token, End: "expired"},
			{Holder: "a", Token: released.rec.Token, End: "released"},
		}
		got := e.history(name)
		if len(got) != len(want) {
			e.Fatalf("history: got %d terms, want %d: %+v", len(got), len(want), got)
		}
		for i, w := range want {
			g := got[i]
			if g.Name != name || g.Holder != w.Holder || g.Token != w.Token || g.End != w.End || g.Why != w.Why {
				e.Errorf("term %d: got %+v, want %+v", i, g, w)
			}
			if g.AcquiredAt.IsZero() || g.EndedAt.IsZero() != (w.End == "") || (w.End != "" && g.EndedAt.Before(g.AcquiredAt)) {
				e.Errorf("term %d: got from %s to %s", i, g.AcquiredAt, g.EndedAt)
			}
		}
		if end := got[3].EndedAt; !end.Equal(lapsed.ExpiresAt) {
			e.Errorf("end of the term that lapsed: got %s, want its expiry %s", end, lapsed.ExpiresAt)
		}
	}},
}

func (e *env) history(name string) []store.Term {
	e.Helper()
	historian, ok := e.st.(store.Historian)
	if !ok {
		e.Skip("the store is no Historian")
	}
	var terms []store.Term
	for term, err := range historian.History(e.ctx, name) {
		e.ok("History", err)
		terms = append(terms, term)
	}
	return terms
}

var slotTests = []subtest{
	// A slot is done at most once, whoever asks and however often.
	{name: "Slot", run: func(e *env) {
		slots := e.slotter(e.st)
		name := e.name("job")
		_, err := slots.Slot(e.ctx, name, "2026-01-01")
		e.is("Slot before it is done", err, store.ErrNotFound)
		a := e.hold(e.st, name, "a")
		var asks sync.WaitGroup
		for i := range 50 {
			on := slots
			if i%2 == 1 {
				on = e.slotter(e.second)
			}
			asks.Go(func() {
				err := on.Done(e.ctx, a.next(), "2026-01-01")
				for errors.Is(err, store.ErrBusy) {
					err = on.Done(e.ctx, a.next(), "2026-01-01")
				}
				if err != nil {
					e.Errorf("Done under one term: %v", err)
				}
			})
		}
		asks.Wait()
		done, err := slots.Slot(e.ctx, name, "2026-01-01")
		e.ok("Slot", err)
		if done.Token != a.rec.Token || done.Holder != "a" || done.Name != name || done.Slot != "2026-01-01" || done.DoneAt.IsZero() {
			e.Errorf("slot: got %+v, want it done by %q under %s", done, "a", a.rec.Token)
		}
		e.ok("renewal after Done", e.renew(a))
		e.ok("release", e.release(a, ""))
		b := e.hold(e.second, name, "b")
		err = e.slotter(e.second).Done(e.ctx, b.next(), "2026-01-01")
		if by, ok := errors.AsType[*store.SlotError](err); !ok || by.Slot.Token != a.rec.Token || by.Slot.Holder != "a" {
			e.Errorf("Done under a later term: got error %v, want a *SlotError with token %s", err, a.rec.Token)
		}
		e.ok("Done of another slot", e.slotter(e.second).Done(e.ctx, b.next(), "2026-01-02"))
		if again, err := slots.Slot(e.ctx, name, "2026-01-01"); err != nil || again.Token != a.rec.Token {
			e.Errorf("slot: got %+v and error %v, want it as it was", again, err)
		}
	}},
	// Of the slots of one name done under terms that race, each has one token.
	{name: "Slot_stale_term", run: func(e *env) {
		slots, slot := e.slotter(e.st), "night/1"
		released, lapsed := e.hold(e.st, e.name("released"), "a"), e.must(e.st, request(e.name("lapsed"), "a", e.short))
		revoked, taken := e.hold(e.st, e.name("revoked"), "a"), e.hold(e.st, e.name("taken"), "a")
		copied := e.hold(e.st, e.name("copied"), "a")
		e.ok("release", e.release(released, ""))
		e.ok("Revoke", e.st.Revoke(e.ctx, revoked.rec.Name, revoked.rec.Token, store.Revocation{}))
		e.ok("release", e.release(taken.copy(e.st), ""))
		e.hold(e.second, taken.rec.Name, "b")
		e.ok("renewal by a copy", e.renew(copied.copy(e.second)))
		e.lapse(lapsed.rec.Name)
		missing := released.copy(e.st)
		missing.grant.Name = e.name("missing")
		for _, c := range []struct {
			what string
			t    *term
			want error
		}{
			{"a released term", released, store.ErrReleased}, {"a lapsed term", lapsed, store.ErrExpired},
			{"a revoked term", revoked, store.ErrRevoked}, {"a term that was taken over", taken, store.ErrSuperseded},
			{"a copy", copied, store.ErrSuperseded}, {"no record", missing, store.ErrMissing},
		} {
			e.is("Done under "+c.what, slots.Done(e.ctx, c.t.next(), slot), c.want)
			_, err := slots.Slot(e.ctx, c.t.grant.Name, slot)
			e.is("Slot after it", err, store.ErrNotFound)
		}
	}},
	{name: "Slot_arguments", run: func(e *env) {
		slots, t := e.slotter(e.st), e.hold(e.st, e.name("job"), "a")
		for _, slot := range []string{"", "a b", "a//b", "é"} {
			e.is("Done of a bad slot", slots.Done(e.ctx, t.next(), slot), store.ErrInvalid)
			_, err := slots.Slot(e.ctx, t.rec.Name, slot)
			e.is("Slot of a bad slot", err, store.ErrInvalid)
		}
		for _, slot := range []string{"a", "A", "a_", "aX"} {
			e.ok("Done", slots.Done(e.ctx, t.next(), slot))
		}
	}},
}

func (e *env) slotter(st store.Store) store.Slotter {
	e.Helper()
	slots, ok := st.(store.Slotter)
	if !ok {
		e.Skip("the store is no Slotter")
	}
	return slots
}

var guardTests = []subtest{
	// A guarded write with an old token changes nothing.
	{name: "P7", run: func(e *env) {
		guard := e.h.Guard
		if guard == nil {
			guard = new(highWater).guard
		}
		name := e.name("job")
		a := e.must(e.st, request(name, "a", e.short))
		e.ok("guarded write of the holder", guard(e.ctx, name, a.rec.Token))
		e.lapse(name)
		b := e.hold(e.second, name, "b")
		e.ok("guarded write of the next holder", guard(e.ctx, name, b.rec.Token))
		for range 2 {
			err := guard(e.ctx, name, a.rec.Token)
			e.is("guarded write of the earlier holder", err, fence.ErrStale)
			if stale, ok := errors.AsType[*fence.StaleError](err); ok && stale.Current != 0 && stale.Current != b.rec.Token {
				e.Errorf("current token in the refusal: got %s, want %s", stale.Current, b.rec.Token)
			}
		}
		e.ok("renew", e.renew(b))
		e.ok("guarded write after a renewal", guard(e.ctx, name, b.rec.Token))
		e.ok("release", e.release(b, ""))
		c := e.hold(e.st, name, "c")
		e.ok("guarded write of the next holder", guard(e.ctx, name, c.rec.Token))
		e.is("guarded write of the earlier holder", guard(e.ctx, name, b.rec.Token), fence.ErrStale)
	}},
	// No guarded transaction of an earlier term commits after the next grant.
	{name: "P7_open_transaction", run: func(e *env) {
		if e.h.GuardTx == nil {
			e.Skip("the harness cannot leave a guarded transaction open")
		}
		for what, finish := range map[string]func(commit func() error, rollback func()) error{
			"commit":   func(commit func() error, _ func()) error { return commit() },
			"rollback": func(_ func() error, rollback func()) error { rollback(); return nil },
		} {
			name := e.name(what)
			a := e.must(e.st, request(name, "a", e.short))
			commit, rollback, err := e.h.GuardTx(e.ctx, name, a.rec.Token)
			e.ok("guarded write in a transaction", err)
			e.lapse(name)
			brief, cancel := context.WithTimeout(e.ctx, max(2*e.short, time.Second))
			req, rec, tookErr := e.contend(brief, e.second, request(name, "b", long), e.short/20)
			cancel()
			if tookErr == nil {
				if commit() == nil {
					e.Errorf("a guarded transaction under token %s committed after token %s was granted", a.rec.Token, rec.Token)
				} else {
					rollback()
				}
				continue
			}
			e.ok(what, finish(commit, rollback))
			req.Known, req.Attempt = append(req.Known, req.Attempt), store.NewAttempt()
			_, rec, err = e.contend(e.ctx, e.second, req, e.short/20)
			e.ok("acquire after the transaction ended", err)
			e.larger("a guarded transaction", a.rec.Token, rec.Token)
			if _, rollback, err := e.h.GuardTx(e.ctx, name, a.rec.Token); err == nil {
				rollback()
				e.Errorf("a guarded write under token %s passed after token %s was granted", a.rec.Token, rec.Token)
			} else {
				e.is("guarded write of the earlier holder", err, fence.ErrStale)
			}
		}
	}},
	// An open guarded transaction does not hinder its own holder.
	{name: "P7_renewal", run: func(e *env) {
		if e.h.GuardTx == nil {
			e.Skip("the harness cannot leave a guarded transaction open")
		}
		t := e.hold(e.st, e.name("job"), "a")
		commit, rollback, err := e.h.GuardTx(e.ctx, t.rec.Name, t.rec.Token)
		e.ok("guarded write in a transaction", err)
		if err := e.renew(t); err != nil {
			rollback()
			e.Fatalf("renewal beside a guarded transaction: %v", err)
		}
		e.ok("commit", commit())
	}},
}

// highWater is the smallest guard: it remembers the largest token of each name.
type highWater struct {
	mu   sync.Mutex
	mark map[string]fence.Token
}

func (h *highWater) guard(_ context.Context, name string, token fence.Token) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if current := h.mark[name]; token < current {
		return &fence.StaleError{Resource: name, Token: token, Current: current}
	}
	if h.mark == nil {
		h.mark = make(map[string]fence.Token)
	}
	h.mark[name] = token
	return nil
}
