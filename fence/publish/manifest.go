package publish

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tenurehq/tenure/store"
)

// The largest set, so that its manifest fits into a row.
const (
	MaxFiles    = 100_000
	MaxManifest = 32 << 20 // bytes of the manifest as JSON
	maxPath     = 800      // bytes; S3 allows 1,024 for the whole key
	maxPart     = 255      // bytes of a name between slashes; what file systems allow
)

// Marker is the file that Fetch leaves in a directory to tell what is in it. A
// file of this name at the top of a set is refused.
const Marker = ".tenure-publication.json"

// File is one file of a set.
type File struct {
	Path   string `json:"path"` // relative, with slashes
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

// Manifest lists the files of a set in byte order of their paths.
type Manifest struct {
	Files []File `json:"files"`
}

// Bytes returns the sum of the sizes.
func (m Manifest) Bytes() (sum int64) {
	for _, f := range m.Files {
		sum += f.Size
	}
	return sum
}

// find returns the file at path.
func (m Manifest) find(path string) (File, bool) {
	i, ok := slices.BinarySearchFunc(m.Files, path, func(f File, p string) int { return cmp.Compare(f.Path, p) })
	if !ok {
		return File{}, false
	}
	return m.Files[i], true
}

// encode returns the manifest as it is kept, and its digest.
func (m Manifest) encode() (text, digest string, err error) {
	b, err := json.Marshal(m)
	if err != nil {
		return "", "", fmt.Errorf("publish: manifest: %w", err)
	}
	sum := sha256.Sum256(b)
	return string(b), hex.EncodeToString(sum[:]), nil
}

// Check returns an error matching store.ErrInvalid if m cannot be published: it
// is empty, too large, not in order, names a path twice or one that CheckPath refuses.
func (m Manifest) Check() error {
	if len(m.Files) == 0 {
		return &store.InvalidError{Field: "files", Value: "none", Rule: "at least one file is published"}
	}
	if len(m.Files) > MaxFiles {
		return &store.InvalidError{Field: "files", Value: fmt.Sprint(len(m.Files)), Rule: fmt.Sprintf("at most %d files are one set: pack some together", MaxFiles)}
	}
	size := 0
	files := make(map[string]bool, len(m.Files))
	for i, f := range m.Files {
		if err := CheckPath(f.Path); err != nil {
			return err
		}
		if sum, err := hex.DecodeString(f.SHA256); err != nil || len(sum) != sha256.Size || f.Size < 0 {
			return &store.InvalidError{Field: "file", Value: f.Path, Rule: "has a size and a SHA-256 in hexadecimal digits"}
		}
		if i > 0 && m.Files[i-1].Path >= f.Path {
			return &store.InvalidError{Field: "file", Value: f.Path, Rule: "the paths are distinct and in byte order"}
		}
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) { // in byte order a file is before what is below it
			if files[dir] {
				return &store.InvalidError{Field: "file", Value: f.Path, Rule: fmt.Sprintf("%q is a file and no directory", dir)}
			}
		}
		files[f.Path] = true
		size += len(f.Path) + 120
	}
	if size > MaxManifest {
		return &store.InvalidError{Field: "files", Value: fmt.Sprint(len(m.Files)), Rule: fmt.Sprintf("the list of files takes at most %d bytes", MaxManifest)}
	}
	return nil
}

// CheckPath returns an error matching store.ErrInvalid if a set cannot hold a
// file of this path on every kind of target.
func CheckPath(p string) error {
	var rule string
	switch {
	case !fs.ValidPath(p) || p == ".":
		rule = "a relative path with slashes, without empty, . and .. parts"
	case len(p) > maxPath:
		rule = fmt.Sprintf("at most %d bytes", maxPath)
	case slices.ContainsFunc(strings.Split(p, "/"), func(part string) bool { return len(part) > maxPart }):
		rule = fmt.Sprintf("at most %d bytes between slashes", maxPart)
	case !utf8.ValidString(p) || strings.ContainsFunc(p, unicode.IsControl) || strings.Contains(p, `\`):
		rule = "valid UTF-8 without control characters and backslashes"
	case strings.HasSuffix(p, ".attrs") || strings.Contains(p, "__0x"):
		rule = "does not end in .attrs and does not hold __0x, which directory targets keep for themselves"
	case p == Marker:
		rule = "this name is what fetch tells by what it has fetched"
	default:
		return nil
	}
	return &store.InvalidError{Field: "file", Value: p, Rule: rule}
}

// Scan reads the files below the root of fsys and returns their manifest. A link
// or another file that is not regular is an error matching store.ErrInvalid, as
// is what Manifest.Check refuses; the Marker of an earlier Fetch is left out. seen, if
// not nil, is told of bytes read.
func Scan(ctx context.Context, fsys fs.FS, seen func(bytes int64)) (Manifest, error) {
	var m Manifest
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case d.IsDir() || p == Marker:
			return nil
		case !d.Type().IsRegular():
			return &store.InvalidError{Field: "file", Value: p, Rule: "only regular files are published, no links or devices"}
		}
		if err := CheckPath(p); err != nil {
			return err
		}
		f, err := scanFile(ctx, fsys, p, seen)
		m.Files = append(m.Files, f)
		return err
	})
	if err != nil {
		return Manifest{}, localFailure("scan", err)
	}
	slices.SortFunc(m.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	return m, m.Check()
}

func scanFile(ctx context.Context, fsys fs.FS, p string, seen func(int64)) (File, error) {
	f, err := fsys.Open(p)
	if err != nil {
		return File{}, err
	}
	defer func() { _ = f.Close() }() // it was only read
	h := sha256.New()
	n, err := io.Copy(h, &watched{r: f, read: func(n int64) error {
		if seen != nil {
			seen(n)
		}
		return context.Cause(ctx)
	}})
	if err != nil {
		return File{}, fmt.Errorf("%s: %w", p, err)
	}
	return File{Path: p, Size: n, SHA256: hex.EncodeToString(h.Sum(nil))}, nil
}

// watched calls read after each Read with the bytes that it gave; an error of it
// ends the reading.
type watched struct {
	r    io.Reader
	read func(n int64) error
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if told := w.read(int64(n)); told != nil && (err == nil || errors.Is(err, io.EOF)) {
		err = told
	}
	return n, err
}

// key is the object of a file of an attempt.
func key(name, attempt, p string) string { return path.Join(name, attempt, p) }

// prefix is what the objects of an attempt begin with.
func prefix(name, attempt string) string { return name + "/" + attempt + "/" }
