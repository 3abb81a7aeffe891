package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/agent"
	"github.com/tenurehq/tenure/agent/agenttest"
	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
)

const (
	ttl      = 1500 * time.Millisecond
	interval = 250 * time.Millisecond
)

// rig is a control plane behind HTTP and one host.
type rig struct {
	t    *testing.T
	srv  *agenttest.Server
	http *httptest.Server
	host *machine
	dir  string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, srv: agenttest.New(memory.New()), host: newMachine(), dir: t.TempDir()}
	r.http = httptest.NewServer(r.srv)
	t.Cleanup(func() {
		r.http.CloseClientConnections()
		r.http.Close()
	})
	return r
}

// node is one run of an agent.
type node struct {
	*agent.Agent
	t    *testing.T
	stop context.CancelFunc
	done chan struct{}
	err  error

	mu     sync.Mutex
	events []agent.Event
}

func (n *node) saw(kind agent.EventKind) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.events, func(e agent.Event) bool { return e.Kind == kind })
}

// end stops the agent as a restart does and returns what Run returned.
func (n *node) end() error {
	n.stop()
	select {
	case <-n.done:
	case <-time.After(10 * time.Second):
		n.t.Fatal("the agent does not end")
	}
	return n.err
}

func (r *rig) client(urls ...string) *api.Client {
	r.t.Helper()
	c, err := api.NewClient(api.Config{Servers: urls})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c
}

func (r *rig) start(change ...func(*agent.Config)) *node {
	r.t.Helper()
	c := r.client(r.http.URL)
	cfg := agent.Config{
		Node: "n1", Server: c, Store: r.srv.Store(), StateDir: r.dir, Driver: r.host, ServerURL: r.http.URL,
		TTL: ttl, Interval: interval, Poll: time.Second,
	}
	n := &node{t: r.t, done: make(chan struct{})}
	cfg.OnEvent = func(e agent.Event) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.events = append(n.events, e)
	}
	for _, f := range change {
		f(&cfg)
	}
	a, err := agent.New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	n.Agent = a
	ctx, cancel := context.WithCancel(context.Background())
	n.stop = cancel
	go func() {
		defer close(n.done)
		n.err = a.Run(ctx)
	}()
	r.t.Cleanup(func() { _ = n.end() })
	return n
}

// until waits for a condition, with a bound that has nothing to do with speed.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

func spec(id string, policy fleet.LossPolicy) fleet.Spec {
	return fleet.Spec{ID: id, Command: []string{"work"}, OnLoss: policy}
}

func (r *rig) runs(work string) int {
	n := 0
	for _, t := range r.host.started() {
		if t.Spec.ID == work {
			n++
		}
	}
	return n
}

func (r *rig) state(work string) func() bool {
	return func() bool { return r.srv.Item(work).State == fleet.Running && r.srv.Item(work).Reports > 0 }
}

func mayAct(n *node) func() bool {
	return func() bool { _, ok := n.MayAct(); return ok }
}

// Renewals travel inside beats: one request an interval does both, also for a
// server that wants other intervals between beats.
func TestRenewalsTravelInBeats(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var renews atomic.Int64
	n := r.start(func(c *agent.Config) { c.Store = &countedStore{Store: c.Store, renews: &renews} })
	until(t, "the lease", mayAct(n))
	first := len(r.srv.Beats())
	until(t, "eight more beats", func() bool { return len(r.srv.Beats()) >= first+8 })
	beats := r.srv.Beats()[first:]
	bare := 0
	for _, b := range beats {
		if b.Renew == nil {
			bare++
		}
	}
	if bare > len(beats)/2 {
		t.Errorf("%d of %d beats carried no renewal", bare, len(beats))
	}
	if renews.Load() > 0 {
		t.Errorf("%d renewals went past the beats", renews.Load())
	}
	seqs := map[uint64]bool{}
	for _, b := range r.srv.Beats() {
		if seqs[b.Seq] || b.Incarnation != n.Incarnation() {
			t.Errorf("beat %d of %s came twice or from somebody else", b.Seq, b.Incarnation)
		}
		seqs[b.Seq] = true
	}
	if f := r.srv.Beats()[0]; f.FactsVersion > 0 && f.Facts == nil {
		t.Error("the first beat has no facts")
	}
}

type countedStore struct {
	store.Store
	renews *atomic.Int64
}

func (c *countedStore) Renew(ctx context.Context, g []store.Grant) ([]store.Result, error) {
	c.renews.Add(1)
	return c.Store.Renew(ctx, g)
}

// C64: no answer but a newer complete list changes the orders. The node keeps
// draining, marks its view stale and starts nothing.
func TestC64FailedReadClearsNothing(t *testing.T) {
	t.Parallel()
	orders := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, body)
		}
	}
	for name, bad := range map[string]http.HandlerFunc{
		"500":            func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "oops", http.StatusInternalServerError) },
		"timeout":        hang,
		"empty body":     orders(""),
		"truncated JSON": orders(`{"revision":99,"intent":"active","wor`),
		"not loaded":     orders(`[]`),
		"nothing in it":  orders(`{"revision":99,"work":[]}`),
		"older":          orders(`{"revision":1,"intent":"active","work":[]}`),
		"503": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", api.ProblemType)
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"code":"not_ready","message":"not loaded"}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.srv.Assign("n1", spec("old", fleet.Keep))
			n := r.start(func(c *agent.Config) { c.Poll = 100 * time.Millisecond })
			until(t, "the work", r.state("old"))
			r.srv.SetIntent("n1", fleet.Draining)
			until(t, "the drain", func() bool { return n.Status().Intent == fleet.Draining })
			before := n.Status().Revision

			var asked, polled atomic.Int64
			r.srv.Fail(func(path string) http.HandlerFunc {
				return func(w http.ResponseWriter, req *http.Request) {
					asked.Add(1)
					if path != "/v1/beat" {
						polled.Add(1)
					}
					bad(w, req)
				}
			})
			until(t, "a stale view", func() bool { return n.Status().Stale != "" })
			until(t, "the end of the poll that was under way", func() bool { return polled.Load() > 0 })
			r.srv.Assign("n1", spec("new", fleet.Keep)) // which nobody can tell it now
			seen := asked.Load()
			until(t, "more failed reads", func() bool { return asked.Load() >= seen+3 })
			s := n.Status()
			if s.Intent != fleet.Draining || s.Revision != before || s.Stale == "" {
				t.Errorf("got intent %s at revision %d, stale %q; want draining at %d, stale", s.Intent, s.Revision, s.Stale, before)
			}
			if r.runs("new") > 0 || r.runs("old") != 1 {
				t.Errorf("started: new %d, old %d times; want 0 and 1", r.runs("new"), r.runs("old"))
			}
			if run := r.host.run(agent.Instance{Work: "old", Token: 1}); isDone(run) {
				t.Error("running work was ended")
			}
			r.srv.Fail(nil)
			until(t, "the new work, once it can be heard", r.state("new"))
		})
	}
}

// hang answers nothing until the client gives up.
func hang(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // only then the end of the connection is seen
	<-r.Context().Done()
}

func isDone(r *fakeRun) bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// A drain is the server's, and what the agent knows of it survives its restart,
// also while no server answers.
func TestDrainSurvivesRestart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.srv.SetIntent("n1", fleet.Draining)
	r.srv.Assign("n1", spec("w", fleet.Keep))
	n := r.start()
	until(t, "the work", r.state("w"))
	if err := n.end(); err != nil {
		t.Fatal(err)
	}
	r.srv.Fail(func(string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", http.StatusBadGateway) }
	})
	again := r.start()
	until(t, "a failed beat", func() bool { return again.saw(agent.EventNoServer) })
	s := again.Status()
	if s.Intent != fleet.Draining || s.Stale == "" || len(s.Work) != 1 || s.Work[0].PID == 0 {
		t.Errorf("got %+v, want draining, stale, and the work attached", s)
	}
	if r.runs("w") != 1 {
		t.Errorf("started %d times, want once", r.runs("w"))
	}
}

// What a former agent has saved is not started before a server confirms it under
// the new term: the item may be another's by now.
func TestStaleViewStartsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.srv.Assign("n1", spec("w", fleet.Keep))
	n := r.start()
	until(t, "the work", r.state("w"))
	if err := n.end(); err != nil {
		t.Fatal(err)
	}
	if err := r.host.Forget(agent.Instance{Work: "w", Token: 1}); err != nil { // the host was started anew
		t.Fatal(err)
	}
	var asked atomic.Int64
	again := r.start(func(c *agent.Config) {
		c.Store = &lastAnswer{c.Store, func() {
			r.srv.Fail(func(string) http.HandlerFunc {
				return func(w http.ResponseWriter, _ *http.Request) {
					asked.Add(1)
					http.Error(w, "", http.StatusInternalServerError)
				}
			})
		}}
	})
	until(t, "the lease", mayAct(again))
	seen := asked.Load()
	until(t, "failed requests", func() bool { return asked.Load() > seen+3 })
	if r.runs("w") != 1 {
		t.Errorf("started %d times, want not again", r.runs("w"))
	}
	r.srv.Fail(nil)
	until(t, "the start, once confirmed", func() bool { return r.runs("w") == 2 })
}

// lastAnswer is a store after whose grant something happens.
type lastAnswer struct {
	store.Store
	then func()
}

func (s *lastAnswer) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	defer s.then()
	return s.Store.Acquire(ctx, req)
}

// Another incarnation has the name: this one never acts again, renews no more and
// follows the policy of each item.
func TestReplacedIsFencedForGood(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, p := range []fleet.LossPolicy{fleet.Keep, fleet.Quiesce, fleet.Stop} {
		r.srv.Assign("n1", spec(string(p), p))
	}
	n := r.start()
	for _, p := range []fleet.LossPolicy{fleet.Keep, fleet.Quiesce, fleet.Stop} {
		until(t, "the work", r.state(string(p)))
	}
	r.srv.Reply(func(reply *api.BeatReply) { reply.Code = fleet.CodeReplaced })
	<-n.done
	var replaced *agent.ReplacedError
	if !errors.As(n.err, &replaced) || !errors.Is(n.err, agent.ErrReplaced) || replaced.Incarnation != n.Incarnation() {
		t.Errorf("Run returned %v, want ReplacedError", n.err)
	}
	if _, ok := n.MayAct(); ok {
		t.Error("it may act")
	}
	last := len(r.srv.Beats())
	for policy, want := range map[fleet.LossPolicy]int{fleet.Keep: 0, fleet.Quiesce: 1, fleet.Stop: 1} {
		fences, stops := r.host.run(agent.Instance{Work: string(policy), Token: 1}).counts()
		if fences != want || stops != 0 {
			t.Errorf("%s: fenced %d and stopped %d times, want %d and 0", policy, fences, stops, want)
		}
	}
	time.Sleep(2 * interval) // nothing to wait for: that nothing comes
	if got := len(r.srv.Beats()); got != last {
		t.Errorf("%d beats after it was replaced", got-last)
	}
	d, err := agent.ReadDeadline(r.dir + "/deadline")
	if err != nil || !d.Fenced {
		t.Errorf("deadline file: %+v, %v; want fenced", d, err)
	}
}

// The verdict that an item is another's ends the local copy by its policy, for
// good.
func TestVerdictFencesCopy(t *testing.T) {
	t.Parallel()
	for _, policy := range []fleet.LossPolicy{fleet.Keep, fleet.Quiesce, fleet.Stop} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.srv.Assign("n1", spec("w", policy))
			n := r.start()
			until(t, "the work", r.state("w"))
			run := r.host.run(agent.Instance{Work: "w", Token: 1})
			r.srv.Assign("n2", spec("w", policy)) // taken over
			until(t, "the verdict", func() bool { return n.saw(agent.EventFenced) })
			want := map[fleet.LossPolicy]int{fleet.Keep: 0, fleet.Quiesce: 1, fleet.Stop: 1}[policy]
			until(t, "its consequence", func() bool { f, _ := run.counts(); return f == want })
			first := len(r.srv.Beats())
			until(t, "some beats", func() bool { return len(r.srv.Beats()) > first+3 })
			if it := r.srv.Item("w"); it.Owner != "n2" || it.Token != 2 || it.Refused != 1 {
				t.Errorf("got %+v, want untouched but for one refusal", it)
			}
			if r.runs("w") != 1 {
				t.Errorf("started %d times, want once", r.runs("w"))
			}
			if policy != fleet.Stop {
				if isDone(run) {
					t.Error("the copy was ended")
				}
				if s := n.Status().Work; len(s) != 1 || s[0].Fenced != fleet.CodeNotOwner {
					t.Errorf("got %+v, want marked as fenced", s)
				}
			}
			// Given back: the old copy makes way for one under the new token.
			r.srv.Assign("n1", spec("w", policy))
			until(t, "the new copy", r.state("w"))
			if got := r.host.started(); got[len(got)-1].Token != 3 {
				t.Errorf("started under token %s, want 3", got[len(got)-1].Token)
			}
		})
	}
}

// facts returns the last that a node's agent said of it.
func (r *rig) facts() (last fleet.Facts) {
	for _, b := range r.srv.Beats() {
		if b.Facts != nil {
			last = *b.Facts
		}
	}
	return last
}

// An item that ended without its host, which lives after all, is ended there, whatever
// its policy. While its copy lives, the node says so, and does not ask again and again.
func TestEndedItemIsOver(t *testing.T) {
	t.Parallel()
	for _, policy := range []fleet.LossPolicy{fleet.Keep, fleet.Quiesce, fleet.Stop} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.srv.Assign("n1", spec("w", policy))
			r.start()
			until(t, "the work", r.state("w"))
			run := r.host.run(agent.Instance{Work: "w", Token: 1})
			run.mu.Lock()
			run.stubborn = true
			run.mu.Unlock()
			until(t, "that nothing is left over", func() bool { return len(r.facts().Leftovers) == 0 })
			r.srv.End("w")
			until(t, "its end to be asked for", func() bool { _, stops := run.counts(); return stops == 1 })
			want := []fleet.Leftover{{Work: "w", Token: 1, PID: run.PID()}}
			until(t, "the copy to be told of", func() bool { return slices.Equal(r.facts().Leftovers, want) })
			refused, first := r.srv.Item("w").Refused, len(r.srv.Beats())
			until(t, "some beats", func() bool { return len(r.srv.Beats()) > first+3 })
			if got := r.srv.Item("w").Refused; got != refused {
				t.Errorf("it was asked about %d times more", got-refused)
			}
			run.end(agent.Result{Ending: agent.Stopped, ExitCode: 143})
			until(t, "its traces to go", func() bool { left, _ := r.host.List(); return len(left) == 0 })
			until(t, "that nothing is left over", func() bool { return len(r.facts().Leftovers) == 0 })
			if r.runs("w") != 1 {
				t.Errorf("started %d times, want once", r.runs("w"))
			}
		})
	}
}

// Where the orders do not say under which term an item was assigned, it is started as
// they say; what lives is attached; and nothing is said that such a server refuses.
func TestOldServer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.srv.SpeakOld()
	r.srv.Assign("n1", spec("w", fleet.Keep))
	n := r.start()
	until(t, "the work", r.state("w"))
	if err := n.end(); err != nil {
		t.Fatal(err)
	}
	n = r.start()
	until(t, "the lease again", mayAct(n))
	r.srv.Assign("n1", spec("next", fleet.Keep))
	until(t, "the next item", r.state("next"))
	first := len(r.srv.Beats())
	until(t, "some beats", func() bool { return len(r.srv.Beats()) > first+3 })
	for _, w := range []string{"w", "next"} {
		if it := r.srv.Item(w); it.Token != 1 || it.State != fleet.Running || r.runs(w) != 1 {
			t.Errorf("got %+v, started %d times; want running once under token 1", it, r.runs(w))
		}
	}
	if n.saw(agent.EventNoServer) {
		t.Errorf("a beat was refused: %+v", n.events)
	}
}

// Work is reported until there is a verdict, with its end, its code and its marker.
func TestReportsUntilVerdict(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.srv.Assign("n1", spec("good", fleet.Keep))
	r.srv.Assign("n1", spec("bad", fleet.Keep))
	r.srv.Assign("n1", spec("stopped", fleet.Stop))
	r.start()
	for _, w := range []string{"good", "bad", "stopped"} {
		until(t, "the work", r.state(w))
	}
	run := func(w string) *fakeRun { return r.host.run(agent.Instance{Work: w, Token: 1}) }
	run("good").set("42")
	until(t, "the marker", func() bool { return r.srv.Item("good").Progress == "42" })
	var cut atomic.Int64
	r.srv.Fail(func(path string) http.HandlerFunc { // the server hears it, the answer is lost
		if path != "/v1/beat" || cut.Add(1) > 3 {
			return nil
		}
		return func(w http.ResponseWriter, req *http.Request) { http.Error(w, "", http.StatusBadGateway) }
	})
	run("good").end(agent.Result{Ending: agent.Exited})
	run("bad").end(agent.Result{Ending: agent.Exited, ExitCode: 3, Text: "no"})
	r.srv.Stop("stopped")
	until(t, "the ends", func() bool {
		return r.srv.Item("good").State == fleet.Succeeded && r.srv.Item("bad").State == fleet.Failed && r.srv.Item("stopped").State == fleet.Stopped
	})
	if bad := r.srv.Item("bad"); bad.ExitCode != 3 || bad.Text != "no" {
		t.Errorf("got %+v, want exit code 3 and the text", bad)
	}
	until(t, "nothing to be left", func() bool { l, _ := r.host.List(); return len(l) == 0 })
	for _, w := range []string{"good", "bad", "stopped"} {
		if r.runs(w) != 1 {
			t.Errorf("%s was started %d times, want once", w, r.runs(w))
		}
	}
}

// A command that cannot be executed fails; what may pass is tried again.
func TestStartFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.host.refuse = &agent.StartError{Work: "w", ExitCode: 127, Err: errors.New("not found")}
	r.srv.Assign("n1", spec("w", fleet.Keep))
	r.start()
	until(t, "the failure", func() bool { it := r.srv.Item("w"); return it.State == fleet.Failed && it.ExitCode == 127 })
	r.host.mu.Lock()
	r.host.refuse = errors.New("the disk is full")
	r.host.mu.Unlock()
	r.srv.Assign("n1", spec("later", fleet.Keep))
	first := len(r.srv.Beats())
	until(t, "some beats", func() bool { return len(r.srv.Beats()) > first+2 })
	r.host.mu.Lock()
	r.host.refuse = nil
	r.host.mu.Unlock()
	until(t, "the later work", r.state("later"))
}

// A lease that is lost halts stop work, quiesces quiesce work and leaves keep
// work; when the node may act again and the items are still its own, they go on.
func TestLossAndReturn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, p := range []fleet.LossPolicy{fleet.Keep, fleet.Quiesce, fleet.Stop} {
		r.srv.Assign("n1", spec(string(p), p))
	}
	n := r.start()
	for _, p := range []fleet.LossPolicy{fleet.Keep, fleet.Quiesce, fleet.Stop} {
		until(t, "the work", r.state(string(p)))
	}
	run := func(p fleet.LossPolicy) *fakeRun { return r.host.run(agent.Instance{Work: string(p), Token: 1}) }
	stopped := run(fleet.Stop)
	token, _ := n.MayAct()
	if err := r.srv.Store().Revoke(t.Context(), "node/n1", token, store.Revocation{Why: "test", By: "test"}); err != nil {
		t.Fatal(err)
	}
	until(t, "the loss", func() bool { return n.saw(agent.EventLost) && isDone(stopped) && run(fleet.Quiesce).Quiesced() })
	if _, ok := n.MayAct(); ok {
		t.Error("it may act under a revoked lease")
	}
	if f, s := run(fleet.Keep).counts(); f+s > 0 {
		t.Error("keep work was touched")
	}
	until(t, "a new term", mayAct(n))
	if again, _ := n.MayAct(); again <= token {
		t.Errorf("got token %s after %s", again, token)
	}
	until(t, "the stopped item again", func() bool { return r.runs("stop") == 2 })
	until(t, "the quiesced item again", func() bool { return !run(fleet.Quiesce).Quiesced() })
	if got := r.host.started(); got[len(got)-1].Token != 2 || got[len(got)-1].Env["TENURE_TOKEN"] != "2" {
		t.Errorf("started again with %+v, want under a token of its own", got[len(got)-1])
	}
	until(t, "the report that it runs again", func() bool { it := r.srv.Item("stop"); return it.State == fleet.Running && it.Token == 2 })
	if it := r.srv.Item("quiesce"); it.Token != 1 {
		t.Errorf("quiesce has token %s, want 1: it went on", it.Token)
	}
	if r.runs("keep") != 1 || r.runs("quiesce") != 1 {
		t.Errorf("keep was started %d times and quiesce %d, want once each", r.runs("keep"), r.runs("quiesce"))
	}
}

// What was halted is reported so also by the next agent and after lost replies, gets
// one new token, and is not started under the old one.
func TestHaltedRunsUnderNewToken(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.srv.Assign("n1", spec("w", fleet.Stop))
	n := r.start()
	until(t, "the work", r.state("w"))
	var lost atomic.Int64
	r.srv.Fail(func(string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", http.StatusBadGateway) }
	})
	until(t, "the halt", func() bool { return isDone(r.host.run(agent.Instance{Work: "w", Token: 1})) })
	until(t, "what the agent makes of it", func() bool { return n.saw(agent.EventEnded) })
	if err := n.end(); err != nil {
		t.Fatal(err)
	}
	r.srv.Fail(func(path string) http.HandlerFunc { // so that the verdict is there before the orders
		if !strings.HasSuffix(path, "/orders") || lost.Load() > 2 {
			return nil
		}
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", http.StatusBadGateway) }
	})
	r.srv.Reply(func(reply *api.BeatReply) { // the first verdicts are lost
		if len(reply.Work) > 0 && lost.Add(1) <= 2 {
			reply.Work, reply.Orders = nil, nil
		}
	})
	again := r.start()
	until(t, "the work again", func() bool { return r.state("w")() && r.srv.Item("w").Token == 2 })
	until(t, "the new copy", func() bool { return r.runs("w") == 2 })
	it := r.srv.Item("w")
	if got := r.host.started()[1].Token; got != 2 || it.Token != 2 {
		t.Errorf("started under token %s and assigned with %s, want 2", got, it.Token)
	}
	if again.saw(agent.EventFenced) {
		t.Error("the repeated report was taken for a loss of the item")
	}
	until(t, "no trace of the old one", func() bool { l, _ := r.host.List(); return len(l) == 1 && l[0].Token == 2 })
}

// Another agent of the node, which has no trace of what the former one started, does
// not start it under the same token, also if nothing of it was ever reported: the
// former copy may live, and write. It gets one new token.
func TestNoTraceRunsUnderNewToken(t *testing.T) {
	t.Parallel()
	for _, reported := range []bool{true, false} {
		t.Run(fmt.Sprintf("reported=%t", reported), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.srv.Assign("n1", spec("w", fleet.Keep))
			first := r.start(func(c *agent.Config) {
				if !reported {
					c.Server = mute{c.Server}
				}
			})
			until(t, "the work", func() bool { return r.runs("w") == 1 && (!reported || r.state("w")()) })
			if err := first.end(); err != nil {
				t.Fatal(err)
			}
			old := r.host.run(agent.Instance{Work: "w", Token: 1})
			place := newMachine()
			r.start(func(c *agent.Config) { c.Driver, c.StateDir = place, t.TempDir() })
			until(t, "the work again", func() bool { it := r.srv.Item("w"); return it.State == fleet.Running && len(place.started()) == 1 })
			if got := place.started()[0].Token; got != 2 || r.srv.Item("w").Token != 2 {
				t.Errorf("started under token %s and assigned with %s, want 2: the former copy, with 1, lives: %t", got, r.srv.Item("w").Token, !isDone(old))
			}
		})
	}
}

// mute tells the server nothing of the work.
type mute struct{ agent.Server }

func (m mute) Beat(ctx context.Context, b *api.Beat) (*api.BeatReply, error) {
	quiet := *b
	quiet.Work = nil
	return m.Server.Beat(ctx, &quiet)
}

// Orders are confirmed under a term by a list alone that was read under it: that a
// replica knows of no others may be from before.
func TestTermBeginsWithList(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.srv.Assign("n1", spec("w", fleet.Keep))
	var c *cached
	n := r.start(func(cfg *agent.Config) {
		c = &cached{Server: cfg.Server}
		cfg.Server = c
	})
	until(t, "the work", r.state("w"))
	c.knows.Store(n.Status().Revision)
	r.srv.SetIntent("n1", fleet.Draining)
	seen := len(r.srv.Beats())
	until(t, "beats that are answered from the cache", func() bool { return len(r.srv.Beats()) > seen+2 })
	if got := n.Status(); got.Intent != fleet.Active || got.Stale != "" {
		t.Fatalf("got intent %s, stale %q; want the one of before, confirmed", got.Intent, got.Stale)
	}
	token, _ := n.MayAct()
	if err := r.srv.Store().Revoke(t.Context(), "node/n1", token, store.Revocation{Why: "test", By: "test"}); err != nil {
		t.Fatal(err)
	}
	until(t, "a new term", func() bool { again, ok := n.MayAct(); return ok && again > token })
	until(t, "the drain", func() bool { return n.Status().Intent == fleet.Draining })
}

// cached answers beats as a replica does that has not read of newer orders yet.
type cached struct {
	agent.Server
	knows atomic.Uint64 // 0: what is in force
}

func (c *cached) Beat(ctx context.Context, b *api.Beat) (*api.BeatReply, error) {
	reply, err := c.Server.Beat(ctx, b)
	if err == nil && b.Orders != 0 && b.Orders == c.knows.Load() {
		reply.Orders = nil
	}
	return reply, err
}

// Orders leaves it to the beats to bring orders.
func (c *cached) Orders(ctx context.Context, _ string, _ uint64, _ time.Duration) (*api.Orders, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// A replica that hangs costs a part of the term and no term.
func TestFailoverInsideTTL(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	front := make(chan http.Handler, 1)
	front <- r.srv
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h := <-front
		front <- h
		h.ServeHTTP(w, req)
	}))
	t.Cleanup(func() { first.CloseClientConnections(); first.Close() })
	n := r.start(func(c *agent.Config) { c.Server = r.client(first.URL, r.http.URL) })
	until(t, "the lease", mayAct(n))
	token, _ := n.MayAct()
	<-front
	front <- http.HandlerFunc(hang)
	seen := len(r.srv.Beats())
	until(t, "beats at the other replica", func() bool { return len(r.srv.Beats()) > seen+8 })
	if again, ok := n.MayAct(); !ok || again != token || n.saw(agent.EventLost) {
		t.Errorf("got token %s, may act %t, lost %t; want %s held all along", again, ok, n.saw(agent.EventLost), token)
	}
}

// A graceful end hands the lease to this host, unless work runs that may run only
// under it: then the next agent replaces the term. Either way it has a larger
// token at once, and the work has the same process.
func TestGracefulRestart(t *testing.T) {
	t.Parallel()
	for _, policy := range []fleet.LossPolicy{fleet.Keep, fleet.Stop} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.srv.Assign("n1", spec("w", policy))
			n := r.start()
			until(t, "the work", r.state("w"))
			token, _ := n.MayAct()
			run := r.host.run(agent.Instance{Work: "w", Token: 1})
			if err := n.end(); err != nil {
				t.Fatal(err)
			}
			rec, err := r.srv.Store().Get(t.Context(), "node/n1")
			if err != nil {
				t.Fatal(err)
			}
			want := store.Released
			if policy == fleet.Stop {
				want = store.Held
			}
			if rec.Status != want {
				t.Errorf("the lease is %s, want %s", rec.Status, want)
			}
			reports := r.srv.Item("w").Reports
			again := r.start()
			until(t, "the lease", mayAct(again))
			rec, _ = r.srv.Store().Get(t.Context(), "node/n1")
			if policy == fleet.Stop && rec.Token != token+1 {
				t.Errorf("got token %s, want %s: replaced, not waited for", rec.Token, token+1)
			}
			until(t, "a report of the attached work", func() bool { return r.srv.Item("w").Reports > reports })
			if r.runs("w") != 1 || isDone(run) {
				t.Errorf("started %d times, ended %t; want the same process", r.runs("w"), isDone(run))
			}
		})
	}
}

// Two agents cannot have one state directory.
func TestStateDirIsExclusive(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.start()
	until(t, "the lease", mayAct(n))
	_, err := agent.New(agent.Config{Node: "n1", Server: r.client(r.http.URL), Store: r.srv.Store(), StateDir: r.dir})
	if !errors.Is(err, agent.ErrStateInUse) {
		t.Errorf("got %v, want ErrStateInUse", err)
	}
}

func TestConfigNamesBothValues(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, change := range map[string]func(*agent.Config){
		"interval": func(c *agent.Config) { c.Interval = c.TTL / 2 },
		"margin":   func(c *agent.Config) { c.Margin = c.TTL },
		"node":     func(c *agent.Config) { c.Node = "a/b" },
		"server":   func(c *agent.Config) { c.Server = nil },
	} {
		cfg := agent.Config{Node: "n1", Server: r.client(r.http.URL), Store: r.srv.Store(), StateDir: t.TempDir(), TTL: ttl}
		change(&cfg)
		if _, err := agent.New(cfg); !errors.Is(err, agent.ErrConfig) {
			t.Errorf("%s: got %v, want ErrConfig", name, err)
		}
	}
}
