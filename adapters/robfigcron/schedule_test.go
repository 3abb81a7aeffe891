package robfigcron

import (
	"errors"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
)

func TestAround(t *testing.T) {
	t.Parallel()
	parser := cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)
	for _, tc := range []struct{ spec, now, last, next string }{
		{"0 3 * * *", "2026-12-01T03:00:00Z", "2026-12-01T03:00:00Z", "2026-12-02T03:00:00Z"},
		{"0 3 * * *", "2026-12-01T03:00:00.000000001Z", "2026-12-01T03:00:00Z", "2026-12-02T03:00:00Z"},
		{"0 3 * * *", "2026-12-01T02:59:59.999Z", "2026-11-30T03:00:00Z", "2026-12-01T03:00:00Z"},
		{"* * * * * *", "2026-12-01T03:00:00.5Z", "2026-12-01T03:00:00Z", "2026-12-01T03:00:01Z"},
		{"*/5 * * * *", "2026-12-01T03:07:10Z", "2026-12-01T03:05:00Z", "2026-12-01T03:10:00Z"},
		{"0 9-17 * * 1-5", "2026-12-06T12:00:00Z", "2026-12-04T17:00:00Z", "2026-12-07T09:00:00Z"}, // a weekend
		{"0 0 29 2 *", "2026-12-01T00:00:00Z", "2024-02-29T00:00:00Z", "2028-02-29T00:00:00Z"},
	} {
		s, err := parser.Parse(tc.spec)
		if err != nil {
			t.Fatal(err)
		}
		now, err := time.Parse(time.RFC3339Nano, tc.now)
		if err != nil {
			t.Fatal(err)
		}
		last, next, err := around(s, now)
		if err != nil {
			t.Errorf("%q at %s: %v", tc.spec, tc.now, err)
			continue
		}
		if got, want := last.Format(time.RFC3339Nano), tc.last; got != want {
			t.Errorf("%q at %s: got last %s, want %s", tc.spec, tc.now, got, want)
		}
		if got, want := next.Format(time.RFC3339Nano), tc.next; got != want {
			t.Errorf("%q at %s: got next %s, want %s", tc.spec, tc.now, got, want)
		}
	}
}

type scheduleFunc func(time.Time) time.Time

func (f scheduleFunc) Next(t time.Time) time.Time { return f(t) }

// A schedule that never comes, and one that counts from when it is asked.
func TestAroundRefuses(t *testing.T) {
	t.Parallel()
	for what, s := range map[string]cron.Schedule{
		"never":  scheduleFunc(func(time.Time) time.Time { return time.Time{} }),
		"counts": scheduleFunc(func(t time.Time) time.Time { return t.Add(10 * time.Minute) }),
	} {
		if _, _, err := around(s, time.Now()); !errors.Is(err, ErrSchedule) {
			t.Errorf("%s: got %v, want ErrSchedule", what, err)
		}
	}
}
