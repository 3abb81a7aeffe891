package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
)

var (
	// ErrNotRunning reports that nothing of a work item runs that could be
	// attached: it was never started, or the host was started anew since.
	ErrNotRunning = errors.New("agent: work is not running on this host")
	// ErrLate reports that the node's right to act ended before the work ran.
	ErrLate = errors.New("agent: the node may not act any more")
)

// StartError reports that a work item cannot be started as it is specified.
// Other errors of a Driver may pass, and the agent tries again.
type StartError struct {
	Work     string
	ExitCode int // as a shell has it: 127 not found, 126 not executable
	Err      error
}

func (e *StartError) Error() string { return fmt.Sprintf("agent: cannot start %q: %v", e.Work, e.Err) }

// Unwrap returns the reason.
func (e *StartError) Unwrap() error { return e.Err }

// Task is one assignment of a work item, as a Driver is to run it.
type Task struct {
	Spec  fleet.Spec // with its defaults filled in
	Token fence.Token
	// Env are the variables that tell the work who it is: TENURE_WORK,
	// TENURE_NODE, TENURE_TOKEN, TENURE_PROGRESS and TENURE_SERVER. A Driver that
	// has files adds TENURE_PROGRESS_FILE and TENURE_QUIESCE_FILE.
	Env map[string]string
	// Deadline is the file that says until when the node may act; see [Deadline].
	Deadline string
}

// Instance names one assignment of a work item.
type Instance struct {
	Work  string
	Token fence.Token
}

// Driver runs work items as something that outlives the agent. Its methods are
// safe for concurrent use.
type Driver interface {
	// Start begins t and returns once it runs. It returns *StartError where the
	// specification is at fault, and an error matching ErrLate if the node's
	// right to act has ended. If the same instance ran before and has ended, it
	// runs anew.
	Start(ctx context.Context, t Task) (Run, error)
	// Attach takes up an instance that an earlier agent started, or what is
	// known of its end. The error matches ErrNotRunning if there is neither.
	Attach(ctx context.Context, of Instance) (Run, error)
	// List returns the instances that have left a trace on this host.
	List() ([]Instance, error)
	// Forget removes what is left of an instance that has ended.
	Forget(of Instance) error
}

// Run is one instance that runs or has ended. Its methods are safe for
// concurrent use. They may use files, and wait for nothing else.
type Run interface {
	// Task returns what it was started with.
	Task() Task
	// Done is closed when nothing of it is left and Result says how it ended.
	Done() <-chan struct{}
	Result() Result
	// Stop ends it, with its grace. why is kept for people.
	Stop(why string)
	// Fence tells that the node may not act for this item any more: what its loss
	// policy says happens now.
	Fence()
	// Resume tells what was quiesced that it may act again, until the instant that
	// the deadline file has now.
	Resume()
	// Quiesced reports whether it was told to stop acting, and not since that it
	// may act again.
	Quiesced() bool
	// Progress returns the last marker that the work wrote; "" if none.
	Progress() string
	// PID returns the process id, 0 if there is no process.
	PID() int
}

// Ending says why an instance ended.
type Ending string

// The endings.
const (
	Exited  Ending = "exited"  // by itself
	Stopped Ending = "stopped" // by Run.Stop
	// Halted: the node's right to act ended, or the host goes down. It is to run
	// again once the node may act, if it is still the node's.
	Halted Ending = "halted"
	// Unknown: its end was not seen, so its status is not known.
	Unknown Ending = "unknown"
)

// Result says how an instance ended.
type Result struct {
	Ending Ending
	// ExitCode is 0–255; 128 and the number of the signal if one ended it; -1 if
	// it is not known.
	ExitCode int
	Text     string // for people
}
