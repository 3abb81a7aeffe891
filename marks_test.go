package tenure_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/fencetest"
	"github.com/tenurehq/tenure/store"
)

// When Acquire returns, a writer of the term before is refused, although the new
// holder has written nothing yet (P7).
func TestMarksMoveAtTheStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		marks := fencetest.NewMemory()
		r := newRig(t, newStore(), tenure.Config{})
		for _, acquire := range []func(context.Context, string, ...tenure.AcquireOption) (*tenure.Term, error){r.k.TryAcquire, r.k.Acquire} {
			before := r.acquire("a", tenure.WithMarks(marks), tenure.WithMarks(marks, "b", "c"))
			if err := before.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			after, err := acquire(t.Context(), "a", tenure.WithMarks(marks), tenure.WithMarks(marks, "b", "c"))
			if err != nil {
				t.Fatal(err)
			}
			for _, resource := range []string{"a", "b", "c"} {
				var stale *fence.StaleError
				if _, err := marks.Raise(t.Context(), resource, before.Token()); !errors.As(err, &stale) || stale.Current != after.Token() {
					t.Errorf("%q, token %s: got %v, want stale by %s", resource, before.Token(), err, after.Token())
				}
			}
			if err := after.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
}

// brokenMarks fail with err, after a wait for the context if there is none.
type brokenMarks struct{ err error }

func (b brokenMarks) Raise(ctx context.Context, _ string, _ fence.Token) (fence.Token, error) {
	if b.err != nil {
		return 0, b.err
	}
	<-ctx.Done()
	return 0, ctx.Err()
}

func (b brokenMarks) Once(context.Context, string, string, fence.Token) (bool, error) {
	return false, b.err
}

// A term whose marks cannot be moved is given back, and the error says why.
func TestMarksFail(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ahead := fencetest.NewMemory()
		if _, err := ahead.Raise(t.Context(), "a", 1<<53+1); err != nil {
			t.Fatal(err)
		}
		errTarget := errors.New("no contact")
		r := newRig(t, newStore(), tenure.Config{})
		for want, marks := range map[error]fence.Marks{fence.ErrStale: ahead, errTarget: brokenMarks{errTarget}} {
			term, err := r.k.TryAcquire(t.Context(), "a", tenure.WithMarks(marks))
			if term != nil || !errors.Is(err, want) {
				t.Errorf("got %v, %v; want %v", term, err, want)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // longer than a term: it is renewed meanwhile
		defer cancel()
		if term, err := r.k.Acquire(ctx, "a", tenure.WithMarks(brokenMarks{})); term != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, %v; want the deadline", term, err)
		}
		if rec, err := r.st.Get(t.Context(), "a"); err != nil || rec.Status == store.Held {
			t.Errorf("the term was not given back: %+v, %v", rec, err)
		}
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
}

// Who loses the term while a mark does not answer is told of the loss.
func TestMarksLostMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newStore(), tenure.Config{})
		go func() {
			time.Sleep(time.Second)
			if err := r.st.Revoke(context.Background(), "a", 1, store.Revocation{By: "test", Why: "test"}); err != nil {
				t.Error(err)
			}
		}()
		term, err := r.k.Acquire(t.Context(), "a", tenure.WithMarks(brokenMarks{}))
		var lost *tenure.LostError
		if term != nil || !errors.As(err, &lost) || lost.Reason != tenure.ReasonRevoked {
			t.Errorf("got %v, %v; want the loss", term, err)
		}
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
}

// Do tries again until the target answers.
func TestMarksInDo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		marks := fencetest.NewMemory()
		if _, err := marks.Raise(t.Context(), "a", 3); err != nil { // the store is behind: its third term is not
			t.Fatal(err)
		}
		r := newRig(t, newStore(), tenure.Config{})
		var got fence.Token
		err := tenure.Do(t.Context(), r.k, "a", func(_ context.Context, term *tenure.Term) error {
			got = term.Token()
			return nil
		}, tenure.WithMarks(marks))
		if err != nil || got != 3 {
			t.Errorf("got token %s, %v; want 3", got, err)
		}
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
}
