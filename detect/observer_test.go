package detect_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tenurehq/tenure/detect"
)

// plane is a control plane that watches nodes as one should: it ticks when it
// can, begins anew after a gap that says so, and notes who is suspect.
type plane struct {
	observer detect.Observer
	slots    []detect.Detector
	suspect  []bool
	events   []event
}

type event struct {
	clock time.Duration
	node  int
	state detect.State
}

func newPlane(n int, newDetector func() detect.Detector) *plane {
	p := &plane{observer: must(detect.NewObserver(detect.ObserverConfig{}, 0)), suspect: make([]bool, n)}
	for range n {
		p.slots = append(p.slots, newDetector())
	}
	return p
}

func (p *plane) beat(node int, clock time.Duration) {
	p.slots[node].Observe(p.observer.At(clock))
	if p.suspect[node] {
		p.suspect[node] = false
		p.events = append(p.events, event{clock, node, detect.Alive})
	}
}

func (p *plane) tick(clock time.Duration) {
	gap := p.observer.Tick(clock)
	now := p.observer.At(clock)
	for i, d := range p.slots {
		if gap.Restart && !p.suspect[i] {
			d.Begin(now)
		}
		if !p.suspect[i] && d.State(now) == detect.Suspect {
			p.suspect[i] = true
			p.events = append(p.events, event{clock, i, detect.Suspect})
		}
	}
}

// A pause of the control plane, of any length, makes no node suspect (P9): beats
// that were queued are read before the tick that notices or after it, or were
// lost; and a node that died in it is found within twice its limit.
func TestObserverPause(t *testing.T) {
	t.Parallel()
	const nodes, interval = 20, 10 * time.Second
	kinds := map[string]func() detect.Detector{
		"fixed": func() detect.Detector { d := must(detect.NewFixed(detect.FixedConfig{})); return &d },
		"phi":   func() detect.Detector { d := must(detect.NewPhi(detect.PhiConfig{})); return &d },
		"chen":  func() detect.Detector { d := must(detect.NewChen(detect.ChenConfig{})); return &d },
	}
	for kind, newDetector := range kinds {
		for _, length := range []int{2, 5, 9, 11, 29, 31, 60, 600, 86400} {
			pause := time.Duration(length) * time.Second
			for _, queue := range []string{"read before the tick", "read after the tick", "lost"} {
				name := fmt.Sprintf("%s, %v, queue %s", kind, pause, queue)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					p := newPlane(nodes, newDetector)
					stop, wake := 200*time.Second, 200*time.Second+pause
					died := stop + pause/2 // node 0, inside the gap
					deliver := func(from, to, at time.Duration) {
						for sent := from; sent < to; sent += 100 * time.Millisecond {
							for i := range nodes {
								if sent%interval == time.Duration(i)*interval/nodes && (i > 0 || sent < died) {
									p.beat(i, max(sent, at))
								}
							}
						}
					}
					queued := func() { deliver(stop, wake, wake) }
					for clock := time.Duration(0); clock < wake+5*time.Minute; clock += time.Second {
						if clock >= stop && clock < wake {
							continue
						}
						if clock == wake && queue == "read before the tick" {
							queued()
						}
						p.tick(clock)
						if clock == wake && queue == "read after the tick" {
							queued()
						}
						deliver(clock, clock+time.Second, 0)
					}
					if len(p.events) != 1 || !p.suspect[0] {
						t.Fatalf("got %v, want the death of node 0 alone", p.events)
					}
					if found, limit := p.events[0].clock-wake, 2*p.slots[1].Limit()+time.Second; found > limit {
						t.Errorf("found %v after the end of the gap, want %v at most", found, limit)
					}
					if m := p.slots[1].Explain(0).Mean; kind == "phi" && (m < 9*time.Second || m > 11*time.Second) {
						t.Errorf("the gap is in the learnt mean: %v", m)
					}
				})
			}
		}
	}
}

// After a long gap a node that had missed a beat gets a full limit to
// report, as its connection is gone too; after a short one the silence goes on
// where it stood, without what was missed.
func TestObserverFreshWatch(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		gap, limit time.Duration
	}{
		{0, 30 * time.Second}, {8 * time.Second, 37 * time.Second}, {time.Minute, 19*time.Second + time.Minute + 30*time.Second},
	} {
		p := newPlane(1, func() detect.Detector { d := must(detect.NewFixed(detect.FixedConfig{})); return &d })
		p.beat(0, 0)
		clock := time.Duration(0)
		for len(p.events) == 0 && clock < time.Hour {
			clock += time.Second
			if clock == 20*time.Second {
				clock += tc.gap - min(tc.gap, time.Second)
			}
			p.tick(clock)
		}
		if got := (clock - tc.limit).Abs(); got > 2*time.Second {
			t.Errorf("a gap of %v after 19s of silence: suspect at %v, want about %v", tc.gap, clock, tc.limit)
		}
	}
}

// An observer that stumbles all the time still finds who is gone, and a node
// that was suspect before a gap is not cleared by it.
func TestObserverStumbles(t *testing.T) {
	t.Parallel()
	p := newPlane(1, func() detect.Detector { d := must(detect.NewFixed(detect.FixedConfig{})); return &d })
	clock := time.Duration(0)
	for range 60 { // ten seconds of listening, eight of none
		for range 10 {
			clock += time.Second
			p.tick(clock)
		}
		clock += 8 * time.Second
	}
	if len(p.events) != 1 {
		t.Fatalf("got %v, want one suspicion", p.events)
	}
	clock += time.Hour
	p.tick(clock)
	clock += time.Second
	p.tick(clock)
	if len(p.events) != 1 || !p.suspect[0] || p.slots[0].State(p.observer.At(clock)) != detect.Suspect {
		t.Errorf("after a gap: got %v and %v, want it suspect still", p.events, p.slots[0].State(p.observer.At(clock)))
	}
	gaps, sum := p.observer.Missed()
	// 59 gaps of 8 s and a second, less 1.5 s each; the hour came after a last one of 8 s.
	if want := 59*7500*time.Millisecond + time.Hour + 6500*time.Millisecond; gaps != 60 || sum != want {
		t.Errorf("missed %v in %d gaps, want %v in 60", sum, gaps, want)
	}
	if got := p.observer.At(clock) - p.observer.Since(); got != time.Second {
		t.Errorf("observing for %v, want 1s", got)
	}
}

// The same gap by the control plane's downtime stays out of the statistics (C51).
func TestObserverOutageIsNoRhythm(t *testing.T) {
	t.Parallel()
	for name, d := range silence() {
		o := must(detect.NewObserver(detect.ObserverConfig{}, 0))
		clock := time.Duration(0)
		run := func(seconds int) {
			for range seconds {
				clock += time.Second
				if o.Tick(clock).Restart {
					d.Begin(o.At(clock))
				}
				d.Observe(o.At(clock))
			}
		}
		run(300)
		clock += 10 * time.Minute
		run(60)
		fresh := silence()[name]
		for at := range 60 {
			fresh.Observe(time.Duration(at) * time.Second)
		}
		if e := d.Explain(o.At(clock)); d.Limit() > 2*fresh.Limit() || e.Mean > 2*time.Second {
			t.Errorf("%s: %v, while a new node has a limit of %v", name, e, fresh.Limit())
		}
	}
}

func TestObserverAxis(t *testing.T) {
	t.Parallel()
	o := must(detect.NewObserver(detect.ObserverConfig{}, time.Hour))
	at := func(clock, want time.Duration) {
		t.Helper()
		if got := o.At(time.Hour + clock); got != want {
			t.Errorf("at %v: got %v on the axis, want %v", clock, got, want)
		}
	}
	tick := func(clock time.Duration, want detect.Gap) {
		t.Helper()
		if got := o.Tick(time.Hour + clock); got != want {
			t.Errorf("tick at %v: got %+v, want %+v", clock, got, want)
		}
	}
	const s = time.Second
	at(0, 0)
	at(-s, 0)
	at(s/2, s/2)
	tick(s, detect.Gap{})
	at(s, s)
	at(s/2, s) // from before the tick
	tick(2*s+s/2, detect.Gap{})
	at(3*s, 3*s)
	tick(7*s+s/2, detect.Gap{Missed: 3*s + s/2}) // 5 s
	at(7*s+s/2, 4*s)
	if o.Since() != 0 {
		t.Errorf("a short gap began anew at %v", o.Since())
	}
	at(60*s, 5*s+s/2) // read after a gap, before the tick
	tick(107*s+s/2, detect.Gap{Missed: 98*s + s/2, Restart: true})
	at(107*s+s/2, 5*s+s/2)
	if o.Since() != 5*s+s/2 {
		t.Errorf("a long gap: since %v", o.Since())
	}
	tick(100*s, detect.Gap{}) // a clock that runs backwards is not believed
	at(108*s, 6*s)
}

// The axis never runs backwards nor faster than the clock, whatever is asked when.
func TestObserverMonotonic(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	o := must(detect.NewObserver(detect.ObserverConfig{}, 0))
	clock, last := time.Duration(0), time.Duration(0)
	for range 100_000 {
		step := time.Duration(r.ExpFloat64() * float64(time.Second))
		clock += step
		tick := r.IntN(2) == 0
		if tick {
			o.Tick(clock)
		}
		now := o.At(clock)
		if now < last || now > last+step {
			t.Fatalf("seed %d: the axis went from %v to %v in %v (tick: %v)", seed, last, now, step, tick)
		}
		last = now
	}
	o.Tick(math.MaxInt64)
	if got := o.At(math.MaxInt64); got < last {
		t.Errorf("at the end of time: got %v", got)
	}
}
