package guardian

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/cmd/tenure/tree"
	"github.com/tenurehq/tenure/internal/clock"
	"golang.org/x/sys/unix"
)

const (
	defaultGrace = 5 * time.Second
	// pingEvery and stallMisses bound how long a guardian may be silent: about 2 s.
	// Unanswered pings are counted, not time, so that a runner that was itself
	// paused does not blame the guardian.
	pingEvery   = 250 * time.Millisecond
	stallMisses = 8
	// startMisses is the same until the command runs: nothing is at risk yet, and
	// a guardian on a busy machine may be slow to come up.
	startMisses = 40
	// sendTimeout bounds a request to a guardian that does not read; it is then
	// found stalled. The first request can be megabytes.
	sendTimeout  = 250 * time.Millisecond
	startTimeout = startMisses * pingEvery
)

// active is set while this operating-system process runs a command. Adopting
// orphans and reaping are properties of the whole process, so two commands in
// one could not be told apart.
var active atomic.Bool

// Process is a command under a deadline. Its methods are safe for concurrent use.
type Process struct {
	spec     Spec
	guardian int // pid
	cgroup   string
	timer    *tree.BootTimer
	tty      *terminal // nil without a controlling terminal
	done     chan struct{}
	started  chan error // one value: the command runs, or why not

	mu       sync.Mutex
	conn     *os.File
	out      *outbox
	deadline Deadline
	cmd      int // pid, 0 until it runs
	finished bool
	hasTTY   bool // the command had, or asked for, the foreground

	// Owned by watch.
	strangers map[tree.Identity]bool // children that were there before
	reports   <-chan report
	forking   bool // the guardian was about to fork
	misses    int  // pings since the last answer
	failed    bool // the command could not be started
	reaped    bool // the guardian is dead
	outcome   *Outcome
	takeover  Why // why the runner kills in the guardian's place, or ""
	since     time.Duration
	next      time.Duration // the next sweep
	cmdStatus *syscall.WaitStatus
	childless bool // wait4 said ECHILD
	quiet     int  // scans in a row that found nothing
}

// Start runs a command until first, or a later deadline given to [Process.Extend],
// has passed. The end of ctx is as [Process.Stop].
//
// It returns a [*StartError] if the system cannot execute the command, ErrLate if
// first has passed, ErrActive if this process runs another one, [ErrUnsupported]
// on systems without the means. Whatever the error, nothing runs when it returns;
// unless it matches [ErrMayHaveRun], nothing ran.
//
// While a command runs this process must start no other children: Start makes it
// a child subreaper for good and reaps whatever becomes its child, as PID 1 must.
// If the guardian dies, every child is taken for one of the command's descendants
// and is killed, except those that were there before Start and what is below them.
func Start(ctx context.Context, spec Spec, first Deadline) (*Process, error) {
	if len(spec.Argv) == 0 {
		return nil, &StartError{Err: errors.New("guardian: no command given")}
	}
	if err := first.check(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("guardian: start: %w", context.Cause(ctx))
	}
	path, err := lookup(spec.Argv[0])
	if err == nil && spec.Dir != "" {
		_, err = os.Stat(spec.Dir) // else it would read like a missing command
	}
	if err != nil {
		return nil, &StartError{Command: spec.Argv[0], Err: err}
	}
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return nil, fmt.Errorf("%w: /proc shows other processes than this one's (%q is not %d): mount one for this pid namespace", ErrUnsupported, self, os.Getpid())
	}
	if !active.CompareAndSwap(false, true) {
		return nil, ErrActive
	}
	p := &Process{
		spec: spec, deadline: first,
		done: make(chan struct{}), started: make(chan error, 1),
	}
	if p.spec.Grace <= 0 {
		p.spec.Grace = defaultGrace
	}
	if err := p.launch(ctx, path); err != nil {
		active.Store(false)
		return nil, err
	}
	if err := <-p.started; err != nil {
		<-p.done
		return nil, err
	}
	return p, nil
}

// lookup finds the file to execute, before anything is started.
func lookup(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		var wrapped *exec.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		if errors.Is(err, exec.ErrNotFound) {
			return "", ErrNotFound
		}
		return "", reason(err)
	}
	return filepath.Abs(path) // the command may start in another directory
}

// launch starts the guardian and hands it the command.
func (p *Process) launch(ctx context.Context, path string) (err error) {
	strangers, err := tree.Descendants(os.Getpid(), nil)
	if err != nil {
		return err
	}
	p.strangers = make(map[tree.Identity]bool)
	for _, s := range strangers {
		p.strangers[s.Identity()] = true
	}
	if err := tree.Subreaper(); err != nil {
		return err
	}
	if p.timer, err = tree.NewBootTimer(); err != nil {
		return err
	}
	p.tty = openTerminal()
	p.cgroup = tree.NewCgroup()
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("guardian: socket pair: %w", err)
	}
	defer unix.Close(pair[1])
	if err := unix.SetNonblock(pair[0], true); err != nil {
		unix.Close(pair[0])
		return fmt.Errorf("guardian: socket pair: %w", err)
	}
	p.conn = os.NewFile(uintptr(pair[0]), "guardian")
	p.out = newOutbox(p.conn)

	stdin, stdout, stderr := or(p.spec.Stdin, os.Stdin), or(p.spec.Stdout, os.Stdout), or(p.spec.Stderr, os.Stderr)
	files := []uintptr{stdin.Fd(), stdout.Fd(), stderr.Fd(), uintptr(pair[1])}
	for _, f := range p.spec.Files {
		files = append(files, f.Fd())
	}
	sigchld := make(chan os.Signal, 1)
	signal.Notify(sigchld, syscall.SIGCHLD)
	// Its own executable, even if the file was replaced since; no environment and
	// no arguments, so that nothing secret shows in /proc.
	p.guardian, err = syscall.ForkExec("/proc/self/exe", []string{marker}, &syscall.ProcAttr{
		Files: files,
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		signal.Stop(sigchld)
		return fmt.Errorf("guardian: start the guardian: %w", err)
	}
	p.hasTTY = isTerminal(stdin) && isTerminal(stdout) && p.tty.foreground() == unix.Getpgrp()
	reports := make(chan report)
	go func() {
		defer close(reports)
		for dec := gob.NewDecoder(bufio.NewReader(p.conn)); ; {
			var r report
			if dec.Decode(&r) != nil {
				return
			}
			select {
			case reports <- r:
			case <-p.done:
				return
			}
		}
	}()
	p.reports = reports
	go p.watch(ctx, sigchld)
	p.send(startTimeout, request{Start: &startRequest{
		Path: path, Argv: p.spec.Argv, Env: p.spec.Env, Dir: p.spec.Dir, Files: len(p.spec.Files),
		Grace: int64(p.spec.Grace), Cgroup: p.cgroup, Foreground: p.hasTTY, Deadline: p.deadline,
	}})
	return nil
}

func or(f, other *os.File) *os.File {
	if f != nil {
		return f
	}
	return other
}

// send never fails: a guardian that cannot be told anything misses its pings.
func (p *Process) send(timeout time.Duration, r request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sendLocked(timeout, r)
}

func (p *Process) sendLocked(timeout time.Duration, r request) {
	if p.out != nil && !p.finished {
		p.out.send(r, timeout)
	}
}

// PID returns the command's pid.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd
}

// GuardianPID returns the guardian's pid.
func (p *Process) GuardianPID() int { return p.guardian }

// Extend replaces the deadline. It does not wait for the guardian. A deadline
// that comes after the present TermAt passed is refused with [ErrLate], by the
// guardian too: what it has begun it does not call off. After the end it returns
// os.ErrProcessDone.
func (p *Process) Extend(d Deadline) error {
	if err := d.check(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished {
		return os.ErrProcessDone
	}
	if clock.Boot() >= p.deadline.TermAt {
		return fmt.Errorf("extend: %w", ErrLate)
	}
	p.deadline = d
	p.sendLocked(sendTimeout, request{Deadline: &d})
	return p.timer.Set(0) // wakes watch, which sets it anew
}

// Stop ends the tree: SIGTERM, Grace, SIGKILL; at KillAt at the latest. It does
// not wait; [Process.Wait] does.
func (p *Process) Stop() { p.send(sendTimeout, request{Stop: true}) }

// Signal passes a signal on to the command, or to its process group if it is one
// that a terminal sends (INT, QUIT, TSTP, CONT, WINCH). It returns
// os.ErrProcessDone after the end.
func (p *Process) Signal(sig os.Signal) error {
	number, ok := sig.(syscall.Signal)
	if !ok {
		return fmt.Errorf("guardian: signal %v is unknown", sig)
	}
	select {
	case <-p.done:
		return os.ErrProcessDone
	default:
	}
	if number == syscall.SIGCONT {
		p.resume()
		return nil
	}
	p.send(sendTimeout, request{Signal: number})
	return nil
}

// Signals lists the signals that a runner should pass on with [Process.Signal]:
// all that can be caught, without those that this process was started to ignore,
// those that the Go runtime needs, and CONT, which a Process handles by itself.
func Signals() []os.Signal {
	all := []os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGALRM, syscall.SIGTSTP, syscall.SIGWINCH, syscall.SIGIO, syscall.SIGPWR,
	}
	for sig := syscall.Signal(35); sig <= 64; sig++ { // real-time, above what the C library keeps
		all = append(all, sig)
	}
	var heard []os.Signal
	for _, sig := range all {
		if !signal.Ignored(sig) {
			heard = append(heard, sig)
		}
	}
	return heard
}

// Done is closed when the outcome is known.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait returns how it ended, once no descendant is left or those left are named.
// It can be called more than once. The error is not nil only if there is no
// outcome to report.
func (p *Process) Wait() (Outcome, error) {
	<-p.done
	if p.outcome == nil {
		return Outcome{}, errors.New("guardian: the command was not started")
	}
	return *p.outcome, nil
}

// watch is the runner's side: it listens to the guardian, counts its silence, and
// does its work when it fails.
func (p *Process) watch(ctx context.Context, sigchld chan os.Signal) {
	defer close(p.done)
	defer active.Store(false)
	defer p.close()
	defer signal.Stop(sigchld)
	resumed := make(chan os.Signal, 1)
	signal.Notify(resumed, syscall.SIGCONT)
	defer signal.Stop(resumed)
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	stop := ctx.Done()
	for !p.over() {
		p.arm()
		select {
		case r, ok := <-p.reports:
			if ok {
				p.hear(r)
			} else {
				p.reports = nil
				p.failover(WhyGuardianGone)
			}
		case <-ping.C:
			p.ping()
		case <-p.timer.C:
		case <-sigchld:
		case <-resumed:
			p.resume()
		case <-stop:
			stop = nil
			p.Stop()
		}
		p.reap()
		p.enforce(clock.Boot())
	}
	p.conclude()
}

// over reports that there is nothing left to do: the guardian has said how it
// ended and is gone, or its work has been done here.
func (p *Process) over() bool {
	if p.takeover != "" {
		return p.outcome != nil
	}
	return p.reaped && p.reports == nil && (p.outcome != nil || p.failed)
}

// arm sets the timer for the next instant at which enforce has work.
func (p *Process) arm() {
	if p.outcome != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.deadline.KillAt
	if p.next > 0 {
		at = p.next
	}
	_ = p.timer.Set(at)
}

func (p *Process) hear(r report) {
	p.misses = 0
	switch {
	case r.Forking:
		p.forking = true
	case r.Failed != nil:
		p.failed = true
		err := error(&StartError{Command: p.spec.Argv[0], Err: reason(r.Failed.Errno)})
		if r.Failed.Late {
			err = ErrLate
		}
		p.started <- err
	case r.Started != 0:
		p.mu.Lock()
		p.cmd = r.Started
		p.mu.Unlock()
		p.notice(Notice{Event: EventStarted, PID: r.Started})
		p.started <- nil
	case r.Stopped != 0:
		p.suspend(r.Stopped)
	case r.Notice != nil:
		p.notice(*r.Notice)
	case r.Outcome != nil:
		p.outcome = r.Outcome
		if p.next > 0 { // the guardian was late, and cannot know what was done here
			p.outcome.Forced = true
			if p.outcome.Why == "" {
				p.outcome.Why = WhyDeadline
			}
		}
	}
}

func (p *Process) notice(n Notice) {
	if p.spec.Notice != nil {
		p.spec.Notice(n)
	}
}

// ping asks the guardian for a sign of life and judges its silence.
func (p *Process) ping() {
	bound := stallMisses
	if p.cmd == 0 {
		bound = startMisses
	}
	if p.misses++; p.misses > bound {
		p.failover(WhyGuardianStalled)
	}
	p.send(sendTimeout, request{Ping: true})
}

// failover makes the runner kill the tree in the guardian's place, the guardian
// with it. There is no grace: who cannot say what the tree does must not wait.
func (p *Process) failover(why Why) {
	done := p.failed || p.outcome != nil
	if p.takeover != "" || done && why == WhyGuardianGone {
		return
	}
	p.takeover, p.since, p.next = why, clock.Boot(), 0
	p.notice(Notice{Event: EventKill, Why: why, PID: p.cmd})
}

// reap collects the dead: the guardian, orphans, and as PID 1 anybody's.
func (p *Process) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|unix.WALL, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil: // ECHILD
			p.childless = true
			return
		case pid == 0:
			p.childless = false
			return
		case pid == p.guardian:
			p.reaped = true
		case pid == p.cmd:
			p.cmdStatus = &status
		}
	}
}

// enforce kills what the guardian should have killed: everything if it failed,
// and at KillAt the tree in any case.
func (p *Process) enforce(now time.Duration) {
	if p.takeover != "" && p.outcome == nil && p.gone() {
		p.conclusion(nil)
		return
	}
	p.mu.Lock()
	late := now >= p.deadline.KillAt
	p.mu.Unlock()
	if p.outcome != nil || p.takeover == "" && !late || now < p.next {
		return
	}
	p.next = now + 10*time.Millisecond
	tree.KillCgroup(p.cgroup)
	root, skip := os.Getpid(), p.strangers
	if p.takeover == "" {
		if p.reaped {
			return // its last words are on the way
		}
		root, skip = p.guardian, nil
	}
	alive, _ := tree.Descendants(root, skip)
	for _, victim := range alive {
		_ = victim.Send(syscall.SIGKILL)
	}
	if p.takeover != "" && now >= p.since+tree.LeftoverAfter {
		p.conclusion(tree.Leftovers(alive))
	}
}

// gone reports that no descendant is left: wait4 said so or, if children that are
// not ours keep it from that, two scans in a row did.
func (p *Process) gone() bool {
	if p.childless {
		return true
	}
	if len(p.strangers) == 0 {
		return false
	}
	alive, err := tree.Descendants(os.Getpid(), p.strangers)
	if err != nil || len(alive) > 0 {
		p.quiet = 0
		return false
	}
	p.quiet++
	return p.quiet >= 2
}

// conclusion is the outcome of a tree that the runner killed itself.
func (p *Process) conclusion(left []Leftover) {
	o := Outcome{ExitCode: -1}
	if p.cmdStatus != nil {
		o = ended(true, *p.cmdStatus)
	}
	o.Why, o.Forced, o.Leftovers = p.takeover, true, left
	for _, l := range left {
		p.notice(Notice{Event: EventLeftover, Why: p.takeover, PID: l.PID, Comm: l.Comm, Detail: l.Why})
	}
	p.outcome = &o
}

// conclude answers a Start that is still waiting.
func (p *Process) conclude() {
	if p.cmd != 0 || p.failed {
		return
	}
	p.outcome = nil
	if p.forking {
		p.started <- ErrMayHaveRun
		return
	}
	p.started <- fmt.Errorf("guardian: ended before it started %q (%s)", p.spec.Argv[0], p.takeover)
}

// close gives back what Start took.
func (p *Process) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finished = true
	if p.conn != nil {
		p.conn.Close()
	}
	p.timer.Close()
	tree.RemoveCgroup(p.cgroup)
	p.reclaim()
	p.tty.close()
}

// suspend follows a command that was stopped by its terminal: it stops this job
// as well, so that the shell that started it takes over.
func (p *Process) suspend(sig syscall.Signal) {
	if p.tty == nil {
		return
	}
	own, front := unix.Getpgrp(), p.tty.foreground()
	asks := sig == syscall.SIGTTIN || sig == syscall.SIGTTOU
	p.mu.Lock()
	p.hasTTY = p.hasTTY || asks
	p.mu.Unlock()
	switch {
	case asks && (front == own || front == p.cmd):
		p.resume() // it asks for the terminal, which we can give or which it got since
		return
	case front == p.cmd:
		_ = p.tty.give(own)
	case sig == syscall.SIGSTOP:
		return // somebody stopped the command by itself
	}
	if orphanedJob() {
		p.resume() // nobody could say fg
		return
	}
	_ = syscall.Kill(0, syscall.SIGSTOP) // this process too: it goes on in resume
}

// resume lets the command go on, in the foreground if this job is there.
func (p *Process) resume() {
	p.mu.Lock()
	give := p.hasTTY && p.cmd != 0 && !p.finished
	if give && p.tty.foreground() == unix.Getpgrp() {
		_ = p.tty.give(p.cmd)
	}
	p.mu.Unlock()
	p.send(sendTimeout, request{Signal: syscall.SIGCONT})
}

// reclaim takes the terminal back from a group that is gone. A shell that put
// this job in the background keeps it.
func (p *Process) reclaim() {
	front := p.tty.foreground()
	if !p.hasTTY || front == 0 || front == unix.Getpgrp() {
		return
	}
	if front == p.cmd || errors.Is(syscall.Kill(-front, 0), syscall.ESRCH) {
		_ = p.tty.give(unix.Getpgrp())
	}
}
