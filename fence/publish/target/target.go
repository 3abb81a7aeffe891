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
	"strings"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/blob/s3blob"

	"github.com/tenurehq/tenure/fence/publish"
	"github.com/tenurehq/tenure/store"
)

// Help says what a target is called.
const Help = `a directory (PATH or file:///PATH) or s3://BUCKET/PREFIX, with ?region=,
?endpoint=https://… and ?use_path_style=true where the store is not Amazon's; its
credentials are those of the AWS environment`

// s3Parameters are what an S3 URL may say. Keys and other secrets are not among
// them, since the URL is kept in the ledger.
var s3Parameters = map[string]bool{"region": true, "endpoint": true, "use_path_style": true, "profile": true, "ssetype": true, "kmskeyid": true, "disable_https": true}

// Clean returns the URL by which the ledger names a target. It returns an error
// matching store.ErrInvalid for what is none.
func Clean(s string) (string, error) {
	bad := func(rule string) (string, error) {
		shown := s
		if u, err := url.Parse(s); err == nil {
			shown = u.Redacted()
		}
		return "", &store.InvalidError{Field: "target", Value: shown, Rule: rule}
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
		if u.Host == "" {
			return bad("write s3://BUCKET or s3://BUCKET/PREFIX")
		}
		query := u.Query()
		for name := range query {
			if !s3Parameters[name] {
				return bad(fmt.Sprintf("parameter %q is not one of an S3 target", name))
			}
		}
		clean := url.URL{Scheme: "s3", Host: u.Host, Path: strings.Trim(u.Path, "/"), RawQuery: query.Encode()}
		if clean.Path != "" {
			clean.Path = "/" + clean.Path
		}
		return clean.String(), nil
	}
	return bad("a directory or s3://BUCKET/PREFIX")
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
	below := strings.TrimPrefix(u.Path, "/")
	u.Path = ""
	bucket, err := new(s3blob.URLOpener).OpenBucketURL(ctx, u)
	if err != nil {
		return nil, &publish.BucketError{Doing: "open", Object: name, Err: err}
	}
	if below != "" {
		bucket = blob.PrefixedBucket(bucket, below+"/")
	}
	return &publish.Target{Bucket: bucket, URL: name}, nil
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
		Bucket: bucket, URL: name,
		Sync: func(ctx context.Context, prefix string) error {
			if err := publish.SyncTree(ctx, filepath.Join(dir, filepath.FromSlash(prefix))); err != nil {
				return err
			}
			return syncParents(dir, prefix)
		},
		Prune: func(prefix string) error { return prune(filepath.Join(dir, filepath.FromSlash(prefix))) },
	}, nil
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
