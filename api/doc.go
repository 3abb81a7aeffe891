// Package api is the wire form of tenure's HTTP interface, and its client.
//
// Durations are numbers of milliseconds, and their names end in _ms. Tokens are
// strings. Instants are RFC 3339 in UTC by the clock that the field names, and
// for people: nothing compares them.
package api
