package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tenurehq/tenure/store"
)

var (
	mine, unanswered, foreign = store.Attempt{1}, store.Attempt{2}, store.Attempt{3}
	noon                      = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
)

// record is a live term of host-a with token 5, as the tables below change it.
func record(changes ...func(*store.Record)) *store.Record {
	r := &store.Record{
		Name: "job", Status: store.Held, Holder: "host-a/1", Token: 5, Floor: 2, Revision: "7", Attempt: mine,
		TTL: time.Minute, Remaining: 20 * time.Second, Now: noon,
	}
	for _, change := range changes {
		change(r)
	}
	return r
}

func ended(s store.Status) func(*store.Record) {
	return func(r *store.Record) { r.Status, r.Remaining = s, 0 }
}

func waits(d time.Duration, reservedFor string) func(*store.Record) {
	return func(r *store.Record) { r.Wait, r.ReservedFor = d, reservedFor }
}

func revoked(r *store.Record)     { r.Revoked = true }
func atFloor(r *store.Record)     { r.Floor = r.Token }
func withoutSend(r *store.Record) { r.Attempt = store.Attempt{} }
func byAnother(r *store.Record)   { r.Attempt = foreign }
func unheld(r *store.Record) {
	*r = store.Record{Name: "job", Status: store.Unheld, Floor: 9, Revision: "7", Now: noon}
}

func TestJudgeAcquire(t *testing.T) {
	t.Parallel()
	own := func(known ...store.Attempt) *store.Grant { return &store.Grant{Name: "job", Token: 5, Known: known} }
	for _, c := range []struct {
		name   string
		found  *store.Record
		req    store.Request
		want   store.Verdict
		err    error
		reason string        // of a *HeldError
		wait   time.Duration // its Remaining
	}{
		{"no record", nil, store.Request{}, store.Start, nil, "", 0},
		{"no record, at a revision", nil, store.Request{IfRevision: "7"}, store.Refuse, store.ErrMissing, "", 0},
		{"no record, attempts known", nil, store.Request{Known: []store.Attempt{mine}}, store.Start, nil, "", 0},
		{"unheld", record(unheld), store.Request{}, store.Start, nil, "", 0},
		{"unheld, at another revision", record(unheld), store.Request{IfRevision: "6"}, store.Refuse, store.ErrHeld, store.HeldChanged, 0},

		{"held", record(), store.Request{}, store.Refuse, store.ErrHeld, store.HeldByTerm, 20 * time.Second},
		{"held by the same name", record(), store.Request{Holder: "host-a/1"}, store.Refuse, store.ErrHeld, store.HeldByTerm, 20 * time.Second},
		{"held, min-hold is longer", record(waits(time.Minute, "")), store.Request{}, store.Refuse, store.ErrHeld, store.HeldByTerm, time.Minute},
		{"held, at its revision", record(), store.Request{IfRevision: "7"}, store.Refuse, store.ErrHeld, store.HeldByTerm, 20 * time.Second},
		{"held by an unknown attempt", record(), store.Request{Known: []store.Attempt{foreign}}, store.Refuse, store.ErrHeld, store.HeldByTerm, 20 * time.Second},
		{"lost reply", record(), store.Request{Known: []store.Attempt{unanswered, mine}}, store.Continue, nil, "", 0},
		{"own send is no proof", record(), store.Request{Attempt: mine}, store.Refuse, store.ErrHeld, store.HeldByTerm, 20 * time.Second},
		{"lost reply, revoked", record(revoked), store.Request{Known: []store.Attempt{mine}}, store.Refuse, store.ErrHeld, store.HeldByTerm, 20 * time.Second},
		{"lost reply, floor raised", record(atFloor), store.Request{Known: []store.Attempt{mine}}, store.Refuse, store.ErrHeld, store.HeldByTerm, 20 * time.Second},
		{"lost reply, lapsed", record(ended(store.Lapsed)), store.Request{Known: []store.Attempt{mine}}, store.Start, nil, "", 0},

		{"replace", record(), store.Request{Replace: own(mine)}, store.Start, nil, "", 0},
		{"replace during min-hold", record(waits(time.Minute, "")), store.Request{Replace: own(mine)}, store.Start, nil, "", 0},
		{"replace by a copy", record(byAnother), store.Request{Replace: own(mine)}, store.Refuse, store.ErrHeld, store.HeldByTerm, 20 * time.Second},
		{"replace a revoked term", record(revoked), store.Request{Replace: own(mine)}, store.Refuse, store.ErrHeld, store.HeldByTerm, 20 * time.Second},
		{"replace another token", record(), store.Request{Replace: &store.Grant{Name: "job", Token: 4, Known: []store.Attempt{mine}}}, store.Refuse, store.ErrHeld, store.HeldByTerm, 20 * time.Second},

		{"lapsed", record(ended(store.Lapsed)), store.Request{}, store.Start, nil, "", 0},
		{"released", record(ended(store.Released)), store.Request{}, store.Start, nil, "", 0},
		{"lapsed, at its revision", record(ended(store.Lapsed)), store.Request{IfRevision: "7"}, store.Start, nil, "", 0},
		{"lapsed, at another revision", record(ended(store.Lapsed)), store.Request{IfRevision: "6"}, store.Refuse, store.ErrHeld, store.HeldChanged, 0},
		{"lapsed, revoked", record(ended(store.Lapsed), revoked), store.Request{}, store.Start, nil, "", 0},

		{"min-hold", record(ended(store.Released), waits(time.Second, "")), store.Request{}, store.Refuse, store.ErrHeld, store.HeldByMinHold, time.Second},
		{"min-hold, own name", record(ended(store.Lapsed), waits(time.Second, "")), store.Request{Holder: "host-a/1"}, store.Refuse, store.ErrHeld, store.HeldByMinHold, time.Second},
		{"reserved", record(ended(store.Released), waits(time.Second, "host-b")), store.Request{Holder: "host-c/1"}, store.Refuse, store.ErrHeld, store.HeldReserved, time.Second},
		{"reserved for it", record(ended(store.Released), waits(time.Second, "host-b")), store.Request{Holder: "host-b/1"}, store.Start, nil, "", 0},

		{"clock within", record(ended(store.Lapsed)), store.Request{ClockNotAfter: noon}, store.Start, nil, "", 0},
		{"clock beyond", record(ended(store.Lapsed)), store.Request{ClockNotAfter: noon.Add(-1)}, store.Refuse, store.ErrClockStep, "", 0},
		{"clock beyond, released", record(ended(store.Released)), store.Request{ClockNotAfter: noon.Add(-1)}, store.Start, nil, "", 0},
		{"clock beyond, held", record(), store.Request{ClockNotAfter: noon.Add(-1)}, store.Refuse, store.ErrHeld, store.HeldByTerm, 20 * time.Second},
		{"clock beyond, no record", nil, store.Request{ClockNotAfter: noon.Add(-1)}, store.Start, nil, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := store.JudgeAcquire(c.found, &c.req)
			if got != c.want || !errors.Is(err, c.err) {
				t.Fatalf("got verdict %d and error %v, want %d and %v", got, err, c.want, c.err)
			}
			held, ok := errors.AsType[*store.HeldError](err)
			if ok != (c.reason != "") {
				t.Fatalf("got error %v, want a *HeldError: %t", err, c.reason != "")
			}
			if ok && (held.Reason != c.reason || held.Remaining != c.wait || held.Record.Token != c.found.Token) {
				t.Errorf("got reason %q, remaining %s, token %s, want %q, %s, %s", held.Reason, held.Remaining, held.Record.Token, c.reason, c.wait, c.found.Token)
			}
		})
	}
}

func TestJudgeRenew(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		found *store.Record
		grant store.Grant
		want  error
	}{
		{"last confirmed", record(), store.Grant{Token: 5, Known: []store.Attempt{mine}}, nil},
		{"unanswered", record(), store.Grant{Token: 5, Known: []store.Attempt{unanswered, mine}}, nil},
		{"during min-hold", record(waits(time.Minute, "")), store.Grant{Token: 5, Known: []store.Attempt{mine}}, nil},
		{"record is older", record(), store.Grant{Token: 6, Known: []store.Attempt{mine}}, store.ErrMissing},
		{"record is unheld", record(unheld), store.Grant{Token: 5, Known: []store.Attempt{mine}}, store.ErrMissing},
		{"record is newer", record(), store.Grant{Token: 4, Known: []store.Attempt{mine}}, store.ErrSuperseded},
		{"record is newer and revoked", record(revoked), store.Grant{Token: 4, Known: []store.Attempt{mine}}, store.ErrSuperseded},
		{"revoked", record(revoked), store.Grant{Token: 5, Known: []store.Attempt{mine}}, store.ErrRevoked},
		{"revoked, unknown attempt", record(revoked), store.Grant{Token: 5, Known: []store.Attempt{foreign}}, store.ErrRevoked},
		{"revoked now", record(revoked, ended(store.Released)), store.Grant{Token: 5, Known: []store.Attempt{mine}}, store.ErrRevoked},
		{"floor raised", record(atFloor), store.Grant{Token: 5, Known: []store.Attempt{mine}}, store.ErrRevoked},
		{"released", record(ended(store.Released)), store.Grant{Token: 5, Known: []store.Attempt{mine}}, store.ErrReleased},
		{"released, unknown attempt", record(ended(store.Released)), store.Grant{Token: 5, Known: []store.Attempt{foreign}}, store.ErrReleased},
		{"a copy renewed", record(byAnother), store.Grant{Token: 5, Known: []store.Attempt{mine, unanswered}}, store.ErrSuperseded},
		{"a copy renewed and lapsed", record(byAnother, ended(store.Lapsed)), store.Grant{Token: 5, Known: []store.Attempt{mine}}, store.ErrSuperseded},
		{"own send is no proof", record(), store.Grant{Token: 5, Attempt: mine, Known: []store.Attempt{unanswered}}, store.ErrSuperseded},
		{"zero attempt is no proof", record(withoutSend), store.Grant{Token: 5, Known: []store.Attempt{{}}}, store.ErrSuperseded},
		{"lapsed", record(ended(store.Lapsed)), store.Grant{Token: 5, Known: []store.Attempt{mine}}, store.ErrExpired},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := store.JudgeRenew(c.found, &c.grant); !errors.Is(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestJudgeRelease(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		found *store.Record
		grant store.Grant
		want  error
	}{
		{"held", record(), store.Grant{Token: 5, Known: []store.Attempt{mine}}, nil},
		{"lapsed", record(ended(store.Lapsed)), store.Grant{Token: 5, Known: []store.Attempt{mine}}, nil},
		{"revoked", record(revoked), store.Grant{Token: 5, Known: []store.Attempt{mine}}, nil},
		{"floor raised", record(atFloor), store.Grant{Token: 5, Known: []store.Attempt{mine}}, nil},
		{"by an earlier send", record(ended(store.Released)), store.Grant{Token: 5, Known: []store.Attempt{unanswered, mine}}, nil},
		{"by somebody else", record(byAnother, ended(store.Released)), store.Grant{Token: 5, Known: []store.Attempt{mine}}, store.ErrReleased},
		{"a copy renewed", record(byAnother), store.Grant{Token: 5, Known: []store.Attempt{mine}}, store.ErrSuperseded},
		{"a copy renewed and lapsed", record(byAnother, ended(store.Lapsed)), store.Grant{Token: 5, Known: []store.Attempt{mine}}, store.ErrSuperseded},
		{"record is newer", record(), store.Grant{Token: 4, Known: []store.Attempt{mine}}, store.ErrSuperseded},
		{"record is older", record(), store.Grant{Token: 6, Known: []store.Attempt{mine}}, store.ErrMissing},
		{"own send is no proof", record(), store.Grant{Token: 5, Attempt: mine, Known: []store.Attempt{unanswered}}, store.ErrSuperseded},
		{"given back", record(), store.Grant{Known: []store.Attempt{mine}}, nil},
		{"given back, lapsed", record(ended(store.Lapsed)), store.Grant{Known: []store.Attempt{mine}}, nil},
		{"given back twice", record(ended(store.Released)), store.Grant{Known: []store.Attempt{mine}}, nil},
		{"given back, another has it", record(byAnother), store.Grant{Known: []store.Attempt{mine}}, store.ErrSuperseded},
		{"given back, never applied", record(unheld), store.Grant{Known: []store.Attempt{mine}}, store.ErrSuperseded},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := store.JudgeRelease(c.found, &c.grant); !errors.Is(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestFree(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		record *store.Record
		holder string
		want   bool
	}{
		{"held", record(), "host-a/1", false},
		{"lapsed", record(ended(store.Lapsed)), "host-b/1", true},
		{"released", record(ended(store.Released)), "host-b/1", true},
		{"unheld", record(unheld), "host-b/1", true},
		{"min-hold", record(ended(store.Released), waits(time.Second, "")), "host-b/1", false},
		{"reserved", record(ended(store.Released), waits(time.Second, "host-b")), "host-c/1", false},
		{"reserved for it", record(ended(store.Released), waits(time.Second, "host-b")), "host-b/1", true},
	} {
		if got := c.record.Free(c.holder); got != c.want {
			t.Errorf("%s: got free %t for %s, want %t", c.name, got, c.holder, c.want)
		}
	}
}
