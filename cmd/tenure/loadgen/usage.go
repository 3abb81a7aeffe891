package loadgen

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of /proc/PID/stat: USER_HZ is 100 on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// usage is what a process has used and uses, as /proc says.
type usage struct {
	cpu     time.Duration
	rss     int64 // bytes
	written int64 // bytes that it had sent to disks
}

// usageOf reads /proc, which only Linux has.
func usageOf(pid int) (u usage, err error) {
	if _, u.cpu, _, err = procStat(pid); err != nil {
		return u, err
	}
	if u.rss, err = procField(pid, "status", "VmRSS:", 1024); err != nil {
		return u, err
	}
	u.written, err = procField(pid, "io", "write_bytes:", 1)
	return u, err
}

// procStat returns a process's parent, its CPU time, and that of its children
// that have ended.
func procStat(pid int) (parent int, cpu, ended time.Duration, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, 0, err
	}
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:])) // a name may hold spaces
	const ppid, user, system, endedUser, endedSystem = 1, 11, 12, 13, 14
	if len(f) <= endedSystem {
		return 0, 0, 0, fmt.Errorf("/proc/%d/stat: too short", pid)
	}
	number := func(i int) int64 { n, _ := strconv.ParseInt(f[i], 10, 64); return n } // the kernel writes numbers
	ticks := func(i, j int) time.Duration { return time.Duration(number(i)+number(j)) * tick }
	return int(number(ppid)), ticks(user, system), ticks(endedUser, endedSystem), nil
}

func procField(pid int, file, name string, unit int64) (int64, error) {
	path := fmt.Sprintf("/proc/%d/%s", pid, file)
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n * unit, err
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, name)
}

// familyCPU is what a process and its children have used, those that have ended
// included.
func familyCPU(pid int) (time.Duration, error) {
	_, own, ended, err := procStat(pid)
	if err != nil {
		return 0, err
	}
	sum := own + ended
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if parent, cpu, _, err := procStat(child); err == nil && parent == pid {
			sum += cpu
		}
	}
	return sum, nil
}

// maxFiles is how many files a process of ours may open. Go raises the soft
// limit to the hard one when a process starts.
func maxFiles() (int, error) {
	text, err := os.ReadFile("/proc/self/limits")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "Max open files"); ok {
			f := strings.Fields(rest)
			if f[0] == "unlimited" {
				return 1 << 30, nil
			}
			return strconv.Atoi(f[0])
		}
	}
	return 0, fmt.Errorf("/proc/self/limits does not limit open files")
}

// loadAverage is that of the last minute.
func loadAverage() float64 {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load
}
