//go:build linux

package conformance_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// smallHistory is of three terms of three processes: the first released its
// term, the second's lapsed after a renewal whose reply was lost, and a write of
// it came late.
func smallHistory() *history {
	const ttl = time.Second
	at := func(ms int) time.Duration { return time.Duration(ms) * time.Millisecond }
	us := func(ms int) int64 { return at(ms).Microseconds() }
	attempt := func(n byte) store.Attempt { return store.Attempt{n} }
	call := func(id, op string, ms int, token fence.Token, n byte, known ...store.Attempt) entry {
		return entry{Kind: kindCall, ID: id, Op: op, At: at(ms), Token: token, Attempt: attempt(n), Known: known, TTL: ttl}
	}
	write := func(id, op string, ms int, token fence.Token) entry {
		return entry{Kind: kindCall, ID: id, Op: op, At: at(ms), Token: token}
	}
	row := func(token fence.Token, n byte, acquired, changed int) change {
		return change{token: token, attempt: attempt(n), acquiredUs: us(acquired), at: us(changed), committed: us(changed) + 500}
	}
	acts := func(token fence.Token, all ...int) (list []sign) {
		for _, ms := range all {
			list = append(list, sign{token: token, at: at(ms)})
		}
		return list
	}
	h := &history{
		belief: slices.Concat(acts(1, 20, 80), acts(2, 150, 900), acts(3, 2000)),
		ops: []operation{
			{entry: call("1-1", opAcquire, 5, 0, 1), returned: at(15), seen: 1, now: us(10)},
			{entry: call("2-1", opAcquire, 12, 0, 2), returned: at(30), code: store.HeldByTerm, seen: 1, now: us(20)},
			{entry: write("1-2", opJoined, 40, 1), returned: at(60), seen: 1},
			{entry: call("1-3", opRelease, 90, 1, 3, attempt(1)), returned: at(110), seen: 1, now: us(100)},
			{entry: call("2-2", opAcquire, 120, 0, 4, attempt(2)), returned: at(140), seen: 2, now: us(130)},
			{entry: write("2-3", opMarked, 150, 2), returned: at(170), seen: 2},
			{entry: call("2-4", opRenew, 300, 2, 5, attempt(4)), returned: never, code: codeUnknown},
			{entry: call("2-5", opRenew, 600, 2, 6, attempt(4), attempt(5)), returned: never, code: codeUnknown}, // never arrived
			{entry: call("3-1", opAcquire, 1500, 0, 7), returned: at(1550), seen: 3, now: us(1540)},
			{entry: write("3-2", opMarked, 1600, 3), returned: at(1620), seen: 3},
			{entry: write("2-6", opMarked, 1700, 2), returned: at(1720), code: codeStale},
			{entry: write("2-7", opJoined, 1700, 2), returned: at(1720), code: codeStale, seen: 3},
			{entry: call("2-8", opRelease, 1800, 2, 8, attempt(4), attempt(5)), returned: at(1820), code: string(store.CodeSuperseded), seen: 3, now: us(1810)},
		},
		grants: []change{row(1, 1, 10, 10), row(2, 4, 130, 130), row(3, 7, 1540, 1540)},
		writes: map[store.Attempt]change{},
		marked: []landed{{token: 2, id: "2-3", n: 1}, {token: 3, id: "3-2", n: 2}},
		joined: []landed{{token: 1, id: "1-2", committed: us(55)}},
	}
	for _, c := range append(slices.Clone(h.grants), row(1, 3, 10, 100), row(2, 5, 130, 320)) {
		h.writes[c.attempt] = c
	}
	return h
}

// TestTortureChecks shows that the judgement of a run can fail: each corrupted
// history is refused, for the reason that it was corrupted by.
func TestTortureChecks(t *testing.T) {
	t.Parallel()
	if problems, figures := smallHistory().check(); len(problems) > 0 {
		t.Fatalf("a good history is refused: %q (%s)", problems, figures)
	}
	op := func(h *history, id string) *operation {
		i := slices.IndexFunc(h.ops, func(o operation) bool { return o.ID == id })
		return &h.ops[i]
	}
	for _, c := range []struct {
		name, says string
		corrupt    func(*history)
	}{
		{"two act at once", "overlap", func(h *history) { h.belief[3].at = 2100 * time.Millisecond }},
		{"acts after the next grant", "after the next term was granted", func(h *history) { h.belief[3].at = 1560 * time.Millisecond }},
		{"acts before the grant", "before it was granted", func(h *history) { h.belief[2].at = 100 * time.Millisecond }},
		{"a token twice", "granted twice", func(h *history) { h.grants[2].token = 2 }},
		{"a token to two", "granted to processes", func(h *history) { op(h, "3-1").seen = 2 }},
		{"tokens out of order", "before the smaller", func(h *history) { h.grants[1].acquiredUs = 0 }},
		{"a stale marked write", "stale write accepted", func(h *history) {
			h.marked = append(h.marked, landed{token: 2, id: "2-6", n: 3})
			op(h, "2-6").code = ""
		}},
		{"a stale marked write, by its answers alone", "marked resource: not linearizable", func(h *history) {
			h.marked[0].id = "2-6"
			op(h, "2-6").code, op(h, "2-3").code = "", codeStale
		}},
		{"a stale joined write", "stale write accepted", func(h *history) { h.joined[0].committed = 200_000 }},
		{"a stale joined write, by its answers alone", "lease: not linearizable", func(h *history) {
			op(h, "2-7").code, op(h, "2-7").seen = "", 2
			h.joined = append(h.joined, landed{token: 2, id: "2-7", committed: 1_000_000})
		}},
		{"an acknowledged write is gone", "acknowledged and is not in the store", func(h *history) { h.marked[1].id = "9-9" }},
		{"an acknowledged grant is gone", "acknowledged and is not in the store", func(h *history) { delete(h.writes, store.Attempt{1}) }},
		{"a refused write is there", "refused as", func(h *history) { h.joined = append(h.joined, landed{token: 3, id: "2-7", committed: 1_600_000}) }},
		{"a marked write is missing", "is missing", func(h *history) { h.marked = h.marked[1:] }},
		{"granted while it was held", "lease: not linearizable", func(h *history) { op(h, "3-1").now = 1_310_000 }},
		{"renewed by the name alone", "lease: not linearizable", func(h *history) { op(h, "2-4").Known = nil }},
		{"refused while it was free", "lease: not linearizable", func(h *history) { op(h, "2-1").At, op(h, "2-1").returned = 111*time.Millisecond, 115*time.Millisecond }},
		{"a read from the past", "lease: not linearizable", func(h *history) { op(h, "2-1").At, op(h, "2-1").returned = 160*time.Millisecond, 170*time.Millisecond }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := smallHistory()
			c.corrupt(h)
			problems, _ := h.check()
			if !slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, c.says) }) {
				t.Errorf("got problems %q, want one with %q", problems, c.says)
			}
		})
	}
}

// Groups of terms are judged apart; what contradicts only across them is found too.
func TestTortureChecksAcrossGroups(t *testing.T) {
	t.Parallel()
	build := func() *history {
		h := &history{writes: map[store.Attempt]change{}}
		for i := range 3 * groupTokens {
			token, at := fence.Token(i+1), time.Duration(i)*time.Second
			var attempt store.Attempt
			attempt[0], attempt[1], attempt[2] = byte(token), byte(token>>8), 1
			h.grants = append(h.grants, change{token: token, attempt: attempt, acquiredUs: at.Microseconds(), at: at.Microseconds(), committed: at.Microseconds() + 1})
			h.writes[attempt] = h.grants[i]
			h.ops = append(h.ops, operation{
				entry:    entry{ID: "1-1", Op: opAcquire, At: at - time.Millisecond, Attempt: attempt, TTL: time.Second},
				returned: at + time.Millisecond, seen: token, now: at.Microseconds(),
			})
		}
		return h
	}
	if problems, _ := build().check(); len(problems) > 0 {
		t.Fatalf("a good history is refused: %q", problems)
	}
	h := build()
	late := operation{entry: entry{ID: "2-1", Op: opAcquire, At: 150 * time.Second, Attempt: store.Attempt{9, 9, 9}, TTL: time.Second}, returned: 151 * time.Second, code: store.HeldByTerm, seen: 50, now: 49_500_000}
	h.ops = append(h.ops, late)
	problems, _ := h.check()
	if !slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, "before one of earlier terms was called") }) {
		t.Errorf("a read from a group before: got problems %q, want it found across groups", problems)
	}
}
