//go:build !linux

package guardian

import (
	"context"
	"os"
)

// Main does nothing on this system.
func Main() {}

// Process is a command under a deadline. There is none on this system.
type Process struct{}

// Start returns [ErrUnsupported].
func Start(context.Context, Spec, Deadline) (*Process, error) { return nil, ErrUnsupported }

// PID returns 0.
func (*Process) PID() int { return 0 }

// GuardianPID returns 0.
func (*Process) GuardianPID() int { return 0 }

// Extend returns [ErrUnsupported].
func (*Process) Extend(Deadline) error { return ErrUnsupported }

// Signal returns [ErrUnsupported].
func (*Process) Signal(os.Signal) error { return ErrUnsupported }

// Stop does nothing.
func (*Process) Stop() {}

// Done returns nil.
func (*Process) Done() <-chan struct{} { return nil }

// Wait returns [ErrUnsupported].
func (*Process) Wait() (Outcome, error) { return Outcome{}, ErrUnsupported }

// Signals returns nil.
func Signals() []os.Signal { return nil }
