package agent

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// BootID returns the id of this boot of the host, "" if it is not known.
func BootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// namespace names the numbering of processes that this one lives in; pids of
// another container mean nothing here.
func namespace() string {
	name, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	return name
}

// processStart returns when the process with this pid was started, in clock ticks
// since boot; false if there is none, or one that only waits to be reaped.
func processStart(pid int) (ticks uint64, ok bool) {
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(line[bytes.LastIndexByte(line, ')')+1:])) // from field 3
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return 0, false
	}
	ticks, err = strconv.ParseUint(fields[19], 10, 64)
	return ticks, err == nil
}
