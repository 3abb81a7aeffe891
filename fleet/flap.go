package fleet

import "time"

// FlapRule says when something that happens again and again is too much.
type FlapRule struct {
	Times  int           // so often …
	Window time.Duration // … within this is too much …
	Quiet  time.Duration // … until it has not happened for this long
}

// Judge reports whether it is too much now, and until when.
func (r FlapRule) Judge(at []time.Time, now time.Time) (until time.Time, flapping bool) {
	return time.Time{}, false
}
