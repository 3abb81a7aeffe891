package memory_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
	"github.com/tenurehq/tenure/store/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		var stepped atomic.Int64
		st := memory.NewWith(memory.Config{Clock: func() time.Duration { return clock.Boot() + time.Duration(stepped.Load()) }})
		return storetest.Harness{
			Store:     st,
			MinTTL:    20 * time.Millisecond,
			Writes:    func(*testing.T) int64 { return st.Writes() },
			StepClock: func(_ *testing.T, d time.Duration) { stepped.Add(int64(d)) },
		}
	})
}

// A clock that the test moves: what lapses does so at its instant.
func TestClock(t *testing.T) {
	t.Parallel()
	var now time.Duration
	st := memory.NewWith(memory.Config{Clock: func() time.Duration { return now }})
	req := store.Request{Name: "job", Holder: "a", TTL: time.Minute, Attempt: store.NewAttempt()}
	rec, err := st.Acquire(t.Context(), req)
	if err != nil || rec.Token != 1 || rec.Remaining != time.Minute {
		t.Fatalf("Acquire: got token %s, remaining %s and error %v", rec.Token, rec.Remaining, err)
	}
	for _, c := range []struct {
		at, remaining time.Duration
		status        store.Status
	}{
		{0, time.Minute, store.Held},
		{time.Minute - 1, 1, store.Held},
		{time.Minute, 0, store.Lapsed},
		{24 * time.Hour, 0, store.Lapsed},
	} {
		now = c.at
		rec, err := st.Get(t.Context(), "job")
		if err != nil || rec.Status != c.status || rec.Remaining != c.remaining || rec.Now.Sub(rec.AcquiredAt) != c.at {
			t.Errorf("after %s: got %s, remaining %s, at %s and error %v, want %s, %s", c.at, rec.Status, rec.Remaining, rec.Now, err, c.status, c.remaining)
		}
	}
}

// Of the terms of a name the newest hundred are kept.
func TestHistoryBound(t *testing.T) {
	t.Parallel()
	st := memory.New()
	for range 150 {
		req := store.Request{Name: "job", Holder: "a", TTL: time.Minute, Attempt: store.NewAttempt()}
		rec, err := st.Acquire(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		g := store.Grant{Name: "job", Token: rec.Token, Attempt: store.NewAttempt(), Known: []store.Attempt{req.Attempt}}
		if results, err := st.Release(t.Context(), []store.Grant{g}); err != nil || results[0].Err != nil {
			t.Fatalf("Release: got %+v and error %v", results, err)
		}
	}
	want := fence.Token(150)
	for term, err := range st.History(t.Context(), "job") {
		if err != nil || term.Token != want || term.End != "released" {
			t.Fatalf("got token %s, end %q and error %v, want token %s released", term.Token, term.End, err, want)
		}
		want--
	}
	if want != 50 {
		t.Errorf("history goes back to token %s, want 51", want+1)
	}
}

// A name for which only a floor was set is not cleaned away.
func TestCleanKeepsUnheld(t *testing.T) {
	t.Parallel()
	st := memory.New()
	if err := st.RaiseFloor(t.Context(), "job", 7); err != nil {
		t.Fatal(err)
	}
	if n, err := st.Clean(t.Context(), 0); err != nil || n != 0 {
		t.Errorf("Clean: got %d removed and error %v, want none", n, err)
	}
	if rec, err := st.Get(t.Context(), "job"); err != nil || rec.Floor != 7 {
		t.Errorf("Get: got floor %s and error %v, want 7", rec.Floor, err)
	}
}
