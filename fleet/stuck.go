package fleet

import "time"

// StuckSince returns when a running item counts as stuck: StuckAfterMS after its
// marker last changed, or after its start. It is false if the item is not stuck at
// now. The caller takes from now the time in which nobody could have told it of
// progress (P9).
func (w Work) StuckSince(now time.Time) (time.Time, bool) {
	if w.State != Running || w.StuckAfterMS <= 0 {
		return time.Time{}, false
	}
	last := w.Started
	if w.ProgressAt.After(last) {
		last = w.ProgressAt
	}
	since := last.Add(time.Duration(w.StuckAfterMS) * time.Millisecond)
	return since, !last.IsZero() && !now.Before(since)
}
