//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package publish

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// exclusive makes the directory work, of this user alone, and keeps other processes
// from fetching by way of it until end is called, or this process ends.
func exclusive(work string) (end func(), err error) {
	for {
		if err := os.Mkdir(work, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, localFailure("fetch", err)
		}
		if err := own(work); errors.Is(err, os.ErrNotExist) {
			continue // as below
		} else if err != nil {
			return nil, err
		}
		f, err := os.OpenFile(filepath.Join(work, inUse), os.O_CREATE|os.O_RDWR, 0o600)
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

// own returns an error unless dir is a directory of this user into which nobody else
// may write: whoever may could have files written through links.
func own(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return localFailure("fetch", err)
	}
	sys, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(sys.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("publish: fetch: %s: %w: it is no directory of this user alone: remove it", dir, ErrOccupied)
	}
	return nil
}
