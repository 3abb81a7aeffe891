package server

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/store"
)

// TestReconciling: the fleet in figures tells whether anybody reconciles, as the
// store says and not as this replica remembers (P8).
func TestReconciling(t *testing.T) {
	t.Parallel()
	idle := newIdleBed(t, quick(), HTTPConfig{})
	if r := idle.reconciling(t.Context()); r.Status != store.Unheld || !r.Idle() || !r.Since.IsZero() {
		t.Errorf("before the first: got %+v, want nobody", r)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if r := idle.reconciling(gone); r.Error == "" || r.Status != "" || !r.Idle() {
		t.Errorf("of a store that does not answer: got %+v, want its error", r)
	}
	rec, err := idle.st.Acquire(t.Context(), store.Request{Name: ReconcilerLease, Holder: "h", TTL: time.Minute, Attempt: store.NewAttempt()})
	if err != nil {
		t.Fatal(err)
	}
	if r := idle.reconciling(t.Context()); r.Idle() || r.Holder != "h" || r.Token != rec.Token || !r.Since.Equal(rec.AcquiredAt) || r.Here {
		t.Errorf("of another holder: got %+v", r)
	}
	if err := idle.st.Revoke(t.Context(), ReconcilerLease, rec.Token, store.Revocation{Why: "test", By: "ann"}); err != nil {
		t.Fatal(err)
	}
	if r := idle.reconciling(t.Context()); !r.Idle() || !r.Revoked {
		t.Errorf("after it was revoked: got %+v, want nobody", r)
	}

	b := newBed(t, quick(), HTTPConfig{})
	get := func() api.Reconciler {
		return must[api.Fleet](b, http.MethodGet, "/v1/fleet", nil).Reconciler
	}
	eventually(t, "it reconciles", func() bool { return get().Here })
	if r := get(); r.Idle() || r.Status != store.Held || r.Holder == "" || r.Token == 0 || r.Since.IsZero() || r.Failing != "" {
		t.Errorf("while it does: got %+v", r)
	}
	b.end()
	if r := get(); !r.Idle() || r.Here || r.Holder == "" || r.Since.IsZero() {
		t.Errorf("after its end: got %+v, want nobody, since then", r)
	}
}
