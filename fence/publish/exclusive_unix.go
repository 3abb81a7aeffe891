//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package publish

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// exclusive makes the directory work and keeps other processes from fetching by
// way of it until end is called, or this process ends.
func exclusive(work string) (end func(), err error) {
	for {
		if err := os.MkdirAll(work, 0o750); err != nil {
			return nil, localFailure("fetch", err)
		}
		f, err := os.OpenFile(filepath.Join(work, "in-use"), os.O_CREATE|os.O_RDWR, 0o600)
		if errors.Is(err, os.ErrNotExist) {
			continue // its user has just finished
		} else if err != nil {
			return nil, localFailure("fetch", err)
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			_ = f.Close()
			if errors.Is(err, syscall.EWOULDBLOCK) {
				return nil, fmt.Errorf("%w: see %s", ErrFetching, work)
			}
			return nil, localFailure("fetch", err)
		}
		mine, err := f.Stat()
		there, statErr := os.Stat(f.Name())
		if err == nil && statErr == nil && os.SameFile(mine, there) {
			return func() { _ = f.Close() }, nil
		}
		_ = f.Close() // its user removed it when it finished
	}
}
