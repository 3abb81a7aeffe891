package fleet_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// refused checks that err is nil if field is "", and otherwise names the field.
func refused(t *testing.T, what string, err error, field string) {
	t.Helper()
	var invalid *fleet.InvalidError
	switch {
	case field == "" && err != nil:
		t.Errorf("%s: got %v, want it accepted", what, err)
	case field != "" && (!errors.As(err, &invalid) || !errors.Is(err, store.ErrInvalid)):
		t.Errorf("%s: got %v, want an InvalidError for %q", what, err, field)
	case field != "" && invalid.Field != field:
		t.Errorf("%s: got %v, want it to name %q", what, err, field)
	case field != "" && len(err.Error()) > 512:
		t.Errorf("%s: got a message of %d bytes, want the value shortened", what, len(err.Error()))
	}
}

// The names of CASES C73, as ids.
func TestCheckID(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", fleet.MaxID)
	for _, id := range []string{"a", "Job", "job", "0", "web-7:4242", "a.b_c@d+e", long} {
		refused(t, id, fleet.CheckID("id", id), "")
		if err := store.CheckName(fleet.LeaseName(id)); err != nil {
			t.Errorf("%s: its lease has no valid name: %v", id, err)
		}
	}
	for _, id := range []string{
		"", ".", "..", "/a", "a/b", "a//b", "a%2Fb", "a b", "a ", " a", "a\u00a0b", "é", "e\u0301", "🦊", "a\x00", "a\n", "a\u202eb",
		"<img>", "'", `"`, "{{x}}", "-a", "_a", long + "a",
	} {
		refused(t, fmt.Sprintf("%q", id), fleet.CheckID("id", id), "id")
	}
}

func TestSpecCheck(t *testing.T) {
	t.Parallel()
	many := func(n int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprintf("k%d", i)] = "v"
		}
		return m
	}
	list := func(n int, s string) []string {
		all := make([]string, n)
		for i := range all {
			all[i] = s
		}
		return all
	}
	for _, tc := range []struct {
		what   string
		change func(*fleet.Spec)
		field  string
	}{
		{"plain", func(*fleet.Spec) {}, ""},
		{"no id", func(s *fleet.Spec) { s.ID = "" }, "id"},
		{"id with a slash", func(s *fleet.Spec) { s.ID = "jobs/nightly" }, "id"},
		{"no command", func(s *fleet.Spec) { s.Command = nil }, "command"},
		{"empty program", func(s *fleet.Spec) { s.Command = []string{"", "x"} }, "command"},
		{"odd arguments", func(s *fleet.Spec) { s.Command = []string{"prog", "-v", "a b", "$X", "", "a\nb"} }, ""},
		{"NUL in an argument", func(s *fleet.Spec) { s.Command = []string{"prog", "a\x00"} }, "command[1]"},
		{"256 arguments", func(s *fleet.Spec) { s.Command = list(256, "a") }, ""},
		{"257 arguments", func(s *fleet.Spec) { s.Command = list(257, "a") }, "command"},
		{"128 variables", func(s *fleet.Spec) { s.Env = many(128) }, ""},
		{"129 variables", func(s *fleet.Spec) { s.Env = many(129) }, "env"},
		{"variable with =", func(s *fleet.Spec) { s.Env = map[string]string{"a=b": ""} }, "env"},
		{"variable without a name", func(s *fleet.Spec) { s.Env = map[string]string{"": ""} }, "env"},
		{"variable of ours", func(s *fleet.Spec) { s.Env = map[string]string{"TENURE_TOKEN": "9"} }, "env"},
		{"NUL in a variable", func(s *fleet.Spec) { s.Env = map[string]string{"A": "\x00"} }, "env[A]"},
		{"64 KiB in all", func(s *fleet.Spec) { s.Command = list(2, strings.Repeat("a", 33<<10)) }, "command, env and request"},
		{"movable", func(s *fleet.Spec) { s.Movable = true }, ""},
		{"movable with stop", func(s *fleet.Spec) { s.Movable, s.OnLoss = true, fleet.Stop }, ""},
		{"movable with keep", func(s *fleet.Spec) { s.Movable, s.OnLoss = true, fleet.Keep }, "on_loss"},
		{"movable with quiesce", func(s *fleet.Spec) { s.Movable, s.OnLoss = true, fleet.Quiesce }, "on_loss"},
		{"movable to one node", func(s *fleet.Spec) { s.Movable, s.Request.Node = true, "n1" }, "request.node"},
		{"pinned to one node", func(s *fleet.Spec) { s.Request.Node = "n1" }, ""},
		{"unknown policy", func(s *fleet.Spec) { s.OnLoss = "explode" }, "on_loss"},
		{"unknown return", func(s *fleet.Spec) { s.OnReturn = "both" }, "on_return"},
		{"unknown strategy", func(s *fleet.Spec) { s.Request.Strategy = "best" }, "request.strategy"},
		{"excluded and named", func(s *fleet.Spec) { s.Request.Node, s.Request.Exclude = "n1", []string{"n1"} }, "request.node"},
		{"negative grace", func(s *fleet.Spec) { s.GraceMS = -1 }, "grace_ms"},
		{"a grace that wraps", func(s *fleet.Spec) { s.GraceMS = math.MaxInt64 }, "grace_ms"},
		{"a stuck that wraps", func(s *fleet.Spec) { s.StuckAfterMS = 1 << 53 }, "stuck_after_ms"},
		{"zero of a resource", func(s *fleet.Spec) { s.Request.Resources = fleet.Resources{"slots": 0} }, "request.resources[slots]"},
		{"negative resource", func(s *fleet.Spec) { s.Request.Resources = fleet.Resources{"slots": -1} }, "request.resources[slots]"},
		{"too much of a resource", func(s *fleet.Spec) { s.Request.Resources = fleet.Resources{"slots": fleet.MaxAmount + 1} }, "request.resources[slots]"},
		{"65 labels", func(s *fleet.Spec) { s.Request.Labels = many(65) }, "request.labels"},
		{"label that is no name", func(s *fleet.Spec) { s.Request.Labels = map[string]string{"a b": ""} }, "request.labels"},
		{"label with an escape", func(s *fleet.Spec) { s.Request.Labels = map[string]string{"a": "\x1b[31m"} }, "request.labels[a]"},
	} {
		s := fleet.Spec{ID: "w1", Command: []string{"sleep", "60"}}
		tc.change(&s)
		refused(t, tc.what, s.Check(), tc.field)
		if tc.field == "" {
			refused(t, tc.what+", filled", s.Filled().Check(), "")
		}
	}
}

func TestRequestCheck(t *testing.T) {
	t.Parallel()
	refused(t, "nothing", fleet.Request{}.Check(), "")
	refused(t, "demand", demand().Check(), "")
	refused(t, "64 KiB", fleet.Request{Artifacts: slices.Repeat([]string{strings.Repeat("a", 200)}, 400)}.Check(), "request")
	refused(t, "an excluded id", fleet.Request{Exclude: []string{"a/b"}}.Check(), "request.exclude")
}

func TestSpecFilled(t *testing.T) {
	t.Parallel()
	pinned := fleet.Spec{}.Filled()
	if pinned.OnLoss != fleet.Keep || pinned.OnReturn != fleet.KeepReplacement || pinned.Request.Strategy != fleet.MostFree || pinned.GraceMS != 2000 || pinned.Movable {
		t.Errorf("pinned: got %+v", pinned)
	}
	if s := (fleet.Spec{Movable: true}).Filled(); s.OnLoss != fleet.Stop {
		t.Errorf("movable: got on_loss %q, want stop", s.OnLoss)
	}
	set := fleet.Spec{OnLoss: fleet.Quiesce, OnReturn: fleet.KeepOriginal, GraceMS: 5, Request: fleet.Request{Strategy: fleet.Spread}}.Filled()
	if set.OnLoss != fleet.Quiesce || set.OnReturn != fleet.KeepOriginal || set.GraceMS != 5 || set.Request.Strategy != fleet.Spread {
		t.Errorf("what is set stays: got %+v", set)
	}
}

func TestFactsCheck(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		what   string
		change func(*fleet.Facts)
		field  string
	}{
		{"plain", func(*fleet.Facts) {}, ""},
		{"41 of 40", func(f *fleet.Facts) { f.Used = fleet.Resources{"slots": 41} }, ""},
		{"use of what is not offered", func(f *fleet.Facts) { f.Used = fleet.Resources{"gpus": 1} }, ""},
		{"capacity 0", func(f *fleet.Facts) { f.Capacity = fleet.Resources{"slots": 0} }, ""},
		{"negative use", func(f *fleet.Facts) { f.Used = fleet.Resources{"slots": -1} }, "used[slots]"},
		{"absurd use", func(f *fleet.Facts) { f.Used = fleet.Resources{"slots": math.MaxInt64} }, "used[slots]"},
		{"negative capacity", func(f *fleet.Facts) { f.Capacity = fleet.Resources{"slots": -40} }, "capacity[slots]"},
		{"10,000 labels", func(f *fleet.Facts) {
			f.Labels = map[string]string{}
			for i := range 10_000 {
				f.Labels[fmt.Sprint("k", i)] = "v"
			}
		}, "labels"},
		{"a huge label", func(f *fleet.Facts) { f.Labels = map[string]string{"a": strings.Repeat("x", 10<<20)} }, "labels[a]"},
		{"64 KiB of labels", func(f *fleet.Facts) {
			f.Labels = map[string]string{}
			for i := range 64 {
				f.Labels[fmt.Sprint("k", i)] = strings.Repeat("v", 1024)
			}
		}, "facts"},
		{"1,025 artifacts", func(f *fleet.Facts) { f.Artifacts = make([]string, 1025) }, "artifacts"},
		{"empty feature", func(f *fleet.Facts) { f.Features = []string{""} }, "features"},
		{"address with a line break", func(f *fleet.Facts) { f.Address = "a\r\nX: y" }, "address"},
		{"reason that is no code", func(f *fleet.Facts) { f.Readiness.Reason = "no disk" }, "readiness.reason"},
		{"text in any language", func(f *fleet.Facts) { f.Readiness.Text = "keine Verbindung zur Datenbank – später é" }, ""},
		{"text that turns", func(f *fleet.Facts) { f.Readiness.Text = "a\u202eb" }, "readiness.text"},
		{"text that is no UTF-8", func(f *fleet.Facts) { f.Config = "\xff" }, "config"},
	} {
		f := good("n1").Facts
		f.Address = "10.0.0.1:80"
		tc.change(&f)
		refused(t, tc.what, f.Check(), tc.field)
	}
}

func TestMarkCheck(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ actor, reason, field string }{
		{"anna", "disk swap, ticket 7", ""},
		{"", "x", "actor"},
		{" ", "x", "actor"},
		{"anna", "", "reason"},
		{"anna", "\t", "reason"},
		{"anna", "two\nlines", "reason"},
		{"anna\x1b", "x", "actor"},
		{"anna", strings.Repeat("x", 1025), "reason"},
	} {
		refused(t, fmt.Sprintf("%q %q", tc.actor, tc.reason), fleet.Mark{Actor: tc.actor, Reason: tc.reason}.Check(), tc.field)
	}
	refused(t, "marker", fleet.CheckMarker(strings.Repeat("x", 4097)), "progress")
	refused(t, "no marker", fleet.CheckMarker(""), "")
}

// FuzzSpecCheck: what is accepted has a valid lease name, and its JSON is what it was.
func FuzzSpecCheck(f *testing.F) {
	f.Add([]byte(`{"id":"w1","command":["sleep","60"],"env":{"A":"b"},"movable":true,"request":{"resources":{"slots":1}}}`))
	f.Add([]byte(`{"id":"w1","command":["x"],"grace_ms":9223372036854775807}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s fleet.Spec
		if json.Unmarshal(b, &s) != nil || s.Check() != nil {
			return
		}
		if err := store.CheckName(fleet.LeaseName(s.ID)); err != nil {
			t.Errorf("accepted id %q: %v", s.ID, err)
		}
		out, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var again fleet.Spec
		if err := json.Unmarshal(out, &again); err != nil {
			t.Fatal(err)
		}
		refused(t, "again", again.Check(), "")
		if s.Movable && s.Filled().OnLoss != fleet.Stop {
			t.Errorf("movable with %q", s.Filled().OnLoss)
		}
	})
}
