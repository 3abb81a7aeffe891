package fleet

import "time"

// Rate lets Burst through at once, and one more after each Every.
type Rate struct {
	Burst int
	Every time.Duration
}

// Bucket is what a Rate has let through. The zero Bucket is full.
type Bucket struct {
	Empty time.Time
}

// Take returns the bucket after one more, or how long to wait for it.
func (r Rate) Take(b Bucket, now time.Time) (Bucket, time.Duration) { return b, 0 }
