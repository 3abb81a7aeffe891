// Package postgres keeps leases in PostgreSQL, version 13 or later.
//
//	pool, err := pgxpool.New(ctx, url)
//	st, err := postgres.New(pool, postgres.Config{})
//	err = st.Migrate(ctx) // once, by a role that may create tables
//	err = st.Check(ctx)   // at each start
//
// # Promised
//
// Everything that package store promises, with the server's clock deciding, and
// the joined fence ([Guard]): no guarded transaction of an older term commits
// after the next term was granted, at any isolation level. A losing Acquire
// writes nothing and locks nothing. A renewal waits for no row that is locked when
// it comes (20 ms at most for one that is locked in that instant) and is a
// heap-only update. A grant is committed with synchronous_commit on, whatever
// the role's default is.
//
// # Not promised
//
// A failover to an asynchronous standby can lose acknowledged grants, and with
// them the tokens: two terms can then carry one token. A server without fsync
// forgets likewise. If the server's clock is stepped forward, terms end early.
// Doctor reports what it can see of these.
//
// # How
//
// Each operation is one round trip: one simple-protocol message that states
// READ COMMITTED and calls one function which Migrate installed. Nothing is
// kept in a connection between two transactions, no statement is prepared, so a
// transaction-mode pooler may stand in between. Only Watch needs the same
// server process for longer; it finds out and answers store.ErrUnsupported.
//
// Renewals have a connection of their own, so that an exhausted or broken pool
// does not cost a term. The caller's pool is never closed or reconfigured.
package postgres
