package loadgen

import (
	"maps"
	"math"
	"time"
)

// tally is what nodes counted.
type tally struct {
	Beats    int            `json:"beats"`    // that were answered
	Requests int            `json:"requests"` // that brought them
	Renewed  int            `json:"renewed"`  // of the beats, those whose lease was renewed
	Lost     int            `json:"lost"`     // without an answer
	Refused  map[string]int `json:"refused"`  // by "beat" or "renewal" and the code
	Fenced   int            `json:"fenced"`   // nodes that could not renew in time, by their own clock
	Reply    histogram      `json:"reply"`    // from the send to the whole answer
	Late     histogram      `json:"late"`     // of the generator itself: from when a beat was due to its send
}

func (t *tally) refuse(what, code string) {
	if t.Refused == nil {
		t.Refused = map[string]int{}
	}
	t.Refused[what+" "+code]++
}

// add adds what another process counted.
func (t *tally) add(o *tally) {
	t.Beats, t.Requests, t.Renewed, t.Lost, t.Fenced = t.Beats+o.Beats, t.Requests+o.Requests, t.Renewed+o.Renewed, t.Lost+o.Lost, t.Fenced+o.Fenced
	if t.Refused == nil {
		t.Refused = map[string]int{}
	}
	for code, n := range maps.All(o.Refused) {
		t.Refused[code] += n
	}
	t.Reply.add(&o.Reply)
	t.Late.add(&o.Late)
}

// histogram counts durations in steps of 4.4 %, from a microsecond on.
type histogram struct {
	Counts []uint64      `json:"counts"`
	Most   time.Duration `json:"most_ns"`
}

// perOctave is how many steps double a duration.
const perOctave = 16

func (h *histogram) count(d time.Duration) {
	step := 0
	if d > time.Microsecond {
		step = int(math.Ceil(math.Log2(float64(d)/float64(time.Microsecond)) * perOctave))
	}
	for len(h.Counts) <= step {
		h.Counts = append(h.Counts, 0)
	}
	h.Counts[step]++
	h.Most = max(h.Most, d)
}

func (h *histogram) add(o *histogram) {
	for len(h.Counts) < len(o.Counts) {
		h.Counts = append(h.Counts, 0)
	}
	for i, n := range o.Counts {
		h.Counts[i] += n
	}
	h.Most = max(h.Most, o.Most)
}

// quantile returns the upper end of the step in which the fraction q lies; 0 of none.
func (h *histogram) quantile(q float64) time.Duration {
	var all uint64
	for _, n := range h.Counts {
		all += n
	}
	need := uint64(math.Ceil(q * float64(all)))
	var seen uint64
	for step, n := range h.Counts {
		if seen += n; seen >= need && n > 0 {
			return min(time.Duration(math.Exp2(float64(step)/perOctave)*float64(time.Microsecond)), h.Most)
		}
	}
	return h.Most
}
