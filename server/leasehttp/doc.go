// Package leasehttp serves the leases of a store under /v1/leases, for clients
// that have no credentials for the database behind it: package api's Store is
// the other end.
//
// # Promised
//
// Each request is one call of the store, whose answer goes back with its facts:
// nothing is retried, cached or decided here. A name travels in the body or the
// query, never in the path, and comes back byte by byte. A TTL is granted as it
// was asked for, or refused with the field and the range.
//
// # Not promised
//
// Who may call is decided by the server around it. Roles says what each
// operation needs.
package leasehttp
