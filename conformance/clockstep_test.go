//go:build linux

package conformance_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store/postgres"
)

// events keeps what a keeper tells.
type events struct {
	mu   sync.Mutex
	list []tenure.Event
}

func (e *events) add(event tenure.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, event)
}

func (e *events) of(kind tenure.EventKind) (list []tenure.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range e.list {
		if event.Kind == kind {
			list = append(list, event)
		}
	}
	return list
}

// running starts a keeper that ends with the test.
func running(t *testing.T, k *tenure.Keeper) *tenure.Keeper {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended // whether its terms were released is the test's own matter
	})
	return k
}

// TestStoreClockStep: the server's clock jumps two hours ahead while one holds
// and one waits. Both say so, the waiter does not believe the expiry that this
// makes and watches for a full TTL, and no stale write gets through.
func TestStoreClockStep(t *testing.T) {
	t.Parallel()
	const (
		ttl  = 3 * time.Second
		step = 2 * time.Hour
	)
	server := pgtest.Start(t, pgtest.Options{StepClock: true, Settings: []string{"track_commit_timestamp=on"}})
	url := server.Database(t)
	watch := openPool(t, url)
	st, err := postgres.New(watch, postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	if err := st.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Exec(t.Context(), tortureTables); err != nil {
		t.Fatal(err)
	}
	// Each has a store, a keeper, a journal and guarded writes of its own.
	paths := make([]string, 2)
	parts := make([]*contender, 2)
	keepers := make([]*tenure.Keeper, 2)
	told := make([]*events, 2)
	for i := range parts {
		paths[i] = filepath.Join(t.TempDir(), fmt.Sprintf("%d.jsonl", i))
		j, err := openJournal(paths[i])
		if err != nil {
			t.Fatal(err)
		}
		pool, err := pgxpool.New(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		own, err := postgres.New(pool, postgres.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(own.Close)
		told[i] = &events{}
		keepers[i], err = tenure.NewKeeper(&recorded{own, j}, tenure.Config{TTL: ttl, ReleaseTimeout: 10 * ttl, OnEvent: told[i].add})
		if err != nil {
			t.Fatal(err)
		}
		running(t, keepers[i])
		parts[i] = &contender{cfg: contenderConfig{Lease: "job", TTL: ttl}, j: j, pool: pool, random: rand.New(rand.NewPCG(uint64(i), 0))}
	}
	// write goes on with a token whether it may or not.
	var writers sync.WaitGroup
	enough, stopWriting := context.WithCancel(t.Context())
	defer stopWriting()
	write := func(c *contender, held *tenure.Term) {
		writers.Go(func() {
			for enough.Err() == nil {
				c.mayAct(held)
				c.write(held.Token(), guardPause)
				c.pause(enough, 10*time.Millisecond)
			}
		})
	}
	renewed := make(chan struct{}, 100)
	held, err := keepers[0].Acquire(t.Context(), "job", tenure.WithConfirm(func(*tenure.Term) { renewed <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	write(parts[0], held)
	type outcome struct {
		held *tenure.Term
		at   time.Duration
		err  error
	}
	waited := make(chan outcome, 1)
	go func() {
		next, err := keepers[1].Acquire(t.Context(), "job")
		waited <- outcome{next, clock.Boot(), err}
	}()
	eventually(t, "the other waits", func() bool { return len(told[1].of(tenure.EventWaiting)) > 0 })

	for range 2 { // won, and renewed: from then on the keeper knows the store's clock
		<-renewed
	}
	stepped := clock.Boot()
	server.StepClock(t, step)
	<-held.Context().Done()
	trusted := held.TrustedUntil()
	next := <-waited
	if next.err != nil {
		t.Fatalf("acquire after the step: %v", next.err)
	}
	write(parts[1], next.held)
	eventually(t, "a write of the first term is refused", func() bool {
		var h history
		return h.readJournals(paths) == nil && slices.ContainsFunc(h.ops, func(o operation) bool { return o.code == codeStale })
	})
	stopWriting()
	writers.Wait()

	lost := told[0].of(tenure.EventLost)
	if len(lost) != 1 || lost[0].Reason != tenure.ReasonExpired {
		t.Errorf("the holder's loss: got %+v, want one with reason %s", lost, tenure.ReasonExpired)
	}
	if steps := told[0].of(tenure.EventClockStep); len(steps) != 1 || (steps[0].Step-step).Abs() > time.Minute {
		t.Errorf("the holder told of steps %+v, want one of %s", steps, step)
	}
	if steps := told[1].of(tenure.EventClockStep); len(steps) == 0 {
		t.Error("the waiter told of no step")
	}
	if next.at < stepped+ttl || next.at <= trusted {
		t.Errorf("the waiter took over %s after the step, want a full TTL of %s of watching", next.at-stepped, ttl)
	}
	if next.held.Token() != held.Token()+1 {
		t.Errorf("token of the next term: got %s, want %s", next.held.Token(), held.Token()+1)
	}
	if err := next.held.Release(t.Context()); err != nil {
		t.Errorf("release: %v", err)
	}
	h := history{}
	if err := h.readJournals(paths); err != nil {
		t.Fatal(err)
	}
	if err := h.readTables(t.Context(), watch); err != nil {
		t.Fatal(err)
	}
	var first, other time.Duration // the last instant of acting of the first term, and the first of the other
	for _, e := range h.belief {
		switch {
		case e.token == held.Token():
			first = max(first, e.at)
		case other == 0 || e.at < other:
			other = e.at
		}
	}
	if first >= other {
		t.Errorf("both acted: one until %s, the other from %s on", first, other)
	}
	problems := slices.Concat(h.checkTokens(), h.checkMarked(), h.checkJoined(), h.settle())
	linear, _ := h.checkLinearizable()
	for _, p := range append(problems, linear...) {
		t.Error(p)
	}
	t.Logf("the waiter took over %s after the step; %d marked and %d joined writes accepted", (next.at - stepped).Round(time.Millisecond), len(h.marked), len(h.joined))
}
