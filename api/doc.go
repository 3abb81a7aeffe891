// Package api is the wire form of tenure's HTTP interface, and its client.
//
// # Units
//
// Durations are whole numbers whose names end in their unit: _ms for
// milliseconds, and _us for microseconds, in which leases are counted. Tokens
// are strings. Instants are RFC 3339 in UTC by the clock that the field names,
// and for people: nothing compares them.
//
// # Promised
//
// [Client] speaks to one of several replicas and goes on to the next when one
// cannot be reached or does not answer in time. A request that may have been
// applied is sent a second time only where the server recognises it. [Store] is
// a store.Store over it, for tenure:// URLs, and sends each request once.
//
// An answer counts only if it was decoded whole: a proxy's page, a truncated
// body, an answer to another question and an unknown code say nothing of what
// the server did. They match store.ErrUnavailable.
//
// # Not promised
//
// A request that got no answer may have been applied. Whoever sent it lists its
// attempt, or asks.
package api
