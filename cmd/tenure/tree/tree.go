// Package tree ends a command together with everything that it started.
//
// # Promised (Linux)
//
// Descendants are found through the parent links in /proc and signalled through
// pidfds whose start time is compared after opening, so that a reused pid is
// never signalled. A SIGKILL also goes to whole process groups, which no fork can
// outrun, and to a cgroup v2 made for the command where one can be made (see
// cgroup.kill in the kernel's documentation). None of these is trusted to be
// complete: the sweep is repeated until wait4 says ECHILD. Since every orphan
// below a subreaper becomes its child, that answer means that no descendant is
// left at all. [Child] is this, as the parent of the command does it.
//
// # Not promised
//
// A process that may not be signalled (it changed its user), one in
// uninterruptible sleep, and one that the command asked somebody else to start
// stay. [Leftovers] names the first two.
//
// On other systems the package holds types alone.
package tree

// Leftover is a descendant that could not be killed.
type Leftover struct {
	PID  int
	Comm string // its name as the kernel shows it
	Why  string // what kept it alive
}
