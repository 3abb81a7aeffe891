package guardian

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

// process is one line of the process table. A pid alone names a process only
// until it is reused; with the start time it names one for good.
type process struct {
	pid, ppid, pgid int
	start           uint64 // clock ticks since boot
	state           byte
	comm            string
}

type identity struct {
	pid   int
	start uint64
}

func (p process) identity() identity { return identity{p.pid, p.start} }

// dead reports a process that only waits to be reaped.
func (p process) dead() bool { return p.state == 'Z' || p.state == 'X' }

// readProcess reads /proc/PID/stat, see proc_pid_stat(5).
func readProcess(pid int) (process, error) {
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, err
	}
	// The name is in parentheses and may contain anything, parentheses too.
	open, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if open < 0 || end < open {
		return process{}, fmt.Errorf("guardian: cannot read process %d: %q", pid, line)
	}
	fields := strings.Fields(string(line[end+1:])) // from field 3, the state
	if len(fields) < 20 {
		return process{}, fmt.Errorf("guardian: cannot read process %d: %q", pid, line)
	}
	p := process{pid: pid, state: fields[0][0], comm: string(line[open+1 : end])}
	p.ppid, _ = strconv.Atoi(fields[1])
	p.pgid, _ = strconv.Atoi(fields[2])
	p.start, err = strconv.ParseUint(fields[19], 10, 64)
	return p, err
}

// descendants returns the live processes below root, parents before children,
// without those whose identity is in skip and what is below them.
//
// It is a snapshot of a moving thing: a process whose parent ended between two
// reads is missed. Whoever needs to know that nothing is left asks wait4.
func descendants(root int, skip map[identity]bool) ([]process, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("guardian: process table: %w", err)
	}
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return nil, fmt.Errorf("guardian: process table: %w", err)
	}
	children := make(map[int][]process)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, err := readProcess(pid); err == nil && !skip[p.identity()] {
			children[p.ppid] = append(children[p.ppid], p)
		}
	}
	var found []process
	queue := []int{root}
	seen := map[int]bool{root: true} // the snapshot is not atomic and might hold a circle
	for len(queue) > 0 {
		for _, p := range children[queue[0]] {
			if seen[p.pid] {
				continue
			}
			seen[p.pid] = true
			queue = append(queue, p.pid)
			if !p.dead() {
				found = append(found, p)
			}
		}
		queue = queue[1:]
	}
	return found, nil
}

// send signals exactly this process, and with SIGKILL also the process group
// that it leads: the kernel makes that atomic, so that no fork escapes it.
// A process that is gone is no error.
func (p process) send(sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil && !errors.Is(err, syscall.ENOSYS) {
		return ignoreGone(err)
	}
	if err == nil {
		defer unix.Close(fd)
	}
	// fd, if there is one, holds whatever had the pid when it was opened.
	now, err := readProcess(p.pid)
	if err != nil || now.start != p.start {
		return nil
	}
	if fd < 0 {
		return ignoreGone(syscall.Kill(p.pid, sig)) // before Linux 5.3
	}
	err = ignoreGone(unix.PidfdSendSignal(fd, sig, nil, 0))
	if sig == syscall.SIGKILL && p.pid == now.pgid {
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

// leftovers says of each process why it is still there.
func leftovers(alive []process) []Leftover {
	var left []Leftover
	for _, p := range alive {
		why := "outlived SIGKILL"
		if err := p.send(syscall.SIGKILL); err != nil {
			why = "may not be signalled: " + err.Error()
		} else if p.state == 'D' {
			why = "in uninterruptible sleep"
		}
		left = append(left, Leftover{PID: p.pid, Comm: p.comm, Why: why})
	}
	if len(left) == 0 {
		left = []Leftover{{Why: "a child that /proc does not show"}}
	}
	return left
}

// subreaper makes this process the parent of its orphaned descendants.
func subreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("guardian: become child subreaper: %w", err)
	}
	return nil
}
