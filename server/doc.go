// Package server is the control plane of a fleet: it takes in heartbeats, passes
// on renewals, places work, says who owns it, and moves it once when its node has
// lost its lease.
//
// # Promised
//
// Replicas keep nothing that the database does not: any of them serves any node,
// and each may be killed at any time. Silence makes a node suspect, which stops
// new work and moves nothing; only a lease that is over by the store's clock lets
// movable work go elsewhere, and only while the observer has no reason to doubt
// itself (P9, the brake). A negative answer, be it "no node fits" or "nobody has
// it", follows an authoritative read (P8). What is decided on a snapshot is
// committed by one conditional statement.
//
// # Not promised
//
// A positive answer may be as old as Config.Refresh. A takeover starts at most
// NodeTTL + Interval after its node died, as Config.Effective says, unless the
// brake holds it or has just let go by recovery, or the reconciler's term or the
// database's clock is new: then it waits for one suspect timeout, in which nodes
// that live win their leases back. By how much a busy machine and its database keep a
// step of the reconciler waiting comes on top.
//
// # How
//
//	agents ── beats ──► ingest (memory) ─┬─ renewals of many ──► one store.Renew
//	                                     ├─ last seen, flushed ─► registry
//	                                     └─ liveness (detect) ──► view ─► rules (fleet)
//	reconciler, on the one replica that holds the lease tenure/reconciler:
//	  lapsed leases ─► brake ─► takeover    pending ─► placement    drains ─► drained
//
// Ingest judges silence on the axis of listened time: it stands still while this
// replica does not come round, or cannot read what the others heard. Every
// replica does so for itself; only what the reconciler sees moves work. Its writes
// carry its token, joined in the same transaction, so that a deposed one changes
// nothing.
package server
