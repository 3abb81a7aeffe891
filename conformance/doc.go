// Package conformance runs every store against its real server, and the fleet as
// processes of its own.
package conformance
