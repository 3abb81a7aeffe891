package tree

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// BootTimer fires at instants of CLOCK_BOOTTIME. Go's own timers stand still
// while the machine is suspended; this one has fired when it wakes.
type BootTimer struct {
	C    <-chan struct{} // holds one tick at most
	file *os.File
}

// NewBootTimer returns a timer that is not set. Close it.
func NewBootTimer() (*BootTimer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("tree: boot timer: %w", err)
	}
	c := make(chan struct{}, 1)
	t := &BootTimer{C: c, file: os.NewFile(uintptr(fd), "timerfd")}
	go func() {
		var expirations [8]byte
		for {
			if _, err := t.file.Read(expirations[:]); err != nil {
				return // closed
			}
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}()
	return t, nil
}

// Set makes the timer fire at an instant, at once if that has passed.
func (t *BootTimer) Set(at time.Duration) error {
	raw, err := t.file.SyscallConn()
	if err != nil {
		return err
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(at, 1)))} // 0 would disarm it
	var set error
	if err := raw.Control(func(fd uintptr) {
		set = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME, &spec, nil)
	}); err != nil {
		return err
	}
	return set
}

// Close gives its descriptor back.
func (t *BootTimer) Close() { t.file.Close() }
