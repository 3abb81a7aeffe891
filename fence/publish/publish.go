package publish

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

const (
	// signInterval is how often an attempt gives a sign of life while it uploads.
	signInterval = 30 * time.Second
	// hashKey is the metadata of an object that holds its SHA-256, where a bucket
	// keeps metadata.
	hashKey = "sha256"
	// DefaultParallel is how many files are sent or read at once.
	DefaultParallel = 4
)

// Progress says how far an upload or a fetch is.
type Progress struct {
	Files, AllFiles int
	Bytes, AllBytes int64
	Present         int // of Files, those that were there already
}

// Transfer adjusts an upload or a fetch. The zero Transfer is ready for use.
type Transfer struct {
	Parallel int            // files at once; default DefaultParallel
	Progress func(Progress) // told of each step, by one goroutine at a time
}

// Attempt is an attempt to publish that has signed itself on. It is safe for
// concurrent use.
type Attempt struct {
	Entry
	Manifest Manifest
	ledger   *Ledger
	target   *Target

	mu     sync.Mutex
	signed time.Time // when the last sign of life was given, by this process
}

// Begin signs an attempt on to publish the files of m under name, as the owner of
// the term that token numbers. An interrupted attempt of the same manifest to the
// same target is gone on with. It returns *fence.StaleError if a later term has
// begun, and an error matching store.ErrInvalid for a bad name or manifest.
func Begin(ctx context.Context, l *Ledger, target *Target, name string, token fence.Token, m Manifest) (*Attempt, error) {
	if err := errors.Join(store.CheckName(name), m.Check()); err != nil {
		return nil, err
	}
	if target.Check != nil {
		if err := target.Check(name, m); err != nil {
			return nil, err
		}
	}
	if token < 1 {
		return nil, &store.InvalidError{Field: "token", Value: token.String(), Rule: "that of the term, 1 or more"}
	}
	signed := time.Now()
	e, err := l.begin(ctx, name, token, target.URL, m)
	if err != nil {
		return nil, err
	}
	return &Attempt{Entry: e, Manifest: m, ledger: l, target: target, signed: signed}, nil
}

// Upload sends the files that are not there yet, from fsys. After an error the
// rest can be sent by calling it again, or by Begin with the same manifest. It
// returns an error matching ErrChanged if a file is not what the manifest says,
// ErrDamaged if an object of the attempt is not, *fence.StaleError or ErrDropped
// if it was noticed that the attempt can not be accepted any more.
func (a *Attempt) Upload(ctx context.Context, fsys fs.FS, how Transfer) error {
	return a.because(ctx, a.upload(ctx, fsys, how))
}

func (a *Attempt) upload(ctx context.Context, fsys fs.FS, how Transfer) error {
	present, err := a.list(ctx)
	if err != nil {
		return err
	}
	meter := newMeter(a.Manifest, how.Progress)
	return each(ctx, how.Parallel, a.Manifest.Files, func(ctx context.Context, f File) error {
		if err := a.alive(ctx); err != nil {
			return err
		}
		size, there := present[f.Path]
		if !there {
			err := a.send(ctx, fsys, f, meter)
			if gcerrors.Code(err) != gcerrors.FailedPrecondition {
				return err
			}
			meter.add(-meter.taken(f.Path), f.Path) // somebody else went on with the attempt, or a reply was lost
			size = f.Size
		}
		if err := a.compare(ctx, f, size); err != nil {
			return err
		}
		meter.add(f.Size, f.Path)
		meter.done(f.Path, true)
		return nil
	})
}

// list returns the sizes of the attempt's objects by path.
func (a *Attempt) list(ctx context.Context) (map[string]int64, error) {
	below := prefix(a.Name, a.Attempt)
	all, err := listAll(ctx, a.target.Bucket, &blob.ListOptions{Prefix: below})
	sizes := map[string]int64{}
	for _, o := range all {
		sizes[strings.TrimPrefix(o.Key, below)] = o.Size
	}
	return sizes, err
}

// send writes one object, or none.
func (a *Attempt) send(ctx context.Context, fsys fs.FS, f File, meter *meter) (err error) {
	src, err := fsys.Open(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("publish: upload: %w: %w", ErrChanged, err)
	} else if err != nil {
		return localFailure("upload", err)
	}
	defer func() { _ = src.Close() }() // it was only read
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dst, err := a.target.Bucket.NewWriter(ctx, key(a.Name, a.Attempt, f.Path), &blob.WriterOptions{
		IfNotExist: true, ContentType: "application/octet-stream", Metadata: map[string]string{hashKey: f.SHA256},
	})
	if err != nil {
		return bucketFailure("upload", f.Path, err)
	}
	h := sha256.New()
	n, err := io.Copy(dst, io.TeeReader(io.LimitReader(&watched{r: local{src}, read: func(n int64) error {
		meter.add(n, f.Path)
		return a.alive(ctx)
	}}, f.Size+1), h))
	if err == nil && (n != f.Size || hex.EncodeToString(h.Sum(nil)) != f.SHA256) {
		err = fmt.Errorf("%q: %w: publish again when it does not change", f.Path, ErrChanged)
	}
	if err != nil {
		cancel() // so that Close writes nothing
		_ = dst.Close()
		return bucketFailure("upload", f.Path, err)
	}
	if err := dst.Close(); err != nil {
		return bucketFailure("upload", f.Path, err)
	}
	meter.done(f.Path, false)
	return nil
}

// local tells errors of a file that is published from those of the bucket.
type local struct{ io.Reader }

func (l local) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = localFailure("upload", err)
	}
	return n, err
}

// compare sees whether the object of f, of this size, is what it should be: by
// the hash that was kept with it, else by reading it.
func (a *Attempt) compare(ctx context.Context, f File, size int64) error {
	k := key(a.Name, a.Attempt, f.Path)
	attrs, err := a.target.Bucket.Attributes(ctx, k)
	if err != nil {
		return bucketFailure("compare", f.Path, err)
	}
	sum := attrs.Metadata[hashKey]
	if sum == "" && attrs.Size == f.Size {
		r, err := a.target.Bucket.NewReader(ctx, k, nil)
		if err != nil {
			return bucketFailure("compare", f.Path, err)
		}
		h := sha256.New()
		_, err = io.Copy(h, &watched{r: r, read: func(int64) error { return a.alive(ctx) }})
		if err = errors.Join(err, r.Close()); err != nil {
			return bucketFailure("compare", f.Path, err)
		}
		sum = hex.EncodeToString(h.Sum(nil))
	}
	if size != f.Size || attrs.Size != f.Size || sum != f.SHA256 {
		return fmt.Errorf("publish: object %s: %w", k, ErrDamaged)
	}
	return nil
}

// alive gives a sign of life if one is due, and learns whether the attempt can
// still be accepted.
func (a *Attempt) alive(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	a.mu.Lock()
	now := time.Now()
	due := now.Sub(a.signed) >= signInterval
	if due {
		a.signed = now
	}
	a.mu.Unlock()
	if !due {
		return nil
	}
	err := a.ledger.touch(ctx, a.Name, a.Attempt, a.Token)
	if errors.Is(err, fence.ErrStale) || errors.Is(err, ErrDropped) {
		return err
	}
	return nil // what the database does not say now, Accept will hear
}

// Accept publishes the attempt: it sees that each object is there with its size
// and on disk, and makes the attempt the current one in a transaction of the
// term's guard. To accept again, as after an unknown outcome, is safe. It returns
// *fence.StaleError if a later term has begun, and an error matching ErrDamaged
// if an object is missing, or ErrDropped.
func (a *Attempt) Accept(ctx context.Context) (Publication, error) {
	present, err := a.list(ctx)
	if err != nil {
		return Publication{}, a.because(ctx, err)
	}
	for _, f := range a.Manifest.Files {
		if size, there := present[f.Path]; !there || size != f.Size {
			damaged := fmt.Errorf("publish: accept: object %s: %w", key(a.Name, a.Attempt, f.Path), ErrDamaged)
			return Publication{}, a.because(ctx, damaged)
		}
	}
	if a.target.Sync != nil {
		if err := a.target.Sync(ctx, prefix(a.Name, a.Attempt)); err != nil {
			return Publication{}, a.because(ctx, fmt.Errorf("publish: accept: put on disk: %w", err))
		}
	}
	e, err := a.ledger.accept(ctx, a.Name, a.Attempt, a.Token)
	if err != nil {
		return Publication{}, err
	}
	return Publication{Entry: e, Manifest: a.Manifest}, nil
}

// because returns why err came about if it is that the attempt can not be accepted
// any more, as a sweep may have removed what it had sent; err itself otherwise.
func (a *Attempt) because(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, fence.ErrStale) || errors.Is(err, ErrDropped) {
		return err
	}
	if why := a.ledger.touch(ctx, a.Name, a.Attempt, a.Token); errors.Is(why, fence.ErrStale) || errors.Is(why, ErrDropped) {
		return why
	}
	return err
}

// GiveUp ends a running attempt, so that nobody goes on with it and the next sweep
// removes its objects.
func (a *Attempt) GiveUp(ctx context.Context) error {
	return a.ledger.drop(ctx, a.Name, a.Attempt)
}

// Publish uploads the files of m from fsys and publishes them under name: Begin,
// Upload and Accept. It sends an acceptance again that met a busy or silent
// database, for at most half a minute, and begins anew once if objects of an
// interrupted attempt are damaged. began, if not nil, is told of the attempt.
func Publish(ctx context.Context, l *Ledger, target *Target, name string, token fence.Token, m Manifest, fsys fs.FS, how Transfer, began func(Entry)) (Publication, error) {
	for anew := true; ; anew = false {
		a, err := Begin(ctx, l, target, name, token, m)
		if err != nil {
			return Publication{}, err
		}
		if began != nil {
			began(a.Entry)
		}
		err = a.Upload(ctx, fsys, how)
		if anew && errors.Is(err, ErrDamaged) {
			if err := a.GiveUp(ctx); err != nil {
				return Publication{}, err
			}
			continue
		}
		if err != nil {
			return Publication{}, err
		}
		return a.acceptSoon(ctx)
	}
}

func (a *Attempt) acceptSoon(ctx context.Context) (Publication, error) {
	until := time.Now().Add(30 * time.Second)
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 3*time.Second) {
		p, err := a.Accept(ctx)
		again := errors.Is(err, store.ErrBusy) || errors.Is(err, store.ErrUnavailable)
		if !again || time.Now().Add(pause).After(until) {
			return p, err
		}
		select {
		case <-ctx.Done():
			return p, err
		case <-time.After(pause):
		}
	}
}

// bucketFailure names the step and the object of an error.
func bucketFailure(doing, object string, err error) error {
	var here *LocalError
	if errors.As(err, &here) {
		return here
	}
	if errors.Is(err, fence.ErrStale) || errors.Is(err, ErrDropped) || errors.Is(err, ErrChanged) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("publish: %s: %w", doing, err)
	}
	return &BucketError{Doing: doing, Object: object, Err: err}
}

// BucketError is an error of the bucket. gcerrors.Code tells its kind.
type BucketError struct {
	Doing  string // "upload", "read", "list", "delete", …
	Object string // the path of a file, or a prefix
	Err    error
}

func (e *BucketError) Error() string {
	return fmt.Sprintf("publish: %s %q: %v", e.Doing, e.Object, e.Err)
}

func (e *BucketError) Unwrap() error { return e.Err }

// Denied reports whether the bucket does not know the credentials, or does not
// allow them this, or there are none.
func (e *BucketError) Denied() bool {
	if gcerrors.Code(e.Err) == gcerrors.PermissionDenied || errors.Is(e.Err, fs.ErrPermission) {
		return true
	}
	var s3 interface{ ErrorCode() string } // https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
	if errors.As(e.Err, &s3) {
		switch s3.ErrorCode() {
		case "AccessDenied", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "InvalidSecurity", "AccountProblem", "AllAccessDisabled":
			return true
		}
	}
	return strings.Contains(e.Err.Error(), "get credentials: ") // the client found none to sign with
}

// each runs work for each item, some at once, until one fails. It returns that
// error, or why ctx ended.
func each[T any](ctx context.Context, parallel int, items []T, work func(context.Context, T) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	todo := make(chan T)
	var workers sync.WaitGroup
	for range min(cmp.Or(max(parallel, 0), DefaultParallel), max(len(items), 1)) {
		workers.Go(func() {
			for item := range todo {
				if err := work(ctx, item); err != nil {
					cancel(err)
				}
			}
		})
	}
send:
	for _, item := range items {
		select {
		case todo <- item:
		case <-ctx.Done():
			break send
		}
	}
	close(todo)
	workers.Wait()
	return context.Cause(ctx)
}

// meter adds up the progress of a transfer.
type meter struct {
	mu    sync.Mutex
	now   Progress
	parts map[string]int64 // bytes of the files under way
	tell  func(Progress)
}

func newMeter(m Manifest, tell func(Progress)) *meter {
	if tell == nil {
		tell = func(Progress) {}
	}
	return &meter{tell: tell, parts: map[string]int64{}, now: Progress{AllFiles: len(m.Files), AllBytes: m.Bytes()}}
}

// add counts bytes of the file at path.
func (m *meter) add(n int64, path string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.parts[path] += n
	m.now.Bytes += n
	m.tell(m.now)
}

// taken returns the bytes counted of a file under way.
func (m *meter) taken(path string) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.parts[path]
}

// done counts a file.
func (m *meter) done(path string, present bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.parts, path)
	m.now.Files++
	if present {
		m.now.Present++
	}
	m.tell(m.now)
}
