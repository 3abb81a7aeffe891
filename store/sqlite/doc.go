// Package sqlite keeps leases in a SQLite file that the processes of one host share.
//
// The caller opens the database with the driver of his choice and keeps it; the
// package imports none. [ModerncDSN] and [MattnDSN] give the data source names
// for two of them. [Store.Migrate] makes the tables, and nothing else does.
//
//	db, err := sql.Open("sqlite", sqlite.ModerncDSN("leases.db")) // import _ "modernc.org/sqlite"
//	st, err := sqlite.New(db, sqlite.Config{})
//	err = st.Migrate(ctx) // when it is set up; st.Check(ctx) ever after
//	k, err := tenure.NewKeeper(st, tenure.Config{})
//
// # Promised
//
// Everything package store promises, between all processes of one host: the
// judgements are those of store.JudgeAcquire, JudgeRenew and JudgeRelease, made
// inside a transaction that holds the file's write lock. Every acknowledged
// write has been synced: the store refuses to work unless the database is in
// WAL mode and the connection it writes by has synchronous=FULL or EXTRA.
//
// # Not promised
//
// Nothing beyond one host. The locks of SQLite and its shared memory do not
// work over a network, so a file on a network, FUSE or cluster file system is
// refused ([FileSystem]); use Postgres there. A file that is restored from a
// backup has forgotten the terms granted since: raise the floor before use.
//
// # Time
//
// Expiry is judged by the host's boot clock, which nobody sets and which counts
// suspend, read after the write lock is held. Its readings mean something only
// within one domain: one boot of one kernel, at one boottime offset of the time
// namespace ([Host]). Each term carries the domain of its last renewal. A term
// of another domain (after a reboot, mostly) is judged by watching: the first
// transaction in a new domain notes once for each open term, in
// tenure_observed, that it was seen there, and a newcomer takes over when a full
// TTL has passed by the boot clock without a write of its holder. The note is in
// the database, so that one-shot processes that try every few seconds get
// through, and trying again writes nothing. A reboot therefore frees everything
// within one TTL of the first use. Until then Acquire answers *store.HeldError
// with Reason "may_be_stale". A renewal from another domain, which after a
// reboot only a restored process can send, answers store.ErrExpired, since
// nothing shows that the term is unexpired.
//
// Instants that are shown (Record.Now, the columns in _at) are the wall clock at
// New plus the progress of the boot clock since, so that a step of the wall
// clock is none of the store's. A program that was started before its host's
// clock was set therefore shows wrong times until it is started again.
//
// A min-hold or a reservation from another domain goes on by the wall clock and
// is never longer than it was granted: neither protects a term.
//
// On other systems than Linux the wall clock takes the place of the boot clock,
// because no other clock there is common to all processes and goes on in
// suspend. A forward step by more than a holder's margin then ends its term
// early (tokens and fences still hold); a backward step makes the terms written
// before it be judged by watching.
//
// # Copies
//
// The file remembers the machine id of the host that uses it. On a host with
// another machine id every operation answers an error matching store.ErrCopied
// until [Store.Adopt], or RaiseFloor of all names above every token in the
// file, decides that the file is to be used here. What cannot be told: a virtual
// machine cloned together with its machine id is the same host to this store,
// and so are hosts without any machine id. Give clones an id of their own (an
// empty /etc/machine-id is filled at boot), or use Postgres. A copy that is used
// on the same host beside its original is another store; Diagnose warns when the
// file's inode has changed.
//
// # A file that goes away
//
// A file that is removed or replaced under the store ends its terms at their next
// renewal (store.ErrMissing), and its reads answer store.ErrUnavailable: whoever
// opens the path now finds another file, and may hold what this one says is free.
//
// # Concurrency
//
// One connection, taken from the pool at the first write and kept until Close,
// does all writing; operations that wait for it together share one transaction
// and one sync. Reads use other connections of the pool, so the pool must allow
// at least two. SQLITE_BUSY is retried until the caller's context ends.
//
// # Reading it by hand
//
//	sqlite3 -box FILE 'SELECT * FROM tenure_leases'
//	sqlite3 -box FILE 'SELECT * FROM tenure_term ORDER BY name, token DESC'
//
// Columns ending in _at are UTC text by the wall clock and for display; _us are
// microseconds of the wall clock since 1970, _ns nanoseconds of the boot clock.
// Reading by hand does no harm; an open write transaction stalls every holder.
// Never copy, open or close the database file with other tools inside a process
// that uses it: closing any descriptor of it drops SQLite's locks.
package sqlite
