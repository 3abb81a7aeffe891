package fleet

import (
	"fmt"
	"slices"
	"time"
)

// MaxFlaps is how many instants a [FlapRule] can need.
const MaxFlaps = 8

// FlapRule says when a loss that happens again and again is too much. The zero
// rule never says so.
type FlapRule struct {
	Times  int           // this many, from 2 to 8, …
	Window time.Duration // … from the first to the last of them are too much …
	Quiet  time.Duration // … until none has followed for so long
}

// NodeFlapRule is the default for the lapses of a node: 3 within 30 min, then
// calm for 30 min.
func NodeFlapRule() FlapRule {
	return FlapRule{Times: 3, Window: 30 * time.Minute, Quiet: 30 * time.Minute}
}

// WorkFlapRule is the default for the takeovers of an item: 3 within 30 min, then
// no other for 1 h unless an operator asks for it.
func WorkFlapRule() FlapRule {
	return FlapRule{Times: 3, Window: 30 * time.Minute, Quiet: time.Hour}
}

// Check returns an error matching store.ErrInvalid that names the first field
// that breaks its rule. The zero rule is valid.
func (r FlapRule) Check() error {
	switch {
	case r == FlapRule{}:
		return nil
	case r.Times < 2 || r.Times > MaxFlaps:
		return invalid("flap times", fmt.Sprint(r.Times), fmt.Sprintf("from 2 to %d", MaxFlaps))
	case r.Window <= 0:
		return invalid("flap window", r.Window.String(), "above 0")
	case r.Quiet <= 0:
		return invalid("flap quiet", r.Quiet.String(), "above 0")
	}
	return nil
}

// Judge reports whether losses at these instants, in any order, are too much at
// now, and until when if none follows. Only the last ones are needed; see MaxFlaps.
func (r FlapRule) Judge(at []time.Time, now time.Time) (until time.Time, flapping bool) {
	if r.Times < 1 {
		return time.Time{}, false
	}
	at = slices.SortedFunc(slices.Values(at), time.Time.Compare)
	for i, t := range at {
		first := i - r.Times + 1
		if first >= 0 && t.Sub(at[first]) <= r.Window || t.Before(until) {
			until = t.Add(r.Quiet)
		}
	}
	if !now.Before(until) {
		return time.Time{}, false
	}
	return until, true
}
