//go:build linux

package conformance_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
)

// fleetGap is for how long a control plane stands still: longer than any lease
// lives. The long form has TENURE_FLEET_GAP=60, in seconds.
var fleetGap = max(2*fleetTTL, time.Duration(fleetNumber("TENURE_FLEET_GAP", 1))*time.Second)

// TestFleetPlanePaused (P9): the only server is stopped for longer than any lease
// lives, and goes on. Nobody is suspect by it, nothing is taken over, and a host that
// died inside the gap is found within twice its timeout.
func TestFleetPlanePaused(t *testing.T) {
	t.Parallel()
	for _, backend := range fleetBackends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			b := newFleetBed(t, backend, 1, 3)
			w := b.submit(fleet.Spec{ID: "w", Movable: true, Request: fleet.Request{Node: ""}}, false)
			var dead *fleetHost
			for _, h := range b.hosts {
				if h.node != w.Owner {
					dead = h
				}
			}
			b.servers[0].signal(syscall.SIGSTOP)
			b.eventually("the server stands still", func() bool { return stopped(b.servers[0].pid()) })
			half := time.NewTimer(fleetGap / 2)
			<-half.C
			dead.kill()
			half.Reset(fleetGap / 2)
			<-half.C
			b.servers[0].signal(syscall.SIGCONT)
			over := time.Now()
			bound := 2 * 3 * fleetInterval // suspect after three
			b.eventually("the dead host is found", func() bool { return b.node(dead.node).Stale })
			if took := time.Since(over); took > bound+2*fleetInterval { // the check interval, and to ask
				t.Errorf("the host that died in the gap was found after %s, want within %s", took, bound)
			}
			b.eligible(w.Owner)
			quiet := time.NewTimer(fleetTTL)
			<-quiet.C
			events, err := b.client.Events(t.Context(), api.EventQuery{Kind: fleet.EventSuspect})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range events.Events {
				if e.Node != dead.node {
					t.Errorf("suspect by the gap: %+v", e)
				}
			}
			if taken := b.takeovers("w"); len(taken) != 0 {
				t.Errorf("taken over by the gap: %+v", taken)
			}
		})
	}
}

// TestFleetPlaneDeposed (C71): the replica that reconciles is stopped past its term,
// the other takes its place and moves a lost host's work; then the first one goes on.
// It writes nothing any more, and its term is not the current one.
func TestFleetPlaneDeposed(t *testing.T) {
	t.Parallel()
	for _, backend := range fleetBackends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			b := newFleetBed(t, backend, 2, 3)
			w := b.submit(fleet.Spec{ID: "w", Movable: true}, false)
			old := b.reconciler()
			b.host(w.Owner).signal(syscall.SIGSTOP) // its lease lapses while nobody reconciles
			old.signal(syscall.SIGSTOP)
			b.eventually("it stands still", func() bool { return stopped(old.pid()) })
			b.eventually("the work has moved", func() bool { return b.work("w").Token > w.Token })
			if next := b.reconciler(); next == old {
				t.Fatal("the paused replica reconciles")
			}
			last, err := b.client.Events(t.Context(), api.EventQuery{Last: true, Limit: 1})
			if err != nil {
				t.Fatal(err)
			}
			old.signal(syscall.SIGCONT)
			// Something for both of them to do.
			if _, err := b.client.Drain(t.Context(), b.work("w").Owner, api.DrainRequest{Actor: "ann", Reason: "test", Move: true}); err != nil {
				t.Fatal(err)
			}
			b.eventually("the drain goes on under the second", func() bool { return b.node(b.hostsBut(w.Owner, b.work("w").Owner)).Work == 1 })
			quiet := time.NewTimer(fleetTTL)
			<-quiet.C
			events, err := b.client.Events(t.Context(), api.EventQuery{After: last.Next})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range events.Events {
				if e.Actor == old.name {
					t.Errorf("written by the deposed replica: %+v", e)
				}
			}
			if got := b.reconciler(); got == old {
				t.Errorf("%s reconciles again although the other never gave up", got.name)
			}
			if taken := b.takeovers("w"); len(taken) != 1 {
				t.Errorf("got %d takeovers, want one", len(taken))
			}
		})
	}
}

// hostsBut returns where an item went that was moved from the second of two nodes,
// if the first is gone.
func (b *fleetBed) hostsBut(gone, now string) string {
	for _, h := range b.hosts {
		if h.node != gone && (h.node == now || b.node(h.node).Intent == fleet.Active) {
			return h.node
		}
	}
	return now
}

// TestFleetPlaneDrainedIsEmpty (C60): a drain waits for work that takes its time to
// end; the control plane is killed in the middle and started again. "Drained" is never
// said while the process lives, what is waited for is named, and "drain --wait" ends
// when it is drained.
func TestFleetPlaneDrainedIsEmpty(t *testing.T) {
	t.Parallel()
	for _, backend := range fleetBackends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			b := newFleetBed(t, backend, 1, 2)
			file := filepath.Join(b.dir, "pid")
			ends := strconv.Itoa(fleetNumber("TENURE_FLEET_DRAIN", 4))
			spec := fleet.Spec{ID: "slow", Movable: true, GraceMS: 120_000, Command: []string{
				"/bin/sh", "-c", `trap 'sleep ` + ends + `; exit 0' TERM; echo $$ > "$0".new; mv "$0".new "$0"; while :; do sleep 0.05; done`, file,
			}}
			w, err := b.client.Submit(t.Context(), api.SubmitRequest{Spec: spec, Actor: "test"})
			if err != nil {
				t.Fatal(err)
			}
			pid := 0
			b.eventually("it runs", func() bool {
				text, err := os.ReadFile(file)
				if err == nil {
					pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
				}
				return err == nil && b.work("slow").State == fleet.Running
			})
			if err := os.Remove(file); err != nil { // the next copy writes its own
				t.Fatal(err)
			}
			cli := exec.Command(tenureBinary(t), "nodes", "drain", w.Owner, "--server", "tenure://"+b.servers[0].addr, "--reason", "new disk", "--move", "--wait")
			out, err := os.Create(filepath.Join(b.dir, "drain.log"))
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			cli.Stdout, cli.Stderr = out, out
			cli.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if err := cli.Start(); err != nil {
				t.Fatal(err)
			}
			waited := make(chan error, 1)
			go func() { waited <- cli.Wait() }()

			b.eventually("it is told to stop, and named", func() bool {
				why, err := b.client.WhyNode(t.Context(), w.Owner)
				return err == nil && len(why.Blockers) == 1 && why.Blockers[0].ID == "slow" && why.Blockers[0].State == fleet.Stopping
			})
			killed := false
			var drained time.Time
			for began := time.Now(); drained.IsZero(); {
				if !killed && time.Since(began) > time.Second {
					b.servers[0].kill()
					b.serve(b.servers[0])
					killed = true
				}
				n, err := b.client.Node(t.Context(), w.Owner)
				alive := lives(pid)
				switch {
				case err != nil: // it is being started again
				case n.Intent == fleet.Drained:
					drained = time.Now()
					if alive {
						t.Error("drained, and the process lives")
					}
				case n.Intent != fleet.Draining:
					t.Fatalf("%s is %s, want draining", w.Owner, n.Intent)
				}
				select {
				case err := <-waited:
					if alive || err != nil {
						t.Errorf("drain --wait ended with %v while the process lives: %t", err, alive)
					}
					waited <- err
				default:
				}
				if time.Since(began) > fleetSoon {
					t.Fatal("never drained")
				}
				pause := time.NewTimer(20 * time.Millisecond)
				<-pause.C
			}
			if !killed {
				t.Error("it was drained before the control plane was killed")
			}
			select {
			case err := <-waited:
				text, _ := os.ReadFile(out.Name())
				if err != nil || !strings.Contains(string(text), "slow") {
					t.Errorf("drain --wait: %v, and said %q; want it to name what it waits for", err, text)
				}
				t.Logf("drain --wait ended %s after the interface said drained", time.Since(drained).Round(time.Millisecond))
			case <-time.After(fleetSoon):
				t.Error("drain --wait did not end")
			}
			if n := b.node(w.Owner); n.IntentMarks.Drain == nil || n.IntentMarks.Drain.Reason != "new disk" {
				t.Errorf("after the restart: %+v, want the drain and its reason", n.IntentMarks)
			}
			b.eventually("it runs elsewhere", func() bool {
				now := b.work("slow")
				return now.Owner != w.Owner && now.State == fleet.Running && now.Token == w.Token+1
			})
		})
	}
}
