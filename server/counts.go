package server

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Count names a counter: what was asked, and the code of the answer ("" for a yes).
type Count struct{ What, Code string }

// counts are the counters of a replica since it started (P10).
type counts struct{ tally[Count] }

func (c *counts) add(what, code string) { c.addN(what, code, 1) }

func (c *counts) addN(what, code string, n uint64) { c.tally.add(Count{what, code}, n) }

// Counts returns how often each answer was given since the start.
func (s *Server) Counts() map[Count]uint64 { return s.counts.all() }

// tally counts by key. Keys are few and stay. To add to one that is there takes a
// look-up and an atomic addition: that is what a beat pays. It is safe for
// concurrent use.
type tally[K comparable] struct {
	mu sync.Mutex // of writers of known
	// known is replaced when a key comes in, and never changed.
	known atomic.Pointer[map[K]*atomic.Uint64]
}

func (t *tally[K]) add(key K, n uint64) {
	if known := t.known.Load(); known != nil {
		if c := (*known)[key]; c != nil {
			c.Add(n)
			return
		}
	}
	t.enter(key).Add(n)
}

// enter returns the counter of a key that may be new.
func (t *tally[K]) enter(key K) *atomic.Uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	more := map[K]*atomic.Uint64{}
	if known := t.known.Load(); known != nil {
		if c := (*known)[key]; c != nil {
			return c // entered by another meanwhile
		}
		maps.Copy(more, *known)
	}
	c := new(atomic.Uint64)
	more[key] = c
	t.known.Store(&more)
	return c
}

// all returns the counts as they are now.
func (t *tally[K]) all() map[K]uint64 {
	now := map[K]uint64{}
	if known := t.known.Load(); known != nil {
		for key, c := range *known {
			now[key] = c.Load()
		}
	}
	return now
}
