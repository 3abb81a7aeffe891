package server

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
)

// TestC79OverHTTP: who holds a lease through the interface learns the cause of a loss
// by the same code as at the store itself.
func TestC79OverHTTP(t *testing.T) {
	t.Parallel()
	seen := map[tenure.Reason]bool{}
	serve := func(b *bed, h http.Handler) { b.serve.Store(&h) }
	revoke := func(b *bed, term *tenure.Term, now bool) {
		if err := b.st.Revoke(context.Background(), "job", term.Token(), store.Revocation{Why: "wrong version", By: "ann", Now: now}); err != nil {
			b.t.Fatal(err)
		}
	}
	for _, c := range []struct {
		want  tenure.Reason
		cause func(*bed, *tenure.Term)
	}{
		{tenure.ReasonNoContact, func(b *bed, _ *tenure.Term) {
			serve(b, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
		}},
		{tenure.ReasonPermission, func(b *bed, _ *tenure.Term) { serve(b, b.Handler(HTTPConfig{Tokens: Tokens{}})) }},
		{tenure.ReasonRevoked, func(b *bed, term *tenure.Term) { revoke(b, term, false) }},
		{tenure.ReasonMissing, func(b *bed, _ *tenure.Term) {
			if _, err := b.db.sql.ExecContext(context.Background(), "DELETE FROM tenure_lease WHERE name = 'job'"); err != nil {
				b.t.Fatal(err)
			}
		}},
		{tenure.ReasonSuperseded, func(b *bed, term *tenure.Term) {
			revoke(b, term, true)
			if _, err := b.st.Acquire(context.Background(), store.Request{Name: "job", Holder: "other", TTL: time.Minute, Attempt: store.NewAttempt()}); err != nil {
				b.t.Fatal(err)
			}
		}},
	} {
		b := newDatabase(t, registry.SQLite).idle(Config{}, HTTPConfig{})
		client, err := api.NewClient(api.Config{Servers: []string{b.url}})
		if err != nil {
			t.Fatal(err)
		}
		k, err := tenure.NewKeeper(api.NewStore(client), tenure.Config{TTL: 2 * time.Second, DrainTimeout: 1})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- k.Run(ctx) }()
		term, err := k.TryAcquire(ctx, "job")
		if err != nil {
			t.Fatal(err)
		}
		c.cause(b, term)
		select {
		case <-term.Context().Done():
		case <-time.After(time.Minute):
			t.Fatalf("%s: the term was not lost", c.want)
		}
		lost, ok := errors.AsType[*tenure.LostError](term.Err())
		if !ok || lost.Reason != c.want || lost.Lease != "job" || lost.Token != 1 {
			t.Errorf("got %+v, want %s", term.Err(), c.want)
		} else {
			seen[lost.Reason] = true
		}
		if c.want == tenure.ReasonSuperseded && (lost.Rival != "other" || lost.Current != 2) || c.want == tenure.ReasonRevoked && lost.Why != "wrong version" {
			t.Errorf("%s: got %+v, want the rival, or the operator's words", c.want, lost)
		}
		stop()
		<-ended // a term that is over is no error
		_ = client.Close()
	}
	if len(seen) != 5 {
		t.Errorf("got codes %v, want five", seen)
	}
}
