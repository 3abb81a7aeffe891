package gocron

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// Locker is a gocron.Locker: each run of a job is under a term of its own, of
// the lease that is named like the job. It is safe for concurrent use.
//
// Give each job a name that is one of a lease (gocron.WithName; see
// store.CheckName). Others are refused, so that no two jobs share a lease because
// they have the name of the same function.
type Locker struct {
	k    *tenure.Keeper
	opts []tenure.AcquireOption

	mu    sync.Mutex
	busy  map[string]bool                  // leases under which a run has not ended
	terms map[context.Context]*tenure.Term // by the context that gocron gives a job and all its runs
}

var _ gocron.Locker = (*Locker)(nil)

// NewLocker returns a Locker over k, which must be running.
//
// hold is the least time between the beginnings of two runs of a job, kept by
// the store: longer than the clocks of the instances differ, so that the tick of
// a late one finds it done, and shorter than the time between two ticks, of which
// one would be left out otherwise. For jobs with ticks of different length use
// a Locker each (gocron.WithDistributedJobLocker). 0 means none: then each
// instance that finds the lease free runs the job.
//
// opts are those of Keeper.TryAcquire, for every run.
func NewLocker(k *tenure.Keeper, hold time.Duration, opts ...tenure.AcquireOption) *Locker {
	return &Locker{
		k: k, opts: append(slices.Clip(opts), tenure.WithMinHold(hold)),
		busy: map[string]bool{}, terms: map[context.Context]*tenure.Term{},
	}
}

// Lock begins a term for one run, or returns an error and the job is skipped: one
// matching store.ErrHeld if another instance runs it, or has run it for this
// tick; ErrRunning; and the other errors of Keeper.TryAcquire, which but for
// tenure.ErrClosed are logged as warnings too, since gocron passes over them in silence. It is for gocron to call.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	l.mu.Lock()
	running := l.busy[key]
	l.busy[key] = true
	l.mu.Unlock()
	if running {
		return nil, ErrRunning
	}
	t, err := l.k.TryAcquire(ctx, key, l.opts...)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		delete(l.busy, key)
		if !errors.Is(err, store.ErrHeld) && !errors.Is(err, tenure.ErrClosed) {
			l.k.Config().Logger.Warn("job is skipped", "lease", key, "reason", string(store.Classify(err)), "err", err)
		}
		return nil, err
	}
	l.terms[ctx] = t
	return &run{l: l, job: ctx, t: t}, nil
}

// Task makes the task of a job out of f. Where no Locker, or another one, let the job
// begin, f is not called and the run fails with ErrNoTerm.
func (l *Locker) Task(f Func) gocron.Task {
	return gocron.NewTask(func(ctx context.Context) error {
		l.mu.Lock()
		t := l.terms[ctx]
		l.mu.Unlock()
		if t == nil {
			return ErrNoTerm
		}
		return under(ctx, t.Context(), t, f)
	})
}

// run is the gocron.Lock of one run.
type run struct {
	l   *Locker
	job context.Context // a key
	t   *tenure.Term
}

// Unlock gives the term back. gocron calls it after the run, also after a panic.
func (r *run) Unlock(ctx context.Context) error {
	err := r.t.Release(context.WithoutCancel(ctx)) // the scheduler may be shut down by now
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	delete(r.l.busy, r.t.Name())
	delete(r.l.terms, r.job)
	return err
}
