package minder

import (
	"io"
	"os"
	"time"
)

// cut bounds the log. The command writes to the file itself, so that nothing
// between them can fail; what it wrote since the last look may be more than the
// limit for a moment.
func (s *server) cut(now time.Duration) {
	if now < s.logs+logEvery {
		return
	}
	s.logs = now
	path := s.dir.path(logFile)
	if info, err := os.Stat(path); err != nil || info.Size() < s.task.MaxLog {
		return
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return
	}
	if _, err := f.Seek(max(0, end-s.task.MaxLog), io.SeekStart); err != nil {
		return
	}
	old, err := os.OpenFile(path+".1", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return
	}
	_, err = io.CopyN(old, f, min(end, s.task.MaxLog))
	if closeErr := old.Close(); err == nil && closeErr == nil {
		_ = f.Truncate(0) // its writers append
	}
}
