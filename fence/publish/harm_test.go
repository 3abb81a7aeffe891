package publish_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
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
		"s3://user:secret@%zz",
	} {
		if got, err := target.Clean(bad); !errors.Is(err, store.ErrInvalid) || strings.Contains(err.Error(), "secret@") || strings.Contains(err.Error(), "=secret") {
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
