package tenure_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// TestTerms: what is shown as held is held at that moment, and not when the loop
// last looked.
func TestTerms(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newStore(), tenure.Config{})
		names := func() (names []string) {
			for _, term := range r.k.Terms() {
				names = append(names, term.Name())
			}
			return names
		}
		if got := names(); got != nil {
			t.Errorf("before any: got %q, want none", got)
		}
		b := r.acquire("b")
		r.acquire("a")
		if got := names(); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("two: got %q, want both in order", got)
		}
		if err := b.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
		if got := names(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("one released: got %q, want the other", got)
		}
		r.host.boot.Add(int64(time.Minute)) // a suspend of which the loop does not know yet
		if got := names(); got != nil {
			t.Errorf("after a suspend: got %q, want none", got)
		}
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
}

// TestOnRenewal: each request is told once, with its time and what came of it.
func TestOnRenewal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var got []tenure.Renewal
		st := newStore()
		r := newRig(t, st, tenure.Config{OnRenewal: func(r tenure.Renewal) { got = append(got, r) }})
		a, b := r.acquire("a"), r.acquire("b")
		slow := func(ctx context.Context, g []store.Grant) ([]store.Result, error) {
			time.Sleep(70 * time.Millisecond)
			return st.Store.Renew(ctx, g)
		}
		st.renew.Store(&slow)
		time.Sleep(ttl / 3)
		synctest.Wait()
		if len(got) != 1 || got[0] != (tenure.Renewal{Terms: 2, Took: 70 * time.Millisecond}) {
			t.Fatalf("an interval: got %+v, want one renewal of two terms that took 70ms", got)
		}
		got = nil
		hole := blackHole
		st.renew.Store(&hole)
		for b.State() == tenure.StateHeld {
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if len(got) < 2 || got[0].Failed != 2 || got[0].Reason != tenure.ReasonNoContact || !errors.Is(got[0].Err, context.DeadlineExceeded) || got[0].Took < ttl/4 {
			t.Errorf("without contact: got %+v, want renewals of two that were given up after an interval", got)
		}
		if a.State() != tenure.StateLost {
			t.Errorf("state is %s, want lost", a.State())
		}
		_ = r.close()
	})
}

// TestC79SevenCauses: each way to lose a term has a code of its own, the same in the
// log, in the event and in the error, with the facts beside it; and renewals that went
// well left no trace.
func TestC79SevenCauses(t *testing.T) {
	answer := func(err error, rec store.Record) func(*rig) {
		return func(r *rig) {
			f := func(_ context.Context, g []store.Grant) ([]store.Result, error) {
				return []store.Result{{Err: err, Record: rec}}, nil
			}
			r.st.renew.Store(&f)
		}
	}
	seen := map[tenure.Reason]string{}
	var mu sync.Mutex
	t.Run("causes", func(t *testing.T) {
		for _, c := range []struct {
			name  string
			cause func(*rig)
			want  tenure.Reason
			rival string
		}{
			{"no contact", func(r *rig) { f := blackHole; r.st.renew.Store(&f) }, tenure.ReasonNoContact, ""},
			{"taken over", answer(store.ErrSuperseded, store.Record{Name: "a", Holder: "b/1", Token: 9}), tenure.ReasonSuperseded, "b/1"},
			{"record missing", answer(store.ErrMissing, store.Record{}), tenure.ReasonMissing, ""},
			{"permission", answer(store.ErrPermission, store.Record{}), tenure.ReasonPermission, ""},
			{"operator", func(r *rig) {
				if err := r.st.Revoke(t.Context(), "a", 1, store.Revocation{Why: "wrong version", By: "ann"}); err != nil {
					t.Error(err)
				}
			}, tenure.ReasonRevoked, ""},
			{"own pause", func(r *rig) { r.host.boot.Add(int64(time.Hour)) }, tenure.ReasonPaused, ""},
			{"own shutdown", func(r *rig) { r.stop() }, tenure.ReasonShutdown, ""},
		} {
			t.Run(c.name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					var log bytes.Buffer
					var lines sync.Mutex
					logger := slog.New(slog.NewJSONHandler(writer(func(b []byte) (int, error) {
						lines.Lock()
						defer lines.Unlock()
						return log.Write(b)
					}), nil))
					r := newRig(t, newStore(), tenure.Config{Logger: logger, DrainTimeout: time.Millisecond})
					term := r.acquire("a")
					time.Sleep(ttl) // some renewals
					c.cause(r)
					<-term.Context().Done()
					var lost *tenure.LostError
					if !errors.As(context.Cause(term.Context()), &lost) {
						t.Fatalf("cause: got %v, want *LostError", context.Cause(term.Context()))
					}
					if lost.Reason != c.want || lost.Lease != "a" || lost.Token != 1 || lost.Holder == "" || lost.Held < ttl || lost.Rival != c.rival && lost.Rival != lost.Holder {
						t.Errorf("error: got %+v, want %s with its facts", lost, c.want)
					}
					_ = r.close()
					// One that is asked to end is not lost: it is left to expire here, as nobody released it.
					kind, reason := tenure.EventLost, c.want
					if c.want == tenure.ReasonShutdown {
						kind, reason = tenure.EventExpiring, tenure.ReasonExpiring
					}
					var told []tenure.Event
					for _, e := range r.events.list {
						switch e.Kind {
						case kind:
							told = append(told, e)
						case tenure.EventAcquired, tenure.EventWarning, tenure.EventFailing:
						default:
							t.Errorf("an event more: %+v", e)
						}
					}
					if len(told) != 1 || told[0].Reason != reason || told[0].Lease != "a" || told[0].Token != 1 || told[0].Holder != lost.Holder {
						t.Errorf("events: got %+v, want one %s for %s", told, kind, reason)
					}
					if n := r.k.Counts()[tenure.Count{Kind: kind, Reason: reason}]; n != 1 {
						t.Errorf("count: got %d, want 1", n)
					}
					want := fmt.Sprintf(`"level":"WARN","msg":%q,"lease":"a","holder":%q,"token":"1","reason":%q`, kind, lost.Holder, reason)
					if strings.Count(log.String(), want) != 1 || strings.Count(log.String(), `"msg":"confirmed"`) > 0 {
						t.Errorf("log: got\n%s\nwant one line with %s, and none of renewals", log.String(), want)
					}
					mu.Lock()
					defer mu.Unlock()
					seen[c.want] = c.name
				})
			})
		}
	})
	if len(seen) != 7 {
		t.Errorf("%d codes for seven causes: %v", len(seen), seen)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }
