package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// quantile returns the smallest value that at least the fraction q of values do
// not exceed; 0 of none.
func quantile[T int64 | float64 | time.Duration](values []T, q float64) T {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(int(math.Ceil(q*float64(len(sorted))))-1, 0)]
}

// median returns the value in the middle.
func median[T int64 | float64 | time.Duration](values []T) T { return quantile(values, 0.5) }

// count writes a number with three digits at least.
func count(f float64) string {
	switch {
	case f >= 100:
		return thousands(int(math.Round(f)))
	case f >= 10:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.2f", f)
}

// thousands writes a number that is not negative with groups of three digits.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// short writes a duration with three digits.
func short(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d >= 100*time.Millisecond:
		return fmt.Sprintf("%.0f ms", float64(d)/1e6)
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/1e6)
	case d >= time.Millisecond:
		return fmt.Sprintf("%.2f ms", float64(d)/1e6)
	case d >= 100*time.Microsecond:
		return fmt.Sprintf("%.0f µs", float64(d)/1e3)
	}
	return fmt.Sprintf("%.2f µs", float64(d)/1e3)
}

// spread is the table row of a list of durations.
func spread(name string, list []time.Duration) []string {
	return []string{name, fmt.Sprint(len(list)), short(quantile(list, 0)), short(median(list)), short(quantile(list, 0.9)), short(quantile(list, 0.99)), short(quantile(list, 1))}
}

var spreadHeader = []string{"", "n", "least", "p50", "p90", "p99", "most"}

// pair is "p50 / p99".
func pair(list []time.Duration) string {
	return short(median(list)) + " / " + short(quantile(list, 0.99))
}
