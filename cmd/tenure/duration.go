package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

const durationHelp = `A duration is written as numbers with units: ms, s, m or h, such as 500ms, 30s or
1h30m. A number without a unit is refused, and so is a fraction of a millisecond.`

var durationSyntax = regexp.MustCompile(`^([0-9]{1,12}(\.[0-9]{1,3})?(ms|s|m|h))+$`)

// parseDuration reads a duration by the one rule of durationHelp. The value is
// exact: what would have to be rounded is refused.
func parseDuration(s string) (time.Duration, error) {
	if !durationSyntax.MatchString(s) {
		return 0, errors.New("a duration is numbers with units (ms, s, m, h), such as 500ms, 30s or 1h30m")
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return 0, errors.New("too long for a duration")
	case d%time.Millisecond != 0:
		return 0, errors.New("a duration is a whole number of milliseconds")
	}
	return d, nil
}

// durationFlag is a flag that holds a duration within a range.
type durationFlag struct {
	value       *time.Duration
	least, most time.Duration
}

// addDuration gives flags a duration with a default and a range, both shown in
// its usage.
func addDuration(flags *pflag.FlagSet, value *time.Duration, name string, def, least, most time.Duration, usage string) {
	*value = def
	flags.Var(&durationFlag{value, least, most}, name, fmt.Sprintf("%s, from %s to %s", usage, shortDuration(least), shortDuration(most)))
}

func (f *durationFlag) Set(s string) error {
	d, err := parseDuration(s)
	if err != nil {
		return fmt.Errorf("%w, from %s to %s", err, shortDuration(f.least), shortDuration(f.most))
	}
	if d < f.least || d > f.most {
		return fmt.Errorf("must be from %s to %s", shortDuration(f.least), shortDuration(f.most))
	}
	*f.value = d
	return nil
}

func (f *durationFlag) String() string {
	if f.value == nil || *f.value == 0 {
		return ""
	}
	return shortDuration(*f.value)
}

func (f *durationFlag) Type() string { return "duration" }

// countFlag is a flag that holds a whole number within a range.
type countFlag struct {
	value       *int
	least, most int
}

// addCount gives flags a whole number whose zero value means its default, with a
// range that is shown in its usage.
func addCount(flags *pflag.FlagSet, value *int, name string, least, most int, usage string) {
	flags.Var(&countFlag{value, least, most}, name, fmt.Sprintf("%s, from %d to %d", usage, least, most))
}

func (f *countFlag) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < f.least || n > f.most {
		return fmt.Errorf("must be a whole number from %d to %d", f.least, f.most)
	}
	*f.value = n
	return nil
}

func (f *countFlag) String() string {
	if f.value == nil || *f.value == 0 {
		return ""
	}
	return strconv.Itoa(*f.value)
}

func (f *countFlag) Type() string { return "int" }

// shareFlag is a flag that holds a share: above 0 and at most 1.
type shareFlag struct{ value *float64 }

func (f *shareFlag) Set(s string) error {
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || !(x > 0 && x <= 1) {
		return errors.New("must be a number above 0 and at most 1")
	}
	*f.value = x
	return nil
}

func (f *shareFlag) String() string {
	if f.value == nil || *f.value == 0 {
		return ""
	}
	return strconv.FormatFloat(*f.value, 'g', -1, 64)
}

func (f *shareFlag) Type() string { return "float" }

// shortDuration is Duration.String without trailing zero units: "24h", not "24h0m0s".
func shortDuration(d time.Duration) string {
	s := d.String()
	if d == 0 {
		return s
	}
	for _, zero := range []string{"m0s", "h0m"} {
		if len(s) > len(zero) && s[len(s)-len(zero):] == zero {
			s = s[:len(s)-len(zero)+1]
		}
	}
	return s
}
