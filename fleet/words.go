package fleet

import (
	"fmt"
	"strconv"
	"time"
)

// span writes a duration for people: "34s", "5m10s", "3h5m", "2d4h".
func span(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d.Round(time.Second) < time.Hour:
		return pair(d.Round(time.Second), time.Minute, "m", time.Second, "s")
	case d.Round(time.Minute) < 48*time.Hour:
		return pair(d.Round(time.Minute), time.Hour, "h", time.Minute, "m")
	default:
		return pair(d.Round(time.Hour), 24*time.Hour, "d", time.Hour, "h")
	}
}

// pair writes d in two units and leaves out one that is zero.
func pair(d, big time.Duration, bigName string, small time.Duration, smallName string) string {
	b, s := d/big, d%big/small
	switch {
	case b == 0:
		return fmt.Sprintf("%d%s", s, smallName)
	case s == 0:
		return fmt.Sprintf("%d%s", b, bigName)
	default:
		return fmt.Sprintf("%d%s%d%s", b, bigName, s, smallName)
	}
}

// ago writes how long ago t was; "" if nobody knows.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return span(now.Sub(t)) + " ago"
}

// instant writes t for people.
func instant(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// items counts work in words.
func items(n int) string { return plural(n, "item") }

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + one + "s"
}
