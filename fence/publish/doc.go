// Package publish makes many files one result: they are published together, by
// the owner of a lease, and readers see the old set or the new one.
//
// # Promised
//
// A set that a reader opened is what one publisher meant, whole: names, sizes and
// SHA-256 are those of its manifest, and every read checks them. A publisher whose
// term is over is refused with *fence.StaleError (P7), however long it slept
// between any two steps, and it can change no byte of what others published.
// A sweep removes nothing that is published, nothing that was replaced less than
// the retention ago, nothing that a reader has open or a running attempt needs.
//
// # Not promised
//
// Files have a name and a content; modes, times, owners and empty directories are
// not kept. A reader that sleeps past the expiry of its note, and wakes after a
// sweep, gets an error that matches [ErrDropped]; it never gets other bytes. The
// target must keep what it acknowledged: a bucket that loses objects makes reads
// fail with [ErrDamaged]. A clock of the database that jumps ahead shortens
// retention and notes by as much. Whoever writes into the bucket by hand is not
// held back.
//
// # How
//
// The record of what is published lies in the lease's own database, the files in
// a bucket. Each attempt to publish has an identity, TOKEN-NONCE, that was never
// used before, and writes below NAME/TOKEN-NONCE/ alone, so that no two attempts
// share an object, whatever either believes. What an attempt may write there is
// fixed by its manifest before the first byte. Objects are made, never
// overwritten, where the bucket can tell (If-None-Match on S3; on a directory
// within one process); where it cannot, the bytes would be the same.
//
//	         Begin                 Accept                  replaced, retained
//	nothing ───────► running ─────────────────► accepted ────────────┐
//	                    │   (guarded by the token)                   │ sweep
//	                    │ given up, or its term over and silent      ▼
//	                    └───────────────────────────────────────► dropped
//
// Acceptance is one transaction that first joins the lease's guard: it can commit
// only before the next term of the lease is granted, and then every object of the
// manifest was seen in the bucket, with its size. The same acceptance sent twice,
// as after a lost reply, is accepted once.
//
// A reader leaves a note with an expiry ([NoteTTL]) in the transaction that tells
// it what is published, and extends it as it reads. A sweep drops a set in one
// transaction that looks for notes after it has locked the set's row, which the
// reader's transaction locks too. Only then are objects deleted. A reader without
// the right to write leaves no note and relies on the retention.
//
// An attempt signs itself on in the database before its first object and gives a
// sign of life as it uploads. It counts as running while its token is the current
// one and it was heard of in the last hour (or the retention, if that is longer).
// An attempt that was interrupted is gone on with by the next one of the same
// manifest to the same target, under the same token or a later one, so that what
// arrived is not sent again: contents are fixed, so whoever sends them is no matter.
//
// What was dropped keeps a row for 90 days, by which later sweeps know the
// objects that a stopped process sends after all. Objects that no row knows are
// reported and never removed: they may be somebody else's.
package publish
