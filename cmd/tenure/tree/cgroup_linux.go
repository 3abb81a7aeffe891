package tree

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A cgroup makes killing atomic, but only where we may make one. It is a help
// and never the proof: a privileged process can leave it.

// NewCgroup makes a cgroup v2 below this process's own and returns its
// directory, or "" if that cannot be done here.
func NewCgroup() string {
	own, ok := cgroupPath()
	if !ok {
		return ""
	}
	dir, err := os.MkdirTemp(own, fmt.Sprintf("tenure-%d-", os.Getpid()))
	if err != nil {
		return ""
	}
	if _, err := os.Stat(filepath.Join(dir, "cgroup.kill")); err != nil {
		RemoveCgroup(dir) // a kernel before 5.14
		return ""
	}
	return dir
}

// cgroupPath returns the directory of this process's cgroup v2.
func cgroupPath() (string, bool) {
	member, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", false
	}
	path, ok := "", false
	for line := range strings.Lines(string(member)) {
		if after, found := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); found {
			path, ok = after, true
		}
	}
	if !ok {
		return "", false
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", false
	}
	defer mounts.Close()
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(before)
		if !strings.HasPrefix(after, "cgroup2 ") || len(fields) < 5 {
			continue
		}
		// The mount shows the hierarchy from its root field downwards.
		below, err := filepath.Rel(fields[3], path)
		if err != nil || below == ".." || strings.HasPrefix(below, "../") {
			continue
		}
		return filepath.Join(fields[4], below), true
	}
	return "", false
}

// KillCgroup sends SIGKILL to all members at once. Failing is harmless: the
// sweep finds them too.
func KillCgroup(dir string) {
	if dir != "" {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
	}
}

// RemoveCgroup removes an empty cgroup, with those the command made below it.
func RemoveCgroup(dir string) {
	if dir == "" {
		return
	}
	below, _ := os.ReadDir(dir)
	for _, entry := range below {
		if entry.IsDir() {
			RemoveCgroup(filepath.Join(dir, entry.Name()))
		}
	}
	_ = os.Remove(dir)
}

func openCgroup(dir string) (int, error) {
	if dir == "" {
		return -1, syscall.ENOENT
	}
	return unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
}
