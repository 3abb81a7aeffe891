//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package publish

import (
	"fmt"
	"os"
)

// exclusive makes the directory work. On this system nothing keeps two processes
// from fetching into one directory at once.
func exclusive(work string) (end func(), err error) {
	if err := os.MkdirAll(work, 0o700); err != nil {
		return nil, localFailure("fetch", err)
	}
	return func() {}, nil
}
