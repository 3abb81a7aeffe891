package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

const (
	long    = 10 * time.Minute // a TTL that does not lapse during a test
	patient = 30 * time.Second // for what must happen, on a slow machine
)

// env is what one subtest works with.
type env struct {
	*testing.T
	h      Harness
	ctx    context.Context
	st     store.Store
	second store.Store
	short  time.Duration // a TTL that is waited for
	prefix string        // of this subtest's names
}

func newEnv(t *testing.T, h Harness, least time.Duration) *env {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patient)
	t.Cleanup(cancel)
	e := &env{T: t, h: h, ctx: ctx, st: h.Store, second: h.Store, short: least}
	if h.Second != nil {
		e.second = h.Second(t)
	}
	// The nonce lets one database serve many runs.
	base := t.Name()[strings.LastIndexByte(t.Name(), '/')+1:]
	e.prefix = strings.ToLower(rand.Text()[:10]) + "/" + base + "/"
	return e
}

// name returns a name that no other subtest uses.
func (e *env) name(suffix string) string { return e.prefix + suffix }

// rounds returns how often to repeat what is told to repeat n times.
func (e *env) rounds(n int) int {
	if testing.Short() {
		return max(n/10, 2)
	}
	return n
}

func request(name, holder string, ttl time.Duration) store.Request {
	return store.Request{Name: name, Holder: holder, TTL: ttl, Attempt: store.NewAttempt()}
}

// term is a holder's side of a term: what a keeper would keep of it.
type term struct {
	st    store.Store
	rec   store.Record // of the last confirmed write
	grant store.Grant  // to send next, but for a fresh attempt
}

// must acquires and fails the test if it does not.
func (e *env) must(st store.Store, req store.Request) *term {
	e.Helper()
	rec, err := st.Acquire(e.ctx, req)
	if err != nil {
		e.Fatalf("Acquire of %q by %s: %v", req.Name, req.Holder, err)
	}
	return e.won(st, req, rec)
}

// hold acquires name for ten minutes.
func (e *env) hold(st store.Store, name, holder string) *term {
	e.Helper()
	return e.must(st, request(name, holder, long))
}

// won checks a record that Acquire returned.
func (e *env) won(st store.Store, req store.Request, rec store.Record) *term {
	e.Helper()
	switch {
	case rec.Status != store.Held || rec.Name != req.Name || rec.Attempt != req.Attempt:
		e.Errorf("Acquire of %q returned a record that is %s, of %q, with another attempt: %t", req.Name, rec.Status, rec.Name, rec.Attempt != req.Attempt)
	case rec.Token < 1 || rec.Token <= rec.Floor || rec.Revision == "":
		e.Errorf("Acquire of %q returned token %s, floor %s, revision %q", req.Name, rec.Token, rec.Floor, rec.Revision)
	case rec.Remaining <= 0 || rec.Remaining > rec.TTL || rec.TTL != req.TTL:
		e.Errorf("Acquire of %q returned a TTL of %s with %s remaining, asked for %s", req.Name, rec.TTL, rec.Remaining, req.TTL)
	}
	return &term{st: st, rec: rec, grant: store.Grant{
		Name: req.Name, Token: rec.Token, TTL: rec.TTL, Known: []store.Attempt{rec.Attempt},
	}}
}

// copy returns the same term as a second process resumed from one image has it.
func (t *term) copy(st store.Store) *term {
	c := *t
	c.st = st
	c.grant.Known = slices.Clone(t.grant.Known)
	return &c
}

// next returns the grant to send, with a fresh attempt.
func (t *term) next() store.Grant {
	g := t.grant
	g.Attempt = store.NewAttempt()
	return g
}

// sent notes that g went out and was not answered.
func (t *term) sent(g store.Grant) { t.grant.Known = append(slices.Clone(t.grant.Known), g.Attempt) }

// confirmed notes the answer to g.
func (t *term) confirmed(g store.Grant, rec store.Record) {
	t.rec, t.grant.Known = rec, []store.Attempt{g.Attempt}
}

// renew renews as a keeper does.
func (e *env) renew(t *term) error {
	e.Helper()
	g := t.next()
	res := e.one(t.st.Renew(e.ctx, []store.Grant{g}))
	if res.Err == nil {
		t.confirmed(g, e.extended(t.st, g, res.Record))
	}
	return res.Err
}

// extended checks what a store must say of a term that g extended, and returns
// the whole record.
func (e *env) extended(st store.Store, g store.Grant, said store.Record) store.Record {
	e.Helper()
	rec := e.get(st, g.Name)
	if said.Name != g.Name || said.Status != store.Held || said.Token != g.Token || said.Attempt != g.Attempt || said.TTL < g.TTL || said.TTL != rec.TTL ||
		said.Remaining <= 0 || said.Remaining > said.TTL || said.Now.IsZero() || !said.RenewedAt.Equal(rec.RenewedAt) || !said.ExpiresAt.Equal(rec.ExpiresAt) {
		e.Errorf("answer to a renewal of %q with attempt %s: got %+v, and the record is %+v", g.Name, g.Attempt, said, rec)
	}
	return rec
}

// release releases as a keeper does, for a handoff if that is not "".
func (e *env) release(t *term, handoffTo string) error {
	e.Helper()
	g := t.next()
	g.HandoffTo = handoffTo
	res := e.one(t.st.Release(e.ctx, []store.Grant{g}))
	if res.Err == nil {
		t.confirmed(g, res.Record)
	}
	return res.Err
}

// one returns the only result of a call.
func (e *env) one(results []store.Result, err error) store.Result {
	e.Helper()
	if err != nil {
		e.Fatalf("request failed as a whole: %v", err)
	}
	if len(results) != 1 {
		e.Fatalf("got %d results, want 1", len(results))
	}
	return results[0]
}

// ok fails the test now if err is not nil.
func (e *env) ok(what string, err error) {
	e.Helper()
	if err != nil {
		e.Fatalf("%s: got error %v, want none", what, err)
	}
}

// is checks that err matches want.
func (e *env) is(what string, err, want error) {
	e.Helper()
	if !errors.Is(err, want) {
		e.Errorf("%s: got error %v, want one matching %q", what, err, want)
	}
}

// refused checks that holder cannot acquire name now and why, and returns the facts.
func (e *env) refused(st store.Store, name, holder, reason string) *store.HeldError {
	e.Helper()
	_, err := st.Acquire(e.ctx, request(name, holder, long))
	held, ok := errors.AsType[*store.HeldError](err)
	if !ok {
		e.Fatalf("Acquire of %q by %s: got error %v, want a *HeldError", name, holder, err)
	}
	if held.Reason != reason {
		e.Errorf("Acquire of %q by %s: refused as %q, want %q", name, holder, held.Reason, reason)
	}
	return held
}

func (e *env) get(st store.Store, name string) store.Record {
	e.Helper()
	rec, err := st.Get(e.ctx, name)
	if err != nil {
		e.Fatalf("Get of %q: %v", name, err)
	}
	return rec
}

// state is what of a record stays while nothing is written.
type state struct {
	Name                                      string
	Holder                                    string
	Token, Floor                              fence.Token
	Revision                                  store.Revision
	Attempt                                   store.Attempt
	TTL                                       time.Duration
	Revoked                                   bool
	Why, By                                   string
	AcquiredAt, RenewedAt, ExpiresAt, EndedAt int64
}

func stateOf(r store.Record) state {
	at := func(t time.Time) int64 {
		if t.IsZero() {
			return 0
		}
		return t.UnixNano()
	}
	return state{
		r.Name, r.Holder, r.Token, r.Floor, r.Revision, r.Attempt, r.TTL, r.Revoked, r.Why, r.RevokedBy,
		at(r.AcquiredAt), at(r.RenewedAt), at(r.ExpiresAt), at(r.EndedAt),
	}
}

// unchanged checks that nothing was written to a record since before.
func (e *env) unchanged(what string, before store.Record) {
	e.Helper()
	after := e.get(e.st, before.Name)
	if stateOf(before) != stateOf(after) || !maps.Equal(before.Meta, after.Meta) {
		e.Errorf("%s: the record was changed\n got %+v\nwant %+v", what, stateOf(after), stateOf(before))
	}
}

// pause waits for d, for time that must pass in the store.
func (e *env) pause(d time.Duration) {
	e.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-e.ctx.Done():
		e.Fatalf("test ran out of time: %v", e.ctx.Err())
	}
}

// eventually polls until done reports true.
func (e *env) eventually(what string, done func() bool) {
	e.Helper()
	for start := time.Now(); !done(); e.pause(max(time.Millisecond, e.short/20)) {
		if time.Since(start) > patient {
			e.Fatalf("still not so after %s: %s", patient, what)
		}
	}
}

// lapse waits until no term of name is held, and returns the record.
func (e *env) lapse(name string) store.Record {
	e.Helper()
	rec := e.get(e.st, name)
	for start := time.Now(); rec.Status == store.Held; rec = e.get(e.st, name) {
		if time.Since(start) > patient {
			e.Fatalf("lease %q is still held after %s, remaining %s", name, patient, rec.Remaining)
		}
		e.pause(max(time.Millisecond, min(rec.Remaining, time.Second)))
	}
	return rec
}

// contend tries to acquire, as a waiter that polls, until it wins. It lists
// the attempts whose outcome is unknown.
func (e *env) contend(ctx context.Context, st store.Store, req store.Request, every time.Duration) (store.Request, store.Record, error) {
	for {
		rec, err := st.Acquire(ctx, req)
		switch {
		case err == nil:
			return req, rec, nil
		case ctx.Err() != nil:
			return req, rec, err
		case errors.Is(err, store.ErrHeld), errors.Is(err, store.ErrBusy):
		case store.Classify(err) == store.CodeNoContact:
			req.Known = append(slices.Clone(req.Known), req.Attempt)
		default:
			return req, rec, err
		}
		req.Attempt = store.NewAttempt()
		select {
		case <-time.After(every):
		case <-ctx.Done():
		}
	}
}

// list returns the records below prefix.
func (e *env) list(st store.Store, prefix string) []store.Record {
	e.Helper()
	var records []store.Record
	for rec, err := range st.List(e.ctx, prefix) {
		if err != nil {
			e.Fatalf("List of %q: %v", prefix, err)
		}
		records = append(records, rec)
	}
	return records
}

// larger checks that a term's token is larger than an earlier one's.
func (e *env) larger(what string, earlier, later fence.Token) {
	e.Helper()
	if later <= earlier || later < 1 {
		e.Errorf("token after %s: got %s, want more than %s", what, later, earlier)
	}
}

func numbered(prefix string, i int) string { return fmt.Sprintf("%s-%04d", prefix, i) }
