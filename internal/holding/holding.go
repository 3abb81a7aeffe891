// Package holding follows what the keepers of a process hold, for the instruments
// that show it.
//
// What is shown is looked up when it is asked for, with a reading of the clocks, so
// that no value outlives the term that it speaks of. Of a lease that was held before
// only that is said, and that it is not held now.
package holding

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// MaxLeases is how many leases are remembered that are not held now. The one whose
// last term is the oldest is forgotten first.
const MaxLeases = 1000

// Watch follows keepers. The zero Watch follows none. It is safe for concurrent use.
type Watch struct {
	mu      sync.Mutex
	keepers []*tenure.Keeper
	leases  map[string]*lease
	turn    uint64 // of the last acquisition
}

type lease struct {
	acquired uint64
	turn     uint64 // of the last acquisition
	expected bool
}

// Expect remembers leases that were not held yet, for good.
func (w *Watch) Expect(names ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range names {
		w.lease(name).expected = true
	}
}

// lease returns what is remembered of a lease. The caller holds w.mu.
func (w *Watch) lease(name string) *lease {
	if w.leases == nil {
		w.leases = map[string]*lease{}
	}
	l := w.leases[name]
	if l == nil {
		l = &lease{}
		w.leases[name] = l
	}
	return l
}

// Lease is a lease that is or was held here.
type Lease struct {
	Name     string
	Acquired uint64 // terms that began, since the lease is remembered
	Held     bool   // its holder may act
	// Doubt: a term is there, under which its holder may not act until a renewal
	// confirms it.
	Doubt bool
	// What follows is of the term; zero if there is none.
	Token     fence.Token
	Confirmed time.Duration // since the last confirmed request left
	Left      time.Duration // until TrustedUntil; 0 in doubt
}

// NewKeeper is tenure.NewKeeper for a keeper that w follows. The hooks of cfg are
// called as well as renewal, which may be nil.
func (w *Watch) NewKeeper(st store.Store, cfg tenure.Config, renewal func(tenure.Renewal)) (*tenure.Keeper, error) {
	onEvent, onRenewal := cfg.OnEvent, cfg.OnRenewal
	cfg.OnEvent = func(e tenure.Event) {
		if e.Kind == tenure.EventAcquired {
			w.acquired(e.Lease)
		}
		if onEvent != nil {
			onEvent(e)
		}
	}
	cfg.OnRenewal = func(r tenure.Renewal) {
		if renewal != nil {
			renewal(r)
		}
		if onRenewal != nil {
			onRenewal(r)
		}
	}
	k, err := tenure.NewKeeper(st, cfg)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keepers = append(w.keepers, k)
	return k, nil
}

func (w *Watch) acquired(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lease(name)
	w.turn++
	l.acquired, l.turn = l.acquired+1, w.turn
}

// Leases returns the leases that are held or in doubt, and those that were, in
// order of their names.
func (w *Watch) Leases() []Lease {
	w.mu.Lock()
	keepers := slices.Clone(w.keepers)
	w.mu.Unlock()
	var held []Lease
	for _, k := range keepers { // without w.mu: what is found to be over is told to acquired's caller
		for _, t := range k.Terms() {
			l := Lease{Name: t.Name(), Token: t.Token(), Confirmed: t.Confirmed(), Left: t.Left()}
			switch t.State() { // last: what ended meanwhile is not shown
			case tenure.StateHeld:
				l.Held = true
			case tenure.StateDoubt:
				l.Doubt = true
			default:
				continue
			}
			held = append(held, l)
		}
	}
	return w.merge(held)
}

// merge adds the leases that were held before. Of two terms of one name the later
// one counts: the store has ended the other, which does not know it yet.
func (w *Watch) merge(held []Lease) []Lease {
	w.mu.Lock()
	defer w.mu.Unlock()
	byName := map[string]Lease{}
	for _, l := range held {
		if l.Token > byName[l.Name].Token {
			byName[l.Name] = l
		}
	}
	w.forget(byName)
	for name, known := range w.leases {
		l := byName[name]
		l.Name, l.Acquired = name, known.acquired
		byName[name] = l
	}
	all := make([]Lease, 0, len(byName))
	for _, l := range byName {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b Lease) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// forget drops the oldest of too many leases that are not held. The caller holds
// w.mu.
func (w *Watch) forget(held map[string]Lease) {
	var free []string
	for name, l := range w.leases {
		if _, ok := held[name]; !ok && !l.expected {
			free = append(free, name)
		}
	}
	if len(free) <= MaxLeases {
		return
	}
	slices.SortFunc(free, func(a, b string) int { return int(int64(w.leases[b].turn) - int64(w.leases[a].turn)) })
	for _, name := range free[MaxLeases:] {
		delete(w.leases, name)
	}
}

// Counts adds up the counts of the keepers.
func (w *Watch) Counts() map[tenure.Count]int64 {
	w.mu.Lock()
	keepers := slices.Clone(w.keepers)
	w.mu.Unlock()
	sum := map[tenure.Count]int64{}
	for _, k := range keepers {
		for c, n := range k.Counts() {
			sum[c] += n
		}
	}
	return sum
}
