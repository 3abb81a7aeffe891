package term

import (
	"time"

	"github.com/tenurehq/tenure/internal/clock"
)

// Progress compares how far the store's clock went with how far ours did. The
// two clocks' values are never compared, only their progress between replies.
// The zero Progress has seen nothing.
type Progress struct {
	sent, got clock.Reading
	store     time.Time
}

// Step takes the store's clock from a reply to a request that left at sent and
// was answered by got, and returns by how much the store's clock went too far
// (positive) or not far enough (negative) since the last reply; 0 if its
// progress fits into what can have passed.
func (p *Progress) Step(sent, got clock.Reading, store time.Time) time.Duration {
	last := *p
	if store.IsZero() {
		return 0
	}
	*p = Progress{sent: sent, got: got, store: store}
	if last.store.IsZero() {
		return 0
	}
	// The store read its clock somewhere between departure and arrival.
	least, most := sent.Elapsed(last.got), got.Elapsed(last.sent)
	switch went := store.Sub(last.store); {
	case went > most:
		return went - most
	case went < least:
		return went - least
	}
	return 0
}

// Bound returns the most that the store's clock should show at now, and false
// if no reply was seen yet.
func (p *Progress) Bound(now clock.Reading) (time.Time, bool) {
	if p.store.IsZero() {
		return time.Time{}, false
	}
	return p.store.Add(now.Elapsed(p.sent)), true
}
