//go:build linux

package guardian

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// These look inside: nobody can make a pid be reused, or choose which of two
// things that are ready wakes the guardian.

func TestGuardianRefusesLateDeadline(t *testing.T) {
	t.Parallel()
	first, later := Deadline{TermAt: 100, KillAt: 200}, Deadline{TermAt: 300, KillAt: 400}
	for _, c := range []struct {
		now  time.Duration
		want Deadline
	}{{99, later}, {100, first}, {250, first}} {
		s := &server{deadline: first}
		s.handle(request{Deadline: &later}, c.now)
		if s.deadline != c.want {
			t.Errorf("read at %d: got %v, want %v", c.now, s.deadline, c.want)
		}
	}
}

func TestReusedPidIsNotSignalled(t *testing.T) {
	t.Parallel()
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	now, err := readProcess(other.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	before := now
	before.start-- // who had the pid before
	if err := before.send(syscall.SIGKILL); err != nil {
		t.Errorf("got %v, want no error for a process that is gone", err)
	}
	if err := now.send(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	_ = other.Wait()
	if got := other.ProcessState.Sys().(syscall.WaitStatus).Signal(); got != syscall.SIGTERM {
		t.Errorf("ended by %v, want only the second signal", got)
	}
}

func TestProcessNameMayHoldAnything(t *testing.T) {
	t.Parallel()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	odd := filepath.Join(t.TempDir(), "a) S 1 (b\n")
	if err := os.Symlink(sleep, odd); err != nil {
		t.Fatal(err)
	}
	child := exec.Command(odd, "60")
	if err := child.Start(); err != nil {
		t.Skipf("this sleep does not run under another name: %v", err)
	}
	defer child.Wait()
	defer child.Process.Kill()
	got, err := readProcess(child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if got.ppid != os.Getpid() || got.comm != filepath.Base(odd) {
		t.Errorf("got %+v, want parent %d and name %q", got, os.Getpid(), filepath.Base(odd))
	}
}
