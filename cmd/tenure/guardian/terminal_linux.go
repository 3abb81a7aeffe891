package guardian

import (
	"os"
	"runtime"
	"syscall"

	"github.com/tenurehq/tenure/cmd/tenure/tree"
	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal of this process.
type terminal struct{ fd int }

// openTerminal returns nil if this process has no controlling terminal.
func openTerminal() *terminal {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	return &terminal{fd}
}

func (t *terminal) close() {
	if t != nil {
		unix.Close(t.fd)
	}
}

// foreground returns the process group that the terminal's keys reach, or 0.
func (t *terminal) foreground() int {
	if t == nil {
		return 0
	}
	pgid, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return pgid
}

// give puts a process group in the foreground. A process in the background that
// does this is stopped with SIGTTOU unless it blocks it, as here.
func (t *terminal) give(pgid int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var block, old unix.Sigset_t
	block.Val[0] = 1 << (uint(syscall.SIGTTOU) - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &block, &old); err != nil {
		return err
	}
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) }() // the mask it had
	return unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, pgid)
}

// isTerminal reports whether f is a terminal.
func isTerminal(f *os.File) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	terminal := false
	_ = raw.Control(func(fd uintptr) {
		_, err := unix.IoctlGetTermios(int(fd), unix.TCGETS)
		terminal = err == nil
	})
	return terminal
}

// orphanedJob reports that nobody could continue this process's job if it
// stopped: no ancestor outside its process group belongs to its session. The
// kernel itself does not stop such a job on Ctrl-Z.
func orphanedJob() bool {
	own := unix.Getpgrp()
	session, err := unix.Getsid(0)
	if err != nil {
		return true
	}
	for pid := os.Getppid(); pid > 0; {
		parent, err := tree.Read(pid)
		if err != nil {
			return true
		}
		if parent.Group != own {
			sid, err := unix.Getsid(pid)
			return err != nil || sid != session
		}
		pid = parent.Parent
	}
	return true
}
