package server

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
)

// TestProbes: a node that cannot call out is alive and may get work while it
// replies, and falls silent and loses its lease when it does not.
func TestProbes(t *testing.T) {
	t.Parallel()
	var well atomic.Bool
	well.Store(true)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !well.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(web.Close)
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { port.Close() })
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	facts := fleet.Facts{Capacity: fleet.Resources{"slots": 4}}
	b := newBed(t, Config{Interval: 500 * time.Millisecond, NodeTTL: 3 * time.Second, Probes: []Probe{
		{Node: "web", URL: web.URL + "/health", Facts: facts},
		{Node: "port", Address: port.Addr().String(), Interval: 100 * time.Millisecond, Facts: facts},
		{Node: "gone", Address: gone.Addr().String()},
	}}, HTTPConfig{})
	eligible := func(id string) bool { return b.send("GET", "/v1/nodes/"+id+"/eligible", nil).status == 200 }
	eventually(t, "web and port are eligible", func() bool { return eligible("web") && eligible("port") })
	if a := b.send("GET", "/v1/nodes/gone", nil); a.status != 404 {
		t.Errorf("a node that never replied: got %d, want 404", a.status)
	}
	if n := must[api.Node](b, "GET", "/v1/nodes/web", nil); n.Incarnation != probeIncarnation || n.Facts.Capacity["slots"] != 4 {
		t.Errorf("web: got %+v", n)
	}
	// It has nobody who would start work there.
	for _, req := range []fleet.Request{{}, {Node: "web"}} {
		_, _, err := b.Submit(t.Context(), fleet.Spec{ID: "w", Command: []string{"true"}, Request: req}, "test", false)
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != string(fleet.CodeNoCapacity) || e.Counts[fleet.CodeNoAgent] != 2 {
			t.Errorf("work for %q: got %v, want no_capacity, and no_agent for both", req.Node, err)
		}
	}
	if why := must[api.NodeWhy](b, "GET", "/v1/why/nodes/web", nil); !strings.Contains(strings.Join(why.Text, "\n"), string(fleet.CodeNoAgent)) {
		t.Errorf("why: got %q, want no_agent", why.Text)
	}
	well.Store(false)
	eventually(t, "web is suspect and its lease lapsed", func() bool {
		a := b.send("GET", "/v1/nodes/web", nil)
		var n api.Node
		if a.status != http.StatusOK || json.Unmarshal(a.body, &n) != nil {
			return false // a machine that is short of time is not ready for a while
		}
		return n.Liveness == fleet.Suspect && n.Lease.State == fleet.LeaseLapsed
	})
	well.Store(true)
	eventually(t, "web is back", func() bool { return eligible("web") })
	if n := must[api.Node](b, "GET", "/v1/nodes/web", nil); n.Lease.Token < 2 {
		t.Errorf("web is back with token %s, want a larger one", n.Lease.Token)
	}
}

func TestProbeConfig(t *testing.T) {
	t.Parallel()
	st, reg := openDatabase(t)
	for what, p := range map[string]Probe{
		"no node":          {Address: "a:1"},
		"a slash":          {Node: "a/b", Address: "a:1"},
		"no target":        {Node: "n"},
		"two targets":      {Node: "n", Address: "a:1", URL: "http://a"},
		"another scheme":   {Node: "n", URL: "file:///etc/passwd"},
		"no port":          {Node: "n", Address: "a"},
		"a long interval":  {Node: "n", Address: "a:1", Interval: time.Hour},
		"a long timeout":   {Node: "n", Address: "a:1", Timeout: time.Hour},
		"impossible facts": {Node: "n", Address: "a:1", Facts: fleet.Facts{Capacity: fleet.Resources{"a": -1}}},
	} {
		if _, err := New(st, reg, Config{Probes: []Probe{p}}); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: got %v, want ErrConfig", what, err)
		}
	}
	if _, err := New(st, reg, Config{Probes: []Probe{{Node: "n", Address: "a:1"}, {Node: "n", Address: "a:2"}}}); !errors.Is(err, ErrConfig) {
		t.Errorf("two probes of one node: got %v, want ErrConfig", err)
	}
}
