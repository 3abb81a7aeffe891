package publish

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"sync"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
)

// NoteTTL is how long a reader's note lasts after it was last extended: the
// longest that a reader may sleep and still find its set. It is extended each
// third of it, while the reader reads.
const NoteTTL = 10 * time.Minute

// OpenOptions adjust Open. The zero OpenOptions opens the current set.
type OpenOptions struct {
	// Attempt opens that set, which must be retained still, and not the current one.
	Attempt string
	// NoNote leaves no note in the database, for readers that may not write
	// there: the set is then kept by the retention alone.
	NoNote bool
	// NoteTTL is that of this reader. Default NoteTTL.
	NoteTTL time.Duration
}

// Set is a published set that a reader has open. While it is open, and its reader
// does not sleep past NoteTTL, no sweep removes it. It is safe for concurrent use.
type Set struct {
	Publication
	ledger *Ledger
	target *Target
	reader string // "" if it leaves no note
	ttl    time.Duration

	mu  sync.Mutex
	due time.Time // when to extend the note
}

// Open opens what is published under name. Its target is opened by open, by the
// URL that the ledger names. It returns an error matching ErrNone if nothing is
// published, and ErrDropped if opts.Attempt was dropped. The caller closes the Set.
func Open(ctx context.Context, l *Ledger, open OpenTargetFunc, name string, opts OpenOptions) (*Set, error) {
	s := &Set{ledger: l, ttl: cmp.Or(opts.NoteTTL, NoteTTL)}
	if !opts.NoNote {
		s.reader = nonce()
	}
	for tries := 0; ; tries++ {
		var err error
		begun := time.Now()
		if opts.NoNote {
			s.Publication, err = l.find(ctx, name, opts.Attempt)
		} else {
			s.Publication, err = l.note(ctx, name, opts.Attempt, s.reader, s.ttl)
		}
		if err == nil {
			s.due = begun.Add(s.ttl / 3)
			break
		}
		// What was current a moment ago was replaced and dropped: look again.
		if opts.Attempt != "" || tries > 100 || !errors.Is(err, ErrDropped) {
			return nil, err
		}
	}
	var err error
	if s.target, err = open(ctx, s.Target); err != nil {
		return nil, errors.Join(err, s.forget(ctx))
	}
	return s, nil
}

// Close takes the note back and closes the target.
func (s *Set) Close(ctx context.Context) error {
	err := s.target.Close()
	if err != nil {
		err = bucketFailure("close", s.Name, err)
	}
	return errors.Join(err, s.forget(ctx))
}

func (s *Set) forget(ctx context.Context) error {
	if s.reader == "" {
		return nil
	}
	return s.ledger.forget(ctx, s.Name, s.Attempt, s.reader)
}

// Extend makes the reader's note last for another NoteTTL from now on, if a third
// of that has passed. Reads do so by themselves. It returns an error matching
// ErrDropped if the note had expired and the set was dropped.
func (s *Set) Extend(ctx context.Context) error {
	if s.reader == "" {
		return nil
	}
	s.mu.Lock()
	now := time.Now()
	due := now.After(s.due)
	if due {
		s.due = now.Add(s.ttl / 30) // the next try, if this fails
	}
	s.mu.Unlock()
	if !due {
		return nil
	}
	if _, err := s.ledger.note(ctx, s.Name, s.Attempt, s.reader, s.ttl); errors.Is(err, ErrDropped) || errors.Is(err, ErrNone) {
		return err
	} else if err == nil {
		s.mu.Lock()
		s.due = now.Add(s.ttl / 3)
		s.mu.Unlock()
	}
	return nil // a database that is silent now is asked again
}

// Open opens a file of the set. Its reader returns an error matching ErrDamaged
// instead of io.EOF, and sooner if it can tell, if the bytes are not those that
// were published, or ErrDropped if the set is gone. An error matching
// fs.ErrNotExist says that the set has no such file.
func (s *Set) Open(ctx context.Context, path string) (io.ReadCloser, error) {
	f, ok := s.Manifest.find(path)
	if !ok {
		return nil, fmt.Errorf("publish: open: %q of %q, attempt %s: %w", path, s.Name, s.Attempt, fs.ErrNotExist)
	}
	if err := s.Extend(ctx); err != nil {
		return nil, err
	}
	r, err := s.target.Bucket.NewReader(ctx, key(s.Name, s.Attempt, path), nil)
	if err != nil {
		return nil, s.failure(ctx, f, err)
	}
	return &verified{set: s, ctx: ctx, file: f, r: r, sum: sha256.New()}, nil
}

// failure tells what an error of the bucket means for a reader.
func (s *Set) failure(ctx context.Context, f File, err error) error {
	if gcerrors.Code(err) != gcerrors.NotFound {
		return bucketFailure("read", f.Path, err)
	}
	if _, dropped := s.ledger.find(ctx, s.Name, s.Attempt); errors.Is(dropped, ErrDropped) || errors.Is(dropped, ErrNone) {
		return dropped
	}
	return fmt.Errorf("publish: object %s: %w: it is missing", key(s.Name, s.Attempt, f.Path), ErrDamaged)
}

// verified reads an object and compares it with the manifest.
type verified struct {
	set  *Set
	ctx  context.Context
	file File
	r    *blob.Reader
	sum  hash.Hash
	n    int64
}

func (v *verified) Read(p []byte) (int, error) {
	if err := v.set.Extend(v.ctx); err != nil {
		return 0, err
	}
	n, err := v.r.Read(p)
	v.sum.Write(p[:n])
	v.n += int64(n)
	switch {
	case v.n > v.file.Size:
		err = v.damage("it is longer than %d bytes", v.file.Size)
	case errors.Is(err, io.EOF) && v.n < v.file.Size:
		err = v.damage("it has %d bytes and not %d", v.n, v.file.Size)
	case errors.Is(err, io.EOF) && hex.EncodeToString(v.sum.Sum(nil)) != v.file.SHA256:
		err = v.damage("its SHA-256 is another")
	case err != nil && !errors.Is(err, io.EOF):
		err = v.set.failure(v.ctx, v.file, err)
	}
	return n, err
}

func (v *verified) damage(format string, args ...any) error {
	return fmt.Errorf("publish: object %s: %w: %s", key(v.set.Name, v.set.Attempt, v.file.Path), ErrDamaged, fmt.Sprintf(format, args...))
}

// Close ends the reading.
func (v *verified) Close() error { return v.r.Close() }
