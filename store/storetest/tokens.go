package storetest

import (
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

var tokenTests = []subtest{
	// Every new term has a larger token, the first is 1 or more.
	{name: "P1", run: func(e *env) {
		name := e.name("job")
		a := e.hold(e.st, name, "a")
		e.larger("none", 0, a.rec.Token)
		e.ok("renew", e.renew(a))
		if a.rec.Token != a.grant.Token {
			e.Errorf("token after a renewal: got %s, want %s", a.rec.Token, a.grant.Token)
		}
		e.ok("release", e.release(a, ""))
		if rec := e.get(e.st, name); rec.Status != store.Released || rec.Token != a.grant.Token {
			e.Errorf("record after release: got %s with token %s, want released with %s", rec.Status, rec.Token, a.grant.Token)
		}
		b := e.must(e.st, request(name, "a", e.short))
		e.larger("release", a.rec.Token, b.rec.Token)
		e.lapse(name)
		c := e.hold(e.st, name, "a")
		e.larger("expiry", b.rec.Token, c.rec.Token)
		req := request(name, "a", long)
		replaced := c.next()
		req.Replace = &replaced
		d := e.must(e.st, req)
		e.larger("replacement", c.rec.Token, d.rec.Token)
	}},
	{name: "P1_restart", alone: true, run: func(e *env) {
		if e.h.Restart == nil {
			e.Skip("the harness cannot restart the store")
		}
		released, held := e.hold(e.st, e.name("released"), "a"), e.hold(e.st, e.name("held"), "a")
		e.ok("release", e.release(released, ""))
		e.h.Restart(e.T)
		e.eventually("the store answers", func() bool {
			_, err := e.st.Get(e.ctx, e.name("held"))
			return err == nil
		})
		e.unchanged("restart", held.rec)
		e.ok("renewal after a restart", e.renew(held))
		e.larger("a restart", released.rec.Token, e.hold(e.st, e.name("released"), "a").rec.Token)
	}},
	// Tokens that start over.
	{name: "C46", run: func(e *env) {
		name, last := e.name("job"), fence.Token(0)
		for round := range 3 {
			for i, st := range []store.Store{e.st, e.second, e.st} {
				t := e.hold(st, name, numbered("host", i))
				e.larger(numbered("round", round), last, t.rec.Token)
				last = t.rec.Token
				e.ok("renew", e.renew(t))
				if rec := e.get(st, name); rec.Token != last || t.rec.Token != last {
					e.Errorf("token after renewal and reading: got %s and %s, want %s", t.rec.Token, rec.Token, last)
				}
				if records := e.list(st, name); len(records) != 1 || records[0].Token != last {
					e.Errorf("listing after a term: got %+v, want one record with token %s", records, last)
				}
				e.ok("release", e.release(t, ""))
			}
		}
	}},
}

var cleanTests = []subtest{
	{name: "C46_clean", alone: true, run: func(e *env) {
		cleaner := e.cleaner()
		live := e.hold(e.st, e.name("live"), "a")
		released, lapsed, raised := e.name("released"), e.name("lapsed"), e.name("raised")
		var last fence.Token
		for range 5 {
			t := e.hold(e.st, released, "a")
			e.ok("release", e.release(t, ""))
			last = t.rec.Token
		}
		lapsedToken := e.must(e.st, request(lapsed, "a", e.short)).rec.Token
		e.ok("release", e.release(e.hold(e.st, raised, "a"), ""))
		floor := last + 1000
		e.ok("RaiseFloor", e.st.RaiseFloor(e.ctx, raised, floor))
		e.lapse(lapsed)
		n, err := cleaner.Clean(e.ctx, 0)
		e.ok("Clean", err)
		if n < 3 {
			e.Errorf("Clean removed %d records, want at least 3", n)
		}
		for _, name := range []string{released, lapsed, raised} {
			_, err := e.st.Get(e.ctx, name)
			e.is("Get of a cleaned "+name, err, store.ErrNotFound)
		}
		e.unchanged("Clean", live.rec)
		e.ok("renewal after Clean", e.renew(live))
		e.larger("Clean of a released lease", last, e.hold(e.second, released, "b").rec.Token)
		e.larger("Clean of a lapsed lease", lapsedToken, e.hold(e.second, lapsed, "b").rec.Token)
		e.larger("Clean of a lease with a raised floor", floor, e.hold(e.second, raised, "b").rec.Token)
	}},
	{name: "Clean_idle", alone: true, run: func(e *env) {
		cleaner := e.cleaner()
		t := e.hold(e.st, e.name("job"), "a")
		e.ok("release", e.release(t, ""))
		_, err := cleaner.Clean(e.ctx, time.Hour)
		e.ok("Clean", err)
		e.unchanged("Clean of what has been idle for an hour", t.rec)
		_, err = cleaner.Clean(e.ctx, -1)
		e.is("Clean with a negative idle time", err, store.ErrInvalid)
	}},
	{name: "Clean_keeps_holds", alone: true, run: func(e *env) {
		cleaner := e.cleaner()
		req := request(e.name("hold"), "a", long)
		req.MinHold = time.Hour
		hold, reserved := e.must(e.st, req), e.hold(e.st, e.name("reserved"), "a")
		e.ok("release", e.release(hold, ""))
		e.ok("release", e.release(reserved, "b"))
		_, err := cleaner.Clean(e.ctx, 0)
		e.ok("Clean", err)
		e.refused(e.st, hold.rec.Name, "b", store.HeldByMinHold)
		e.refused(e.st, reserved.rec.Name, "c", store.HeldReserved)
	}},
}

func (e *env) cleaner() store.Cleaner {
	cleaner, ok := e.st.(store.Cleaner)
	if !ok {
		e.Skip("the store is no Cleaner")
	}
	return cleaner
}

var floorTests = []subtest{
	{name: "Floor_name", run: func(e *env) {
		name := e.name("job")
		t := e.hold(e.st, name, "a")
		e.ok("release", e.release(t, ""))
		floor := t.rec.Token + 100
		e.ok("RaiseFloor", e.st.RaiseFloor(e.ctx, name, floor))
		if rec := e.get(e.second, name); rec.Floor != floor {
			e.Errorf("floor: got %s, want %s", rec.Floor, floor)
		}
		e.larger("RaiseFloor", floor, e.hold(e.second, name, "b").rec.Token)
	}},
	{name: "Floor_unknown_name", run: func(e *env) {
		name := e.name("job")
		other := e.hold(e.st, e.name("other"), "a")
		floor := other.rec.Token + 100
		e.ok("RaiseFloor", e.st.RaiseFloor(e.ctx, name, floor))
		if rec := e.get(e.st, name); rec.Status != store.Unheld || rec.Token != 0 || rec.Floor != floor {
			e.Errorf("record: got %s with token %s and floor %s, want unheld, 0 and %s", rec.Status, rec.Token, rec.Floor, floor)
		}
		e.unchanged("RaiseFloor of another name", other.rec)
		e.larger("RaiseFloor", floor, e.hold(e.second, name, "b").rec.Token)
	}},
	{name: "Floor_not_above", run: func(e *env) {
		name := e.name("job")
		t := e.hold(e.st, name, "a")
		e.ok("release", e.release(t, ""))
		floor := t.rec.Token + 100
		e.ok("RaiseFloor", e.st.RaiseFloor(e.ctx, name, floor))
		before := e.get(e.st, name)
		e.ok("RaiseFloor to the same", e.st.RaiseFloor(e.ctx, name, floor))
		e.ok("RaiseFloor to less", e.st.RaiseFloor(e.ctx, name, floor-1))
		e.unchanged("a floor that is not above the present one", before)
	}},
	{name: "Floor_ends_live_term", run: func(e *env) {
		name := e.name("job")
		t := e.hold(e.st, name, "a")
		e.ok("RaiseFloor", e.st.RaiseFloor(e.ctx, name, t.rec.Token))
		if rec := e.get(e.st, name); rec.Status != store.Held || !rec.Revoked {
			e.Errorf("record: got %s, revoked %t, want held and revoked", rec.Status, rec.Revoked)
		}
		e.is("renewal of a term at the floor", e.renew(t), store.ErrRevoked)
		e.refused(e.second, name, "b", store.HeldByTerm)
		e.ok("release", e.release(t, ""))
		e.larger("RaiseFloor", t.rec.Token, e.hold(e.second, name, "b").rec.Token)
	}},
	{name: "Floor_below_live_term", run: func(e *env) {
		name := e.name("job")
		first := e.hold(e.st, name, "a")
		e.ok("release", e.release(first, ""))
		t := e.hold(e.st, name, "a")
		e.ok("RaiseFloor", e.st.RaiseFloor(e.ctx, name, first.rec.Token))
		e.ok("renewal of a term above the floor", e.renew(t))
		if t.rec.Revoked || t.rec.Floor != first.rec.Token {
			e.Errorf("record: got floor %s, revoked %t, want %s and not revoked", t.rec.Floor, t.rec.Revoked, first.rec.Token)
		}
	}},
	{name: "Floor_all", alone: true, run: func(e *env) {
		live, known := e.hold(e.st, e.name("live"), "a"), e.hold(e.st, e.name("known"), "a")
		e.ok("release", e.release(known, ""))
		high := e.name("high")
		floor := live.rec.Token + 100
		e.ok("RaiseFloor", e.st.RaiseFloor(e.ctx, high, floor+100))
		above := e.hold(e.st, high, "a")
		e.ok("RaiseFloor of all names", e.st.RaiseFloor(e.ctx, "", floor))
		e.is("renewal of a term below the floor", e.renew(live), store.ErrRevoked)
		e.ok("renewal of a term above the floor", e.renew(above))
		e.larger("RaiseFloor of all names", floor, e.hold(e.second, known.rec.Name, "b").rec.Token)
		e.larger("RaiseFloor of all names", floor, e.hold(e.second, e.name("unknown"), "b").rec.Token)
		e.ok("RaiseFloor of an unknown name to less", e.st.RaiseFloor(e.ctx, e.name("less"), floor-1))
		_, err := e.st.Get(e.ctx, e.name("less"))
		e.is("Get after a floor that is not above the one for unknown names", err, store.ErrNotFound)
	}},
	// A name that has a record does not share in the floor of the unknown ones.
	{name: "Floor_all_after_clean", alone: true, run: func(e *env) {
		cleaner := e.cleaner()
		live, gone := e.hold(e.st, e.name("live"), "a"), e.name("gone")
		floor := live.rec.Token + 1000
		e.ok("RaiseFloor", e.st.RaiseFloor(e.ctx, gone, floor))
		e.ok("release", e.release(e.hold(e.st, gone, "a"), ""))
		_, err := cleaner.Clean(e.ctx, 0)
		e.ok("Clean", err)
		e.ok("renewal after larger tokens were cleaned", e.renew(live))
		e.ok("RaiseFloor of all names", e.st.RaiseFloor(e.ctx, "", floor-500))
		e.is("renewal after a floor below the one for unknown names", e.renew(live), store.ErrRevoked)
		e.larger("Clean", floor, e.hold(e.second, e.name("unknown"), "b").rec.Token)
	}},
}
