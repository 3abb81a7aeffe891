package minder

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/agent"
	"github.com/tenurehq/tenure/cmd/tenure/tree"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
)

const (
	marker   = "tenure-minder" // argv[0] of a minder; argv[1] is its directory
	statusFD = 3               // where it tells its driver the first line

	logEvery = time.Second // between two looks at the size of the log
)

// Main turns this process into a minder if it was started as one, and then never
// returns. Otherwise it returns at once. Call it first in main, before anything is
// opened.
func Main() {
	if len(os.Args) != 2 || os.Args[0] != marker {
		return
	}
	runtime.LockOSThread() // the parent-death signal is tied to the thread that forked
	closeLeaked()
	tree.CloseOnExec()
	code := 0
	if err := serve(instance(os.Args[1])); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	syscall.Exit(code) // not os.Exit, which in a race-detector build sleeps for a second
}

// closeLeaked closes what this process was given besides its first four
// descriptors: the minder outlives the agent, and must hold nothing of it open.
// What Go's runtime has opened stays.
func closeLeaked() {
	open, _ := filepath.Glob("/proc/self/fd/*")
	for _, path := range open {
		fd, err := strconv.Atoi(filepath.Base(path))
		if err != nil || fd <= statusFD {
			continue
		}
		if what, err := os.Readlink(path); err == nil && !strings.HasPrefix(what, "anon_inode:[event") {
			_ = syscall.Close(fd)
		}
	}
}

// server is the minder. One goroutine owns it all.
type server struct {
	dir      instance
	task     task
	policy   fleet.LossPolicy
	grace    time.Duration
	timer    *tree.BootTimer
	cmd      tree.Child
	procs    processes
	deadline agent.Deadline
	fenced   bool         // the loss policy has been followed
	ending   agent.Ending // why it is being ended; "" if it is not
	text     string
	how      agent.Ending // why the command ended, once it has
	logs     time.Duration
	named    bool // leftovers were
}

func serve(dir instance) error {
	status := os.NewFile(statusFD, "status")
	tell := func(f first) {
		_ = json.NewEncoder(status).Encode(f) // a driver that is gone attaches later
		status.Close()
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGPIPE) // nobody receives
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)

	held, mine, err := dir.waitTake()
	if err != nil || !mine {
		tell(first{Running: err == nil, Failed: text(err)})
		return err
	}
	defer held.Close()
	s := &server{dir: dir}
	if err := s.prepare(); err != nil {
		tell(first{Failed: err.Error()})
		return err
	}
	if !s.current() {
		tell(first{Late: true})
		return nil
	}
	if err := s.start(); err != nil {
		code := 126
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			code = 127
		}
		tell(first{Refused: err.Error(), Code: code})
		return nil
	}
	tell(first{PID: s.cmd.PID()})
	return s.loop(signals, children)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// prepare clears what an earlier run of the instance has left and says who minds
// it now.
func (s *server) prepare() (err error) {
	if err := s.dir.load(taskFile, &s.task); err != nil {
		return err
	}
	spec := s.task.Task.Spec
	s.policy, s.grace = spec.OnLoss, time.Duration(spec.GraceMS)*time.Millisecond
	s.dir.remove(exitFile, stopFile, quiesceFile, progressFile)
	if err := tree.Subreaper(); err != nil {
		return err
	}
	if s.timer, err = tree.NewBootTimer(); err != nil {
		return err
	}
	self, err := tree.Read(os.Getpid())
	if err != nil {
		return err
	}
	s.procs = processes{Boot: agent.BootID(), Namespace: namespace(), Minder: self.Identity()}
	return s.dir.save(processFile, s.procs)
}

// current reads the deadline under which the command starts, and reports whether
// there is one in force.
func (s *server) current() bool {
	d, err := agent.ReadDeadline(s.task.Task.Deadline)
	if err != nil || d.Boot != s.procs.Boot || d.Fenced || d.Until <= clock.Boot() {
		return false
	}
	s.deadline = d
	return true
}

// start runs the command.
func (s *server) start() error {
	spec := s.task.Task.Spec
	for _, v := range s.task.Env {
		if path, ok := strings.CutPrefix(v, "PATH="); ok {
			_ = os.Setenv("PATH", path) // of the work, for the search below
		}
	}
	dir := spec.Dir
	if dir == "" {
		dir = string(s.dir)
	}
	if err := os.Chdir(dir); err != nil {
		return err
	}
	path, err := exec.LookPath(spec.Command[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return err
	}
	attr := &syscall.ProcAttr{Env: s.task.Env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setpgid: true}}
	if s.policy == fleet.Stop {
		attr.Sys.Pdeathsig = syscall.SIGKILL
	}
	if err := s.cmd.Start(path, spec.Command, attr, tree.NewCgroup()); err != nil {
		s.cmd.RemoveCgroup()
		return err
	}
	_ = os.Chdir("/") // hold no file system that somebody may want to unmount
	if p, err := tree.Read(s.cmd.PID()); err == nil {
		s.procs.Command = p.Identity()
	}
	if err := s.dir.save(processFile, s.procs); err != nil {
		// After the minder's death nobody could find the command.
		now := clock.Boot()
		s.end(agent.Halted, "its process cannot be noted: "+err.Error(), now, now+s.grace)
	}
	return nil
}

// loop minds the command until nothing of it is left.
func (s *server) loop(signals, children <-chan os.Signal) error {
	for {
		now := clock.Boot()
		s.enforce(now)
		_, before := s.cmd.Exited()
		empty := s.cmd.Reap(nil)
		if _, exited := s.cmd.Exited(); exited && !before {
			if s.how = s.ending; s.how == "" {
				s.how = agent.Exited
			}
			if !empty && !s.cmd.Ending() { // what it left behind
				s.cmd.End(now, now+s.grace)
			}
		}
		if empty {
			return s.finish()
		}
		s.leftovers(now)
		s.cut(now)
		_ = s.timer.Set(s.wake(now)) // if that fails, the children and the log still wake it
		select {
		case <-s.timer.C:
		case <-children:
		case sig := <-signals:
			s.enforce(clock.Boot())
			s.obey(sig)
		}
	}
}

// bound reports whether the deadline has a meaning for the item now.
func (s *server) bound() bool { return s.policy != fleet.Keep && !s.fenced }

// wake returns when something is due without anybody telling.
func (s *server) wake(now time.Duration) time.Duration {
	at := s.logs + logEvery
	if !s.named {
		at = min(at, s.cmd.Due())
		if s.bound() {
			at = min(at, s.deadline.Until)
		}
	}
	return max(at, now+time.Millisecond)
}

// enforce does what the clock demands. What is being ended has its grace as long as
// later deadlines come, and the policy's time from the last one on.
func (s *server) enforce(now time.Duration) {
	if s.bound() && now >= s.deadline.Until {
		next, err := agent.ReadDeadline(s.task.Task.Deadline)
		if err == nil && s.deadline.Extends(next) && next.Until > now {
			s.deadline = next
		} else {
			s.fence(now, "the node's right to act ended")
		}
	}
	s.cmd.Enforce(now)
}

// fence follows the loss policy, once.
func (s *server) fence(now time.Duration, why string) {
	if !s.bound() {
		return
	}
	s.fenced = true
	switch s.policy {
	case fleet.Stop:
		s.end(agent.Halted, why, now, min(s.deadline.KillAt(s.grace), now+min(s.grace, s.deadline.Margin/2)))
	case fleet.Quiesce:
		_ = os.WriteFile(s.dir.path(quiesceFile), nil, 0o600) // the signal says it too
		s.cmd.Signal(syscall.SIGUSR1)
	}
}

// end asks the tree to end and kills it at killAt, or before if that was said already.
func (s *server) end(ending agent.Ending, why string, now, killAt time.Duration) {
	if s.ending == "" && s.how == "" {
		s.ending, s.text = ending, why
	}
	s.cmd.End(now, killAt)
	s.cmd.Enforce(now)
}

// obey does what the agent asks for, or the system.
func (s *server) obey(sig os.Signal) {
	now := clock.Boot()
	switch sig {
	case syscall.SIGTERM:
		var order stopOrder
		ending, why := agent.Halted, "the host goes down"
		if s.dir.load(stopFile, &order) == nil {
			ending, why = agent.Stopped, order.Why
		}
		s.end(ending, why, now, now+s.grace)
	case syscall.SIGUSR1:
		s.fence(now, "the node lost its right to act")
	case syscall.SIGUSR2:
		if s.policy == fleet.Quiesce && s.fenced && s.current() {
			s.fenced = false
			s.dir.remove(quiesceFile)
			s.cmd.Signal(syscall.SIGUSR2)
		}
	}
}

// leftovers names, once, what cannot be killed. The item does not end before them.
func (s *server) leftovers(now time.Duration) {
	killed := s.cmd.Killed()
	if s.named || killed == 0 || now < killed+tree.LeftoverAfter {
		return
	}
	s.named = true
	alive, _ := tree.Descendants(os.Getpid(), nil)
	s.procs.Leftovers = tree.Leftovers(alive)
	_ = s.dir.save(processFile, s.procs)
}

// finish records how the command ended.
func (s *server) finish() error {
	s.cmd.RemoveCgroup()
	r := agent.Result{Ending: s.how, ExitCode: -1, Text: s.text}
	status, exited := s.cmd.Exited()
	switch {
	case exited && status.Exited():
		r.ExitCode = status.ExitStatus()
	case exited && status.Signaled():
		r.ExitCode = 128 + int(status.Signal())
		if r.Ending == agent.Exited {
			r.Text = "ended by signal " + status.Signal().String()
		}
	}
	if err := s.dir.save(exitFile, r); err != nil {
		return fmt.Errorf("minder: the end of the item cannot be recorded: %w", err)
	}
	return nil
}
