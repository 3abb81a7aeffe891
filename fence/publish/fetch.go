package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tenurehq/tenure/fence"
)

// marker is the content of the Marker file.
type marker struct {
	Name     string      `json:"name"`
	Attempt  string      `json:"attempt"`
	Token    fence.Token `json:"token"`
	Seq      int64       `json:"seq"`
	Manifest Manifest    `json:"manifest"`
}

// ErrOccupied reports a directory that Fetch would have to replace and that it did
// not make.
var ErrOccupied = errors.New("publish: directory holds something else")

// inUse is the name of the file in the directory beside that says so.
const inUse = "in-use"

// ErrFetching reports that another process is fetching into the directory.
var ErrFetching = errors.New("publish: another fetch into the directory is under way")

// Fetch makes dir the set, whole: dir is not there, or is empty, or is what an
// earlier Fetch of the same name made, which is replaced; what was changed in it
// since is lost. A link stands for the directory that it leads to. Anything else is
// an error matching ErrOccupied, and so is the working directory. Errors of the
// disk are *LocalError. Files are
// collected and verified in a directory beside it (".BASE.tenure-fetch"), put on
// disk, and then take dir's place in one step, on Linux; elsewhere, and on file
// systems that cannot exchange two directories, there is an instant without dir.
// After an interruption the next Fetch of the same set takes over what is there. It
// reports whether dir was that set already and nothing was done.
func (s *Set) Fetch(ctx context.Context, dir string, how Transfer) (same bool, err error) {
	if dir, err = settled(dir); err != nil {
		return false, err
	}
	present, err := occupant(dir)
	if err != nil {
		return false, err
	}
	if present != nil && present.Name != s.Name {
		return false, fmt.Errorf("publish: fetch: %s: %w: a set of %q", dir, ErrOccupied, present.Name)
	}
	if present != nil && present.Attempt == s.Attempt && s.intact(ctx, dir) {
		return true, nil
	}
	if holdsWorkingDirectory(dir) {
		return false, fmt.Errorf("publish: fetch: %s: %w: the working directory, which would be a removed one afterwards", dir, ErrOccupied)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o777); err != nil { //nolint:gosec // the umask decides who may read
		return false, localFailure("fetch", err)
	}
	work := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".tenure-fetch")
	end, err := exclusive(work)
	if err != nil {
		return false, err
	}
	defer end()
	if err := s.fetch(ctx, dir, work, how); err != nil {
		return false, err
	}
	if err := os.RemoveAll(work); err != nil {
		return false, localFailure("fetch: done, but the directory beside it remains", err)
	}
	return false, nil
}

// settled returns the path of a directory itself, not that of a link to it, which
// would be replaced.
func settled(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", localFailure("fetch", err)
	}
	info, err := os.Lstat(dir)
	if err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return dir, nil // what else is wrong is seen later
	}
	path, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", fmt.Errorf("publish: fetch: %s: %w: a link that leads nowhere", dir, ErrOccupied)
	}
	return path, nil
}

// holdsWorkingDirectory reports whether this process works in dir, or below it.
func holdsWorkingDirectory(dir string) bool {
	for at, err := os.Getwd(); err == nil; at = filepath.Dir(at) {
		mine, mineErr := os.Stat(at)
		there, thereErr := os.Stat(dir)
		if mineErr == nil && thereErr == nil && os.SameFile(mine, there) {
			return true
		}
		if at == filepath.Dir(at) {
			break
		}
	}
	return false
}

func (s *Set) fetch(ctx context.Context, dir, work string, how Transfer) error {
	others, err := os.ReadDir(work)
	if err != nil {
		return localFailure("fetch", err)
	}
	for _, o := range others { // of fetches of other sets that were interrupted
		if o.Name() != inUse && (!o.IsDir() || o.Name() != s.Attempt) {
			if err := os.RemoveAll(filepath.Join(work, o.Name())); err != nil {
				return localFailure("fetch", err)
			}
		}
	}
	staged := filepath.Join(work, s.Attempt)
	if err := s.only(staged); err != nil {
		return err
	}
	meter := newMeter(s.Manifest, how.Progress)
	err = each(ctx, how.Parallel, s.Manifest.Files, func(ctx context.Context, f File) error {
		return s.fetchFile(ctx, staged, f, meter)
	})
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(marker{Name: s.Name, Attempt: s.Attempt, Token: s.Token, Seq: s.Seq, Manifest: s.Manifest}, "", "  ")
	if err != nil {
		return localFailure("fetch", err)
	}
	if err := os.WriteFile(filepath.Join(staged, Marker), append(text, '\n'), 0o666); err != nil { //nolint:gosec // as above
		return localFailure("fetch", err)
	}
	if err := SyncTree(ctx, staged); err != nil {
		return localFailure("fetch: put on disk", err)
	}
	if _, err := occupant(dir); err != nil { // somebody may have put something there meanwhile
		return err
	}
	if err := swap(staged, dir); err != nil {
		return localFailure("fetch: put it in place", err)
	}
	return syncFile(filepath.Dir(dir))
}

// fetchFile brings one file into the directory staged, unless it is there.
func (s *Set) fetchFile(ctx context.Context, staged string, f File, meter *meter) error {
	path := filepath.Join(staged, filepath.FromSlash(f.Path))
	if same(ctx, os.DirFS(staged), f) {
		meter.add(f.Size, f.Path)
		meter.done(f.Path, true)
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil { //nolint:gosec // as above
		return localFailure("fetch", err)
	}
	r, err := s.Open(ctx, f.Path)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := os.RemoveAll(path); err != nil { // it may be another file's second name
		return localFailure("fetch", err)
	}
	w, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666) //nolint:gosec // as above
	if err != nil {
		return localFailure("fetch", err)
	}
	_, err = io.Copy(written{w}, &watched{r: r, read: func(n int64) error {
		meter.add(n, f.Path)
		return context.Cause(ctx)
	}})
	if err != nil {
		_ = w.Close() // it is not whole
		return fetchFailure(err)
	}
	if err := w.Close(); err != nil {
		return localFailure("fetch", err)
	}
	meter.done(f.Path, false)
	return nil
}

// fetchFailure says once that it was a fetch that failed.
func fetchFailure(err error) error {
	var here *LocalError
	if errors.As(err, &here) {
		return here
	}
	return fmt.Errorf("publish: fetch: %w", err)
}

// written tells errors of a local file from those of what is copied into it.
type written struct{ io.Writer }

func (w written) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil {
		err = localFailure("fetch", err)
	}
	return n, err
}

// same reports whether fsys holds f.
func same(ctx context.Context, fsys fs.FS, f File) bool {
	info, err := fs.Stat(fsys, f.Path)
	if err != nil || !info.Mode().IsRegular() || info.Size() != f.Size {
		return false
	}
	there, err := scanFile(ctx, fsys, f.Path, nil)
	return err == nil && there == f
}

// intact reports whether dir holds the files of the set as they were published.
func (s *Set) intact(ctx context.Context, dir string) bool {
	m, err := Scan(ctx, os.DirFS(dir), nil)
	if err != nil {
		return false
	}
	_, have, _ := m.encode()
	return have == s.Digest
}

// only removes from dir what the set does not have, and links: an interrupted fetch
// of it leaves nothing else, but something may have been put there since.
func (s *Set) only(dir string) error {
	var extra []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if path == dir && errors.Is(err, fs.ErrNotExist) {
			return fs.SkipAll
		}
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if _, ok := s.Manifest.find(filepath.ToSlash(rel)); !ok || !d.Type().IsRegular() {
			extra = append(extra, path)
		}
		return err
	})
	for _, path := range extra {
		err = errors.Join(err, os.Remove(path))
	}
	if err != nil {
		return localFailure("fetch", err)
	}
	return nil
}

// occupant returns the marker of what is at dir, nil if there is nothing.
func occupant(dir string) (*marker, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("publish: fetch: %s: %w: %w", dir, ErrOccupied, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, Marker))
	if err != nil {
		return nil, fmt.Errorf("publish: fetch: %s: %w: it is not empty and no earlier fetch made it", dir, ErrOccupied)
	}
	var m marker
	if err := json.Unmarshal(text, &m); err != nil || m.Name == "" {
		return nil, fmt.Errorf("publish: fetch: %s: %w: its %s cannot be read", dir, ErrOccupied, Marker)
	}
	return &m, nil
}

// SyncTree puts the files and directories below dir on disk.
func SyncTree(ctx context.Context, dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(path, ".tmp") {
			return nil // a write of another process that was under way
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil || !d.IsDir() && !d.Type().IsRegular() {
			return err
		}
		if err = syncFile(path); errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(path, ".tmp") {
			return nil // as above
		}
		return err
	})
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// swapTwice puts staged at dir by two renames, and leaves what was there beside
// it, where the caller removes it.
func swapTwice(staged, dir string) error {
	aside := staged + ".old"
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	err := os.Rename(dir, aside)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	moved := err == nil
	if err := os.Rename(staged, dir); err != nil {
		if moved {
			err = errors.Join(err, os.Rename(aside, dir))
		}
		return err
	}
	return nil
}
