// Package target opens the buckets of publications by their URLs: a directory or
// S3. It is apart from package publish so that who opens buckets otherwise does
// not link their clients.
package target

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"gocloud.dev/blob/fileblob"

	"github.com/tenurehq/tenure/fence/publish"
	"github.com/tenurehq/tenure/store"
)

// Help says what a target is called.
const Help = `a directory (PATH or file:///PATH) or s3://BUCKET/PREFIX, with ?region=,
?endpoint=https://… and ?use_path_style=true where the store is not Amazon's; its
credentials are those of the AWS environment`

// Clean returns the URL by which the ledger names a target. It returns an error
// matching store.ErrInvalid for what is none.
func Clean(s string) (string, error) {
	bad := func(rule string) (string, error) {
		return "", &store.InvalidError{Field: "target", Value: shown(s), Rule: rule}
	}
	if s == "" {
		return bad("name " + strings.ReplaceAll(Help, "\n", " "))
	}
	if !strings.Contains(s, "://") {
		path, err := filepath.Abs(s)
		if err != nil {
			return bad(err.Error())
		}
		return (&url.URL{Scheme: "file", Path: filepath.ToSlash(path)}).String(), nil
	}
	u, err := url.Parse(s)
	if err != nil || u.User != nil || u.Fragment != "" {
		return bad("a URL without a user: credentials come from the environment")
	}
	switch u.Scheme {
	case "file":
		if u.Host != "" && u.Host != "localhost" || u.RawQuery != "" || !filepath.IsAbs(filepath.FromSlash(u.Path)) {
			return bad("write file:///PATH with an absolute path")
		}
		return (&url.URL{Scheme: "file", Path: filepath.ToSlash(filepath.Clean(filepath.FromSlash(u.Path)))}).String(), nil
	case "s3":
		clean, rule := cleanS3(u)
		if rule != "" {
			return bad(rule)
		}
		return clean, nil
	}
	return bad("a directory or s3://BUCKET/PREFIX")
}

// shown returns s without what may be a secret in it.
func shown(s string) string {
	if !strings.Contains(s, "://") {
		return s
	}
	u, err := url.Parse(s)
	if err != nil {
		scheme, _, _ := strings.Cut(s, "://")
		return scheme + "://…"
	}
	query := u.Query()
	for name := range query {
		query.Set(name, "xxxxx")
	}
	u.RawQuery = query.Encode()
	return u.Redacted()
}

// Open opens the target that a URL names. A directory is made if create says so;
// otherwise it must be there.
func Open(ctx context.Context, name string, create bool) (*publish.Target, error) {
	name, err := Clean(name)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(name)
	if err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	if u.Scheme == "file" {
		return openDirectory(name, filepath.FromSlash(u.Path), create)
	}
	return openS3(ctx, name, u)
}

func openDirectory(name, dir string, create bool) (*publish.Target, error) {
	// Temporary files lie beside the final ones, as another file system may hold
	// the usual place. Metadata would be a file beside each; sizes and hashes are
	// known from the manifest.
	bucket, err := fileblob.OpenBucket(dir, &fileblob.Options{CreateDir: create, NoTempDir: true, Metadata: fileblob.MetadataDontWrite})
	if err != nil {
		return nil, &publish.BucketError{Doing: "open", Object: name, Err: err}
	}
	return &publish.Target{
		Bucket: bucket, URL: name, Check: checkDirectory,
		Sync: func(ctx context.Context, prefix string) error {
			if err := publish.SyncTree(ctx, filepath.Join(dir, filepath.FromSlash(prefix))); err != nil {
				return err
			}
			return syncParents(dir, prefix)
		},
		Prune: func(prefix string) error { return prune(filepath.Join(dir, filepath.FromSlash(prefix))) },
	}, nil
}

// longestFile is what of a name of 255 bytes is left beside the ending of a temporary
// file, which looks like unfinished.
const longestFile = 234

var unfinished = regexp.MustCompile(`\.[0-9a-f]{16}\.tmp$`)

// checkDirectory returns an error for what fileblob does not keep under its own name:
// it escapes "../" and what looks escaped in the names of files, but not in what it
// lists by; and it writes to a temporary file beside the final one.
func checkDirectory(name string, m publish.Manifest) error {
	if strings.Contains(name+"/", "../") || strings.Contains(name, "__0x") {
		return &store.InvalidError{Field: "lease", Value: name, Rule: `no part that ends in ".." and no "__0x", to publish to a directory`}
	}
	for _, f := range m.Files {
		for part := range strings.SplitSeq(strings.ReplaceAll(f.Path, "../", "..__0x2f__"), "/") {
			if len(part) > longestFile || unfinished.MatchString(part) {
				return &store.InvalidError{Field: "file", Value: f.Path, Rule: fmt.Sprintf("names of at most %d bytes, and none of a temporary file, to publish to a directory", longestFile)}
			}
		}
	}
	return nil
}

// syncParents puts the directories from dir down to prefix on disk.
func syncParents(dir, prefix string) error {
	for at := filepath.Join(dir, filepath.FromSlash(prefix)); ; at = filepath.Dir(at) {
		f, err := os.Open(at)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil || at == filepath.Clean(dir) {
			return err
		}
	}
}

// prune removes the directories below dir, and dir, that are empty.
func prune(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := prune(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	_ = os.Remove(dir) // fails if something is in it
	return nil
}
