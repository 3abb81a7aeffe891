//go:build unix

package tenure

import (
	"io/fs"
	"syscall"
)

// owner returns the user id that a file belongs to.
func owner(info fs.FileInfo) (uid int, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}
