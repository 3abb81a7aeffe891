//go:build linux

package conformance_test

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
)

// ownership watches for how long a work item has no live owner.
type ownership struct {
	mu      sync.Mutex
	last    time.Duration // when it had one last
	longest time.Duration
	asked   int
	stop    func()
}

// watchOwner asks for the owner of an item until the test ends or stop is called.
func (b *fleetBed) watchOwner(item, node string) *ownership {
	o := &ownership{last: clock.Boot()}
	end, ended := make(chan struct{}), make(chan struct{})
	o.stop = sync.OnceFunc(func() { close(end); <-ended })
	go func() {
		defer close(ended)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			asked := clock.Boot()
			owner, err := b.client.Owner(b.t.Context(), item)
			if err != nil {
				continue // a server that is slow says nothing about an owner
			}
			o.mu.Lock()
			o.asked++
			switch {
			case owner.Answer == api.OwnerFound && owner.Node == node:
				o.last = clock.Boot()
			default:
				o.longest = max(o.longest, asked-o.last)
			}
			o.mu.Unlock()
		}
	}()
	return o
}

// An agent is ended and started again under running work, and upgraded, and killed:
// the same processes go on, nothing is taken over, and the lookup always finds the
// owner. The lease of a host with work that must end with it is handed on without a
// gap; a host with other work gives it back to itself, and is without one for as
// long as the next agent takes to start, which is to be less than a TTL.
func TestFleetAgentRestart(t *testing.T) {
	t.Parallel()
	for _, backend := range fleetBackends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			for _, kind := range []string{"movable and pinned", "pinned alone"} {
				t.Run(kind, func(t *testing.T) {
					t.Parallel()
					b := newFleetBed(t, backend, 1, 2)
					items := []string{"pinned"}
					h := b.host(b.submit(fleet.Spec{ID: "pinned"}, false).Owner)
					if kind != "pinned alone" {
						items = append(items, "movable")
						b.submit(fleet.Spec{ID: "movable", Movable: true}, false)
						h = b.together("pinned", "movable")
					}
					b.restarts(h, items, kind == "pinned alone")
				})
			}
		})
	}
}

// together returns the host of a pinned item after it has brought a movable one
// there.
func (b *fleetBed) together(pinned, movable string) *fleetHost {
	b.t.Helper()
	node := b.work(pinned).Owner
	if b.work(movable).Owner != node {
		if _, err := b.client.MoveWork(b.t.Context(), movable, api.WorkOrder{Actor: "test", Reason: "beside the other"}); err != nil {
			b.t.Fatal(err)
		}
		b.eventually(movable+" is on "+node, func() bool {
			w := b.work(movable)
			return w.Owner == node && w.State == fleet.Running && b.log(movable).made(w.Token) > 0
		})
	}
	return b.host(node)
}

// restarts ends the agent in three ways, twice each, and checks what its work
// noticed of it.
func (b *fleetBed) restarts(h *fleetHost, items []string, handedOff bool) {
	t := b.t
	before := map[string]*api.Work{}
	pids := map[string]int{}
	var watched []*ownership
	for _, id := range items {
		before[id] = b.work(id)
		pids[id] = b.log(id).pids(before[id].Token)[0]
		o := b.watchOwner(id, h.node)
		defer o.stop()
		watched = append(watched, o)
	}
	upgraded := filepath.Join(b.dir, "upgraded")
	copyProgram(t, h.program, upgraded)
	for round := range 2 {
		for _, how := range []string{"restart", "upgrade", "kill"} {
			lease := b.node(h.node).Lease
			switch how {
			case "restart":
				h.signal(syscall.SIGTERM)
			case "upgrade":
				h.signal(syscall.SIGTERM)
				h.program, upgraded = upgraded, h.program
			case "kill":
				h.signal(syscall.SIGKILL)
			}
			<-h.ended
			at := clock.Boot()
			b.start(h)
			b.eventually(h.node+" holds its lease under a later token", func() bool {
				n := b.node(h.node)
				return n.Lease.State == fleet.LeaseHeld && n.Lease.Token > lease.Token
			})
			took := clock.Boot() - at
			b.eventually("the node is eligible and its work is reported", func() bool {
				e, err := b.client.Eligible(t.Context(), h.node)
				return err == nil && e.Eligible
			})
			if got := b.node(h.node).Lease.Token; got != lease.Token+1 {
				t.Errorf("%s %d: the lease has token %s, want %s", how, round, got, lease.Token+1)
			}
			t.Logf("%s: token %s to %s after %s", how, lease.Token, lease.Token+1, took.Round(time.Millisecond))
		}
	}
	// Past every deadline that a former agent has left.
	past := clock.Boot() + fleetTTL
	b.eventually("a TTL later", func() bool { return clock.Boot() > past })
	for i, id := range items {
		w, l := b.work(id), b.log(id)
		watched[i].stop()
		gap := watched[i].longest
		t.Logf("%s: without a live owner for %s at most, in %d answers; its process paused for %s at most", id, gap.Round(time.Millisecond), watched[i].asked, l.longestPause().Round(time.Millisecond))
		if w.Owner != h.node || w.Token != before[id].Token || w.Takeovers != 0 || w.State != fleet.Running {
			t.Errorf("%s is %s on %s with token %s after %d takeovers; want it to be as before", id, w.State, w.Owner, w.Token, w.Takeovers)
		}
		if got := l.pids(w.Token); len(got) != 1 || got[0] != pids[id] || !lives(pids[id]) {
			t.Errorf("%s ran in processes %v, want %d alone", id, got, pids[id])
		}
		if !l.actsAfter(w.Token, past-fleetTTL/2) {
			t.Errorf("%s does not act any more", id)
		}
		if gap > 0 && !handedOff || gap >= fleetTTL {
			t.Errorf("%s had no live owner for %s", id, gap)
		}
		overlaps, stale := b.guarded(id, false)
		for _, what := range slices.Concat(overlaps, stale) {
			t.Error(what)
		}
	}
}

func copyProgram(t *testing.T, from, to string) {
	t.Helper()
	src, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(dst, src); err != nil {
		t.Fatal(err)
	}
	if err := dst.Close(); err != nil {
		t.Fatal(err)
	}
}
