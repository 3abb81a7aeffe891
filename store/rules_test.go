package store_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

var names = []struct {
	name string
	ok   bool
}{
	{"a", true}, {"A", true}, {"0", true}, {"Job", true}, {"nightly-invoice", true}, {"a.b_c-d/e:f@g+h", true}, {"node/web-7", true},
	{"a.", true}, {"a..b", true}, {"...", false}, {"a/...", true}, {"a/.b", true}, {"a/-", true}, {"a:", true}, {"1/2", true},
	{strings.Repeat("a", 64), true}, {strings.Repeat("a", 65), true}, {strings.Repeat("a", store.MaxName), true},
	{strings.Repeat("a", store.MaxName+1), false}, {strings.Repeat("a", 255), false}, {strings.Repeat("a", 256), false}, {strings.Repeat("a", 10_000), false},
	{"", false}, {"/", false}, {"/a", false}, {"a/", false}, {"a//b", false}, {"a/./b", false}, {"a/../b", false}, {"a/..", false}, {"..", false}, {".", false},
	{".a", false}, {"-a", false}, {"_a", false}, {"+a", false}, {"@a", false}, {":a", false},
	{"a%2Fb", false}, {"a b", false}, {"a ", false}, {" a", false}, {"a\u00a0b", false}, {"\u00e9", false}, {"e\u0301", false}, {"🦊", false},
	{"a\x00", false}, {"a\n", false}, {"a\r\n", false}, {"a\u202eb", false}, {"a\xff", false}, {"a\\b", false}, {"a'b", false}, {`a"b`, false}, {"a<b>", false}, {"{{x}}", false},
	{"a*", false}, {"a?", false}, {"a#", false}, {"a;b", false}, {"a,b", false}, {"a=b", false}, {"a~b", false}, {"a$b", false},
}

func TestCheckNames(t *testing.T) {
	t.Parallel()
	for field, check := range map[string]func(string) error{"name": store.CheckName, "holder": store.CheckHolder, "slot": store.CheckSlot} {
		for _, c := range names {
			err := check(c.name)
			invalid, ok := errors.AsType[*store.InvalidError](err)
			switch {
			case c.ok && err != nil:
				t.Errorf("%s %.40q: got error %v, want it accepted", field, c.name, err)
			case c.ok:
			case !ok || !errors.Is(err, store.ErrInvalid):
				t.Errorf("%s %.40q: got error %v, want an *InvalidError", field, c.name, err)
			case invalid.Field != field || invalid.Rule == "" || len(invalid.Value) > 80 || !strings.HasPrefix(c.name, strings.TrimSuffix(invalid.Value, "…")):
				t.Errorf("%s %.40q: got %+v, want it to name the field and the value, shortened", field, c.name, invalid)
			}
		}
	}
}

func TestCheckPrefix(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "a", "a/", "/", ".", "-", "a//b", "a_"} {
		if err := store.CheckPrefix(prefix); err != nil {
			t.Errorf("prefix %q: got error %v", prefix, err)
		}
	}
	for _, prefix := range []string{"%", "a b", "é", "\x00", "a*"} {
		if err := store.CheckPrefix(prefix); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("prefix %q: got error %v, want ErrInvalid", prefix, err)
		}
	}
}

func TestCheckTTL(t *testing.T) {
	t.Parallel()
	const least = 20 * time.Millisecond
	for _, c := range []struct {
		ttl, least time.Duration
		ok         bool
	}{
		{least, least, true}, {least - 1, least, false}, {time.Second, least, true}, {store.MaxTTL, least, true}, {store.MaxTTL + 1, least, false},
		{0, 0, false}, {-1, 0, false}, {1, 0, true}, {-1 << 63, least, false}, {1<<63 - 1, least, false}, {1 << 62, least, false}, {1 << 53, least, false}, {1 << 50 / 16, least, true},
	} {
		err := store.CheckTTL(c.ttl, c.least)
		if c.ok != (err == nil) || !c.ok && !errors.Is(err, store.ErrInvalid) {
			t.Errorf("TTL %d with at least %s: got error %v, want accepted: %t", c.ttl, c.least, err, c.ok)
		}
		if err != nil && (!strings.Contains(err.Error(), c.ttl.String()) || !strings.Contains(err.Error(), store.MaxTTL.String())) {
			t.Errorf("TTL %d: message %q does not name the value and the range", c.ttl, err)
		}
	}
}

func request() store.Request {
	return store.Request{Name: "job", Holder: "host/1", TTL: time.Minute, Attempt: store.NewAttempt()}
}

func grant() store.Grant {
	return store.Grant{Name: "job", Token: 3, TTL: time.Minute, Attempt: store.NewAttempt(), Known: []store.Attempt{store.NewAttempt()}}
}

// attempts returns n attempts.
func attempts(n int) []store.Attempt {
	list := make([]store.Attempt, n)
	for i := range list {
		list[i] = store.NewAttempt()
	}
	return list
}

func TestRequestCheck(t *testing.T) {
	t.Parallel()
	meta := func(n int) map[string]string { return map[string]string{"k": strings.Repeat("x", n-len(`{"k":""}`))} }
	for _, c := range []struct {
		name   string
		change func(*store.Request)
		field  string // "" if it is accepted
	}{
		{"plain", func(*store.Request) {}, ""},
		{"all", func(r *store.Request) {
			r.Known, r.MinHold, r.IfRevision, r.ClockNotAfter, r.Meta = attempts(store.MaxKnown), store.MaxHold, "7", time.Now(), meta(store.MaxMeta)
			r.Replace = &store.Grant{Name: "job", Token: 1}
		}, ""},
		{"name", func(r *store.Request) { r.Name = "a b" }, "name"},
		{"holder", func(r *store.Request) { r.Holder = "" }, "holder"},
		{"ttl below", func(r *store.Request) { r.TTL = time.Millisecond - 1 }, "ttl"},
		{"ttl above", func(r *store.Request) { r.TTL = store.MaxTTL + 1 }, "ttl"},
		{"no attempt", func(r *store.Request) { r.Attempt = store.Attempt{} }, "attempt"},
		{"own attempt known", func(r *store.Request) { r.Known = []store.Attempt{r.Attempt} }, "known"},
		{"zero attempt known", func(r *store.Request) { r.Known = []store.Attempt{{}} }, "known"},
		{"too many known", func(r *store.Request) { r.Known = attempts(store.MaxKnown + 1) }, "known"},
		{"min-hold below", func(r *store.Request) { r.MinHold = -1 }, "min_hold"},
		{"min-hold above", func(r *store.Request) { r.MinHold = store.MaxHold + 1 }, "min_hold"},
		{"replaces another name", func(r *store.Request) { r.Replace = &store.Grant{Name: "other", Token: 1} }, "replace"},
		{"replaces no term", func(r *store.Request) { r.Replace = &store.Grant{Name: "job"} }, "replace"},
		{"meta above", func(r *store.Request) { r.Meta = meta(store.MaxMeta + 1) }, "meta"},
		{"meta above when escaped", func(r *store.Request) { r.Meta = map[string]string{"k": strings.Repeat("\n", store.MaxMeta/2)} }, "meta"},
	} {
		req := request()
		c.change(&req)
		checkField(t, c.name, req.Check(time.Millisecond), c.field)
	}
}

func TestGrantCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		change         func(*store.Grant)
		renew, release string // the field that is named, "" if it is accepted
	}{
		{"plain", func(*store.Grant) {}, "", ""},
		{"known at the limit", func(g *store.Grant) { g.Known = attempts(store.MaxKnown) }, "", ""},
		{"handoff", func(g *store.Grant) { g.HandoffTo = "host-b" }, "", ""},
		{"bad handoff", func(g *store.Grant) { g.HandoffTo = "a b" }, "", "handoff"},
		{"name", func(g *store.Grant) { g.Name = "" }, "name", "name"},
		{"no token", func(g *store.Grant) { g.Token = 0 }, "token", ""},
		{"negative token", func(g *store.Grant) { g.Token = -1 }, "token", "token"},
		{"no TTL", func(g *store.Grant) { g.TTL = 0 }, "ttl", ""},
		{"no attempt", func(g *store.Grant) { g.Attempt = store.Attempt{} }, "attempt", "attempt"},
		{"nothing known", func(g *store.Grant) { g.Known = nil }, "known", "known"},
		{"own attempt known", func(g *store.Grant) { g.Known = append(g.Known, g.Attempt) }, "known", "known"},
		{"zero attempt known", func(g *store.Grant) { g.Known = append(g.Known, store.Attempt{}) }, "known", "known"},
		{"too many known", func(g *store.Grant) { g.Known = attempts(store.MaxKnown + 1) }, "known", "known"},
	} {
		g := grant()
		c.change(&g)
		checkField(t, c.name+", renew", g.CheckRenew(time.Millisecond), c.renew)
		checkField(t, c.name+", release", g.CheckRelease(), c.release)
	}
}

func TestRevocationCheck(t *testing.T) {
	t.Parallel()
	most := strings.Repeat("x", store.MaxReason)
	for _, c := range []struct {
		rev   store.Revocation
		field string
	}{
		{store.Revocation{}, ""}, {store.Revocation{Why: most, By: most, HandoffTo: "host-b", Now: true}, ""},
		{store.Revocation{Why: most + "x"}, "reason"}, {store.Revocation{By: most + "x"}, "by"},
		{store.Revocation{Why: "a\x00"}, "reason"}, {store.Revocation{Why: "a\nb"}, "reason"}, {store.Revocation{By: "\xff"}, "by"}, {store.Revocation{HandoffTo: "a b"}, "handoff"},
	} {
		checkField(t, fmt.Sprintf("%.40v", c.rev), c.rev.Check(), c.field)
	}
}

func TestCheckFloor(t *testing.T) {
	t.Parallel()
	const most = fence.Token(1<<63 - 1 - 1<<32)
	for _, c := range []struct {
		name  string
		floor fence.Token
		field string
	}{
		{"job", 1, ""}, {"", 1, ""}, {"job", most, ""}, {"job", most + 1, "floor"}, {"job", 1<<63 - 1, "floor"}, {"job", 0, "floor"}, {"", -1, "floor"}, {"a b", 1, "name"},
	} {
		checkField(t, fmt.Sprintf("floor %d of %q", c.floor, c.name), store.CheckFloor(c.name, c.floor), c.field)
	}
}

// checkField checks that err is an *InvalidError that names field, or nil if field is "".
func checkField(t *testing.T, what string, err error, field string) {
	t.Helper()
	if field == "" {
		if err != nil {
			t.Errorf("%s: got error %v, want none", what, err)
		}
		return
	}
	invalid, ok := errors.AsType[*store.InvalidError](err)
	if !ok || invalid.Field != field || invalid.Rule == "" || !errors.Is(err, store.ErrInvalid) {
		t.Errorf("%s: got error %v, want an *InvalidError for %s", what, err, field)
	}
}

func TestHandoffTime(t *testing.T) {
	t.Parallel()
	for ttl, want := range map[time.Duration]time.Duration{
		time.Second: time.Second, store.MaxHandoff: store.MaxHandoff, time.Hour: store.MaxHandoff,
	} {
		if got := store.HandoffTime(ttl); got != want {
			t.Errorf("TTL %s: got %s, want %s", ttl, got, want)
		}
	}
}

func TestReserved(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		whom, holder string
		want         bool
	}{
		{"host-b", "host-b", true}, {"host-b", "host-b/1/x", true}, {"host-b/1", "host-b/1", true}, {"host-b/1/x", "host-b/1/x", true},
		{"host-b/1", "host-b/1/x", false}, {"host-b", "host-b2", false}, {"host-b", "host-b2/1", false}, {"host-b/1", "host-b", false}, {"host-b", "host-c/host-b", false},
		{"", "host-b", false}, {"", "", false}, {"Host-b", "host-b", false},
	} {
		if got := store.Reserved(c.whom, c.holder); got != c.want {
			t.Errorf("reserved for %q: %q is let in: got %t, want %t", c.whom, c.holder, got, c.want)
		}
	}
}
