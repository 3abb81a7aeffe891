// Package agent is what a host runs to be a node of a fleet: it says that the
// host is there, holds the node's lease, and does what the server orders.
// Programs may embed it.
//
//	a, err := agent.New(agent.Config{Node: "web-7", Servers: beats, Polls: polls, Store: st, StateDir: dir, Driver: exec})
//	err = a.Run(ctx)
//	if token, ok := a.MayAct(); ok { … }
//
// # Promised
//
// The node's lease is an ordinary term of a tenure.Keeper in this process, and
// nothing of the right to act is read from a disk. Its renewals travel inside the
// heartbeats. Heartbeats leave from a goroutine that is locked to a thread, over
// connections of their own, and wait for nothing else: no work, no file, no hook.
// A server that does not answer is left for the next one, within the term. An
// agent that hears no server takes no new term: it may be heard.
//
// Each work item follows the policy of its specification when the node may not
// act any more: stop (ended before the lease can pass), quiesce (told to stop
// acting, and when it may act again), keep (left alone). For processes both this
// package and whoever supervises the process see to it: the instant until which
// the node may act is in a small file ([Deadline]) that outlives the agent.
//
// Orders are complete lists with a revision. Nothing but a newer complete list
// changes them: an error, a timeout, an empty, truncated or older answer marks
// the view stale, in which the agent goes on as before and starts nothing. An
// item is started only while the node's lease is held and the orders were
// confirmed under it.
//
// What an item does is reported with the item's token and the token of the node's
// term, again and again until the server has given its verdict. Where that says
// that the item belongs to another, the local copy is ended (stop), told to stop
// acting (quiesce) or left and marked (keep), and is not started again. Where it says
// that the item has ended, the local copy is ended with its grace, whatever its
// policy, which is about the loss of the lease. While such a copy lives, the node's
// facts name it as left over, and the node is not drained.
//
// Under one token an item is started once at most. The orders say under which term of
// the node it was assigned, and whoever holds that term starts it. What was ended here
// because the node might not act, or by a restart of the host, and what was assigned
// under another term and left no trace here, is reported as placed and started
// when the orders bring the next token: another agent of this name, or one that had
// another state directory, may have started it and reported nothing, and its copy may
// live. A late write of that copy can be told from the new one's by the token.
//
// # Restart
//
//	ended how             the node's lease               running work
//	context ended, no     handed off to this host        goes on
//	  stop/quiesce work
//	context ended         left to its successor          goes on until TrustedUntil
//	killed, crashed       left to its successor          goes on until TrustedUntil
//	incarnation replaced  never renewed again            by policy, at once
//
// A term that was left is replaced by the next agent of the same state directory,
// with a larger token and no gap, if this agent has provably ended: the directory
// is held by an exclusive file lock, and names host boot, process and place. A
// copy of the directory, or the same after a reboot, proves nothing, and its
// agent waits for the expiry. A lease with stop or quiesce work is not released,
// because a release says that nobody acts under it.
//
// # Not promised
//
// Work with the policy keep runs on whatever happens; its writes must be fenced.
// A marker of progress that was written and not reported yet is lost with the
// host.
//
// # Other systems
//
// The proof that a former agent has ended needs Linux; elsewhere a restart after
// a crash waits for the expiry, and on systems without flock nothing keeps two
// agents from one state directory. The driver for processes is Linux only; see
// cmd/tenure/minder.
package agent
