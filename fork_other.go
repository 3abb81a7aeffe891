//go:build !linux

package tenure

import "os"

// forkMark tells whether this process is the one that made it, by its id.
type forkMark struct{ pid int }

func newForkMark() *forkMark { return &forkMark{pid: os.Getpid()} }

func (m *forkMark) forked() bool { return os.Getpid() != m.pid }
