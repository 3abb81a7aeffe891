//go:build linux

package minder_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/agent"
	"github.com/tenurehq/tenure/cmd/tenure/minder"
	"github.com/tenurehq/tenure/cmd/tenure/tree"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
)

// The test binary plays every part: a minder, an agent, and the tests.
func TestMain(m *testing.M) {
	minder.Main()
	if os.Getenv("TEST_PART") == "agent" {
		os.Exit(agentPart())
	}
	os.Exit(m.Run())
}

// bed is a driver with a deadline file that the test writes.
type bed struct {
	t        *testing.T
	dir      string
	deadline string
	driver   *minder.Driver
}

func newBed(t *testing.T, change ...func(*minder.Config)) *bed {
	t.Helper()
	dir := t.TempDir()
	cfg := minder.Config{Dir: filepath.Join(dir, "work")}
	for _, f := range change {
		f(&cfg)
	}
	d, err := minder.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, dir: dir, deadline: filepath.Join(dir, "deadline"), driver: d}
	b.until(time.Hour)
	return b
}

// until lets the node act for so long from now.
func (b *bed) until(d time.Duration) agent.Deadline {
	b.t.Helper()
	now := clock.Boot()
	dl := agent.Deadline{Boot: agent.BootID(), Token: 1, Since: 1, Until: now + d, Margin: time.Second}
	if err := agent.WriteDeadline(b.deadline, dl); err != nil {
		b.t.Fatal(err)
	}
	return dl
}

func (b *bed) task(policy fleet.LossPolicy, script string) agent.Task {
	spec := fleet.Spec{ID: "w", Command: []string{"sh", "-c", script}, OnLoss: policy, GraceMS: 200}
	return agent.Task{Spec: spec.Filled(), Token: 1, Deadline: b.deadline, Env: map[string]string{"TENURE_WORK": "w", "TENURE_TOKEN": "1"}}
}

func (b *bed) start(task agent.Task) agent.Run {
	b.t.Helper()
	r, err := b.driver.Start(b.t.Context(), task)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { b.end(r) })
	return r
}

func (b *bed) attach() agent.Run {
	b.t.Helper()
	r, err := b.driver.Attach(b.t.Context(), agent.Instance{Work: "w", Token: 1})
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// end stops what a test has left.
func (b *bed) end(r agent.Run) {
	if _, err := os.Stat(b.file("task.json")); err != nil {
		return // forgotten
	}
	r.Stop("the test is over")
	select {
	case <-r.Done():
	case <-time.After(20 * time.Second):
		b.t.Errorf("pid %d cannot be ended", r.PID())
	}
}

func (b *bed) file(name string) string { return filepath.Join(b.dir, "work", "w.1", name) }

func (b *bed) read(name string) string {
	text, _ := os.ReadFile(b.file(name))
	return string(text)
}

// minder returns the pid of the minder of a run.
func (b *bed) minder(r agent.Run) int {
	b.t.Helper()
	p, err := tree.Read(r.PID())
	if err != nil {
		b.t.Fatal(err)
	}
	return p.Parent
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

func alive(pid int) bool {
	p, err := tree.Read(pid)
	return err == nil && !p.Dead()
}

func result(t *testing.T, r agent.Run) agent.Result {
	t.Helper()
	select {
	case <-r.Done():
		return r.Result()
	case <-time.After(30 * time.Second):
		t.Fatalf("pid %d does not end", r.PID())
		return agent.Result{}
	}
}

const forever = "trap '' HUP; while :; do sleep 1; done"

func TestEndsAreRecorded(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]agent.Result{
		"exit 0":                    {Ending: agent.Exited},
		"exit 7":                    {Ending: agent.Exited, ExitCode: 7},
		"kill -SEGV $$":             {Ending: agent.Exited, ExitCode: 128 + 11, Text: "ended by signal segmentation fault"},
		"setsid sleep 300 & exit 3": {Ending: agent.Exited, ExitCode: 3}, // and nothing is left
	} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			r := b.start(b.task(fleet.Keep, script))
			if got := result(t, r); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
			if got := result(t, b.attach()); got != want { // as the next agent reads it
				t.Errorf("attached: got %+v, want %+v", got, want)
			}
			if err := b.driver.Forget(agent.Instance{Work: "w", Token: 1}); err != nil {
				t.Error(err)
			}
			if _, err := b.driver.Attach(t.Context(), agent.Instance{Work: "w", Token: 1}); !errors.Is(err, agent.ErrNotRunning) {
				t.Errorf("forgotten: got %v, want ErrNotRunning", err)
			}
		})
	}
}

func TestCannotStart(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	task := b.task(fleet.Keep, "")
	for want, command := range map[int]string{127: "/no/such/program", 126: b.dir} {
		task.Spec.Command = []string{command}
		_, err := b.driver.Start(t.Context(), task)
		refused, ok := errors.AsType[*agent.StartError](err)
		if !ok || refused.ExitCode != want {
			t.Errorf("%s: got %v, want a StartError with %d", command, err, want)
		}
	}
	for name, spoil := range map[string]func(){
		"passed":       func() { b.until(-time.Second) },
		"missing":      func() { _ = os.Remove(b.deadline) },
		"another boot": func() { _ = agent.WriteDeadline(b.deadline, agent.Deadline{Boot: "x", Until: 1 << 62}) },
	} {
		spoil()
		if _, err := b.driver.Start(t.Context(), b.task(fleet.Stop, "exit 0")); !errors.Is(err, agent.ErrLate) {
			t.Errorf("deadline %s: got %v, want ErrLate", name, err)
		}
	}
	if left, err := b.driver.List(); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// The minder keeps the deadline by itself; only a later one without a gap, that is
// whole and of this boot, moves it.
func TestDeadlineIsKept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(b *bed, d agent.Deadline)
		lives  bool
	}{
		"nothing new":  {func(*bed, agent.Deadline) {}, false},
		"missing":      {func(b *bed, _ agent.Deadline) { _ = os.Remove(b.deadline) }, false},
		"torn":         {func(b *bed, _ agent.Deadline) { _ = os.WriteFile(b.deadline, []byte("tenure-deadline-1 boot="), 0o600) }, false},
		"another boot": {func(b *bed, d agent.Deadline) { d.Boot, d.Until = "x", 1<<62; _ = agent.WriteDeadline(b.deadline, d) }, false},
		"after a gap": {func(b *bed, d agent.Deadline) {
			d.Token, d.Since, d.Until = 2, d.Until+1, 1<<62
			_ = agent.WriteDeadline(b.deadline, d)
		}, false},
		"fenced": {func(b *bed, d agent.Deadline) {
			d.Fenced, d.Until = true, 1<<62
			_ = agent.WriteDeadline(b.deadline, d)
		}, false},
		"renewed": {func(b *bed, d agent.Deadline) { d.Until = 1 << 62; _ = agent.WriteDeadline(b.deadline, d) }, true},
		"succeeded": {func(b *bed, d agent.Deadline) {
			d.Token, d.Since, d.Until = 2, d.Until, 1<<62
			_ = agent.WriteDeadline(b.deadline, d)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			d := b.until(1500 * time.Millisecond)
			r := b.start(b.task(fleet.Stop, "trap '' TERM; sleep 300 & "+forever)) // stubborn
			c.change(b, d)
			if c.lives {
				eventually(t, "the deadline to pass", func() bool { return clock.Boot() > d.KillAt(time.Second) })
				if !alive(r.PID()) {
					t.Error("it was ended in spite of the later deadline")
				}
				return
			}
			got := result(t, r)
			if got.Ending != agent.Halted || got.ExitCode != 128+9 {
				t.Errorf("got %+v, want halted by SIGKILL", got)
			}
			if now := clock.Boot(); now < d.Until {
				t.Errorf("ended %s before the deadline", d.Until-now)
			}
		})
	}
}

// Who is told to stop has the whole grace while the lease is renewed, also if that is
// longer than a term; and ends before the lease can pass if it is not (C60).
func TestStopHasItsGraceWhileTheLeaseIsRenewed(t *testing.T) {
	t.Parallel()
	const script = "trap 'sleep 2; exit 5' TERM; echo ready; while :; do sleep 0.01; done"
	for _, renewed := range []bool{true, false} {
		t.Run(fmt.Sprintf("renewed=%t", renewed), func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			task := b.task(fleet.Stop, script)
			task.Spec.GraceMS = time.Minute.Milliseconds()
			d := b.until(time.Second)
			r := b.start(task)
			eventually(t, "the command to listen", func() bool { return b.read("output.log") != "" })
			r.Stop("enough")
			if renewed {
				d.Until = 1 << 62
				if err := agent.WriteDeadline(b.deadline, d); err != nil {
					t.Fatal(err)
				}
			}
			got := result(t, r)
			if want := (agent.Result{Ending: agent.Stopped, ExitCode: 5, Text: "enough"}); renewed && got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
			if want := (agent.Result{Ending: agent.Stopped, ExitCode: 128 + 9, Text: "enough"}); !renewed && got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// A quiesced item is told by signal and file, lives on, and is told again when it
// may act.
func TestQuiesce(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.until(time.Second)
	r := b.start(b.task(fleet.Quiesce, `trap 'test -e $TENURE_QUIESCE_FILE && echo down' USR1; trap 'test -e $TENURE_QUIESCE_FILE || echo up' USR2; echo ready; while :; do sleep 0.01; done`))
	eventually(t, "the word of its end", func() bool { return strings.HasSuffix(b.read("output.log"), "down\n") })
	if !r.Quiesced() || !b.attach().Quiesced() {
		t.Error("it does not count as quiesced")
	}
	b.until(time.Hour)
	r.Resume()
	eventually(t, "the word of its return", func() bool { return strings.HasSuffix(b.read("output.log"), "up\n") })
	if r.Quiesced() {
		t.Error("it still counts as quiesced")
	}
	r.Fence()
	eventually(t, "the word again", func() bool { return strings.Count(b.read("output.log"), "down") == 2 })
}

func TestKeepOutlivesEveryDeadline(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	d := b.until(300 * time.Millisecond)
	r := b.start(b.task(fleet.Keep, forever))
	r.Fence()
	eventually(t, "the deadline to pass", func() bool { return clock.Boot() > d.KillAt(time.Second)+200*time.Millisecond })
	if !alive(r.PID()) || r.Quiesced() {
		t.Error("keep work was touched")
	}
}

// Stop ends the tree and says so; SIGTERM from somebody else, as when the host
// goes down, ends it to be started again.
func TestStopAndShutdown(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := b.start(b.task(fleet.Keep, "trap 'exit 5' TERM; sleep 300 & "+forever))
	r.Stop("enough")
	if got := result(t, r); got.Ending != agent.Stopped || got.Text != "enough" {
		t.Errorf("got %+v, want stopped", got)
	}
	r = b.start(b.task(fleet.Keep, forever)) // the same instance anew
	if err := syscall.Kill(b.minder(r), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := result(t, r); got.Ending != agent.Halted {
		t.Errorf("got %+v, want halted", got)
	}
}

func TestMinderKilled(t *testing.T) {
	t.Parallel()
	t.Run("stop", func(t *testing.T) {
		t.Parallel()
		b := newBed(t)
		r := b.start(b.task(fleet.Stop, "sleep 301 & echo $! > child; "+forever))
		eventually(t, "a child", func() bool { return strings.HasSuffix(b.read("child"), "\n") })
		child, _ := strconv.Atoi(strings.TrimSpace(b.read("child")))
		command := r.PID()
		if err := syscall.Kill(b.minder(r), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if got := result(t, r); got.Ending != agent.Halted || alive(command) || alive(child) {
			t.Errorf("got %+v, command lives %t, child %t; want halted and nothing left", got, alive(command), alive(child))
		}
	})
	t.Run("keep", func(t *testing.T) {
		t.Parallel()
		b := newBed(t)
		r := b.start(b.task(fleet.Keep, forever))
		command := r.PID()
		if err := syscall.Kill(b.minder(r), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the minder's end", func() bool {
			p, err := tree.Read(command)
			return err == nil && p.Parent != os.Getpid() && p.Parent <= 1 || err != nil
		})
		again := b.attach()
		if again.PID() != command || !alive(command) {
			t.Errorf("got pid %d, lives %t; want %d, alive", again.PID(), alive(command), command)
		}
		again.Stop("now")
		if got := result(t, again); got.Ending != agent.Stopped {
			t.Errorf("got %+v, want stopped", got)
		}
	})
	t.Run("stopped", func(t *testing.T) { // SIGSTOP: the agent does its work
		t.Parallel()
		b := newBed(t)
		r := b.start(b.task(fleet.Stop, forever))
		command := r.PID()
		if err := syscall.Kill(b.minder(r), syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		r.Fence()
		if got := result(t, r); got.Ending != agent.Halted || alive(command) {
			t.Errorf("got %+v, lives %t; want halted", got, alive(command))
		}
	})
}

// After a reboot nothing is attached: pids of another boot mean nothing.
func TestAnotherBootIsNotAttached(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := b.start(b.task(fleet.Keep, forever))
	if err := syscall.Kill(b.minder(r), syscall.SIGKILL); err != nil { // its lock is gone with it, as after a reboot
		t.Fatal(err)
	}
	defer syscall.Kill(-r.PID(), syscall.SIGKILL)
	text := b.read("process.json")
	changed := strings.Replace(text, agent.BootID(), "11111111-2222-3333-4444-555555555555", 1)
	if changed == text {
		t.Fatal("no boot id in process.json")
	}
	if err := os.WriteFile(b.file("process.json"), []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the minder's end", func() bool {
		_, err := b.driver.Attach(t.Context(), agent.Instance{Work: "w", Token: 1})
		return errors.Is(err, agent.ErrNotRunning)
	})
}

// The command has three descriptors, the environment that it was given, and
// nothing else of the agent's.
func TestNothingLeaks(t *testing.T) {
	t.Setenv("SECRET_OF_THE_AGENT", "x") // so not parallel
	var pipe [2]int
	if err := syscall.Pipe(pipe[:]); err != nil { // without close-on-exec
		t.Fatal(err)
	}
	defer syscall.Close(pipe[0])
	b := newBed(t)
	task := b.task(fleet.Keep, "ls /proc/self/fd | wc -l; env; "+forever)
	task.Spec.Env = map[string]string{"OWN": "y"}
	r := b.start(task)
	eventually(t, "its words", func() bool { return strings.Contains(b.read("output.log"), "TENURE_WORK=w") })
	said := b.read("output.log")
	if n := strings.TrimSpace(strings.SplitN(said, "\n", 2)[0]); n != "4" { // ls has the directory open, too
		t.Errorf("got %s descriptors, want 4", n)
	}
	if strings.Contains(said, "SECRET") || !strings.Contains(said, "OWN=y\n") || !strings.Contains(said, "TENURE_PROGRESS_FILE=") {
		t.Errorf("got environment %s", said)
	}
	syscall.Close(pipe[1])
	_ = syscall.SetNonblock(pipe[0], true)
	if n, err := syscall.Read(pipe[0], make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("read %d, %v: somebody still holds the agent's pipe", n, err)
	}
	for _, path := range []string{"cmdline", "environ"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", b.minder(r), path))
		if err != nil || strings.Contains(string(text), "OWN") || strings.Contains(string(text), "SECRET") {
			t.Errorf("the minder's %s shows %q, %v", path, text, err)
		}
	}
	if info, err := os.Stat(b.file("task.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("task.json: %v, %v", info.Mode(), err)
	}
}

func TestLogIsCut(t *testing.T) {
	t.Parallel()
	b := newBed(t, func(c *minder.Config) { c.MaxLog = 4096 })
	b.start(b.task(fleet.Keep, "i=0; while :; do i=$((i+1)); echo line $i of many; sleep 0.001; done"))
	eventually(t, "a log that was cut", func() bool { return strings.Contains(b.read("output.log.1"), "of many") })
	if n := len(b.read("output.log.1")); n > 4096 {
		t.Errorf("kept %d bytes, want at most 4096", n)
	}
	eventually(t, "the log to go on", func() bool { return strings.Contains(b.read("output.log"), "of many") })
}

// Two starts of one instance, as when an agent dies in the middle of the first,
// make one command.
func TestOneMinderEach(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := b.start(b.task(fleet.Keep, forever))
	again, err := b.driver.Start(t.Context(), b.task(fleet.Keep, forever))
	if err != nil || again.PID() != r.PID() {
		t.Errorf("got %v, want the run of pid %d", err, r.PID())
	}
	if left, err := b.driver.List(); err != nil || !slices.Equal(left, []agent.Instance{{Work: "w", Token: 1}}) {
		t.Errorf("listed %v, %v", left, err)
	}
}
