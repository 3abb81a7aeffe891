// Package document_test holds the answers of a server to the document that it
// serves. It is apart from the server's own tests because the validator takes
// minutes to compile with the race detector.
package document_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// TestDocument holds the answers of every operation to the document that is
// served, and the document to the list of operations.
func TestDocument(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	served := b.send("GET", "/v1/openapi.json", nil)
	if served.status != 200 || served.header.Get("Content-Type") != "application/json" {
		t.Fatalf("document: got %d %s", served.status, served.header.Get("Content-Type"))
	}
	doc, err := libopenapi.NewDocument(served.body)
	if err != nil {
		t.Fatal(err)
	}
	if v := doc.GetVersion(); !strings.HasPrefix(v, "3.1") {
		t.Errorf("OpenAPI version %s, want 3.1", v)
	}
	check, errs := validator.NewValidator(doc)
	if errs != nil {
		t.Fatal(errs)
	}
	if ok, errs := check.ValidateDocument(); !ok {
		for _, e := range errs {
			t.Errorf("document: %s: %s", e.Message, e.Reason)
			for _, s := range e.SchemaValidationErrors {
				t.Errorf("  %s at %s", s.Reason, s.FieldPath)
			}
		}
	}

	undone := map[string]bool{}
	var parsed struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal(served.body, &parsed); err != nil {
		t.Fatal(err)
	}
	for path, methods := range parsed.Paths {
		for method := range methods {
			undone[strings.ToUpper(method)+" "+path] = true
		}
	}

	attempt := store.NewAttempt()
	term := must[api.Record](b, "POST", "/v1/leases/acquire", api.NewAcquireRequest(store.Request{Name: "node/n1", Holder: "h", TTL: time.Minute, Attempt: attempt}))
	beat := api.Beat{
		Node: "n1", Incarnation: "i", Seq: 1, FactsVersion: 1,
		Facts: &fleet.Facts{Capacity: fleet.Resources{"memory_mb": 1000}, Labels: map[string]string{"zone": "a"}, Readiness: fleet.Readiness{Ready: true}},
		Renew: &api.Renewal{Token: term.Token, TTLMS: 60_000, Attempt: store.NewAttempt(), Known: []store.Attempt{attempt}},
	}
	relayed := beat
	relayed.Seq, relayed.Renew = 2, nil
	spec := fleet.Spec{ID: "w1", Command: []string{"sleep", "9"}, Movable: true, Env: map[string]string{"A": "b"}, Request: fleet.Request{Resources: fleet.Resources{"memory_mb": 10}}}
	attempt = store.NewAttempt()
	lease := must[api.Record](b, "POST", "/v1/leases/acquire", api.NewAcquireRequest(store.Request{Name: "job/a", Holder: "h", TTL: store.MaxTTL, Attempt: attempt}))
	other := store.NewAttempt()
	for _, r := range []struct {
		op, path string // path "" is that of op
		body     any
		status   int // 0 is 200
	}{
		{op: "POST /v1/beat", body: beat},
		{op: "POST /v1/beats", body: api.Beats{Beats: []api.Beat{relayed, {Node: "no/name"}}}},
		{op: "POST /v1/beat", body: api.Beat{Node: "no/name"}, status: 400},
		{op: "GET /v1/nodes"},
		{op: "GET /v1/nodes/{id}", path: "/v1/nodes/n1"},
		{op: "GET /v1/nodes/{id}", path: "/v1/nodes/n9", status: 404},
		{op: "GET /v1/nodes/{id}/eligible", path: "/v1/nodes/n1/eligible"},
		{op: "GET /v1/nodes/{id}/orders", path: "/v1/nodes/n1/orders?after=0&wait_ms=0"},
		{op: "POST /v1/work", body: api.SubmitRequest{Spec: spec, Actor: "ann"}},
		{op: "POST /v1/work", body: api.SubmitRequest{Spec: fleet.Spec{ID: "big", Command: []string{"a"}, Request: fleet.Request{Resources: fleet.Resources{"memory_mb": 1e6}}}}, status: 503},
		{op: "GET /v1/work", path: "/v1/work?limit=10"},
		{op: "GET /v1/work/{id}", path: "/v1/work/w1"},
		{op: "GET /v1/work/{id}/owner", path: "/v1/work/w1/owner"},
		{op: "POST /v1/work/{id}/progress", path: "/v1/work/w1/progress", body: api.ProgressRequest{Token: 1, Lease: term.Token, Node: "n1", Marker: "m"}},
		{op: "POST /v1/work/{id}/progress", path: "/v1/work/w1/progress", body: api.ProgressRequest{Token: 7, Lease: term.Token, Node: "n1", Marker: "m"}},
		{op: "GET /v1/why/work/{id}", path: "/v1/why/work/w1"},
		{op: "POST /v1/nodes/{id}/cordon", path: "/v1/nodes/n1/cordon", body: api.CordonRequest{Actor: "ann", Reason: "look"}},
		{op: "POST /v1/nodes/{id}/drain", path: "/v1/nodes/n1/drain", body: api.DrainRequest{Actor: "ann", Reason: "disk", DeadlineMS: 1000}},
		{op: "GET /v1/nodes/{id}/eligible", path: "/v1/nodes/n1/eligible", status: 503},
		{op: "GET /v1/why/nodes/{id}", path: "/v1/why/nodes/n1"},
		{op: "POST /v1/nodes/{id}/resume", path: "/v1/nodes/n1/resume", body: api.ResumeRequest{Actor: "ann", What: "all"}},
		{op: "POST /v1/work/{id}/move", path: "/v1/work/w1/move", body: api.WorkOrder{Actor: "ann", Reason: "there"}},
		{op: "POST /v1/work/{id}/stop", path: "/v1/work/w1/stop", body: api.WorkOrder{Actor: "ann", Reason: "enough"}},
		{op: "DELETE /v1/work/{id}", path: "/v1/work/w1?actor=ann&reason=r", status: 409},
		{op: "POST /v1/work", body: api.SubmitRequest{Spec: fleet.Spec{ID: "w2", Command: []string{"a"}, Request: fleet.Request{Resources: fleet.Resources{"memory_mb": 1e6}}}, Queue: true}},
		{op: "POST /v1/work/{id}/stop", path: "/v1/work/w2/stop", body: api.WorkOrder{Actor: "ann", Reason: "enough"}},
		{op: "DELETE /v1/work/{id}", path: "/v1/work/w2?actor=ann&reason=r"},
		{op: "DELETE /v1/nodes/{id}", path: "/v1/nodes/n1?actor=ann&reason=r", status: 409},
		{op: "GET /v1/events", path: "/v1/events?limit=5&last=true"},
		{op: "GET /v1/whoami"},
		{op: "GET /v1/fleet"},
		{op: "GET /v1/fleet/ages"},
		{op: "GET /v1/nodes", path: "/v1/nodes?is=draining&sort=-id&limit=1&offset=0"},
		{op: "GET /v1/nodes/{id}/timeline", path: "/v1/nodes/n1/timeline"},
		{op: "GET /v1/takeovers", path: "/v1/takeovers?work=w1&limit=5&last=true"},
		{op: "GET /v1/brake"},
		{op: "POST /v1/brake/confirm", body: api.BrakeRequest{Domain: "all", Actor: "ann", Reason: "real"}, status: 409},
		{op: "POST /v1/brake/release", body: api.BrakeRequest{Domain: "all", Actor: "ann", Reason: "go"}, status: 409},
		{op: "GET /v1/config"},
		{op: "GET /metrics"},
		{op: "POST /v1/leases/acquire", body: api.NewAcquireRequest(store.Request{Name: "job/a", Holder: "h2", TTL: store.MaxTTL, Attempt: store.NewAttempt()}), status: 409},
		{op: "POST /v1/leases/renew", body: api.RenewRequest{Grants: []api.RenewGrant{{Name: "job/a", Token: lease.Token, TTLUS: 60e6, Attempt: other, Known: []store.Attempt{attempt}}}}},
		{op: "POST /v1/leases/done", body: api.DoneRequest{Name: "job/a", Token: lease.Token, Attempt: store.NewAttempt(), Known: []store.Attempt{other}, Slot: "s"}},
		{op: "GET /v1/leases/slot", path: "/v1/leases/slot?name=job/a&slot=s"},
		{op: "GET /v1/leases", path: "/v1/leases?prefix=job/"},
		{op: "GET /v1/leases/get", path: "/v1/leases/get?name=job/a"},
		{op: "GET /v1/leases/history", path: "/v1/leases/history?name=job/a"},
		{op: "GET /v1/leases/features"},
		{op: "GET /v1/leases/doctor"},
		{op: "POST /v1/leases/floor", body: api.FloorRequest{Name: "job/b", Floor: 7}},
		{op: "POST /v1/leases/revoke", body: api.RevokeRequest{Name: "job/a", Token: lease.Token, Why: "w", By: "ann"}},
		{op: "POST /v1/leases/release", body: api.ReleaseRequest{Grants: []api.ReleaseGrant{{Name: "job/a", Token: lease.Token, Attempt: store.NewAttempt(), Known: []store.Attempt{other}}}}},
		{op: "POST /v1/leases/clean", body: api.CleanRequest{IdleUS: 3600e6}},
	} {
		delete(undone, r.op)
		method, path, _ := strings.Cut(r.op, " ")
		if r.path != "" {
			path = r.path
		}
		a := b.send(method, path, r.body)
		if want := max(r.status, 200); r.status == 0 && a.status != 200 || r.status != 0 && a.status != want {
			t.Errorf("%s: got %d %s, want %d", r.op, a.status, a.body, want)
		}
		var body io.Reader
		if r.body != nil {
			text, _ := json.Marshal(r.body)
			body = bytes.NewReader(text)
		}
		req, err := http.NewRequestWithContext(t.Context(), method, b.url+path, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp := &http.Response{StatusCode: a.status, Header: a.header, Body: io.NopCloser(bytes.NewReader(a.body)), Request: req}
		ok, errs := check.ValidateHttpResponse(req, resp)
		if a.status == 200 && ok {
			ok, errs = check.ValidateHttpRequest(req)
		}
		if !ok {
			for _, e := range errs {
				t.Errorf("%s: %s: %s\n%.600s", r.op, e.Message, e.Reason, a.body)
				for _, s := range e.SchemaValidationErrors {
					t.Errorf("  %s at %s", s.Reason, s.FieldPath)
				}
			}
		}
	}
	for op := range undone {
		if !strings.HasSuffix(op, "/stream") && !strings.HasSuffix(op, "/watch") { // streams have tests of their own
			t.Errorf("%s is in the document, and was not tried", op)
		}
	}
}
