package dashboard

import (
	"fmt"
	"regexp"
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

// rates remember the progress markers of the items that somebody looked at, from
// which their rate follows. The interface tells the last marker only.
type rates struct {
	mu    sync.Mutex
	items map[string]*progress
}

// progress is what was seen of one assignment of an item.
type progress struct {
	token fence.Token
	seen  time.Time
	marks []mark // oldest first
}

// mark is a marker's number, and when it was accepted.
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
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.items[w.ID]
	if p == nil || p.token != w.Token {
		r.makeRoom()
		p = &progress{token: w.Token}
		r.items[w.ID] = p
	}
	p.seen = time.Now()
	if len(p.marks) == 0 || w.ProgressAt.After(p.marks[len(p.marks)-1].at) {
		p.marks = append(p.marks, mark{w.ProgressAt, n})
	}
	if len(p.marks) > maxMarks {
		p.marks = p.marks[1:]
	}
	first, last := p.marks[0], p.marks[len(p.marks)-1]
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

// marks returns what was seen of an item, oldest first.
func (r *rates) marks(id string) []mark {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.items[id]; p != nil {
		return append([]mark(nil), p.marks...)
	}
	return nil
}
