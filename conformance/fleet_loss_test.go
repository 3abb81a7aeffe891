//go:build linux

package conformance_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store/storetest"
)

// fleetFault is a way to lose a host.
type fleetFault struct {
	name string
	// strike does it, and heal undoes it. strike may wait for a good moment.
	strike, heal func(*lossRound)
	// overlap: the old copy stands still while the new one acts, and may act again
	// until its minder ends it. Only the fence covers that.
	overlap bool
	// deaf: what the host sends arrives, so its lease is renewed until it gives up.
	deaf bool
	// reconciler: the replica that reconciles is killed too, at the same moment or
	// when the lease lapses.
	reconciler bool
}

var fleetFaults = []fleetFault{
	{name: "kill", strike: (*lossRound).kill, heal: (*lossRound).restart},
	{name: "stop-agent", strike: (*lossRound).stopAgent, heal: (*lossRound).goOn},
	{name: "stop-host", strike: (*lossRound).stopHost, heal: (*lossRound).thaw, overlap: true},
	{name: "cut", strike: cut((*storetest.Proxy).HoldExisting, (*storetest.Proxy).HoldNew), heal: cut((*storetest.Proxy).Pass)},
	{name: "requests-cut", strike: cut((*storetest.Proxy).HoldRequests), heal: cut((*storetest.Proxy).Pass)},
	{name: "replies-cut", strike: cut((*storetest.Proxy).HoldReplies), heal: cut((*storetest.Proxy).Pass), deaf: true},
	{name: "kill-with-reconciler", strike: (*lossRound).kill, heal: (*lossRound).restart, reconciler: true},
}

func cut(how ...func(*storetest.Proxy)) func(*lossRound) {
	return func(r *lossRound) {
		for _, do := range how {
			r.victim.each(do)
		}
	}
}

// lossFigures is what the rounds of one fault came to.
type lossFigures struct {
	rounds, disturbed, overlaps, stale, refused, late int
	bound                                             time.Duration
	took, pause                                       []time.Duration
	spare                                             []time.Duration // from the old copy's last act to the lapse of the lease
}

// lossReport collects the figures of all beds.
type lossReport struct {
	mu sync.Mutex
	by map[string]*lossFigures
}

func (r *lossReport) add(fault string, change func(*lossFigures)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by[fault] == nil {
		r.by[fault] = &lossFigures{}
	}
	change(r.by[fault])
}

func (r *lossReport) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out strings.Builder
	for _, f := range fleetFaults {
		g := r.by[f.name]
		if g == nil {
			continue
		}
		slices.Sort(g.took)
		slices.Sort(g.pause)
		slices.Sort(g.spare)
		at := func(d []time.Duration, q int) time.Duration {
			if len(d) == 0 {
				return 0
			}
			return d[min(len(d)*q/100, len(d)-1)].Round(time.Millisecond)
		}
		fmt.Fprintf(&out, "%-20s rounds %3d (%d disturbed), overlaps %d, stale writes made %d, refused %d; takeover p50 %s, max %s, bound %s, later %d; until the new copy acts p50 %s, max %s; the old copy's last act %s before the lapse at least\n",
			f.name, g.rounds, g.disturbed, g.overlaps, g.stale, g.refused, at(g.took, 50), at(g.took, 100), g.bound, g.late, at(g.pause, 50), at(g.pause, 100), at(g.spare, 0))
	}
	return out.String()
}

// lossRound is one loss of one host.
type lossRound struct {
	*fleetBed
	victim, other   *fleetHost
	movable, pinned string
	pid             int   // of the pinned item
	stopped, rest   []int // processes of work, and the others of the host, that stand still
	struck          time.Time
	struckAt        time.Duration
	late            func() time.Duration // what lateness returned
}

// allowed is how much later than the printed bound a takeover may begin here: an interval
// for the statements of one step of the reconciler, and, as often as that waits for its
// turn, for its database and for the renewal of its own lease, what timers of this
// machine were late.
func (r *lossRound) allowed() time.Duration { return fleetInterval + 3*r.late() }

// lateness begins to watch by how much the timers of a busy machine are late, and
// returns how to ask for the most so far. It ends with ctx.
func lateness(ctx context.Context) func() time.Duration {
	const turn = 10 * time.Millisecond
	var most atomic.Int64
	go func() {
		for last := time.Now(); ctx.Err() == nil; {
			<-time.After(turn)
			now := time.Now()
			most.Store(max(most.Load(), int64(now.Sub(last)-turn)))
			last = now
		}
	}()
	return func() time.Duration { return time.Duration(most.Load()) }
}

// A host is lost with a movable and a pinned item on it, in seven ways: the movable
// one runs again elsewhere, once; the old copy's writes change nothing from the
// new one's first on; and at no time do two copies act. The pinned one says that
// its host is gone, and goes on there, in the same process.
//
// TENURE_FLEET_ROUNDS is the number of rounds for each fault, 2 by default, and
// TENURE_FLEET_BEDS that of the fleets which share them, half on each database.
func TestFleetLoss(t *testing.T) {
	rounds, beds := fleetNumber("TENURE_FLEET_ROUNDS", 2), fleetNumber("TENURE_FLEET_BEDS", 2)
	report := &lossReport{by: map[string]*lossFigures{}}
	t.Cleanup(func() { t.Logf("\n%s", report) })
	for i := range beds {
		backend := fleetBackends[i%len(fleetBackends)]
		t.Run(fmt.Sprintf("%s-%d", backend, i/len(fleetBackends)), func(t *testing.T) {
			t.Parallel()
			var bed *fleetBed
			for n := i; n < rounds; n += beds {
				for _, f := range fleetFaults {
					if bed == nil { // the first, or one after a round that failed
						bed = newFleetBed(t, backend, 2, 2)
					}
					ok := t.Run(fmt.Sprintf("%d-%s", n, f.name), func(t *testing.T) {
						defer func(was *testing.T) { bed.t = was }(bed.t)
						bed.t = t
						bed.lose(f, n, report)
					})
					if !ok {
						bed.end()
						bed = nil
					}
				}
			}
		})
	}
}

// Without a fence the same loss of a host leaves two copies that act, and stale
// writes that count: the checks of these tests see both.
func TestFleetChecksSeeTwoCopies(t *testing.T) {
	t.Parallel()
	b := newFleetBed(t, "sqlite", 1, 2)
	r := &lossRound{fleetBed: b, movable: "unfenced"}
	r.victim = b.host(b.submit(fleet.Spec{ID: r.movable, Movable: true}, true).Owner)
	r.stopHost()
	b.eventually("the new copy writes", func() bool { return b.log(r.movable).made(2) > 0 })
	for _, pid := range r.stopped { // not the minder, which would end it
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	b.eventually("two copies act, and the old one's writes count", func() bool {
		overlaps, stale := b.guarded(r.movable, false)
		return len(overlaps) > 0 && len(stale) > 1 // as the copies and the database have it
	})
	for _, pid := range r.rest {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	old := b.log(r.movable).pids(1)
	b.eventually("the old copy is ended", func() bool { return !slices.ContainsFunc(old, lives) })
}

// lose plays one round.
func (b *fleetBed) lose(f fleetFault, n int, report *lossReport) {
	t, ctx := b.t, b.t.Context()
	watched, stop := context.WithCancel(ctx)
	defer stop()
	r := &lossRound{fleetBed: b, late: lateness(watched), movable: fmt.Sprintf("movable-%d-%s", n, f.name), pinned: fmt.Sprintf("pinned-%d-%s", n, f.name)}
	owner := b.submit(fleet.Spec{ID: r.movable, Movable: true, Request: fleet.Request{Resources: fleet.Resources{"slots": 1}}}, false).Owner
	r.victim = b.host(owner)
	b.submit(fleet.Spec{ID: r.pinned, Request: fleet.Request{Node: owner}}, false)
	r.pid = b.log(r.pinned).pids(1)[0]
	reconciler := b.reconciler()
	for _, h := range b.hosts {
		if h != r.victim {
			r.other = h
		}
	}
	held := b.node(r.other.node).Lease.Token
	// Where the machine is so busy that the other host loses its lease too, its copy
	// is ended and run again, or moves. Still no two act, and no late write counts.
	disturbed := func() bool { return b.node(r.other.node).Lease.Token != held }

	r.note()
	f.strike(r)
	if f.reconciler {
		if n/2%2 == 1 {
			b.eventually("the lease of "+owner+" lapses", func() bool { return b.node(owner).Lease.State == fleet.LeaseLapsed })
		}
		reconciler.kill()
	}
	b.eventually(r.movable+" moves and acts elsewhere", func() bool {
		return b.log(r.movable).actsAfter(2, 0)
	})
	if w := b.work(r.movable); !disturbed() && (w.Owner == owner || w.Token != 2 || w.Takeovers != 1 || w.TakenFrom != owner) {
		t.Errorf("got %s on %s with token %s after %d takeovers from %q; want one, from %s, and token 2", r.movable, w.Owner, w.Token, w.Takeovers, w.TakenFrom, owner)
	}
	r.timed(f, report, disturbed)
	b.eventually("the new copy writes", func() bool { return b.log(r.movable).made(2) > 0 })
	if rows := b.lateWrite(r.movable, 1); rows != 0 {
		t.Errorf("a write with token 1 changed %d rows after the takeover", rows)
	}
	r.hostGone()
	r.quiet()

	healed := clock.Boot()
	f.heal(r)
	if f.reconciler {
		b.serve(reconciler)
	}
	r.back(healed)

	l := b.log(r.movable)
	overlaps, stale := b.guarded(r.movable, f.overlap)
	also, alsoStale := b.guarded(r.pinned, false)
	overlaps, stale = append(overlaps, also...), append(stale, alsoStale...)
	for _, what := range append(overlaps, stale...) {
		t.Error(what)
	}
	again := disturbed()
	if got := l.pids(2); len(got) != 1 && !again {
		t.Errorf("%d processes acted with token 2: %v; want one", len(got), got)
	}
	if w := b.work(r.movable); !again && (w.Takeovers != 1 || w.Token != 2 || w.Owner == owner) {
		t.Errorf("at the end %s is on %s with token %s after %d takeovers; want it to stay where it went", r.movable, w.Owner, w.Token, w.Takeovers)
	}
	if f.overlap && l.refused(1) == 0 {
		t.Error("the old copy did not try to write again, so nothing was shown")
	}
	report.add(f.name, func(g *lossFigures) {
		g.rounds++
		if again {
			g.disturbed++
		}
		g.overlaps += len(overlaps)
		g.stale += len(stale)
		g.refused += l.refused(1)
	})
	for _, id := range []string{r.movable, r.pinned} {
		if _, err := b.client.StopWork(ctx, id, api.WorkOrder{Actor: "test", Reason: "the round is over"}); err != nil {
			t.Fatal(err)
		}
	}
	b.eventually("the items have ended", func() bool {
		return b.work(r.movable).State == fleet.Stopped && b.work(r.pinned).State == fleet.Stopped
	})
}

// timed compares the time of the takeover with the bound that the server prints.
func (r *lossRound) timed(f fleetFault, report *lossReport, disturbed func() bool) {
	t := r.t
	taken := r.takeovers(r.movable)
	if len(taken) == 0 || len(taken) > 1 && !disturbed() {
		t.Fatalf("got takeovers %+v, want one", taken)
	}
	e := taken[0]
	if e.LeaseState != fleet.LeaseLapsed || e.FromToken != 1 || e.ToToken != 2 || e.Lapse.After(e.Recorded) {
		t.Errorf("evidence %+v: want a lapsed lease, and the move recorded after it", e)
	}
	name := "takeover_within_ms"
	if f.reconciler {
		name = "takeover_within_if_reconciler_dies_ms"
	}
	ms, err := strconv.Atoi(r.setting(name))
	if err != nil {
		t.Fatal(err)
	}
	bound, took := time.Duration(ms)*time.Millisecond, e.Recorded.Sub(r.struck)
	if f.deaf { // it is lost from the last of its requests on
		bound += fleetTTL - fleetMargin
	}
	if disturbed() {
		return // there may have been no other host to move to
	}
	begun := r.log(r.movable).Acts
	at := begun[slices.IndexFunc(begun, func(a act) bool { return a.Token == 2 })].At
	report.add(f.name, func(g *lossFigures) {
		g.bound = bound
		g.took, g.pause = append(g.took, took), append(g.pause, at-r.struckAt)
		if took > bound {
			g.late++
		}
	})
	// The work ends before its lease can pass, however its host was lost.
	if now := clock.Now(); !f.overlap {
		acts := r.log(r.movable).Acts[:slices.IndexFunc(begun, func(a act) bool { return a.Token == 2 })]
		spare := e.Lapse.Sub(time.Unix(0, (acts[len(acts)-1].At + now.Wall - now.Boot).Nanoseconds()))
		report.add(f.name, func(g *lossFigures) { g.spare = append(g.spare, spare) })
		if spare < 0 {
			t.Errorf("the old copy acted for %s after its lease had lapsed", -spare)
		}
	}
	t.Logf("takeover after %s of %s, timers were late by %s", took.Round(time.Millisecond), bound, r.late().Round(time.Millisecond))
	if took > bound {
		t.Logf("later than the bound:\n%s", r.history())
	}
	if allowed := r.allowed(); took > bound+allowed {
		t.Errorf("the takeover began %s after the fault; the bound is %s, and %s is allowed to this machine", took, bound, allowed)
	}
}

// history is what the ledger says of the round so far.
func (r *lossRound) history() string {
	events, err := r.client.Events(r.t.Context(), api.EventQuery{Limit: 100, Last: true})
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	for _, e := range events.Events {
		if e.At.After(r.struck.Add(-fleetTTL)) {
			fmt.Fprintf(&out, "%+.3fs %s %s %s %s %s %s: %s\n", e.At.Sub(r.struck).Seconds(), e.Kind, e.Node, e.Work, e.Token, e.Code, e.Actor, e.Text)
		}
	}
	return out.String()
}

// hostGone checks what is said of the pinned item while its host is away.
func (r *lossRound) hostGone() {
	o, err := r.client.Owner(r.t.Context(), r.pinned)
	if err != nil {
		r.t.Fatal(err)
	}
	if w := r.work(r.pinned); o.Answer != api.OwnerLapsed || o.Node != r.victim.node || !strings.Contains(o.Text, "its host is gone") || w.Token != 1 || w.Takeovers != 0 {
		r.t.Errorf("got %+v about the pinned item, and token %s after %d takeovers; want that its host is gone, and that it waits", o, w.Token, w.Takeovers)
	}
}

// quiet checks for a while that the lost host neither renews its lease nor gets a
// new one, and that its movable copy does not act unless it stands still.
func (r *lossRound) quiet() {
	until := clock.Boot() + fleetTTL/2
	r.eventually("nothing is heard of the lost host for a while", func() bool {
		if n := r.node(r.victim.node); n.Lease.State != fleet.LeaseLapsed {
			r.t.Fatalf("the lease of the lost %s is %s with token %s", n.ID, n.Lease.State, n.Lease.Token)
		}
		return clock.Boot() > until
	})
}

// back checks what becomes of the host and its work when it is there again.
func (r *lossRound) back(healed time.Duration) {
	owner := r.victim.node
	r.eventually(r.pinned+" is found on "+owner+" again", func() bool {
		o, err := r.client.Owner(r.t.Context(), r.pinned)
		return err == nil && o.Answer == api.OwnerFound && o.Node == owner && o.Token == 1
	})
	r.eventually(r.pinned+" acts", func() bool { return r.log(r.pinned).actsAfter(1, healed) })
	if got := r.log(r.pinned).pids(1); len(got) != 1 || got[0] != r.pid {
		r.t.Errorf("the pinned item ran in processes %v, want %d alone", got, r.pid)
	}
	r.eligible(owner)
	old := r.log(r.movable).pids(1)
	r.eventually("the old copy is gone", func() bool { return !slices.ContainsFunc(old, lives) })
}

// note takes the present for the moment of the fault.
func (r *lossRound) note() { r.struck, r.struckAt = time.Now(), clock.Boot() }

func (r *lossRound) kill()      { r.victim.kill() }
func (r *lossRound) restart()   { r.start(r.victim) }
func (r *lossRound) stopAgent() { r.victim.signal(syscall.SIGSTOP) }
func (r *lossRound) goOn()      { r.victim.signal(syscall.SIGCONT) }

// stopHost stops every process of the host, the work first: one that is stopped in
// the middle of a transaction would keep the database from all, and is let go and
// stopped again.
func (r *lossRound) stopHost() {
	for _, m := range r.victim.minded() {
		if lives(m.Command.PID) {
			r.stopped, r.rest = append(r.stopped, m.Command.PID), append(r.rest, m.Minder.PID)
		}
	}
	for _, pid := range r.stopped {
		r.eventually("a stop between two writes", func() bool {
			_ = syscall.Kill(pid, syscall.SIGSTOP)
			r.eventually("a process stands still", func() bool { return stopped(pid) })
			ctx, cancel := context.WithTimeout(r.t.Context(), fleetInterval)
			defer cancel()
			if _, err := r.db.ExecContext(ctx, "UPDATE guard SET value = value WHERE item IN ($1, $2)", r.movable, r.pinned); err == nil {
				return true
			}
			_ = syscall.Kill(pid, syscall.SIGCONT)
			return false
		})
	}
	r.rest = append(r.rest, r.victim.pid())
	r.note()
	for _, pid := range r.rest {
		_ = syscall.Kill(pid, syscall.SIGSTOP)
	}
}

// thaw lets the host go on, the work first, so that it can try to write.
func (r *lossRound) thaw() {
	for _, pid := range r.stopped {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	r.eventually("the old copy tries to write", func() bool { return r.log(r.movable).refused(1) > 0 })
	for _, pid := range r.rest {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
}
