//go:build linux

package guardian_test

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/cmd/tenure/guardian"
)

// eachWay runs a test with the help of a cgroup and without.
func eachWay(t *testing.T, f func(t *testing.T, noCgroup bool)) {
	t.Helper()
	for name, noCgroup := range map[string]bool{"cgroup": false, "scan": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, noCgroup)
		})
	}
}

func TestExitStatusPassesThrough(t *testing.T) {
	t.Parallel()
	for _, code := range []int{0, 1, 2, 127, 255} {
		r := run(t, plan{Argv: shell(fmt.Sprintf("exit %d", code))})
		if got, want := r.outcome(), (guardian.Outcome{ExitCode: code}); !reflect.DeepEqual(got, want) {
			t.Errorf("exit %d: got %+v, want %+v", code, got, want)
		}
	}
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		r := run(t, plan{Argv: shell(fmt.Sprintf("kill -%d $$", int(sig)))})
		if got, want := r.outcome(), (guardian.Outcome{ExitCode: -1, Signal: sig}); !reflect.DeepEqual(got, want) {
			t.Errorf("%v: got %+v, want %+v", sig, got, want)
		}
	}
}

func TestCannotStart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		pl   plan
		kind string
	}{
		{"not in PATH", plan{Argv: []string{"no-such-command-anywhere"}}, "not_found"},
		{"no such file", plan{Argv: []string{"/no/such/file"}}, "not_found"},
		{"interpreter missing", plan{Argv: []string{writeFile(t, "x", "#!/no/such/interpreter\n", 0o755)}}, "not_found"},
		{"no permission", plan{Argv: []string{writeFile(t, "x", "#!/bin/sh\n", 0o644)}}, "not_executable"},
		{"directory", plan{Argv: []string{t.TempDir()}}, "not_executable"},
		{"no format", plan{Argv: []string{writeFile(t, "x", "echo a shell would run this\n", 0o755)}}, "not_executable"},
		{"argument too big", plan{Argv: []string{"true", strings.Repeat("x", 1<<18)}}, "too_big"},
		{"directory missing", plan{Argv: []string{"true"}, Dir: "/no/such/dir"}, "other"},
		{"too late", plan{Argv: []string{"true"}, Term: time.Nanosecond}, "late"},
	} {
		r := launch(t, c.pl)
		s := r.await("an error", func(s said) bool { return s.Error != "" || s.Started != 0 })
		if s.Kind != c.kind {
			t.Errorf("%s: got %+v, want kind %q", c.name, s, c.kind)
		}
	}
}

func TestArgumentsAndEnvironmentAreExact(t *testing.T) {
	t.Parallel()
	big := plan{Argv: []string{self(t)}, Env: []string{"TEST_PART=args"}}
	for i := range 1000 {
		big.Argv = append(big.Argv, fmt.Sprintf("%d%s", i, strings.Repeat("a", 800)))
		big.Env = append(big.Env, fmt.Sprintf("V%d=%s", i, strings.Repeat("\xfe", 100)))
	}
	for _, pl := range []plan{
		{Argv: []string{self(t), "-v", "--ttl=5", "a b", "$X", ""}, Env: []string{"TEST_PART=args", "ODD=\xff\n"}},
		{Argv: []string{self(t), "\xff\xfe\n\t", strings.Repeat("y", 1<<17-1)}, Env: []string{"TEST_PART=args"}},
		big,
	} {
		r := run(t, pl)
		r.outcome()
		_ = r.cmd.Wait()
		// One decoder for each: every encoder begins a stream of its own.
		out := bytes.NewReader(r.stdout.Bytes())
		var args, env []string
		if err := errors.Join(gob.NewDecoder(out).Decode(&args), gob.NewDecoder(out).Decode(&env)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(args, pl.Argv) {
			t.Errorf("arguments: got %.300q, want %.300q", args, pl.Argv)
		}
		if want := append(pl.Env, "PATH="+os.Getenv("PATH"), r.tag); !slices.Equal(env, want) {
			t.Errorf("environment: got %.300q, want %.300q", env, want)
		}
	}
}

func TestDescriptorsDoNotLeak(t *testing.T) {
	t.Parallel()
	// The runner itself is started with descriptor 3 open and inheritable.
	r := run(t, plan{Argv: []string{"ls", "/proc/self/fd"}})
	r.outcome()
	_ = r.cmd.Wait()
	// ls itself opens the directory as 3.
	if got, want := r.stdout.String(), "0\n1\n2\n3\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFilesArePassedOn(t *testing.T) {
	t.Parallel()
	r := run(t, plan{Argv: shell("echo marker >&3; ls /proc/self/fd >&3"), Trial: "files"})
	// The pipe ends, so nobody but the command held it.
	if got, want := r.await("the pipe to end", func(s said) bool { return s.Read != "" }).Read, "marker\n0\n1\n2\n3\n4\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	r.outcome()
}

func TestSignalsStartOutAsTheyWere(t *testing.T) {
	t.Parallel()
	for _, before := range []string{"", `trap "" HUP; `, `trap "" HUP INT; `} {
		r := run(t, plan{Argv: []string{"grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"}}, func(c *exec.Cmd) {
			c.Args = append(shell(before+`grep -E "^Sig(Blk|Ign)" /proc/self/status; exec "$0"`), c.Path)
			c.Path = "/bin/sh"
		})
		r.outcome()
		_ = r.cmd.Wait()
		lines := strings.SplitAfter(r.stdout.String(), "\n")
		if len(lines) != 5 || lines[0]+lines[1] != lines[2]+lines[3] {
			t.Errorf("%q: got %q, want the same before and under a guardian", before, lines)
		}
	}
}

func TestContextStops(t *testing.T) {
	t.Parallel()
	r := run(t, plan{Argv: []string{"sleep", "60"}, Trial: "cancel"})
	r.signal(r.pid, syscall.SIGUSR2)
	if got, want := r.outcome(), (guardian.Outcome{ExitCode: -1, Signal: syscall.SIGTERM, Why: guardian.WhyStop}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestOneCommandAtATime(t *testing.T) {
	t.Parallel()
	r := run(t, plan{Argv: []string{"sleep", "60"}, Trial: "active"})
	if got := r.await("a refusal", func(s said) bool { return s.Error != "" }); got.Kind != "active" {
		t.Errorf("got %+v, want ErrActive", got)
	}
	r.signal(r.pid, syscall.SIGUSR2)
	r.outcome()
}

func TestLateDeadlineDoesNotRevive(t *testing.T) {
	t.Parallel()
	r := run(t, plan{Argv: shell(`trap "" TERM; while :; do sleep 0.05; done`), Term: 2 * time.Second, Margin: 400 * time.Millisecond, Trial: "late"})
	if got := r.await("a refusal", func(s said) bool { return s.Error != "" }); got.Kind != "late" {
		t.Errorf("got %+v, want ErrLate", got)
	}
	if got := r.outcome(); got.Why != guardian.WhyDeadline || !got.Forced {
		t.Errorf("got %+v, want why deadline", got)
	}
	if got := r.await("a refusal", func(s said) bool { return s.Error != "" }); got.Kind != "done" {
		t.Errorf("got %+v, want os.ErrProcessDone", got)
	}
}

// TestReadLateDoesNotRevive has a deadline that was sent in time, and is read by
// a guardian that was paused past the old one.
func TestReadLateDoesNotRevive(t *testing.T) {
	t.Parallel()
	r := run(t, plan{Argv: []string{"sleep", "60"}, Term: 1500 * time.Millisecond, Margin: 20 * time.Second, Renew: 1200 * time.Millisecond})
	r.signal(r.guardian, syscall.SIGSTOP)
	past := time.Now().Add(1550 * time.Millisecond) // renewed once
	until(t, "the old deadline to pass", func() bool { return time.Now().After(past) })
	r.signal(r.guardian, syscall.SIGCONT)
	if got, want := r.outcome(), (guardian.Outcome{ExitCode: -1, Signal: syscall.SIGTERM, Why: guardian.WhyDeadline}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestNoticesTellTheStory(t *testing.T) {
	t.Parallel()
	r := run(t, plan{Argv: shell(stubborn), Grace: 100 * time.Millisecond})
	r.grown(stubbornSize)
	r.signal(r.command, syscall.SIGSTOP)
	r.await("stopped", func(s said) bool { return s.Notice != nil && s.Notice.Event == guardian.EventStopped })
	r.signal(r.pid, syscall.SIGCONT)
	r.await("continued", func(s said) bool { return s.Notice != nil && s.Notice.Event == guardian.EventContinued })
	r.signal(r.pid, syscall.SIGUSR2)
	r.outcome()
	var got []guardian.Notice
	for _, s := range r.seen {
		if s.Notice != nil {
			got = append(got, *s.Notice)
		}
	}
	want := []guardian.Notice{
		{Event: guardian.EventStarted, PID: r.command},
		{Event: guardian.EventStopped, PID: r.command, Detail: "SIGSTOP"},
		{Event: guardian.EventContinued, PID: r.command},
		{Event: guardian.EventTerm, PID: r.command, Why: guardian.WhyStop},
		{Event: guardian.EventKill, PID: r.command, Why: guardian.WhyStop},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestSecretsDoNotShow(t *testing.T) {
	t.Parallel()
	r := run(t, plan{Argv: shell("env; sleep 60")})
	r.grown(2)
	for _, pid := range append(r.tree(), r.guardian) {
		for _, file := range []string{"environ", "cmdline"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), "hunter2") {
				t.Errorf("process %d shows the store's secret in %s", pid, file)
			}
		}
	}
	if text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", r.guardian)); len(text) > 0 {
		t.Errorf("the guardian has an environment: %q", text)
	}
	r.signal(r.pid, syscall.SIGUSR2)
	if got := r.outcome(); got.Why != guardian.WhyStop {
		t.Errorf("got %+v, want why stop", got)
	}
}

// stubborn ignores SIGTERM and so does all it starts; two of its processes have
// left its session, one of them by a double fork.
const stubborn = `trap "" TERM HUP INT
(setsid sleep 61 &)
setsid sh -c 'sleep 62 & sleep 63' &
sleep 64 & sleep 65`

const stubbornSize = 7 // sh, setsid sh, and five sleeps

func TestStopKillsStubbornTree(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, noCgroup bool) {
		r := run(t, plan{NoCgroup: noCgroup, Argv: shell(stubborn), Grace: 300 * time.Millisecond})
		r.grown(stubbornSize)
		from := time.Now()
		r.signal(r.pid, syscall.SIGUSR2)
		fell := r.fall(from)
		got, want := r.outcome(), guardian.Outcome{ExitCode: -1, Signal: syscall.SIGKILL, Why: guardian.WhyStop, Forced: true}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if fell < 300*time.Millisecond {
			t.Errorf("fell after %v, before its grace ended", fell)
		}
		t.Logf("MEASURE stop, grace 300ms: fell after %v", fell)
	})
}

func TestStopLetsCommandCleanUp(t *testing.T) {
	t.Parallel()
	r := run(t, plan{Argv: shell(`trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done`)})
	until(t, "the trap", func() bool { return len(r.tree()) > 1 })
	r.signal(r.pid, syscall.SIGUSR2)
	if got, want := r.outcome(), (guardian.Outcome{ExitCode: 7, Why: guardian.WhyStop}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestOrphansAreAskedToEnd has a tree that goes on forking while it is asked to
// end: who lost its parent after SIGTERM went out gets it too, and need not wait
// for SIGKILL.
func TestOrphansAreAskedToEnd(t *testing.T) {
	t.Parallel()
	r := run(t, plan{Argv: shell(`trap 'sh -c "sleep 68 & sleep 69" & exit 3' TERM; echo up; while :; do sleep 0.05; done`), Grace: 20 * time.Second})
	r.grown(2)
	r.signal(r.pid, syscall.SIGUSR2)
	if got, want := r.outcome(), (guardian.Outcome{ExitCode: 3, Why: guardian.WhyStop}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestBackgroundProcessesEndWithCommand(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, noCgroup bool) {
		r := run(t, plan{NoCgroup: noCgroup, Argv: shell(`trap "" TERM; (setsid sleep 66 &); sleep 67 & exit 4`), Grace: 200 * time.Millisecond})
		got := r.outcome()
		if left := r.tree(); len(left) > 0 {
			t.Errorf("the outcome came while %v lived", left)
		}
		if want := (guardian.Outcome{ExitCode: 4, Forced: true}); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

func TestDeadlinePassesWithRunnerStopped(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, noCgroup bool) {
		r := run(t, plan{NoCgroup: noCgroup, Argv: shell(stubborn), Term: 2 * time.Second, Margin: 300 * time.Millisecond, Renew: 100 * time.Millisecond})
		r.grown(stubbornSize)
		stopped := time.Now()
		r.signal(r.pid, syscall.SIGSTOP)
		fell := r.fall(stopped)
		t.Logf("MEASURE runner SIGSTOPped, KillAt at most 2.3s away: fell after %v", fell)
		r.signal(r.pid, syscall.SIGCONT)
		if got := r.outcome(); got.Why != guardian.WhyDeadline || !got.Forced || len(got.Leftovers) > 0 {
			t.Errorf("got %+v, want why deadline", got)
		}
	})
}

func TestExtensionKeepsItAlive(t *testing.T) {
	t.Parallel()
	r := run(t, plan{Argv: shell("sleep 5"), Term: 2 * time.Second, Margin: 100 * time.Millisecond, Renew: 50 * time.Millisecond})
	if got, want := r.outcome(), (guardian.Outcome{}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestTermComesBeforeKill(t *testing.T) {
	t.Parallel()
	r := run(t, plan{Argv: shell(`trap 'exit 9' TERM; while :; do sleep 0.05; done`), Term: 500 * time.Millisecond, Margin: 20 * time.Second})
	if got, want := r.outcome(), (guardian.Outcome{ExitCode: 9, Why: guardian.WhyDeadline}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestRunnerKilled(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, noCgroup bool) {
		r := run(t, plan{NoCgroup: noCgroup, Argv: shell(stubborn)})
		r.grown(stubbornSize)
		from := time.Now()
		r.signal(r.pid, syscall.SIGKILL)
		fell := r.fall(from)
		t.Logf("MEASURE runner SIGKILLed: fell after %v", fell)
	})
}

func TestGuardianKilled(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, noCgroup bool) {
		r := run(t, plan{NoCgroup: noCgroup, Argv: shell(stubborn)})
		r.grown(stubbornSize)
		from := time.Now()
		r.signal(r.guardian, syscall.SIGKILL)
		fell := r.fall(from)
		t.Logf("MEASURE guardian SIGKILLed: fell after %v", fell)
		want := guardian.Outcome{ExitCode: -1, Signal: syscall.SIGKILL, Why: guardian.WhyGuardianGone, Forced: true}
		if got := r.outcome(); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

func TestGuardianKilledWithRunnerStopped(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, noCgroup bool) {
		r := run(t, plan{NoCgroup: noCgroup, Argv: shell(stubborn)})
		r.grown(stubbornSize)
		r.signal(r.pid, syscall.SIGSTOP)
		from := time.Now()
		r.signal(r.guardian, syscall.SIGKILL)
		until(t, "the command to die by its parent-death signal", func() bool {
			_, state := stat(r.command)
			return state == "" || state == "Z"
		})
		t.Logf("MEASURE runner SIGSTOPped and guardian SIGKILLed: CMD died after %v", time.Since(from))
		r.signal(r.pid, syscall.SIGCONT)
		from = time.Now()
		t.Logf("MEASURE then runner continued: fell after %v", r.fall(from))
		if got := r.outcome(); got.Why != guardian.WhyGuardianGone {
			t.Errorf("got %+v, want why guardian_gone", got)
		}
	})
}

func TestGuardianStalled(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, noCgroup bool) {
		r := run(t, plan{NoCgroup: noCgroup, Argv: shell(stubborn), Children: 1})
		r.grown(stubbornSize)
		from := time.Now()
		r.signal(r.guardian, syscall.SIGSTOP)
		fell := r.fall(from)
		t.Logf("MEASURE guardian SIGSTOPped: fell after %v", fell)
		want := guardian.Outcome{ExitCode: -1, Signal: syscall.SIGKILL, Why: guardian.WhyGuardianStalled, Forced: true}
		if got := r.outcome(); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if _, state := stat(r.strange[0]); state == "" || state == "Z" {
			t.Errorf("a child of the runner that is not the command's was killed")
		}
	})
}

func TestGuardianStoppedAtDeadline(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, noCgroup bool) {
		// Less than the bound of a stall passes: it is the runner's own look at KillAt.
		r := run(t, plan{NoCgroup: noCgroup, Argv: shell(stubborn), Term: 900 * time.Millisecond, Margin: 200 * time.Millisecond})
		from := time.Now()
		r.signal(r.guardian, syscall.SIGSTOP)
		fell := r.fall(from)
		t.Logf("MEASURE guardian SIGSTOPped, KillAt about 1.1s away: fell after %v", fell)
		for len(r.said) > 0 {
			if s := <-r.said; s.Notice != nil && s.Notice.Why == guardian.WhyGuardianStalled {
				t.Error("fell only when the guardian was found stalled")
			}
		}
		if got := r.outcome(); !got.Forced || len(got.Leftovers) > 0 {
			t.Errorf("got %+v, want a forced end", got)
		}
	})
}

func TestBothStoppedPastDeadline(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, noCgroup bool) {
		for _, first := range []string{"guardian", "runner"} {
			r := run(t, plan{NoCgroup: noCgroup, Argv: shell(stubborn), Term: 2 * time.Second, Margin: 100 * time.Millisecond, Renew: 50 * time.Millisecond})
			r.grown(stubbornSize)
			r.signal(r.guardian, syscall.SIGSTOP)
			r.signal(r.pid, syscall.SIGSTOP)
			past := time.Now().Add(2200 * time.Millisecond)
			until(t, "the deadline to pass", func() bool { return time.Now().After(past) })
			if len(r.tree()) < stubbornSize {
				t.Fatal("the tree fell while everybody was stopped")
			}
			from := time.Now()
			if first == "guardian" {
				r.signal(r.guardian, syscall.SIGCONT)
			} else {
				r.signal(r.pid, syscall.SIGCONT)
			}
			t.Logf("MEASURE all stopped past KillAt, %s continued: fell after %v", first, r.fall(from))
			for _, pid := range []int{r.pid, r.guardian} {
				_ = syscall.Kill(pid, syscall.SIGCONT) // the guardian may be gone
			}
			if got := r.outcome(); got.Why == "" || !got.Forced {
				t.Errorf("got %+v, want a forced end", got)
			}
		}
	})
}

func TestStoppedCommandIsKilled(t *testing.T) {
	t.Parallel()
	r := run(t, plan{Argv: shell("sleep 60"), Term: 600 * time.Millisecond, Margin: 20 * time.Second})
	for _, pid := range r.tree() {
		r.signal(pid, syscall.SIGSTOP)
	}
	if got, want := r.outcome(), (guardian.Outcome{ExitCode: -1, Signal: syscall.SIGTERM, Why: guardian.WhyDeadline}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestForkStorm(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, noCgroup bool) {
		for _, c := range []struct{ name, script string }{
			{"chain", `trap "" TERM; f() { sleep 0.01; f & }; f; sleep 60`},
			{"wide", `trap "" TERM; while :; do (sleep 0.2; sleep 0.2) & sleep 0.002; done`},
			{"sessions", `trap "" TERM; while :; do setsid sleep 1 & sleep 0.005; done`},
		} {
			r := run(t, plan{NoCgroup: noCgroup, Argv: shell(c.script), Grace: 100 * time.Millisecond})
			r.grown(2)
			from := time.Now()
			r.signal(r.pid, syscall.SIGUSR2)
			got := r.outcome()
			if left := r.tree(); len(left) > 0 || len(got.Leftovers) > 0 {
				t.Errorf("%s: got %+v with %v alive", c.name, got, left)
			}
			t.Logf("MEASURE fork storm %q, grace 100ms: outcome after %v", c.name, time.Since(from))
		}
	})
}

func TestQuickLoops(t *testing.T) {
	t.Parallel()
	r := run(t, plan{Argv: shell("exit 5"), Loops: 20})
	for range 20 {
		if got, want := r.outcome(), (guardian.Outcome{ExitCode: 5}); !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	}
}

func TestOrphansAreReaped(t *testing.T) {
	t.Parallel()
	r := run(t, plan{Argv: shell(`for i in 1 2 3 4 5; do (sleep 0.0$i &) ; done; sleep 60`)})
	until(t, "five orphans to come and go", func() bool {
		zombies := 0
		for _, pid := range processes(func(pid int) bool { parent, _ := stat(pid); return parent == r.guardian }) {
			if _, state := stat(pid); state == "Z" {
				zombies++
			}
		}
		return zombies == 0 && len(r.tree()) == 2
	})
	r.signal(r.pid, syscall.SIGUSR2)
	r.outcome()
}

func TestSignalsArePassedOn(t *testing.T) {
	t.Parallel()
	names := []string{"HUP", "INT", "QUIT", "TERM", "USR1", "ALRM", "WINCH"}
	var script strings.Builder
	for _, name := range names {
		fmt.Fprintf(&script, "trap 'echo %s' %s\n", name, name)
	}
	script.WriteString(`trap 'exit 0' PWR; echo ready; while :; do sleep 0.02 & wait; done`)
	out := filepath.Join(t.TempDir(), "out")
	file, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r := run(t, plan{Argv: shell(script.String())}, func(c *exec.Cmd) { c.Stdout = file })
	has := func(line string) func() bool {
		return func() bool {
			text, _ := os.ReadFile(out)
			return strings.Contains(string(text), line+"\n")
		}
	}
	until(t, "ready", has("ready"))
	for _, name := range names {
		r.signal(r.pid, signalNumber(name))
		until(t, name, has(name))
	}
	r.signal(r.pid, syscall.SIGPWR)
	if got, want := r.outcome(), (guardian.Outcome{}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	text, _ := os.ReadFile(out)
	lines := strings.Fields(string(text))
	slices.Sort(lines)
	want := append([]string{"ready"}, names...)
	slices.Sort(want)
	if !reflect.DeepEqual(lines, want) {
		t.Errorf("got %v, want each once: %v", lines, want)
	}
}

// TestKeysReachTheGroup has the signals of a terminal's keys reach all of the
// command's process group, and others the command alone.
func TestKeysReachTheGroup(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	file, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r := run(t, plan{Argv: shell(`trap 'echo parent-int' INT; trap 'echo parent-hup' HUP
sh -c 'trap "echo child-hup" HUP; trap "echo child-int; exit" INT; echo up; while :; do sleep 0.02; done'; exit 0`)},
		func(c *exec.Cmd) { c.Stdout = file })
	lines := func() []string {
		text, _ := os.ReadFile(out)
		return strings.Fields(string(text))
	}
	until(t, "the child", func() bool { return slices.Contains(lines(), "up") })
	r.signal(r.pid, syscall.SIGHUP) // the parent shows it when the child has ended
	r.signal(r.pid, syscall.SIGINT)
	r.outcome()
	got := lines()
	slices.Sort(got)
	if want := []string{"child-int", "parent-hup", "parent-int", "up"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func signalNumber(name string) syscall.Signal {
	return map[string]syscall.Signal{
		"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "TERM": syscall.SIGTERM,
		"USR1": syscall.SIGUSR1, "ALRM": syscall.SIGALRM, "WINCH": syscall.SIGWINCH,
	}[name]
}

// stat returns a process's parent and state, or 0 and "".
func stat(pid int) (parent int, state string) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, ""
	}
	rest := string(text[strings.LastIndexByte(string(text), ')')+1:])
	_, _ = fmt.Sscan(rest, &state, &parent)
	return parent, state
}
