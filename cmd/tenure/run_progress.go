package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/tenurehq/tenure"
)

// maxMarker bounds what is read of a progress file or line.
const maxMarker = 4096

// checkProgress refuses what no progress can ever be read from, which would pass for
// a stall. A file that is not there yet is the command's to make.
func (f *runFlags) checkProgress() error {
	if f.progress == "" || f.progress == progressDescriptor {
		return nil
	}
	info, err := os.Stat(f.progress)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return failf(exitUsage, "--progress: %w", err)
	case info.IsDir():
		return failf(exitUsage, "--progress %q: is a directory; name a file in it", f.progress)
	case !info.Mode().IsRegular():
		return failf(exitUsage, "--progress %q: is no regular file; name one, or fd for lines written to descriptor 3", f.progress)
	}
	file, err := os.Open(f.progress)
	if err != nil {
		return failf(exitUsage, "--progress: %w", err)
	}
	return file.Close()
}

// watchProgress reports the state of a file as the work's marker, often enough
// for stallAfter to be judged by, until ctx ends. A file that is not there yet
// is no progress.
func watchProgress(ctx context.Context, path string, stallAfter time.Duration, t *tenure.Term) {
	tick := time.NewTicker(max(min(stallAfter/5, 5*time.Second), 50*time.Millisecond))
	defer tick.Stop()
	for {
		if marker, ok := fileMarker(path); ok {
			t.Progress(marker)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// fileMarker is the content of a short file; of an empty or a long one it is
// the size and the time of the last change.
func fileMarker(path string) (string, bool) {
	f, err := os.Open(path)
	if err != nil {
		return "", false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", false
	}
	if n := info.Size(); n > 0 && n <= maxMarker {
		content, err := io.ReadAll(io.LimitReader(f, maxMarker))
		return string(content), err == nil
	}
	return fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano()), true
}

// readProgress reports each line as the work's marker until the command's end
// of the pipe is closed. A line that repeats the one before is no progress.
func readProgress(r io.Reader, t *tenure.Term) {
	lines := bufio.NewReaderSize(r, maxMarker)
	for {
		line, _, err := lines.ReadLine()
		if err != nil {
			return
		}
		t.Progress(string(line))
	}
}
