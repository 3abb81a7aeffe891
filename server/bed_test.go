package server

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
)

// bed is a replica over a database, served over HTTP.
type bed struct {
	*Server
	t     testing.TB
	db    *database
	opts  HTTPConfig
	url   string
	serve atomic.Pointer[http.Handler]
	end   func() // ends run, and waits for it

	cfgGiven Config
}

// newBed starts a replica and waits until it is ready.
func newBed(t testing.TB, cfg Config, opts HTTPConfig) *bed {
	t.Helper()
	b := newIdleBed(t, cfg, opts)
	b.run()
	return b
}

// newIdleBed serves a replica that does not run yet, on a SQLite file of its own.
func newIdleBed(t testing.TB, cfg Config, opts HTTPConfig) *bed {
	t.Helper()
	return newDatabase(t, registry.SQLite).idle(cfg, opts)
}

// run runs the replica until the test ends or end is called.
func (b *bed) run() {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s := b.Server
	go func() { done <- s.Run(ctx) }()
	b.end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("run: %v", err)
		}
	})
	b.t.Cleanup(b.end)
	eventually(b.t, "ready", func() bool { return b.Ready() == nil })
}

// replace puts a new replica, which does not run yet, in place of the bed's.
func (b *bed) replace() {
	b.t.Helper()
	st, reg := b.db.open()
	s, err := New(st, reg, b.cfgGiven)
	if err != nil {
		b.t.Fatal(err)
	}
	b.Server = s
	h := s.Handler(b.opts)
	b.serve.Store(&h)
}

// eventually polls until ok says so, and fails after a bound.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for bound := time.Now().Add(sized(20*time.Second, 2*time.Minute)); !ok(); <-tick.C {
		if time.Now().After(bound) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// answered is an answer as it came.
type answered struct {
	status int
	header http.Header
	body   []byte
}

// problem decodes the answer as one.
func (a answered) problem(t testing.TB) api.Problem {
	t.Helper()
	var p api.Problem
	if err := json.Unmarshal(a.body, &p); err != nil || a.header.Get("Content-Type") != api.ProblemType {
		t.Fatalf("%d %s %.300q is no problem: %v", a.status, a.header.Get("Content-Type"), a.body, err)
	}
	return p
}

// send sends a request with a body that is text, or anything as JSON, or nil.
func (b *bed) send(method, path string, body any, header ...string) answered {
	b.t.Helper()
	var reader io.Reader
	switch v := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(v)
	default:
		text, err := json.Marshal(v)
		if err != nil {
			b.t.Fatal(err)
		}
		reader = strings.NewReader(string(text))
	}
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, reader)
	if err != nil {
		b.t.Fatal(err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		} else {
			req.Header.Set(header[i], header[i+1])
		}
	}
	resp, err := http.DefaultTransport.RoundTrip(req) // follows no redirect
	if err != nil {
		b.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return answered{resp.StatusCode, resp.Header, text}
}

// must sends a request that is to be answered with 200, and decodes the answer.
func must[T any](b *bed, method, path string, body any, header ...string) T {
	b.t.Helper()
	a := b.send(method, path, body, header...)
	var out T
	if a.status != http.StatusOK {
		b.t.Fatalf("%s %s: status %d: %s", method, path, a.status, a.body)
	}
	if err := json.Unmarshal(a.body, &out); err != nil {
		b.t.Fatalf("%s %s: %v in %.200q", method, path, err, a.body)
	}
	return out
}

// node is an agent in a few words: it holds the lease of its node and beats.
type node struct {
	b     *bed
	mu    sync.Mutex
	beat  api.Beat
	token fence.Token
}

// join starts a node with one unit of memory.
func (b *bed) join(id string, header ...string) *node {
	b.t.Helper()
	return b.joinAs(id, "i-"+id[max(len(id)-100, 0):], header...)
}

// joinAs is join for a run of the agent with a name of its own.
func (b *bed) joinAs(id, incarnation string, header ...string) *node {
	b.t.Helper()
	attempt := store.NewAttempt()
	rec := must[api.Record](b, http.MethodPost, "/v1/leases/acquire", api.NewAcquireRequest(store.Request{
		Name: fleet.LeaseName(id), Holder: "agent", TTL: b.cfg.NodeTTL, Attempt: attempt,
	}), header...)
	n := &node{b: b, token: rec.Token, beat: api.Beat{
		Node: id, Incarnation: incarnation, FactsVersion: 1,
		Facts: &fleet.Facts{Address: id + ":1", Capacity: fleet.Resources{"memory_mb": 1000}, Labels: map[string]string{"zone": "a"}, Readiness: fleet.Readiness{Ready: true}},
		Renew: &api.Renewal{Token: rec.Token, TTLMS: b.cfg.NodeTTL.Milliseconds(), Known: []store.Attempt{attempt}},
	}}
	if reply := n.next(header...); reply.Code != "" {
		b.t.Fatalf("first beat of %s: %s %s", id, reply.Code, reply.Text)
	}
	return n
}

// next returns the reply to the node's next beat.
func (n *node) next(header ...string) api.BeatReply {
	n.b.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.step()
	reply := must[api.BeatReply](n.b, http.MethodPost, beatPath, n.beat, header...)
	n.took(&reply)
	return reply
}

func (n *node) step() {
	n.beat.Seq++
	n.beat.Renew.Attempt = store.NewAttempt()
}

func (n *node) took(reply *api.BeatReply) {
	if reply.Renewed != nil && reply.Renewed.Code == "" {
		n.beat.Renew.Known = []store.Attempt{n.beat.Renew.Attempt}
	}
	if !reply.NeedFacts {
		n.beat.Facts = nil
	}
	if reply.Orders != nil {
		n.beat.Orders = reply.Orders.Revision
	}
}

func newRecorder() *httptest.ResponseRecorder { return httptest.NewRecorder() }

func newRequest(t testing.TB, method, path string) *http.Request {
	return httptest.NewRequestWithContext(t.Context(), method, path, nil)
}
