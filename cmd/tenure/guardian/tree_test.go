//go:build linux

package guardian_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/cmd/tenure/guardian"
)

func TestCgroupIsUsedAndRemoved(t *testing.T) {
	t.Parallel()
	r := run(t, plan{Argv: shell("sleep 60")})
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", r.command))
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("tenure-%d-", r.pid)
	_, path, made := strings.Cut(string(text), "0::")
	path, _, _ = strings.Cut(path, "\n")
	if made = made && strings.Contains(path, name); made {
		t.Logf("the command is in cgroup %s", path)
	}
	r.signal(r.pid, syscall.SIGUSR2)
	r.outcome()
	if !made {
		t.Skip("no writable cgroup v2 here")
	}
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(mount + path); err == nil {
			t.Errorf("cgroup %s is left", mount+path)
		}
	}
}

// TestPrivilegedDescendantIsNamed has a runner without privileges and a
// descendant that became root: nobody here may signal it.
func TestPrivilegedDescendantIsNamed(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root, to make a setuid program and to run without privileges")
	}
	dir, err := os.MkdirTemp("", "guardian-setuid-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program, privileged := filepath.Join(dir, "runner"), filepath.Join(dir, "privileged")
	copyFile(t, self(t), program, 0o755)
	copyFile(t, self(t), privileged, 0o755|os.ModeSetuid)
	r := launch(t, plan{
		Argv: shell("TEST_PART=become_root " + privileged + " & echo $!; exec sleep 60"), Grace: 100 * time.Millisecond,
	}, func(c *exec.Cmd) {
		c.Path, c.Args[0] = program, program
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		planFile := filepath.Join(dir, "plan")
		for i, v := range c.Env {
			if old, ok := strings.CutPrefix(v, "TEST_PLAN="); ok {
				copyFile(t, old, planFile, 0o644)
				c.Env[i] = "TEST_PLAN=" + planFile
			}
		}
	})
	r.await("the command to start", func(s said) bool { return s.Started != 0 })
	var root []int
	until(t, "a descendant to become root", func() bool {
		root = root[:0]
		for _, pid := range r.tree() {
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if strings.Contains(string(status), "\nUid:\t0\t0\t0\t0\n") {
				root = append(root, pid)
			}
		}
		return len(root) == 1
	})
	from := time.Now()
	r.signal(r.pid, syscall.SIGUSR2)
	got := r.outcome()
	t.Logf("MEASURE a descendant that cannot be killed: named after %v", time.Since(from))
	defer syscall.Kill(root[0], syscall.SIGKILL)
	if len(got.Leftovers) != 1 || got.Leftovers[0].PID != root[0] || got.Leftovers[0].Comm != "privileged" ||
		!strings.Contains(got.Leftovers[0].Why, "may not be signalled") {
		t.Errorf("got %+v, want pid %d named", got, root[0])
	}
	if left := r.tree(); !reflect.DeepEqual(left, root) {
		t.Errorf("alive: %v, want %v", left, root)
	}
	_ = syscall.Kill(root[0], syscall.SIGKILL)
	r.fall(time.Now())
}

// TestFirstProcessOfContainer runs the runner as PID 1.
func TestFirstProcessOfContainer(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root, to make a pid namespace")
	}
	inside := func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS}
	}
	for _, script := range []string{
		`(setsid sleep 0.05 &); sleep 0.2; test $(ps -eo stat= | grep -c Z) = 0`,
		stubborn,
	} {
		r := run(t, plan{Argv: shell(script), MountProc: true, Grace: 100 * time.Millisecond}, inside)
		// The pids it tells are those of its own namespace.
		r.command, r.guardian = 0, 0
		if script == stubborn {
			r.grown(stubbornSize)
			r.signal(r.pid, syscall.SIGUSR2)
			if got := r.outcome(); got.Why != guardian.WhyStop || len(got.Leftovers) > 0 {
				t.Errorf("got %+v, want why stop", got)
			}
		} else if got := r.outcome(); got.ExitCode != 0 {
			t.Errorf("got %+v, want no zombie", got)
		}
	}
}

// TestForkChain has a process that forks and ends, or also leaves its session, as
// fast as it can: each pid lives for a moment.
func TestForkChain(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("perl"); err != nil {
		t.Skip("no perl here, which the test uses to fork fast")
	}
	for _, c := range []struct {
		name, program string
	}{
		{"group", `$SIG{TERM}="IGNORE"; while(1) { exit if fork }`},
		{"session", `use POSIX; $SIG{TERM}="IGNORE"; while(1) { exit if fork; POSIX::setsid() }`},
	} {
		for way, noCgroup := range map[string]bool{"cgroup": false, "scan": true} {
			t.Run(c.name+"/"+way, func(t *testing.T) { // one after the other: they take all of a processor
				r := run(t, plan{NoCgroup: noCgroup, Argv: append(shell(`perl -e "$0" & sleep 60`), c.program), Grace: 50 * time.Millisecond})
				links := make(map[int]bool)
				until(t, "links of the chain", func() bool {
					for _, pid := range r.tree() {
						if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); string(comm) == "perl\n" {
							links[pid] = true
						}
					}
					return len(links) >= 3
				})
				from := time.Now()
				r.signal(r.pid, syscall.SIGUSR2)
				got := r.outcome()
				t.Logf("MEASURE fork chain: outcome after %v, leftovers %v", time.Since(from), got.Leftovers)
				if len(got.Leftovers) > 0 && c.name == "session" && noCgroup {
					r.end() // the one case that is not promised; it was named
					return
				}
				if left := r.tree(); len(left) > 0 || len(got.Leftovers) > 0 {
					t.Errorf("got %+v with %v alive, want none left", got, left)
				}
			})
		}
	}
}
