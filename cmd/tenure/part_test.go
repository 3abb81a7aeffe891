//go:build linux

package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/cmd/tenure/guardian"
	"github.com/tenurehq/tenure/cmd/tenure/minder"
	"github.com/tenurehq/tenure/internal/clock"
)

// The test binary is also the program under test and some of the commands that
// it runs. Which of them, the name says under which it was started; see part.
func playPart() {
	guardian.Main()
	minder.Main()
	switch filepath.Base(os.Args[0]) {
	case "tenure":
		main()
	case "beat":
		beat(os.Args[1], os.Args[2:])
	case "tell":
		tell()
	case "rootly":
		rootly(os.Args[1])
	default:
		return
	}
	os.Exit(0)
}

// beat logs its own life in dir until it is killed: in the file TOKEN-PID the
// instants of its begin and of its last breath on CLOCK_BOOTTIME, as two int64.
// At its begin it looks for processes of other terms of the same lease; finding
// any makes the file overlap-TOKEN-PID, which names them.
//
// "stubborn" ignores SIGTERM; "family" also leaves a descendant in a session of
// its own, through a parent that ends.
func beat(dir string, how []string) {
	begin := clock.Boot()
	id := os.Getenv("TENURE_TOKEN") + "-" + strconv.Itoa(os.Getpid())
	for _, h := range how {
		switch h {
		case "stubborn":
			signal.Ignore(syscall.SIGTERM)
		case "family":
			script := exec.Command("sh", "-c", `setsid "$0" "$1" stubborn </dev/null >/dev/null 2>&1 &`, os.Args[0], dir)
			check(script.Run())
		}
	}
	life, err := os.Create(filepath.Join(dir, id))
	check(err)
	breathe := func() {
		b := binary.LittleEndian.AppendUint64(nil, uint64(begin))
		b = binary.LittleEndian.AppendUint64(b, uint64(clock.Boot()))
		_, err := life.WriteAt(b, 0)
		check(err)
	}
	breathe()
	if others := strangers(); others != "" {
		check(os.WriteFile(filepath.Join(dir, "overlap-"+id), []byte(others), 0o644))
	}
	for range time.Tick(5 * time.Millisecond) {
		breathe()
	}
}

// strangers names the live processes of other terms of this lease.
func strangers() (found string) {
	mine := map[string]string{}
	for _, key := range []string{"TENURE_LEASE", "TENURE_TOKEN"} {
		mine[key] = os.Getenv(key)
	}
	for pid, env := range environments() {
		if env["TENURE_LEASE"] == mine["TENURE_LEASE"] && env["TENURE_TOKEN"] != mine["TENURE_TOKEN"] {
			found += fmt.Sprintf("process %d of token %s; ", pid, env["TENURE_TOKEN"])
		}
	}
	return found
}

// environments returns what each live process was started with. A zombie has none.
func environments() map[int]map[string]string {
	all := map[int]map[string]string{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || len(text) == 0 {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(dir))
		all[pid] = map[string]string{}
		for kv := range strings.SplitSeq(strings.TrimSuffix(string(text), "\x00"), "\x00") {
			key, value, _ := strings.Cut(kv, "=")
			all[pid][key] = value
		}
	}
	return all
}

// rootly becomes root for good, so that its parents may not signal it, and waits
// until the file at path is gone. Its own file must be root's and setuid.
func rootly(path string) {
	check(syscall.Setresuid(0, 0, 0))
	check(os.WriteFile(path, nil, 0o666))
	for range time.Tick(10 * time.Millisecond) {
		if _, err := os.Stat(path); err != nil {
			os.Exit(0)
		}
	}
}

// told is what tell says.
type told struct {
	Args  [][]byte // they need not be UTF-8
	Env   []string
	Files []string // what its descriptors from 3 on are
}

// tell prints what it was given.
func tell() {
	var t told
	t.Env = os.Environ()
	for _, arg := range os.Args[1:] {
		t.Args = append(t.Args, []byte(arg))
	}
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, path := range fds {
		target, err := os.Readlink(path)
		if n, _ := strconv.Atoi(filepath.Base(path)); err != nil || n < 3 || strings.HasPrefix(target, "anon_inode:") || strings.HasPrefix(target, "/proc/") || strings.HasPrefix(target, "/sys/") {
			continue // the Go runtime's own, opened after the start
		}
		t.Files = append(t.Files, path+" "+target)
	}
	check(json.NewEncoder(os.Stdout).Encode(t))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(99)
	}
}
