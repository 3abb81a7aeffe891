// Package loadgen measures a control plane under a simulated fleet.
//
// # Promised
//
// Replicas are what "tenure server" runs, over a real database, in processes of
// their own; so are the simulated nodes. Each node holds its own lease and renews
// it in each beat with a fresh attempt, shows the attempts whose outcome it does
// not know, and judges by its own clock when it may no longer act. What a part
// used is read from the kernel, so that the generator's own work is not in the
// figures of the server.
//
// A silence is counted from the instant at which the node was killed, at a random
// point of its interval, until a replica says suspect. Every suspicion of a node
// that lives is a false one.
//
// # Not promised
//
// All parts share one machine and its loopback: latencies are those of an
// oversubscribed machine where the load is high, which the report names. What a
// part used for each beat does not depend on that as much.
//
// # How
//
//	Run ──orders, a JSON line each──► Nodes   (one process for each 15,000 connections)
//	 │                                   │ beats over HTTP
//	 └───────────────────────────────► Serve  (one process a replica) ──► database
//	                                     └─ says each change of liveness on its output
//
// A part ends when its input does, so that none outlives the conductor.
package loadgen
