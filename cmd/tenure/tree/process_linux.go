package tree

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Process is one line of the process table. A pid alone names a process only
// until it is reused; with the start time it names one for good.
type Process struct {
	PID, Parent, Group, SID int

	Start uint64 // clock ticks since boot
	State byte   // as in proc_pid_stat(5)
	Comm  string // its name as the kernel shows it
}

// Identity names a process of this boot for good.
type Identity struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot
}

// Identity returns what tells p from all other processes of this boot.
func (p Process) Identity() Identity { return Identity{p.PID, p.Start} }

// Dead reports a process that only waits to be reaped.
func (p Process) Dead() bool { return p.State == 'Z' || p.State == 'X' }

// Read reads /proc/PID/stat, see proc_pid_stat(5).
func Read(pid int) (Process, error) {
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Process{}, err
	}
	// The name is in parentheses and may contain anything, parentheses too.
	open, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if open < 0 || end < open {
		return Process{}, fmt.Errorf("tree: cannot read process %d: %q", pid, line)
	}
	fields := strings.Fields(string(line[end+1:])) // from field 3, the state
	if len(fields) < 20 {
		return Process{}, fmt.Errorf("tree: cannot read process %d: %q", pid, line)
	}
	p := Process{PID: pid, State: fields[0][0], Comm: string(line[open+1 : end])}
	p.Parent, _ = strconv.Atoi(fields[1])
	p.Group, _ = strconv.Atoi(fields[2])
	p.SID, _ = strconv.Atoi(fields[3])
	p.Start, err = strconv.ParseUint(fields[19], 10, 64)
	return p, err
}

// Table returns all processes that /proc shows.
func Table() ([]Process, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("tree: process table: %w", err)
	}
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return nil, fmt.Errorf("tree: process table: %w", err)
	}
	var all []Process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, err := Read(pid); err == nil {
			all = append(all, p)
		}
	}
	return all, nil
}

// Descendants returns the live processes below root, parents before children,
// without those whose identity is in skip and what is below them.
//
// It is a snapshot of a moving thing: a process whose parent ended between two
// reads is missed. Whoever needs to know that nothing is left asks wait4.
func Descendants(root int, skip map[Identity]bool) ([]Process, error) {
	all, err := Table()
	if err != nil {
		return nil, err
	}
	children := make(map[int][]Process)
	for _, p := range all {
		if !skip[p.Identity()] {
			children[p.Parent] = append(children[p.Parent], p)
		}
	}
	var found []Process
	queue := []int{root}
	seen := map[int]bool{root: true} // the snapshot is not atomic and might hold a circle
	for len(queue) > 0 {
		for _, p := range children[queue[0]] {
			if seen[p.PID] {
				continue
			}
			seen[p.PID] = true
			queue = append(queue, p.PID)
			if !p.Dead() {
				found = append(found, p)
			}
		}
		queue = queue[1:]
	}
	return found, nil
}

// Send signals exactly this process, and with SIGKILL also the process group
// that it leads: the kernel makes that atomic, so that no fork escapes it.
// A process that is gone is no error.
func (p Process) Send(sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil && !errors.Is(err, syscall.ENOSYS) {
		return ignoreGone(err)
	}
	if err == nil {
		defer unix.Close(fd)
	}
	// fd, if there is one, holds whatever had the pid when it was opened.
	now, err := Read(p.PID)
	if err != nil || now.Start != p.Start {
		return nil
	}
	if fd < 0 {
		return ignoreGone(syscall.Kill(p.PID, sig)) // before Linux 5.3
	}
	err = ignoreGone(unix.PidfdSendSignal(fd, sig, nil, 0))
	if sig == syscall.SIGKILL && p.PID == now.Group {
		_ = signalGroup(fd, sig) // refused before Linux 6.9: then one by one
	}
	return err
}

// signalGroup signals the process group whose number is the pid behind the
// pidfd, even after that process is gone. It needs Linux 6.9; older kernels
// refuse the flag, and the processes are then signalled one by one.
func signalGroup(pidfd int, sig syscall.Signal) error {
	return unix.PidfdSendSignal(pidfd, sig, nil, unix.PIDFD_SIGNAL_PROCESS_GROUP)
}

func ignoreGone(err error) error {
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// Leftovers says of each process why it is still there.
func Leftovers(alive []Process) []Leftover {
	var left []Leftover
	for _, p := range alive {
		why := "outlived SIGKILL"
		if err := p.Send(syscall.SIGKILL); err != nil {
			why = "may not be signalled: " + err.Error()
		} else if p.State == 'D' {
			why = "in uninterruptible sleep"
		}
		left = append(left, Leftover{PID: p.PID, Comm: p.Comm, Why: why})
	}
	if len(left) == 0 {
		left = []Leftover{{Why: "a child that /proc does not show"}}
	}
	return left
}

// Subreaper makes this process the parent of its orphaned descendants.
func Subreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("tree: become child subreaper: %w", err)
	}
	return nil
}
