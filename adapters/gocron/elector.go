package gocron

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-co-op/gocron/v2"

	"github.com/tenurehq/tenure"
)

// Elector is a gocron.Elector: the scheduler of the instance that holds one
// lease runs all jobs. It is safe for concurrent use. Run must run.
//
// When the lease changes hands in the middle of a tick, the next holder may
// run a job of that tick again, or, if its clock is ahead, leave it out.
type Elector struct {
	k    *tenure.Keeper
	name string
	opts []tenure.AcquireOption

	mu   sync.Mutex
	term *tenure.Term    // nil while this instance does not hold the lease
	held context.Context // ends with term, and with that of Run
	runs sync.WaitGroup  // under term
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector returns an Elector that contends for the lease name through k. opts
// are those of Keeper.Acquire.
func NewElector(k *tenure.Keeper, name string, opts ...tenure.AcquireOption) *Elector {
	return &Elector{k: k, name: name, opts: opts}
}

// Run holds the lease for one term after the other until ctx or the Keeper ends,
// and gives it back when all runs of jobs under it have ended. It returns what
// tenure.Do returns, but nil if ctx has ended and nothing else went wrong.
func (e *Elector) Run(ctx context.Context) error {
	err := tenure.Do(ctx, e.k, e.name, func(ctx context.Context, t *tenure.Term) error {
		e.set(ctx, t)
		<-ctx.Done()
		e.set(ctx, nil)
		e.runs.Wait()
		return nil
	}, e.opts...)
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return nil
	}
	return err
}

func (e *Elector) set(held context.Context, t *tenure.Term) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held, e.term = held, t
}

// IsLeader returns nil if this instance holds the lease and may act now, and an
// error matching ErrNoTerm otherwise. It is for gocron to call.
func (e *Elector) IsLeader(context.Context) error {
	e.mu.Lock()
	t := e.term
	e.mu.Unlock()
	if t == nil {
		return ErrNoTerm
	}
	if _, ok := t.MayAct(); !ok {
		return fmt.Errorf("%w that it may act under now (%s)", ErrNoTerm, t.State())
	}
	return nil
}

// Task makes the task of a job out of f. If the lease passed on after gocron
// asked for it, f is not called and the run fails with ErrNoTerm.
func (e *Elector) Task(f Func) gocron.Task {
	return gocron.NewTask(func(ctx context.Context) error {
		e.mu.Lock()
		held, t := e.held, e.term
		if t != nil {
			e.runs.Add(1) // under mu: Run waits only after it has set term to nil
		}
		e.mu.Unlock()
		if t == nil {
			return ErrNoTerm
		}
		defer e.runs.Done()
		return under(ctx, held, t, f)
	})
}
