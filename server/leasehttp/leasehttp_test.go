package leasehttp_test

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/server/leasehttp"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
	"github.com/tenurehq/tenure/store/storetest"
)

// serve returns the URL of a server of st.
func serve(t *testing.T, st store.Store) string {
	t.Helper()
	srv := httptest.NewServer(leasehttp.Handler(st, nil))
	t.Cleanup(srv.Close)
	return srv.URL
}

// open returns a store over servers, as another process would have it.
func open(t *testing.T, servers ...string) *api.Store {
	t.Helper()
	client, err := api.NewClient(api.Config{Servers: servers})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return api.NewStore(client)
}

// harness stands two clients before two servers of one store.
func harness(t *testing.T, st store.Store, h storetest.Harness) storetest.Harness {
	h.Store = open(t, serve(t, st))
	other := serve(t, st)
	h.Second = func(t *testing.T) store.Store { return open(t, other) }
	return h
}

func TestConformanceMemory(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		st := memory.New()
		return harness(t, st, storetest.Harness{MinTTL: 60 * time.Millisecond, Writes: func(*testing.T) int64 { return st.Writes() }})
	})
}
