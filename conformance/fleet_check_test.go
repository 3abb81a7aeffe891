//go:build linux

package conformance_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
)

// A copy of a work item notes in the item's file, one line at a time:
//
//	act AT PID TOKEN                it acts at this instant
//	write FROM TO PID TOKEN ROWS    its guarded write, sent and answered at these
//	                                instants, changed so many rows
//
// Instants are nanoseconds of the boot clock, which all processes of a host share.
type (
	act struct {
		At    time.Duration
		PID   int
		Token fence.Token
	}
	guardedWrite struct {
		From, To time.Duration
		PID      int
		Token    fence.Token
		Rows     int
	}
)

// workLog is what all copies of one item have noted, in the order of time.
type workLog struct {
	Acts   []act
	Writes []guardedWrite
}

// workFile is the file of one item, which is read as it grows.
type workFile struct {
	path string
	read int64 // so many bytes were taken in
	log  workLog
}

// update takes in the lines that were added. The log stays the reader's.
func (f *workFile) update() (*workLog, error) {
	file, err := os.Open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return &f.log, nil // nobody has begun
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.NewSectionReader(file, f.read, 1<<40))
	if err != nil {
		return nil, err
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	f.read += int64(len(text))
	for line := range strings.Lines(string(text)) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		var n []int64
		for field := range strings.FieldsSeq(rest) {
			v, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %q: %w", f.path, line, err)
			}
			n = append(n, v)
		}
		switch {
		case kind == "act" && len(n) == 3:
			f.log.Acts = append(f.log.Acts, act{time.Duration(n[0]), int(n[1]), fence.Token(n[2])})
		case kind == "write" && len(n) == 5:
			f.log.Writes = append(f.log.Writes, guardedWrite{time.Duration(n[0]), time.Duration(n[1]), int(n[2]), fence.Token(n[3]), int(n[4])})
		default:
			return nil, fmt.Errorf("%s: %q", f.path, line)
		}
	}
	if len(text) > 0 {
		f.log.sort()
	}
	return &f.log, nil
}

func (l *workLog) sort() {
	slices.SortStableFunc(l.Acts, func(a, b act) int { return cmp.Compare(a.At, b.At) })
	slices.SortStableFunc(l.Writes, func(a, b guardedWrite) int { return cmp.Compare(a.From, b.From) })
}

// overlaps says where two copies acted at one time. A copy acts from its first
// note to its last: each of these spans must be over before the next begins.
func (l *workLog) overlaps() (found []string) {
	type copied struct{ pid, token int64 }
	last := map[copied]time.Duration{}
	for _, a := range l.Acts {
		last[copied{int64(a.PID), int64(a.Token)}] = a.At
	}
	begun := map[copied]bool{}
	for _, a := range l.Acts {
		this := copied{int64(a.PID), int64(a.Token)}
		if begun[this] {
			continue
		}
		for other := range begun {
			if last[other] > a.At {
				found = append(found, fmt.Sprintf("process %d (token %d) began to act at %s, and process %d (token %d) acted until %s after that",
					this.pid, this.token, a.At, other.pid, other.token, last[other]-a.At))
			}
		}
		begun[this] = true
	}
	return found
}

// stale says which writes changed rows although they were sent after a write with
// a larger token had been answered.
func (l *workLog) stale() (found []string) {
	for _, w := range l.Writes {
		for _, o := range l.Writes {
			if w.Rows != 0 && o.Rows != 0 && o.Token > w.Token && o.To < w.From {
				found = append(found, fmt.Sprintf("process %d changed %d rows with token %s, %s after process %d had with %s", w.PID, w.Rows, w.Token, w.From-o.To, o.PID, o.Token))
				break
			}
		}
	}
	return found
}

// made and refused count the writes with this token that changed a row, and nothing.
func (l *workLog) made(token fence.Token) int    { return l.count(token, 1) }
func (l *workLog) refused(token fence.Token) int { return l.count(token, 0) }

func (l *workLog) count(token fence.Token, rows int) (n int) {
	for _, w := range l.Writes {
		if w.Token == token && w.Rows == rows {
			n++
		}
	}
	return n
}

// pids returns who acted under this token, in the order of their first act.
func (l *workLog) pids(token fence.Token) (list []int) {
	for _, a := range l.Acts {
		if a.Token == token && !slices.Contains(list, a.PID) {
			list = append(list, a.PID)
		}
	}
	return list
}

// actsAfter reports whether a copy with this token acted after an instant.
func (l *workLog) actsAfter(token fence.Token, at time.Duration) bool {
	return slices.ContainsFunc(l.Acts, func(a act) bool { return a.Token == token && a.At > at })
}

// longestPause is the longest time in which nothing acted.
func (l *workLog) longestPause() (longest time.Duration) {
	for i := 1; i < len(l.Acts); i++ {
		longest = max(longest, l.Acts[i].At-l.Acts[i-1].At)
	}
	return longest
}

// outOfOrder says where the tokens of the writes that were made, in the order in
// which the database made them, go back.
func outOfOrder(tokens []fence.Token) (found []string) {
	var most fence.Token
	for i, token := range tokens {
		if token < most {
			found = append(found, fmt.Sprintf("write %d was made with token %s after one with %s", i+1, token, most))
		}
		most = max(most, token)
	}
	return found
}

// The checks of the fleet's tests find what they are there for.
func TestFleetChecks(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		log             workLog
		overlaps, stale int
	}{
		"one after the other": {log: workLog{
			Acts:   []act{{1 * ms, 10, 1}, {2 * ms, 10, 1}, {3 * ms, 11, 2}, {4 * ms, 11, 2}},
			Writes: []guardedWrite{{1 * ms, 2 * ms, 10, 1, 1}, {3 * ms, 4 * ms, 11, 2, 1}, {5 * ms, 6 * ms, 10, 1, 0}},
		}},
		"the old copy goes on": {log: workLog{
			Acts: []act{{1 * ms, 10, 1}, {3 * ms, 11, 2}, {4 * ms, 10, 1}, {5 * ms, 11, 2}},
		}, overlaps: 1},
		"twice under one token": {log: workLog{
			Acts: []act{{1 * ms, 10, 1}, {3 * ms, 11, 1}, {4 * ms, 10, 1}},
		}, overlaps: 1},
		"a copy within the life of another": {log: workLog{
			Acts: []act{{1 * ms, 10, 1}, {2 * ms, 11, 2}, {9 * ms, 10, 1}},
		}, overlaps: 1},
		"a write under way": {log: workLog{
			Writes: []guardedWrite{{1 * ms, 5 * ms, 10, 1, 1}, {3 * ms, 4 * ms, 11, 2, 1}},
		}},
		"a stale write": {log: workLog{
			Writes: []guardedWrite{{3 * ms, 4 * ms, 11, 2, 1}, {5 * ms, 6 * ms, 10, 1, 1}},
		}, stale: 1},
	} {
		c.log.sort()
		if got := c.log.overlaps(); len(got) != c.overlaps {
			t.Errorf("%s: got overlaps %q, want %d", name, got, c.overlaps)
		}
		if got := c.log.stale(); len(got) != c.stale {
			t.Errorf("%s: got stale writes %q, want %d", name, got, c.stale)
		}
	}
	if got := outOfOrder([]fence.Token{1, 1, 2, 2, 3}); got != nil {
		t.Errorf("got %q, want nothing", got)
	}
	if got := outOfOrder([]fence.Token{1, 2, 1, 2}); len(got) != 1 {
		t.Errorf("got %q, want one", got)
	}
}
