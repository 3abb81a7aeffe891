package robfigcron

import (
	"fmt"
	"time"

	"github.com/robfig/cron/v3"
)

// lookBack bounds the search for the last scheduled time: February 29 comes
// after eight years at the latest, and cron itself looks five years ahead.
const lookBack = 10 * 366 * 24 * time.Hour

// around returns the last time of s that is not after now, and the first one
// after it, which is zero if there is none. The error matches ErrSchedule.
func around(s cron.Schedule, now time.Time) (last, next time.Time, err error) {
	back := time.Second
	for {
		last = s.Next(now.Add(-back))
		if !last.IsZero() && !last.After(now) {
			break
		}
		if back *= 2; back > lookBack {
			return last, next, fmt.Errorf("%w: none of them is before %s", ErrSchedule, now.Format(time.RFC3339))
		}
	}
	for next = s.Next(last); !next.IsZero() && !next.After(now); next = s.Next(last) {
		last = next
	}
	if !s.Next(last.Add(-1)).Equal(last) {
		return last, next, fmt.Errorf("%w: %s is none of them when it is looked at from just before", ErrSchedule, last.Format(time.RFC3339))
	}
	return last, next, nil
}
