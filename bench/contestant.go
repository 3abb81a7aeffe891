package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// contestant is one process that wants a lease: a keeper over a store of its own.
type contestant struct {
	keeper *tenure.Keeper
	tries  *atomic.Int64 // requests for the lease
	close  func()
}

// newContestant takes st over: close ends both.
func newContestant(ctx context.Context, st store.Store, closeStore func(), cfg tenure.Config) (*contestant, error) {
	tries := new(atomic.Int64)
	k, stop, err := keep(ctx, counted(st, tries), cfg)
	if err != nil {
		closeStore()
		return nil, err
	}
	return &contestant{keeper: k, tries: tries, close: func() { stop(); closeStore() }}, nil
}

// countedStore counts the requests for leases.
type countedStore struct {
	store.Store
	tries *atomic.Int64
}

func (s *countedStore) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	s.tries.Add(1)
	return s.Store.Acquire(ctx, req)
}

// watchedStore is a countedStore that tells of ends and starts of terms.
type watchedStore struct {
	countedStore
	store.Watcher
}

// counted returns st with its requests counted; it watches if st does.
func counted(st store.Store, tries *atomic.Int64) store.Store {
	c := countedStore{Store: st, tries: tries}
	if w, ok := st.(store.Watcher); ok {
		return &watchedStore{countedStore: c, Watcher: w}
	}
	return &c
}

// blind is a store that cannot tell its waiters anything.
type blind struct{ store.Store }

// win is the end of an Acquire.
type win struct {
	by   *contestant
	term *tenure.Term
	at   time.Time
	err  error
}

// queue has c wait for the lease and returns once it does: when the store has
// told it twice that the lease is held, the second time after the watch began
// (once for a store that cannot watch). The win arrives on wins.
func (c *contestant) queue(ctx context.Context, name string, wins chan<- win) error {
	_, watches := c.keeper.Store().(store.Watcher)
	answers, need := 0, 1
	if watches {
		need = 2
	}
	waiting := make(chan struct{})
	failed := make(chan error, 1)
	go func() {
		t, err := c.keeper.Acquire(ctx, name, tenure.WithWait(func(*store.HeldError) {
			if answers++; answers == need {
				close(waiting)
			}
		}))
		w := win{by: c, term: t, at: time.Now(), err: err}
		if err != nil {
			failed <- err
		}
		select {
		case wins <- w:
		case <-ctx.Done():
		}
	}()
	select {
	case <-waiting:
		return nil
	case err := <-failed:
		return err
	case <-time.After(time.Minute):
		return errors.New("a contestant was not told within a minute that the lease is held")
	}
}
