// Package bench measures tenure beside its peers.
package bench
