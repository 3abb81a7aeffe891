// Package minder runs work items as processes that outlive the agent, and ends
// them in time if the agent cannot.
//
// # Who is who
//
//	agent ──Start──► minder ──fork──► CMD ──► …
//	(holds the       (own session,    (own process group, no descriptors but
//	 node's lease)    one per item)    /dev/null and its log)
//
// [Driver] is an agent.Driver. It starts the program's own executable anew, from
// /proc/self/exe; [Main], called first in main, turns that process into a minder.
// Minder and command are detached: an agent that ends, is killed or is upgraded
// leaves them alone, and the next one attaches to them. A pid is believed only
// together with its start time and the id of the boot.
//
// # What is promised (Linux)
//
// The minder follows the item's loss policy by the agent's deadline file
// (agent.Deadline), also when no agent is there. At the deadline it reads the file
// once more. It goes on if the file has a later deadline without a gap before it.
// It does not if the file is missing, torn, of another boot or says nothing new:
// then the last deadline stands.
//
//	stop     SIGTERM to the tree at the deadline, SIGKILL after the item's
//	         grace, at the latest when half of the lease's margin is left
//	quiesce  SIGUSR1 to the command and the file TENURE_QUIESCE_FILE; SIGUSR2,
//	         and the file removed, when it may act again
//	keep     nothing
//
// An item that is told to stop for another reason, as by an order, has its whole
// grace, however long, while later deadlines come; when none does, what is above
// holds for what is left of it.
//
// How a tree is killed says package tree. What a command leaves behind when it
// ends by itself is ended too. How it ended is recorded on the disk, synced, once
// nothing of the tree is left; a process that cannot be killed keeps the item
// from ending.
//
//	agent killed or stopped   the minder keeps the deadline
//	minder killed             stop: the kernel kills the command at once
//	                          (PR_SET_PDEATHSIG), the agent the rest. quiesce, keep:
//	                          the command lives on; the agent speaks to it itself,
//	                          and its exit status is lost
//	minder stopped            the agent kills minder and tree soon after they
//	                          should have ended
//	host started anew         nothing is attached; the agent starts the item again
//	SIGTERM to the minder     the host goes down: the item is ended and will be
//	                          started again
//
// # What is not promised
//
//   - Minder killed and agent gone: of a stop item, descendants of the command run
//     on until an agent comes back; a quiesce item is not told.
//   - Minder and agent both stopped: the item runs on until one of them continues.
//   - A descendant in a session of its own is not found after the minder was
//     killed.
//
// # Files
//
// Each instance has a directory ID.TOKEN in the driver's: task.json (its
// environment, so the directory is private), process.json, exit.json, output.log
// and output.log.1, progress, and what the two processes tell each other. It is
// also where the command starts if its specification names no directory, and is
// removed when the item has ended and the server has judged that. The log is cut
// when it has grown to the limit, the part before is kept once; up to a second's
// output more than that can be there for a moment.
//
// # Other systems
//
// Elsewhere [New] returns [ErrUnsupported].
package minder

import "errors"

// ErrUnsupported reports that this system lacks what a minder needs.
var ErrUnsupported = errors.New("minder: running work as processes needs Linux with /proc")

// Config says where and how work runs. Only Dir is needed.
type Config struct {
	// Dir holds the directories of the instances, best inside the agent's state
	// directory. It must outlive the agent.
	Dir string
	// Env is the environment that every item begins with, as NAME=VALUE. Default:
	// PATH, HOME, USER, LOGNAME, LANG, LC_ALL, TZ and TMPDIR of this process, those
	// that are set. Nothing else of this process's environment is passed on.
	Env []string
	// MaxLog is where an item's log is cut, in bytes. Default 8 MiB.
	MaxLog int64
}
