//go:build linux

package guardian_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/cmd/tenure/guardian"
	"github.com/tenurehq/tenure/internal/clock"
)

// The test binary plays every part: run as a guardian by Start, as a runner by
// the tests, and as some of the commands.
func TestMain(m *testing.M) {
	guardian.Main()
	switch os.Getenv("TEST_PART") {
	case "runner":
		os.Exit(runnerPart())
	case "args":
		_ = gob.NewEncoder(os.Stdout).Encode(os.Args)
		_ = gob.NewEncoder(os.Stdout).Encode(os.Environ())
	case "become_root":
		if err := syscall.Setresuid(0, 0, 0); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println("root")
		time.Sleep(time.Minute)
	default:
		// Where HUP is ignored, as under nohup, processes that are started would ignore it, too.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
		os.Exit(m.Run())
	}
}

// plan is what a runner is told to do, in the file that TEST_PLAN names.
type plan struct {
	Argv, Env []string
	Dir       string
	Grace     time.Duration // of Spec
	Term      time.Duration // from each renewal to TermAt; default an hour
	Margin    time.Duration // from TermAt to KillAt; default one second
	Renew     time.Duration // between renewals; 0 = never
	NoCgroup  bool          // hide the cgroup file systems
	MountProc bool          // in a pid namespace of its own
	Children  int           // started before the command, and not its descendants
	Loops     int           // run it so many times, default 1
	Trial     string        // something that the runner does besides
	Short     time.Duration // Trial "shorten": from SIGUSR2 to TermAt
}

// said is one line from a runner.
type said struct {
	Started  int               `json:",omitempty"`
	Guardian int               `json:",omitempty"`
	Strange  []int             `json:",omitempty"`
	Notice   *guardian.Notice  `json:",omitempty"`
	Outcome  *guardian.Outcome `json:",omitempty"`
	Error    string            `json:",omitempty"`
	Kind     string            `json:",omitempty"`
	Read     string            `json:",omitempty"`
}

// runnerPart is a small `tenure run`: it passes signals on, renews on its own
// authority, stops on SIGUSR2, and tells descriptor 3 what happens.
func runnerPart() int {
	var pl plan
	text, err := os.ReadFile(os.Getenv("TEST_PLAN"))
	if err == nil {
		err = gob.NewDecoder(bytes.NewReader(text)).Decode(&pl)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if pl.NoCgroup && cgroupHere() {
		if err := syscall.Unmount("/sys/fs/cgroup", syscall.MNT_DETACH); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if pl.MountProc {
		if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	out := json.NewEncoder(os.NewFile(3, "said"))
	var mu sync.Mutex
	say := func(s said) { mu.Lock(); defer mu.Unlock(); _ = out.Encode(s) }
	var strange []int
	for range pl.Children {
		child := exec.Command("sleep", "60")
		if err := child.Start(); err != nil {
			return 1
		}
		strange = append(strange, child.Process.Pid)
	}
	sigs := make(chan os.Signal, 64)
	signal.Notify(sigs, guardian.Signals()...)
	next := func() guardian.Deadline {
		now := clock.Boot()
		return guardian.Deadline{TermAt: now + pl.Term, KillAt: now + pl.Term + pl.Margin}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var files []*os.File
	if pl.Trial == "files" {
		read, write, err := os.Pipe()
		if err != nil {
			return 1
		}
		files = append(files, write)
		go func() { text, _ := io.ReadAll(read); say(said{Read: string(text)}) }()
	}
	for range max(pl.Loops, 1) {
		p, err := guardian.Start(ctx, guardian.Spec{
			Argv: pl.Argv, Env: pl.Env, Dir: pl.Dir, Grace: pl.Grace, Files: files,
			Notice: func(n guardian.Notice) { say(said{Notice: &n}) },
		}, next())
		if err != nil {
			say(said{Error: err.Error(), Kind: kind(err)})
			return 3
		}
		say(said{Started: p.PID(), Guardian: p.GuardianPID(), Strange: strange})
		for _, f := range files {
			f.Close()
		}
		switch pl.Trial {
		case "active":
			_, err := guardian.Start(ctx, guardian.Spec{Argv: []string{"true"}}, next())
			say(said{Error: err.Error(), Kind: kind(err)})
		case "late":
			for from := clock.Boot(); clock.Boot() < from+pl.Term+20*time.Millisecond; {
				time.Sleep(time.Millisecond)
			}
			err := p.Extend(next())
			say(said{Error: fmt.Sprint(err), Kind: kind(err)})
		}
		var renew <-chan time.Time
		if pl.Renew > 0 {
			ticker := time.NewTicker(pl.Renew)
			defer ticker.Stop()
			renew = ticker.C
		}
		for running := true; running; {
			select {
			case sig := <-sigs:
				switch {
				case sig != syscall.SIGUSR2:
					_ = p.Signal(sig)
				case pl.Trial == "cancel":
					cancel()
				case pl.Trial == "shorten":
					at := clock.Boot() + pl.Short
					_ = p.Extend(guardian.Deadline{TermAt: at, KillAt: at + pl.Margin})
					say(said{Read: "shortened"})
				default:
					p.Stop()
				}
			case <-renew:
				_ = p.Extend(next())
			case <-p.Done():
				running = false
			}
		}
		o, err := p.Wait()
		if err != nil {
			say(said{Error: err.Error(), Kind: kind(err)})
			return 3
		}
		say(said{Outcome: &o})
		if pl.Trial == "late" {
			err := p.Extend(next())
			say(said{Error: fmt.Sprint(err), Kind: kind(err)})
		}
	}
	return 0
}

func kind(err error) string {
	switch {
	case errors.Is(err, guardian.ErrNotFound):
		return "not_found"
	case errors.Is(err, guardian.ErrNotExecutable):
		return "not_executable"
	case errors.Is(err, guardian.ErrLate):
		return "late"
	case errors.Is(err, guardian.ErrActive):
		return "active"
	case errors.Is(err, os.ErrProcessDone):
		return "done"
	case errors.Is(err, syscall.E2BIG):
		return "too_big"
	}
	return "other"
}

// runner is a running runnerPart.
type runner struct {
	t        *testing.T
	cmd      *exec.Cmd
	pid      int
	guardian int
	command  int
	strange  []int
	tag      string
	said     chan said
	stdout   *bytes.Buffer
	seen     []said
}

// cgroupHere reports whether a runner would make a cgroup v2 here.
func cgroupHere() bool {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	return bytes.Contains(mounts, []byte(" - cgroup2 "))
}

const patience = 30 * time.Second

// launch starts a runner without waiting for its command.
func launch(t *testing.T, pl plan, change ...func(*exec.Cmd)) *runner {
	t.Helper()
	if pl.Term == 0 {
		pl.Term = time.Hour
	}
	if pl.Margin == 0 {
		pl.Margin = time.Second
	}
	r := &runner{t: t, tag: fmt.Sprintf("TEST_TAG=%d.%d", os.Getpid(), time.Now().UnixNano()), said: make(chan said, 4096), stdout: new(bytes.Buffer)}
	pl.Env = append(pl.Env, "PATH="+os.Getenv("PATH"), r.tag)
	var text bytes.Buffer // not JSON: arguments need not be UTF-8
	if err := gob.NewEncoder(&text).Encode(pl); err != nil {
		t.Fatal(err)
	}
	planFile := writeFile(t, "plan", text.String(), 0o644)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.cmd = exec.Command(self(t))
	r.cmd.Env = append(os.Environ(), "TEST_PART=runner", "GORACE=atexit_sleep_ms=0", "TEST_PLAN="+planFile, "TENURE_STORE=postgres://u:hunter2@db/x")
	r.cmd.Stdout, r.cmd.Stderr = r.stdout, os.Stderr
	r.cmd.ExtraFiles = []*os.File{write}
	r.cmd.WaitDelay = patience
	if pl.NoCgroup && cgroupHere() {
		if os.Getuid() != 0 {
			t.Skip("only root can hide a cgroup that it may write to")
		}
		r.cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	}
	for _, c := range change {
		c(r.cmd)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	r.pid = r.cmd.Process.Pid
	go func() {
		defer close(r.said)
		defer read.Close()
		for dec := json.NewDecoder(read); ; {
			var s said
			if dec.Decode(&s) != nil {
				return
			}
			r.said <- s
		}
	}()
	t.Cleanup(r.cleanup)
	return r
}

// run starts a runner and waits until its command runs.
func run(t *testing.T, pl plan, change ...func(*exec.Cmd)) *runner {
	t.Helper()
	r := launch(t, pl, change...)
	s := r.await("the command to start", func(s said) bool { return s.Started != 0 || s.Error != "" })
	if s.Error != "" {
		t.Fatal(s.Error)
	}
	r.command, r.guardian, r.strange = s.Started, s.Guardian, s.Strange
	return r
}

func (r *runner) await(what string, match func(said) bool) said {
	r.t.Helper()
	limit := time.After(patience)
	for {
		select {
		case s, ok := <-r.said:
			if !ok {
				r.t.Fatalf("the runner ended; waited for %s; it said %+v", what, r.seen)
			}
			r.seen = append(r.seen, s)
			if match(s) {
				return s
			}
		case <-limit:
			r.t.Fatalf("waited %v for %s; the runner said %+v", patience, what, r.seen)
		}
	}
}

func (r *runner) outcome() guardian.Outcome {
	r.t.Helper()
	return *r.await("the outcome", func(s said) bool { return s.Outcome != nil }).Outcome
}

func (r *runner) signal(pid int, sig syscall.Signal) {
	r.t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		r.t.Fatalf("kill %d with %v: %v", pid, sig, err)
	}
}

// tree returns the live processes of the command, however far they moved.
func (r *runner) tree() []int {
	return processes(func(pid int) bool {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		return err == nil && bytes.Contains(append([]byte{0}, env...), []byte("\x00"+r.tag+"\x00"))
	})
}

// grown waits until the command has at least n processes.
func (r *runner) grown(n int) {
	r.t.Helper()
	until(r.t, fmt.Sprintf("%d processes of the command", n), func() bool { return len(r.tree()) >= n })
}

// fall waits until no process of the command lives, and returns how long after
// from that was.
func (r *runner) fall(from time.Time) time.Duration {
	r.t.Helper()
	until(r.t, "the tree to fall", func() bool { return len(r.tree()) == 0 })
	return time.Since(from)
}

// end kills what is left of the command, for a while.
func (r *runner) end() {
	for limit := time.Now().Add(patience); time.Now().Before(limit); {
		left := r.tree()
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// cleanup ends what a failed test left and makes sure that a passed one left
// nothing, zombies included.
func (r *runner) cleanup() {
	for _, pid := range []int{r.pid, r.guardian} {
		if pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
	if r.t.Failed() {
		r.t.Logf("the runner said %+v", r.seen)
		_ = r.cmd.Process.Kill()
		for _, pid := range r.strange {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		r.end()
		_ = r.cmd.Wait()
		return
	}
	go func() {
		for range r.said {
		}
	}()
	_ = r.cmd.Wait()
	for _, pid := range r.strange {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	for _, pid := range []int{r.guardian, r.command} {
		if pid != 0 {
			until(r.t, fmt.Sprintf("process %d to leave the table", pid), func() bool {
				_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
				return err != nil
			})
		}
	}
	if left := r.tree(); len(left) > 0 {
		r.t.Errorf("processes %v are left", left)
	}
}

func processes(match func(pid int) bool) []int {
	dir, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []int
	for _, entry := range dir {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && match(pid) {
			found = append(found, pid)
		}
	}
	return found
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// shell is a command line for sh; the tests' commands are trees of it.
func shell(script string) []string { return []string{"sh", "-c", script} }

func copyFile(t *testing.T, from, to string, mode os.FileMode) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(out.Close(), os.Chmod(to, mode)); err != nil {
		t.Fatal(err)
	}
}

func writeFile(t *testing.T, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}
