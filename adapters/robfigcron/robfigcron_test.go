package robfigcron_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/adapters/robfigcron"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
)

// every is a schedule of the multiples of a duration.
type every time.Duration

func (e every) Next(t time.Time) time.Time {
	return t.Truncate(time.Duration(e)).Add(time.Duration(e))
}

// year is a schedule whose last time was long ago and whose next is not near.
type year struct{}

func (year) Next(t time.Time) time.Time {
	last := time.Now().Add(-30 * 24 * time.Hour).UTC().Truncate(24 * time.Hour)
	if t.Before(last) {
		return last
	}
	return last.Add(365 * 24 * time.Hour)
}

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

func newJob(t *testing.T, k *tenure.Keeper, f robfigcron.Func, cfg robfigcron.Config) *robfigcron.Job {
	t.Helper()
	j, err := robfigcron.New(k, "report", f, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// schedule runs a job on a cron until the test ends.
func schedule(t *testing.T, s cron.Schedule, j cron.Job) {
	t.Helper()
	c := cron.New()
	c.Schedule(s, j)
	c.Start()
	t.Cleanup(func() { <-c.Stop().Done() })
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

// noting is a store that notes which slots were done.
type noting struct {
	*memory.Store
	mu    sync.Mutex
	slots map[string]int
}

func (n *noting) Done(ctx context.Context, g store.Grant, slot string) error {
	err := n.Store.Done(ctx, g, slot)
	if err == nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.slots[slot]++
	}
	return err
}

// Two instances with one schedule, whose ticks are over before the other has
// looked: every scheduled time is done once, and one run goes at a time.
func TestOncePerScheduledTime(t *testing.T) {
	t.Parallel()
	const period = every(100 * time.Millisecond)
	st := &noting{Store: memory.New(), slots: map[string]int{}}
	var runs, now, overlaps atomic.Int32
	f := func(context.Context, *tenure.Term) error {
		if now.Add(1) > 1 {
			overlaps.Add(1)
		}
		runs.Add(1)
		now.Add(-1)
		return nil
	}
	skipped := make(chan error, 1000)
	crons := []*cron.Cron{cron.New(), cron.New()}
	for i, c := range crons {
		j := newJob(t, keeper(t, st, tenure.Config{}), f, robfigcron.Config{Schedule: period, OnEnd: func(err error) {
			if err != nil {
				skipped <- err
			}
		}})
		c.Schedule(period, j)
		if i == 1 { // as an instance whose clock is late
			c.Schedule(lagging{period}, j)
		}
		c.Start()
	}
	until(t, "ten runs", func() bool { return runs.Load() >= 10 })
	for _, c := range crons {
		<-c.Stop().Done()
	}
	close(skipped)
	done := 0
	for err := range skipped {
		if errors.Is(err, store.ErrSlotDone) {
			done++
		} else if !errors.Is(err, store.ErrHeld) && !errors.Is(err, robfigcron.ErrRunning) {
			t.Errorf("a tick was skipped: %v", err)
		}
	}
	if done == 0 {
		t.Errorf("no tick was skipped because its slot was done")
	}
	if n := overlaps.Load(); n != 0 {
		t.Errorf("%d runs began while another went", n)
	}
	if got, want := int(runs.Load()), len(st.slots); got != want {
		t.Errorf("got %d runs for %d scheduled times", got, want)
	}
	for slot, n := range st.slots {
		if n != 1 {
			t.Errorf("%s was done %d times", slot, n)
		}
	}
}

// lagging is a schedule that comes 30 ms after another.
type lagging struct{ s cron.Schedule }

func (l lagging) Next(t time.Time) time.Time {
	const lag = 30 * time.Millisecond
	return l.s.Next(t.Add(-lag)).Add(lag)
}

// An instance that waits takes over the slot of a run that failed, and nobody
// runs it once it is done.
func TestFailedRunIsTakenOver(t *testing.T) {
	t.Parallel()
	st := memory.New()
	var ends [2]error
	end := func(i int) func(error) { return func(err error) { ends[i] = err } }
	broken := errors.New("broken")
	began, fail := make(chan struct{}), make(chan struct{})
	a := newJob(t, keeper(t, st, tenure.Config{}), func(context.Context, *tenure.Term) error {
		close(began)
		<-fail
		return broken
	}, robfigcron.Config{Schedule: year{}, OnEnd: end(0)})
	waits := make(chan struct{}, 10)
	var runs atomic.Int32
	b := newJob(t, keeper(t, st, tenure.Config{}), func(context.Context, *tenure.Term) error {
		runs.Add(1)
		return nil
	}, robfigcron.Config{Schedule: year{}, OnEnd: end(1), Options: []tenure.AcquireOption{
		tenure.WithWait(func(*store.HeldError) { waits <- struct{}{} }),
	}})
	var all sync.WaitGroup
	all.Go(a.Run)
	<-began
	all.Go(b.Run)
	<-waits
	if n := runs.Load(); n != 0 {
		t.Errorf("the other ran %d times beside the first", n)
	}
	close(fail)
	all.Wait()
	if !errors.Is(ends[0], broken) || ends[1] != nil || runs.Load() != 1 {
		t.Errorf("got %v, %v and %d runs, want the failure, nil and one", ends[0], ends[1], runs.Load())
	}
	for i, j := range []*robfigcron.Job{a, b} {
		if j.Run(); !errors.Is(ends[i], store.ErrSlotDone) {
			t.Errorf("after it was done: got %v, want ErrSlotDone", ends[i])
		}
	}
}

// A run that loses its term in the middle: its context ends with the reason, the
// other instance does the slot, and a tick beside the old run is skipped.
func TestLostInTheMiddle(t *testing.T) {
	t.Parallel()
	st := memory.New()
	ends := make(chan error, 10)
	lost, linger := make(chan error, 1), make(chan struct{})
	a := newJob(t, keeper(t, st, tenure.Config{TTL: time.Second}), func(ctx context.Context, term *tenure.Term) error {
		if err := st.Revoke(ctx, "report", term.Token(), store.Revocation{Why: "test", Now: true}); err != nil {
			t.Error(err)
		}
		<-ctx.Done()
		lost <- context.Cause(ctx)
		<-linger
		return nil
	}, robfigcron.Config{Schedule: year{}, OnEnd: func(err error) { ends <- err }})
	var old sync.WaitGroup
	old.Go(a.Run)
	var e *tenure.LostError
	if err := <-lost; !errors.As(err, &e) || e.Token != 1 {
		t.Errorf("got cause %v, want the loss of token 1", err)
	}
	var token fence.Token
	b := newJob(t, keeper(t, st, tenure.Config{}), func(_ context.Context, term *tenure.Term) error {
		token = term.Token()
		return nil
	}, robfigcron.Config{Schedule: year{}, OnEnd: func(err error) { ends <- err }})
	if b.Run(); token != 2 {
		t.Errorf("got token %s, want 2", token)
	}
	if err := <-ends; err != nil {
		t.Errorf("the other: got %v", err)
	}
	a.Run()
	if err := <-ends; !errors.Is(err, robfigcron.ErrRunning) {
		t.Errorf("beside the old run: got %v, want ErrRunning", err)
	}
	close(linger)
	old.Wait()
	if err := <-ends; !errors.Is(err, tenure.ErrLost) {
		t.Errorf("the old run: got %v, want that it was lost", err)
	}
	if s, err := st.Slot(t.Context(), "report", last(year{})); err != nil || s.Token != 2 {
		t.Errorf("got slot of token %s, %v, want 2", s.Token, err)
	}
}

func last(s cron.Schedule) string {
	return s.Next(time.Time{}).Format(time.RFC3339Nano)
}

// Without a schedule a tick that finds the lease held, or held too recently, is skipped.
func TestHold(t *testing.T) {
	t.Parallel()
	st := memory.New()
	var end error
	cfg := robfigcron.Config{Hold: time.Hour, OnEnd: func(err error) { end = err }}
	runs := 0
	count := func(context.Context, *tenure.Term) error { runs++; return nil }
	b := newJob(t, keeper(t, st, tenure.Config{}), count, cfg)
	a := newJob(t, keeper(t, st, tenure.Config{}), func(context.Context, *tenure.Term) error {
		runs++
		if b.Run(); !errors.Is(end, store.ErrHeld) {
			t.Errorf("while it is held: got %v, want ErrHeld", end)
		}
		return nil
	}, cfg)
	if a.Run(); end != nil {
		t.Errorf("the first: got %v", end)
	}
	b.Run()
	var held *store.HeldError
	if !errors.As(end, &held) || held.Reason != store.HeldByMinHold {
		t.Errorf("just after: got %v, want that it was held too recently", end)
	}
	if runs != 1 {
		t.Errorf("got %d runs, want 1", runs)
	}
}

// Jobs that know nothing of terms: one instance runs, under a term.
func TestWrap(t *testing.T) {
	t.Parallel()
	const period = every(100 * time.Millisecond)
	st := &noting{Store: memory.New(), slots: map[string]int{}}
	var runs atomic.Int32
	for range 2 {
		wrap, err := robfigcron.Wrap(keeper(t, st, tenure.Config{}), "report", robfigcron.Config{Schedule: period})
		if err != nil {
			t.Fatal(err)
		}
		schedule(t, period, cron.NewChain(cron.Recover(cron.DiscardLogger), wrap).Then(cron.FuncJob(func() {
			if runs.Add(1) == 1 {
				panic("test")
			}
		})))
	}
	until(t, "five runs", func() bool { return runs.Load() >= 5 })
	st.mu.Lock()
	defer st.mu.Unlock()
	for slot, n := range st.slots {
		if n != 1 {
			t.Errorf("%s was done %d times", slot, n)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	k := keeper(t, memory.New(), tenure.Config{})
	hourly, err := cron.ParseStandard("@every 1h")
	if err != nil {
		t.Fatal(err)
	}
	bare := keeper(t, struct{ store.Store }{memory.New()}, tenure.Config{})
	for what, tc := range map[string]struct {
		k    *tenure.Keeper
		name string
		cfg  robfigcron.Config
		want error
	}{
		"a bad name":            {k, "every night", robfigcron.Config{}, store.ErrInvalid},
		"a hold of slots":       {k, "report", robfigcron.Config{Schedule: year{}, Hold: time.Minute}, store.ErrInvalid},
		"a delay":               {k, "report", robfigcron.Config{Schedule: hourly}, robfigcron.ErrSchedule},
		"a store without slots": {bare, "report", robfigcron.Config{Schedule: year{}}, store.ErrUnsupported},
	} {
		if _, err := robfigcron.New(tc.k, tc.name, nil, tc.cfg); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", what, err, tc.want)
		}
	}
}

// While another instance runs for longer than the time between two ticks, each
// tick takes the place of the one that waits: none is skipped for the waiting.
func TestNextTickTakesThePlaceOfTheOneThatWaits(t *testing.T) {
	t.Parallel()
	const period = every(100 * time.Millisecond)
	st := memory.New()
	leave := make(chan struct{})
	began := make(chan struct{})
	a := newJob(t, keeper(t, st, tenure.Config{}), func(context.Context, *tenure.Term) error {
		close(began)
		<-leave
		return nil
	}, robfigcron.Config{Schedule: year{}})
	var all sync.WaitGroup
	all.Go(a.Run)
	<-began
	var runs, waited atomic.Int32
	schedule(t, period, newJob(t, keeper(t, st, tenure.Config{}), func(context.Context, *tenure.Term) error {
		runs.Add(1)
		return nil
	}, robfigcron.Config{Schedule: period, OnEnd: func(err error) {
		switch {
		case errors.Is(err, robfigcron.ErrRunning):
			t.Errorf("a tick was skipped beside one that waits")
		case errors.Is(err, context.DeadlineExceeded) && errors.Is(err, store.ErrHeld):
			waited.Add(1)
		case err != nil:
			t.Error(err)
		}
	}}))
	until(t, "ticks that waited", func() bool { return waited.Load() >= 5 })
	if n := runs.Load(); n != 0 {
		t.Errorf("got %d runs beside the other", n)
	}
	close(leave)
	until(t, "a run", func() bool { return runs.Load() > 0 })
	all.Wait()
}
