package fleet_test

import (
	"testing"
	"time"

	"github.com/tenurehq/tenure/fleet"
)

var workStates = []fleet.WorkState{fleet.Pending, fleet.Placed, fleet.Running, fleet.Stopping, fleet.Succeeded, fleet.Failed, fleet.Stopped}

func TestWorkStates(t *testing.T) {
	t.Parallel()
	// Columns as workStates. "c" is a change, "r" a report of the owner.
	table := map[fleet.WorkState][]string{
		fleet.Pending:   {"", "c", "", "", "", "", "c"},
		fleet.Placed:    {"c", "cr", "cr", "cr", "cr", "cr", "cr"},
		fleet.Running:   {"c", "cr", "r", "cr", "cr", "cr", "cr"},
		fleet.Stopping:  {"c", "c", "", "r", "cr", "cr", "cr"},
		fleet.Succeeded: {"", "", "", "", "", "", ""},
		fleet.Failed:    {"", "", "", "", "", "", ""},
		fleet.Stopped:   {"", "", "", "", "", "", ""},
	}
	for _, from := range workStates {
		for i, to := range workStates {
			got := ""
			if from.CanBecome(to) {
				got += "c"
			}
			if from.CanReport(to) {
				got += "r"
			}
			if got != table[from][i] {
				t.Errorf("%s to %s: got %q, want %q", from, to, got, table[from][i])
			}
		}
		if from.Ended() && from.Owned() {
			t.Errorf("%s: ended and owned", from)
		}
	}
	if fleet.WorkState("odd").CanBecome(fleet.Running) || fleet.Running.CanBecome("odd") {
		t.Error("an unknown state: got a change")
	}
}

func TestStuckSince(t *testing.T) {
	t.Parallel()
	running := work("w", "n1", fleet.Running)
	running.Started = t0
	running.StuckAfterMS = 60_000
	progressed := running
	progressed.ProgressAt = t0.Add(30 * time.Second)
	older := running // a marker of the former owner says nothing of this one
	older.ProgressAt = t0.Add(-time.Hour)
	stopping := running
	stopping.State = fleet.Stopping
	never := running
	never.StuckAfterMS = 0
	for _, tc := range []struct {
		what  string
		work  fleet.Work
		after time.Duration
		want  time.Duration // since; 0: not stuck
	}{
		{"not yet", running, 59 * time.Second, 0},
		{"stuck", running, time.Minute, time.Minute},
		{"progress", progressed, time.Minute, 0},
		{"and then none", progressed, 2 * time.Minute, 90 * time.Second},
		{"progress before the start", older, 59 * time.Second, 0},
		{"stopping", stopping, time.Hour, 0},
		{"never", never, time.Hour, 0},
	} {
		since, stuck := tc.work.StuckSince(t0.Add(tc.after))
		if stuck != (tc.want != 0) || stuck && !since.Equal(t0.Add(tc.want)) {
			t.Errorf("%s: got %v, %v, want %v", tc.what, since, stuck, tc.want)
		}
	}
}
