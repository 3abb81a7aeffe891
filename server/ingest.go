package server

import (
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/detect"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/server/registry"
)

// ingest takes in what nodes say, in memory. It holds one slot for each node and
// knows which were heard, by this replica or, as the registry tells, by another.
type ingest struct {
	interval time.Duration
	fresh    detect.Fixed // the first state of a slot's detector
	observer atomic.Pointer[detect.Observer]
	gaps     atomic.Uint64 // in which this replica could not have heard a node

	mu    sync.RWMutex
	byID  map[string]*slot
	slots []*slot // for sweeps, in no order
}

// slot is what this replica knows of one node.
type slot struct {
	id string

	mu          sync.Mutex
	incarnation string
	replaced    []string // incarnations before this one, newest first, at most maxReplaced
	seq         uint64
	facts       *fleet.Facts
	version     uint64 // of facts
	detector    detect.Fixed
	heard       bool          // by anyone, since the watch began
	heardAt     time.Duration // by this replica, on the boot clock
	unflushed   bool          // heard by this replica since the last flush
	liveness    fleet.Liveness
	since       time.Time // of liveness
	gone        time.Time // fleet.Node.Gone
	duplicate   string    // another incarnation that used the name
	duplicateAt time.Duration

	lease    fleet.Lease   // as seen last, by a renewal or in the registry
	leaseAt  time.Duration // when that was, on the boot clock
	extended extension     // the last one that extended it by way of this replica

	row     *registry.Node // as read last; nil if the registry has none
	intent  fleet.Intent   // of the last row, once that is lost
	rowAt   time.Duration  // when it was taken in, on the boot clock
	agreed  agreement
	changed chan struct{} // closed when row.Orders changes; nil while nobody waits
}

// maxReplaced is how many incarnations before the present one a replica remembers.
const maxReplaced = 4

// orders returns the row as it is and what is closed when its orders change. The
// caller holds s.mu.
func (s *slot) orders() (*registry.Node, <-chan struct{}) {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.row, s.changed
}

// extension is when a renewal was answered, on the boot clock, and how long it took.
type extension struct{ at, took time.Duration }

// agreement is a row of the registry that was found to have what a node says of
// itself.
type agreement struct {
	row   *registry.Node
	facts *fleet.Facts
}

func newIngest(cfg *Config) (*ingest, error) {
	fresh, err := detect.NewFixed(detect.FixedConfig{Interval: cfg.Interval, Late: cfg.LateAfter, Misses: cfg.SuspectAfter})
	if err != nil {
		return nil, err
	}
	tick := cfg.tick()
	observer, err := detect.NewObserver(detect.ObserverConfig{Tick: tick, Restart: max(10*tick, cfg.Interval)}, clock.Now().Boot)
	if err != nil {
		return nil, err
	}
	i := &ingest{interval: cfg.Interval, fresh: fresh, byID: map[string]*slot{}}
	i.observer.Store(&observer)
	return i, nil
}

// at is the present instant on the listened axis.
func (i *ingest) at() time.Duration { return i.atBoot(clock.Now().Boot) }

// atBoot is an instant of the boot clock on the listened axis.
func (i *ingest) atBoot(boot time.Duration) time.Duration { return i.observer.Load().At(boot) }

// slot returns the node's slot; it makes one if there is none.
func (i *ingest) slot(id string) *slot {
	i.mu.RLock()
	s := i.byID[id]
	i.mu.RUnlock()
	if s != nil {
		return s
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if s = i.byID[id]; s != nil {
		return s
	}
	s = &slot{id: id, detector: i.fresh, liveness: fleet.Observing, since: time.Now()}
	s.detector.Begin(i.at())
	i.byID[id] = s
	i.slots = append(i.slots, s)
	return s
}

// find returns the node's slot, or nil.
func (i *ingest) find(id string) *slot {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return i.byID[id]
}

// version is that of the node's row as this replica knows it; 0 if it knows none.
func (i *ingest) version(id string) int64 {
	s := i.find(id)
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.row == nil {
		return 0
	}
	return s.row.Version
}

// forget drops a node that the registry has removed.
func (i *ingest) forget(id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if s := i.byID[id]; s != nil {
		delete(i.byID, id)
		at := slices.Index(i.slots, s)
		i.slots[at] = i.slots[len(i.slots)-1]
		i.slots = i.slots[:len(i.slots)-1]
	}
}

// forgetUnjoined forgets a slot unless its node has joined.
func (i *ingest) forgetUnjoined(s *slot) {
	s.mu.Lock()
	joined := s.row != nil || s.incarnation != ""
	s.mu.Unlock()
	if !joined {
		i.forget(s.id)
	}
}

// all returns the slots as they are now.
func (i *ingest) all() []*slot {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return slices.Clone(i.slots)
}

// standing is what an incarnation that sends a beat is to this replica.
type standing int

const (
	present  standing = iota // the node's incarnation
	newcomer                 // another, which may become the node's
	rival                    // another, while the node's own lives and is heard
	replaced                 // one that was the node's
)

// standing judges an incarnation. A node that is suspect, or whose lease is
// over, has no claim against a newcomer. The caller holds s.mu.
func (s *slot) standing(incarnation string, now time.Duration) standing {
	switch {
	case s.incarnation == incarnation:
		return present
	case slices.Contains(s.replaced, incarnation):
		return replaced
	case s.incarnation == "" || s.liveness == fleet.Suspect || !s.leased(now):
		return newcomer
	}
	return rival
}

// leased reports whether the node's lease is unexpired as far as this replica
// knows. The caller holds s.mu.
func (s *slot) leased(now time.Duration) bool { return s.leaseNow(now).Live() }

// leaseNow is the node's lease as it must stand now if nothing has happened since
// it was seen. The caller holds s.mu.
func (s *slot) leaseNow(now time.Duration) fleet.Lease {
	l, passed := s.lease, now-s.leaseAt
	switch {
	case !l.Live():
		if l.State == fleet.LeaseLapsed || l.State == fleet.LeaseReleased {
			l.Over += passed
		}
	case l.Remaining > passed:
		l.Remaining -= passed
	default:
		l.State, l.Over, l.Remaining = fleet.LeaseLapsed, passed-l.Remaining, 0
	}
	if l.State == "" {
		l.State = fleet.LeaseNone
	}
	return l
}

// see takes in how the node's lease stands at an instant of the boot clock,
// unless something later is known. The caller holds s.mu.
func (s *slot) see(l fleet.Lease, at time.Duration) {
	if l.Token > s.lease.Token || l.Token == s.lease.Token && at >= s.leaseAt {
		s.lease, s.leaseAt = l, at
	}
}

// knowsLater reports whether the row that is known is later than one by a reading
// that began at an instant of the boot clock. When two readings overlap, that says
// nothing of which saw more, and the version of the row does. A reading that began
// after the other was taken in is the later one in any case: a restored database has
// older versions. The caller holds s.mu.
func (s *slot) knowsLater(row *registry.Node, began time.Duration) bool {
	return s.row != nil && began < s.rowAt && row.Version < s.row.Version
}

// lose takes in that a reading which began at an instant of the boot clock found no
// row of the node. A row that was taken in since then says more. The caller holds
// s.mu.
func (s *slot) lose(began time.Duration) {
	if s.row != nil && s.rowAt <= began {
		s.intent, s.row = s.row.Intent, nil
	}
}

// wanted is what operators want of the node, as far as this replica knows. The
// caller holds s.mu.
func (s *slot) wanted() fleet.Intent {
	if s.row != nil {
		return s.row.Intent
	}
	return s.intent
}

// become makes incarnation the node's. The caller holds s.mu.
func (s *slot) become(incarnation string) {
	if s.incarnation == incarnation {
		return
	}
	if s.incarnation != "" {
		s.replaced = slices.Insert(s.replaced[:min(len(s.replaced), maxReplaced-1)], 0, s.incarnation)
	}
	s.incarnation, s.seq, s.version, s.facts, s.duplicate = incarnation, 0, 0, nil, ""
}

// hear takes in that this replica heard the node at an instant of the listened
// axis. The caller holds s.mu.
func (s *slot) hear(at, lateness, now time.Duration) {
	s.detector.Widen(lateness)
	s.detector.Observe(at)
	s.heard, s.unflushed, s.heardAt, s.gone = true, true, now, time.Time{}
}

// told takes in that some replica heard a node last so long before an instant of
// the listened axis, as the registry says. What was before this watch began proves
// nothing to it, and what lies further ahead than an interval was written before
// the database's clock was set back. The caller holds s.mu.
func (i *ingest) told(s *slot, seen time.Time, age, at time.Duration) {
	if seen.IsZero() || age < -i.interval {
		return
	}
	heard := at - max(age, 0)
	if heard < i.observer.Load().Since() || s.heard && heard <= s.detector.Last() {
		return
	}
	if !s.heard {
		s.detector = i.fresh // it may be before this replica knew of the node
	}
	s.detector.Observe(heard)
	s.heard, s.gone = true, time.Time{}
}

// judge brings liveness up to date and reports whether it changed. A node that
// nobody heard since the watch began is observing until it is heard or a full
// limit of silence has passed. The caller holds s.mu.
func (s *slot) judge(at time.Duration) bool {
	now := fleet.Alive
	switch state := s.detector.State(at); {
	case state == detect.Suspect:
		now = fleet.Suspect
	case !s.heard:
		now = fleet.Observing
	case state == detect.Late:
		now = fleet.Late
	}
	if now == s.liveness {
		return false
	}
	s.liveness, s.since = now, time.Now()
	return true
}

// tick advances the listened axis if this replica could have heard every node,
// and returns the nodes of which the registry must be asked: those that are
// silent here, whom another replica may have heard, and those without a lease,
// which may have got one by another way than a beat.
func (i *ingest) tick(listening bool) (ask []*slot) {
	if listening {
		o := *i.observer.Load()
		now := clock.Now().Boot
		gap := o.Tick(now)
		i.observer.Store(&o)
		if gap.Missed > 0 {
			i.gaps.Add(1)
		}
		if gap.Restart {
			at := o.At(now)
			for _, s := range i.all() {
				s.mu.Lock()
				if s.liveness != fleet.Suspect {
					s.detector.Begin(at)
					s.heard = false
				}
				s.mu.Unlock()
			}
		}
	}
	at, now := i.at(), clock.Now().Boot
	for _, s := range i.all() {
		s.mu.Lock()
		if s.detector.State(at) != detect.Alive || !s.leased(now) {
			ask = append(ask, s)
		}
		s.mu.Unlock()
	}
	return ask
}

// durable is the part of what a node says that is kept in the registry. What it
// finds in use changes too often.
func durable(f *fleet.Facts) fleet.Facts {
	kept := *f
	kept.Used = nil
	return kept
}

// sameFacts reports whether two nodes' durable facts are equal.
func sameFacts(a, b *fleet.Facts) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Address == b.Address && maps.Equal(a.Labels, b.Labels) && slices.Equal(a.Features, b.Features) &&
		slices.Equal(a.Artifacts, b.Artifacts) && maps.Equal(a.Capacity, b.Capacity) && reflect.DeepEqual(a.Readiness, b.Readiness) && a.Config == b.Config &&
		slices.Equal(a.Leftovers, b.Leftovers)
}

// node returns the node as it stands. skew is the database's clock less this
// host's, and flap says when lapses are too many. The caller holds s.mu.
func (s *slot) node(at, now, skew time.Duration, flap fleet.FlapRule) fleet.Node {
	n := fleet.Node{
		ID: s.id, Incarnation: s.incarnation, Liveness: s.liveness, Since: s.since, Gone: s.gone,
		Age: max(at-s.detector.Last(), 0), Lease: s.leaseNow(now),
	}
	if s.duplicate != "" && now-s.duplicateAt < time.Minute {
		n.Duplicate = s.duplicate
	}
	if r := s.row; r != nil {
		n.Incarnation, n.Facts, n.Intent = r.Incarnation, r.Facts, r.Intent
		n.Reserved, n.Work, n.Stuck = r.Reserved, r.Work, r.Stuck
		if !r.NotReady.IsZero() {
			n.NotReady, n.WasReady = r.NotReady.Add(-skew), r.NotReady.After(r.FirstSeen)
		}
		if len(r.Lapses) > 0 {
			until, flapping := flap.Judge(r.Lapses, time.Now().Add(skew))
			if n.Flapping = flapping; flapping {
				n.CalmAt = until.Add(-skew)
			}
		}
	}
	if s.facts != nil && (s.row == nil || s.incarnation == s.row.Incarnation) {
		n.Facts, n.Incarnation = *s.facts, s.incarnation
	}
	n.Probed = n.Incarnation == probeIncarnation
	return n
}
