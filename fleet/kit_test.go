package fleet_test

import (
	"flag"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fleet"
)

var update = flag.Bool("update", false, "rewrite testdata")

// t0 is the present of most tests.
var t0 = time.Date(2026, 3, 29, 1, 30, 0, 0, time.UTC)

// good returns a node that may get any work that fits it.
func good(id string) fleet.Node {
	return fleet.Node{
		ID: id, Incarnation: "i1", Liveness: fleet.Alive, Since: t0.Add(-time.Hour), Age: 3 * time.Second,
		Lease: fleet.Lease{State: fleet.LeaseHeld, Token: 7, Holder: id, Remaining: 50 * time.Second},
		Facts: fleet.Facts{
			Readiness: fleet.Readiness{Ready: true},
			Capacity:  fleet.Resources{"slots": 40, "memory_mb": 4096},
			Labels:    map[string]string{"zone": "b", "role": "web"},
			Features:  []string{"kvm"}, Artifacts: []string{"img:1"},
		},
		Reserved: fleet.Resources{},
	}
}

func with(n fleet.Node, change func(*fleet.Node)) fleet.Node {
	change(&n)
	return n
}

func codes(ex []fleet.Exclusion) []fleet.Code {
	var all []fleet.Code
	for _, e := range ex {
		all = append(all, e.Code)
	}
	return all
}

func equal[K comparable, V comparable](t *testing.T, what string, got, want map[K]V) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func same[S ~[]E, E comparable](t *testing.T, what string, got, want S) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func contains(t *testing.T, what, got string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(got, p) {
			t.Errorf("%s: got %q, want it to hold %q", what, got, p)
		}
	}
}

// golden compares with a file of testdata, which -update rewrites.
func golden(t *testing.T, file, got string) {
	t.Helper()
	path := "testdata/" + file
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
	}
}
