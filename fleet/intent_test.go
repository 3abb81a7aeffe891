package fleet_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fleet"
)

// readIntents reads testdata/intent.txt: state → step → state.
func readIntents(t *testing.T) (states, steps []string, table map[string]map[string]string) {
	t.Helper()
	b, err := os.ReadFile("testdata/intent.txt")
	if err != nil {
		t.Fatal(err)
	}
	table = map[string]map[string]string{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || f[0] == "#":
		case f[0] == "state":
			steps = f[1:]
		case len(f) != len(steps)+1:
			t.Fatalf("%q: want a state for each of %v", line, steps)
		default:
			states = append(states, f[0])
			table[f[0]] = map[string]string{}
			for i, s := range steps {
				table[f[0]][s] = f[i+1]
			}
		}
	}
	return states, steps, table
}

// stateOf names the intent as the table does, and checks that it is read alike by
// all who look at it.
func stateOf(t *testing.T, n fleet.Node) string {
	t.Helper()
	s := string(n.Intent.State())
	if n.Intent.Drain != nil && n.Intent.Cordon != nil {
		s += "+"
	}
	if eligible := fleet.Eligible(n, fleet.Conditions{}); eligible != (s == "active") {
		t.Errorf("%s: got eligible %v", s, eligible)
	}
	return s
}

// intentStep does one step to the node, at an instant of its own.
func intentStep(t *testing.T, n fleet.Node, step string, now time.Time) fleet.Node {
	t.Helper()
	m := fleet.Mark{Actor: "anna", Reason: step, At: now}
	before := n.Intent
	var changed bool
	switch step {
	case "cordon":
		n.Intent, changed = n.Intent.WithCordon(m)
	case "drain":
		n.Intent, changed = n.Intent.WithDrain(m, now.Add(time.Hour), true)
	case "cancel":
		n.Intent, changed = n.Intent.Resumed(fleet.ResumeDrain)
	case "complete":
		n.Intent, changed = n.Intent.Completed(now)
	case "agent_restart", "reboot":
		n.Incarnation += "'"
		return n
	case "control_restart":
		b, err := json.Marshal(n.Intent)
		if err != nil {
			t.Fatal(err)
		}
		n.Intent = fleet.Intent{}
		if err := json.Unmarshal(b, &n.Intent); err != nil {
			t.Fatal(err)
		}
		return n
	default:
		t.Fatalf("unknown step %q", step)
	}
	if changed != (n.Intent != before) {
		t.Errorf("%s: got changed %v from %+v to %+v", step, changed, before, n.Intent)
	}
	return n
}

// All orders of the steps up to length 4 equal the written table.
func TestIntentC62(t *testing.T) {
	t.Parallel()
	_, steps, table := readIntents(t)
	count := 0
	var walk func(n fleet.Node, path []string, want string)
	walk = func(n fleet.Node, path []string, want string) {
		count++
		if got := stateOf(t, n); got != want {
			t.Fatalf("%v: got %s, want %s", path, got, want)
		}
		if len(path) == 4 {
			return
		}
		for _, s := range steps {
			next := append(path[:len(path):len(path)], s)
			walk(intentStep(t, n, s, t0.Add(time.Duration(len(next))*time.Minute)), next, table[want][s])
		}
	}
	walk(good("n1"), nil, "active")
	if want := 1 + 7 + 49 + 343 + 2401; count != want {
		t.Errorf("got %d orders, want %d", count, want)
	}
}

// ResumeAll ends everything, from each state of the table.
func TestIntentResumeAll(t *testing.T) {
	t.Parallel()
	states, _, _ := readIntents(t)
	for _, from := range states {
		n := good("n1")
		if strings.HasPrefix(from, "cordoned") || strings.HasSuffix(from, "+") {
			n = intentStep(t, n, "cordon", t0)
		}
		if strings.HasPrefix(from, "drain") {
			n = intentStep(t, n, "drain", t0)
		}
		if strings.HasPrefix(from, "drained") {
			n = intentStep(t, n, "complete", t0)
		}
		if got := stateOf(t, n); got != from {
			t.Fatalf("got %s, want %s", got, from)
		}
		i, changed := n.Intent.Resumed(fleet.ResumeAll)
		if i.State() != fleet.Active || changed != (from != "active") {
			t.Errorf("%s: got %s, changed %v", from, i.State(), changed)
		}
	}
	cordoned := intentStep(t, good("n1"), "cordon", t0)
	if i, changed := cordoned.Intent.Resumed("everything"); changed || i != cordoned.Intent {
		t.Errorf("an unknown word: got %+v, %v, want nothing changed", i, changed)
	}
}

// Who, why and since when are kept: by a repeated request, by a further fact, and
// by all restarts. The intent that was changed is not touched.
func TestIntentKeepsMarks(t *testing.T) {
	t.Parallel()
	anna := fleet.Mark{Actor: "anna", Reason: "disk swap", At: t0}
	i, _ := fleet.Intent{}.WithCordon(anna)
	again, changed := i.WithCordon(fleet.Mark{Actor: "anna", Reason: "disk swap", At: t0.Add(time.Hour)})
	if changed || *again.Cordon != anna {
		t.Errorf("repeated: got %+v, %v, want the first mark", *again.Cordon, changed)
	}
	bert := fleet.Mark{Actor: "bert", Reason: "noisy", At: t0.Add(time.Hour)}
	if other, changed := i.WithCordon(bert); !changed || *other.Cordon != bert || *i.Cordon != anna {
		t.Errorf("another: got %+v, %v, before %+v", *other.Cordon, changed, *i.Cordon)
	}

	d, _ := i.WithDrain(bert, t0.Add(2*time.Hour), false)
	if _, changed := d.WithDrain(bert, t0.Add(2*time.Hour), false); changed {
		t.Error("a repeated drain changed something")
	}
	moved, changed := d.WithDrain(bert, t0.Add(2*time.Hour), true)
	if !changed || !moved.Drain.Move || d.Drain.Move {
		t.Errorf("drain with move: got %+v, %v, before %+v", moved.Drain, changed, d.Drain)
	}
	done, _ := d.Completed(t0.Add(time.Hour))
	if !d.Drain.Done.IsZero() || !done.Drain.Done.Equal(t0.Add(time.Hour)) {
		t.Errorf("completed: got %+v, before %+v", done.Drain, d.Drain)
	}
	if twice, changed := done.Completed(t0.Add(9 * time.Hour)); changed || !twice.Drain.Done.Equal(t0.Add(time.Hour)) {
		t.Errorf("completed twice: got %+v, %v", twice.Drain, changed)
	}
	if redrained, _ := done.WithDrain(anna, time.Time{}, true); redrained.State() != fleet.Drained {
		t.Errorf("drained once more: got %s, want drained", redrained.State())
	}
	b, err := json.Marshal(done)
	if err != nil {
		t.Fatal(err)
	}
	var back fleet.Intent
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if *back.Cordon != anna || *back.Drain != *done.Drain {
		t.Errorf("through JSON: got %+v %+v, want %+v %+v", *back.Cordon, *back.Drain, anna, *done.Drain)
	}
}
