package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// What is refused before anything is sent, and what comes back as it was given.
var argumentTests = []subtest{
	{name: "C72", run: func(e *env) {
		least := e.st.Features().MinTTL
		refused := []time.Duration{
			-1, 0, 1, least - 1, -time.Hour, store.MaxTTL + 1, 366 * 24 * time.Hour,
			1 << 50 * 1000, 1<<62 - 1, 1 << 62, 1<<63 - 1, -1 << 63,
		}
		for _, ttl := range refused {
			if ttl > 0 && ttl >= least && ttl <= store.MaxTTL {
				continue // this store grants a nanosecond
			}
			_, err := e.st.Acquire(e.ctx, request(e.name("refused"), "a", ttl))
			if invalid, ok := errors.AsType[*store.InvalidError](err); !ok || invalid.Field != "ttl" {
				e.Errorf("TTL %d: got error %v, want an *InvalidError for ttl", ttl, err)
			}
		}
		_, err := e.st.Get(e.ctx, e.name("refused"))
		e.is("Get after refused TTLs", err, store.ErrNotFound)

		t := e.hold(e.st, e.name("renewed"), "a")
		for _, ttl := range refused {
			if ttl > 0 && ttl >= least && ttl <= store.MaxTTL {
				continue
			}
			g := t.next()
			g.TTL = ttl
			_, err := e.st.Renew(e.ctx, []store.Grant{g})
			e.is(fmt.Sprintf("renewal with TTL %d", ttl), err, store.ErrInvalid)
		}
		e.unchanged("refused TTLs", t.rec)

		for i, ttl := range []time.Duration{e.short, 90 * time.Second, time.Hour + 2*time.Minute + 3*time.Second + 4*time.Millisecond, store.MaxTTL - time.Millisecond, store.MaxTTL} {
			t := e.must(e.st, request(e.name(numbered("granted", i)), "a", ttl)) // must checks the TTL
			if life := t.rec.ExpiresAt.Sub(t.rec.AcquiredAt); life < ttl || life > ttl+e.st.Features().Granularity {
				e.Errorf("TTL %s: got a term of %s", ttl, life)
			}
			if rec := e.get(e.st, t.rec.Name); rec.TTL != ttl {
				e.Errorf("TTL %s: Get tells %s", ttl, rec.TTL)
			}
		}
		for _, hold := range []time.Duration{-1, store.MaxHold + 1, 1<<63 - 1, -1 << 63} {
			req := request(e.name("refused"), "a", long)
			req.MinHold = hold
			_, err := e.st.Acquire(e.ctx, req)
			e.is(fmt.Sprintf("min-hold %d", hold), err, store.ErrInvalid)
		}
		req := request(e.name("longest-hold"), "a", store.MaxTTL)
		req.MinHold = store.MaxHold
		if t := e.must(e.st, req); t.rec.Wait > store.MaxHold || t.rec.Wait < store.MaxHold-time.Hour {
			e.Errorf("wait: got %s, want %s", t.rec.Wait, store.MaxHold)
		}
	}},
	{name: "C73", run: func(e *env) {
		for _, name := range []string{
			"", "/a", "a//b", "a/", "a/../b", "a/./b", "..", ".", "a%2Fb", "a b", "a ", " a", "a\u00a0b", "é", "e\u0301", "🦊", "a\x00", "a\n", "a\u202eb",
			"-a", "_a", ".a", "a\\b", "a'b", `a"b`, "a;b", "a*", "a?b", "a#b", "a=b", "a,b", "a\xff", strings.Repeat("a", store.MaxName+1), strings.Repeat("a", 10_000),
		} {
			t := &term{st: e.st, grant: store.Grant{Name: name, Token: 1, TTL: long, Known: []store.Attempt{store.NewAttempt()}}}
			_, acquired := e.st.Acquire(e.ctx, request(name, "a", long))
			_, renewed := e.st.Renew(e.ctx, []store.Grant{t.next()})
			_, released := e.st.Release(e.ctx, []store.Grant{t.next()})
			_, got := e.st.Get(e.ctx, name)
			for what, err := range map[string]error{
				"Acquire": acquired, "Renew": renewed, "Release": released, "Get": got,
				"Revoke": e.st.Revoke(e.ctx, name, 1, store.Revocation{}),
			} {
				e.is(fmt.Sprintf("%s of %.20q", what, name), err, store.ErrInvalid)
			}
			if name != "" { // which means all names
				e.is(fmt.Sprintf("RaiseFloor of %.20q", name), e.st.RaiseFloor(e.ctx, name, 1), store.ErrInvalid)
			}
			_, holder := e.st.Acquire(e.ctx, request(e.name("job"), name, long))
			e.is(fmt.Sprintf("Acquire by %.20q", name), holder, store.ErrInvalid)
		}
		for _, prefix := range []string{"a b", "a%", "é", "a\x00"} {
			for _, err := range e.st.List(e.ctx, prefix) {
				e.is(fmt.Sprintf("List of %q", prefix), err, store.ErrInvalid)
			}
		}
		_, err := e.st.Get(e.ctx, e.name("job"))
		e.is("Get after refused names", err, store.ErrNotFound)

		// Two names that are accepted and differ never share a record.
		names := []string{"Job", "job", "JOB", "a", "A", "a.", "a-", "a_", "a:", "a@", "a+", "a/b", "a-b", "a.b", "a_b", "aXb", "a0", "aa", "ab", "b", "B", "Z", "z", "0", "a/B", "a/b.c", "a/b/c", "...", "a/..."}
		for _, n := range []int{64, 65, store.MaxName} {
			names = append(names, strings.Repeat("x", n-len(e.name(""))))
		}
		tokens := make(map[string]fence.Token)
		for i, name := range names {
			tokens[e.name(name)] = e.hold(e.st, e.name(name), numbered("host", i)).rec.Token
		}
		for i, name := range names {
			rec := e.get(e.second, e.name(name))
			if rec.Name != e.name(name) || rec.Holder != numbered("host", i) {
				e.Errorf("Get of %q: got %q held by %q, want the holder %q", e.name(name), rec.Name, rec.Holder, numbered("host", i))
			}
		}
		// They come in byte order, and each can be got by what was listed.
		var listed []string
		for _, rec := range e.list(e.second, e.name("")) {
			listed = append(listed, rec.Name)
			if got := e.get(e.st, rec.Name); stateOf(got) != stateOf(rec) || tokens[rec.Name] != rec.Token {
				e.Errorf("record of %q: listed as %+v, got as %+v", rec.Name, stateOf(rec), stateOf(got))
			}
		}
		if want := slices.Sorted(maps.Keys(tokens)); !slices.Equal(listed, want) {
			e.Errorf("listed in order: got %q, want %q", listed, want)
		}
		// A prefix is text: it knows no wildcards and no case.
		for prefix, want := range map[string]int{"a_": 2, "a.": 2, "A": 1, "a/b": 3, "a/": 5, "Jo": 1, "zzz": 0} {
			if got := e.list(e.st, e.name(prefix)); len(got) != want {
				e.Errorf("listed below %q: got %d records, want %d", prefix, len(got), want)
			}
		}
	}},
	{name: "List_stops", run: func(e *env) {
		for i := range 3 {
			e.hold(e.st, e.name(numbered("job", i)), "a")
		}
		seen := 0
		for _, err := range e.st.List(e.ctx, e.prefix) {
			e.ok("List", err)
			seen++
			break
		}
		if seen != 1 {
			e.Errorf("got %d records before the break, want 1", seen)
		}
	}},
	{name: "Attempts", run: func(e *env) {
		for what, change := range map[string]func(*store.Request){
			"no attempt":             func(r *store.Request) { r.Attempt = store.Attempt{} },
			"its attempt as known":   func(r *store.Request) { r.Known = []store.Attempt{r.Attempt} },
			"a zero known attempt":   func(r *store.Request) { r.Known = []store.Attempt{{}} },
			"too many known":         func(r *store.Request) { r.Known = make([]store.Attempt, store.MaxKnown+1) },
			"a term of another name": func(r *store.Request) { r.Replace = &store.Grant{Name: "other", Token: 1} },
		} {
			req := request(e.name("job"), "a", long)
			change(&req)
			_, err := e.st.Acquire(e.ctx, req)
			e.is("Acquire with "+what, err, store.ErrInvalid)
		}
		_, err := e.st.Get(e.ctx, e.name("job"))
		e.is("Get after refused attempts", err, store.ErrNotFound)
	}},
	{name: "Operator_arguments", run: func(e *env) {
		t := e.hold(e.st, e.name("job"), "a")
		long := strings.Repeat("x", store.MaxReason+1)
		for _, rev := range []store.Revocation{{Why: long}, {By: long}, {HandoffTo: "a b"}, {Why: "a\x00b"}, {Why: "two\nlines"}, {By: "\xff"}} {
			e.is("Revoke", e.st.Revoke(e.ctx, t.rec.Name, t.rec.Token, rev), store.ErrInvalid)
		}
		for _, floor := range []fence.Token{-1, 0, 1<<63 - 1} {
			e.is("RaiseFloor", e.st.RaiseFloor(e.ctx, t.rec.Name, floor), store.ErrInvalid)
			e.is("RaiseFloor of all names", e.st.RaiseFloor(e.ctx, "", floor), store.ErrInvalid)
		}
		g := t.next()
		g.HandoffTo = "a b"
		_, err := e.st.Release(e.ctx, []store.Grant{g})
		e.is("Release to a bad name", err, store.ErrInvalid)
		e.unchanged("refused arguments", t.rec)
		longest := store.Revocation{Why: strings.Repeat("é", store.MaxReason/2), By: "O'Neil \"<b>\" \\ \u202e"}
		e.ok("Revoke", e.st.Revoke(e.ctx, t.rec.Name, t.rec.Token, longest))
		if rec := e.get(e.second, t.rec.Name); rec.Why != longest.Why || rec.RevokedBy != longest.By {
			e.Errorf("reason: got %d bytes by %q, want %d by %q", len(rec.Why), rec.RevokedBy, len(longest.Why), longest.By)
		}
	}},
	{name: "Meta", run: func(e *env) {
		req := request(e.name("job"), "a", long)
		meta := map[string]string{"": "empty", "url": "https://x.example/?a=1&b=<2>", "é\u0301🦊": "\u202e'\"\\\n\t\x00", "null": ""}
		req.Meta = maps.Clone(meta)
		t := e.must(e.st, req)
		req.Meta["url"] = "changed by the caller"
		check := func(what string, rec store.Record) {
			e.Helper()
			if !maps.Equal(rec.Meta, meta) {
				e.Errorf("meta in %s: got %q, want %q", what, rec.Meta, meta)
			}
		}
		check("the answer", t.rec)
		rec := e.get(e.second, t.rec.Name)
		check("Get", rec)
		rec.Meta["url"] = "changed by a reader"
		e.ok("renew", e.renew(t))
		check("a renewal", t.rec)
		check("List", e.list(e.st, t.rec.Name)[0])
		e.ok("release", e.release(t, ""))
		if next := e.hold(e.st, t.rec.Name, "b"); len(next.rec.Meta) != 0 {
			e.Errorf("meta of the next term: got %q, want none", next.rec.Meta)
		}

		largest := request(e.name("largest"), "a", long)
		largest.Meta = map[string]string{"k": strings.Repeat("x", store.MaxMeta-len(`{"k":""}`))}
		if t := e.must(e.st, largest); !maps.Equal(e.get(e.st, t.rec.Name).Meta, largest.Meta) {
			e.Errorf("the largest meta did not come back")
		}
		larger := request(e.name("larger"), "a", long)
		larger.Meta = map[string]string{"k": largest.Meta["k"] + "x"}
		_, err := e.st.Acquire(e.ctx, larger)
		e.is("one byte more", err, store.ErrInvalid)
		_, err = e.st.Get(e.ctx, larger.Name)
		e.is("Get after it", err, store.ErrNotFound)
	}},
	// A request whose context is over is not sent, and that is no loss.
	{name: "Context_over", run: func(e *env) {
		t := e.hold(e.st, e.name("job"), "a")
		over, cancel := context.WithCancel(e.ctx)
		cancel()
		_, acquired := e.st.Acquire(over, request(e.name("other"), "a", long))
		_, renewed := e.st.Renew(over, []store.Grant{t.next()})
		_, released := e.st.Release(over, []store.Grant{t.next()})
		_, got := e.st.Get(over, t.rec.Name)
		errs := map[string]error{
			"Acquire": acquired, "Renew": renewed, "Release": released, "Get": got,
			"Revoke":     e.st.Revoke(over, t.rec.Name, t.rec.Token, store.Revocation{Now: true}),
			"RaiseFloor": e.st.RaiseFloor(over, t.rec.Name, t.rec.Token),
		}
		for _, err := range e.st.List(over, e.prefix) {
			errs["List"] = err
		}
		for what, err := range errs {
			if store.Classify(err) != store.CodeNoContact || store.Definite(err) {
				e.Errorf("%s: got error %v, want one that is no decision", what, err)
			}
		}
		e.unchanged("requests whose context was over", t.rec)
		_, err := e.st.Get(e.ctx, e.name("other"))
		e.is("Get after an Acquire whose context was over", err, store.ErrNotFound)
	}},
}

var readTests = []subtest{
	// Reads see every write that was acknowledged before, through any client.
	{name: "P8", run: func(e *env) {
		for round := range e.rounds(20) {
			name := e.name(numbered("job", round))
			_, err := e.second.Get(e.ctx, name)
			e.is("Get before the first term", err, store.ErrNotFound)
			if records := e.list(e.second, name); len(records) != 0 {
				e.Errorf("listed before the first term: got %d records", len(records))
			}
			t := e.hold(e.st, name, "a")
			e.seen("acquire", t)
			e.ok("renew", e.renew(t))
			e.seen("renewal", t)
			e.ok("release", e.release(t, ""))
			e.seen("release", t)
		}
	}},
	{name: "Features", run: func(e *env) {
		f := e.st.Features()
		if f.Backend == "" || f.Clock == "" || f.MinTTL <= 0 || f.Granularity <= 0 || f.Reach == "" || f.TokensReset == "" || f.LosesWrites == "" || f.ClockCaution == "" {
			e.Errorf("features are incomplete: %+v", f)
		}
		if _, ok := e.st.(store.Watcher); f.Watch != ok {
			e.Errorf("features say Watch %t, the store is a Watcher: %t", f.Watch, ok)
		}
		if e.short < f.MinTTL {
			e.Errorf("the least TTL is %s, the tests use %s", f.MinTTL, e.short)
		}
	}},
	{name: "Diagnose", run: func(e *env) {
		doctor, ok := e.st.(store.Doctor)
		if !ok {
			e.Skip("the store is no Doctor")
		}
		findings, err := doctor.Diagnose(e.ctx)
		e.ok("Diagnose", err)
		for _, f := range findings {
			if f.Code == "" || f.Text == "" || (f.Severity != store.Info && f.Severity != store.Warning && f.Severity != store.Broken) {
				e.Errorf("finding is incomplete: %+v", f)
			}
		}
	}},
}

// seen checks that the other client reads what t was told.
func (e *env) seen(what string, t *term) {
	e.Helper()
	if rec := e.get(e.second, t.rec.Name); stateOf(rec) != stateOf(t.rec) {
		e.Errorf("Get after a %s: got %+v, want %+v", what, stateOf(rec), stateOf(t.rec))
	}
	if records := e.list(e.second, t.rec.Name); len(records) != 1 || stateOf(records[0]) != stateOf(t.rec) {
		e.Errorf("listed after a %s: got %+v, want %+v", what, records, stateOf(t.rec))
	}
}
