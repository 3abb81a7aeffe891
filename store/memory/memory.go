// Package memory is a store that lives in one process: for tests, for programs
// whose contenders are goroutines, and as the shortest reading of the contract.
//
// # Promised
//
// Everything that package store promises, for as long as the Store value
// exists. Every decision is store.JudgeAcquire, JudgeRenew or JudgeRelease,
// taken and applied in one critical section, so other stores can be compared
// with it.
//
// # Not promised
//
// Nothing outlives the process: tokens start over with it. A guarded write
// whose target is durable needs a durable store.
package memory

import (
	"context"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store"
)

var (
	_ store.Store     = (*Store)(nil)
	_ store.Watcher   = (*Store)(nil)
	_ store.Historian = (*Store)(nil)
	_ store.Slotter   = (*Store)(nil)
	_ store.Cleaner   = (*Store)(nil)
	_ store.Doctor    = (*Store)(nil)
)

const minTTL = time.Millisecond

// Config adjusts a Store. The zero Config is ready to use.
type Config struct {
	// Clock decides expiry: the time since some fixed origin, never smaller
	// than it was. It is called with the store locked and must not call back.
	// Nil means this host's boot clock, which goes on during a suspend.
	Clock func() time.Duration
}

// Store keeps leases in memory. It is safe for concurrent use.
type Store struct {
	clock  func() time.Duration
	origin time.Time // what the clock's zero is shown as

	mu           sync.Mutex
	entries      map[string]*entry
	slots        map[slotKey]store.Slot
	watches      map[string]map[chan store.Event]struct{}
	unknownFloor fence.Token // for names that are not in entries
	writes       int64
}

type slotKey struct{ name, slot string }

// New returns an empty store on this host's boot clock.
func New() *Store { return NewWith(Config{}) }

// NewWith returns an empty store.
func NewWith(cfg Config) *Store {
	if cfg.Clock == nil {
		cfg.Clock = clock.Boot
	}
	return &Store{
		clock:   cfg.Clock,
		origin:  time.Now().UTC().Round(0).Add(-cfg.Clock()),
		entries: make(map[string]*entry),
		slots:   make(map[slotKey]store.Slot),
		watches: make(map[string]map[chan store.Event]struct{}),
	}
}

// Features says what a store in one process can ensure.
func (s *Store) Features() store.Features {
	return store.Features{
		Backend:      "memory",
		Clock:        store.ClockProcess,
		MinTTL:       minTTL,
		Granularity:  time.Nanosecond,
		BatchRenew:   true,
		Watch:        true,
		Reach:        "one process",
		TokensReset:  "the end of the process",
		LosesWrites:  "the end of the process",
		ClockCaution: "the boot clock does not step",
	}
}

// Writes returns how many changes were made since New: one for each record,
// floor or slot that was written or removed.
func (s *Store) Writes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

// now returns the store's clock and how it is shown. It is read with s locked.
func (s *Store) now() time.Time { return s.origin.Add(s.clock()) }

// wrote counts a write and returns the revision that belongs to it.
func (s *Store) wrote() store.Revision {
	s.writes++
	return store.Revision(strconv.FormatInt(s.writes, 10))
}

// Acquire implements store.Store.
func (s *Store) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	if err := req.Check(minTTL); err != nil {
		return store.Record{}, err
	}
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	e := s.entries[req.Name]
	var found *store.Record
	if e != nil {
		r := e.record(now)
		found = &r
	}
	verdict, err := store.JudgeAcquire(found, &req)
	switch verdict {
	case store.Start:
		if e == nil {
			e = &entry{name: req.Name, floor: s.unknownFloor}
			s.entries[req.Name] = e
		}
		e.start(now, &req)
	case store.Continue:
		e.extend(now, req.TTL, req.Attempt)
	default:
		return store.Record{}, err
	}
	e.revision = s.wrote()
	if verdict == store.Start {
		s.tell(req.Name, true, req.TTL)
	}
	return e.record(now), nil
}

// Renew implements store.Store. The grants of one call are judged at one
// instant. A name may occur once in them.
func (s *Store) Renew(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	check := func(g *store.Grant) error { return g.CheckRenew(minTTL) }
	return s.batch(ctx, grants, check, func(e *entry, now time.Time, g *store.Grant) error {
		r := e.record(now)
		if err := store.JudgeRenew(&r, g); err != nil {
			return err
		}
		e.extend(now, g.TTL, g.Attempt)
		e.revision = s.wrote()
		return nil
	})
}

// Release implements store.Store. A name may occur once in one call.
func (s *Store) Release(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	return s.batch(ctx, grants, (*store.Grant).CheckRelease, func(e *entry, now time.Time, g *store.Grant) error {
		r := e.record(now)
		if err := store.JudgeRelease(&r, g); err != nil {
			return err
		}
		if r.Status == store.Released {
			return nil // by an earlier send, or by Revoke now
		}
		e.attempt = g.Attempt
		e.end(now, store.HandoffTime(e.ttl), g.HandoffTo)
		e.revision = s.wrote()
		s.tell(e.name, false, 0)
		return nil
	})
}

// batch checks all grants and then applies one at a time, at one instant.
func (s *Store) batch(ctx context.Context, grants []store.Grant, check func(*store.Grant) error, apply func(*entry, time.Time, *store.Grant) error) ([]store.Result, error) {
	seen := make(map[string]struct{}, len(grants))
	for i := range grants {
		g := &grants[i]
		if err := check(g); err != nil {
			return nil, err
		}
		if _, twice := seen[g.Name]; twice {
			return nil, &store.InvalidError{Field: "name", Value: g.Name, Rule: "once in one call"}
		}
		seen[g.Name] = struct{}{}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	results := make([]store.Result, len(grants))
	for i := range grants {
		e := s.entries[grants[i].Name]
		if e == nil {
			results[i].Err = store.ErrMissing
			continue
		}
		results[i].Err = apply(e, now, &grants[i])
		results[i].Record = e.record(now)
	}
	return results, nil
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, name string) (store.Record, error) {
	if err := store.CheckName(name); err != nil {
		return store.Record{}, err
	}
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[name]
	if e == nil {
		return store.Record{}, store.ErrNotFound
	}
	return e.record(s.now()), nil
}

// List implements store.Store. All records are of one instant.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		err := store.CheckPrefix(prefix)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			yield(store.Record{}, err)
			return
		}
		for _, r := range s.snapshot(prefix) {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func (s *Store) snapshot(prefix string) []store.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var records []store.Record
	for name, e := range s.entries {
		if strings.HasPrefix(name, prefix) {
			records = append(records, e.record(now))
		}
	}
	slices.SortFunc(records, func(a, b store.Record) int { return strings.Compare(a.Name, b.Name) })
	return records
}

// Revoke implements store.Store. A second Revoke of the term replaces the
// first one's reason and handoff.
func (s *Store) Revoke(ctx context.Context, name string, token fence.Token, rev store.Revocation) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	if err := rev.Check(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	e := s.entries[name]
	if e == nil {
		return store.ErrNotFound
	}
	if e.token != token || e.status(now) != store.Held {
		return store.ErrSuperseded
	}
	e.revoked, e.why, e.revokedBy, e.handoffTo = true, rev.Why, rev.By, rev.HandoffTo
	if rev.Now {
		e.holdUntil = time.Time{}
		e.end(now, store.HandoffTime(e.ttl), "")
		s.tell(name, false, 0)
	}
	e.revision = s.wrote()
	return nil
}

// RaiseFloor implements store.Store.
func (s *Store) RaiseFloor(ctx context.Context, name string, floor fence.Token) error {
	if err := store.CheckFloor(name, floor); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if name == "" {
		if floor > s.unknownFloor {
			s.unknownFloor = floor
			s.wrote()
		}
		for _, e := range s.entries {
			s.raise(e, now, floor)
		}
		return nil
	}
	e := s.entries[name]
	if e == nil {
		if floor <= s.unknownFloor {
			return nil
		}
		e = &entry{name: name}
		s.entries[name] = e
	}
	s.raise(e, now, floor)
	return nil
}

func (s *Store) raise(e *entry, now time.Time, floor fence.Token) {
	if floor <= e.floor {
		return
	}
	e.floor = floor
	if e.token <= floor && e.status(now) == store.Held && !e.revoked {
		e.revoked, e.why = true, "floor raised to "+floor.String()
	}
	e.revision = s.wrote()
}

// Clean implements store.Cleaner. It keeps slots, since a slot is done once for
// ever, and names for which only a floor was set.
func (s *Store) Clean(ctx context.Context, idle time.Duration) (int, error) {
	if idle < 0 {
		return 0, &store.InvalidError{Field: "idle", Value: idle.String(), Rule: "0s or more"}
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	removed := 0
	for name, e := range s.entries {
		r := e.record(now)
		if r.Status == store.Held || r.Status == store.Unheld || r.Wait > 0 || now.Sub(e.ended(now)) < idle {
			continue
		}
		s.unknownFloor = max(s.unknownFloor, e.token, e.floor)
		delete(s.entries, name)
		s.wrote()
		removed++
	}
	return removed, nil
}

// History implements store.Historian. It keeps the newest 100 terms of a name
// and drops them with its record.
func (s *Store) History(ctx context.Context, name string) iter.Seq2[store.Term, error] {
	return func(yield func(store.Term, error) bool) {
		terms, err := s.history(ctx, name)
		if err != nil {
			yield(store.Term{}, err)
			return
		}
		for _, t := range slices.Backward(terms) {
			if !yield(t, nil) {
				return
			}
		}
	}
}

func (s *Store) history(ctx context.Context, name string) ([]store.Term, error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[name]
	if e == nil {
		return nil, nil
	}
	terms := slices.Clone(e.past)
	if e.token > 0 {
		terms = append(terms, e.term(s.now()))
	}
	return terms, nil
}

// Done implements store.Slotter. It does not change the record of the lease.
func (s *Store) Done(ctx context.Context, g store.Grant, slot string) error {
	if err := g.CheckRelease(); err != nil {
		return err
	}
	if err := store.CheckSlot(slot); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := slotKey{g.Name, slot}
	if done, ok := s.slots[key]; ok {
		if done.Token == g.Token {
			return nil
		}
		return &store.SlotError{Slot: done}
	}
	e := s.entries[g.Name]
	if e == nil {
		return store.ErrMissing
	}
	r := e.record(s.now())
	if err := store.JudgeRenew(&r, &g); err != nil {
		return err
	}
	s.slots[key] = store.Slot{Name: g.Name, Slot: slot, Token: r.Token, Holder: r.Holder, DoneAt: r.Now}
	s.wrote()
	return nil
}

// Slot implements store.Slotter.
func (s *Store) Slot(ctx context.Context, name, slot string) (store.Slot, error) {
	if err := store.CheckName(name); err != nil {
		return store.Slot{}, err
	}
	if err := store.CheckSlot(slot); err != nil {
		return store.Slot{}, err
	}
	if err := ctx.Err(); err != nil {
		return store.Slot{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	done, ok := s.slots[slotKey{name, slot}]
	if !ok {
		return store.Slot{}, store.ErrNotFound
	}
	return done, nil
}

// Diagnose implements store.Doctor.
func (s *Store) Diagnose(ctx context.Context) ([]store.Finding, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return []store.Finding{{
		Code:     "not_durable",
		Severity: store.Warning,
		Text:     "leases and tokens are lost when this process ends",
		Fix:      "use a file or a database for leases that guard anything durable",
	}}, nil
}

// Watch implements store.Watcher. A slow reader gets the newest event only.
func (s *Store) Watch(ctx context.Context, name string) (<-chan store.Event, error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	events := make(chan store.Event, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watches[name] == nil {
		s.watches[name] = make(map[chan store.Event]struct{})
	}
	s.watches[name][events] = struct{}{}
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watches[name], events)
		if len(s.watches[name]) == 0 {
			delete(s.watches, name)
		}
		close(events)
	})
	return events, nil
}

// tell puts an event into every channel that watches name, in place of one
// that was not read yet. Only tell sends, and with s locked, so that the send
// after the drain cannot block.
func (s *Store) tell(name string, held bool, remaining time.Duration) {
	watches := s.watches[name]
	e := store.Event{Name: name, Held: held, Remaining: remaining, Waiters: max(len(watches), 1)}
	for events := range watches {
		select {
		case <-events:
		default:
		}
		events <- e
	}
}
