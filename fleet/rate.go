package fleet

import "time"

// Rate lets Burst through at once, and then one in each Every. Every 0 lets all
// through.
type Rate struct {
	Burst int // at least 1; less counts as 1
	Every time.Duration
}

// Bucket remembers what a Rate has let through. The zero Bucket is full.
type Bucket struct {
	// paid is until when what was let through is paid for, one Every each.
	paid time.Time
}

// Take lets one through and returns the bucket after it, or returns the same
// bucket and how long to wait. A clock that was set back costs one full bucket
// at most.
func (r Rate) Take(b Bucket, now time.Time) (Bucket, time.Duration) {
	if r.Every <= 0 {
		return b, 0
	}
	all := time.Duration(max(r.Burst, 1)) * r.Every
	debt := min(max(b.paid.Sub(now), 0), all)
	if wait := debt + r.Every - all; wait > 0 {
		return b, wait
	}
	return Bucket{paid: now.Add(debt + r.Every)}, 0
}
