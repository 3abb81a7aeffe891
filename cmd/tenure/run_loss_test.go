//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/cmd/tenure/guardian"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
	"github.com/tenurehq/tenure/store/storetest"
)

// lines returns the lines of a file, none if it is not there.
func lines(path string) []string {
	text, _ := os.ReadFile(path)
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")[:strings.Count(string(text), "\n")]
}

// attentive is a script that logs its token, and that it was asked to end, with
// which it takes 0.3 s; it ends by itself as soon as the file finish exists.
func attentive(log string) []string {
	return []string{"--", "sh", "-c", fmt.Sprintf(
		`exec 2>/dev/null; trap 'sleep 0.3; echo term $TENURE_TOKEN >> %[1]s; exit 0' TERM; echo run $TENURE_TOKEN >> %[1]s; while [ ! -e %[1]s.finish ]; do sleep 0.02; done`, log)}
}

func expectLines(t *testing.T, log string, want ...string) {
	t.Helper()
	until(t, fmt.Sprintf("%d lines of the command", len(want)), func() bool { return len(lines(log)) >= len(want) })
	if got := strings.Join(lines(log), ", "); got != strings.Join(want, ", ") {
		t.Errorf("the commands said %q, want %q", got, strings.Join(want, ", "))
	}
}

// A revoked term: the command is asked to end, the lease is given back when it
// has, and who waits runs under a larger token.
func TestRunRevoked(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, target string) {
		log := filepath.Join(t.TempDir(), "log")
		a := start(t, append([]string{"run", "revoked", "--ttl", "10s", "--store", target}, attentive(log)...)...)
		expectLines(t, log, "run 1")
		b := start(t, append([]string{"run", "revoked", "--ttl", "10s", "--store", target}, attentive(log)...)...)
		b.waiting()
		cli(t, "lease", "revoke", "revoked", "--token", "1", "--reason", "wrong version", "--store", target).want(t, exitOK)
		a.wait().want(t, exitLost, `lost "revoked"`, "token 1", "revoked", "wrong version")
		expectLines(t, log, "run 1", "term 1", "run 2")
		b.signal(syscall.SIGTERM)
		b.wait()
		expectLines(t, log, "run 1", "term 1", "run 2", "term 2")
	})
}

// Revoked with --now the lease is free at once: who waits runs though the
// holder has not learnt of it, which is what --now says. The holder is killed
// without grace as soon as it knows.
func TestRunRevokedNow(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	log := filepath.Join(t.TempDir(), "log")
	a := start(t, append([]string{"run", "a", "--ttl", "3s", "--store", path}, attentive(log)...)...)
	expectLines(t, log, "run 1")
	b := start(t, append([]string{"run", "a", "--store", path}, attentive(log)...)...)
	b.waiting()
	cli(t, "lease", "revoke", "a", "--token", "1", "--reason", "it hangs", "--now", "--store", path).want(t, exitOK, "two may act")
	a.wait().want(t, exitLost, `lost "a"`)
	expectLines(t, log, "run 1", "run 2") // no "term 1"
	b.signal(syscall.SIGTERM)
	b.wait()
}

// --on-loss again: the command runs again, under a new and larger token.
func TestRunOnLossAgain(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, target string) {
		log := filepath.Join(t.TempDir(), "log")
		a := start(t, append([]string{"run", "again", "--on-loss", "again", "--ttl", "10s", "--store", target}, attentive(log)...)...)
		expectLines(t, log, "run 1")
		cli(t, "lease", "revoke", "again", "--token", "1", "--reason", "x", "--store", target).want(t, exitOK)
		expectLines(t, log, "run 1", "term 1", "run 2")
		if err := os.WriteFile(log+".finish", nil, 0o644); err != nil {
			t.Fatal(err)
		}
		r := a.wait()
		if r.code != exitOK || strings.Count(r.err, "\n") != 1 || !strings.Contains(r.err, "trying again") || !strings.Contains(r.err, "revoked") {
			t.Errorf("got %d, %q; want 0 and a line about the loss", r.code, r.err)
		}
		released(t, target, "again")
	})
}

// A handed over lease goes to the host that it was promised to, not to who waits longer.
func TestRunHandoff(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can give a process another host name")
	}
	path := fileStore(t)
	log := filepath.Join(t.TempDir(), "log")
	a := start(t, append([]string{"run", "a", "--ttl", "10s", "--store", path}, attentive(log)...)...)
	expectLines(t, log, "run 1")
	here := start(t, append([]string{"run", "a", "--store", path}, attentive(log)...)...)
	here.waiting()
	there := startWith(t, func(cmd *exec.Cmd) {
		cmd.Args = append([]string{"sh", "-c", `echo elsewhere > /proc/sys/kernel/hostname && exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
		cmd.Path = "/bin/sh"
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUTS}
	}, append([]string{"run", "a", "--ttl", "10s", "--store", path}, attentive(log)...)...)
	there.waiting()
	cli(t, "lease", "handoff", "a", "--to", "elsewhere", "--token", "1", "--reason", "update", "--store", path).want(t, exitOK, "elsewhere")
	a.wait().want(t, exitLost, "revoked", "update")
	expectLines(t, log, "run 1", "term 1", "run 2")
	if r := get(t, open(t, path), "a"); !strings.HasPrefix(r.Holder, "elsewhere/") {
		t.Errorf("got holder %q, want elsewhere", r.Holder)
	}
	for _, p := range []*program{here, there} {
		p.signal(syscall.SIGTERM)
		p.wait()
	}
}

// Without progress the tree is killed and the lease given back, so that
// somebody else runs.
func TestRunStalled(t *testing.T) {
	t.Parallel()
	for how, script := range map[string]string{
		// Three steps, 0.8 s apart, and then none.
		"file": `for i in 1 2 3; do echo $i > %[1]s.marker; sleep 0.8; done; echo stalled >> %[1]s; sleep 60`,
		"fd":   `[ $TENURE_PROGRESS_FD = 3 ] || exit 9; for i in 1 2 3; do echo $i >&3; sleep 0.8; done; echo stalled >> %[1]s; while :; do echo 3 >&3; sleep 0.1; done`,
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			path := fileStore(t)
			log := filepath.Join(t.TempDir(), "log")
			progress := log + ".marker"
			if how == "fd" {
				progress = "fd"
			}
			begin := clock.Boot()
			a := start(t, "run", "a", "--stall-after", "2s", "--progress", progress, "--store", path, "--", "sh", "-c", fmt.Sprintf(script, log))
			expectLines(t, log, "stalled")
			b := start(t, append([]string{"run", "a", "--store", path}, attentive(log)...)...)
			a.wait().want(t, exitNoProgress, `lost "a"`, "no_progress")
			expectLines(t, log, "stalled", "run 2")
			if took := clock.Boot() - begin; took < 3500*time.Millisecond {
				t.Errorf("stopped after %s, though it got on for 1.6s", took)
			}
			// Long before the 30 s of the term: it was given back.
			b.signal(syscall.SIGTERM)
			b.wait()
		})
	}
}

// doubt runs "tenure doubt" for the keepers that listen in dir.
func doubt(t *testing.T, dir string, args ...string) result {
	t.Helper()
	return startWith(t, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "TENURE_RUNTIME_DIR="+dir) }, append([]string{"doubt"}, args...)...).wait()
}

// listening waits until the keeper of p can be told.
func (p *program) listening() {
	p.t.Helper()
	until(p.t, "the keeper to listen", func() bool {
		found, _ := filepath.Glob(filepath.Join(p.dir, "*.doubt"))
		return len(found) > 0
	})
}

// After a wake every term is confirmed anew, and goes on.
func TestRunDoubtWake(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	st := open(t, path)
	a, finish := held(t, path, "a", "--ttl", "1h") // no renewal of its own for minutes
	a.listening()
	before := get(t, st, "a")
	r := doubt(t, a.dir, "--reason", "wake", "-o", "json")
	var replies struct{ Keepers []doubtJSON }
	if err := json.Unmarshal([]byte(r.out), &replies); r.code != exitOK || err != nil || len(replies.Keepers) != 1 || replies.Keepers[0].Terms != 1 || replies.Keepers[0].Holder != before.Holder {
		t.Errorf("got %d, %q, %q (%v)", r.code, r.out, r.err, err)
	}
	until(t, "a renewal", func() bool { return get(t, st, "a").Revision != before.Revision })
	finish()
	a.wait().clean(t, exitOK)
	if r := get(t, st, "a"); r.Token != 1 {
		t.Errorf("got token %s, want 1", r.Token)
	}
	if r := doubt(t, a.dir); r.code != exitOK || r.out != "no keeper listens on this host\n" {
		t.Errorf("afterwards: got %d, %q, %q", r.code, r.out, r.err)
	}
}

// After a restore a copy may be at work: the tree is killed at once, without
// grace, and whoever goes on has a larger token.
func TestRunDoubtRestore(t *testing.T) {
	t.Parallel()
	for _, how := range []string{onLossExit, onLossAgain} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			path := fileStore(t)
			log := filepath.Join(t.TempDir(), "log")
			a := start(t, append([]string{"run", "a", "--on-loss", how, "--ttl", "1h", "--store", path}, attentive(log)...)...)
			expectLines(t, log, "run 1")
			a.listening()
			doubt(t, a.dir, "--reason", "restore", "--why", "from last night").want(t, exitOK)
			if how == onLossExit {
				a.wait().want(t, exitLost, "restored", "from last night")
				expectLines(t, log, "run 1")
				// Nothing will replace the term, so it is given back, by its own
				// record: had a copy renewed it, this would change nothing.
				released(t, path, "a")
				return
			}
			expectLines(t, log, "run 1", "run 2") // without waiting for the hour to pass
			a.signal(syscall.SIGTERM)
			if r := a.wait(); r.code != exitOK {
				t.Errorf("got %d, %q", r.code, r.err)
			}
		})
	}
}

// A keeper that cannot answer is named, so that a hook can act on it.
func TestRunDoubtStoppedKeeper(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	a, finish := held(t, path, "a")
	a.listening()
	a.signal(syscall.SIGSTOP)
	r := doubt(t, a.dir)
	if r.code != exitUnavailable || strings.Count(r.err, "\n") != 1 || !strings.Contains(r.err, "did not answer") || !strings.Contains(r.err, strconv.Itoa(a.pid())) {
		t.Errorf("got %d, %q, %q; want %d and the keeper's name", r.code, r.out, r.err, exitUnavailable)
	}
	a.signal(syscall.SIGCONT)
	finish()
	a.wait().clean(t, exitOK)
	doubt(t, a.dir, "--reason", "sleep").want(t, exitUsage, `"sleep"`, "wake or restore")
}

// P3 and P4: runner and guardian are stopped together for longer than the term,
// as by a frozen host, and the command runs on. Whoever wakes first kills it
// before anything is sent to the store.
func TestRunFrozen(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"runner", "guardian"} {
		t.Run(first+" first", func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, target string) {
				lease, dir := strings.ReplaceAll(t.Name(), " ", "-"), t.TempDir()
				st := open(t, target)
				a := start(t, "run", lease, "--ttl", "2s", "--store", target, "--", part(t, "beat"), dir, "stubborn", "family")
				until(t, "the command", func() bool { return len(lives(t, dir)) == 2 })
				guard := a.guardian()
				a.signal(syscall.SIGSTOP)
				_ = syscall.Kill(guard, syscall.SIGSTOP)
				t.Cleanup(func() { _ = syscall.Kill(guard, syscall.SIGCONT) })
				until(t, "the expiry", func() bool { return get(t, st, lease).Status == store.Lapsed })
				before := get(t, st, lease)
				if len(members(lease)) != 2 {
					t.Fatalf("got processes %v, want two that run on", members(lease))
				}
				thawed := clock.Boot()
				wake := []func(){func() { a.signal(syscall.SIGCONT) }, func() { _ = syscall.Kill(guard, syscall.SIGCONT) }}
				if first == "guardian" {
					wake[0], wake[1] = wake[1], wake[0]
				}
				wake[0]()
				until(t, "the tree to die, or a write", func() bool {
					changed := get(t, st, lease).Revision != before.Revision
					alive := len(members(lease)) > 0 // after the record was read
					if changed && alive {
						t.Error("the store was written to while the tree was alive")
					}
					return changed || !alive
				})
				wake[1]()
				r := a.wait()
				if r.code != exitLost || !strings.Contains(r.err, fmt.Sprintf("lost %q", lease)) {
					t.Errorf("got %d, %q; want %d", r.code, r.err, exitLost)
				}
				for _, l := range lives(t, dir) {
					if l.last-thawed > time.Second {
						t.Errorf("process %d lived on for %s after the thaw", l.pid, l.last-thawed)
					}
				}
				// A write to the file that had begun may end after the thaw, by the clock of before.
				if r := get(t, st, lease); r.RenewedAt.After(before.ExpiresAt) || r.Token != before.Token {
					t.Errorf("got a renewal at %s, token %s, after the one at %s, token %s", r.RenewedAt, r.Token, before.RenewedAt, before.Token)
				}
			})
		})
	}
}

// A pause that ends within the term costs nothing.
func TestRunShortPause(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	a, finish := held(t, path, "a", "--ttl", "1m")
	guard := a.guardian()
	a.signal(syscall.SIGSTOP)
	_ = syscall.Kill(guard, syscall.SIGSTOP)
	pause := time.NewTimer(500 * time.Millisecond)
	<-pause.C
	_ = syscall.Kill(guard, syscall.SIGCONT)
	a.signal(syscall.SIGCONT)
	finish()
	a.wait().clean(t, exitOK)
}

// A guardian that was stopped may wake past the deadline that it knew, and then
// kills although the runner has renewed. That is said, and is a loss; if the
// runner was quicker to lose its patience, that is said too.
func TestRunGuardianWokeLate(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	a, _ := held(t, path, "a", "--ttl", "2s")
	guard := a.guardian()
	_ = syscall.Kill(guard, syscall.SIGSTOP)
	pause := time.NewTimer(1700 * time.Millisecond) // the deadline is 1.6 s away at most, patience 2 s
	<-pause.C
	_ = syscall.Kill(guard, syscall.SIGCONT)
	switch r := a.wait(); {
	case r.code == exitLost && strings.Contains(r.err, "no renewal"):
	case r.code == 137 && strings.Contains(r.err, "guardian stopped answering"):
	default:
		t.Errorf("got %d, %q", r.code, r.err)
	}
	released(t, path, "a")
}

// What cannot be killed is named, and then the lease is left to expire: it must
// not be given back while something of the command lives.
func TestRunLeftover(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can make a program that the runner may not signal")
	}
	dir, err := os.MkdirTemp("", "tenure") // others may enter it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct {
		name string
		mode os.FileMode
	}{{"tenure", 0o755}, {"rootly", 0o755 | os.ModeSetuid}} {
		path := filepath.Join(dir, f.name)
		if err := os.WriteFile(path, text, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, f.mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	target, mark := filepath.Join(dir, "leases.db"), filepath.Join(dir, "mark")
	a := startWith(t, func(cmd *exec.Cmd) {
		cmd.Path = filepath.Join(dir, "tenure")
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}, "run", "a", "--ttl", "6s", "--store", target, "--", filepath.Join(dir, "rootly"), mark)
	until(t, "the command, or the end", func() bool {
		_, err := os.Stat(mark)
		select {
		case <-a.done:
			return true
		default:
			return err == nil
		}
	})
	if _, err := os.Stat(mark); err != nil {
		t.Skipf("setuid has no effect here: %s", a.wait().err)
	}
	t.Cleanup(func() { os.Remove(mark) })
	st := open(t, target)
	cli(t, "lease", "revoke", "a", "--token", "1", "--reason", "x", "--store", target).want(t, exitOK)
	r := a.wait()
	if r.code != exitLost || !strings.Contains(r.err, "(rootly) could not be ended") || !strings.Contains(r.err, "left to expire") {
		t.Errorf("got %d, %q", r.code, r.err)
	}
	if rec := get(t, st, "a"); rec.Status == store.Released {
		t.Errorf("got %s, want the lease left to expire", rec.Status)
	}
}

// As PID 1 of a container the program passes codes on and reaps whoever ends.
func TestRunAsFirstProcess(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can make a process namespace")
	}
	contain := func(cmd *exec.Cmd) {
		cmd.Args = append([]string{"unshare", "-pf", "--mount-proc", cmd.Path}, cmd.Args[1:]...)
		cmd.Path, cmd.Err = exec.LookPath("unshare")
	}
	path := fileStore(t)
	for script, code := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -9 $$": 137, "kill -15 $$": 143} {
		startWith(t, contain, "run", "a", "--store", path, "--", "sh", "-c", script).wait().clean(t, code)
	}
	startWith(t, contain, "run", "a", "--store", path, "--", "nosuch-command").wait().want(t, exitNoCommand, "nosuch-command")

	// Orphans, from below the command and from elsewhere in the container.
	log := filepath.Join(t.TempDir(), "log")
	p := startWith(t, contain, append([]string{"run", "b", "--store", path}, attentive(log)...)...)
	expectLines(t, log, "run 1")
	inside := 0
	for pid, env := range environments() {
		if env["TENURE_RUNTIME_DIR"] == p.dir && env["TENURE_LEASE"] == "" && pid != p.pid() {
			inside = pid
		}
	}
	if out, err := exec.Command("nsenter", "-t", strconv.Itoa(inside), "-p", "-m", "sh", "-c", "for i in 1 2 3; do (setsid true &); done").CombinedOutput(); err != nil {
		t.Fatalf("nsenter: %v: %s", err, out)
	}
	until(t, "the orphans to be reaped", func() bool {
		stats, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, path := range stats {
			text, _ := os.ReadFile(path)
			fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
			if len(fields) > 1 && fields[0] == "Z" && fields[1] == strconv.Itoa(inside) {
				return false
			}
		}
		return true
	})
	if err := syscall.Kill(inside, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.wait().clean(t, exitOK)
	expectLines(t, log, "run 1", "term 1")
	released(t, path, "b")
}

// In doubt a command's time is cut to the margin, and no more than that.
func TestRunDoubtCutsTheTime(t *testing.T) {
	t.Parallel()
	j := &job{note: newNotebook(console{err: io.Discard}, "a", false), margin: time.Second, grace: 100 * time.Millisecond}
	j.event(tenure.Event{Kind: tenure.EventDoubt})
	if (j.last != guardian.Deadline{}) {
		t.Errorf("a deadline %+v before the first confirmation", j.last)
	}
	for _, left := range []time.Duration{time.Hour, 200 * time.Millisecond} {
		until := clock.Boot() + left
		j.last = guardian.Deadline{TermAt: until, KillAt: until + j.grace}
		j.event(tenure.Event{Kind: tenure.EventDoubt})
		if most := min(until, clock.Boot()+j.margin); j.last.TermAt > most || j.last.KillAt != j.last.TermAt+j.grace {
			t.Errorf("with %s left: deadline %+v, want at most %s and the grace", left, j.last, most)
		}
	}
}

// bornInDoubt returns a job whose term began in doubt and is not confirmed:
// the store answers nothing more.
func bornInDoubt(t *testing.T, ttl time.Duration, flags runFlags) *job {
	t.Helper()
	st := storetest.NewFaulty(memory.New())
	flags.name, flags.ttl, flags.argv = "a", ttl, []string{"/bin/false"}
	j := &job{f: &flags, note: newNotebook(console{err: io.Discard}, "a", false), margin: ttl / 5, grace: ttl / 10, st: st}
	k, err := tenure.NewKeeper(st, tenure.Config{TTL: ttl, OnEvent: j.event})
	if err != nil {
		t.Fatal(err)
	}
	j.k = k
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- k.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	st.Rule(func(op storetest.Op) storetest.Fault {
		switch op {
		case storetest.OpAcquire: // told while it is on its way
			k.Doubt(tenure.DoubtWake, "")
		case storetest.OpRenew:
			return storetest.Fault{DropRequest: true}
		}
		return storetest.Fault{}
	})
	return j
}

// codeOf returns the exit code that err carries, 0 if none.
func codeOf(err error) int {
	var e *exitError
	if errors.As(err, &e) {
		return e.code
	}
	return 0
}

// A signal ends the wait for the confirmation of a term that began in doubt.
func TestRunEndedInDoubt(t *testing.T) {
	t.Parallel()
	j := bornInDoubt(t, time.Hour, runFlags{})
	ctx, cancel := context.WithCancelCause(t.Context())
	term, err := j.acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		j.undoubted(ctx, term)
		_, err := j.command(ctx, term)
		ended <- err
	}()
	j.pass(syscall.SIGTERM, cancel)
	select {
	case err := <-ended:
		if codeOf(err) != 128+int(syscall.SIGTERM) {
			t.Errorf("ended with %v, want the code of the signal", err)
		}
	case <-time.After(patience):
		t.Error("a signal did not end the waiting")
	}
	if err := j.release(term); err != nil {
		t.Error(err)
	}
}

// A term that began in doubt and was lost before it was confirmed is a loss as
// any other: --on-loss again tries for another.
func TestRunLostInDoubt(t *testing.T) {
	t.Parallel()
	j := bornInDoubt(t, 500*time.Millisecond, runFlags{noWait: true, onLoss: onLossAgain})
	again, err := j.once(t.Context())
	if !again || codeOf(err) != exitLost || !errors.Is(err, tenure.ErrLost) {
		t.Errorf("again %v, code %d, %v; want to try again after a loss", again, codeOf(err), err)
	}
}

// A guardian that is killed while the system starts the command cannot say
// whether it ran: the lease is left to expire.
func TestRunMayHaveRun(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	program, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "slow")
	if err := os.WriteFile(file, program, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// Whoever opens a file that is leased from the system waits for the lease to
	// be given back: here, the one that executes it.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skipf("this file system has no leases: %v", err)
	}
	p := start(t, "run", "a", "--store", path, "--", file)
	until(t, "the command to be about to start", func() bool {
		kind, err := unix.FcntlInt(f.Fd(), unix.F_GETLEASE, 0)
		return err == nil && kind != unix.F_WRLCK || p.over()
	})
	if err := syscall.Kill(p.guardian(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.wait().want(t, exitLost, "left to expire", "may have run")
	if rec := get(t, open(t, path), "a"); rec.Status != store.Held {
		t.Errorf("the lease is %s, want it left to expire", rec.Status)
	}
}
