package detect_test

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/tenurehq/tenure/detect"
)

func must[D any](d D, err error) D {
	if err != nil {
		panic(err)
	}
	return d
}

// detectors are one of each, all for beats of one second.
func detectors() map[string]detect.Detector {
	fixed := must(detect.NewFixed(detect.FixedConfig{Interval: time.Second}))
	phi := must(detect.NewPhi(detect.PhiConfig{Interval: time.Second}))
	chen := must(detect.NewChen(detect.ChenConfig{Interval: time.Second}))
	progress := must(detect.NewProgress(3 * time.Second))
	return map[string]detect.Detector{"fixed": &fixed, "phi": &phi, "chen": &chen, "progress": &progress}
}

// every detector of silence, which is all but Progress.
func silence() map[string]detect.Detector {
	all := detectors()
	delete(all, "progress")
	return all
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	f := must(detect.NewFixed(detect.FixedConfig{}))
	f.Observe(100 * time.Second)
	for _, tc := range []struct {
		silent time.Duration
		want   detect.State
	}{
		{-time.Second, detect.Alive},
		{0, detect.Alive},
		{10 * time.Second, detect.Alive},
		{11 * time.Second, detect.Alive}, // a tenth of an interval for the way
		{11*time.Second + 1, detect.Late},
		{30 * time.Second, detect.Late}, // at the deadline a beat is in time
		{30*time.Second + 1, detect.Suspect},
	} {
		if got := f.State(100*time.Second + tc.silent); got != tc.want {
			t.Errorf("silent for %v: got %v, want %v", tc.silent, got, tc.want)
		}
	}
	if got := f.Deadline(); got != 130*time.Second {
		t.Errorf("deadline: got %v, want 130s", got)
	}
	// What the others make of the same beat, before they have learnt anything.
	phi := must(detect.NewPhi(detect.PhiConfig{}))
	chen := must(detect.NewChen(detect.ChenConfig{}))
	if got := phi.Limit().Round(time.Second); got != 34*time.Second { // 10 + 10 + 5.61 × 2.5
		t.Errorf("phi: got a limit of %v, want 34s", got)
	}
	if got := chen.Limit(); got != 30*time.Second {
		t.Errorf("chen: got a limit of %v, want 30s", got)
	}
}

// A node that stops at any phase of its interval is found between two and three
// intervals later, plus the time between two looks.
func TestIdealBeats(t *testing.T) {
	t.Parallel()
	const look = 250 * time.Millisecond
	for _, interval := range []time.Duration{time.Second, 2 * time.Second} {
		shortest, longest := time.Hour, time.Duration(0)
		for phase := time.Duration(0); phase < interval; phase += interval / 997 {
			for shift := time.Duration(0); shift < look; shift += look / 7 {
				f := must(detect.NewFixed(detect.FixedConfig{Interval: interval, Misses: 3}))
				crash := 20*interval + phase
				var found time.Duration
				beat := time.Duration(0)
				for now := shift; found == 0; now += look {
					for ; beat <= now && beat <= crash; beat += interval {
						f.Observe(beat)
					}
					if f.State(now) == detect.Suspect {
						found = now - crash
					}
				}
				shortest, longest = min(shortest, found), max(longest, found)
			}
		}
		if shortest < 2*interval || longest > 3*interval+look {
			t.Errorf("beats of %v: found after %v to %v, want 2 to 3 intervals and %v", interval, shortest, longest, look)
		}
		if shortest > 2*interval+look || longest < 3*interval {
			t.Errorf("beats of %v: found after %v to %v, so not every phase was tried", interval, shortest, longest)
		}
	}
}

// Silence, state, deadline and suspicion agree at each instant, a beat makes
// alive, and an old beat changes nothing.
func TestContract(t *testing.T) {
	t.Parallel()
	for name, d := range silence() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d.Begin(time.Second)
			if d.Last() != time.Second || d.Explain(time.Second).Heard {
				t.Errorf("after Begin: last %v, %v", d.Last(), d.Explain(time.Second))
			}
			for at := time.Second; at < time.Minute; at += time.Second {
				d.Observe(at)
			}
			end := d.Deadline()
			if d.State(end) == detect.Suspect || d.Suspicion(end) > 1 {
				t.Errorf("at the deadline: got %v, %v", d.State(end), d.Suspicion(end))
			}
			if d.State(end+1) != detect.Suspect || d.Suspicion(end+1) <= 1 {
				t.Errorf("after the deadline: got %v, %v", d.State(end+1), d.Suspicion(end+1))
			}
			if got := d.State(time.Minute - time.Second/2); got != detect.Alive {
				t.Errorf("between two beats: got %v", got)
			}
			if got := d.State(d.Last() + 3*time.Second/2); got != detect.Late {
				t.Errorf("half an interval overdue: got %v, want late", got)
			}
			before := d.Explain(time.Hour)
			d.Observe(3 * time.Second)
			if got := d.Deadline(); got != end && name == "fixed" {
				t.Errorf("an old beat moved the deadline to %v", got)
			}
			if got := d.Explain(time.Hour); got.Silent != before.Silent || got.Mean != before.Mean {
				t.Errorf("an old beat: got %+v, want %+v", got, before)
			}
			d.Observe(time.Hour)
			if got := d.State(time.Hour); got != detect.Alive {
				t.Errorf("heard again: got %v", got)
			}
			// The suspicion is over, and so is what led to it.
			if limit := d.Limit(); limit > 5*time.Second {
				t.Errorf("after an outage the limit is %v", limit)
			}
		})
	}
}

// A node that says that its timers are late is given that time, and no more than
// as much again as its limit.
func TestWiden(t *testing.T) {
	t.Parallel()
	for name, d := range silence() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d.Observe(time.Second)
			limit := d.Limit()
			for _, tc := range []struct{ by, want time.Duration }{
				{2 * time.Second, limit + 2*time.Second}, {time.Hour, 2 * limit}, {-time.Hour, limit}, {0, limit},
			} {
				d.Widen(tc.by)
				if got := d.Limit(); got != tc.want {
					t.Errorf("widened by %v: got a limit of %v, want %v", tc.by, got, tc.want)
				}
				if end := d.Last() + tc.want; d.State(end) == detect.Suspect || d.State(end+1) != detect.Suspect {
					t.Errorf("widened by %v: not suspect exactly after %v", tc.by, tc.want)
				}
			}
			d.Widen(time.Second)
			if e := d.Explain(0); e.Widened != time.Second || !strings.Contains(e.String(), "1s because the node reports its own timers late") {
				t.Errorf("got %q", e)
			}
		})
	}
}

func TestPhiFollowsThePaper(t *testing.T) {
	t.Parallel()
	phi := must(detect.NewPhi(detect.PhiConfig{Interval: time.Second, Pause: time.Nanosecond}))
	for i := range 1000 { // gaps of 0.9 and 1.1 s: mean 1 s, standard deviation 0.1 s
		phi.Observe(time.Duration(i)*time.Second + time.Duration(i%2)*100*time.Millisecond)
	}
	e := phi.Explain(phi.Last())
	if got := e.Mean.Round(time.Millisecond); got != time.Second {
		t.Errorf("mean: got %v", got)
	}
	if got := e.StdDev.Round(time.Millisecond); got != 100*time.Millisecond {
		t.Errorf("standard deviation: got %v", got)
	}
	// −log10 of the upper tail of the normal distribution, from tables.
	for sigmas, want := range map[float64]float64{0: 0.30103, 1: 0.79956, 2: 1.64302, 3: 2.86970, 5.612: 8, 10: 23.11805, 37: 299.09} {
		got := phi.Phi(phi.Last() + e.Mean + time.Duration(sigmas*float64(e.StdDev)))
		if math.Abs(got-want) > 0.005*max(want, 1) {
			t.Errorf("%v standard deviations beyond the mean: got φ %.5f, want %.5f", sigmas, got, want)
		}
	}
	if got := phi.Phi(phi.Deadline()); math.Abs(got-8) > 0.001 {
		t.Errorf("φ at the deadline: got %v, want 8", got)
	}
	for _, threshold := range []float64{1, 3, 8, 16, 40, 100} {
		p := must(detect.NewPhi(detect.PhiConfig{Interval: time.Second, Threshold: threshold}))
		if got := p.Phi(p.Deadline()); math.Abs(got-threshold) > 1e-4*threshold {
			t.Errorf("threshold %v: φ at the deadline is %v", threshold, got)
		}
	}
	// Both formulas for the tail meet.
	last := 0.0
	for s := 0.0; s < 60; s += 0.01 {
		got := phi.Phi(phi.Last() + e.Mean + time.Duration(s*float64(e.StdDev)))
		if got < last || s > 1 && got-last > 0.01*(s+2) {
			t.Fatalf("φ jumps from %v to %v at %v standard deviations", last, got, s)
		}
		last = got
	}
}

// Whatever was learnt, the limit has a bound.
func TestPhiMax(t *testing.T) {
	t.Parallel()
	phi := must(detect.NewPhi(detect.PhiConfig{Interval: time.Second}))
	at := time.Duration(0)
	for range 1000 { // each beat comes as late as is accepted
		at = max(phi.Deadline(), at)
		phi.Observe(at)
	}
	if got := phi.Limit(); got != 6*time.Second {
		t.Errorf("got a limit of %v, want 3 × (interval + pause), 6s", got)
	}
	for range 64 {
		at += time.Second
		phi.Observe(at)
	}
	if got := phi.Limit().Round(10 * time.Millisecond); got != 2560*time.Millisecond {
		t.Errorf("after 64 good beats: got a limit of %v, want 2.56s", got)
	}
}

// One delayed beat delays the deadline of a fixed timeout and hardly that of Chen.
func TestChenPhase(t *testing.T) {
	t.Parallel()
	chen := must(detect.NewChen(detect.ChenConfig{Interval: time.Second}))
	for i := range 100 {
		chen.Observe(time.Duration(i) * time.Second)
	}
	if got := chen.Deadline(); got != 102*time.Second {
		t.Errorf("regular beats: got %v, want 102s", got)
	}
	chen.Observe(100*time.Second + 400*time.Millisecond)
	if got := chen.Deadline(); got != 103*time.Second+25*time.Millisecond {
		t.Errorf("one beat 400ms late: got %v, want 103.025s", got)
	}
	chen.Observe(103 * time.Second) // two were lost
	if got := (chen.Deadline() - 106*time.Second).Abs(); got > 50*time.Millisecond {
		t.Errorf("two lost beats moved the deadline by %v", got)
	}
	for i := range 10 { // a burst
		chen.Observe(103*time.Second + time.Duration(i)*time.Millisecond)
	}
	if got := (chen.Deadline() - 106*time.Second).Abs(); got > 50*time.Millisecond {
		t.Errorf("a burst moved the deadline by %v", got)
	}
	chen.Observe(200 * time.Second) // an outage
	if got := chen.Deadline(); got != 203*time.Second {
		t.Errorf("after an outage: got %v, want 203s", got)
	}
	// A node whose timer is half a percent slow is not late for it.
	at := 200 * time.Second
	for range 10_000 {
		at += 1005 * time.Millisecond
		if chen.State(at) != detect.Alive {
			t.Fatalf("a slow timer: %v at %v", chen.State(at), at)
		}
		chen.Observe(at)
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	p := must(detect.NewProgress(time.Minute))
	p.Begin(100 * time.Second)
	at := func(s int) time.Duration { return time.Duration(s) * time.Second }
	for _, step := range []struct {
		at     int
		marker string
		moved  bool
		want   detect.State
	}{
		{110, "1", true, detect.Alive},
		{130, "1", false, detect.Alive},
		{120, "2", false, detect.Alive}, // an old report
		{170, "1", false, detect.Alive}, // for exactly a minute
		{171, "1", false, detect.Suspect},
		{180, "2", true, detect.Alive},
	} {
		if got := p.Report(at(step.at), step.marker); got != step.moved {
			t.Errorf("report %q at %ds: got %v, want %v", step.marker, step.at, got, step.moved)
		}
		if got := p.State(at(step.at)); got != step.want {
			t.Errorf("at %ds: got %v, want %v", step.at, got, step.want)
		}
	}
	// Nobody reports: that is no lack of progress.
	if got := p.State(at(100_000)); got != detect.Alive {
		t.Errorf("without reports: got %v, want alive", got)
	}
	p.Report(at(300), "2")
	if got, want := p.Explain(at(300)).String(), `suspect: no progress reported for 2m0s; suspect after 1m0s (marker "2" unchanged)`; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if p.Marker() != "2" {
		t.Errorf("got marker %q", p.Marker())
	}
	p.Begin(at(300)) // the observer was away
	if got := p.State(at(400)); got != detect.Alive {
		t.Errorf("after Begin: got %v", got)
	}
	p.Observe(at(310))
	if got := p.Deadline(); got != at(370) {
		t.Errorf("got deadline %v, want 370s", got)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	var lines []string
	for _, name := range []string{"fixed", "phi", "chen"} {
		d := silence()[name]
		lines = append(lines, d.Explain(400*time.Millisecond).String())
		for at := time.Second; at <= time.Minute; at += time.Second {
			d.Observe(at)
		}
		for _, ms := range []int64{400, 1600, 4200} {
			lines = append(lines, d.Explain(time.Minute+time.Duration(ms)*time.Millisecond).String())
		}
	}
	want := []string{
		"alive: no beat since the watch began 400ms ago; suspect after 3s (3 missed beats of 1s)",
		"alive: last beat 400ms ago; suspect after 3s (3 missed beats of 1s)",
		"late: silent for 1.6s, a beat was expected after 1s; suspect after 3s (3 missed beats of 1s)",
		"suspect: silent for 4.2s, a beat was expected after 1s; suspect after 3s (3 missed beats of 1s)",
		"alive: no beat since the watch began 400ms ago; suspect after 3.4s (phi 0.0 of 8; mean 1s, standard deviation 250ms of 2 gaps, pause 1s)",
		"alive: last beat 400ms ago; suspect after 2.56s (phi 0.0 of 8; mean 1s, standard deviation 100ms of 61 gaps, pause 1s)",
		"late: silent for 1.6s, a beat was expected after 1s; suspect after 2.56s (phi 0.0 of 8; mean 1s, standard deviation 100ms of 61 gaps, pause 1s)",
		"suspect: silent for 4.2s, a beat was expected after 1s; suspect after 2.56s (phi 106.8 of 8; mean 1s, standard deviation 100ms of 61 gaps, pause 1s)",
		"alive: no beat since the watch began 400ms ago; suspect after 3s (2s after the expected arrival, by the phase of 0 beats of 1s)",
		"alive: last beat 400ms ago; suspect after 3s (2s after the expected arrival, by the phase of 16 beats of 1s)",
		"late: silent for 1.6s, a beat was expected after 1s; suspect after 3s (2s after the expected arrival, by the phase of 16 beats of 1s)",
		"suspect: silent for 4.2s, a beat was expected after 1s; suspect after 3s (2s after the expected arrival, by the phase of 16 beats of 1s)",
	}
	for i := range max(len(lines), len(want)) {
		if i >= len(lines) || i >= len(want) || lines[i] != want[i] {
			t.Errorf("line %d:\ngot  %q\nwant %q", i, slices.Concat(lines, make([]string, 20))[i], slices.Concat(want, make([]string, 20))[i])
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	fixed := func(c detect.FixedConfig) error { _, err := detect.NewFixed(c); return err }
	phi := func(c detect.PhiConfig) error { _, err := detect.NewPhi(c); return err }
	chen := func(c detect.ChenConfig) error { _, err := detect.NewChen(c); return err }
	observer := func(c detect.ObserverConfig) error { _, err := detect.NewObserver(c, 0); return err }
	progress := func(d time.Duration) error { _, err := detect.NewProgress(d); return err }
	for _, tc := range []struct {
		err   error
		names []string
	}{
		{fixed(detect.FixedConfig{Interval: -time.Second}), []string{"-1s", "1ms"}},
		{fixed(detect.FixedConfig{Interval: time.Microsecond}), []string{"1µs", "1ms"}},
		{fixed(detect.FixedConfig{Interval: 25 * time.Hour}), []string{"25h", "24h"}},
		{fixed(detect.FixedConfig{Misses: -1}), []string{"-1", "1000"}},
		{fixed(detect.FixedConfig{Misses: 1001}), []string{"1001", "1000"}},
		{fixed(detect.FixedConfig{Misses: 1000, Interval: time.Hour}), []string{"1000", "1h", "720h"}},
		{fixed(detect.FixedConfig{Misses: 2, Late: 3}), []string{"2", "3"}},
		{fixed(detect.FixedConfig{Late: -1}), []string{"-1", "3"}},
		{fixed(detect.FixedConfig{Jitter: -1}), []string{"-1ns", "10s"}},
		{fixed(detect.FixedConfig{Jitter: 10 * time.Second}), []string{"jitter 10s", "interval 10s"}},
		{phi(detect.PhiConfig{Interval: 1}), []string{"1ns", "1ms"}},
		{phi(detect.PhiConfig{Threshold: math.NaN()}), []string{"NaN", "100"}},
		{phi(detect.PhiConfig{Threshold: math.Inf(1)}), []string{"+Inf", "100"}},
		{phi(detect.PhiConfig{Threshold: -8}), []string{"-8", "100"}},
		{phi(detect.PhiConfig{Threshold: 0.5}), []string{"0.5", "100"}},
		{phi(detect.PhiConfig{Pause: -1}), []string{"-1ns", "24h"}},
		{phi(detect.PhiConfig{MinStdDev: 11 * time.Second}), []string{"11s", "10s"}},
		{phi(detect.PhiConfig{MinStdDev: -1}), []string{"-1ns", "10s"}},
		{phi(detect.PhiConfig{Max: 20 * time.Second}), []string{"20s", "25.6"}},
		{phi(detect.PhiConfig{Max: 1000 * time.Hour}), []string{"1000h", "720h"}},
		{chen(detect.ChenConfig{Interval: 1}), []string{"1ns", "1ms"}},
		{chen(detect.ChenConfig{Margin: -1}), []string{"-1ns", "10s"}},
		{chen(detect.ChenConfig{Margin: math.MaxInt64}), []string{"2562047h", "720h"}},
		{progress(0), []string{"0s", "1ms"}},
		{progress(1000 * time.Hour), []string{"1000h", "720h"}},
		{observer(detect.ObserverConfig{Tick: -1}), []string{"-1ns", "24h"}},
		{observer(detect.ObserverConfig{Slack: -1}), []string{"-1ns", "24h"}},
		{observer(detect.ObserverConfig{Restart: time.Second}), []string{"1s", "1.5s"}},
		{observer(detect.ObserverConfig{Restart: -1}), []string{"-1ns", "1.5s"}},
	} {
		if !errors.Is(tc.err, detect.ErrConfig) {
			t.Errorf("%q: got %v, want ErrConfig", tc.names, tc.err)
			continue
		}
		for _, name := range tc.names {
			if !strings.Contains(tc.err.Error(), name) {
				t.Errorf("%q does not name %s", tc.err, name)
			}
		}
	}
	for _, err := range []error{
		fixed(detect.FixedConfig{Misses: 1, Late: 1}),
		phi(detect.PhiConfig{Interval: 24 * time.Hour, Threshold: 100, Pause: 24 * time.Hour}),
		phi(detect.PhiConfig{Threshold: 100, MinStdDev: 10 * time.Second}),
		chen(detect.ChenConfig{Margin: 1}),
		observer(detect.ObserverConfig{Tick: 100 * time.Millisecond, Restart: time.Second}),
	} {
		if err != nil {
			t.Errorf("a sound configuration: got %v", err)
		}
	}
}

func TestStateText(t *testing.T) {
	t.Parallel()
	for _, s := range []detect.State{detect.Alive, detect.Late, detect.Suspect} {
		b, err := json.Marshal(s)
		var back detect.State
		if err != nil || string(b) != `"`+s.String()+`"` || json.Unmarshal(b, &back) != nil || back != s {
			t.Errorf("%v is %s in JSON and came back as %v (%v)", s, b, back, err)
		}
	}
	var s detect.State
	if err := s.UnmarshalText([]byte("dead")); err == nil || s != detect.Alive {
		t.Errorf("got %v, %v", s, err)
	}
	if got := detect.State(9).String(); got != "State(9)" {
		t.Errorf("got %q", got)
	}
}

// One slot a node: tens of bytes for Fixed, a few hundred for Phi, no garbage.
func TestCost(t *testing.T) {
	for name, size := range map[string][2]uintptr{
		"Fixed":    {unsafe.Sizeof(detect.Fixed{}), 48},
		"Chen":     {unsafe.Sizeof(detect.Chen{}), 72},
		"Phi":      {unsafe.Sizeof(detect.Phi{}), 232},
		"Progress": {unsafe.Sizeof(detect.Progress{}), 80},
	} {
		if size[0] > size[1] {
			t.Errorf("%s has %d bytes, want %d at most", name, size[0], size[1])
		}
	}
	for name, d := range detectors() {
		at := time.Duration(0)
		if n := testing.AllocsPerRun(1000, func() {
			at += time.Second
			d.Observe(at)
			d.Widen(time.Millisecond)
			if d.State(at) == detect.Suspect || d.Suspicion(at+time.Minute) < 0 || d.Deadline() < at {
				t.Error(name)
			}
			d.Begin(at)
		}); n != 0 {
			t.Errorf("%s: %v allocations a beat, want 0", name, n)
		}
	}
}

// FuzzDetectors gives every detector any instants, in any order, and holds it to
// its contract: finite figures, one verdict, a bounded limit, and a deadline
// that only what it was told moves.
func FuzzDetectors(f *testing.F) {
	f.Add(int64(1e9), int64(8), []byte{0, 10, 0, 10, 1, 200, 2, 30, 3, 1, 0, 255})
	f.Add(int64(1e6), int64(100), []byte{0, 0, 0, 0, 4, 63, 0, 1, 4, 255, 2, 255})
	f.Add(int64(24*time.Hour), int64(1), []byte{1, 255, 4, 62, 0, 255, 2, 0, 3, 0})
	f.Fuzz(func(t *testing.T, interval, threshold int64, steps []byte) {
		i := time.Duration(interval)
		fixed, err1 := detect.NewFixed(detect.FixedConfig{Interval: i, Misses: int(threshold)})
		phi, err2 := detect.NewPhi(detect.PhiConfig{Interval: i, Threshold: float64(threshold)})
		chen, err3 := detect.NewChen(detect.ChenConfig{Interval: i, Margin: i * time.Duration(threshold&0xff)})
		progress, err4 := detect.NewProgress(i)
		var all []detect.Detector
		for _, d := range []struct {
			d   detect.Detector
			err error
		}{{&fixed, err1}, {&phi, err2}, {&chen, err3}, {&progress, err4}} {
			switch {
			case d.err == nil:
				all = append(all, d.d)
			case !errors.Is(d.err, detect.ErrConfig):
				t.Fatalf("%v does not match ErrConfig", d.err)
			}
		}
		now := time.Duration(0)
		for k := 0; k+1 < len(steps); k += 2 {
			arg := time.Duration(steps[k+1])
			part := time.Duration(int64(steps[k+1]) * interval / 16)
			for _, d := range all {
				switch steps[k] % 6 {
				case 0:
					d.Observe(now + part)
				case 1:
					d.Begin(now)
				case 2:
					d.Widen(part)
				case 3:
					d.Observe(now - arg)
				case 4:
					d.Observe(math.MinInt64 + 1<<(arg%64))
				case 5:
					if arg > 250 {
						d.Observe(math.MaxInt64 - arg)
					}
				}
				before := d.Deadline()
				for _, at := range []time.Duration{math.MinInt64, -1, 0, now, d.Last(), d.Deadline() - 1, d.Deadline(), d.Deadline() + 1, math.MaxInt64} {
					s, e := d.Suspicion(at), d.Explain(at)
					for _, v := range []float64{s, e.Suspicion, e.Phi, e.Threshold} {
						if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
							t.Fatalf("%s at %d: %v is no figure: %+v", e.Detector, at, v, e)
						}
					}
					suspect := d.State(at) == detect.Suspect
					if suspect != (s > 1) || e.State != d.State(at) {
						t.Fatalf("%s at %d: %v with a suspicion of %v: %v", e.Detector, at, d.State(at), s, e)
					}
					if after := at > d.Deadline(); suspect != after && (e.Detector != "progress" || suspect) {
						t.Fatalf("%s at %d: %v, with a deadline of %d", e.Detector, at, d.State(at), d.Deadline())
					}
					if e.Late > e.Limit || e.Limit <= 0 || e.Limit > 60*24*time.Hour || e.Mean < 0 || e.StdDev < 0 || e.Silent < 0 {
						t.Fatalf("%s: %+v", e.Detector, e)
					}
				}
				if d.Deadline() != before {
					t.Fatalf("a question moved the deadline from %d to %d", before, d.Deadline())
				}
			}
			if mean := phi.Explain(0).Mean; err2 == nil && mean < i*74/100 {
				t.Fatalf("phi learnt a mean of %v from beats of %v", mean, i)
			}
			if part > 0 && now < math.MaxInt64/2 {
				now += part
			}
		}
	})
}
