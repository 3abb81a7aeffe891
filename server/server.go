package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/detect"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
)

// ReconcilerLease is the name of the lease under which one replica reconciles.
const ReconcilerLease = "tenure/reconciler"

// Server is one replica of the control plane. It is safe for concurrent use.
type Server struct {
	cfg       Config
	st        measured
	reg       *registry.Registry
	log       *slog.Logger
	in        *ingest
	renewer   *renewer
	owners    owners
	counts    counts
	history   history
	views     views
	hindsight *hindsight

	loaded    atomic.Bool
	failing   atomic.Pointer[error] // of the last refresh; nil if it went well
	refreshed atomic.Int64          // boot clock of the last complete refresh, ns
	skew      atomic.Int64          // the database's clock less this host's, ns
	brakes    atomic.Pointer[[]fleet.BrakeState]
	active    atomic.Bool                   // this replica reconciles
	failed    atomic.Pointer[stepFailure]   // of its last step as reconciler; nil if that went well
	keeper    atomic.Pointer[tenure.Keeper] // of the reconciler's lease; nil before Run
	cursor    registry.Cursor
	wake      chan struct{}                      // asks for a refresh now
	hurry     chan struct{}                      // asks the reconciler to look now
	heldBack  atomic.Pointer[map[fleet.Code]int] // takeovers that the reconciler holds back
	events    chan struct{}                      // closed and replaced when the ledger may have grown
	eventsMu  sync.Mutex
}

// New returns a replica over a store and the registry in the same database. It
// starts nothing and changes nothing. Errors match ErrConfig.
func New(st store.Store, reg *registry.Registry, cfg Config) (*Server, error) {
	cfg, err := cfg.Filled()
	if err != nil {
		return nil, err
	}
	in, err := newIngest(&cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	m := newMeter()
	reg.Observe(m.transacted)
	s := &Server{
		cfg: cfg, st: measured{st, m}, reg: reg, log: cfg.Logger, in: in, hindsight: newHindsight(),
		renewer: newRenewer(measured{st, m}, cfg.Window, min(cfg.Interval, 10*time.Second)),
		wake:    make(chan struct{}, 1), hurry: make(chan struct{}, 1), events: make(chan struct{}),
	}
	s.owners.found = map[string]location{}
	s.brakes.Store(&[]fleet.BrakeState{})
	s.heldBack.Store(&map[fleet.Code]int{})
	return s, nil
}

// Config returns the settings in force, defaults filled in.
func (s *Server) Config() Config { return s.cfg }

// Ready returns nil once the replica has read the registry and while it can:
// before that it answers nothing, since an empty answer would be taken for the
// truth.
func (s *Server) Ready() error {
	if !s.loaded.Load() {
		return errors.New("the registry has not been read yet")
	}
	if err := s.failing.Load(); err != nil && errors.Is(*err, store.ErrUnavailable) && s.refreshAge() > 2*s.cfg.Refresh {
		return fmt.Errorf("the registry cannot be read: %w", *err)
	}
	if age := s.refreshAge(); age > s.cfg.NodeTTL {
		return fmt.Errorf("the registry was last read %s ago", age.Round(time.Second))
	}
	return nil
}

// refreshAge is how long ago the registry was read last.
func (s *Server) refreshAge() time.Duration {
	return clock.Now().Boot - time.Duration(s.refreshed.Load())
}

// Run serves the fleet until ctx ends and then returns nil: it reads the
// registry, judges liveness, sends renewals, flushes what was heard, and
// reconciles while it holds the lease for that.
func (s *Server) Run(ctx context.Context) error {
	keeper, err := tenure.NewKeeper(s.st, tenure.Config{TTL: s.cfg.ReconcilerTTL, Logger: s.log})
	if err != nil {
		return err
	}
	s.keeper.Store(keeper)
	var all sync.WaitGroup
	for _, loop := range []func(context.Context){s.renewer.run, s.refreshLoop, s.rereadLoop, s.watchLoop, s.flushLoop, s.probeLoop, s.historyLoop, s.hindsightLoop, s.reconcileLoop(keeper)} {
		all.Go(func() { loop(ctx) })
	}
	err = keeper.Run(ctx)
	all.Wait()
	return err
}

// every calls f at once and then each period until ctx ends, and sooner when
// wake says so.
func every(ctx context.Context, period time.Duration, wake <-chan struct{}, f func(context.Context)) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		f(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-wake:
		}
	}
}

// refreshLoop reads what changed in the registry.
func (s *Server) refreshLoop(ctx context.Context) {
	every(ctx, s.cfg.Refresh, s.wake, func(ctx context.Context) {
		err := s.refresh(ctx)
		if ctx.Err() != nil {
			return
		}
		was := s.failing.Load()
		if err == nil {
			s.failing.Store(nil)
		} else {
			s.failing.Store(&err)
		}
		if (err != nil) != (was != nil) {
			s.log.Warn("registry read", "failing", err != nil, "err", err)
		}
	})
}

// rereadLoop reads the whole registry now and then, beside the reading of changes:
// changes alone are not enough after a failover of the database that lost writes.
func (s *Server) rereadLoop(ctx context.Context) {
	again := time.NewTicker(fullEvery)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
		s.reread(ctx)
	}
}

// How often the whole registry is read, and how long that may take.
const (
	fullEvery = 5 * time.Minute
	fullLimit = 2 * time.Minute
)

func (s *Server) reread(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, fullLimit)
	defer cancel()
	began := clock.Now().Boot
	rows, _, err := s.reg.Nodes(ctx, 0)
	if err != nil {
		s.log.Debug("full read of the registry", "err", err)
		return
	}
	s.takeAll(rows, began)
}

func (s *Server) refresh(ctx context.Context) error {
	limit := s.cfg.Interval
	if s.cursor == 0 {
		limit = fullLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := clock.Now().Boot
	rows, cursor, err := s.reg.Nodes(ctx, s.cursor)
	if err != nil {
		return err
	}
	for i := range rows {
		s.take(&rows[i], began)
	}
	s.cursor = cursor
	if !s.loaded.Load() {
		s.missing(rows)
	}
	brake, err := s.reg.Brake(ctx)
	if err != nil {
		return err
	}
	states, err := brakeStates(brake)
	if err != nil {
		return err
	}
	shiftBrakes(states, -time.Duration(s.skew.Load()))
	if !s.active.Load() { // who reconciles knows better than what it last saved
		s.brakes.Store(&states)
	}
	s.refreshed.Store(int64(began))
	s.loaded.Store(true)
	s.tellEvents()
	return nil
}

// missing notes which of the nodes, as they were read together, had been silent for
// a full timeout when the last of them was heard: whoever listened then had missed
// them. Silence since then proves nothing.
func (s *Server) missing(rows []registry.Node) {
	last := time.Duration(math.MaxInt64)
	for i := range rows {
		if !rows[i].LastSeen.IsZero() && rows[i].Age >= 0 {
			last = min(last, rows[i].Age)
		}
	}
	for i := range rows {
		if rows[i].LastSeen.IsZero() || rows[i].Age-last < s.cfg.suspect() {
			continue
		}
		n := s.in.slot(rows[i].ID)
		n.mu.Lock()
		if !n.heard {
			n.gone = time.Now().Add(s.cfg.suspect() - rows[i].Age)
		}
		n.mu.Unlock()
	}
}

// take takes in a node's row by a reading that began at an instant of the boot
// clock, unless a later state of it is known.
func (s *Server) take(row *registry.Node, began time.Duration) {
	if row.Removed {
		if n := s.in.find(row.ID); n != nil {
			n.mu.Lock()
			later := n.knowsLater(row, began)
			n.mu.Unlock()
			if !later {
				s.in.forget(row.ID)
			}
		}
		return
	}
	at := s.in.at()
	if !row.LastSeen.IsZero() {
		passed := clock.Now().Boot - began
		s.skew.Store(int64(row.LastSeen.Add(row.Age).Sub(time.Now().Add(-passed))))
	}
	n := s.in.slot(row.ID)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.knowsLater(row, began) {
		return
	}
	n.rowAt = clock.Now().Boot
	if row.Incarnation != "" && row.Incarnation != n.incarnation && !slices.Contains(n.replaced, row.Incarnation) {
		n.become(row.Incarnation)
	}
	switch {
	case n.facts == nil:
	case sameFacts(&row.Facts, n.facts):
		row.Facts = durable(n.facts) // the same maps, which are most of what a node costs
	case row.Incarnation == n.incarnation && (n.row == nil || !sameFacts(&row.Facts, &n.row.Facts)):
		n.facts, n.version = nil, 0 // it told another replica something new since
	}
	n.see(row.Lease, began)
	s.in.told(n, row.LastSeen, row.Age, at)
	if n.changed != nil && (n.row == nil || n.row.Orders != row.Orders) {
		close(n.changed)
		n.changed = nil
	}
	n.row = row
}

// takeAll takes in a reading of all nodes, in order of id, that began at an instant of
// the boot clock. A node that it lacks has no row any more: a failover lost it, or an
// older backup was restored. If it beats, its next beat makes a row anew, under the
// intent that is known here. If it does not, nothing is kept of it but such an intent.
func (s *Server) takeAll(rows []registry.Node, began time.Duration) {
	for _, n := range s.in.all() {
		if _, found := slices.BinarySearchFunc(rows, n.id, func(r registry.Node, id string) int { return strings.Compare(r.ID, id) }); found {
			continue
		}
		n.mu.Lock()
		n.lose(began)
		over := n.row == nil && n.liveness == fleet.Suspect && n.intent.State() == fleet.Active
		n.mu.Unlock()
		if over {
			s.in.forget(n.id)
		}
	}
	for i := range rows {
		s.take(&rows[i], began)
	}
}

// lost takes in that a reading which began at an instant of the boot clock found no row
// of a node.
func (s *Server) lost(node string, began time.Duration) {
	if n := s.in.find(node); n != nil {
		n.mu.Lock()
		n.lose(began)
		n.mu.Unlock()
	}
}

// dbNow is the present by the database's clock. Instants that the registry keeps
// are judged by it and by no other.
func (s *Server) dbNow() time.Time { return time.Now().Add(time.Duration(s.skew.Load())) }

// touch reads one node's row now, after this replica changed it.
func (s *Server) touch(ctx context.Context, node string) {
	began := clock.Now().Boot
	switch row, ok, err := s.reg.Node(ctx, node); {
	case err != nil:
	case ok:
		s.take(&row, began)
	default:
		s.lost(node, began)
	}
	s.tellEvents()
}

// watchLoop judges liveness. It listens, in the sense of package detect, while it
// comes round in time and can read what other replicas heard.
func (s *Server) watchLoop(ctx context.Context) {
	tick := s.cfg.tick()
	every(ctx, tick, nil, func(ctx context.Context) {
		last := time.Duration(s.refreshed.Load())
		listening := s.loaded.Load() && clock.Now().Boot-last < 2*s.cfg.Refresh+tick
		ask := s.in.tick(listening)
		asked := len(ask) == 0 || s.merge(ctx, ask)
		at := s.in.at()
		all := s.in.all()
		s.hindsight.forget(all)
		for _, n := range all {
			n.mu.Lock()
			was := n.liveness
			if (asked || n.detector.State(at) == detect.Alive) && n.judge(at) {
				level := slog.LevelDebug // lateness comes and goes
				if was == fleet.Suspect || n.liveness == fleet.Suspect {
					level = slog.LevelInfo
				}
				s.log.Log(ctx, level, "liveness", "node", n.id, "was", was, "is", n.liveness)
			}
			s.hindsight.judged(n)
			n.mu.Unlock()
		}
	})
}

// merge takes in what the registry knows of nodes: when any replica heard them,
// and their leases. It reports whether it could.
func (s *Server) merge(ctx context.Context, slots []*slot) bool {
	ids := make([]string, len(slots))
	for i, n := range slots {
		ids[i] = n.id
	}
	ctx, cancel := context.WithTimeout(ctx, 2*s.cfg.tick())
	defer cancel()
	began := clock.Now().Boot
	signs, err := s.reg.Signs(ctx, ids)
	if err != nil {
		return false
	}
	s.takeSigns(signs, began)
	return true
}

func (s *Server) takeSigns(signs []registry.Sign, began time.Duration) {
	at := s.in.at()
	for i := range signs {
		sign := &signs[i]
		n := s.in.find(sign.Node)
		if n == nil {
			continue
		}
		n.mu.Lock()
		n.see(sign.Lease, began)
		s.in.told(n, sign.LastSeen, sign.Age, at)
		n.mu.Unlock()
	}
}

// flushLoop writes when nodes were last heard, at least twice an interval.
func (s *Server) flushLoop(ctx context.Context) {
	every(ctx, time.Duration(float64(s.cfg.Interval)/flushes), nil, func(ctx context.Context) {
		now := clock.Now().Boot
		var seen []registry.Seen
		var slots []*slot
		for _, n := range s.in.all() {
			n.mu.Lock()
			if n.unflushed && n.row != nil {
				n.unflushed = false
				slots = append(slots, n)
				seen = append(seen, registry.Seen{Node: n.id, Incarnation: n.incarnation, Age: now - n.heardAt})
			}
			n.mu.Unlock()
		}
		if len(seen) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Interval)
		defer cancel()
		lost, err := s.reg.Flush(ctx, seen)
		for _, node := range lost {
			s.log.Warn("the registry has no row of a node that beats: it joins anew", "node", node)
			s.lost(node, now)
		}
		if err != nil {
			s.log.Debug("flush", "err", err)
			for _, n := range slots {
				n.mu.Lock()
				n.unflushed = true
				n.mu.Unlock()
			}
		}
	})
}

// hasten has the reconciler look now, if it is this replica's, and tells that
// the ledger has grown: an operator has changed something.
func (s *Server) hasten() {
	select {
	case s.hurry <- struct{}{}:
	default: // it has been told
	}
	s.tellEvents()
}

// tellEvents wakes those who follow the ledger.
func (s *Server) tellEvents() {
	s.eventsMu.Lock()
	defer s.eventsMu.Unlock()
	close(s.events)
	s.events = make(chan struct{})
}

// grown returns a channel that is closed when the ledger may have grown.
func (s *Server) grown() <-chan struct{} {
	s.eventsMu.Lock()
	defer s.eventsMu.Unlock()
	return s.events
}
