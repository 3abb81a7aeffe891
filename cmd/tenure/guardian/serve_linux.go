package guardian

import (
	"bufio"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/cmd/tenure/tree"
	"github.com/tenurehq/tenure/internal/clock"
	"golang.org/x/sys/unix"
)

const (
	marker    = "tenure-guardian" // the whole argv of a guardian
	controlFD = 3                 // its end of the socket pair

	// goneGrace is what a tree gets between SIGTERM and SIGKILL when its runner is
	// dead: enough to close a file, and far below the second in which it must end.
	goneGrace = 200 * time.Millisecond
	// writeTimeout bounds what the guardian waits for a runner that does not read.
	writeTimeout = 100 * time.Millisecond
	// lastWords is the same for the last report: nothing is guarded any more.
	lastWords = 2 * time.Second
)

// Main turns this process into a guardian if it was started as one, and then
// never returns. Otherwise it returns at once. Call it first in main, before
// flags are read and before anything is opened: a guardian's environment is
// empty, and its only argument is its name.
func Main() {
	if len(os.Args) != 1 || os.Args[0] != marker {
		return
	}
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		syscall.Exit(1)
	}
	syscall.Exit(0) // not os.Exit, which in a race-detector build sleeps for a second
}

// server is the guardian. One goroutine, locked to its thread, owns it all: the
// parent-death signal is tied to the thread that forked.
type server struct {
	conn  *os.File
	out   *outbox
	timer *tree.BootTimer
	spec  startRequest
	grace time.Duration

	deadline Deadline
	cmd      tree.Child
	ending   Why // what began the killing
	why      Why // what was killing cmd when it ended
}

func serve() error {
	runtime.LockOSThread()
	tree.CloseOnExec()
	if err := unix.SetNonblock(controlFD, true); err != nil {
		return errors.New("guardian: this process is started by tenure run only")
	}
	catchSignals()
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	if err := tree.Subreaper(); err != nil {
		return err
	}
	timer, err := tree.NewBootTimer()
	if err != nil {
		return err
	}
	s := &server{conn: os.NewFile(controlFD, "runner"), timer: timer}
	s.out = newOutbox(s.conn)
	requests := make(chan request)
	go func() {
		defer close(requests)
		for dec := gob.NewDecoder(bufio.NewReader(s.conn)); ; {
			var r request
			if dec.Decode(&r) != nil {
				return // the runner is gone, and so are its orders
			}
			requests <- r
		}
	}()
	for first := range requests {
		if first.Start == nil {
			s.pong(first)
			continue
		}
		if s.start(*first.Start) {
			s.loop(requests, children)
		}
		s.out.flush(lastWords)
		return nil
	}
	return nil // the runner was gone before there was anything to guard
}

// catchSignals makes the guardian outlive every signal that can be caught: it
// ends when the tree has ended and not before. The command starts with default
// actions all the same, since exec resets caught signals; HUP and INT stay ignored
// if they were (nohup). Of others the Go runtime does not tell.
func catchSignals() {
	ignored := make(chan os.Signal, 1)
	for _, sig := range append(Signals(), syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGPIPE, syscall.SIGCONT) {
		if !signal.Ignored(sig) {
			signal.Notify(ignored, sig) // nobody receives
		}
	}
}

// send tells the runner, without waiting for one that does not read.
func (s *server) send(r report) { s.out.send(r, writeTimeout) }

func (s *server) notice(n Notice) { s.send(report{Notice: &n}) }

func (s *server) pong(r request) {
	if r.Ping {
		s.send(report{Pong: true})
	}
}

// start runs the command, or reports why not and returns false.
func (s *server) start(spec startRequest) bool {
	s.spec, s.deadline, s.grace = spec, spec.Deadline, time.Duration(spec.Grace)
	if clock.Boot() >= s.deadline.TermAt {
		s.send(report{Failed: &startFailure{Late: true}})
		return false
	}
	s.send(report{Forking: true})
	files := []uintptr{0, 1, 2}
	for i := range spec.Files {
		files = append(files, uintptr(controlFD+1+i))
	}
	attr := &syscall.ProcAttr{
		Dir: spec.Dir, Env: spec.Env, Files: files,
		Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	}
	if err := s.cmd.Start(spec.Path, spec.Argv, attr, spec.Cgroup); err != nil {
		var errno syscall.Errno
		errors.As(err, &errno)
		s.send(report{Failed: &startFailure{Errno: errno}})
		return false
	}
	if spec.Foreground {
		if tty := openTerminal(); tty != nil {
			_ = tty.give(s.cmd.PID()) // if refused, the command asks by SIGTTIN
			tty.close()
		}
	}
	for i := range spec.Files {
		unix.Close(controlFD + 1 + i)
	}
	s.send(report{Started: s.cmd.PID()})
	return true
}

// loop guards until no descendant is left, or who is left has been named.
func (s *server) loop(requests <-chan request, children <-chan os.Signal) {
	for {
		// The clock first, also before the dead are counted: a command that ended
		// while the guardian was paused past TermAt may have ended too late.
		now := clock.Boot()
		s.enforce(now)
		if empty := s.reap(); empty {
			s.finish(nil)
			return
		}
		if killed := s.cmd.Killed(); killed > 0 && now >= killed+tree.LeftoverAfter {
			alive, _ := tree.Descendants(os.Getpid(), nil)
			s.finish(tree.Leftovers(alive))
			return
		}
		if err := s.timer.Set(s.wake()); err != nil {
			s.begin(WhyDeadline, now, now) // cannot happen, and a guardian without a clock must not guard
		}
		select {
		case r, ok := <-requests:
			// And before what the runner sent, which may have waited for long.
			now := clock.Boot()
			s.enforce(now)
			if !ok {
				requests = nil
				s.begin(WhyRunnerGone, now, now+goneGrace)
				continue
			}
			s.handle(r, now)
		case <-s.timer.C:
		case <-children:
		}
	}
}

// wake returns when something is due without anybody telling.
func (s *server) wake() time.Duration {
	if s.cmd.Ending() {
		return s.cmd.Due()
	}
	return s.deadline.TermAt
}

func (s *server) handle(r request, now time.Duration) {
	switch {
	case r.Ping:
		s.pong(r)
	case r.Deadline != nil:
		// One that is read after the old one passed comes too late, whatever it says.
		if !s.cmd.Ending() && now < s.deadline.TermAt {
			s.deadline = *r.Deadline
		}
	case r.Stop:
		s.begin(WhyStop, now, now+s.grace)
	case r.Signal != 0:
		s.signal(r.Signal)
	}
}

// enforce does what the clock demands.
func (s *server) enforce(now time.Duration) {
	if now >= s.deadline.TermAt {
		s.begin(WhyDeadline, now, s.deadline.KillAt)
	}
	s.kill(now)
}

// begin starts the killing, with SIGTERM if there is time for it. A later reason
// can only shorten what an earlier one allowed.
func (s *server) begin(why Why, now, killAt time.Duration) {
	if !s.cmd.Ending() {
		s.ending = why
	}
	if s.cmd.End(now, min(killAt, s.deadline.KillAt)) {
		s.notice(Notice{Event: EventTerm, Why: why, PID: s.cmd.PID()})
	}
	s.kill(now)
}

// kill sweeps with SIGKILL if that is due.
func (s *server) kill(now time.Duration) {
	if s.cmd.Enforce(now) {
		s.notice(Notice{Event: EventKill, Why: s.ending, PID: s.cmd.PID()})
	}
}

// reap collects the dead and reports whether no child, and so no descendant, is
// left.
func (s *server) reap() (empty bool) {
	_, before := s.cmd.Exited()
	empty = s.cmd.Reap(func(status syscall.WaitStatus) {
		if status.Continued() {
			s.notice(Notice{Event: EventContinued, PID: s.cmd.PID()})
			return
		}
		s.send(report{Stopped: status.StopSignal()})
		s.notice(Notice{Event: EventStopped, PID: s.cmd.PID(), Detail: unix.SignalName(status.StopSignal())})
	})
	_, exited := s.cmd.Exited()
	if exited && !before {
		s.why = s.ending
	}
	if exited && !empty && !s.cmd.Ending() {
		now := clock.Boot()
		s.begin(WhyBackground, now, now+s.grace)
	}
	return empty
}

func (s *server) finish(left []Leftover) {
	status, exited := s.cmd.Exited()
	o := ended(exited, status)
	o.Why, o.Leftovers = s.why, left
	o.Forced = s.cmd.Killed() > 0
	if !exited {
		o.Why = s.ending
	}
	for _, l := range left {
		s.notice(Notice{Event: EventLeftover, Why: s.ending, PID: l.PID, Comm: l.Comm, Detail: l.Why})
	}
	s.cmd.RemoveCgroup()
	s.send(report{Outcome: &o})
}

// signal passes on what the runner got: to the command's process group what a
// terminal sends to all of a job, to the command alone what is sent to one
// process. HUP is of the second kind: it makes daemons read their settings, and a
// worker that does not expect it would die.
func (s *server) signal(sig syscall.Signal) {
	switch sig {
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGCONT, syscall.SIGWINCH:
		s.cmd.SignalGroup(sig)
	default:
		s.cmd.Signal(sig)
	}
}

// ended makes an outcome of a wait status.
func ended(known bool, status syscall.WaitStatus) Outcome {
	switch {
	case known && status.Exited():
		return Outcome{ExitCode: status.ExitStatus()}
	case known && status.Signaled():
		return Outcome{ExitCode: -1, Signal: status.Signal()}
	}
	return Outcome{ExitCode: -1}
}
