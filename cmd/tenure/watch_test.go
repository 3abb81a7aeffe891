package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
)

// deaf is a store that cannot tell of changes, and that counts what it is asked.
type deaf struct {
	store.Store
	asked atomic.Int32
	err   atomic.Pointer[error] // what Get answers with, if set
}

func (d *deaf) Get(ctx context.Context, name string) (store.Record, error) {
	d.asked.Add(1)
	if err := d.err.Load(); err != nil {
		return store.Record{}, *err
	}
	return d.Store.Get(ctx, name)
}

// watching runs a watch on st and returns its lines.
func watching(t *testing.T, st store.Store) (lines chan watchLine, done chan error) {
	t.Helper()
	lines, done = make(chan watchLine, 100), make(chan error, 1)
	w := &watch{st: st, name: "a", timeout: time.Second, show: func(l watchLine) error { lines <- l; return nil }}
	go func() { done <- w.run(t.Context()) }()
	return lines, done
}

func expectLine(t *testing.T, lines chan watchLine, event string) watchLine {
	t.Helper()
	select {
	case l := <-lines:
		if l.Event != event {
			t.Fatalf("got line %q, want event %q", l, event)
		}
		return l
	case <-time.After(10 * time.Second):
		t.Fatalf("no line, want event %q", event)
	}
	panic("unreachable")
}

func take(t *testing.T, st store.Store, ttl time.Duration) store.Grant {
	t.Helper()
	req := store.Request{Name: "a", Holder: "h/1", TTL: ttl, Attempt: store.NewAttempt()}
	r, err := st.Acquire(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return store.Grant{Name: "a", Token: r.Token, TTL: ttl, Attempt: store.NewAttempt(), Known: []store.Attempt{req.Attempt}}
}

// Where the store tells, each change makes one line and a renewal none.
func TestWatchTold(t *testing.T) {
	t.Parallel()
	st := memory.New()
	lines, _ := watching(t, st)
	expectLine(t, lines, "no such lease")
	g := take(t, st, time.Hour)
	if l := expectLine(t, lines, "held"); l.Token != 1 || l.Holder != "h/1" || l.Remaining < 3_000_000 {
		t.Errorf("got %+v", l)
	}
	if results, err := st.Renew(t.Context(), []store.Grant{g}); err != nil || results[0].Err != nil {
		t.Fatal(err, results)
	}
	if err := st.Revoke(t.Context(), "a", 1, store.Revocation{Why: "why", Now: true}); err != nil {
		t.Fatal(err)
	}
	if l := expectLine(t, lines, "released"); l.Reason != "why" {
		t.Errorf("got %+v", l)
	}
	take(t, st, time.Hour)
	if l := expectLine(t, lines, "held"); l.Token != 2 {
		t.Errorf("got %+v", l)
	}
}

// Where the store cannot tell, it is asked at the expiry and not before.
func TestWatchAsksAtExpiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		st := &deaf{Store: memory.NewWith(memory.Config{Clock: func() time.Duration { return time.Since(began) }})}
		take(t, st, 10*time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		lines := make(chan watchLine, 100)
		w := &watch{st: st, name: "a", timeout: time.Second, show: func(l watchLine) error { lines <- l; return nil }}
		done := make(chan error, 1)
		go func() { done <- w.run(ctx) }()
		time.Sleep(9 * time.Minute) // virtual
		synctest.Wait()
		if n := st.asked.Load(); n != 1 {
			t.Errorf("before the expiry: got %d requests, want 1", n)
		}
		if l := <-lines; l.Event != "held" {
			t.Errorf("got %q", l)
		}
		time.Sleep(90 * time.Second) // virtual
		synctest.Wait()
		if l := <-lines; l.Event != "lapsed" {
			t.Errorf("got %q", l)
		}
		// A store that does not answer is unknown, never free (P8).
		st.err.Store(&store.ErrUnavailable)
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		if l := <-lines; l.Event != "unknown" || l.Status != "" {
			t.Errorf("got %q", l)
		}
		st.err.Store(nil)
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		if l := <-lines; l.Event != "lapsed" {
			t.Errorf("got %q", l)
		}
		if len(lines) != 0 {
			t.Errorf("got %d more lines, want one a change", len(lines))
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("at the end: got %v", err)
		}
	})
}

// What will not pass ends the watch.
func TestWatchGivesUp(t *testing.T) {
	t.Parallel()
	st := &deaf{Store: memory.New()}
	st.err.Store(&store.ErrPermission)
	_, done := watching(t, st)
	if err := <-done; !errors.Is(err, store.ErrPermission) {
		t.Errorf("got %v, want %v", err, store.ErrPermission)
	}
}
