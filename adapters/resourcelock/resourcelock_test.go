package resourcelock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection"
	election "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/tenurehq/tenure/adapters/resourcelock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
	"github.com/tenurehq/tenure/store/storetest"
)

// The elector's times: LeaseDuration is in whole seconds.
const (
	ttl      = 2 * time.Second
	deadline = time.Second
	retry    = 100 * time.Millisecond
)

// led is one time of leading.
type led struct {
	who   int
	token fence.Token
	ctx   context.Context // of Within
	raw   context.Context // of the elector
}

// instance is an elector that is run again and again.
type instance struct {
	lease *resourcelock.Lease
	led   chan led
	stop  func() // returns when it has stopped
	ended atomic.Int32
}

// run starts an instance, which is stopped when the test ends.
func run(t *testing.T, st store.Store, who int, cfg resourcelock.Config) *instance {
	t.Helper()
	lease, err := resourcelock.New(st, "controller", cfg)
	if err != nil {
		t.Fatal(err)
	}
	i := &instance{lease: lease, led: make(chan led, 100)}
	e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lease, LeaseDuration: ttl, RenewDeadline: deadline, RetryPeriod: retry, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				work, cancel := lease.Within(ctx)
				defer cancel()
				token, ok := lease.MayAct()
				if !ok && work.Err() == nil {
					t.Errorf("instance %d leads and may not act", who)
				}
				i.led <- led{who, token, work, ctx}
				<-ctx.Done()
			},
			OnStoppedLeading: func() { i.ended.Add(1) },
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			e.Run(ctx)
		}
	})
	i.stop = func() { cancel(); running.Wait() }
	t.Cleanup(i.stop)
	return i
}

func next(t *testing.T, i *instance) led {
	t.Helper()
	select {
	case l := <-i.led:
		return l
	case <-time.After(20 * time.Second):
		t.Fatal("the instance does not lead within 20s")
		return led{}
	}
}

func ended(t *testing.T, ctx context.Context) error {
	t.Helper()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(20 * time.Second):
		t.Fatal("the context does not end within 20s")
		return nil
	}
}

func get(t *testing.T, st store.Store) store.Record {
	t.Helper()
	rec, err := st.Get(context.Background(), "controller")
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// One of two leads; when it stops the other follows, under a larger token, which
// the record shows as its transitions.
func TestOneLeads(t *testing.T) {
	t.Parallel()
	st := memory.New()
	a := run(t, st, 0, resourcelock.Config{})
	first := next(t, a)
	b := run(t, st, 1, resourcelock.Config{})
	rec := get(t, st)
	for get(t, st).Revision == rec.Revision { // a renewal went by
		<-time.After(retry / 10)
	}
	if len(b.led) > 0 || first.token != 1 {
		t.Errorf("got token %s, and the other leads %d times, want 1 and 0", first.token, len(b.led))
	}
	ler, raw, err := a.lease.Get(t.Context())
	if err != nil || ler.LeaderTransitions != 1 || ler.HolderIdentity != a.lease.Identity() || ler.LeaseDurationSeconds != 2 {
		t.Errorf("got %+v, %v", ler, err)
	}
	a.stop()
	if err := ended(t, first.ctx); err == nil {
		t.Error("no cause")
	}
	if second := next(t, b); second.token != 2 {
		t.Errorf("got token %s after it, want 2", second.token)
	}
	ler, raw2, err := b.lease.Get(t.Context())
	if err != nil || ler.LeaderTransitions != 2 || string(raw) == string(raw2) {
		t.Errorf("got %+v, %v, want 2 transitions", ler, err)
	}
}

// A term that is lost ends the work within it at the next renewal, and is not won
// back by the elector that still leads: it gives up, and leads anew under a
// larger token.
func TestLostIsNotWonBack(t *testing.T) {
	t.Parallel()
	st := memory.New()
	a := run(t, st, 0, resourcelock.Config{})
	first := next(t, a)
	if err := st.Revoke(t.Context(), "controller", first.token, store.Revocation{Why: "test", Now: true}); err != nil {
		t.Fatal(err)
	}
	if err := ended(t, first.ctx); !errors.Is(err, resourcelock.ErrLost) || !errors.Is(err, store.ErrRevoked) {
		t.Errorf("got cause %v, want ErrLost and ErrRevoked", err)
	}
	if first.raw.Err() != nil {
		t.Error("the elector's context has ended before that of Within")
	}
	if _, ok := a.lease.MayAct(); ok {
		t.Error("may act after the loss")
	}
	for first.raw.Err() == nil {
		if rec := get(t, st); rec.Token != 1 && first.raw.Err() == nil {
			t.Fatalf("got token %s while the elector led, want 1", rec.Token)
		}
		<-time.After(retry / 10)
	}
	if second := next(t, a); second.token != 2 || a.ended.Load() != 1 {
		t.Errorf("got token %s after %d ends, want 2 after 1", second.token, a.ended.Load())
	}
}

// P5: two processes with one identity, which client-go would both let lead.
func TestNamesakes(t *testing.T) {
	t.Parallel()
	st := memory.New()
	cfg := resourcelock.Config{Identity: "pod-0"}
	a := run(t, st, 0, cfg)
	first := next(t, a)
	b := run(t, st, 1, cfg)
	rec := get(t, st)
	for range 5 {
		for now := get(t, st); now.Revision == rec.Revision; now = get(t, st) {
			<-time.After(retry / 10)
		}
		rec = get(t, st)
	}
	if len(b.led) > 0 || rec.Token != 1 || first.ctx.Err() != nil {
		t.Errorf("got token %s, the namesake led %d times", rec.Token, len(b.led))
	}
	ler, _, err := b.lease.Get(t.Context())
	if err != nil || ler.HolderIdentity == "pod-0" || !strings.HasPrefix(ler.HolderIdentity, "pod-0") {
		t.Errorf("got holder %q, %v, want that of a namesake told apart", ler.HolderIdentity, err)
	}
}

// P6: requests that were applied and whose replies were lost cost nothing.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	st := memory.New()
	faulty := storetest.NewFaulty(st)
	lost := storetest.Fault{DropReply: true, Err: store.ErrUnavailable}
	faulty.Script(storetest.OpAcquire, lost)
	faulty.Script(storetest.OpRenew, lost, storetest.Fault{}, lost, lost)
	a := run(t, faulty, 0, resourcelock.Config{})
	first := next(t, a)
	if first.token != 1 {
		t.Errorf("got token %s, want that of the acquire whose reply was lost", first.token)
	}
	for faulty.Calls(storetest.OpRenew) < 8 && first.ctx.Err() == nil {
		<-time.After(retry / 10)
	}
	if rec := get(t, st); rec.Token != 1 || first.ctx.Err() != nil {
		t.Errorf("got token %s, %v, want that the term goes on", rec.Token, context.Cause(first.ctx))
	}
}

// P3: without contact the right ends before the store could grant it to another.
func TestNoContact(t *testing.T) {
	t.Parallel()
	st := memory.New()
	faulty := storetest.NewFaulty(st)
	a := run(t, faulty, 0, resourcelock.Config{Margin: ttl / 2}) // which ends before the elector's RenewDeadline
	first := next(t, a)
	faulty.Rule(func(storetest.Op) storetest.Fault {
		return storetest.Fault{DropRequest: true, Err: store.ErrUnavailable}
	})
	err := ended(t, first.ctx)
	if rec := get(t, st); rec.Status != store.Held {
		t.Errorf("got %s in the store when the right ended, want held", rec.Status)
	}
	if !errors.Is(err, resourcelock.ErrLost) || first.raw.Err() != nil {
		t.Errorf("got cause %v, elector %v, want the loss before the elector gives up", err, first.raw.Err())
	}
	faulty.Pass()
	if second := next(t, a); second.token != 2 {
		t.Errorf("got token %s afterwards, want 2", second.token)
	}
}

// What the store refuses is a conflict, and what is asked wrongly is refused.
func TestUpdateRefuses(t *testing.T) {
	t.Parallel()
	st := memory.New()
	made := func(cfg resourcelock.Config) *resourcelock.Lease {
		l, err := resourcelock.New(st, "controller", cfg)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	a, b := made(resourcelock.Config{Identity: "a"}), made(resourcelock.Config{Identity: "b"})
	if _, _, err := a.Get(t.Context()); !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want NotFound", err)
	}
	if work, cancel := a.Within(t.Context()); !errors.Is(context.Cause(work), resourcelock.ErrNoTerm) {
		t.Errorf("got cause %v without a term, want ErrNoTerm", context.Cause(work))
		cancel()
	}
	record := election.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 60}
	if err := a.Create(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	if err := b.Update(t.Context(), record); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("in another's name: got %v, want ErrInvalid", err)
	}
	record.HolderIdentity = "b"
	if err := b.Create(t.Context(), record); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `held by "a"`) {
		t.Errorf("while it is held: got %v, want a conflict that says by whom", err)
	}
	record.LeaseDurationSeconds = 0
	if err := b.Update(t.Context(), record); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("without a duration: got %v, want ErrInvalid", err)
	}
	if err := b.Update(t.Context(), election.LeaderElectionRecord{}); err != nil { // has nothing to give back
		t.Error(err)
	}
	if rec := get(t, st); rec.Status != store.Held || rec.Holder != "a" {
		t.Errorf("got %s by %q, want held by a", rec.Status, rec.Holder)
	}
	if err := a.Update(t.Context(), election.LeaderElectionRecord{LeaseDurationSeconds: 1}); err != nil {
		t.Error(err)
	}
	if ler, _, err := b.Get(t.Context()); err != nil || ler.HolderIdentity != "" || ler.LeaderTransitions != 1 {
		t.Errorf("after the release: got %+v, %v", ler, err)
	}
	if _, err := resourcelock.New(st, "no name", resourcelock.Config{}); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("a bad name: got %v", err)
	}
}

func Example() {
	st := memory.New() // store/sqlite, store/postgres or a tenure server in earnest
	lease, err := resourcelock.New(st, "controller", resourcelock.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: lease, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				defer cancel() // when the work has ended
				work, done := lease.Within(ctx)
				defer done()
				if token, ok := lease.MayAct(); ok && work.Err() == nil { // before each step that must not be done twice
					fmt.Printf("write with token %s\n", token)
				}
			},
			OnStoppedLeading: func() { fmt.Println("stopped") },
		},
	})
	// Output:
	// write with token 1
	// stopped
}
