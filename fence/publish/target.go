package publish

import (
	"context"

	"gocloud.dev/blob"
)

// Target is where the objects of publications lie. Package target opens one by a
// URL. It is safe for concurrent use.
type Target struct {
	Bucket *blob.Bucket
	// URL names the bucket in the ledger, so that readers and sweeps find it. It
	// holds no credentials.
	URL string
	// Sync puts the objects below a prefix on disk, with their names, before they
	// are published. Nil if the bucket does so before it acknowledges a write.
	Sync func(ctx context.Context, prefix string) error
	// Prune removes what is left of an empty prefix. Nil if nothing is.
	Prune func(prefix string) error
}

// OpenTargetFunc opens the target that a ledger names. Whoever calls it closes the
// bucket.
type OpenTargetFunc func(ctx context.Context, url string) (*Target, error)
