package loadgen

import (
	"testing"
	"time"
)

// A suspicion from before the death is not its detection, whichever of the two
// this process hears of first.
func TestDetectedAfterDeath(t *testing.T) {
	t.Parallel()
	death := time.Now()
	for name, told := range map[string][]time.Duration{
		"in time":            {3 * time.Second},
		"falsely before":     {-16 * time.Second, 3 * time.Second},
		"told again later":   {3 * time.Second, 9 * time.Second},
		"told in wrong turn": {3 * time.Second, -16 * time.Second},
	} {
		c := &conductor{suspected: map[suspicion][]time.Time{}}
		for _, after := range told {
			c.suspect(1, &sighting{Node: "n", At: death.Add(after)})
		}
		if got, ok := c.detected(1, "n", death); !ok || got != 3*time.Second {
			t.Errorf("%s: got %s, %v; want 3s", name, got, ok)
		}
	}
	c := &conductor{suspected: map[suspicion][]time.Time{}}
	c.suspect(1, &sighting{Node: "n", At: death.Add(-time.Second)})
	if got, ok := c.detected(1, "n", death); ok {
		t.Errorf("suspected before the death alone: got a detection after %s", got)
	}
}
