package publish

import (
	"context"
	"errors"
	"io"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
)

// Target is where the objects of publications lie. Package target opens one by a
// URL. It is safe for concurrent use.
type Target struct {
	Bucket *blob.Bucket
	// URL names the bucket in the ledger, so that readers and sweeps find it. It
	// holds no credentials.
	URL string
	// Check returns an error matching store.ErrInvalid if the bucket cannot keep
	// publications under a name with these files. Nil if it can keep all.
	Check func(name string, m Manifest) error
	// Sync puts the objects below a prefix on disk, with their names, before they
	// are published. Nil if the bucket does so before it acknowledges a write.
	Sync func(ctx context.Context, prefix string) error
	// Prune removes what is left of an empty prefix. Nil if nothing is.
	Prune func(prefix string) error
	// Abort ends the unfinished uploads below a prefix whose keys are unwanted, and
	// tells how many it ended: what a killed process had sent of a large object is
	// no object, and the bucket keeps it. Nil if the bucket keeps no such thing.
	Abort func(ctx context.Context, prefix string, unwanted func(key string) bool) (int, error)
	// End closes what Bucket.Close leaves open. Nil if that is nothing.
	End func() error
}

// Close closes the bucket, and its connections.
func (t *Target) Close() error {
	err := t.Bucket.Close()
	if t.End != nil {
		err = errors.Join(err, t.End())
	}
	return err
}

// OpenTargetFunc opens the target that a ledger names. Whoever calls it closes
// the target.
type OpenTargetFunc func(ctx context.Context, url string) (*Target, error)

// listAll lists a bucket. A directory cannot be listed while files in it come and
// go, as another process uploads or sweeps: then it is listed again.
func listAll(ctx context.Context, bucket *blob.Bucket, opts *blob.ListOptions) ([]*blob.ListObject, error) {
	for tries := 1; ; tries++ {
		var all []*blob.ListObject
		var err error
		for it := bucket.List(opts); err == nil; {
			var o *blob.ListObject
			if o, err = it.Next(ctx); err == nil {
				all = append(all, o)
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case gcerrors.Code(err) != gcerrors.NotFound || tries == 100:
			return nil, bucketFailure("list", opts.Prefix, err)
		}
	}
}
