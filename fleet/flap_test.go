package fleet_test

import (
	"testing"
	"time"

	"github.com/tenurehq/tenure/fleet"
)

func TestFlapRule(t *testing.T) {
	t.Parallel()
	rule := fleet.FlapRule{Times: 3, Window: 10 * time.Minute, Quiet: time.Hour}
	for _, tc := range []struct {
		what  string
		at    []int // minutes
		now   int
		until int // minutes; 0: not flapping
	}{
		{"none", nil, 0, 0},
		{"two", []int{0, 1}, 2, 0},
		{"three within the window", []int{0, 5, 10}, 10, 70},
		{"just outside", []int{0, 5, 11}, 11, 0},
		{"slow", []int{0, 30, 60, 90, 120}, 120, 0},
		{"in any order", []int{10, 0, 5}, 10, 70},
		{"until the end", []int{0, 5, 10}, 69, 70},
		{"calm", []int{0, 5, 10}, 70, 0},
		{"one more in the quiet begins it anew", []int{0, 5, 10, 65}, 66, 125},
		{"one more after it does not", []int{0, 5, 10, 75}, 76, 0},
		{"six in ten minutes", []int{0, 2, 4, 6, 8, 10}, 10, 70},
	} {
		var at []time.Time
		for _, m := range tc.at {
			at = append(at, t0.Add(time.Duration(m)*time.Minute))
		}
		until, flapping := rule.Judge(at, t0.Add(time.Duration(tc.now)*time.Minute))
		if want := t0.Add(time.Duration(tc.until) * time.Minute); flapping != (tc.until != 0) || flapping && !until.Equal(want) {
			t.Errorf("%s: got %v, %v, want until minute %d", tc.what, until, flapping, tc.until)
		}
	}
	if _, flapping := (fleet.FlapRule{}).Judge([]time.Time{t0, t0, t0}, t0); flapping {
		t.Error("the zero rule: got flapping")
	}
	for _, r := range []fleet.FlapRule{fleet.NodeFlapRule(), fleet.WorkFlapRule(), {}, rule} {
		refused(t, "rule", r.Check(), "")
	}
	for field, r := range map[string]fleet.FlapRule{
		"flap times":  {Times: 9, Window: 1, Quiet: 1},
		"flap window": {Times: 3, Quiet: 1},
		"flap quiet":  {Times: 3, Window: 1},
	} {
		refused(t, field, r.Check(), field)
	}
}
