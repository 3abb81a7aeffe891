package server

import (
	"context"
	"errors"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
)

// quick is a configuration under which a loss shows within a few seconds.
func quick() Config { return Config{Interval: 250 * time.Millisecond, NodeTTL: 2 * time.Second} }

// beating beats for a node at its interval until the returned function is called.
func (n *node) beating() (stop func()) {
	ctx, cancel := context.WithCancel(n.b.t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		for tick := time.NewTicker(n.b.cfg.Interval); ctx.Err() == nil; {
			n.mu.Lock()
			n.step()
			beat := n.beat
			n.mu.Unlock()
			reply, err := n.b.Beat(ctx, &beat)
			if err == nil {
				n.mu.Lock()
				n.took(&reply)
				n.mu.Unlock()
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				tick.Stop()
			}
		}
	})
	return sync.OnceFunc(func() { cancel(); done.Wait() })
}

func (b *bed) submit(id string, movable bool, node string) fleet.Work {
	b.t.Helper()
	spec := fleet.Spec{ID: id, Command: []string{"true"}, Movable: movable, Request: fleet.Request{Resources: fleet.Resources{"memory_mb": 100}}}
	if !movable {
		spec.Request.Node = node
	}
	w, _, err := b.Submit(b.t.Context(), spec, "test", false)
	if err != nil {
		b.t.Fatalf("submit %s: %v", id, err)
	}
	if w.Owner != node {
		b.t.Fatalf("submit %s: it went to %q, want %q", id, w.Owner, node)
	}
	return w
}

func (b *bed) work(id string) fleet.Work {
	b.t.Helper()
	w, ok, err := b.reg.Work(b.t.Context(), id)
	if err != nil || !ok {
		b.t.Fatalf("work %s: %v, found %v", id, err, ok)
	}
	return w
}

func (b *bed) show(id string) fleet.Node {
	for _, n := range b.Nodes() {
		if n.ID == id {
			return n
		}
	}
	return fleet.Node{}
}

// TestTakeoverOnce: a node falls silent and its lease lapses; its movable work
// moves once, its pinned work waits, and the old copy's reports change nothing.
func TestTakeoverOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t, quick(), HTTPConfig{})
	n1 := b.join("n1")
	stop1 := n1.beating()
	defer stop1()
	b.submit("movable", true, "n1")
	b.submit("pinned", false, "n1")
	defer b.join("n2").beating()()
	change := registry.Change{Work: "movable", Node: "n1", Token: 1, Lease: n1.token, State: fleet.Running, Progress: "40 %"}
	if v, err := b.reg.Apply(t.Context(), []registry.Change{change}); err != nil || v[0].Code != "" {
		t.Fatalf("report: %v %v", v, err)
	}
	eventually(t, "observed for a suspect timeout", func() bool { _, short := b.Observing(); return !short })

	stop1()
	died := time.Now()
	eventually(t, "taken over", func() bool { return b.work("movable").Owner == "n2" })
	if took, bound := time.Since(died), time.Duration(b.cfg.Effective().TakeoverMS)*time.Millisecond; took < b.cfg.NodeTTL-b.cfg.Interval {
		t.Errorf("taken over after %s, before the lease can have lapsed", took)
	} else {
		t.Logf("taken over %s after the last beat; the bound is %s", took, bound)
	}
	w := b.work("movable")
	if w.Token != 2 || w.State != fleet.Placed || w.TakenFrom != "n1" || w.Takeovers != 1 || w.Progress != "40 %" {
		t.Errorf("got %+v, want it placed with token 2, from n1, with its progress", w)
	}
	change.Progress = "50 %"
	if v, err := b.reg.Apply(t.Context(), []registry.Change{change}); err != nil || v[0].Code != fleet.CodeNotOwner || v[0].Owner != "n2" || v[0].Current != 2 {
		t.Errorf("report of the old copy: %+v, %v; want not_owner, n2 has it with token 2", v, err)
	}
	why := must[api.WorkWhy](b, http.MethodGet, "/v1/why/work/movable", nil)
	shown := must[api.Takeovers](b, http.MethodGet, "/v1/takeovers?work=movable", nil)
	if why.Owner.Node != "n2" || len(shown.Takeovers) != 1 || !shown.Takeovers[0].Redirected.IsZero() {
		t.Errorf("after somebody asked why: owner %+v, takeovers %+v; want n2, and no lookup yet", why.Owner, shown)
	}
	if o, err := b.Owner(t.Context(), "movable"); err != nil || o.Answer != api.OwnerFound || o.Node != "n2" {
		t.Errorf("lookup: %+v, %v", o, err)
	}
	if o, err := b.Owner(t.Context(), "pinned"); err != nil || o.Answer != api.OwnerLapsed || o.Node != "n1" {
		t.Errorf("lookup of the pinned item: %+v, %v; want that its host is gone", o, err)
	}
	taken, err := b.reg.Takeovers(t.Context(), registry.TakeoverFilter{})
	if err != nil || len(taken) != 1 {
		t.Fatalf("takeovers: %+v, %v; want one", taken, err)
	}
	e := taken[0].Evidence
	if e.From != "n1" || e.FromToken != 1 || e.ToToken != 2 || e.LeaseToken != n1.token || e.LeaseState != fleet.LeaseLapsed ||
		!e.Silence.Before(e.Suspect) || !e.Suspect.Before(e.Lapse) || e.Lapse.After(e.Recorded) || e.Redirected.Before(e.Recorded) {
		t.Errorf("evidence: %+v, want the phases in order: silence, suspect, lapse, recorded, redirected", e)
	}

	// The node comes back with a new term; its pinned work is its own again.
	n1 = b.joinAs("n1", "second")
	defer n1.beating()()
	eventually(t, "the pinned item is found again", func() bool {
		o, err := b.Owner(t.Context(), "pinned")
		return err == nil && o.Answer == api.OwnerFound && o.Node == "n1" && o.Token == 1
	})
	if w := b.work("movable"); w.Owner != "n2" || w.Token != 2 {
		t.Errorf("after the return: %+v, want the replacement to stay", w)
	}
}

// TestSilenceMovesNothing: beats are lost while the lease is renewed. The node
// gets no new work and keeps what it has.
func TestSilenceMovesNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t, quick(), HTTPConfig{})
	n1 := b.join("n1")
	b.submit("movable", true, "n1")
	defer b.join("n2").beating()()
	until := time.Now().Add(3 * b.cfg.NodeTTL)
	var suspect bool
	for tick := time.NewTicker(b.cfg.Interval); time.Now().Before(until); <-tick.C {
		g := store.Grant{Name: fleet.LeaseName("n1"), Token: n1.token, TTL: b.cfg.NodeTTL, Attempt: store.NewAttempt(), Known: n1.beat.Renew.Known}
		got, err := b.st.Renew(t.Context(), []store.Grant{g})
		if err != nil || got[0].Err != nil {
			t.Fatalf("renew: %v %v", err, got)
		}
		n1.beat.Renew.Known = []store.Attempt{g.Attempt}
		suspect = b.show("n1").Liveness == fleet.Suspect
	}
	n := b.show("n1")
	if !suspect || n.Lease.State != fleet.LeaseHeld {
		t.Errorf("got %s and lease %s, want suspect and held", n.Liveness, n.Lease.State)
	}
	if w := b.work("movable"); w.Owner != "n1" || w.Token != 1 {
		t.Errorf("got %+v, want that nothing moved", w)
	}
	if b.submitsTo(t, "more") != "n2" {
		t.Error("a suspect node got new work")
	}
}

// submitsTo returns the node that new work goes to.
func (b *bed) submitsTo(t *testing.T, id string) string {
	t.Helper()
	w, _, err := b.Submit(t.Context(), fleet.Spec{ID: id, Command: []string{"true"}}, "test", false)
	if err != nil {
		t.Fatal(err)
	}
	return w.Owner
}

// TestBeatsDoNotSaveALease: the lease is revoked while beats go on. The node is
// heard and fenced, and its work moves when the term is over.
func TestBeatsDoNotSaveALease(t *testing.T) {
	t.Parallel()
	b := newBed(t, quick(), HTTPConfig{})
	n1 := b.join("n1")
	defer n1.beating()()
	b.submit("movable", true, "n1")
	defer b.join("n2").beating()()
	eventually(t, "observed for a suspect timeout", func() bool { _, short := b.Observing(); return !short })
	if err := b.st.Revoke(t.Context(), fleet.LeaseName("n1"), n1.token, store.Revocation{Why: "test", By: "test"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "fenced and not stale", func() bool {
		n := b.wireNode(new(b.show("n1")))
		return n.Fenced && !n.Stale
	})
	eventually(t, "taken over", func() bool { return b.work("movable").Owner == "n2" })
	if n := b.show("n1"); n.Liveness == fleet.Suspect {
		t.Errorf("n1 is %s although it beats", n.Liveness)
	}
}

// TestRestartSuspectsNobody: the control plane is away for longer than any bound
// while nobody can renew; when it is back, nobody is suspect until a full timeout
// of fresh observation, and nothing is taken over before that.
func TestRestartSuspectsNobody(t *testing.T) {
	t.Parallel()
	cfg := quick()
	b := newBed(t, cfg, HTTPConfig{})
	b.join("n1")
	b.submit("movable", true, "n1")
	b.join("n2")
	b.end()
	away := time.NewTimer(2 * cfg.NodeTTL)
	<-away.C

	b.replace()
	began := clock.Now().Boot
	b.run()
	// n2 gets a new term at once, n1 comes back within its timeout.
	defer b.joinAs("n2", "second").beating()()
	for clock.Now().Boot-began < b.cfg.suspect()-b.cfg.tick() {
		if n := b.show("n1"); n.Liveness == fleet.Suspect {
			t.Fatalf("n1 is suspect %s after the restart", clock.Now().Boot-began)
		}
		if w := b.work("movable"); w.Token != 1 {
			t.Fatalf("taken over %s after the restart", clock.Now().Boot-began)
		}
		time.Sleep(5 * time.Millisecond)
	}
	eventually(t, "who stays away is suspect, and its work moves", func() bool {
		return b.show("n1").Liveness == fleet.Suspect && b.work("movable").Owner == "n2"
	})
}

// TestFileRemoved: the database's file is removed under a replica, which must not
// accept what would be lost, nor say that it is well.
func TestFileRemoved(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, registry.SQLite)
	b := d.replica(quick())
	defer b.join("n1").beating()()
	b.submit("w", false, "n1")
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(d.at + suffix); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	if v, err := b.reg.Stop(t.Context(), "w", registry.Order{Actor: "test", Reason: "test"}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("stop: got %+v, %v; want that the store cannot be used", v, err)
	}
	if w, _, err := b.Submit(t.Context(), fleet.Spec{ID: "late", Command: []string{"true"}}, "test", true); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("submit: got %+v, %v; want that the store cannot be used", w, err)
	}
	eventually(t, "not ready", func() bool { return b.Ready() != nil })
}
