package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence/publish"
	"github.com/tenurehq/tenure/fence/publish/target"
)

// writeFiles makes a directory of files that all say tag.
func writeFiles(t *testing.T, tag string) string {
	t.Helper()
	dir := t.TempDir()
	for _, path := range []string{"index", "data/one", "data/two"} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(tag+" "+filepath.Base(path)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// gives runs the command line and wants success and these parts on standard output.
func gives(t *testing.T, args []string, parts ...string) {
	t.Helper()
	r := cli(t, args...)
	r.want(t, exitOK)
	for _, part := range parts {
		if !strings.Contains(r.out, part) {
			t.Errorf("%q: got %q, want it to hold %q", args, r.out, part)
		}
	}
}

func TestPublishFetchSweep(t *testing.T) {
	t.Parallel()
	stores := map[string]func(*testing.T) string{"sqlite": fileStore, "postgres": serverStore}
	for kind, named := range stores {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			path := named(t)
			cli(t, "migrate", "--store", path).want(t, 0)
			target := filepath.Join(t.TempDir(), "target")
			got := filepath.Join(t.TempDir(), "got")
			one, two := writeFiles(t, "one"), writeFiles(t, "two")

			cli(t, "fetch", "reports", got, "--store", path).want(t, exitNotFound, "nothing is published", "tenure publish reports DIR")
			cli(t, "publish", "reports", one, "--store", path).want(t, exitUsage, "--target TARGET")
			gives(t, []string{"publish", "reports", one, "--store", path, "--target", target}, "publication 1, token 1, 3 files")
			r := cli(t, "publish", "reports", two, "--store", path, "-o", "json")
			r.want(t, 0)
			var p map[string]any
			if err := json.Unmarshal([]byte(r.out), &p); err != nil {
				t.Fatal(err)
			}
			if p["token"] != "2" || p["seq"] != 2.0 || p["files"] != 3.0 || p["target"] != "file://"+target {
				t.Errorf("got %v, want token, number, files and target", p)
			}
			cli(t, "publish", "reports", one, "--store", path, "--token", "1").want(t, exitConflict, "stale token 1", "2 is current", "nothing was published")
			gives(t, []string{"fetch", "reports", got, "--store", path}, "token 2", "fetched into")
			gives(t, []string{"fetch", "reports", got, "--store", path, "-o", "json"}, `"changed": false`)
			for _, file := range []string{"index", "data/one"} {
				text, err := os.ReadFile(filepath.Join(got, file))
				if err != nil || string(text) != "two "+filepath.Base(file) {
					t.Errorf("%s: got %q, %v, want that of the second set", file, text, err)
				}
			}
			cli(t, "fetch", "reports", one, "--store", path).want(t, exitUsage, "holds something else", "not there yet")
			gives(t, []string{"sweep", "reports", "--store", path}, "removed 0 files", "retained or in use")
			gives(t, []string{"sweep", "reports", "--store", path, "--retention", "0s", "--dry-run"}, "to be dropped")
			gives(t, []string{"sweep", "reports", "--store", path, "--retention", "0s", "-o", "json"}, `"removed_objects": 3`)

			entries, err := os.ReadDir(filepath.Join(target, "reports"))
			if err != nil || len(entries) != 1 {
				t.Fatalf("got %v, %v, want the second set alone", entries, err)
			}
			if err := os.WriteFile(filepath.Join(target, "reports", entries[0].Name(), "index"), []byte("two evil!"), 0o600); err != nil {
				t.Fatal(err)
			}
			cli(t, "fetch", "reports", got+"2", "--store", path).want(t, exitDamaged, "not as published", `publish "reports" again`)
		})
	}
}

func TestPublishHeld(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	cli(t, "migrate", "--store", path).want(t, 0)
	dir, target := writeFiles(t, "x"), t.TempDir()
	g := acquire(t, path, "reports", "somebody")
	args := []string{"publish", "reports", dir, "--store", path, "--target", target}
	cli(t, args...).want(t, exitNotAcquired, "held by", "--wait-for")
	cli(t, append(args, "--wait-for", "50ms")...).want(t, exitNotAcquired, "still held after 50ms")
	gives(t, append(args, "--token", g.Token.String()), "token 1")
	release(t, path, g)
	gives(t, args, "token 2")
}

func TestPublishUsage(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	cli(t, "migrate", "--store", path).want(t, 0)
	dir := writeFiles(t, "x")
	linked := writeFiles(t, "x")
	if err := os.Symlink("index", filepath.Join(linked, "link")); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		code int
		part string
		args []string
	}{
		{exitUsage, "name the lease and the directory", []string{"publish", "reports"}},
		{exitUsage, "no such directory", []string{"publish", "reports", dir + "x"}},
		{exitUsage, "is a store and no lease's name", []string{"publish", "postgres://x/y", dir}},
		{exitUsage, "name", []string{"publish", "/bad", dir}},
		{exitUsage, "from 1 to 256", []string{"publish", "reports", dir, "--parallel", "0"}},
		{exitUsage, "target", []string{"publish", "reports", dir, "--target", "ftp://x/y"}},
		{exitUsage, "xxxxx", []string{"publish", "reports", dir, "--target", "s3://key:secret@bucket"}},
		{exitUsage, "only regular files", []string{"publish", "reports", linked, "--target", t.TempDir()}},
		{exitUsage, "at least one file", []string{"publish", "reports", t.TempDir(), "--target", t.TempDir()}},
		{exitUsage, "credentials come from the environment", []string{"publish", "reports", dir, "--target", "s3://bucket?endpoint=http://user:secret@host"}},
		{exitUsage, "holds the target", []string{"publish", "reports", dir, "--target", dir}},
		{exitUsage, "holds the target", []string{"publish", "reports", dir, "--target", filepath.Join(dir, "not", "there")}},
		{exitUsage, "retention", []string{"sweep", "reports", "--retention", "5"}},
		{exitConfig, "database itself", []string{"fetch", "reports", "--store", "tenure://127.0.0.1:1"}},
	} {
		args := tc.args
		if !strings.Contains(strings.Join(args, " "), "--store") {
			args = append(args, "--store", path)
		}
		r := cli(t, args...)
		if r.code == exitUnavailable && tc.code == exitConfig { // that server is asked first
			continue
		}
		r.want(t, tc.code, tc.part)
		if strings.Contains(r.err, "secret") || strings.Count(r.err, "\n") != 1 {
			t.Errorf("%q: got %q, want one line without secrets", args, r.err)
		}
	}
}

// s3Error is an answer of S3 with a code.
type s3Error string

func (e s3Error) Error() string { return "api error " + string(e) }

func (e s3Error) ErrorCode() string { return string(e) }

// TestPublishErrors: what went wrong has the code that tells what to do.
func TestPublishErrors(t *testing.T) {
	t.Parallel()
	cmd := newSweep()
	for _, tc := range []struct {
		err  error
		code int
		part string
	}{
		{fmt.Errorf("x: %w", publish.ErrChanged), exitUsage, "when DIR does not change"},
		{&publish.LocalError{Doing: "fetch", Err: syscall.ENOSPC}, exitUnavailable, "on this host: no space left"},
		{&publish.LocalError{Doing: "fetch", Err: os.ErrPermission}, exitPermission, "on this host"},
		{&publish.BucketError{Doing: "upload", Object: "a", Err: s3Error("InvalidAccessKeyId")}, exitPermission, "credentials"},
		{&publish.BucketError{Doing: "upload", Object: "a", Err: errors.New("get identity: get credentials: none")}, exitPermission, "credentials"},
		{&publish.BucketError{Doing: "upload", Object: "a", Err: errors.New("connection refused")}, exitUnavailable, "check the target"},
	} {
		var e *exitError
		if err := publishError(cmd, "reports", tc.err); !errors.As(err, &e) || e.code != tc.code || !strings.Contains(err.Error(), tc.part) {
			t.Errorf("%v: got %v, want code %d and %q", tc.err, err, tc.code, tc.part)
		}
	}
}

func TestBarLine(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		p     publish.Progress
		moved int64
		took  time.Duration
		want  string
	}{
		{publish.Progress{AllFiles: 2}, 0, 0, "uploading [........................]   0%  0 of 2 files  0 B of 0 B"},
		{publish.Progress{Files: 1, AllFiles: 3, Bytes: 3 << 20, AllBytes: 6 << 20}, 2 << 20, 2 * time.Second,
			"uploading [############............]  50%  1 of 3 files  3.0 MiB of 6.0 MiB  1.0 MiB/s  3s left"},
		{publish.Progress{Files: 3, AllFiles: 3, Bytes: 9, AllBytes: 6}, 0, 0, "uploading [########################] 100%  3 of 3 files  9 B of 6 B"},
	} {
		if got := barLine("uploading", tc.p, tc.moved, tc.took); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}

// TestInside: a target within the directory that is published is seen as that,
// whatever its name is in a URL.
func TestInside(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "my dir %41")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]bool{dir: true, filepath.Join(dir, "t"): true, filepath.Dir(dir): false, dir + "2": false, "s3://my-dir/t": false} {
		clean, err := target.Clean(at)
		if err != nil {
			t.Fatal(err)
		}
		if got := inside(dir, clean); got != want {
			t.Errorf("%s in %s: got %t, want %t", at, dir, got, want)
		}
	}
}
