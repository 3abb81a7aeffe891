//go:build !linux

package main

// playPart does nothing where commands cannot be guarded; see part_test.go.
func playPart() {}
