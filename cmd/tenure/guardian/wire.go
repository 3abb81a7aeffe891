package guardian

import "syscall"

// The runner and the guardian talk over one socket pair in gob, which keeps
// every byte of an argument. Instants are CLOCK_BOOTTIME.

// request goes from the runner to the guardian. One field is set.
type request struct {
	Start    *startRequest // the first request, once
	Deadline *Deadline
	Signal   syscall.Signal
	Stop     bool
	Ping     bool
}

// startRequest is a Spec that can be sent. The files were inherited: the
// command's 0, 1 and 2 are the guardian's, its 3, 4, … the guardian's 4, 5, ….
type startRequest struct {
	Path       string
	Argv       []string
	Env        []string
	Dir        string
	Files      int
	Grace      int64 // nanoseconds
	Cgroup     string
	Foreground bool // give the command the terminal at once
	Deadline   Deadline
}

// report goes from the guardian to the runner. One field is set.
type report struct {
	Pong    bool
	Forking bool           // from here on the command may run
	Started int            // its pid
	Failed  *startFailure  // it did not run
	Stopped syscall.Signal // the command was stopped
	Notice  *Notice
	Outcome *Outcome // the last report
}

// startFailure is the system's refusal, or Late.
type startFailure struct {
	Errno syscall.Errno
	Late  bool
}
