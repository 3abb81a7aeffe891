//go:build unix && !linux

package pgtest

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

func attr(cred *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: cred}
}

func children(pid int) []int {
	out, _ := exec.Command("pgrep", "-P", strconv.Itoa(pid)).Output() // no output: no children
	var list []int
	for line := range strings.FieldsSeq(string(out)) {
		if child, err := strconv.Atoi(line); err == nil {
			list = append(list, child)
		}
	}
	return list
}

// standing reports whether pid is stopped, or gone.
func standing(pid int) bool {
	out, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	return err != nil || strings.HasPrefix(strings.TrimSpace(string(out)), "T")
}

func gone(pid int) bool { return syscall.Kill(pid, 0) != nil }
