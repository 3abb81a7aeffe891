package guardian

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/cmd/tenure/tree"
)

var (
	// ErrUnsupported reports that this system lacks what a guardian needs.
	ErrUnsupported = errors.New("guardian: running a command under a deadline needs Linux with /proc")
	// ErrNotFound reports that there is no such program.
	ErrNotFound = errors.New("guardian: command not found")
	// ErrNotExecutable reports a file that is there but that the system refuses
	// to execute: no permission, a directory, or not in a format it knows.
	ErrNotExecutable = errors.New("guardian: command is not executable")
	// ErrLate reports that the first deadline had passed before the command ran.
	ErrLate = errors.New("guardian: the deadline passed before the command was started")
	// ErrActive reports that this process runs another command already.
	ErrActive = errors.New("guardian: a command is running already")
	// ErrMayHaveRun reports that the guardian failed at the very moment of
	// starting the command. Whatever started has been killed as far as it can be,
	// but it may have run: let the lease expire.
	ErrMayHaveRun = errors.New("guardian: failed while starting the command, which may have run for a moment")
)

// StartError says that the command was not started and why. It matches
// [ErrNotFound] or [ErrNotExecutable] where one of them is the reason, and
// otherwise the system's error, such as syscall.E2BIG.
type StartError struct {
	Command string // as given
	Err     error
}

func (e *StartError) Error() string {
	return fmt.Sprintf("guardian: cannot start %q: %v", e.Command, e.Err)
}

// Unwrap returns the reason.
func (e *StartError) Unwrap() error { return e.Err }

// reason makes the system's refusal to execute a file into one of our errors.
func reason(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w (%w)", ErrNotFound, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOEXEC):
		return fmt.Errorf("%w (%w)", ErrNotExecutable, err)
	}
	return err
}

// Deadline is when a tree must end: two instants on CLOCK_BOOTTIME, as
// internal/clock.Boot reads it. KillAt is TermAt plus grace, and grace must be
// smaller than the margin of the lease.
type Deadline struct {
	TermAt time.Duration // SIGTERM: the last instant at which the holder may act
	KillAt time.Duration // SIGKILL: at or after TermAt
}

func (d Deadline) check() error {
	if d.TermAt <= 0 || d.KillAt < d.TermAt {
		return fmt.Errorf("guardian: bad deadline: TermAt %v must be positive and KillAt %v at or after it", d.TermAt, d.KillAt)
	}
	return nil
}

// Spec is the command to run.
type Spec struct {
	// Argv is the command and its arguments, passed on byte for byte; no shell
	// reads them. Argv[0] without a slash is looked up in this process's PATH.
	Argv []string
	// Env is the whole environment of the command. Nothing is added to it.
	Env []string
	// Dir is where the command starts; "" means this process's directory.
	Dir string
	// Grace is the time between SIGTERM and SIGKILL when the command is ended for
	// another reason than its deadline: by [Process.Stop], or its descendants
	// after it ended by itself. The deadline cuts it short. Default 5 s.
	Grace time.Duration
	// Stdin, Stdout and Stderr become descriptors 0, 1 and 2; nil means this
	// process's own. The command gets the files themselves, no copy through us.
	Stdin, Stdout, Stderr *os.File
	// Files become descriptors 3, 4, … of the command, which gets no other. The
	// caller closes its own copies, after Start returned.
	Files []*os.File
	// Notice, if not nil, is told of each change of state, in order, from one
	// goroutine. It must not block.
	Notice func(Notice)
}

// Why is the reason for which a tree was killed: a stable code for logs.
type Why string

// The reasons.
const (
	WhyDeadline        Why = "deadline"         // TermAt passed without a later deadline
	WhyStop            Why = "stop"             // Process.Stop, or the context of Start ended
	WhyBackground      Why = "background"       // descendants that outlived the command; only in a Notice
	WhyRunnerGone      Why = "runner_gone"      // only in the guardian, which has nobody left to tell
	WhyGuardianGone    Why = "guardian_gone"    // the guardian died
	WhyGuardianStalled Why = "guardian_stalled" // the guardian stopped answering
)

// Event is what a [Notice] tells: a stable code for logs.
type Event string

// The events.
const (
	EventStarted   Event = "started"   // the command runs as PID
	EventTerm      Event = "term_sent" // SIGTERM went to the tree, for Why
	EventKill      Event = "kill_sent" // SIGKILL went to the tree, for Why
	EventLeftover  Event = "leftover"  // PID, Comm could not be killed, for Detail
	EventStopped   Event = "stopped"   // the command was stopped by the signal in Detail
	EventContinued Event = "continued" // the command goes on
)

// Notice is one change of state.
type Notice struct {
	Event  Event
	Why    Why
	PID    int
	Comm   string
	Detail string
}

// Leftover is a descendant that could not be killed.
type Leftover = tree.Leftover

// Outcome is how a command and all its descendants ended.
type Outcome struct {
	// ExitCode is the command's exit status, 0–255, or -1 if a signal ended it or
	// it is itself a leftover.
	ExitCode int
	// Signal ended the command, or is 0. Callers exit with 128 + Signal.
	Signal syscall.Signal
	// Why says what began the killing of the command; "" if it ended by itself.
	Why Why
	// Forced reports that SIGKILL was used, on the command or on a descendant.
	Forced bool
	// Leftovers are still alive. If there is any, the lease must be left to
	// expire and must not be released.
	Leftovers []Leftover
}
