// Package guardian runs one command so that neither it nor anything it started
// outlives a deadline, even if the program that set the deadline is stopped,
// killed or replaced.
//
// # Who is who
//
//	runner ──socket──► guardian ──fork──► CMD ──► …
//	(holds the lease)  (own process      (own process group, stdin, stdout
//	                    group)            and stderr of the runner)
//
// The runner is the process that calls [Start]. The guardian is the runner's
// own executable, run anew from /proc/self/exe; [Main], called first in main,
// turns it into a guardian. The guardian is CMD's parent. Guardian and runner
// are both child subreapers, so a descendant that lost its parent, by a double
// fork or by setsid, becomes a child of the guardian, and of the runner if the
// guardian is dead.
//
// # What is promised (Linux)
//
// A [Deadline] is two instants on CLOCK_BOOTTIME, which counts suspend: at
// TermAt the tree gets SIGTERM, from KillAt on SIGKILL until nothing is left.
// With grace smaller than the margin of the lease, KillAt lies before the term
// can pass to another. Each single fault below leaves somebody to do it:
//
//	runner stopped or silent    the guardian keeps the deadline
//	runner killed               the guardian sees the socket end: SIGTERM now,
//	                            SIGKILL 200 ms later, sooner at KillAt
//	guardian killed             the kernel kills CMD (PR_SET_PDEATHSIG); the
//	                            rest become the runner's, which kills them
//	guardian stopped or stuck   the runner misses 8 answers, one each 250 ms,
//	                            and kills guardian and tree within about 2 s;
//	                            and at KillAt it kills the tree in any case
//	all stopped, or suspended   whoever wakes first looks at the clock before
//	                            it does anything else; past KillAt it kills
//
// Once killing has begun it is never called off. After CMD ended by itself the
// descendants that it left behind are ended in the same way (SIGTERM, grace,
// SIGKILL) before [Process.Wait] returns: nothing runs without a term, and there
// is no option to keep a background process.
//
// # Late deadlines
//
// The guardian looks at the clock when it wakes, and only then at what the
// runner sent. So a new deadline that was sent in time, but is read after the
// old TermAt because the guardian was paused, does not revive the command.
// Believing it would be sound where the runner is sound, since instants are
// absolute and come from confirmed renewals only. But then the kill after a
// pause would wait for a message to be read and judged, and a runner thawed
// together with the guardian could be believed on a claim that it has not yet
// examined itself. The price is small: renewals come several times a term, so
// it is paid only by a guardian that got no processor for the rest of a term.
//
// # How a tree is killed
//
// Package tree says how, and what that is worth.
//
// What cannot be killed is named in [Outcome].Leftovers: a process that may not
// be signalled (it changed its user), one in uninterruptible sleep, one that
// outlived SIGKILL by 2 s. The caller then must let the lease expire and must
// not release it.
//
// # What is not promised
//
//   - Runner and guardian both killed at one instant: CMD dies by its
//     parent-death signal, its descendants go to the host's init and run on.
//     The same if one is killed and the other stopped, until that one continues.
//     As PID 1 of a container the runner has no such gap: its death ends all.
//   - Runner and guardian both stopped: the command runs on until one of them
//     continues, which kills it first. A stopped user or cgroup stops the command
//     as well.
//   - A program that gains privileges by its file (setuid, capabilities) loses
//     the parent-death signal, by the kernel's rule.
//   - A process that CMD asked somebody else to start (systemd-run, docker, at)
//     is not a descendant.
//   - A descendant that forks without pause and starts a new session for each
//     fork is killed for certain only by the cgroup. Without one, each sweep may
//     miss it; there are some 40 sweeps before it is named as a leftover.
//
// # Terminal
//
// CMD is a job of its own. If the runner is in the foreground and stdin and
// stdout are the terminal, CMD is put in the foreground, so that Ctrl-C reaches
// it once, from the terminal. In a pipeline the runner stays in the foreground
// and passes on what it gets; CMD is given the terminal when it first asks
// (it stops with SIGTTIN or SIGTTOU). When CMD stops by Ctrl-Z the runner takes
// the terminal back and stops its own job, so that the shell sees it stopped;
// fg hands the terminal over again. Deadlines go on while it is stopped. A script
// around the runner does not see the Ctrl-C that CMD got, only how CMD ended.
//
// # Other systems
//
// Elsewhere [Start] returns [ErrUnsupported]: without subreapers and a
// parent-death signal the promise cannot be kept, and a weaker one under the
// same name would be believed.
package guardian
