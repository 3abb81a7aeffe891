package pgtest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// attr makes the server a group of its own that dies with the thread that
// started it.
func attr(cred *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: cred}
}

// children returns the processes whose parent is pid. Every backend is a
// direct child of the postmaster, in a session of its own, so that no signal to
// the postmaster's group reaches it.
func children(pid int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var list []int
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if state, parent := stat(child); parent == pid && state != "Z" {
			list = append(list, child)
		}
	}
	return list
}

// gone reports whether pid has ended, reaped or not.
func gone(pid int) bool {
	state, _ := stat(pid)
	return state == "" || state == "Z"
}

// standing reports whether pid is stopped, or gone.
func standing(pid int) bool {
	state, _ := stat(pid)
	return state == "T" || gone(pid)
}

func stat(pid int) (state string, parent int) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0
	}
	s := string(b)
	fields := strings.Fields(s[strings.LastIndexByte(s, ')')+1:]) // a name may hold spaces
	if len(fields) < 2 {
		return "", 0
	}
	parent, _ = strconv.Atoi(fields[1])
	return fields[0], parent
}
