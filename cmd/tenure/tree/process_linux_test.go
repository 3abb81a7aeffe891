package tree_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/tenurehq/tenure/cmd/tenure/tree"
)

func TestReusedPidIsNotSignalled(t *testing.T) {
	t.Parallel()
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	now, err := tree.Read(other.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	before := now
	before.Start-- // who had the pid before
	if err := before.Send(syscall.SIGKILL); err != nil {
		t.Errorf("got %v, want no error for a process that is gone", err)
	}
	if err := now.Send(syscall.SIGTERM); err != nil {
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
	got, err := tree.Read(child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if got.Parent != os.Getpid() || got.Comm != filepath.Base(odd) {
		t.Errorf("got %+v, want parent %d and name %q", got, os.Getpid(), filepath.Base(odd))
	}
}
