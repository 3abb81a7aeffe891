package publish_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	_ "modernc.org/sqlite"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/publish"
	"github.com/tenurehq/tenure/fence/publish/target"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/sqlite"
)

func TestMain(m *testing.M) {
	// S3's client looks for credentials; any pass here.
	for k, v := range map[string]string{"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"} {
		os.Setenv(k, v)
	}
	os.Exit(m.Run())
}

// bed is a SQLite file with leases and publications, and a target.
type bed struct {
	t      *testing.T
	st     *sqlite.Store
	db     *sql.DB
	ledger *publish.Ledger
	url    string
	held   map[string]store.Record
}

// beds runs f with a directory and with S3 as target.
func beds(t *testing.T, f func(t *testing.T, b *bed)) {
	t.Run("directory", func(t *testing.T) {
		t.Parallel()
		f(t, newBed(t, t.TempDir()))
	})
	t.Run("s3", func(t *testing.T) {
		t.Parallel()
		backend := s3mem.New()
		if err := backend.CreateBucket("results"); err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server())
		t.Cleanup(server.Close)
		f(t, newBed(t, "s3://results/below/here?"+url.Values{"endpoint": {server.URL}, "region": {"eu-north-1"}, "use_path_style": {"true"}}.Encode()))
	})
}

func newBed(t *testing.T, targetURL string) *bed {
	t.Helper()
	db, err := sql.Open("sqlite", sqlite.ModerncDSN(filepath.Join(t.TempDir(), "tenure.db")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	st, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	b := &bed{t: t, st: st, db: db, held: map[string]store.Record{}}
	b.ledger, err = publish.NewLedger(db, publish.Config{Dialect: publish.SQLite, Guard: guard})
	if err != nil {
		t.Fatal(err)
	}
	if b.url, err = target.Clean(targetURL); err != nil {
		t.Fatal(err)
	}
	if err := b.ledger.Migrate(t.Context()); !errors.Is(err, store.ErrSchema) {
		t.Fatalf("migrate before the leases: got %v, want ErrSchema", err)
	}
	if err := errors.Join(st.Migrate(t.Context()), b.ledger.Migrate(t.Context()), b.ledger.Migrate(t.Context()), b.ledger.Check(t.Context())); err != nil {
		t.Fatal(err)
	}
	return b
}

func guard(ctx context.Context, tx *sql.Tx, name string, token fence.Token) error {
	return sqlite.Guard(ctx, tx, name, token)
}

func (b *bed) open(ctx context.Context, url string) (*publish.Target, error) {
	return target.Open(ctx, url, true)
}

func (b *bed) target() *publish.Target {
	b.t.Helper()
	to, err := b.open(b.t.Context(), b.url)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { to.Close() })
	return to
}

// grant starts the next term of name, whoever held it.
func (b *bed) grant(name string) fence.Token {
	b.t.Helper()
	if r, ok := b.held[name]; ok {
		if err := b.st.Revoke(b.t.Context(), name, r.Token, store.Revocation{Why: "next", By: "test", Now: true}); err != nil {
			b.t.Fatal(err)
		}
	}
	r, err := b.st.Acquire(b.t.Context(), store.Request{Name: name, Holder: "h", TTL: time.Minute, Attempt: store.NewAttempt()})
	if err != nil {
		b.t.Fatal(err)
	}
	b.held[name] = r
	return r.Token
}

// files is a set whose every file says tag.
func files(tag string) fstest.MapFS {
	m := fstest.MapFS{}
	for i := range 5 {
		m[fmt.Sprintf("dir%d/file-%d.txt", i%2, i)] = &fstest.MapFile{Data: []byte(strings.Repeat(fmt.Sprintf("%s %d\n", tag, i), 1+i*100))}
	}
	m["empty"] = &fstest.MapFile{}
	return m
}

func (b *bed) begin(name string, token fence.Token, fsys fs.FS) (*publish.Attempt, error) {
	b.t.Helper()
	m, err := publish.Scan(b.t.Context(), fsys, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return publish.Begin(b.t.Context(), b.ledger, b.target(), name, token, m)
}

func (b *bed) publish(name string, token fence.Token, fsys fs.FS) (publish.Publication, error) {
	b.t.Helper()
	m, err := publish.Scan(b.t.Context(), fsys, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return publish.Publish(b.t.Context(), b.ledger, b.target(), name, token, m, fsys, publish.Transfer{}, nil)
}

func (b *bed) mustPublish(name string, token fence.Token, fsys fs.FS) publish.Publication {
	b.t.Helper()
	p, err := b.publish(name, token, fsys)
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

func (b *bed) set(name string, opts publish.OpenOptions) *publish.Set {
	b.t.Helper()
	s, err := publish.Open(b.t.Context(), b.ledger, b.open, name, opts)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// read returns the files of a set.
func read(ctx context.Context, s *publish.Set) (map[string]string, error) {
	all := map[string]string{}
	for _, f := range s.Manifest.Files {
		r, err := s.Open(ctx, f.Path)
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil {
			return nil, err
		}
		all[f.Path] = string(text)
	}
	return all, nil
}

func (b *bed) expect(s *publish.Set, want fstest.MapFS) {
	b.t.Helper()
	got, err := read(b.t.Context(), s)
	if err != nil {
		b.t.Fatal(err)
	}
	if len(got) != len(want) {
		b.t.Errorf("got %d files, want %d", len(got), len(want))
	}
	for path, f := range want {
		if got[path] != string(f.Data) {
			b.t.Errorf("%s: got %.20q, want %.20q", path, got[path], f.Data)
		}
	}
}

func (b *bed) expectCurrent(name string, want fstest.MapFS) {
	b.t.Helper()
	s := b.set(name, publish.OpenOptions{})
	b.expect(s, want)
	if err := s.Close(b.t.Context()); err != nil {
		b.t.Error(err)
	}
}

func (b *bed) sweep(name string, retention time.Duration) publish.Swept {
	b.t.Helper()
	done, err := publish.Sweep(b.t.Context(), b.ledger, b.open, name, publish.SweepOptions{Retention: retention})
	if err != nil {
		b.t.Fatal(err)
	}
	return done
}

// objects returns how many objects lie below an attempt.
func (b *bed) objects(name, attempt string) (n int) {
	b.t.Helper()
	it := b.target().Bucket.List(nil)
	for {
		o, err := it.Next(b.t.Context())
		if errors.Is(err, io.EOF) {
			return n
		} else if err != nil {
			b.t.Fatal(err)
		}
		if strings.HasPrefix(o.Key, name+"/"+attempt+"/") {
			n++
		}
	}
}

// stale fails unless err is a refusal of token that tells the current one.
func stale(t *testing.T, err error, token, current fence.Token) {
	t.Helper()
	var s *fence.StaleError
	if !errors.As(err, &s) || s.Token != token || s.Current != current {
		t.Errorf("got %v, want token %s refused because %s is current", err, token, current)
	}
}

func TestClassicSequence(t *testing.T) {
	t.Parallel()
	beds(t, func(t *testing.T, b *bed) {
		if err := b.st.RaiseFloor(t.Context(), "report", 40); err != nil {
			t.Fatal(err)
		}
		if _, err := publish.Open(t.Context(), b.ledger, b.open, "report", publish.OpenOptions{}); !errors.Is(err, publish.ErrNone) || !errors.Is(err, store.ErrNotFound) {
			t.Errorf("nothing published: got %v, want ErrNone", err)
		}
		tokenA := b.grant("report")
		attempt, err := b.begin("report", tokenA, files("A"))
		if err != nil {
			t.Fatal(err)
		}
		part := fstest.MapFS{"empty": files("A")["empty"]}
		_ = attempt.Upload(t.Context(), part, publish.Transfer{Parallel: 1}) // A gets no further than this
		tokenB := b.grant("report")
		if tokenA != 41 || tokenB != 42 {
			t.Fatalf("got tokens %s and %s, want 41 and 42", tokenA, tokenB)
		}
		b.mustPublish("report", tokenB, files("B"))

		if err := attempt.Upload(t.Context(), files("A"), publish.Transfer{}); err != nil {
			t.Errorf("A's upload harms nobody: got %v", err)
		}
		for range 2 {
			_, err := attempt.Accept(t.Context())
			stale(t, err, 41, 42)
		}
		_, err = b.publish("report", tokenA, files("A2"))
		stale(t, err, 41, 42)
		b.expectCurrent("report", files("B"))

		if done := b.sweep("report", time.Hour); len(done.Dropped) != 0 || done.Objects != 0 {
			t.Errorf("within the retention: got %+v, want nothing dropped", done)
		}
		if done := b.sweep("report", 0); len(done.Dropped) != 1 || done.Dropped[0].Attempt != attempt.Attempt || done.Objects != 6 {
			t.Errorf("after the retention: got %+v, want A's attempt and its 6 objects", done)
		}
		if n := b.objects("report", attempt.Attempt); n != 0 {
			t.Errorf("got %d objects of A, want none", n)
		}
		b.expectCurrent("report", files("B"))

		// A's process sends objects even after that; the next sweep knows them.
		if err := attempt.Upload(t.Context(), files("A"), publish.Transfer{}); err != nil {
			t.Error(err)
		}
		if done := b.sweep("report", 0); done.Objects != 6 || len(done.Unknown) != 0 {
			t.Errorf("objects sent after the sweep: got %+v, want 6 removed", done)
		}
	})
}

// TestWithoutGuard shows that the guard is what refuses A.
func TestWithoutGuard(t *testing.T) {
	t.Parallel()
	b := newBed(t, t.TempDir())
	var err error
	b.ledger, err = publish.NewLedger(b.db, publish.Config{Dialect: publish.SQLite, Guard: func(context.Context, *sql.Tx, string, fence.Token) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	attempt, err := b.begin("report", b.grant("report"), files("A"))
	if err != nil {
		t.Fatal(err)
	}
	if err := attempt.Upload(t.Context(), files("A"), publish.Transfer{}); err != nil {
		t.Fatal(err)
	}
	b.mustPublish("report", b.grant("report"), files("B"))
	if _, err := attempt.Accept(t.Context()); err != nil {
		t.Errorf("without the guard: got %v, want A's files published over B's", err)
	}
	b.expectCurrent("report", files("A"))
}

func TestInUse(t *testing.T) {
	t.Parallel()
	beds(t, func(t *testing.T, b *bed) {
		token := b.grant("report")
		first := b.mustPublish("report", token, files("one"))
		noted := b.set("report", publish.OpenOptions{NoteTTL: time.Hour})
		unnoted := b.set("report", publish.OpenOptions{NoNote: true})
		defer unnoted.Close(t.Context())
		brief := b.set("report", publish.OpenOptions{NoteTTL: time.Microsecond})
		defer brief.Close(t.Context())
		second := b.mustPublish("report", token, files("two"))
		if second.Seq != first.Seq+1 {
			t.Errorf("got publications %d and %d, want them counted", first.Seq, second.Seq)
		}
		running, err := b.begin("report", token, files("three"))
		if err != nil {
			t.Fatal(err)
		}
		if err := running.Upload(t.Context(), files("three"), publish.Transfer{}); err != nil {
			t.Fatal(err)
		}
		if done := b.sweep("report", 0); len(done.Dropped) != 0 || done.Objects != 0 || len(done.Kept) != 3 {
			t.Errorf("with a reader's note and a running attempt: got %+v, want nothing dropped", done)
		}
		b.expect(noted, files("one"))
		b.expect(unnoted, files("one"))
		if err := noted.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if done := b.sweep("report", time.Hour); len(done.Dropped) != 0 {
			t.Errorf("within the retention: got %+v, want nothing dropped", done)
		}
		if done := b.sweep("report", 0); len(done.Dropped) != 1 || done.Dropped[0].Attempt != first.Attempt {
			t.Errorf("when it is closed: got %+v, want the first set dropped", done)
		}
		for what, s := range map[string]*publish.Set{"without a note": unnoted, "past its note": brief} {
			if _, err := read(t.Context(), s); !errors.Is(err, publish.ErrDropped) {
				t.Errorf("a reader %s: got %v, want ErrDropped", what, err)
			}
		}
		if _, err := publish.Open(t.Context(), b.ledger, b.open, "report", publish.OpenOptions{Attempt: first.Attempt}); !errors.Is(err, publish.ErrDropped) {
			t.Errorf("open what was dropped: got %v, want ErrDropped", err)
		}
		if _, err := running.Accept(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.expectCurrent("report", files("three"))
		s := b.set("report", publish.OpenOptions{Attempt: second.Attempt})
		b.expect(s, files("two"))
		s.Close(t.Context())
	})
}

// counting counts what is opened.
type counting struct {
	fs.FS
	opened atomic.Int64
}

func (c *counting) Open(name string) (fs.File, error) {
	c.opened.Add(1)
	return c.FS.Open(name)
}

func TestResumed(t *testing.T) {
	t.Parallel()
	beds(t, func(t *testing.T, b *bed) {
		set := files("same")
		first, err := b.begin("report", b.grant("report"), set)
		if err != nil {
			t.Fatal(err)
		}
		short := fstest.MapFS{}
		for p, f := range set {
			if p != "dir0/file-4.txt" {
				short[p] = f
			}
		}
		if err := first.Upload(t.Context(), short, publish.Transfer{Parallel: 1}); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("got %v, want the missing file named", err)
		}
		sent := b.objects("report", first.Attempt)
		if sent == 0 {
			t.Fatal("got no object sent, want some")
		}
		source := &counting{FS: set}
		second, err := b.begin("report", b.grant("report"), set)
		if err != nil {
			t.Fatal(err)
		}
		if second.Attempt != first.Attempt {
			t.Errorf("got attempt %s, want %s gone on with", second.Attempt, first.Attempt)
		}
		var last publish.Progress
		if err := second.Upload(t.Context(), source, publish.Transfer{Progress: func(p publish.Progress) { last = p }}); err != nil {
			t.Fatal(err)
		}
		if got := int(source.opened.Load()); got != len(set)-sent {
			t.Errorf("got %d files sent again, want the %d that were not there", got, len(set)-sent)
		}
		if last.Files != len(set) || last.Present != sent || last.Bytes != last.AllBytes {
			t.Errorf("got progress %+v, want all", last)
		}
		_, err = first.Accept(t.Context())
		stale(t, err, first.Token, second.Token)
		p, err := second.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		again, err := second.Accept(t.Context())
		if err != nil || again.Seq != p.Seq {
			t.Errorf("accepted again: got %d, %v, want %d", again.Seq, err, p.Seq)
		}
		b.expectCurrent("report", set)
	})
}

func TestDamaged(t *testing.T) {
	t.Parallel()
	beds(t, func(t *testing.T, b *bed) {
		token := b.grant("report")
		set := files("good")
		spoil := func(attempt, path, content string) {
			t.Helper()
			if err := b.target().Bucket.WriteAll(t.Context(), "report/"+attempt+"/"+path, []byte(content), nil); err != nil {
				t.Fatal(err)
			}
		}
		a, err := b.begin("report", token, set)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Accept(t.Context()); !errors.Is(err, publish.ErrDamaged) {
			t.Errorf("accept with no object: got %v, want ErrDamaged", err)
		}
		// What lies there and is something else is never taken for the file.
		spoil(a.Attempt, "dir1/file-1.txt", strings.Repeat("x", len(set["dir1/file-1.txt"].Data)))
		if err := a.Upload(t.Context(), set, publish.Transfer{}); !errors.Is(err, publish.ErrDamaged) {
			t.Errorf("upload over another object: got %v, want ErrDamaged", err)
		}
		p := b.mustPublish("report", token, set)
		if p.Attempt == a.Attempt {
			t.Error("got the damaged attempt gone on with, want another")
		}
		b.expectCurrent("report", set)
		for what, content := range map[string]string{
			"longer": strings.Repeat("good 1\n", 102), "shorter": "good", "other bytes": strings.Repeat("evil 1\n", 101),
		} {
			spoil(p.Attempt, "dir1/file-1.txt", content)
			s := b.set("report", publish.OpenOptions{})
			if _, err := read(t.Context(), s); !errors.Is(err, publish.ErrDamaged) {
				t.Errorf("%s: got %v, want ErrDamaged", what, err)
			}
			dir := filepath.Join(t.TempDir(), "out")
			if _, err := s.Fetch(t.Context(), dir, publish.Transfer{}); !errors.Is(err, publish.ErrDamaged) {
				t.Errorf("fetch, %s: got %v, want ErrDamaged", what, err)
			}
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("fetch, %s: got a directory (%v), want none", what, err)
			}
			s.Close(t.Context())
		}
		// A file that changes while it is sent.
		m, err := publish.Scan(t.Context(), set, nil)
		if err != nil {
			t.Fatal(err)
		}
		changed := files("more")
		if _, err := publish.Publish(t.Context(), b.ledger, b.target(), "report", token, m, changed, publish.Transfer{}, nil); !errors.Is(err, publish.ErrChanged) {
			t.Errorf("a file that changed: got %v, want ErrChanged", err)
		}
	})
}

func TestFetch(t *testing.T) {
	t.Parallel()
	beds(t, func(t *testing.T, b *bed) {
		token := b.grant("a/b")
		b.mustPublish("a/b", token, files("one"))
		dir := filepath.Join(t.TempDir(), "deep", "out")
		fetch := func(dir string) (bool, error) {
			s := b.set("a/b", publish.OpenOptions{})
			defer s.Close(t.Context())
			return s.Fetch(t.Context(), dir, publish.Transfer{})
		}
		check := func(want fstest.MapFS) {
			t.Helper()
			n := 0
			for path, f := range want {
				got, err := os.ReadFile(filepath.Join(dir, path))
				if err != nil || !bytes.Equal(got, f.Data) {
					t.Errorf("%s: got %.20q, %v, want %.20q", path, got, err, f.Data)
				}
			}
			if err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
				if !d.IsDir() {
					n++
				}
				return err
			}); err != nil || n != len(want)+1 {
				t.Errorf("got %d files, %v, want %d and the marker", n, err, len(want))
			}
			if left, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(left) != 1 {
				t.Errorf("got %v, %v beside the directory, want nothing", left, err)
			}
		}
		for i, want := range []bool{false, true} {
			if same, err := fetch(dir); err != nil || same != want {
				t.Fatalf("fetch %d: got %v, %v, want %v", i, same, err, want)
			}
			check(files("one"))
		}
		two := files("two")
		delete(two, "empty")
		b.mustPublish("a/b", token, two)
		if same, err := fetch(dir); err != nil || same {
			t.Fatalf("got %v, %v, want the new set", same, err)
		}
		check(two)
		if err := os.WriteFile(filepath.Join(dir, "dir0", "file-0.txt"), []byte("changed"), 0o600); err != nil {
			t.Fatal(err)
		}
		if same, err := fetch(dir); err != nil || same {
			t.Fatalf("after a change: got %v, %v, want it replaced", same, err)
		}
		check(two)
		own := t.TempDir()
		if err := os.WriteFile(filepath.Join(own, "mine"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := fetch(own); !errors.Is(err, publish.ErrOccupied) {
			t.Errorf("into somebody's directory: got %v, want ErrOccupied", err)
		}
	})
}

func TestUnknownIsLeft(t *testing.T) {
	t.Parallel()
	beds(t, func(t *testing.T, b *bed) {
		token := b.grant("report")
		p := b.mustPublish("report", token, files("one"))
		b.mustPublish("report/sub", b.grant("report/sub"), files("sub"))
		for _, key := range []string{"report/7-0123456789abcdef/x", "report/notes/readme", "other"} {
			if err := b.target().Bucket.WriteAll(t.Context(), key, []byte("x"), nil); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.db.ExecContext(t.Context(), "DELETE FROM tenure_publication_attempt WHERE attempt <> ?1 AND name = 'report'", p.Attempt); err != nil {
			t.Fatal(err)
		}
		b.mustPublish("report", token, files("two"))
		done := b.sweep("report", 0)
		if done.Objects != 6 || len(done.Unknown) != 1 || done.Unknown[0] != "7-0123456789abcdef" {
			t.Errorf("got %+v, want 6 objects removed and one directory unknown", done)
		}
		if n := b.objects("report", "7-0123456789abcdef"); n != 1 {
			t.Errorf("got %d objects of the unknown attempt, want it left alone", n)
		}
		b.expectCurrent("report/sub", files("sub"))
	})
}

func TestInvalid(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"", ".", "/a", "a//b", "../a", "a/../b", "a\x00", "a\nb", `a\b`, "x.attrs", "a/__0x2f__", publish.Marker, strings.Repeat("a", 801), "\xff"} {
		if err := publish.CheckPath(path); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("path %q: got %v, want ErrInvalid", path, err)
		}
	}
	for _, path := range []string{"a", "a/b.c", "größe", "a/" + publish.Marker, "-", "..a"} {
		if err := publish.CheckPath(path); err != nil {
			t.Errorf("path %q: got %v, want it allowed", path, err)
		}
	}
	if _, err := publish.Scan(t.Context(), fstest.MapFS{}, nil); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("no file: got %v, want ErrInvalid", err)
	}
	dir := t.TempDir()
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := publish.Scan(t.Context(), os.DirFS(dir), nil); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("a link: got %v, want ErrInvalid", err)
	}
	for _, url := range []string{"", "ftp://x", "s3://", "s3://k:s@bucket", "s3://bucket?secret_key=x", "file://host/x", "file:rel"} {
		if clean, err := target.Clean(url); url != "file:rel" && !errors.Is(err, store.ErrInvalid) {
			t.Errorf("target %q: got %q, %v, want ErrInvalid", url, clean, err)
		}
	}
	if _, err := publish.NewLedger(nil, publish.Config{Dialect: publish.SQLite}); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("no guard: got %v, want ErrInvalid", err)
	}
}
