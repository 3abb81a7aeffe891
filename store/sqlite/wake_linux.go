package sqlite

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"unsafe"
)

const canWatch = true

// touch tells the listeners at the wake file. If there is no such file, or none
// that may be written, nobody is told: the write that was committed stands.
func touch(path string) {
	fd, err := syscall.Open(path, syscall.O_WRONLY|syscall.O_NOFOLLOW|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	_, _ = syscall.Pwrite(fd, []byte{'\n'}, 0)
	_ = syscall.Close(fd)
}

// listen makes the wake file, with the mode and the owner of the database, and
// returns a reader of its inotify events.
func listen(database, wake string) (io.ReadCloser, error) {
	if err := makeWake(database, wake); err != nil {
		return nil, err
	}
	fd, err := syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	const mask = syscall.IN_MODIFY | syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF | syscall.IN_DONT_FOLLOW
	if _, err := syscall.InotifyAddWatch(fd, wake, mask); err != nil {
		_ = syscall.Close(fd)
		return nil, fmt.Errorf("inotify: %w", err)
	}
	return os.NewFile(uintptr(fd), "inotify"), nil
}

func makeWake(database, wake string) error {
	var st syscall.Stat_t
	if err := syscall.Stat(database, &st); err != nil {
		return err
	}
	mode := st.Mode & 0o666
	fd, err := syscall.Open(wake, syscall.O_CREAT|syscall.O_EXCL|syscall.O_WRONLY|syscall.O_CLOEXEC, mode)
	if errors.Is(err, syscall.EEXIST) {
		if err := syscall.Lstat(wake, &st); err != nil {
			return err
		}
		if st.Mode&syscall.S_IFMT != syscall.S_IFREG {
			return fmt.Errorf("%q is not a file, and no writer would touch it", wake)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("make %q: %w", wake, err)
	}
	// As SQLite does for its own files: whoever may write the database may
	// write this one. Only root can give it away, and only root needs to.
	_ = syscall.Fchown(fd, int(st.Uid), int(st.Gid))
	return errors.Join(syscall.Fchmod(fd, mode), syscall.Close(fd))
}

// gone reports whether the events say that the wake file has been removed or
// moved, so that nobody will touch the one listened at.
func gone(events []byte) bool {
	for len(events) >= syscall.SizeofInotifyEvent {
		e := (*syscall.InotifyEvent)(unsafe.Pointer(&events[0]))
		if e.Mask&(syscall.IN_DELETE_SELF|syscall.IN_MOVE_SELF|syscall.IN_IGNORED|syscall.IN_UNMOUNT) != 0 {
			return true
		}
		events = events[min(len(events), syscall.SizeofInotifyEvent+int(e.Len)):]
	}
	return false
}
