package server

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// TestFleetOverHTTP goes through what a fleet does, once.
func TestFleetOverHTTP(t *testing.T) {
	t.Parallel()
	b := newBed(t, Config{}, HTTPConfig{Version: "test"})
	if got := must[api.Nodes](b, "GET", "/v1/nodes", nil); got.Nodes == nil || len(got.Nodes) != 0 {
		t.Fatalf("nodes of an empty fleet: got %v, want []", got.Nodes)
	}
	n1 := b.join("n1")
	nodes := must[api.Nodes](b, "GET", "/v1/nodes", nil).Nodes
	if len(nodes) != 1 || nodes[0].ID != "n1" || nodes[0].Fenced || nodes[0].Stale || len(nodes[0].Exclusions) > 0 {
		t.Fatalf("nodes: got %+v, want n1, which may get work", nodes)
	}
	if e := must[api.Eligible](b, "GET", "/v1/nodes/n1/eligible", nil); !e.Eligible {
		t.Errorf("eligible: got %+v", e)
	}

	work := must[api.Work](b, "POST", "/v1/work", api.SubmitRequest{Spec: fleet.Spec{
		ID: "w1", Command: []string{"sleep", "1"}, Movable: true, Request: fleet.Request{Resources: fleet.Resources{"memory_mb": 600}},
	}})
	if work.Owner != "n1" || work.State != fleet.Placed || work.Token != 1 {
		t.Fatalf("submit: got %+v, want it placed on n1 with token 1", work)
	}
	full := b.send("POST", "/v1/work", api.SubmitRequest{Spec: fleet.Spec{
		ID: "w2", Command: []string{"sleep", "1"}, Request: fleet.Request{Resources: fleet.Resources{"memory_mb": 600}},
	}})
	if p := full.problem(t); full.status != 503 || p.Code != "no_capacity" || p.Counts["insufficient_memory_mb"] != 1 || full.header.Get("Retry-After") == "" || p.RetryAfterMS == 0 {
		t.Errorf("no room: got %d %+v, want 503 no_capacity, with counts and Retry-After", full.status, p)
	}
	if o := must[api.Owner](b, "GET", "/v1/work/w1/owner", nil); o.Answer != api.OwnerFound || o.Node != "n1" || o.Address != "n1:1" {
		t.Errorf("owner: got %+v", o)
	}

	reply := n1.next()
	if reply.Orders == nil || len(reply.Orders.Work) != 1 || reply.Orders.Work[0].Spec.ID != "w1" {
		t.Fatalf("beat: got %+v, want the order for w1", reply)
	}
	orders := must[api.Orders](b, "GET", fmt.Sprintf("/v1/nodes/n1/orders?after=%d&wait_ms=0", reply.Orders.Revision), nil)
	if orders.Revision != reply.Orders.Revision || len(orders.Work) != 1 {
		t.Errorf("orders: got %+v, want those of the beat", orders)
	}
	verdict := must[api.WorkVerdict](b, "POST", "/v1/work/w1/progress", api.ProgressRequest{Token: 1, Lease: n1.token, Node: "n1", Marker: "half"})
	if verdict.Code != "" {
		t.Errorf("progress: got %+v", verdict)
	}
	verdict = must[api.WorkVerdict](b, "POST", "/v1/work/w1/progress", api.ProgressRequest{Token: 2, Lease: n1.token, Node: "n1", Marker: "more"})
	if verdict.Code != fleet.CodeStaleToken || verdict.Current != 1 {
		t.Errorf("progress with another token: got %+v, want stale_token, 1 is current", verdict)
	}
	if w := must[api.Work](b, "GET", "/v1/work/w1", nil); w.Progress != "half" || w.State != fleet.Running {
		t.Errorf("work: got %+v, want it running, at half", w)
	}

	changed := make(chan api.Orders, 1)
	go func() {
		changed <- must[api.Orders](b, "GET", fmt.Sprintf("/v1/nodes/n1/orders?after=%d&wait_ms=20000", orders.Revision), nil)
	}()
	drained := must[api.Node](b, "POST", "/v1/nodes/n1/drain", api.DrainRequest{Actor: "ann", Reason: "disk", DeadlineMS: 60_000})
	if drained.Intent != fleet.Draining || drained.IntentMarks.Drain.Actor != "ann" || drained.IntentMarks.Drain.Deadline.IsZero() || !drained.Draining {
		t.Errorf("drain: got %+v", drained)
	}
	if o := <-changed; o.Intent != fleet.Draining || len(o.Work) != 1 {
		t.Errorf("orders that were waited for: got %+v, want draining with its work", o)
	}
	not := b.send("GET", "/v1/nodes/n1/eligible", nil)
	if not.status != 503 || not.header.Get("Content-Type") != "application/json" || !strings.Contains(string(not.body), `"draining"`) {
		t.Errorf("eligible while draining: got %d %s", not.status, not.body)
	}
	why := must[api.NodeWhy](b, "GET", "/v1/why/nodes/n1", nil)
	if len(why.Blockers) != 1 || why.Blockers[0].ID != "w1" || !strings.Contains(strings.Join(why.Text, "\n"), `"disk"`) || len(why.Events) == 0 || why.Detector == "" {
		t.Errorf("why node: got %+v", why)
	}
	if p := b.send("DELETE", "/v1/nodes/n1?actor=ann&reason=gone", nil).problem(t); p.Code != "wrong_state" {
		t.Errorf("remove a node with work: got %+v, want wrong_state", p)
	}
	whyWork := must[api.WorkWhy](b, "GET", "/v1/why/work/w1", nil)
	if whyWork.Owner.Node != "n1" || whyWork.Lease == nil || len(whyWork.Text) < 2 || whyWork.Next == "" {
		t.Errorf("why work: got %+v", whyWork)
	}
	if w := must[api.Work](b, "POST", "/v1/work/w1/stop", api.WorkOrder{Actor: "ann", Reason: "enough"}); w.State != fleet.Stopping {
		t.Errorf("stop: got %+v", w)
	}
	n1.beat.Work = []api.WorkReport{{Work: "w1", Token: 1, Lease: n1.token, State: fleet.Stopped}}
	if reply := n1.next(); len(reply.Work) != 1 || reply.Work[0].Code != "" {
		t.Errorf("report of the end: got %+v", reply)
	}
	n1.beat.Work = nil
	eventually(t, "drained", func() bool {
		return must[api.Node](b, "GET", "/v1/nodes/n1", nil).Intent == fleet.Drained
	})
	if n := must[api.Node](b, "POST", "/v1/nodes/n1/resume", api.ResumeRequest{Actor: "ann", What: "all"}); n.Intent != fleet.Active {
		t.Errorf("resume: got %+v", n)
	}
	pending := must[api.Work](b, "POST", "/v1/work", api.SubmitRequest{Queue: true, Spec: fleet.Spec{
		ID: "w3", Command: []string{"true"}, Request: fleet.Request{Resources: fleet.Resources{"memory_mb": 5000}},
	}})
	if pending.State != fleet.Pending {
		t.Errorf("queued: got %+v, want pending", pending)
	}
	if why := must[api.WorkWhy](b, "GET", "/v1/why/work/w3", nil); why.Counts["insufficient_memory_mb"] != 1 || len(why.Nodes) != 1 {
		t.Errorf("why pending: got %+v", why)
	}
	works := must[api.Works](b, "GET", "/v1/work?state=pending,stopped&limit=1", nil)
	if len(works.Work) != 1 || works.Work[0].ID != "w1" || works.Next != "w1" {
		t.Errorf("first page: got %+v", works)
	}
	works = must[api.Works](b, "GET", "/v1/work?state=pending,stopped&limit=2&after="+works.Next, nil)
	if len(works.Work) != 1 || works.Work[0].ID != "w3" || works.Next != "" {
		t.Errorf("last page: got %+v", works)
	}
	if a := b.send("DELETE", "/v1/nodes/n1?actor=ann&reason=gone", nil); a.status != 409 || a.problem(t).Code != "wrong_state" {
		t.Errorf("a node that lives: got %d %s, want 409", a.status, a.body)
	}
	lease, err := b.st.Get(t.Context(), fleet.LeaseName("n1"))
	if err == nil {
		err = b.st.Revoke(t.Context(), lease.Name, lease.Token, store.Revocation{Why: "test", Now: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	if n := must[api.Node](b, "DELETE", "/v1/nodes/n1?actor=ann&reason=gone", nil); n.ID != "n1" {
		t.Errorf("remove: got %+v", n)
	}
	if a := b.send("GET", "/v1/nodes/n1", nil); a.status != 404 || a.problem(t).Code != "no_such_node" {
		t.Errorf("a node that was removed: got %d %s, want 404", a.status, a.body)
	}
	conf := must[api.ServerConfig](b, "GET", "/v1/config", nil)
	if conf.Version != "test" || len(conf.Settings) == 0 || len(conf.Derived) == 0 || conf.Settings[1] != (api.Setting{Name: "interval", Value: "10s", Source: "default", Text: conf.Settings[1].Text}) {
		t.Errorf("config: got %+v", conf)
	}
	for name, want := range map[string]string{"takeover_rate": "10", "rows_per_second_per_1000_nodes": "200"} {
		if i := slices.IndexFunc(conf.Derived, func(s api.Setting) bool { return s.Name == name }); i < 0 || conf.Derived[i].Value != want {
			t.Errorf("config: got %+v, want %s %s", conf.Derived, name, want)
		}
	}
}

// TestNotReady is C64: a replica that has not loaded answers 503, and nothing
// that could be taken for the truth.
func TestNotReady(t *testing.T) {
	t.Parallel()
	b := newIdleBed(t, Config{}, HTTPConfig{})
	for _, r := range []struct{ method, path, body string }{
		{"GET", "/v1/nodes", ""},
		{"GET", "/v1/nodes/n1", ""},
		{"GET", "/v1/nodes/n1/eligible", ""},
		{"GET", "/v1/nodes/n1/orders", ""},
		{"GET", "/v1/work", ""},
		{"GET", "/v1/work/w1/owner", ""},
		{"GET", "/v1/brake", ""},
		{"GET", "/v1/events", ""},
		{"GET", "/v1/events/stream", ""},
		{"GET", "/v1/why/nodes/n1", ""},
		{"POST", "/v1/work", `{"spec":{"id":"w","command":["true"]}}`},
		{"POST", "/v1/beat", `{"node":"n1","incarnation":"i","seq":1,"facts_version":0,"orders":0}`},
		{"POST", "/v1/beats", `{"beats":[]}`},
	} {
		var body any
		if r.body != "" {
			body = r.body
		}
		a := b.send(r.method, r.path, body)
		if p := a.problem(t); a.status != 503 || p.Code != api.CodeNotReady || a.header.Get("Retry-After") == "" {
			t.Errorf("%s %s: got %d %s, want 503 not_ready with Retry-After", r.method, r.path, a.status, a.body)
		}
	}
	if a := b.send("GET", "/readyz", nil); a.status != 503 {
		t.Errorf("readyz: got %d, want 503", a.status)
	}
	if a := b.send("GET", "/livez", nil); a.status != 200 {
		t.Errorf("livez: got %d, want 200", a.status)
	}
	// Leases are the store's, which has loaded nothing.
	must[api.Features](b, "GET", "/v1/leases/features", nil)
	b.run()
	if a := b.send("GET", "/readyz", nil); a.status != 200 {
		t.Errorf("readyz when it runs: got %d, want 200", a.status)
	}
	must[api.Nodes](b, "GET", "/v1/nodes", nil)
}

func TestNoSuchPath(t *testing.T) {
	t.Parallel()
	b := newBed(t, Config{}, HTTPConfig{})
	for _, r := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/", 404, api.CodeNoSuchPath},
		{"GET", "/v1", 404, api.CodeNoSuchPath},
		{"GET", "/v1/node", 404, api.CodeNoSuchPath},
		{"GET", "/v1/nodes/", 404, api.CodeNoSuchPath},
		{"GET", "/v1//nodes", 404, api.CodeNoSuchPath},
		{"GET", "/v1/../v1/nodes", 404, api.CodeNoSuchPath},
		{"GET", "/v1/nodes/a/b/c", 404, api.CodeNoSuchPath},
		{"PUT", "/v1/nodes", 405, api.CodeNoSuchMethod},
		{"GET", "/v1/beat", 405, api.CodeNoSuchMethod},
		{"DELETE", "/v1/beats", 405, api.CodeNoSuchMethod},
		{"POST", "/metrics", 405, api.CodeNoSuchMethod},
	} {
		a := b.send(r.method, r.path, nil)
		if p := a.problem(t); a.status != r.status || p.Code != r.code {
			t.Errorf("%s %s: got %d %s, want %d %s", r.method, r.path, a.status, p.Code, r.status, r.code)
		}
		if r.status == 405 && a.header.Get("Allow") == "" {
			t.Errorf("%s %s: no header Allow", r.method, r.path)
		}
		if got := a.header.Get("X-Content-Type-Options"); got != "nosniff" {
			t.Errorf("%s %s: X-Content-Type-Options %q", r.method, r.path, got)
		}
	}
}

// TestDefect: a handler that panics is answered with fault, and nothing of the
// defect goes out.
func TestDefect(t *testing.T) {
	t.Parallel()
	b := newIdleBed(t, Config{}, HTTPConfig{})
	h := &handler{Server: b.Server}
	rec := newRecorder()
	h.plain(func(http.ResponseWriter, *http.Request) error { panic("secret detail") })(rec, newRequest(t, "GET", "/v1/nodes"))
	if rec.Code != 500 || !strings.Contains(rec.Body.String(), `"fault"`) || strings.Contains(rec.Body.String(), "secret") || strings.Contains(rec.Body.String(), "goroutine") {
		t.Errorf("got %d %s, want 500 fault and nothing of the defect", rec.Code, rec.Body)
	}
}
