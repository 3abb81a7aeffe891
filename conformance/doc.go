// Package conformance runs every store against its real server.
package conformance
