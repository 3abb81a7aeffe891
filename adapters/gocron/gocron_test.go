package gocron_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	cron "github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/adapters/gocron"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
)

// tick is the time between two runs of the tests' jobs.
const tick = 50 * time.Millisecond

// keeper runs a keeper until the test ends.
func keeper(t *testing.T, st store.Store, cfg tenure.Config) *tenure.Keeper {
	t.Helper()
	k, err := tenure.NewKeeper(st, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("keeper: %v", err)
		}
	})
	return k
}

// scheduler starts a scheduler with one job, and shuts it down when the test ends.
func scheduler(t *testing.T, task cron.Task, opt cron.SchedulerOption, opts ...cron.JobOption) {
	t.Helper()
	s, err := cron.NewScheduler(opt)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.NewJob(cron.DurationJob(tick), task, opts...); err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		if err := s.Shutdown(); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	})
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for !f() {
		select {
		case <-deadline:
			t.Fatalf("%s: not within 20s", what)
		case <-poll.C:
		}
	}
}

// record notes the runs of a job over all instances.
type record struct {
	mu     sync.Mutex
	now    int
	most   int
	tokens []fence.Token
	by     map[string]int
}

func (r *record) begin(who string, t *tenure.Term) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now++
	r.most = max(r.most, r.now)
	r.tokens = append(r.tokens, t.Token())
	if r.by == nil {
		r.by = map[string]int{}
	}
	r.by[who]++
}

func (r *record) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now--
}

func (r *record) runs() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.tokens)
}

// Two instances with the same ticks: at most one runs at a time, each run under a
// term of its own with a larger token, and no two begin within the hold.
func TestLockerRunsOnce(t *testing.T) {
	t.Parallel()
	const hold = 3 * tick
	st := memory.New()
	var r record
	for _, host := range []string{"a", "b"} {
		l := gocron.NewLocker(keeper(t, st, tenure.Config{Host: host}), hold)
		scheduler(t, l.Task(func(ctx context.Context, term *tenure.Term) error {
			r.begin(host, term)
			defer r.end()
			return nil // at once: without the hold the other would run as well
		}), cron.WithDistributedLocker(l), cron.WithName("report"))
	}
	until(t, "ten runs", func() bool { return r.runs() >= 10 })
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.most != 1 {
		t.Errorf("got %d runs at once, want 1", r.most)
	}
	if !slices.IsSorted(r.tokens) || len(slices.Compact(slices.Clone(r.tokens))) != len(r.tokens) {
		t.Errorf("got tokens %v, want each larger than the one before", r.tokens)
	}
	var later store.Term // history is newest first
	for term, err := range st.History(t.Context(), "report") {
		if err != nil {
			t.Fatal(err)
		}
		if d := later.AcquiredAt.Sub(term.AcquiredAt); later.Token != 0 && d < hold {
			t.Errorf("runs %s and %s began %s apart, want at least %s", term.Token, later.Token, d, hold)
		}
		later = term
	}
}

// A run that loses its term in the middle: its context ends with the reason, the
// other instance runs, and this one does not begin again before the run has ended.
func TestLockerLostInTheMiddle(t *testing.T) {
	t.Parallel()
	st := memory.New()
	type lost struct {
		host  string
		cause error
		token fence.Token
	}
	losses := make(chan lost, 1)
	linger := make(chan struct{})
	var others, again atomic.Int32
	var victim atomic.Pointer[string]
	var after atomic.Int64
	for _, host := range []string{"a", "b"} {
		l := gocron.NewLocker(keeper(t, st, tenure.Config{Host: host, TTL: time.Second}), 0)
		scheduler(t, l.Task(func(ctx context.Context, term *tenure.Term) error {
			if !victim.CompareAndSwap(nil, &host) {
				if *victim.Load() == host {
					again.Add(1)
				} else {
					others.Add(1)
					after.Store(int64(term.Token()))
				}
				return nil
			}
			if err := st.Revoke(ctx, "report", term.Token(), store.Revocation{Why: "test", Now: true}); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			losses <- lost{host, context.Cause(ctx), term.Token()}
			<-linger
			return nil
		}), cron.WithDistributedLocker(l), cron.WithName("report"))
	}
	got := <-losses
	var e *tenure.LostError
	if !errors.As(got.cause, &e) || e.Token != got.token || (e.Reason != tenure.ReasonRevoked && e.Reason != tenure.ReasonSuperseded) {
		t.Errorf("got cause %v, want the loss of token %s by revocation or takeover", got.cause, got.token)
	}
	until(t, "runs of the other instance", func() bool { return others.Load() >= 5 })
	if n := again.Load(); n != 0 {
		t.Errorf("%s ran %d times beside its own run", got.host, n)
	}
	if fence.Token(after.Load()) <= got.token {
		t.Errorf("got token %d after %s, want a larger one", after.Load(), got.token)
	}
	close(linger)
	until(t, "the first instance running again", func() bool { return again.Load() > 0 })
}

// A run that lost its term counts as failed, with the reason, though the function
// returned nil.
func TestLockerCountsALostRunAsFailed(t *testing.T) {
	t.Parallel()
	st := memory.New()
	l := gocron.NewLocker(keeper(t, st, tenure.Config{TTL: time.Second}), 0)
	failed := make(chan error, 100)
	listen := cron.WithEventListeners(cron.AfterJobRunsWithError(func(_ uuid.UUID, _ string, err error) {
		select {
		case failed <- err:
		default:
		}
	}))
	scheduler(t, l.Task(func(ctx context.Context, term *tenure.Term) error {
		if err := st.Revoke(ctx, "report", term.Token(), store.Revocation{Why: "test"}); err != nil {
			t.Error(err)
		}
		<-ctx.Done()
		return nil
	}), cron.WithDistributedLocker(l), cron.WithName("report"), listen)
	if err := <-failed; !errors.Is(err, tenure.ErrLost) {
		t.Errorf("got %v, want the loss", err)
	}
}

// A job without a name, or with one that is none of a lease, and a task whose
// Locker was not asked, do not run.
func TestLockerRefuses(t *testing.T) {
	t.Parallel()
	k := keeper(t, memory.New(), tenure.Config{})
	l, other := gocron.NewLocker(k, 0), gocron.NewLocker(k, 0)
	run := func(context.Context, *tenure.Term) error {
		t.Error("the job ran")
		return nil
	}
	errs := make(chan error, 100)
	tell := func(_ uuid.UUID, _ string, err error) {
		select {
		case errs <- err:
		default:
		}
	}
	for what, tc := range map[string]struct {
		want error
		opts []cron.JobOption
	}{
		"no name":        {store.ErrInvalid, nil},
		"no lease name":  {store.ErrInvalid, []cron.JobOption{cron.WithName("every night")}},
		"another locker": {gocron.ErrNoTerm, []cron.JobOption{cron.WithName("n"), cron.WithDistributedJobLocker(other)}},
		"no locker":      {gocron.ErrNoTerm, []cron.JobOption{cron.WithName("n"), cron.WithDisabledDistributedJobLocker(true)}},
	} {
		t.Run(what, func(t *testing.T) {
			for len(errs) > 0 {
				<-errs
			}
			opts := append(tc.opts, cron.WithEventListeners(cron.AfterLockError(tell), cron.AfterJobRunsWithError(tell)))
			scheduler(t, l.Task(run), cron.WithDistributedLocker(l), opts...)
			if err := <-errs; !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

// After a panic in a job the lease is free.
func TestLockerReleasesAfterPanic(t *testing.T) {
	t.Parallel()
	st := memory.New()
	l := gocron.NewLocker(keeper(t, st, tenure.Config{}), 0)
	var runs atomic.Int32
	scheduler(t, l.Task(func(context.Context, *tenure.Term) error {
		runs.Add(1)
		panic("test")
	}), cron.WithDistributedLocker(l), cron.WithName("report"),
		cron.WithEventListeners(cron.AfterJobRunsWithPanic(func(uuid.UUID, string, any) {})))
	until(t, "a second run", func() bool { return runs.Load() > 1 })
}

// All jobs run on the instance that holds the lease; when its term is revoked
// the other takes over, after the first has ended what it ran.
func TestElector(t *testing.T) {
	t.Parallel()
	st := memory.New()
	var r record
	var electors sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	for _, host := range []string{"a", "b"} {
		e := gocron.NewElector(keeper(t, st, tenure.Config{Host: host, TTL: time.Second}), "scheduler")
		electors.Go(func() {
			if err := e.Run(ctx); err != nil {
				t.Errorf("elector of %s: %v", host, err)
			}
		})
		scheduler(t, e.Task(func(ctx context.Context, term *tenure.Term) error {
			r.begin(host, term)
			defer r.end()
			select {
			case <-ctx.Done():
			case <-time.After(tick / 2):
			}
			return nil
		}), cron.WithDistributedElector(e))
	}
	until(t, "runs", func() bool { return r.runs() >= 5 })
	r.mu.Lock()
	first, token := "a", r.tokens[0]
	if r.by["b"] > 0 {
		first = "b"
	}
	if len(r.by) != 1 {
		t.Errorf("got runs by %v, want by one instance", r.by)
	}
	r.mu.Unlock()
	// Reserved for the other, so that it is the other who holds it next.
	other := map[string]string{"a": "b", "b": "a"}[first]
	if err := st.Revoke(ctx, "scheduler", token, store.Revocation{Why: "test", HandoffTo: other}); err != nil {
		t.Fatal(err)
	}
	until(t, "runs of the other", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.by[other] >= 3
	})
	cancel()
	electors.Wait()
	if rec, err := st.Get(context.Background(), "scheduler"); err != nil || rec.Status != store.Released {
		t.Errorf("got %v, %v after Run, want it released", rec.Status, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.most != 1 {
		t.Errorf("got %d runs at once, want 1", r.most)
	}
}

// Run gives the lease back only when what runs under it has ended.
func TestElectorWaitsForRuns(t *testing.T) {
	t.Parallel()
	st := memory.New()
	e := gocron.NewElector(keeper(t, st, tenure.Config{}), "scheduler")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	var once sync.Once
	began, leave := make(chan struct{}), make(chan struct{})
	scheduler(t, e.Task(func(ctx context.Context, _ *tenure.Term) error {
		once.Do(func() { close(began) })
		<-ctx.Done()
		<-leave
		return nil
	}), cron.WithDistributedElector(e), cron.WithSingletonMode(cron.LimitModeReschedule))
	<-began
	cancel()
	until(t, "the end of the right to begin", func() bool { return e.IsLeader(context.Background()) != nil })
	if rec, err := st.Get(context.Background(), "scheduler"); err != nil || rec.Status != store.Held {
		t.Errorf("got %v, %v while a job runs, want held", rec.Status, err)
	}
	close(leave)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if rec, err := st.Get(context.Background(), "scheduler"); err != nil || rec.Status != store.Released {
		t.Errorf("got %v, %v, want released", rec.Status, err)
	}
}
