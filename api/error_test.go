package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// record has every field set, to whole microseconds.
func record() store.Record {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_901_234, time.UTC)
	return store.Record{
		Name: "job", Status: store.Held, Holder: "web-7/1", Token: 1<<63 - 1, Floor: 7, Revision: "r9", Attempt: store.NewAttempt(),
		TTL: time.Minute, Remaining: 59 * time.Second, Wait: time.Second, ReservedFor: "web-8", Revoked: true, Why: "disk", RevokedBy: "eve",
		AcquiredAt: at, RenewedAt: at.Add(1), ExpiresAt: at.Add(2), EndedAt: at.Add(3), Now: at.Add(4), Meta: map[string]string{"k": "v"},
	}
}

// TestRecord: nothing of a record gets lost on the way.
func TestRecord(t *testing.T) {
	t.Parallel()
	want := record()
	if got := over(t, api.NewRecord(want)); !reflect.DeepEqual(got.Store(), want) {
		t.Errorf("got %+v, want %+v", got.Store(), want)
	}
	for d, us := range map[time.Duration]int64{0: 0, 1: 1, 999: 1, 1000: 1, 1001: 2, -1: 0, -1000: -1, 24 * time.Hour: 86_400_000_000, 1<<63 - 1: 9223372036854776} {
		if got := api.Microseconds(d); got != us {
			t.Errorf("%d ns: got %d µs, want %d", d, got, us)
		}
	}
	huge := api.Record{TTLUS: 1<<63 - 1, RemainingUS: -1 << 63}
	if r := huge.Store(); r.TTL <= 0 || r.Remaining >= 0 {
		t.Errorf("durations that do not fit wrapped: got %s and %s", r.TTL, r.Remaining)
	}
}

// over sends v as JSON.
func over[T any](t *testing.T, v T) *T {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	out := new(T)
	if err := json.Unmarshal(text, out); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return out
}

// TestErrors: an error of a store has the same code, the same facts and the same
// words on both sides.
func TestErrors(t *testing.T) {
	t.Parallel()
	held := &store.HeldError{Record: record(), Remaining: 59 * time.Second, Reason: store.HeldByMinHold}
	busy := &store.BusyError{Name: "job", Blockers: []string{"pid 1"}}
	slot := &store.SlotError{Slot: store.Slot{Name: "job", Slot: "s", Token: 3, Holder: "h", DoneAt: record().Now}}
	invalid := &store.InvalidError{Field: "ttl", Value: "1ms", Rule: "more"}
	found := record()
	for _, want := range []error{
		held, busy, slot, invalid, store.ErrHeld, store.ErrSuperseded, store.ErrExpired, store.ErrMissing, store.ErrRevoked, store.ErrReleased,
		store.ErrNotFound, store.ErrClockStep, store.ErrBusy, store.ErrPermission, store.ErrReadOnly, store.ErrSchema, store.ErrUnavailable,
		store.ErrCopied, store.ErrUnsupported, fence.ErrStale, errors.New("anything else"),
	} {
		sent := api.NewError(fmt.Errorf("renew: %w", want))
		got, ok := over(t, sent.Problem()).Error(sent.Status)
		if !ok {
			t.Fatalf("%v: problem %+v is no refusal under status %d", want, sent.Problem(), sent.Status)
		}
		if store.Classify(got) != store.Classify(want) || store.Definite(got) != store.Definite(want) || got.Error() != "renew: "+want.Error() {
			t.Errorf("got %v (%s), want %v (%s)", got, store.Classify(got), want, store.Classify(want))
		}
		for _, facts := range []any{new(*store.HeldError), new(*store.BusyError), new(*store.SlotError), new(*store.InvalidError)} {
			if reflect.TypeOf(want) != reflect.TypeOf(facts).Elem() {
				continue
			}
			if !errors.As(got, facts) || !reflect.DeepEqual(reflect.ValueOf(facts).Elem().Interface(), want) {
				t.Errorf("got facts %+v, want %+v", reflect.ValueOf(facts).Elem().Interface(), want)
			}
		}
		result := over(t, api.NewResult(store.Result{Record: found, Err: want})).Store()
		if store.Classify(result.Err) != store.Classify(want) || !reflect.DeepEqual(result.Record, found) {
			t.Errorf("result: got %+v, want %v", result, want)
		}
	}
	if b, ok := errors.AsType[*store.BusyError](over(t, api.NewResult(store.Result{Err: busy})).Store().Err); !ok || !reflect.DeepEqual(b, busy) {
		t.Errorf("result of a busy record: got %+v, want %+v", b, busy)
	}

	full := api.Refuse(fleet.CodeNoCapacity, "no room")
	full.RetryAfter, full.Counts = 1500*time.Millisecond, map[fleet.Code]int{fleet.CodeCordoned: 3}
	got, ok := over(t, full.Problem()).Error(503)
	if !ok || got.RetryAfter != full.RetryAfter || got.Counts[fleet.CodeCordoned] != 3 {
		t.Errorf("got %+v, want %+v", got, full)
	}
}

// TestCodes: what is no answer of tenure's is not believed, above all where it
// would end a term.
func TestCodes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code   string
		status int
	}{{"missing", 404}, {"superseded", 500}, {"not_found", 409}, {"nonsense", 409}, {"", 409}, {"held", 200}} {
		if e, ok := (&api.Problem{Code: c.code}).Error(c.status); ok {
			t.Errorf("code %q under status %d was believed: %v", c.code, c.status, e)
		}
	}
	if r := (&api.RenewResult{Code: "nonsense"}).Store(); !errors.Is(r.Err, store.ErrUnavailable) {
		t.Errorf("result with an unknown code: got %v, want its outcome unknown", r.Err)
	}
}
