package minder

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/agent"
	"github.com/tenurehq/tenure/cmd/tenure/tree"
	"github.com/tenurehq/tenure/fleet"
	"golang.org/x/sys/unix"
)

// stalled is how long after it should have ended a tree, with its minder, is
// killed from here: the minder is stopped or stuck.
const stalled = time.Second

// run is an instance with a minder, or one that has lost it.
type run struct {
	dir   instance
	task  task
	procs processes
	done  chan struct{}

	result agent.Result // before done is closed, of watch alone

	mu     sync.Mutex
	orphan bool         // the minder is dead
	ending agent.Ending // what was asked for
	why    string
}

var _ agent.Run = (*run)(nil)

// Task implements agent.Run.
func (r *run) Task() agent.Task { return r.task.Task }

// Done implements agent.Run.
func (r *run) Done() <-chan struct{} { return r.done }

// Result implements agent.Run.
func (r *run) Result() agent.Result {
	<-r.done
	return r.result
}

// PID implements agent.Run.
func (r *run) PID() int { return r.procs.Command.PID }

func (r *run) policy() fleet.LossPolicy { return r.task.Task.Spec.OnLoss }

func (r *run) grace() time.Duration {
	return time.Duration(r.task.Task.Spec.GraceMS) * time.Millisecond
}

// Stop implements agent.Run.
func (r *run) Stop(why string) {
	r.ask(agent.Stopped, why)
	_ = r.dir.save(stopFile, stopOrder{why}) // without it, the item counts as halted
	r.signalMinder(syscall.SIGTERM)
	r.enforce(r.grace())
}

// Fence implements agent.Run.
func (r *run) Fence() {
	switch r.policy() {
	case fleet.Stop:
		r.ask(agent.Halted, "the node lost its right to act")
		r.signalMinder(syscall.SIGUSR1)
		grace := r.grace()
		if d, err := agent.ReadDeadline(r.task.Task.Deadline); err == nil {
			grace = min(grace, d.Margin/2)
		}
		r.enforce(grace)
	case fleet.Quiesce:
		if !r.signalMinder(syscall.SIGUSR1) {
			_ = os.WriteFile(r.dir.path(quiesceFile), nil, 0o600)
			r.signalCommand(syscall.SIGUSR1)
		}
	}
}

// Resume implements agent.Run.
func (r *run) Resume() {
	if !r.signalMinder(syscall.SIGUSR2) {
		r.dir.remove(quiesceFile)
		r.signalCommand(syscall.SIGUSR2)
	}
}

// Quiesced implements agent.Run.
func (r *run) Quiesced() bool {
	_, err := os.Stat(r.dir.path(quiesceFile))
	return err == nil
}

// Progress implements agent.Run. A marker that is too long counts as none.
func (r *run) Progress() string {
	f, err := os.Open(r.dir.path(progressFile))
	if err != nil {
		return ""
	}
	defer f.Close()
	marker, err := io.ReadAll(io.LimitReader(f, fleet.MaxMarker+2))
	if err != nil {
		return ""
	}
	return string(bytes.TrimRight(marker, "\r\n"))
}

func (r *run) ask(ending agent.Ending, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ending == "" {
		r.ending, r.why = ending, why
	}
}

// signalMinder reports whether there is a minder to be told.
func (r *run) signalMinder(sig syscall.Signal) bool {
	r.mu.Lock()
	orphan := r.orphan
	r.mu.Unlock()
	p, err := tree.Read(r.procs.Minder.PID)
	if orphan || err != nil || p.Identity() != r.procs.Minder || p.Dead() {
		return false
	}
	return p.Send(sig) == nil
}

func (r *run) signalCommand(sig syscall.Signal) {
	if p, err := tree.Read(r.procs.Command.PID); err == nil && p.Identity() == r.procs.Command {
		_ = p.Send(sig)
	}
}

// enforce sees to it that the tree ends after grace: at once if the minder is
// dead, and if the minder does not do it.
func (r *run) enforce(grace time.Duration) {
	r.mu.Lock()
	orphan := r.orphan
	r.mu.Unlock()
	wait := grace + stalled
	if orphan {
		for _, p := range r.members() {
			_ = p.Send(syscall.SIGTERM)
			_ = p.Send(syscall.SIGCONT)
		}
		wait = grace
	}
	time.AfterFunc(wait, func() {
		for pause := 2 * time.Millisecond; ; pause = min(2*pause, time.Second) {
			select {
			case <-r.done:
				return
			default:
				r.kill()
			}
			select {
			case <-r.done: // the minder, or /proc, says that nothing is left
			case <-time.After(pause):
			}
		}
	})
}

// members returns what belongs to the instance: what is below its minder, and in
// the minder's session.
func (r *run) members() []tree.Process {
	alive := session(r.procs.Minder)
	if p, err := tree.Read(r.procs.Minder.PID); err == nil && p.Identity() == r.procs.Minder {
		below, _ := tree.Descendants(p.PID, nil)
		alive = append(alive, below...)
	}
	return alive
}

// kill is one sweep with SIGKILL over the tree, and over a minder that did not.
func (r *run) kill() {
	for _, p := range r.members() {
		_ = p.Send(syscall.SIGKILL)
	}
	r.signalMinder(syscall.SIGKILL)
}

// session returns the live members of the session that a minder made, but itself.
// Its number is not given to another process as long as there are any.
func session(minder tree.Identity) (members []tree.Process) {
	all, err := tree.Table()
	if err != nil {
		return nil
	}
	for _, p := range all {
		switch {
		case p.PID == minder.PID && p.Identity() != minder:
			return nil // the number was given away, so the session is over
		case p.SID == minder.PID && p.PID != minder.PID && !p.Dead():
			members = append(members, p)
		}
	}
	return members
}

// watch waits for the end.
func (r *run) watch() {
	defer close(r.done)
	waitGone(r.procs.Minder)
	_, _ = syscall.Wait4(r.procs.Minder.PID, nil, syscall.WNOHANG, nil) // if it was ours
	var now processes
	switch err := r.dir.load(processFile, &now); {
	case err == nil && now.Minder != r.procs.Minder: // for whoever did not start it
		r.result = agent.Result{Ending: agent.Halted, ExitCode: -1, Text: "it was started anew"}
		return
	case r.dir.load(exitFile, &r.result) == nil:
		return
	}
	r.mu.Lock()
	r.orphan = true
	asked := r.ending != ""
	r.mu.Unlock()
	// The minder was killed. What is to be stopped has nobody to keep its deadline.
	if r.policy() == fleet.Stop || asked {
		r.sweep()
	} else {
		waitGone(r.procs.Command)
		r.sweep() // what it left behind
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result = agent.Result{Ending: r.ending, ExitCode: -1, Text: r.why}
	switch {
	case r.ending != "":
	case r.policy() == fleet.Stop:
		r.result.Ending, r.result.Text = agent.Halted, "its minder was killed"
	default:
		r.result.Ending, r.result.Text = agent.Unknown, "its minder was killed, so how it ended is not known"
	}
	_ = r.dir.save(exitFile, r.result)
}

// sweep kills until nothing of a tree without a minder is left.
func (r *run) sweep() {
	for pause := 2 * time.Millisecond; len(r.members()) > 0; pause = min(2*pause, time.Second) {
		r.kill()
		<-time.After(pause)
	}
}

// waitGone returns once a process has ended.
func waitGone(of tree.Identity) {
	if of.PID == 0 {
		return
	}
	fd, err := unix.PidfdOpen(of.PID, unix.PIDFD_NONBLOCK)
	for err != nil && !errors.Is(err, syscall.ESRCH) { // before Linux 5.10
		if gone(of) {
			return
		}
		<-time.After(100 * time.Millisecond)
	}
	if err != nil {
		return
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	if gone(of) { // what the descriptor holds had the pid when it was opened
		return
	}
	raw, err := f.SyscallConn()
	if err == nil {
		err = raw.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0 || err != nil && !errors.Is(err, syscall.EINTR)
		})
	}
	for err != nil && !gone(of) {
		<-time.After(100 * time.Millisecond)
	}
}

func gone(of tree.Identity) bool {
	p, err := tree.Read(of.PID)
	return err != nil || p.Identity() != of || p.Dead()
}
