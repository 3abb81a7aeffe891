//go:build linux

package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
	"github.com/tenurehq/tenure/store/sqlite"
	"github.com/tenurehq/tenure/store/storetest"
)

// The keeper against each store. C numbers are cases from the field; what the
// keeper does by itself is tested in virtual time beside it.

// eachStore runs a test with a way to open one more client of a fresh store.
func eachStore(t *testing.T, run func(t *testing.T, client func() store.Store)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		st := memory.New()
		run(t, func() store.Store { return st })
	})
	for _, backend := range []string{"postgres", "sqlite"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			g := fresh(t, backend)
			run(t, func() store.Store { return opened(t, g) })
		})
	}
}

// holding starts a keeper over st and takes the lease "job".
func holding(t *testing.T, st store.Store, cfg tenure.Config, opts ...tenure.AcquireOption) (*tenure.Term, *events) {
	t.Helper()
	k, told := keeper(t, st, cfg)
	held, err := k.Acquire(t.Context(), "job", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return held, told
}

func keeper(t *testing.T, st store.Store, cfg tenure.Config) (*tenure.Keeper, *events) {
	t.Helper()
	told := &events{}
	cfg.OnEvent = told.add
	if cfg.DrainTimeout == 0 {
		cfg.DrainTimeout = time.Millisecond // at the end of a test nobody waits
	}
	k, err := tenure.NewKeeper(st, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return running(t, k), told
}

func lostFor(t *testing.T, held *tenure.Term) *tenure.LostError {
	t.Helper()
	select {
	case <-held.Context().Done():
	case <-time.After(time.Minute):
		t.Fatal("the term was not lost within a minute")
	}
	if _, ok := held.MayAct(); ok {
		t.Error("its holder may act after the context ended")
	}
	var lost *tenure.LostError
	if err := held.Err(); !errors.As(err, &lost) {
		t.Fatalf("got error %v, want the term lost", err)
	}
	return lost
}

func get(t *testing.T, st store.Store, name string) store.Record {
	t.Helper()
	rec, err := st.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// TestKeeperTakenOver: a failed try, then another holder in the record (C01).
// The next answer ends the term, once, with the name of the other, and nothing
// is written to the record any more.
func TestKeeperTakenOver(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, client func() store.Store) {
		faulty, other := storetest.NewFaulty(client()), client()
		faulty.Script(storetest.OpRenew, storetest.Fault{DropRequest: true, Err: store.ErrUnavailable})
		held, told := holding(t, faulty, tenure.Config{TTL: 6 * time.Second})
		eventually(t, "a renewal failed", func() bool { return len(told.of(tenure.EventFailing)) == 1 })
		mine := held.Grant()
		taken, err := other.Acquire(t.Context(), store.Request{Name: "job", Holder: "other/1", TTL: time.Minute, Attempt: store.NewAttempt(), Replace: &mine})
		if err != nil {
			t.Fatal(err)
		}
		before := get(t, other, "job")
		lost := lostFor(t, held)
		if lost.Reason != tenure.ReasonSuperseded || lost.Rival != "other/1" || lost.Current != taken.Token {
			t.Errorf("got %+v, want it superseded by other/1 with token %s", lost, taken.Token)
		}
		if n := faulty.Calls(storetest.OpRenew); n != 2 {
			t.Errorf("lost after %d renewals, want 2: the failed one and the next", n)
		}
		select { // for longer than an interval nothing follows
		case <-time.After(3 * time.Second):
		case <-t.Context().Done():
		}
		if after := get(t, other, "job"); after.Revision != before.Revision || faulty.Calls(storetest.OpRenew) != 2 {
			t.Errorf("the loser wrote: revision %s, was %s", after.Revision, before.Revision)
		}
		if n := len(told.of(tenure.EventLost)); n != 1 {
			t.Errorf("the loss was told %d times, want once", n)
		}
	})
}

// TestKeeperContendsAgain: the store is out of reach for longer than the TTL
// (C02). The term is lost, nothing renews it any more, and the process holds
// the next one once the store is back.
func TestKeeperContendsAgain(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	eachStore(t, func(t *testing.T, client func() store.Store) {
		faulty := storetest.NewFaulty(client())
		k, told := keeper(t, faulty, tenure.Config{TTL: ttl})
		ctx, cancel := context.WithCancel(t.Context())
		terms := make(chan *tenure.Term, 10)
		ended := make(chan error, 1)
		go func() {
			ended <- tenure.Do(ctx, k, "job", func(ctx context.Context, held *tenure.Term) error {
				terms <- held
				<-ctx.Done()
				return nil
			})
		}()
		first := <-terms
		faulty.Rule(func(storetest.Op) storetest.Fault { return storetest.Fault{DropRequest: true} })
		if lost := lostFor(t, first); lost.Reason != tenure.ReasonNoContact {
			t.Errorf("lost for %s, want %s", lost.Reason, tenure.ReasonNoContact)
		}
		renewals := faulty.Calls(storetest.OpRenew)
		select { // an outage that goes on
		case <-time.After(ttl / 2):
		case next := <-terms:
			t.Fatalf("it holds token %s of a store that is out of reach", next.Token())
		}
		if n := faulty.Calls(storetest.OpRenew); n != renewals {
			t.Errorf("%d renewals after the loss, want none", n-renewals)
		}
		faulty.Pass()
		back := time.Now()
		next := <-terms
		if next.Token() <= first.Token() {
			t.Errorf("token of the next term: got %s, want more than %s", next.Token(), first.Token())
		}
		t.Logf("held again %s after the store was back", time.Since(back).Round(time.Millisecond))
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Do: %v", err)
		}
		told.mu.Lock()
		defer told.mu.Unlock()
		var order []tenure.EventKind
		for _, e := range told.list {
			if e.Kind == tenure.EventAcquired || e.Kind == tenure.EventLost {
				order = append(order, e.Kind)
			}
		}
		if got, want := fmt.Sprint(order), fmt.Sprint([]tenure.EventKind{tenure.EventAcquired, tenure.EventLost, tenure.EventAcquired}); got != want {
			t.Errorf("got events %s, want %s", got, want)
		}
	})
}

// TestKeeperDeadConnection: the connections go dead and new ones work (C04), 20
// times. The term is renewed over a fresh one in time.
func TestKeeperDeadConnection(t *testing.T) {
	t.Parallel()
	g := fresh(t, "postgres")
	var all sync.WaitGroup
	for lane := range 10 {
		proxy := newProxyTo(t, g)
		faulty := storetest.NewFaulty(opened(t, target{g.Backend, through(t, g.Source, proxy)}))
		k, told := keeper(t, faulty, tenure.Config{TTL: 6 * time.Second})
		held, err := k.Acquire(t.Context(), fmt.Sprint("job/", lane))
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			for run := range 2 {
				calls, accepted := faulty.Calls(storetest.OpRenew), proxy.Accepted()
				proxy.HoldExisting()
				dead := time.Now()
				for held.Confirmed() >= time.Since(dead) {
					if held.Err() != nil || t.Context().Err() != nil {
						t.Errorf("lane %d, run %d: %v", lane, run, held.Err())
						return
					}
					time.Sleep(5 * time.Millisecond) // a poll, which the loss of the term bounds
				}
				if failed := faulty.Calls(storetest.OpRenew) - calls - 1; failed > 2 {
					t.Errorf("lane %d, run %d: %d tries failed, want at most 2", lane, run, failed)
				}
				if proxy.Accepted() == accepted {
					t.Errorf("lane %d, run %d: renewed over no new connection", lane, run)
				}
			}
			if lost := told.of(tenure.EventLost); len(lost) > 0 {
				t.Errorf("lane %d: lost: %+v", lane, lost)
			}
		})
	}
	all.Wait()
}

// TestKeeperLostReplies: what the store did and could not tell is recognised (C06, P6).
func TestKeeperLostReplies(t *testing.T) {
	t.Parallel()
	cfg := tenure.Config{TTL: 6 * time.Second, ReleaseTimeout: 6 * time.Second}
	check := func(t *testing.T, st, direct store.Store, lose, heal func()) {
		t.Helper()
		k, told := keeper(t, st, cfg)
		type outcome struct {
			held *tenure.Term
			err  error
		}
		acquired := make(chan outcome, 1)
		confirmed := make(chan struct{}, 1000)
		if _, err := st.Get(t.Context(), "nothing"); !errors.Is(err, store.ErrNotFound) { // so that it is connected
			t.Fatal(err)
		}
		lose()
		go func() {
			held, err := k.Acquire(t.Context(), "job", tenure.WithConfirm(func(*tenure.Term) { confirmed <- struct{}{} }))
			acquired <- outcome{held, err}
		}()
		eventually(t, "the acquire is applied", func() bool {
			rec, err := direct.Get(t.Context(), "job")
			return err == nil && rec.Status == store.Held
		})
		heal()
		got := <-acquired
		if got.err != nil {
			t.Fatalf("acquire whose reply was lost: %v", got.err)
		}
		held := got.held
		if token := get(t, direct, "job").Token; held.Token() != token || token != 1 {
			t.Errorf("acquire whose reply was lost: got token %s, the store has %s, want 1", held.Token(), token)
		}
		for range 2 { // won, and renewed over a connection that is then there
			<-confirmed
		}
		before := get(t, direct, "job").Attempt
		lose()
		eventually(t, "a renewal is applied", func() bool { return get(t, direct, "job").Attempt != before })
		lostAt := time.Now()
		heal()
		eventually(t, "the next renewal is confirmed", func() bool { return held.Err() != nil || held.Confirmed() < time.Since(lostAt) })
		if _, ok := held.MayAct(); !ok || get(t, direct, "job").Token != held.Token() {
			t.Errorf("after a renewal whose reply was lost: %v, token %s, want the term to go on", held.Err(), get(t, direct, "job").Token)
		}
		released := make(chan error, 1)
		get(t, st, "job") // so that it is connected
		lose()
		go func() { released <- held.Release(t.Context()) }()
		eventually(t, "the release is applied", func() bool { return get(t, direct, "job").Status == store.Released })
		heal()
		if err := <-released; err != nil {
			t.Errorf("release whose reply was lost: %v", err)
		}
		if n := len(told.of(tenure.EventLost)); n != 0 {
			t.Errorf("%d losses were told, want none", n)
		}
	}
	t.Run("postgres, by the network", func(t *testing.T) {
		t.Parallel()
		g := fresh(t, "postgres")
		proxy := newProxyTo(t, g)
		check(t, opened(t, target{g.Backend, through(t, g.Source, proxy)}), opened(t, g), proxy.HoldReplies, func() {
			proxy.Reset()
			proxy.Pass()
		})
	})
	eachStore(t, func(t *testing.T, client func() store.Store) {
		faulty := storetest.NewFaulty(client())
		check(t, faulty, client(), func() {
			faulty.Rule(func(storetest.Op) storetest.Fault { return storetest.Fault{DropReply: true} })
		}, faulty.Pass)
	})
}

// TestKeeperBusyFile: another process has the file's write lock (C07) for 0.6
// and for 1.2 TTL.
func TestKeeperBusyFile(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	start := func(t *testing.T) (held *tenure.Term, told *events, st store.Store, stranger *child) {
		path := filepath.Join(t.TempDir(), "tenure.db")
		st = migrated(t, path, sqlite.Config{})
		held, told = holding(t, st, tenure.Config{TTL: ttl, Interval: ttl / 10})
		stranger = startChild(t, path, "lock") // not before: it would not let the lease be acquired
		stranger.expect("locked")
		return held, told, st, stranger
	}
	t.Run("shorter than the TTL", func(t *testing.T) {
		t.Parallel()
		held, told, _, stranger := start(t)
		select {
		case <-time.After(ttl * 6 / 10):
		case <-held.Context().Done():
		}
		stranger.say("unlock")
		unlocked := time.Now()
		eventually(t, "the term is confirmed again", func() bool { return held.Err() != nil || held.Confirmed() < time.Since(unlocked) })
		if err := held.Err(); err != nil {
			t.Errorf("the term is over: %v", err)
		}
		failing := told.of(tenure.EventFailing)
		if len(failing) < 2 {
			t.Errorf("%d tries failed, want 2 or more", len(failing))
		}
		for _, e := range failing {
			if e.Reason != tenure.ReasonBusy || strings.Contains(e.Err.Error(), "corrupt") {
				t.Errorf("a try failed as %s (%v), want busy", e.Reason, e.Err)
			}
		}
	})
	t.Run("longer than the TTL", func(t *testing.T) {
		t.Parallel()
		held, _, st, stranger := start(t)
		if lost := lostFor(t, held); lost.Reason != tenure.ReasonBusy {
			t.Errorf("lost for %s, want busy", lost.Reason)
		}
		waiter, _ := keeper(t, st, tenure.Config{TTL: ttl})
		next := make(chan error, 1)
		go func() {
			_, err := waiter.Acquire(t.Context(), "job")
			next <- err
		}()
		stranger.say("unlock")
		if err := <-next; err != nil {
			t.Errorf("acquire after the other process let go: %v", err)
		}
	})
}

// TestKeeperRefused: what the server refuses for good ends the term with its
// own reason (C09), and is not asked for in a hot loop.
func TestKeeperRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		refuse string // run by the owner
		reason tenure.Reason
	}{
		{"permission", "REVOKE UPDATE ON tenure_lease FROM ROLE_NAME", tenure.ReasonPermission},
		{"dropped", "DROP TABLE tenure_lease CASCADE", tenure.ReasonSchema},
		{"read-only", "ALTER ROLE ROLE_NAME SET default_transaction_read_only = on", tenure.ReasonReadOnly},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := fresh(t, "postgres")
			owner := openPool(t, g.Source)
			role := fmt.Sprintf("app_%d", time.Now().UnixNano())
			exec := func(statement string) {
				t.Helper()
				if _, err := owner.Exec(context.Background(), strings.ReplaceAll(statement, "ROLE_NAME", role)); err != nil {
					t.Fatal(err)
				}
			}
			exec("CREATE ROLE ROLE_NAME LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO ROLE_NAME")
			t.Cleanup(func() { exec("DROP OWNED BY ROLE_NAME; DROP ROLE ROLE_NAME") })
			u, err := url.Parse(g.Source)
			if err != nil {
				t.Fatal(err)
			}
			u.User = url.User(role)
			faulty := storetest.NewFaulty(opened(t, target{g.Backend, u.String()}))
			held, told := holding(t, faulty, tenure.Config{TTL: 6 * time.Second})
			began := time.Now()
			exec(c.refuse)
			// What the role has is for its new connections.
			exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'ROLE_NAME'")
			if lost := lostFor(t, held); lost.Reason != c.reason {
				t.Errorf("lost for %s (%v), want %s", lost.Reason, lost, c.reason)
			}
			tries, lines := faulty.Calls(storetest.OpRenew), len(told.of(tenure.EventFailing))
			if most := int(time.Since(began)/time.Second+1) * 10; tries >= most || lines == 0 || lines > tries {
				t.Errorf("%d tries and %d lines in %s, want at least one line and fewer than 10 tries a second", tries, lines, time.Since(began))
			}
		})
	}
}

// lanes is how many leases a case runs on at once.
const lanes = 10

// caseRounds returns how many rounds each lane makes. TENURE_CASE_ROUNDS says
// how many all of them make together; default 40.
func caseRounds(t *testing.T) int {
	t.Helper()
	return int(environmentNumber(t, "TENURE_CASE_ROUNDS", 40)+lanes-1) / lanes
}

// TestKeeperFrozenWaiter: a waiter is cut off for longer than its TTL while the
// holder releases and a third contends (C11). It never gets a term that is not
// live in the store at that moment, and no two act at once.
func TestKeeperFrozenWaiter(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	rounds := caseRounds(t)
	eachStore(t, func(t *testing.T, client func() store.Store) {
		var all sync.WaitGroup
		direct, clients := client(), [3]store.Store{client(), client(), client()}
		cfg := tenure.Config{TTL: ttl, ReleaseTimeout: 10 * ttl} // releases are not what is tested
		for lane := range lanes {
			faulty := storetest.NewFaulty(clients[1])
			a, _ := keeper(t, clients[0], cfg)
			b, _ := keeper(t, faulty, cfg)
			c, _ := keeper(t, clients[2], cfg)
			all.Go(func() {
				for round := range rounds {
					name := fmt.Sprintf("job/%d/%d", lane, round)
					if err := frozenWaiter(t.Context(), name, direct, faulty, [3]*tenure.Keeper{a, b, c}); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
			})
		}
		all.Wait()
	})
}

// frozenWaiter is one round. keepers are the holder, the waiter behind faulty,
// and the third.
func frozenWaiter(ctx context.Context, name string, direct store.Store, faulty *storetest.Faulty, keepers [3]*tenure.Keeper) error {
	const ttl = time.Second
	var mu sync.Mutex
	var belief []sign
	// act is what each does with its term: for a while, if it may.
	act := func(held *tenure.Term) error {
		for until := time.Now().Add(time.Duration(rand.IntN(100)) * time.Millisecond); time.Now().Before(until); {
			at := clock.Boot()
			token, ok := held.MayAct()
			if !ok {
				break
			}
			mu.Lock()
			belief = append(belief, sign{token: token, at: at})
			mu.Unlock()
			rec, err := direct.Get(ctx, name)
			if _, still := held.MayAct(); still && err == nil && (rec.Token != token || rec.Status != store.Held) {
				return fmt.Errorf("it may act under token %s, and the store has %s, %s", token, rec.Token, rec.Status)
			}
		}
		return held.Release(ctx)
	}
	first, err := keepers[0].Acquire(ctx, name)
	if err != nil {
		return err
	}
	results := make(chan error, 2)
	contend := func(k *tenure.Keeper) {
		held, err := k.Acquire(ctx, name)
		if err == nil {
			if err = act(held); errors.Is(err, tenure.ErrLost) {
				err = nil // a slow machine; what counts is who acts
			}
		}
		results <- err
	}
	go contend(keepers[1])
	pause := func(d time.Duration) {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	pause(time.Duration(rand.IntN(100)) * time.Millisecond)
	faulty.Rule(func(storetest.Op) storetest.Fault { return storetest.Fault{DropRequest: true} })
	go contend(keepers[2])
	pause(ttl + time.Duration(rand.IntN(200))*time.Millisecond)
	if err := act(first); err != nil && !errors.Is(err, tenure.ErrLost) {
		return err
	}
	pause(time.Duration(rand.IntN(100)) * time.Millisecond)
	faulty.Pass()
	if err := errors.Join(<-results, <-results); err != nil {
		return err
	}
	if found := overlaps(spansOf(belief)); len(found) > 0 {
		return errors.New(strings.Join(found, "; "))
	}
	return nil
}

// TestKeeperHandover: a holder is told to shut down at any phase, with slow
// renewals (C24). Its release is not lost, and the waiter holds soon after.
func TestKeeperHandover(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	rounds := caseRounds(t)
	eachStore(t, func(t *testing.T, client func() store.Store) {
		var all sync.WaitGroup
		var late atomic.Int32
		var longest atomic.Int64
		for lane := range lanes {
			faulty := storetest.NewFaulty(client())
			faulty.Rule(func(op storetest.Op) storetest.Fault {
				if op == storetest.OpRenew {
					return storetest.Fault{Delay: 300 * time.Millisecond}
				}
				return storetest.Fault{}
			})
			waiter, _ := keeper(t, client(), tenure.Config{TTL: ttl})
			all.Go(func() {
				for round := range rounds {
					name := fmt.Sprintf("job/%d/%d", lane, round)
					took, err := handover(t.Context(), name, faulty, waiter, ttl)
					if err != nil {
						t.Errorf("%s: %v", name, err)
						return
					}
					longest.Store(max(longest.Load(), int64(took)))
					if took > ttl/3+time.Second {
						late.Add(1)
					}
					if took >= ttl {
						t.Errorf("%s: the waiter held %s after the release, want it before the TTL of %s", name, took, ttl)
					}
				}
			})
		}
		all.Wait()
		if n := late.Load(); n > 1 {
			t.Errorf("in %d of %d rounds the waiter held later than an interval and 1s after the release", n, lanes*rounds)
		}
		t.Logf("the waiter held at most %s after the release", time.Duration(longest.Load()).Round(time.Millisecond))
	})
}

// handover is one round. It returns how long after the release the waiter held.
func handover(ctx context.Context, name string, st store.Store, waiter *tenure.Keeper, ttl time.Duration) (time.Duration, error) {
	k, err := tenure.NewKeeper(st, tenure.Config{TTL: ttl})
	if err != nil {
		return 0, err
	}
	run, shutdown := context.WithCancel(ctx)
	defer shutdown()
	ended := make(chan error, 1)
	go func() { ended <- k.Run(run) }()
	begun := make(chan struct{})
	worked := make(chan error, 1)
	go func() {
		worked <- tenure.Do(run, k, name, func(ctx context.Context, _ *tenure.Term) error {
			close(begun)
			<-ctx.Done()
			return nil
		})
	}()
	<-begun
	type outcome struct {
		held *tenure.Term
		at   time.Time
		err  error
	}
	next := make(chan outcome, 1)
	go func() {
		held, err := waiter.Acquire(ctx, name)
		next <- outcome{held, time.Now(), err}
	}()
	select {
	case <-time.After(time.Duration(rand.Float64() * float64(ttl/3))): // any phase
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	shutdown()
	if err := errors.Join(<-worked, <-ended); err != nil {
		return 0, fmt.Errorf("shutdown: %w", err)
	}
	released := time.Now()
	got := <-next
	if got.err != nil {
		return 0, got.err
	}
	return max(got.at.Sub(released), 0), got.held.Release(ctx)
}
