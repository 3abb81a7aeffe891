package dashboard

import (
	"sync"
	"time"
)

// freshFor is how long something that was made may be shown to others. While
// somebody watches, the next turn comes sooner.
const freshFor = time.Second

// maxKept bounds how many answers are kept.
const maxKept = 256

// key names an answer: it is the same for all who ask for a URL in a role, until
// the next turn.
type key struct {
	url, role string
	turn      uint64
}

// rendered is an answer as it was made.
type rendered struct {
	title         string
	status        int
	main, gzipped []byte
}

// cache makes each answer once for all who want it at about the same time.
type cache struct {
	mu   sync.Mutex
	kept map[key]*making
}

type making struct {
	began time.Time
	once  sync.Once
	made  rendered
}

// get returns what build builds, or has made for another viewer just now.
func (c *cache) get(k key, build func() rendered) rendered {
	now := time.Now()
	c.mu.Lock()
	m := c.kept[k]
	if m == nil || now.Sub(m.began) > freshFor {
		m = &making{began: now}
		c.keep(k, m, now)
	}
	c.mu.Unlock()
	m.once.Do(func() { m.made = build() })
	return m.made
}

// keep adds an answer, and drops the old ones when there are many. The caller
// holds c.mu.
func (c *cache) keep(k key, m *making, now time.Time) {
	if c.kept == nil {
		c.kept = map[key]*making{}
	}
	if len(c.kept) >= maxKept {
		for old, m := range c.kept {
			if now.Sub(m.began) > freshFor {
				delete(c.kept, old)
			}
		}
	}
	if len(c.kept) < maxKept {
		c.kept[k] = m
	}
}
