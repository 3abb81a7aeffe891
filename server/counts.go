package server

import (
	"maps"
	"sync"
)

// Count names a counter: what was asked, and the code of the answer ("" for a yes).
type Count struct{ What, Code string }

// counts are the counters of a replica since it started (P10).
type counts struct {
	mu sync.Mutex
	n  map[Count]uint64
}

func (c *counts) add(what, code string) { c.addN(what, code, 1) }

func (c *counts) addN(what, code string, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[Count]uint64{}
	}
	c.n[Count{what, code}] += n
}

// Counts returns how often each answer was given since the start.
func (s *Server) Counts() map[Count]uint64 {
	s.counts.mu.Lock()
	defer s.counts.mu.Unlock()
	return maps.Clone(s.counts.n)
}
