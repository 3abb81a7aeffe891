package publish_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/tenurehq/tenure/fence/publish"
	"github.com/tenurehq/tenure/store"
)

// TestTargetNames: what a target cannot hold is refused before anything is sent
// or recorded, and another target takes it.
func TestTargetNames(t *testing.T) {
	t.Parallel()
	one := func(path string) fstest.MapFS { return fstest.MapFS{path: {Data: []byte("x")}} }
	beds(t, func(t *testing.T, b *bed) {
		directory := strings.HasPrefix(b.url, "file:")
		for _, tc := range []struct {
			name, path string
			refused    bool // by a directory
		}{
			{"a..", "x", true},
			{"a../b", "x", true},
			{"a__0x2f__b", "x", true},
			{"a__0x", "x", true},
			{"a..b/c.d", "x", false},
			{"report", strings.Repeat("x", 234), false},
			{"report", strings.Repeat("x", 235), true},
			{"report", "a/" + strings.Repeat("x", 255), true},
			{"report", "a../b", false},
			{"report", "a../" + strings.Repeat("x", 230), true}, // it is one name there
			{"report", "x.18aa00bb11cc22dd.tmp", true},
		} {
			p, err := b.publish(tc.name, b.grant(tc.name), one(tc.path))
			if directory && tc.refused {
				entries, listErr := b.ledger.History(t.Context(), tc.name)
				for _, e := range entries {
					if e.State == publish.Running {
						t.Errorf("%s, %.20q: got attempt %s recorded, want none", tc.name, tc.path, e.Attempt)
					}
				}
				if !errors.Is(err, store.ErrInvalid) || listErr != nil {
					t.Errorf("%s, %.20q: got %v, %v, want an error matching %q", tc.name, tc.path, err, listErr, store.ErrInvalid)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s, %.20q: got %v, want it published", tc.name, tc.path, err)
				continue
			}
			b.expectCurrent(tc.name, one(tc.path))
			b.mustPublish(tc.name, b.grant(tc.name), one("next"))
			if done := b.sweep(tc.name, 0); b.objects(tc.name, p.Attempt) != 0 {
				t.Errorf("%s, %.20q: got %+v, want its object swept", tc.name, tc.path, done)
			}
		}
	})
}

// passing is a context that calls a function each time that it is asked.
type passing struct {
	context.Context
	asked func()
}

func (p passing) Err() error {
	p.asked()
	return p.Context.Err()
}

func (p passing) Value(any) any { return nil } // so that it is asked itself

// TestSyncTree: another process's write that was under way and ends meanwhile is no
// error, and a file that is gone is one.
func TestSyncTree(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{"z.txt.18aa00bb11cc22dd.tmp": true, "z.txt": false} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		n := 0
		err := publish.SyncTree(passing{t.Context(), func() {
			if n++; n == 2 { // the directory was read, and the file is next
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					t.Error(err)
				}
			}
		}}, dir)
		if (err == nil) != ok || err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: got %v, want it forgiven: %v", name, err, ok)
		}
	}
}

// TestRights: a directory that does not let one in is told from one that fails.
func TestRights(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		&fs.PathError{Op: "open", Path: "/x", Err: fs.ErrPermission}: true,
		&fs.PathError{Op: "open", Path: "/x", Err: fs.ErrInvalid}:    false,
	} {
		if got := (&publish.BucketError{Doing: "upload", Object: "x", Err: err}).Denied(); got != want {
			t.Errorf("%v: got denied %v, want %v", err, got, want)
		}
	}
}

// TestFileAndDirectory: no file system holds a file and a directory of one name.
func TestFileAndDirectory(t *testing.T) {
	t.Parallel()
	b := newBed(t, t.TempDir())
	hash := strings.Repeat("0", 64)
	for _, paths := range [][]string{{"a", "a/b"}, {"a", "a-b", "a/b"}, {"d/a", "d/a.x", "d/a/b/c"}} {
		m := publish.Manifest{}
		for _, p := range paths {
			m.Files = append(m.Files, publish.File{Path: p, SHA256: hash})
		}
		if err := m.Check(); !errors.Is(err, store.ErrInvalid) || !strings.Contains(err.Error(), paths[len(paths)-1]) {
			t.Errorf("%q: got %v, want an error matching %q", paths, err, store.ErrInvalid)
		}
	}
	b.mustPublish("report", b.grant("report"), fstest.MapFS{"a-b": {}, "aa/b": {}, "a/b": {}, "a/c": {}})
}
