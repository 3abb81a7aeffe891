package dashboard

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fence"
)

const (
	maxRated = 1024 // items
	maxMarks = 120  // of an item
)

// rates remember figures of what somebody looked at, of which the interface tells
// the last one only: the progress markers of items, from which their rate follows,
// and how long the renewals of nodes took.
type rates struct {
	mu    sync.Mutex
	items map[string]*progress // by a page's path
}

// progress is what was seen of one assignment of an item, or term of a node.
type progress struct {
	token fence.Token
	seen  time.Time
	marks []mark // oldest first
}

// mark is a figure, and when it was taken.
type mark struct {
	at time.Time
	n  float64
}

var firstNumber = regexp.MustCompile(`-?\d+(\.\d+)?`)

// see takes in an item, and returns its rate in words; "" if none is known yet.
func (r *rates) see(w *api.Work) string {
	text := firstNumber.FindString(w.Progress)
	if text == "" || w.ProgressAt.IsZero() {
		return ""
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return ""
	}
	marks := r.note(workURL(w.ID), w.Token, mark{w.ProgressAt, n})
	first, last := marks[0], marks[len(marks)-1]
	passed := last.at.Sub(first.at)
	if passed <= 0 {
		return ""
	}
	perSecond := (last.n - first.n) / passed.Seconds()
	switch size := max(perSecond, -perSecond); {
	case size >= 1:
		return fmt.Sprintf("%.3g a second", perSecond)
	case size >= 1./60:
		return fmt.Sprintf("%.3g a minute", perSecond*60)
	default:
		return fmt.Sprintf("%.3g an hour", perSecond*3600)
	}
}

// note takes in a figure, and returns all that were seen, oldest first.
func (r *rates) note(path string, token fence.Token, m mark) []mark {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.items[path]
	if p == nil || p.token != token {
		r.makeRoom()
		p = &progress{token: token}
		r.items[path] = p
	}
	p.seen = time.Now()
	if len(p.marks) == 0 || m.at.Sub(p.marks[len(p.marks)-1].at) > time.Millisecond { // else it is the same, as another clock's reading dates it
		p.marks = append(p.marks, m)
	}
	if len(p.marks) > maxMarks {
		p.marks = p.marks[1:]
	}
	return slices.Clone(p.marks)
}

// makeRoom forgets the item that nobody has looked at for longest, if there are
// many. The caller holds r.mu.
func (r *rates) makeRoom() {
	if r.items == nil {
		r.items = map[string]*progress{}
	}
	if len(r.items) < maxRated {
		return
	}
	oldest := ""
	for id, p := range r.items {
		if oldest == "" || p.seen.Before(r.items[oldest].seen) {
			oldest = id
		}
	}
	delete(r.items, oldest)
}

// marks returns what was seen on a page, oldest first.
func (r *rates) marks(path string) []mark {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.items[path]; p != nil {
		return slices.Clone(p.marks)
	}
	return nil
}
