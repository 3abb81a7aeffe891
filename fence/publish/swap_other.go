//go:build !linux

package publish

// swap puts the directory staged at dir. What was there is beside staged afterwards.
func swap(staged, dir string) error { return swapTwice(staged, dir) }
