//go:build linux

package minder_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/agent"
	"github.com/tenurehq/tenure/agent/agenttest"
	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/cmd/tenure/minder"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
)

const (
	nodeTTL      = 3 * time.Second
	nodeInterval = 500 * time.Millisecond
)

// agentPart is a small `tenure agent`.
func agentPart() int {
	dir := os.Getenv("TEST_DIR")
	c, err := api.NewClient(api.Config{Servers: []string{os.Getenv("TEST_SERVER")}})
	if err == nil {
		var d *minder.Driver
		if d, err = minder.New(minder.Config{Dir: filepath.Join(dir, "work")}); err == nil {
			var a *agent.Agent
			a, err = agent.New(agent.Config{
				Node: os.Getenv("TEST_NODE"), Server: c, Store: api.NewStore(c), StateDir: dir, Driver: d,
				ServerURL: os.Getenv("TEST_SERVER"), TTL: nodeTTL, Interval: nodeInterval,
			})
			if err == nil {
				ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
				defer stop()
				err = a.Run(ctx)
			}
		}
	}
	switch {
	case errors.Is(err, agent.ErrReplaced):
		return 3
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// fleetBed is a control plane in the test and agents in processes of their own.
type fleetBed struct {
	t   *testing.T
	srv *agenttest.Server
	url string
}

func newFleet(t *testing.T) *fleetBed {
	t.Helper()
	f := &fleetBed{t: t, srv: agenttest.New(memory.New())}
	s := httptest.NewServer(f.srv)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	f.url = s.URL
	return f
}

// stateDir is a directory whose work is ended when the test is over.
func (f *fleetBed) stateDir() string {
	dir := f.t.TempDir()
	f.t.Cleanup(func() {
		d, err := minder.New(minder.Config{Dir: filepath.Join(dir, "work")})
		if err != nil {
			return
		}
		left, _ := d.List()
		for _, of := range left {
			if r, err := d.Attach(context.Background(), of); err == nil {
				r.Stop("the test is over")
				<-r.Done()
			}
		}
	})
	return dir
}

func (f *fleetBed) agent(node, dir string) *exec.Cmd {
	f.t.Helper()
	self, err := os.Executable()
	if err != nil {
		f.t.Fatal(err)
	}
	c := exec.Command(self)
	c.Env = append(os.Environ(), "TEST_PART=agent", "TEST_NODE="+node, "TEST_DIR="+dir, "TEST_SERVER="+f.url)
	c.Stderr = f.t.Output()
	if err := c.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return c
}

func kill(t *testing.T, c *exec.Cmd, sig syscall.Signal) {
	t.Helper()
	if err := c.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	if sig == syscall.SIGKILL || sig == syscall.SIGTERM {
		_ = c.Wait()
	}
}

func (f *fleetBed) assign(node, id string, policy fleet.LossPolicy, script string) {
	f.srv.Assign(node, fleet.Spec{ID: id, Command: []string{"sh", "-c", script}, OnLoss: policy, GraceMS: 200})
}

// pid waits until a node runs an item and returns its command.
func (f *fleetBed) pid(dir, id, token string) (pid int) {
	f.t.Helper()
	eventually(f.t, "item "+id+" to run", func() bool {
		it := f.srv.Item(id)
		var p struct{ Command struct{ PID int } }
		text, err := os.ReadFile(filepath.Join(dir, "work", id+"."+token, "process.json"))
		if err == nil {
			err = json.Unmarshal(text, &p)
		}
		pid = p.Command.PID
		return err == nil && it.State == fleet.Running && it.Token.String() == token && pid != 0 && alive(pid)
	})
	return pid
}

func (f *fleetBed) lease(node string) store.Record {
	f.t.Helper()
	rec, err := f.srv.Store().Get(f.t.Context(), fleet.LeaseName(node))
	if err != nil {
		f.t.Fatal(err)
	}
	return rec
}

// heldAnew waits until a node holds its lease under a later token.
func (f *fleetBed) heldAnew(node string, former store.Record) {
	f.t.Helper()
	eventually(f.t, "a later term of "+node, func() bool {
		r := f.lease(node)
		return r.Status == store.Held && r.Token > former.Token
	})
}

// Killed or upgraded, the agent leaves running work alone: the same processes
// before and after, no gap in the lease, nothing started twice.
func TestAgentRestart(t *testing.T) {
	t.Parallel()
	for name, sig := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "upgraded": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			dir := f.stateDir()
			f.assign("n1", "keep", fleet.Keep, forever)
			f.assign("n1", "stop", fleet.Stop, forever)
			a := f.agent("n1", dir)
			keep, stop := f.pid(dir, "keep", "1"), f.pid(dir, "stop", "1")
			for round := range 3 {
				before := f.lease("n1")
				reports := f.srv.Item("stop").Reports
				kill(t, a, sig)
				a = f.agent("n1", dir)
				f.heldAnew("n1", before)
				if got := f.lease("n1"); got.Token != before.Token+1 || got.AcquiredAt.After(before.ExpiresAt) {
					t.Errorf("round %d: got token %s, acquired %s after the former expiry; want %s, replaced before it", round, got.Token, got.AcquiredAt.Sub(before.ExpiresAt), before.Token+1)
				}
				eventually(t, "a report of the attached work", func() bool { return f.srv.Item("stop").Reports > reports })
			}
			// Past the deadlines of the first agent.
			first := f.lease("n1")
			eventually(t, "renewals for more than a TTL", func() bool { return f.lease("n1").Now.Sub(first.Now) > nodeTTL+nodeInterval })
			if k, s := f.pid(dir, "keep", "1"), f.pid(dir, "stop", "1"); k != keep || s != stop {
				t.Errorf("got pids %d and %d, want %d and %d as before", k, s, keep, stop)
			}
		})
	}
}

// With the agent dead, stopped or fenced, stop work ends while the lease is still
// the node's own, and keep work lives on.
func TestStopWorkEndsBeforeLeasePasses(t *testing.T) {
	t.Parallel()
	for name, sig := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			dir := f.stateDir()
			f.assign("n1", "keep", fleet.Keep, forever)
			f.assign("n1", "stop", fleet.Stop, "trap '' TERM; sleep 300 & "+forever)
			a := f.agent("n1", dir)
			keep, stop := f.pid(dir, "keep", "1"), f.pid(dir, "stop", "1")
			kill(t, a, sig)
			before := f.lease("n1")
			eventually(t, "the end of the work", func() bool { return !alive(stop) })
			if got := f.lease("n1"); got.Status != store.Held || got.Token != before.Token {
				t.Errorf("the lease was %s with token %s when the work had ended, want held with %s", got.Status, got.Token, before.Token)
			}
			if !alive(keep) {
				t.Error("keep work was ended")
			}
			if sig == syscall.SIGKILL {
				return
			}
			// It goes on, and finds that its right is over; the item is still the
			// node's, so it runs again under a later term, with a token of its own, and
			// the other never stopped.
			kill(t, a, syscall.SIGCONT)
			f.heldAnew("n1", before)
			eventually(t, "the work again", func() bool { return f.pid(dir, "stop", "2") != stop })
			if f.pid(dir, "keep", "1") != keep {
				t.Error("keep work has another process")
			}
		})
	}
}

// An ordered stop leaves the work its grace, longer than the node's TTL, as long as the
// node renews its lease; with the renewals cut the work ends before the lease does (C60).
func TestOrderedStopHasItsGrace(t *testing.T) {
	t.Parallel()
	for _, cut := range []bool{false, true} {
		t.Run(fmt.Sprintf("cut=%t", cut), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			dir := f.stateDir()
			f.srv.Assign("n1", fleet.Spec{
				ID: "w", Command: []string{"sh", "-c", "trap 'sleep 5; exit 5' TERM; while :; do sleep 0.01; done"},
				OnLoss: fleet.Stop, GraceMS: (10 * nodeTTL).Milliseconds(),
			})
			f.agent("n1", dir)
			pid := f.pid(dir, "w", "1")
			reports := f.srv.Item("w").Reports
			f.srv.Stop("w")
			eventually(t, "the report that it stops", func() bool { return f.srv.Item("w").Reports > reports })
			if !cut {
				eventually(t, "the report of its end", func() bool { return f.srv.Item("w").State == fleet.Stopped })
				if got := f.srv.Item("w").ExitCode; got != 5 {
					t.Errorf("exit code %d, want its own, 5", got)
				}
				return
			}
			before := f.lease("n1")
			f.srv.Fail(func(string) http.HandlerFunc {
				return func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
			})
			eventually(t, "the end of the work", func() bool { return !alive(pid) })
			if got := f.lease("n1"); got.Status != store.Held || got.Token != before.Token {
				t.Errorf("the lease was %s with token %s when the work had ended, want held with %s", got.Status, got.Token, before.Token)
			}
		})
	}
}

// A machine that was started anew, and a copy of a state directory: nothing is
// attached, nothing is replaced, and the items start again after the expiry, with
// tokens of their own.
func TestRebootAndCopy(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"reboot", "copy"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			dir := f.stateDir()
			f.assign("n1", "w", fleet.Keep, forever)
			a := f.agent("n1", dir)
			old := f.pid(dir, "w", "1")
			kill(t, a, syscall.SIGKILL)
			before := f.lease("n1")
			b := &bed{t: t, dir: dir}
			killed := &pidRun{pid: old}
			if err := syscall.Kill(b.minder(killed), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			_ = syscall.Kill(-old, syscall.SIGKILL)
			eventually(t, "the end of everything", func() bool { return !alive(old) })
			next := dir
			if name == "copy" {
				next = f.stateDir()
				if out, err := exec.Command("cp", "-a", dir+"/.", next).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			other := "11111111-2222-3333-4444-555555555555"
			for _, path := range []string{filepath.Join(next, "term.json"), filepath.Join(next, "work", "w.1", "process.json")} {
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(strings.Replace(string(text), agent.BootID(), other, 1)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			f.agent("n1", next)
			f.heldAnew("n1", before)
			if got := f.lease("n1"); got.AcquiredAt.Before(before.ExpiresAt) {
				t.Errorf("the term was replaced %s before its expiry", before.ExpiresAt.Sub(got.AcquiredAt))
			}
			if pid := f.pid(next, "w", "2"); pid == old {
				t.Error("a process of another boot was attached")
			}
		})
	}
}

// pidRun has a pid and nothing else.
type pidRun struct {
	agent.Run
	pid int
}

func (r *pidRun) PID() int { return r.pid }

// The marker that a work item writes is reported, and the next owner starts with it.
func TestProgressIsHandedOver(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	one, two := f.stateDir(), f.stateDir()
	script := `echo "from $TENURE_PROGRESS on $TENURE_NODE with $TENURE_TOKEN"; echo 41 > $TENURE_PROGRESS_FILE.new; mv $TENURE_PROGRESS_FILE.new $TENURE_PROGRESS_FILE; ` + forever
	f.assign("n1", "w", fleet.Stop, script)
	f.agent("n1", one)
	f.agent("n2", two)
	first := f.pid(one, "w", "1")
	eventually(t, "the marker", func() bool { return f.srv.Item("w").Progress == "41" })
	f.assign("n2", "w", fleet.Stop, script) // a takeover
	f.pid(two, "w", "2")
	text, err := os.ReadFile(filepath.Join(two, "work", "w.2", "output.log"))
	if want := "from 41 on n2 with 2\n"; err != nil || string(text) != want {
		t.Errorf("the next owner said %q, %v; want %q", text, err, want)
	}
	eventually(t, "the end of the first copy", func() bool { return !alive(first) })
	if it := f.srv.Item("w"); it.Owner != "n2" || it.Token != 2 || it.State != fleet.Running {
		t.Errorf("got %+v, want running on n2 with token 2", it)
	}
}

// An agent whose incarnation was replaced ends with its own exit code and takes
// its stop work with it.
func TestReplacedAgentEnds(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	dir := f.stateDir()
	f.assign("n1", "keep", fleet.Keep, forever)
	f.assign("n1", "stop", fleet.Stop, forever)
	a := f.agent("n1", dir)
	keep, stop := f.pid(dir, "keep", "1"), f.pid(dir, "stop", "1")
	f.srv.Reply(func(r *api.BeatReply) { r.Code = fleet.CodeReplaced })
	_ = a.Wait()
	if code := a.ProcessState.ExitCode(); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	eventually(t, "the end of the stop work", func() bool { return !alive(stop) })
	if got := f.lease("n1"); got.Status != store.Held {
		t.Errorf("the lease was %s when the work had ended", got.Status)
	}
	if !alive(keep) {
		t.Error("keep work was ended")
	}
}
