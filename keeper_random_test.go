package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
	"github.com/tenurehq/tenure/store/storetest"
)

// witness is what the work under a lease would touch: it sees who acts.
type witness struct {
	mu     sync.Mutex
	acting map[string]*tenure.Term // by lease
	tokens map[string]fence.Token  // the largest that began, by lease
	terms  int
	faults []string
}

func (w *witness) fault(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

func (w *witness) began(term *tenure.Term) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.terms++
	if last := w.tokens[term.Name()]; term.Token() <= last {
		w.faults = append(w.faults, fmt.Sprintf("%s: token %s after %s", term.Name(), term.Token(), last))
	}
	w.tokens[term.Name()] = term.Token()
	if other := w.acting[term.Name()]; other != nil && mayAct(term) && mayAct(other) {
		w.faults = append(w.faults, fmt.Sprintf("%s: tokens %s and %s may both act", term.Name(), other.Token(), term.Token()))
	}
	w.acting[term.Name()] = term
}

// Random faults, cancellations, doubts, pauses and steps of the wall clock, on a
// store whose own clock is right: no two ever act, tokens grow, and once the
// faults are over every lease can be had again within two TTLs and nobody is
// left behind.
func TestP2RandomFaults(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) { randomFaults(t, seed) })
		})
	}
}

func randomFaults(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	start := time.Now()
	st := storetest.NewFaulty(memory.NewWith(memory.Config{Clock: func() time.Duration { return time.Since(start) }}))
	faults := []storetest.Fault{
		{DropRequest: true}, {DropReply: true}, {Delay: 500 * time.Millisecond}, {Delay: 4 * time.Second},
		{DropRequest: true, Err: store.ErrBusy}, {DropRequest: true, Err: store.ErrUnavailable},
		{DropReply: true, Err: errors.New("reset")},
	}
	st.Rule(storetest.Random(seed, 0.05+0.4*random.Float64(), faults...))
	seen := &witness{acting: map[string]*tenure.Term{}, tokens: map[string]fence.Token{}}
	names := []string{"a", "b", "c"}
	const keepers = 4
	var over atomic.Bool
	var work sync.WaitGroup
	var list []*tenure.Keeper
	var hosts []*host
	var stops []func()
	for range keepers {
		h := newHost()
		k, err := tenure.NewKeeper(st, tenure.WithClock(tenure.Config{TTL: ttl}, h.now))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- k.Run(ctx) }()
		stops = append(stops, func() { cancel(); <-ended })
		list, hosts = append(list, k), append(hosts, h)
		for _, name := range names {
			own := rand.New(rand.NewPCG(random.Uint64(), 2))
			work.Go(func() {
				for !over.Load() {
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(own.IntN(int(3*ttl))))
					term, err := k.Acquire(ctx, name, tenure.WithTTL(ttl/time.Duration(1+own.IntN(3))))
					if err == nil {
						seen.began(term)
						select {
						case <-term.Context().Done():
						case <-time.After(time.Duration(own.IntN(int(2 * ttl)))):
						}
						_ = term.Release(ctx)
					}
					cancel()
					time.Sleep(time.Duration(own.IntN(int(time.Second))))
				}
			})
		}
	}
	for time.Since(start) < 10*time.Minute {
		time.Sleep(time.Duration(random.IntN(int(5 * time.Second))))
		switch i := random.IntN(keepers); random.IntN(5) {
		case 0:
			list[i].Doubt(tenure.DoubtWake, "")
		case 1:
			list[i].Doubt(tenure.DoubtRestore, "")
		case 2:
			hosts[i].wall.Add(int64(time.Hour))
		case 3: // seems to have slept: it may only stop sooner
			hosts[i].boot.Add(int64(time.Duration(random.IntN(int(ttl)))))
		}
	}
	over.Store(true)
	st.Pass()
	work.Wait()
	at := time.Now()
	var last sync.WaitGroup
	for _, name := range names {
		last.Go(func() {
			term, err := list[0].Acquire(context.Background(), name)
			if err != nil {
				seen.fault("%s: %v", name, err)
				return
			}
			if d := time.Since(at); d > 2*ttl {
				seen.fault("%s: acquired %s after the faults", name, d)
			}
			_ = term.Release(context.Background())
		})
	}
	last.Wait()
	for i, stop := range stops {
		begin := time.Now()
		stop()
		if d := time.Since(begin); d > time.Second {
			seen.fault("keeper %d ended after %s", i, d)
		}
	}
	synctest.Wait()
	if seen.terms < 50 {
		seen.fault("%d terms, want many", seen.terms)
	}
	for _, f := range seen.faults {
		t.Error(f)
	}
}
