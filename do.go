package tenure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/store"
)

// Do runs f under terms of the lease, one after the other. It waits for a term
// and calls f with the term's context. If f returns while the term is held, or
// panics, Do releases it and returns f's error or passes the panic on. If the
// term was lost, Do waits until f has returned and contends again, so that no
// state is left in which the process lives, holds nothing and asks for nothing.
// It returns when ctx or the Keeper ends, and on store errors that trying again
// cannot change (store.ErrInvalid, ErrUnsupported); other refusals are tried
// again after an interval.
func Do(ctx context.Context, k *Keeper, name string, f func(ctx context.Context, t *Term) error, opts ...AcquireOption) error {
	for {
		t, err := k.Acquire(ctx, name, opts...)
		switch {
		case err == nil:
		case ctx.Err() != nil, errors.Is(err, ErrClosed), errors.Is(err, ErrNotRunning), errors.Is(err, store.ErrInvalid), errors.Is(err, store.ErrUnsupported):
			return err
		default:
			k.emit(Event{Kind: EventRefused, Lease: name, Reason: Reason(store.Classify(err)), Err: err})
			select {
			case <-time.After(shorten(k.cfg.Interval, 0.2)):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			continue
		}
		err = t.runAndEnd(ctx, f)
		var lost *LostError
		again := errors.As(t.Err(), &lost)
		if !again || lost.Reason != ReasonRestored { // a restored term waits to be replaced
			if rerr := t.Release(context.WithoutCancel(ctx)); rerr != nil && !again {
				err = errors.Join(err, rerr)
			}
		}
		if !again || ctx.Err() != nil {
			return err
		}
	}
}

// runAndEnd is run that gives the term back if f panics or ends its goroutine:
// the work is over then, and nobody else would.
func (t *Term) runAndEnd(ctx context.Context, f func(context.Context, *Term) error) error {
	returned := false
	defer func() {
		if !returned {
			_ = t.Release(context.WithoutCancel(ctx)) // the panic matters more
		}
	}()
	err := t.run(ctx, f)
	returned = true
	return err
}

// run calls f with a context that ends with the term and with ctx.
func (t *Term) run(ctx context.Context, f func(context.Context, *Term) error) error {
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(t.ctx, func() { cancel(context.Cause(t.ctx)) })
	defer stop()
	if err := f(work, t); err != nil {
		return fmt.Errorf("under %q (token %s): %w", t.name, t.token, err)
	}
	return nil
}
