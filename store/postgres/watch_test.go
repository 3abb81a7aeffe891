package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
)

// next returns the next event, which must come.
func next(t testing.TB, events <-chan store.Event) store.Event {
	t.Helper()
	select {
	case e, open := <-events:
		if !open {
			t.Fatal("the channel closed, want an event")
		}
		return e
	case <-time.After(limit):
		t.Fatalf("no event within %s", limit)
	}
	panic("unreachable")
}

func closes(t testing.TB, events <-chan store.Event) {
	t.Helper()
	deadline := time.After(limit)
	for {
		select {
		case _, open := <-events:
			if !open {
				return
			}
		case <-deadline:
			t.Fatalf("the channel did not close within %s", limit)
		}
	}
}

// TestWatchersCostNothing: 200 watchers send nothing while they wait, write
// nothing when they register, and hear of the release.
func TestWatchersCostNothing(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{Settings: append([]string{"log_statement=all", "log_min_duration_statement=0"}, quiet...)})
	url := srv.Database(t)
	pool := openPool(t, url)
	s := open(t, pool, postgres.Config{})
	if err := s.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	g := hold(t, s, request("job"))
	if _, err := s.Get(bounded(t), "job"); err != nil { // tidies the page
		t.Fatal(err)
	}
	before := walPosition(t, pool)
	const perStore = 100
	stores := []*postgres.Store{s, open(t, openPool(t, url), postgres.Config{})}
	var watchers []<-chan store.Event
	for _, st := range stores {
		for range perStore {
			events, err := st.Watch(bounded(t), "job")
			if err != nil {
				t.Fatal(err)
			}
			watchers = append(watchers, events)
		}
	}
	if after := walPosition(t, pool); after != before {
		t.Errorf("registering %d watchers wrote %d bytes to the log, want 0", len(watchers), after-before)
	}
	said := len(srv.Log())
	idle := time.NewTimer(2 * time.Second) // what is looked at is that nothing is said
	select {
	case <-idle.C:
	case e := <-watchers[0]:
		t.Errorf("got event %+v while nothing happened", e)
	}
	if more := srv.Log()[said:]; more != "" {
		t.Errorf("%d idle watchers sent:\n%s", len(watchers), more)
	}
	if _, err := s.Release(bounded(t), []store.Grant{g}); err != nil {
		t.Fatal(err)
	}
	for _, events := range watchers {
		if e := next(t, events); e.Held || e.Name != "job" || e.Waiters != perStore+1 {
			t.Fatalf("got %+v, want the end of job's term, with %d waiters: this store's and the other", e, perStore+1)
		}
	}
}

// TestNotifyOnlyForSomebody: a renewal never notifies, a start or an end does
// only if somebody waits for that name.
func TestNotifyOnlyForSomebody(t *testing.T) {
	t.Parallel()
	s, pool := fresh(t)
	listener, err := pool.Acquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Release()
	exec(t, listener, `LISTEN "tenure public"`)
	heard := func() (payloads []string) {
		// What was notified before this commit is delivered with its answer.
		exec(t, listener, "SELECT 1")
		for {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			n, err := listener.Conn().WaitForNotification(ctx)
			cancel()
			if err != nil {
				return payloads
			}
			payloads = append(payloads, n.Payload)
		}
	}
	grants := []store.Grant{hold(t, s, request("job"))}
	renewAll(t, s, grants)
	grants[0] = hold(t, s, replacing(grants[0]))
	if got := heard(); len(got) > 0 {
		t.Errorf("nobody waits, and there was notified %q", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	events, err := s.Watch(ctx, "job")
	if err != nil {
		t.Fatal(err)
	}
	renewAll(t, s, grants)
	other := hold(t, s, request("other"))
	if _, err := s.Release(bounded(t), []store.Grant{other}); err != nil {
		t.Fatal(err)
	}
	if got := heard(); len(got) > 0 {
		t.Errorf("a renewal or another name notified %q", got)
	}
	g := hold(t, s, replacing(grants[0]))
	if e := next(t, events); !e.Held || e.Remaining != time.Minute || e.Waiters != 1 {
		t.Errorf("got %+v, want a start with %s remaining and 1 waiter", e, time.Minute)
	}
	if got := heard(); len(got) != 1 {
		t.Errorf("a start with a waiter notified %q, want one", got)
	}
	cancel()
	closes(t, events)
	eventually(t, "the watching connection ends with its last watcher", func() bool {
		var n int
		err := pool.QueryRow(bounded(t), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tenure watch'").Scan(&n)
		return err == nil && n == 0
	})
	if _, err := s.Release(bounded(t), []store.Grant{g}); err != nil {
		t.Fatal(err)
	}
	if got := heard(); len(got) > 0 {
		t.Errorf("the waiter has gone, and there was notified %q", got)
	}
}

// TestWatchManyNames: names come and go on one connection.
func TestWatchManyNames(t *testing.T) {
	t.Parallel()
	s, _ := fresh(t)
	const names = 40
	channels := make([]<-chan store.Event, names)
	cancels := make([]context.CancelFunc, names)
	grants := make([]store.Grant, names)
	for i := range names {
		grants[i] = hold(t, s, request(fmt.Sprint("job/", i)))
		var ctx context.Context
		ctx, cancels[i] = context.WithCancel(t.Context())
		defer cancels[i]()
		var err error
		if channels[i], err = s.Watch(ctx, grants[i].Name); err != nil {
			t.Fatal(err)
		}
	}
	for i := 0; i < names; i += 2 {
		cancels[i]()
		closes(t, channels[i])
	}
	if _, err := s.Release(bounded(t), grants); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < names; i += 2 {
		if e := next(t, channels[i]); e.Name != grants[i].Name || e.Held {
			t.Errorf("got %+v, want the end of %q", e, grants[i].Name)
		}
	}
}

// TestWatchEndsWithItsConnection: the channels close, and a new watch works.
func TestWatchEndsWithItsConnection(t *testing.T) {
	t.Parallel()
	s, pool := fresh(t)
	g := hold(t, s, request("job"))
	events, err := s.Watch(bounded(t), "job")
	if err != nil {
		t.Fatal(err)
	}
	exec(t, pool, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tenure watch'")
	closes(t, events)
	if events, err = s.Watch(bounded(t), "job"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Release(bounded(t), []store.Grant{g}); err != nil {
		t.Fatal(err)
	}
	next(t, events)
}

// TestWatchUnreachable: an error, and no channel that never speaks.
func TestWatchUnreachable(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := open(t, pool, postgres.Config{})
	if _, err := s.Watch(bounded(t), "job"); store.Classify(err) != store.CodeNoContact {
		t.Errorf("got error %v, want code %q", err, store.CodeNoContact)
	}
}
