//go:build linux

package guardian

import (
	"testing"
	"time"
)

// This looks inside: nobody can choose which of two things that are ready wakes
// the guardian.

func TestGuardianRefusesLateDeadline(t *testing.T) {
	t.Parallel()
	first, later := Deadline{TermAt: 100, KillAt: 200}, Deadline{TermAt: 300, KillAt: 400}
	for _, c := range []struct {
		now  time.Duration
		want Deadline
	}{{99, later}, {100, first}, {250, first}} {
		s := &server{deadline: first}
		s.handle(request{Deadline: &later}, c.now)
		if s.deadline != c.want {
			t.Errorf("read at %d: got %v, want %v", c.now, s.deadline, c.want)
		}
	}
}
