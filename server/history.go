package server

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
)

const (
	// maxSamples bounds what is kept of the ages of beats: an hour, at one sample
	// each 5 s or less often.
	maxSamples = 720
	keepAges   = time.Hour
	// maxBeats is how many beats of a node are kept, so that a beats takes 128 bytes.
	maxBeats = 54
	// gapParts is into how many parts an interval is cut to keep a gap between beats.
	gapParts = 256
)

// history is what a replica remembers of what it saw, in memory and bounded: the
// ages of all nodes' beats over the last hour, and the last beats of each node. It
// looks at each tick of the watch, and so costs a beat nothing.
type history struct {
	mu      sync.Mutex
	samples []api.AgeSample // oldest first
	beats   map[*slot]*beats
}

// beats are the last beats of one node, in 128 bytes.
type beats struct {
	last   time.Duration // of the newest, on the listened axis
	expiry time.Duration // of the node's lease as seen last, on the boot clock
	next   uint8         // index of the oldest gap, which the next one replaces
	n      uint8
	// gaps are the times before each beat, in parts of an interval; the highest bit
	// says that the node's lease was extended with it.
	gaps [maxBeats]uint16
}

const (
	renewedBit = 1 << 15
	longestGap = renewedBit - 1
)

// observe takes in the last beat of a node, and when its lease ends. What comes
// less than an eighth of an interval after a beat is that beat, as the registry
// dates it. It returns the time between a new beat and the one before it, else 0.
func (b *beats) observe(last, expiry, interval time.Duration) (gap time.Duration) {
	switch {
	case b.n == 0:
		b.last = last
		b.add(0)
	case last-b.last > interval/8:
		gap = last - b.last
		b.add(uint16(min(max(int64(gap)*gapParts/int64(interval), 1), longestGap)))
		b.last = last
	}
	// A renewal sets the expiry ahead. It may be answered after this beat was seen.
	if expiry-b.expiry > interval/4 {
		b.gaps[(int(b.next)+maxBeats-1)%maxBeats] |= renewedBit
		b.expiry = expiry
	}
	return gap
}

func (b *beats) add(gap uint16) {
	b.gaps[b.next] = gap
	b.next = (b.next + 1) % maxBeats
	b.n = min(b.n+1, maxBeats)
}

// marks returns the beats, oldest first. at is now on the listened axis.
func (b *beats) marks(now time.Time, at, interval time.Duration) []api.BeatMark {
	marks := make([]api.BeatMark, b.n)
	when := now.Add(b.last - at)
	for i := range marks {
		g := b.gaps[(int(b.next)+maxBeats-1-i)%maxBeats]
		gap := time.Duration(g&longestGap) * interval / gapParts
		marks[len(marks)-1-i] = api.BeatMark{At: when.UTC(), GapMS: gap.Milliseconds(), Renewed: g&renewedBit != 0}
		when = when.Add(-gap)
	}
	return marks
}

// historyLoop remembers.
func (s *Server) historyLoop(ctx context.Context) {
	sampled := time.Time{}
	period := max(s.cfg.Interval, time.Second)
	every(ctx, s.cfg.tick(), nil, func(context.Context) {
		if !s.loaded.Load() {
			return
		}
		s.lookAtBeats()
		if now := time.Now(); now.Sub(sampled) >= period-s.cfg.tick()/2 {
			sampled = now
			s.history.sample(ages(now, s.Nodes()))
		}
	})
}

// lookAtBeats takes in the beats since the last look.
func (s *Server) lookAtBeats() {
	slots := s.in.all()
	late := s.in.fresh.Explain(0).Late
	h := &s.history
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.beats == nil || len(h.beats) > len(slots)+len(slots)/8 { // some of them were removed
		kept := make(map[*slot]*beats, len(slots))
		for _, n := range slots {
			if b := h.beats[n]; b != nil {
				kept[n] = b
			}
		}
		h.beats = kept
	}
	for _, n := range slots {
		n.mu.Lock()
		heard, last, expiry := n.heard, n.detector.Last(), n.leaseAt+n.lease.Remaining
		n.mu.Unlock()
		if !heard {
			continue
		}
		b := h.beats[n]
		if b == nil {
			b = &beats{}
			h.beats[n] = b
		}
		if b.observe(last, expiry, s.cfg.Interval) > late {
			s.hindsight.late.Add(1)
		}
	}
}

func (h *history) sample(a api.AgeSample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	old, _ := slices.BinarySearchFunc(h.samples, a.At.Add(-keepAges), func(s api.AgeSample, t time.Time) int { return s.At.Compare(t) })
	old = max(old, len(h.samples)+1-maxSamples)
	h.samples = append(slices.Delete(h.samples, 0, old), a)
}

// mustBeat reports whether a node should be heard: not if it gave its lease back or
// never had one.
func mustBeat(n *fleet.Node) bool {
	return n.Lease.State != fleet.LeaseReleased && n.Lease.State != fleet.LeaseNone
}

// ages returns how old the last beats of nodes are that should be heard.
func ages(now time.Time, nodes []fleet.Node) api.AgeSample {
	sample := api.AgeSample{At: now.UTC()}
	all := make([]time.Duration, 0, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		if !mustBeat(n) {
			continue
		}
		all = append(all, n.Age)
		if n.Liveness == fleet.Suspect {
			sample.Stale++
		}
	}
	if sample.Nodes = len(all); len(all) == 0 {
		return sample
	}
	slices.Sort(all)
	rank := func(share float64) int64 { // nearest rank
		return all[max(int(math.Ceil(share*float64(len(all))))-1, 0)].Milliseconds()
	}
	sample.P50MS, sample.P95MS, sample.P99MS, sample.MaxMS = rank(0.50), rank(0.95), rank(0.99), rank(1)
	return sample
}
