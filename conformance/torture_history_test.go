//go:build linux

package conformance_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// history is all that is known of a run afterwards.
type history struct {
	belief []sign
	ops    []operation // in no order
	lost   map[string]int
	lapsed int           // terms that nobody asked to release
	offset time.Duration // of the wall clock from the boot clock
	slew   time.Duration // by how much that may be wrong

	// What the server knows.
	grants []change                 // the change that began each term, by token
	writes map[store.Attempt]change // every change of the lease
	marked []landed                 // accepted ones, in the order of the row's versions
	joined []landed                 // committed ones
}

// sign is an instant at which somebody acted under a term.
type sign struct {
	token  fence.Token
	at     time.Duration
	worker bool
}

// operation is what a process asked for and what came of it.
type operation struct {
	entry                  // the call
	returned time.Duration // never, if it has no answer
	code     string
	seen     fence.Token
	now      int64
	begins   bool // it began a term
}

const never = time.Duration(math.MaxInt64)

// process returns who made it.
func (o *operation) process() string {
	name, _, _ := strings.Cut(o.ID, "-")
	return name
}

// change is a version of the lease's row.
type change struct {
	token      fence.Token
	attempt    store.Attempt
	acquiredUs int64
	at         int64 // when it was made, by the store's clock in microseconds
	committed  int64 // the same, of its commit
}

// landed is a write of a contender that was accepted.
type landed struct {
	token     fence.Token
	id        string
	n         int64 // the place among the marked writes
	committed int64
}

func (h *history) readJournals(paths []string) error {
	h.lost = map[string]int{}
	for _, path := range paths {
		calls := map[string]int{} // where they are in ops
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		// The last line may be one that is being written, or that a kill cut off.
		text = text[:bytes.LastIndexByte(text, '\n')+1]
		for in := bufio.NewScanner(bytes.NewReader(text)); in.Scan(); {
			var e entry
			if err := json.Unmarshal(in.Bytes(), &e); err != nil {
				return fmt.Errorf("%s: %q: %w", path, in.Text(), err)
			}
			switch e.Kind {
			case kindAct, kindAlive:
				h.belief = append(h.belief, sign{e.Token, e.At, e.Kind == kindAlive})
			case kindLost:
				h.lost[e.Code]++
			case kindCall:
				calls[e.ID] = len(h.ops)
				h.ops = append(h.ops, operation{entry: e, returned: never, code: codeUnknown})
			case kindAnswer:
				o := &h.ops[calls[e.ID]]
				o.returned, o.code, o.seen, o.now = e.At, e.Code, e.Seen, e.Now
			}
		}
	}
	return nil
}

func (h *history) readTables(ctx context.Context, pool *pgxpool.Pool) error {
	h.writes = map[store.Attempt]change{}
	var attempt string
	var c change
	const commit = "(extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000000)::bigint"
	rows, err := pool.Query(ctx, "SELECT token, attempt, acquired_us, greatest(renewed_us, ended_us), "+commit+" FROM audit ORDER BY token, seq")
	if err != nil {
		return err
	}
	if _, err = pgx.ForEachRow(rows, []any{&c.token, &attempt, &c.acquiredUs, &c.at, &c.committed}, func() error {
		if err := c.attempt.UnmarshalText([]byte(attempt)); err != nil {
			return err
		}
		h.writes[c.attempt] = c
		if n := len(h.grants); n == 0 || h.grants[n-1].token != c.token || h.grants[n-1].acquiredUs != c.acquiredUs {
			h.grants = append(h.grants, c)
		}
		return nil
	}); err != nil {
		return err
	}
	for _, table := range []struct {
		query string
		into  *[]landed
	}{
		{"SELECT token, id, n, " + commit + " FROM marked_history ORDER BY n", &h.marked},
		{"SELECT token, id, 0, " + commit + " FROM joined_history", &h.joined},
	} {
		rows, err := pool.Query(ctx, table.query)
		if err != nil {
			return err
		}
		var g landed
		if _, err := pgx.ForEachRow(rows, []any{&g.token, &g.id, &g.n, &g.committed}, func() error {
			*table.into = append(*table.into, g)
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// check returns what is wrong with the history, and the figures of it.
func (h *history) check() (problems []string, figures string) {
	belief, slack := h.checkBelief()
	stale := append(h.checkMarked(), h.checkJoined()...)
	problems = slices.Concat(h.checkTokens(), belief, stale, h.settle())
	linear, groups := h.checkLinearizable()
	problems = append(problems, linear...)
	acts, alive := 0, 0
	for _, e := range h.belief {
		if e.worker {
			alive++
		} else {
			acts++
		}
	}
	codes := map[string]int{}
	holders := map[fence.Token]string{}
	for _, o := range h.ops {
		if o.begins {
			holders[o.seen] = o.process()
		}
		if o.Op == opMarked || o.Op == opJoined {
			codes[o.Op+" "+o.code]++
		}
	}
	changed := 0
	for token, holder := range holders {
		if before, ok := holders[token-1]; ok && before != holder {
			changed++
		}
	}
	var lost []string
	for _, reason := range slices.Sorted(maps.Keys(h.lost)) {
		lost = append(lost, fmt.Sprintf("%s %d", reason, h.lost[reason]))
	}
	return problems, fmt.Sprintf("%d lapsed, %d changes of holder; %d instants of acting and %d of workers, %d overlaps, least time between the last of a term and the next grant %s; "+
		"%d marked and %d joined writes accepted, %d and %d refused as stale, %d stale ones accepted; terms lost: %s; %d operations linearized in %d groups",
		h.lapsed, changed, acts, alive, len(belief), slack, len(h.marked), len(h.joined), codes[opMarked+" "+codeStale], codes[opJoined+" "+codeStale], len(stale), strings.Join(lost, ", "), len(h.ops), groups)
}

// checkTokens: each token numbers one term, and later terms have larger ones (P1).
func (h *history) checkTokens() (problems []string) {
	for i := 1; i < len(h.grants); i++ {
		a, b := h.grants[i-1], h.grants[i] // by token
		switch {
		case a.token == b.token:
			problems = append(problems, fmt.Sprintf("token %s was granted twice, at %d and %d", a.token, a.acquiredUs, b.acquiredUs))
		case a.acquiredUs >= b.acquiredUs || a.committed > b.committed:
			problems = append(problems, fmt.Sprintf("token %s was granted before the smaller %s", b.token, a.token))
		}
	}
	holder := map[fence.Token]string{}
	for _, o := range h.ops {
		if o.Op != opAcquire || o.code != "" {
			continue
		}
		if other := holder[o.seen]; other != "" && other != o.process() {
			problems = append(problems, fmt.Sprintf("token %s was granted to processes %s and %s", o.seen, other, o.process()))
		}
		holder[o.seen] = o.process()
	}
	return problems
}

// checkBelief: no process acts, and no worker lives, under a term once another
// does under a later one, nor once the store has granted it (P2, P3, P4).
//
// An instant counts if it was read before the question and the answer was yes:
// a process that is stopped believes nothing until it asks. slack is the least
// time from the last such instant of a term that was not released to the next grant.
func (h *history) checkBelief() (problems []string, slack time.Duration) {
	spans := spansOf(h.belief)
	problems = overlaps(spans)
	released := map[fence.Token]bool{}
	for _, o := range h.ops {
		if o.Op == opRelease && (o.code == "" || o.code == codeUnknown) {
			released[o.Token] = true
		}
	}
	h.lapsed = 0
	for _, g := range h.grants {
		if !released[g.token] {
			h.lapsed++
		}
	}
	granted := map[fence.Token]time.Duration{}
	for _, g := range h.grants {
		granted[g.token] = time.Duration(g.acquiredUs)*time.Microsecond - h.offset
	}
	slack = never
	for _, token := range slices.Sorted(maps.Keys(spans)) {
		s := spans[token]
		if at, ok := granted[token]; !ok || s.first < at-h.slew {
			problems = append(problems, fmt.Sprintf("a process acted under token %s before it was granted", token))
		}
		if next, ok := granted[token+1]; ok {
			left := next - s.last
			if left < -h.slew {
				problems = append(problems, fmt.Sprintf("overlap: a process acted under token %s %s after the next term was granted", token, -left))
			}
			if !released[token] {
				slack = min(slack, left)
			}
		}
	}
	return problems, slack
}

// span is from the first to the last instant at which anybody acted under a token.
type span struct{ first, last time.Duration }

func spansOf(belief []sign) map[fence.Token]span {
	spans := map[fence.Token]span{}
	for _, e := range belief {
		s, ok := spans[e.token]
		if !ok {
			s = span{e.at, e.at}
		}
		spans[e.token] = span{min(s.first, e.at), max(s.last, e.at)}
	}
	return spans
}

// overlaps names the terms under which somebody acted when somebody did under a later one.
func overlaps(spans map[fence.Token]span) (problems []string) {
	var last time.Duration // of all terms so far
	var of fence.Token
	for _, token := range slices.Sorted(maps.Keys(spans)) {
		s := spans[token]
		if of != 0 && last >= s.first {
			problems = append(problems, fmt.Sprintf("overlap: somebody acted under token %s %s after somebody did under %s", of, last-s.first, token))
		}
		if s.last >= last {
			last, of = s.last, token
		}
	}
	return problems
}

// checkMarked: the resource accepted no token smaller than one before (P7).
func (h *history) checkMarked() (problems []string) {
	for i, w := range h.marked {
		if w.n != int64(i+1) {
			return append(problems, fmt.Sprintf("marked write %d is missing", i+1))
		}
		if i > 0 && w.token < h.marked[i-1].token {
			problems = append(problems, fmt.Sprintf("stale write accepted: token %s after %s, by a marked write", w.token, h.marked[i-1].token))
		}
	}
	return problems
}

// checkJoined: no guarded transaction committed after the next term's grant (P7).
func (h *history) checkJoined() (problems []string) {
	granted := map[fence.Token]change{}
	for _, g := range h.grants {
		granted[g.token] = g
	}
	for _, w := range h.joined {
		if g, ok := granted[w.token]; !ok || w.committed < g.committed {
			problems = append(problems, fmt.Sprintf("joined write with token %s was committed before its term was granted", w.token))
		}
		if next, ok := granted[w.token+1]; ok && w.committed >= next.committed {
			problems = append(problems, fmt.Sprintf("stale write accepted: a joined write with token %s was committed %dus after the next term's grant", w.token, w.committed-next.committed))
		}
	}
	return problems
}

// settle finds out what became of operations without an answer, drops those
// that changed nothing and tell nothing, and reports answers that are not true:
// what was acknowledged and is not there, and what was refused and is.
func (h *history) settle() (problems []string) {
	applied := map[string]fence.Token{}
	for _, w := range slices.Concat(h.marked, h.joined) {
		applied[w.id] = w.token
	}
	began := map[store.Attempt]bool{}
	for _, g := range h.grants {
		began[g.attempt] = true
	}
	var settled []operation
	for _, o := range h.ops {
		var found bool
		var token fence.Token
		var at int64
		if o.Op == opMarked || o.Op == opJoined {
			token, found = applied[o.ID]
		} else {
			var c change
			c, found = h.writes[o.Attempt]
			token, at = c.token, c.at
		}
		o.begins = found && o.Op == opAcquire && began[o.Attempt]
		switch o.code {
		case "":
			// A release that was done by an earlier send changes nothing.
			if !found && o.Op != opRelease {
				problems = append(problems, fmt.Sprintf("%s %s with token %s was acknowledged and is not in the store", o.Op, o.ID, o.seen))
			}
		case codeUnknown:
			if !found {
				continue
			}
			o.code, o.seen, o.now, o.returned = "", token, at, never
		default:
			if found {
				problems = append(problems, fmt.Sprintf("%s %s was refused as %s and is in the store", o.Op, o.ID, o.code))
			}
			if o.code == codeAborted || o.seen == 0 && o.Op != opMarked {
				continue // it shows nothing of the lease
			}
		}
		settled = append(settled, o)
	}
	h.ops = settled
	return problems
}
