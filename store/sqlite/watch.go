package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// wakePath returns the file beside the database that a writer touches after it
// committed the start or the end of a term, and that watchers of all processes
// listen at. It is made by the first watcher; without one a writer has nobody to
// tell.
func (s *Store) wakePath() string { return s.path + "-wake" }

// waker tells the watchers of this store of changes. It runs one goroutine, from
// the first Watch to the end of the last.
//
// A watcher registers in this order: listen at the wake file, read the record,
// return. A term that ends after that is committed, then touched, then read here
// and found different. One that ended before is in what was read.
type waker struct {
	store *Store

	mu       sync.Mutex
	closed   bool
	listener io.ReadCloser // of the wake file; nil if nobody watches
	ended    chan struct{} // closed when the goroutine of listener has ended
	watchers map[*watcher]struct{}
}

type watcher struct {
	name string
	last state
	ch   chan store.Event
}

// state is what a watcher compares: it changes when a term starts or ends.
type state struct {
	token fence.Token
	ended bool
}

func stateOf(rec *store.Record) state {
	return state{token: rec.Token, ended: rec.Status == store.Released}
}

// Watch implements store.Watcher with inotify on a file named like the database
// with "-wake" appended. It returns an error matching store.ErrUnsupported on
// other systems than Linux, and if that file cannot be made. It tells of terms
// started, released, and revoked with Now by any process of this host. A
// process that is killed between its commit and its word to the watchers tells
// nobody; the waiter then finds out when the term would have expired.
func (s *Store) Watch(ctx context.Context, name string) (<-chan store.Event, error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("sqlite: watch: %w", err)
	}
	w := &watcher{name: name, ch: make(chan store.Event, 1)}
	k := &s.waker
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, fmt.Errorf("sqlite: watch: %w", errClosed)
	}
	if k.listener == nil {
		l, err := listen(s.path, s.wakePath())
		if err != nil {
			return nil, fmt.Errorf("sqlite: watch: %w: %w", store.ErrUnsupported, err)
		}
		k.listener, k.ended = l, make(chan struct{})
		k.watchers = map[*watcher]struct{}{}
		go k.run(l, k.ended)
	}
	rec, err := s.Get(ctx, name)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		k.stopIfIdle()
		return nil, err
	}
	w.last = stateOf(&rec)
	k.watchers[w] = struct{}{}
	context.AfterFunc(ctx, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.remove(w)
		k.stopIfIdle()
	})
	return w.ch, nil
}

// remove ends w unless it has ended. k.mu is held.
func (k *waker) remove(w *watcher) {
	if _, ok := k.watchers[w]; ok {
		delete(k.watchers, w)
		close(w.ch)
	}
}

// stopIfIdle ends the goroutine if nobody watches. k.mu is held.
func (k *waker) stopIfIdle() {
	if len(k.watchers) == 0 && k.listener != nil {
		_ = k.listener.Close() // the goroutine's read fails, and it goes
		k.listener = nil
	}
}

// run tells the watchers after each touch of the wake file, until the listener
// is closed or fails.
func (k *waker) run(l io.ReadCloser, ended chan struct{}) {
	defer close(ended)
	events := make([]byte, 4096)
	for {
		n, err := l.Read(events)
		if err == nil && !gone(events[:n]) && k.tell(l) {
			continue
		}
		k.mu.Lock()
		if k.listener == l { // it failed: nobody can be told any more
			for w := range k.watchers {
				k.remove(w)
			}
			k.stopIfIdle()
		}
		k.mu.Unlock()
		return
	}
}

// tell reads the watched records and tells what changed. It returns false if
// that failed.
func (k *waker) tell(l io.ReadCloser) bool {
	k.mu.Lock()
	if k.listener != l {
		k.mu.Unlock()
		return false
	}
	waiting := map[string]int{}
	for w := range k.watchers {
		waiting[w.name]++
	}
	k.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	list, _ := json.Marshal(slices.Collect(maps.Keys(waiting))) // strings always marshal
	var rows []*row
	err := k.store.read(ctx, "watch", func() (err error) {
		rows, err = k.store.loadRows(ctx, k.store.reader, selectNamed, string(list))
		return err
	})
	if err != nil {
		return false
	}
	found := make(map[string]*store.Record, len(rows))
	at := k.store.now()
	for _, r := range rows {
		rec, _ := r.record(k.store.host.Domain, at)
		found[r.name] = &rec
	}

	k.mu.Lock()
	defer k.mu.Unlock()
	for w := range k.watchers {
		// A watcher that came since is told at the touch that comes with
		// whatever it has not read.
		rec := found[w.name]
		if rec == nil || stateOf(rec) == w.last || rec.Token < w.last.token {
			continue
		}
		w.last = stateOf(rec)
		e := store.Event{Name: w.name, Held: rec.Status == store.Held, Remaining: rec.Remaining, Waiters: max(1, waiting[w.name])}
		select {
		case <-w.ch: // an event that nobody took yet: the new one says more
		default:
		}
		w.ch <- e
	}
	return true
}

func (k *waker) close() {
	k.mu.Lock()
	k.closed = true
	for w := range k.watchers {
		k.remove(w)
	}
	k.stopIfIdle()
	ended := k.ended
	k.mu.Unlock()
	if ended != nil {
		<-ended
	}
}
