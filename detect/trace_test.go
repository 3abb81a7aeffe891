package detect_test

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/detect"
)

// table reads a trace: lines of seconds, exact to the nanosecond, an empty field
// as −1. Comments begin with #, and the first other line is a header.
func table(t *testing.T, name string) (rows [][]time.Duration) {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for header := true; lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		if header {
			header = false
			continue
		}
		var row []time.Duration
		for field := range strings.SplitSeq(lines.Text(), ",") {
			if field == "" {
				row = append(row, -1)
				continue
			}
			s, err := strconv.ParseFloat(field, 64)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			row = append(row, seconds(s))
		}
		rows = append(rows, row)
	}
	if err := lines.Err(); err != nil || len(rows) == 0 {
		t.Fatalf("%s: %d rows, %v", name, len(rows), err)
	}
	return rows
}

func column(t *testing.T, name string) []time.Duration {
	t.Helper()
	var all []time.Duration
	for _, row := range table(t, name) {
		all = append(all, row[0])
	}
	return all
}

func seconds(s float64) time.Duration {
	if s < 0 {
		return -time.Duration(-s*1e9 + 0.5)
	}
	return time.Duration(s*1e9 + 0.5)
}

// TestTraceChapter47 counts the false alarms of Fixed over 2000 beats of which
// one in five is lost and the others are up to 1.5 s late. The evaluation is that
// of the file's header: a beat is credited at the instant at which it was sent,
// though it is received later, and an alarm starts the watch anew.
func TestTraceChapter47(t *testing.T) {
	t.Parallel()
	rows := table(t, "chapter47.csv")
	if len(rows) != 2000 {
		t.Fatalf("got %d beats, want 2000", len(rows))
	}
	for _, tc := range []struct{ misses, alarms int }{{1, 58}, {2, 14}, {3, 3}, {5, 1}} {
		d := must(detect.NewFixed(detect.FixedConfig{Interval: time.Second, Misses: tc.misses}))
		alarms := 0
		for _, row := range rows {
			sent, received := row[0], row[1]
			if received >= 0 {
				d.Observe(received)
			}
			if d.State(sent) == detect.Suspect {
				alarms++
				d.Begin(sent)
			}
		}
		if alarms != tc.alarms {
			t.Errorf("suspect after %d missed beats: got %d false alarms, want %d", tc.misses, alarms, tc.alarms)
		}
	}
}

// gapsTA are those of a scheduler that twice came late and caught up at once.
var gapsTA = []float64{2.97, 3.00, 2.98, 2.97, 3.00, 2.99, 3.01, 2.96, 3.00, 9.00, 0.02, 2.95, 3.00, 2.97, 3.00, 5.98, 0.01, 3.00, 2.97, 3.00}

func traceTA() []time.Duration {
	beats := []time.Duration{0}
	for _, gap := range gapsTA {
		beats = append(beats, beats[len(beats)-1]+seconds(gap))
	}
	return beats
}

// One second to spare, which the mean hides (C80).
func TestTraceOneSecondToSpare(t *testing.T) {
	t.Parallel()
	beats := traceTA()
	s := detect.NewSurvey(slices.Values(beats), 3*time.Second)
	if s.Gaps != 20 || s.Worst != 9*time.Second || s.Mean != 3139*time.Millisecond {
		t.Errorf("got %d gaps, worst %v, mean %v; want 20, 9s, 3.139s", s.Gaps, s.Worst, s.Mean)
	}
	list := func(gaps []detect.Gapped) (all []time.Duration) {
		for _, g := range gaps {
			all = append(all, g.Length)
		}
		return all
	}
	if got, want := list(s.Late), []time.Duration{9 * time.Second, 5980 * time.Millisecond}; !slices.Equal(got, want) {
		t.Errorf("late: got %v, want %v", got, want)
	}
	if got, want := list(s.CatchUp), []time.Duration{20 * time.Millisecond, 10 * time.Millisecond}; !slices.Equal(got, want) {
		t.Errorf("catching up: got %v, want %v", got, want)
	}
	for margin, want := range map[time.Duration]time.Duration{0: 9 * time.Second, time.Second: 10 * time.Second} {
		if got := s.Safe(margin); got != want {
			t.Errorf("safe with a margin of %v: got %v, want %v", margin, got, want)
		}
	}
	for _, tc := range []struct {
		timeout, margin float64
		losses          int
	}{
		{8.9, 0, 1}, {9, 0, 0}, {9.1, 0, 0}, {10, 0, 0}, {10.1, 0, 0}, // at 9: a beat at its deadline is in time
		{8.9, 1, 1}, {9, 1, 1}, {9.1, 1, 1}, {10, 1, 0}, {10.1, 1, 0},
	} {
		d := must(detect.NewFixed(detect.FixedConfig{Interval: seconds(tc.timeout - tc.margin), Misses: 1}))
		changes := detect.Replay(&d, slices.Values(beats), beats[len(beats)-1])
		if len(changes) != 2*tc.losses {
			t.Errorf("timeout %vs, margin %vs: got %v, want %d losses", tc.timeout, tc.margin, changes, tc.losses)
		}
	}
	empty := detect.NewSurvey(slices.Values([]time.Duration{time.Second}), time.Second)
	if empty.Gaps != 0 || empty.Mean != 0 || empty.Safe(time.Second) != time.Second {
		t.Errorf("one beat: got %+v", empty)
	}
}

// A pause of 6 s every five minutes, then three beats at once (C49).
func TestTracePauses(t *testing.T) {
	t.Parallel()
	beats := column(t, "t-b.csv")
	last := beats[len(beats)-1]
	fixed := func(misses int) detect.Detector {
		d := must(detect.NewFixed(detect.FixedConfig{Interval: time.Second, Misses: misses}))
		return &d
	}
	phi := must(detect.NewPhi(detect.PhiConfig{Interval: time.Second, Threshold: 8, Pause: 7 * time.Second}))
	chen := must(detect.NewChen(detect.ChenConfig{Interval: time.Second, Margin: 6 * time.Second}))
	for _, tc := range []struct {
		name   string
		d      detect.Detector
		wrong  int
		within time.Duration // of the last beat
	}{
		{"fixed 5s", fixed(5), 11, 5 * time.Second},
		{"fixed 10s", fixed(10), 0, 10 * time.Second},
		{"phi 8, pause 7s", &phi, 0, 20 * time.Second},
		{"chen, margin 6s", &chen, 0, 10 * time.Second},
	} {
		changes := detect.Replay(tc.d, slices.Values(beats), last+time.Hour)
		if len(changes) != 2*tc.wrong+1 {
			t.Errorf("%s: got %d changes, want %d suspicions that end with a beat and one that does not: %v", tc.name, len(changes), tc.wrong, changes)
			continue
		}
		for i, c := range changes {
			if want := []detect.State{detect.Suspect, detect.Alive}[i%2]; c.State != want {
				t.Errorf("%s: change %d is %v, want %v", tc.name, i, c.State, want)
			}
		}
		if got := changes[len(changes)-1].At - last; got > tc.within {
			t.Errorf("%s: found %v after the last beat, want %v at most", tc.name, got, tc.within)
		}
	}
}

// A burst of queued beats does not shrink the learnt mean below 0.9 s (T-b),
// whether its delay is known or not.
func TestBurstIsNoRhythm(t *testing.T) {
	t.Parallel()
	lowest := func(pause time.Duration, beats []time.Duration) time.Duration {
		phi := must(detect.NewPhi(detect.PhiConfig{Interval: time.Second, Pause: pause}))
		low := time.Hour
		for _, at := range beats {
			phi.Observe(at)
			low = min(low, phi.Explain(at).Mean)
		}
		return low
	}
	tb := column(t, "t-b.csv")
	var many []time.Duration // from the first beats on, one pause in ten beats and a burst of nine
	for i := range 50 {
		for j := range 10 {
			many = append(many, time.Duration(i)*20*time.Second+time.Duration(j)*time.Second)
		}
		for j := range 9 {
			many = append(many, time.Duration(i)*20*time.Second+19*time.Second+time.Duration(j)*5*time.Millisecond)
		}
	}
	for _, pause := range []time.Duration{time.Second, 7 * time.Second, 20 * time.Second} {
		for name, beats := range map[string][]time.Duration{"t-b": tb, "bursts of nine": many} {
			if got := lowest(pause, beats); got < 900*time.Millisecond {
				t.Errorf("%s, pause %v: the mean fell to %v, want 0.9s or more", name, pause, got)
			}
		}
	}
}

// The gap in which a watch began is not one between two beats.
func TestBeginIsNoRhythm(t *testing.T) {
	t.Parallel()
	phi := must(detect.NewPhi(detect.PhiConfig{Interval: time.Second}))
	for i := range 100 {
		phi.Observe(time.Duration(i) * time.Second)
	}
	before := phi.Explain(0)
	phi.Begin(100 * time.Second)
	phi.Observe(101*time.Second + time.Second/2)
	if got := phi.Explain(0); got.Mean != before.Mean || got.StdDev != before.StdDev || got.Samples != before.Samples {
		t.Errorf("got %v, want what was learnt before, %v", got, before)
	}
}

// Half an hour of hibernation is two changes and no more (C82).
func TestTraceHibernation(t *testing.T) {
	t.Parallel()
	beats := column(t, "t-c.csv")
	const asleep, awake = 3590 * time.Second, 5390 * time.Second
	if i := slices.Index(beats, asleep); i < 0 || beats[i+1] != awake {
		t.Fatal("the trace is another one")
	}
	fixed := must(detect.NewFixed(detect.FixedConfig{}))
	missed := must(detect.NewFixed(detect.FixedConfig{Interval: 10 * time.Second, Misses: 3}))
	phi := must(detect.NewPhi(detect.PhiConfig{Threshold: 8}))
	chen := must(detect.NewChen(detect.ChenConfig{}))
	end := beats[len(beats)-1]
	for _, tc := range []struct {
		name         string
		d            detect.Detector
		bound        time.Duration
		availability string // by hand: 1 − (1800 − bound) / 8980
	}{
		{"fixed 30s", &fixed, 30 * time.Second, "0.803"},
		{"3 missed", &missed, 30 * time.Second, "0.803"},
		{"phi 8", &phi, 25612 * time.Millisecond, "0.802"}, // 10 + 10 + 5.612 × 1
		{"chen", &chen, 30 * time.Second, "0.803"},
	} {
		changes := detect.Replay(tc.d, slices.Values(beats), end)
		if len(changes) != 2 || changes[0].State != detect.Suspect || changes[1].State != detect.Alive {
			t.Errorf("%s: got %v, want down once and up once", tc.name, changes)
			continue
		}
		if got := (changes[0].At - asleep).Round(time.Millisecond); got != tc.bound {
			t.Errorf("%s: down %v after the last beat, want %v", tc.name, got, tc.bound)
		}
		if changes[1].At != awake {
			t.Errorf("%s: up at %v, want at the first beat, %v", tc.name, changes[1].At, awake)
		}
		down := changes[1].At - changes[0].At
		if got := fmt.Sprintf("%.3f", 1-down.Seconds()/end.Seconds()); got != tc.availability {
			t.Errorf("%s: available for %s of the time, want %s", tc.name, got, tc.availability)
		}
	}
}

// An outage does not become the rhythm: the second death is found as soon as
// that of a node that is new (C51).
func TestOutageIsNoRhythm(t *testing.T) {
	t.Parallel()
	beat := func(d detect.Detector, from, to time.Duration) {
		for at := from; at <= to; at += time.Second {
			d.Observe(at)
		}
	}
	for name, veteran := range silence() {
		fresh := silence()[name]
		beat(fresh, 0, time.Minute)
		beat(veteran, 0, 5*time.Minute)
		if veteran.State(15*time.Minute) != detect.Suspect {
			t.Errorf("%s: silent for 10 minutes and not suspect", name)
		}
		beat(veteran, 15*time.Minute, 16*time.Minute)
		if veteran.Limit() > 2*fresh.Limit() {
			t.Errorf("%s: found %v after its second death, a new node after %v", name, veteran.Limit(), fresh.Limit())
		}
		if e := veteran.Explain(16 * time.Minute); e.Mean > 2*time.Second {
			t.Errorf("%s: the outage is in the mean: %v", name, e)
		}
	}
}
