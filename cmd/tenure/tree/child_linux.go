package tree

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/internal/clock"
	"golang.org/x/sys/unix"
)

// LeftoverAfter is how long SIGKILL may take before who is left is named.
const LeftoverAfter = 2 * time.Second

// sweepFirst and sweepMax bound the pause between two sweeps with SIGKILL.
const (
	sweepFirst = 2 * time.Millisecond
	sweepMax   = 50 * time.Millisecond
)

// Child is a command and everything below it, in the hands of its parent: a
// process that is a child subreaper, has no other children, and calls Start and
// all else from one goroutine on one thread. Instants are CLOCK_BOOTTIME.
//
// The zero Child has not been started.
type Child struct {
	pid    int
	pidfd  int // names its process group even after it was reaped
	cgroup string
	exited bool
	status syscall.WaitStatus
	end    *ending // nil until killing begins; then never nil again
}

// ending is a tree being killed.
type ending struct {
	killAt time.Duration
	asked  map[Identity]bool // who got SIGTERM
	killed time.Duration     // the first SIGKILL, or 0
	next   time.Duration     // the next sweep
	pause  time.Duration
}

// Start runs a command, in the cgroup if it is not "" and the kernel allows it.
// The error is the system's.
func (c *Child) Start(path string, argv []string, attr *syscall.ProcAttr, cgroup string) error {
	c.cgroup = cgroup
	attr.Sys.PidFD = &c.pidfd
	var err error = syscall.ENOENT
	if dir, openErr := openCgroup(cgroup); openErr == nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, dir
		c.pid, err = syscall.ForkExec(path, argv, attr)
		unix.Close(dir)
		attr.Sys.UseCgroupFD = false
	}
	if err != nil { // nothing ran; the cgroup may be what was refused
		c.pid, err = syscall.ForkExec(path, argv, attr)
	}
	return err
}

// PID returns the command's pid, 0 before Start.
func (c *Child) PID() int { return c.pid }

// Exited returns whether the command itself has been reaped, and how it ended.
func (c *Child) Exited() (syscall.WaitStatus, bool) { return c.status, c.exited }

// Ending reports whether the tree is being ended. That is never called off.
func (c *Child) Ending() bool { return c.end != nil }

// Killed returns when the first SIGKILL was sent, 0 if none was.
func (c *Child) Killed() time.Duration {
	if c.end == nil {
		return 0
	}
	return c.end.killed
}

// Due returns when Enforce has work next, if the tree is being ended.
func (c *Child) Due() time.Duration {
	switch {
	case c.end == nil:
		return 1<<63 - 1
	case c.end.killed == 0:
		return c.end.killAt
	}
	return c.end.next
}

// End begins to end the tree: SIGTERM now, and SIGKILL from killAt on, by
// Enforce. If it has begun, killAt can only come sooner. It reports whether
// SIGTERM was sent.
func (c *Child) End(now, killAt time.Duration) (asked bool) {
	if c.end != nil {
		c.end.killAt = min(c.end.killAt, killAt)
		return false
	}
	c.end = &ending{killAt: killAt, asked: make(map[Identity]bool), pause: sweepFirst}
	if now >= killAt {
		return false
	}
	c.ask(func(Process) bool { return true })
	return true
}

// Enforce sweeps with SIGKILL if that is due. It reports whether this was the
// first sweep.
func (c *Child) Enforce(now time.Duration) (first bool) {
	if c.end == nil || now < c.end.killAt || now < c.end.next {
		return false
	}
	return c.kill(now)
}

// ask sends SIGTERM to those that match and did not get it yet.
func (c *Child) ask(match func(Process) bool) {
	alive, _ := Descendants(os.Getpid(), nil)
	for _, p := range alive {
		if c.end.asked[p.Identity()] || !match(p) {
			continue
		}
		c.end.asked[p.Identity()] = true
		// What cannot be signalled shows when SIGKILL fails too. A stopped process
		// acts on SIGTERM only once it continues.
		_ = p.Send(syscall.SIGTERM)
		_ = p.Send(syscall.SIGCONT)
	}
}

// askOrphans asks who was started after SIGTERM went out and has lost its parent
// since. Who still has one is left to it: it may be what cleans up.
func (c *Child) askOrphans() {
	self := os.Getpid()
	c.ask(func(p Process) bool { return p.Parent == self && p.PID != c.pid })
}

// kill is one sweep with SIGKILL.
func (c *Child) kill(now time.Duration) (first bool) {
	KillCgroup(c.cgroup)
	if signalGroup(c.pidfd, syscall.SIGKILL) != nil && !c.exited {
		_ = syscall.Kill(-c.pid, syscall.SIGKILL) // not reaped, so the number is still its own
	}
	alive, _ := Descendants(os.Getpid(), nil)
	for _, p := range alive {
		_ = p.Send(syscall.SIGKILL)
	}
	if first = c.end.killed == 0; first {
		c.end.killed = now
	}
	c.end.next = clock.Boot() + c.end.pause
	c.end.pause = min(2*c.end.pause, sweepMax)
	return first
}

// Reap collects the dead and reports whether no child, and so no descendant, is
// left. changed, if not nil, is told when the command was stopped or continued.
func (c *Child) Reap(changed func(syscall.WaitStatus)) (empty bool) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|syscall.WUNTRACED|syscall.WCONTINUED|unix.WALL, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // ECHILD
			return true
		case pid == 0:
			if c.end != nil && c.end.killed == 0 {
				c.askOrphans()
			}
			return false
		case pid != c.pid:
		case status.Stopped() || status.Continued():
			if changed != nil {
				changed(status)
			}
		default:
			c.exited, c.status = true, status
		}
	}
}

// Signal sends sig to the command alone.
func (c *Child) Signal(sig syscall.Signal) {
	if !c.exited {
		_ = syscall.Kill(c.pid, sig) // not reaped: the pid is still its own
	}
}

// SignalGroup sends sig to the command's process group.
func (c *Child) SignalGroup(sig syscall.Signal) {
	if signalGroup(c.pidfd, sig) != nil {
		if !c.exited {
			_ = syscall.Kill(-c.pid, sig)
		}
	}
}

// RemoveCgroup removes the cgroup that the command was given.
func (c *Child) RemoveCgroup() { RemoveCgroup(c.cgroup) }

// CloseOnExec keeps every descriptor of this process above the first three from
// the programs that it starts: those that leaked into it, too.
func CloseOnExec() {
	if unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	open, _ := filepath.Glob("/proc/self/fd/*") // before Linux 5.11
	for _, path := range open {
		if fd, err := strconv.Atoi(filepath.Base(path)); err == nil && fd >= 3 {
			syscall.CloseOnExec(fd)
		}
	}
}
