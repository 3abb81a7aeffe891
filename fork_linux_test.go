package tenure

import (
	"syscall"
	"testing"
)

func forgottenMark() *forkMark {
	m := newForkMark()
	if m.page != nil {
		*m.page = 0
	}
	return m
}

// A real fork: the child sees its mark gone without a system call of its own.
func TestP4ForkIsSeen(t *testing.T) {
	m := newForkMark()
	if m.page == nil {
		t.Skip("this kernel has no MADV_WIPEONFORK")
	}
	if m.forked() {
		t.Fatal("the process that made the mark takes itself for a fork")
	}
	// The child has one thread and no scheduler: it does nothing but look and leave.
	syscall.ForkLock.Lock()
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno == 0 && pid == 0 {
		code := uintptr(7)
		if m.forked() {
			code = 42
		}
		for {
			_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, code, 0, 0)
		}
	}
	syscall.ForkLock.Unlock()
	if errno != 0 {
		t.Fatalf("clone: %v", errno)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(int(pid), &status, 0, nil); err != nil {
		t.Fatal(err)
	}
	if status.ExitStatus() != 42 {
		t.Fatalf("child left with %d, want 42: it took itself for its parent", status.ExitStatus())
	}
	if m.forked() {
		t.Fatal("the parent takes itself for a fork")
	}
}
