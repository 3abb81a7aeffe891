package publish_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/tenurehq/tenure/fence/publish"
)

// fetched fails unless dir holds want, as files of its own.
func fetched(t *testing.T, dir string, want fstest.MapFS) {
	t.Helper()
	n := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		n++
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f, ok := want[filepath.ToSlash(rel)]
		if !d.Type().IsRegular() || !ok && rel != publish.Marker {
			t.Errorf("%s: got a file of type %v, want those of the set alone", rel, d.Type())
		} else if text, err := os.ReadFile(path); ok && (err != nil || !bytes.Equal(text, f.Data)) {
			t.Errorf("%s: got %.20q, %v, want %.20q", rel, text, err, f.Data)
		}
		return nil
	})
	if err != nil || n != len(want)+1 {
		t.Errorf("got %d files, %v, want %d and the marker", n, err, len(want))
	}
}

// TestFetchFollowsNothing: what lies where an interrupted fetch left its files is
// taken over if it is one of them, and is never written through.
func TestFetchFollowsNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t, t.TempDir())
	set := files("A")
	b.mustPublish("report", b.grant("report"), set)
	s := b.set("report", publish.OpenOptions{})
	t.Cleanup(func() { s.Close(t.Context()) })
	for what, lay := range map[string]func(staged, outside string) error{
		"a link for a file": func(staged, outside string) error {
			return os.Symlink(filepath.Join(outside, "precious"), filepath.Join(staged, "empty"))
		},
		"a link to the right content": func(staged, outside string) error {
			return os.Symlink(filepath.Join(outside, "file-0.txt"), filepath.Join(staged, "dir0", "file-0.txt"))
		},
		"a link within": func(staged, _ string) error {
			return os.Symlink("file-0.txt", filepath.Join(staged, "dir0", "file-2.txt"))
		},
		"a link for a directory": func(staged, outside string) error {
			return os.Symlink(outside, filepath.Join(staged, "dir1"))
		},
		"a link for the marker": func(staged, outside string) error {
			return os.Symlink(filepath.Join(outside, "precious"), filepath.Join(staged, publish.Marker))
		},
		"a link for all of it": func(staged, outside string) error {
			return errors.Join(os.RemoveAll(staged), os.Symlink(outside, staged))
		},
		"a second name of a file": func(staged, outside string) error {
			return os.Link(filepath.Join(outside, "precious"), filepath.Join(staged, "empty"))
		},
		"a pipe": func(staged, _ string) error {
			return syscall.Mkfifo(filepath.Join(staged, "empty"), 0o600)
		},
		"a directory for a file": func(staged, _ string) error {
			return os.MkdirAll(filepath.Join(staged, "empty", "deep"), 0o750)
		},
		"a file for a directory": func(staged, _ string) error {
			return os.WriteFile(filepath.Join(staged, "dir1"), nil, 0o600)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			at, outside := t.TempDir(), t.TempDir()
			staged := filepath.Join(at, ".got.tenure-fetch", s.Attempt)
			if err := errors.Join(
				os.MkdirAll(filepath.Join(staged, "dir0"), 0o700),
				os.WriteFile(filepath.Join(outside, "precious"), []byte("precious"), 0o600),
				os.WriteFile(filepath.Join(outside, "file-0.txt"), set["dir0/file-0.txt"].Data, 0o600),
				os.Chmod(filepath.Dir(staged), 0o700),
				lay(staged, outside),
			); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Fetch(t.Context(), filepath.Join(at, "got"), publish.Transfer{}); err != nil {
				t.Fatal(err)
			}
			fetched(t, filepath.Join(at, "got"), set)
			if text, err := os.ReadFile(filepath.Join(outside, "precious")); err != nil || string(text) != "precious" {
				t.Errorf("outside: got %q, %v, want it as it was", text, err)
			}
			if entries, err := os.ReadDir(outside); err != nil || len(entries) != 2 {
				t.Errorf("outside: got %v, %v, want nothing made or removed", entries, err)
			}
		})
	}
}

// TestFetchWorkplace: a directory for the fetch into which others may write, or
// which is theirs, is refused.
func TestFetchWorkplace(t *testing.T) {
	t.Parallel()
	b := newBed(t, t.TempDir())
	b.mustPublish("report", b.grant("report"), files("A"))
	s := b.set("report", publish.OpenOptions{})
	t.Cleanup(func() { s.Close(t.Context()) })
	for what, lay := range map[string]func(work string) error{
		"a link":                       func(work string) error { return os.Symlink(t.TempDir(), work) },
		"a file":                       func(work string) error { return os.WriteFile(work, nil, 0o600) },
		"one that others may write to": func(work string) error { return errors.Join(os.Mkdir(work, 0o700), os.Chmod(work, 0o777)) },
		"another user's": func(work string) error {
			if os.Geteuid() != 0 {
				t.Skip("only root can give a directory away")
			}
			return errors.Join(os.Mkdir(work, 0o700), os.Chown(work, 65534, 65534))
		},
	} {
		t.Run(what, func(t *testing.T) {
			at := t.TempDir()
			work := filepath.Join(at, ".got.tenure-fetch")
			if err := lay(work); err != nil {
				t.Fatal(err)
			}
			_, err := s.Fetch(t.Context(), filepath.Join(at, "got"), publish.Transfer{})
			if !errors.Is(err, publish.ErrOccupied) || !strings.Contains(err.Error(), work) {
				t.Errorf("got %v, want an error matching %q that names it", err, publish.ErrOccupied)
			}
		})
	}
}

// TestFetchDiskFull: an error of the disk that a fetch writes to is this host's.
// It runs in a process of its own, whose files may not grow.
func TestFetchDiskFull(t *testing.T) {
	t.Parallel()
	const own = "TENURE_TEST_DISK_FULL"
	if os.Getenv(own) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFetchDiskFull$", "-test.count=1")
		cmd.Env = append(os.Environ(), own+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	b := newBed(t, t.TempDir())
	b.mustPublish("report", b.grant("report"), fstest.MapFS{"large": {Data: bytes.Repeat([]byte("x"), 1<<20)}})
	s := b.set("report", publish.OpenOptions{NoNote: true})
	signal.Ignore(syscall.SIGXFSZ)
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 16, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := s.Fetch(t.Context(), filepath.Join(t.TempDir(), "got"), publish.Transfer{})
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	var here *publish.LocalError
	if !errors.As(err, &here) || !errors.Is(err, syscall.EFBIG) || strings.Count(err.Error(), "fetch") != strings.Count(here.Error(), "fetch") {
		t.Errorf("got %v, want a *publish.LocalError that says once what was done", err)
	}
}
