package publish_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/tenurehq/tenure/fence/publish"
	"github.com/tenurehq/tenure/fence/publish/target"
	"github.com/tenurehq/tenure/store"
)

// TestForgedRecord: whoever can write the record cannot have a reader write
// outside of the directory that it names.
func TestForgedRecord(t *testing.T) {
	t.Parallel()
	b := newBed(t, t.TempDir())
	p := b.mustPublish("report", b.grant("report"), files("A"))
	set := func(column, value string) {
		t.Helper()
		if _, err := b.db.ExecContext(t.Context(), "UPDATE tenure_publication_attempt SET "+column+" = ?", value); err != nil {
			t.Fatal(err)
		}
	}
	evil := sha256.Sum256([]byte("evil"))
	content := hex.EncodeToString(evil[:])
	for _, forged := range []string{
		`{"files":[{"path":"../../evil","size":4,"sha256":"` + content + `"}]}`,
		`{"files":[{"path":"/etc/evil","size":4,"sha256":"` + content + `"}]}`,
		`{"files":[{"path":"` + publish.Marker + `","size":4,"sha256":"` + content + `"}]}`,
		`{"files":[{"path":"empty","size":4,"sha256":"` + content + `"}]}`, // sound, and not what was published
		`{"files":[]}`, `{`, ``,
	} {
		set("manifest", forged)
		for _, digest := range []string{p.Digest, sum(forged)} {
			if digest != p.Digest && strings.Contains(forged, "empty") {
				continue // a record that is sound in itself says what is published
			}
			set("digest", digest)
			for _, opts := range []publish.OpenOptions{{}, {NoNote: true}, {Attempt: p.Attempt}} {
				s, err := publish.Open(t.Context(), b.ledger, b.open, "report", opts)
				if !errors.Is(err, publish.ErrDamaged) {
					t.Errorf("manifest %s: got %v, want an error matching %q", forged, err, publish.ErrDamaged)
				}
				if err == nil {
					_, _ = s.Fetch(t.Context(), filepath.Join(t.TempDir(), "got"), publish.Transfer{})
					_ = s.Close(t.Context())
				}
			}
		}
	}
}

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}

// TestConnectionsEnd: what a target has opened it closes.
func TestConnectionsEnd(t *testing.T) {
	t.Parallel()
	backend := s3mem.New()
	if err := backend.CreateBucket("results"); err != nil {
		t.Fatal(err)
	}
	var connections atomic.Int64
	server := httptest.NewUnstartedServer(gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server())
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			connections.Add(1)
		case http.StateClosed, http.StateHijacked:
			connections.Add(-1)
		case http.StateActive, http.StateIdle:
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	b := newBed(t, "s3://results?"+url.Values{"endpoint": {server.URL}, "region": {"eu-north-1"}, "use_path_style": {"true"}}.Encode())

	m, err := publish.Scan(t.Context(), files("A"), nil)
	if err != nil {
		t.Fatal(err)
	}
	token := b.grant("report")
	to, err := b.open(t.Context(), b.url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := publish.Publish(t.Context(), b.ledger, to, "report", token, m, files("A"), publish.Transfer{}, nil); err != nil {
		t.Fatal(err)
	}
	if connections.Load() == 0 {
		t.Fatal("no connection was seen")
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		b.expectCurrent("report", files("A"))
		b.sweep("report", 0)
	}
	until, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for connections.Load() > 0 {
		select {
		case <-until.Done():
			t.Fatalf("%d connections are still open", connections.Load())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// TestUnfinishedUploads: a sweep ends what a killed process had sent in part, of
// attempts that are dropped and of no others.
func TestUnfinishedUploads(t *testing.T) {
	t.Parallel()
	beds(t, func(t *testing.T, b *bed) {
		var client *s3.Client
		if !b.target().Bucket.As(&client) {
			t.Skip("a directory keeps nothing of the kind")
		}
		dropped, err := b.begin("report", b.grant("report"), files("A"))
		if err != nil {
			t.Fatal(err)
		}
		token := b.grant("report")
		b.mustPublish("report", token, files("B"))
		running, err := b.begin("report", token, files("C"))
		if err != nil {
			t.Fatal(err)
		}
		bucket := "results"
		for _, key := range []string{"below/here/report/" + dropped.Attempt + "/large", "below/here/report/" + running.Attempt + "/large", "below/here/other/1-0000000000000000/x", "elsewhere"} {
			if _, err := client.CreateMultipartUpload(t.Context(), &s3.CreateMultipartUploadInput{Bucket: &bucket, Key: &key}); err != nil {
				t.Fatal(err)
			}
		}
		if done := b.sweep("report", 0); done.Aborted != 1 || done.Unseen != nil || len(done.Dropped) != 1 {
			t.Errorf("got %+v, want one unfinished upload ended", done)
		}
		left, err := client.ListMultipartUploads(t.Context(), &s3.ListMultipartUploadsInput{Bucket: &bucket})
		if err != nil || len(left.Uploads) != 3 {
			t.Errorf("got %d unfinished uploads, error %v, want the 3 others left", len(left.Uploads), err)
		}
	})
}

// TestTargetURLs: what may be a secret is refused, and not shown.
func TestTargetURLs(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		"s3://key:secret@bucket", "s3://bucket?endpoint=http://user:secret@host", "s3://bucket?endpoint=host%3Fkey%3Dsecret@x",
		"s3://bucket?secret_access_key=secret", "s3://bucket?endpoint=https://secret@host/", "s3://bucket?endpoint=ftp://host", "s3://bucket?use_path_style=yes%00",
		"s3://user:secret@%zz", "s3://bucket?endpoint=https://h%3Fkey%3Dsecret", "s3://bucket?endpoint=https://h%3Fkey%3Dsecret@x",
	} {
		if got, err := target.Clean(bad); !errors.Is(err, store.ErrInvalid) || strings.Contains(strings.ReplaceAll(err.Error(), "secret_access_key", ""), "secret") {
			t.Errorf("%s: got %q, %v, want it refused and not repeated", bad, got, err)
		}
	}
	for url, want := range map[string]string{
		"s3://bucket/a/b/": "s3://bucket/a/b",
		"s3://bucket?endpoint=http://127.0.0.1:9000&use_path_style=true": "s3://bucket?endpoint=http%3A%2F%2F127.0.0.1%3A9000&use_path_style=true",
		"file:///a/../b": "file:///b",
	} {
		if got, err := target.Clean(url); got != want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", url, got, err, want)
		}
	}
}

// TestFetchWhere: where a fetch would do harm it is refused, and a link stands for
// what it leads to.
func TestFetchWhere(t *testing.T) { // not parallel: it changes the working directory
	b := newBed(t, t.TempDir())
	b.mustPublish("report", b.grant("report"), files("A"))
	s := b.set("report", publish.OpenOptions{})
	defer s.Close(t.Context())
	fetch := func(dir string) error {
		_, err := s.Fetch(t.Context(), dir, publish.Transfer{})
		return err
	}

	at := t.TempDir()
	link := filepath.Join(at, "current")
	if err := os.Symlink("v1", link); err != nil {
		t.Fatal(err)
	}
	if err := fetch(link); !errors.Is(err, publish.ErrOccupied) {
		t.Errorf("onto a link to nothing: got %v, want an error matching %q", err, publish.ErrOccupied)
	}
	if err := os.Mkdir(filepath.Join(at, "v1"), 0o750); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := fetch(link); err != nil {
			t.Fatal(err)
		}
		if to, err := os.Readlink(link); err != nil || to != "v1" {
			t.Errorf("after a fetch onto a link: it leads to %q, error %v, want v1", to, err)
		}
		if err := os.Remove(filepath.Join(link, "empty")); err != nil {
			t.Fatal(err)
		}
	}

	work := filepath.Join(t.TempDir(), "work")
	if err := os.MkdirAll(filepath.Join(work, "below"), 0o750); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(work, "below"))
	if err := fetch("."); !errors.Is(err, publish.ErrOccupied) || !strings.Contains(err.Error(), "working directory") {
		t.Errorf("into the working directory: got %v, want it refused", err)
	}
	if err := fetch("got"); err != nil {
		t.Error(err)
	}
	var here *publish.LocalError
	if err := fetch("/proc/no/such/place"); !errors.As(err, &here) {
		t.Errorf("where nothing can be made: got %v, want a *publish.LocalError", err)
	}
}

// TestLongNames: what a file system cannot hold is refused before anything is sent.
func TestLongNames(t *testing.T) {
	t.Parallel()
	for p, ok := range map[string]bool{
		strings.Repeat("x", 255): true, strings.Repeat("x", 256): false, "a/" + strings.Repeat("ü", 128): false,
		strings.Repeat("x/", 300) + "x": true, strings.Repeat("x/", 400) + "x": false,
	} {
		if err := publish.CheckPath(p); (err == nil) != ok {
			t.Errorf("%d bytes: got %v, want it allowed: %v", len(p), err, ok)
		}
	}
}

// TestVanishedFile: a file that is gone by the time it is sent has changed.
func TestVanishedFile(t *testing.T) {
	t.Parallel()
	b := newBed(t, t.TempDir())
	a, err := b.begin("report", b.grant("report"), files("A"))
	if err != nil {
		t.Fatal(err)
	}
	left := files("A")
	delete(left, "empty")
	if err := a.Upload(t.Context(), left, publish.Transfer{}); !errors.Is(err, publish.ErrChanged) {
		t.Errorf("got %v, want an error matching %q", err, publish.ErrChanged)
	}
	left["empty"] = &fstest.MapFile{Mode: fs.ModeDir}
	var here *publish.LocalError
	if err := a.Upload(t.Context(), left, publish.Transfer{}); !errors.As(err, &here) {
		t.Errorf("a file that is a directory now: got %v, want a *publish.LocalError", err)
	}
}

// TestDenied: wrong credentials, and none, are told from a bucket that is silent.
func TestDenied(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{"InvalidAccessKeyId": true, "SignatureDoesNotMatch": true, "AccessDenied": true, "InternalError": false} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w, `<Error><Code>%s</Code><Message>no</Message></Error>`, code)
		}))
		b := newBed(t, "s3://results?"+url.Values{"endpoint": {server.URL}, "region": {"eu-north-1"}, "use_path_style": {"true"}}.Encode())
		_, err := b.publish("report", b.grant("report"), files("A"))
		server.Close()
		var bucket *publish.BucketError
		if !errors.As(err, &bucket) || bucket.Denied() != want {
			t.Errorf("%s: got %v, want a *publish.BucketError and denied: %v", code, err, want)
		}
	}
}

// TestEmptyDirectories: a sweep leaves none of what it dropped.
func TestEmptyDirectories(t *testing.T) {
	t.Parallel()
	at := t.TempDir()
	b := newBed(t, at)
	a, err := b.begin("report", b.grant("report"), files("A"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(at, "report", a.Attempt, "dir0"), 0o750); err != nil { // as a killed process leaves it
		t.Fatal(err)
	}
	b.mustPublish("report", b.grant("report"), files("B"))
	b.sweep("report", 0)
	if entries, err := os.ReadDir(filepath.Join(at, "report")); err != nil || len(entries) != 1 {
		t.Errorf("got %v, error %v, want the published set alone", entries, err)
	}
}
