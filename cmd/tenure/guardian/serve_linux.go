package guardian

import (
	"bufio"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/internal/clock"
	"golang.org/x/sys/unix"
)

const (
	marker    = "tenure-guardian" // the whole argv of a guardian
	controlFD = 3                 // its end of the socket pair

	// goneGrace is what a tree gets between SIGTERM and SIGKILL when its runner is
	// dead: enough to close a file, and far below the second in which it must end.
	goneGrace = 200 * time.Millisecond
	// leftoverAfter is how long SIGKILL may take before who is left is named.
	leftoverAfter = 2 * time.Second
	// sweepFirst and sweepMax bound the pause between two sweeps with SIGKILL.
	sweepFirst = 2 * time.Millisecond
	sweepMax   = 50 * time.Millisecond
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
	timer *bootTimer
	spec  startRequest
	grace time.Duration

	deadline Deadline
	cmd      int // pid
	pidfd    int // of cmd; names its process group even after cmd was reaped
	exited   bool
	status   syscall.WaitStatus
	why      Why     // what was killing cmd when it ended
	end      *ending // nil until killing begins; then never nil again
}

// ending is a tree being killed.
type ending struct {
	why    Why
	killAt time.Duration
	asked  map[identity]bool // who got SIGTERM
	killed time.Duration     // the first SIGKILL, or 0
	next   time.Duration     // the next sweep
	pause  time.Duration
}

func serve() error {
	runtime.LockOSThread()
	closeOnExec()
	if err := unix.SetNonblock(controlFD, true); err != nil {
		return errors.New("guardian: this process is started by tenure run only")
	}
	catchSignals()
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	if err := subreaper(); err != nil {
		return err
	}
	timer, err := newBootTimer()
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

// closeOnExec keeps every descriptor from the command that it is not given: those
// that leaked into the runner, too.
func closeOnExec() {
	if unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	open, _ := filepath.Glob("/proc/self/fd/*") // before Linux 5.11
	for _, path := range open {
		if fd, err := strconv.Atoi(filepath.Base(path)); err == nil && fd >= 3 {
			syscall.CloseOnExec(fd)
		}
	}
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
		Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, PidFD: &s.pidfd},
	}
	var err error = syscall.ENOENT
	if cgroup, openErr := openCgroup(spec.Cgroup); openErr == nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, cgroup
		s.cmd, err = syscall.ForkExec(spec.Path, spec.Argv, attr)
		unix.Close(cgroup)
		attr.Sys.UseCgroupFD = false
	}
	if err != nil { // nothing ran; the cgroup may be what was refused
		s.cmd, err = syscall.ForkExec(spec.Path, spec.Argv, attr)
	}
	if err != nil {
		var errno syscall.Errno
		errors.As(err, &errno)
		s.send(report{Failed: &startFailure{Errno: errno}})
		return false
	}
	if spec.Foreground {
		if tty := openTerminal(); tty != nil {
			_ = tty.give(s.cmd) // if refused, the command asks by SIGTTIN
			tty.close()
		}
	}
	for i := range spec.Files {
		unix.Close(controlFD + 1 + i)
	}
	s.send(report{Started: s.cmd})
	return true
}

func openCgroup(dir string) (int, error) {
	if dir == "" {
		return -1, syscall.ENOENT
	}
	return unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
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
		if s.end != nil && s.end.killed > 0 && now >= s.end.killed+leftoverAfter {
			alive, _ := descendants(os.Getpid(), nil)
			s.finish(leftovers(alive))
			return
		}
		if err := s.timer.set(s.wake()); err != nil {
			s.kill(now) // cannot happen, and a guardian without a clock must not guard
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
	switch {
	case s.end == nil:
		return s.deadline.TermAt
	case s.end.killed == 0:
		return s.end.killAt
	}
	return s.end.next
}

func (s *server) handle(r request, now time.Duration) {
	switch {
	case r.Ping:
		s.pong(r)
	case r.Deadline != nil:
		// One that is read after the old one passed comes too late, whatever it says.
		if s.end == nil && now < s.deadline.TermAt {
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
	if s.end != nil && now >= s.end.killAt && now >= s.end.next {
		s.kill(now)
	}
}

// begin starts the killing, with SIGTERM if there is time for it. A later reason
// can only shorten what an earlier one allowed.
func (s *server) begin(why Why, now, killAt time.Duration) {
	killAt = min(killAt, s.deadline.KillAt)
	if s.end != nil {
		s.end.killAt = min(s.end.killAt, killAt)
		return
	}
	s.end = &ending{why: why, killAt: killAt, asked: make(map[identity]bool), pause: sweepFirst}
	if now >= killAt {
		s.kill(now)
		return
	}
	s.ask(func(process) bool { return true })
	s.notice(Notice{Event: EventTerm, Why: why, PID: s.cmd})
}

// ask sends SIGTERM to those that match and did not get it yet.
func (s *server) ask(match func(process) bool) {
	alive, _ := descendants(os.Getpid(), nil)
	for _, p := range alive {
		if s.end.asked[p.identity()] || !match(p) {
			continue
		}
		s.end.asked[p.identity()] = true
		// What cannot be signalled shows when SIGKILL fails too. A stopped process
		// acts on SIGTERM only once it continues.
		_ = p.send(syscall.SIGTERM)
		_ = p.send(syscall.SIGCONT)
	}
}

// askOrphans asks who was started after SIGTERM went out and has lost its parent
// since. Who still has one is left to it: it may be what cleans up.
func (s *server) askOrphans() {
	self := os.Getpid()
	s.ask(func(p process) bool { return p.ppid == self && p.pid != s.cmd })
}

// kill is one sweep with SIGKILL.
func (s *server) kill(now time.Duration) {
	if s.end == nil {
		s.end = &ending{why: WhyDeadline, killAt: now, pause: sweepFirst}
	}
	first := s.end.killed == 0
	killCgroup(s.spec.Cgroup)
	if signalGroup(s.pidfd, syscall.SIGKILL) != nil && !s.exited {
		_ = syscall.Kill(-s.cmd, syscall.SIGKILL) // not reaped, so the number is still its own
	}
	alive, _ := descendants(os.Getpid(), nil)
	for _, p := range alive {
		_ = p.send(syscall.SIGKILL)
	}
	if first {
		s.end.killed = now
		s.notice(Notice{Event: EventKill, Why: s.end.why, PID: s.cmd})
	}
	s.end.next = clock.Boot() + s.end.pause
	s.end.pause = min(2*s.end.pause, sweepMax)
}

// reap collects the dead and reports whether no child, and so no descendant, is
// left.
func (s *server) reap() (empty bool) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|syscall.WUNTRACED|syscall.WCONTINUED|unix.WALL, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // ECHILD
			return true
		case pid == 0:
			switch {
			case s.end != nil && s.end.killed == 0:
				s.askOrphans()
			case s.end == nil && s.exited:
				now := clock.Boot()
				s.begin(WhyBackground, now, now+s.grace)
			}
			return false
		case pid != s.cmd:
		case status.Stopped():
			s.send(report{Stopped: status.StopSignal()})
			s.notice(Notice{Event: EventStopped, PID: pid, Detail: unix.SignalName(status.StopSignal())})
		case status.Continued():
			s.notice(Notice{Event: EventContinued, PID: pid})
		default:
			s.exited, s.status = true, status
			if s.end != nil {
				s.why = s.end.why
			}
		}
	}
}

func (s *server) finish(left []Leftover) {
	o := ended(s.exited, s.status)
	o.Why, o.Leftovers = s.why, left
	if s.end != nil {
		o.Forced = s.end.killed > 0
		if !s.exited {
			o.Why = s.end.why
		}
	}
	for _, l := range left {
		s.notice(Notice{Event: EventLeftover, Why: s.end.why, PID: l.PID, Comm: l.Comm, Detail: l.Why})
	}
	removeCgroup(s.spec.Cgroup)
	s.send(report{Outcome: &o})
}

// signal passes on what the runner got: to the command's process group what a
// terminal sends to all of a job, to the command alone what is sent to one
// process. HUP is of the second kind: it makes daemons read their settings, and a
// worker that does not expect it would die.
func (s *server) signal(sig syscall.Signal) {
	switch sig {
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGCONT, syscall.SIGWINCH:
		if signalGroup(s.pidfd, sig) != nil && !s.exited {
			_ = syscall.Kill(-s.cmd, sig)
		}
	default:
		if !s.exited {
			_ = syscall.Kill(s.cmd, sig) // not reaped: the pid is still its own
		}
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
