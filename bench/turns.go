package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// contest is a set of cases that are measured in turns.
type contest struct {
	cases []*entry
	cpu   func() (time.Duration, error) // of the server; nil if it cannot be told apart
}

// entry is one case: workers that repeat one request each.
type entry struct {
	name    string
	clients int
	workers []worker
	rates   []float64 // units a second, of each repetition
	units   int64
	cpu     time.Duration
}

// worker sends one request and returns how many units of work it did.
type worker func(context.Context) (int, error)

// rate is the median of the repetitions.
func (e *entry) rate() float64 { return median(e.rates) }

// cpuEach is what the server used for one unit, over all repetitions.
func (e *entry) cpuEach() time.Duration {
	if e.units == 0 {
		return 0
	}
	return time.Duration(float64(e.cpu) / float64(e.units))
}

// run measures each case once, reps times over, after a short turn to warm up.
func (c *contest) run(ctx context.Context, reps int, slice time.Duration) error {
	for rep := -1; rep < reps; rep++ {
		for _, e := range c.cases {
			if err := c.once(ctx, e, rep < 0, slice); err != nil {
				return fmt.Errorf("%s, %d clients: %w", e.name, e.clients, err)
			}
		}
	}
	return nil
}

func (c *contest) once(ctx context.Context, e *entry, warm bool, slice time.Duration) error {
	if warm {
		slice /= 5
	}
	var before, after time.Duration
	var err error
	if c.cpu != nil {
		if before, err = c.cpu(); err != nil {
			return err
		}
	}
	var (
		units atomic.Int64
		group sync.WaitGroup
		mu    sync.Mutex
		errs  []error
		start = time.Now()
	)
	for _, w := range e.workers {
		group.Go(func() {
			for time.Since(start) < slice {
				n, err := w(ctx)
				if err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
					return
				}
				units.Add(int64(n))
			}
		})
	}
	group.Wait()
	took := time.Since(start)
	if err := errors.Join(errs...); err != nil || warm {
		return err
	}
	if c.cpu != nil {
		if after, err = c.cpu(); err != nil {
			return err
		}
	}
	e.rates = append(e.rates, float64(units.Load())/took.Seconds())
	e.units += units.Load()
	e.cpu += after - before
	return nil
}

// best is the case with the highest rate.
func best(cases []*entry) *entry {
	b := cases[0]
	for _, e := range cases {
		if e.rate() > b.rate() {
			b = e
		}
	}
	return b
}

// advantage is the median, over the repetitions, of the best rate in it among
// these cases divided by the best among those.
func advantage(these, those []*entry) float64 {
	highest := func(cases []*entry, rep int) (rate float64) {
		for _, e := range cases {
			rate = max(rate, e.rates[rep])
		}
		return rate
	}
	var ratios []float64
	for rep := range these[0].rates {
		ratios = append(ratios, highest(these, rep)/highest(those, rep))
	}
	return median(ratios)
}

// alternate puts the cases of two lists in turns.
func alternate(a, b []*entry) (list []*entry) {
	for i := range max(len(a), len(b)) {
		list = append(list, a[min(i, len(a)):min(i+1, len(a))]...)
		list = append(list, b[min(i, len(b)):min(i+1, len(b))]...)
	}
	return list
}

// table lists the cases, each beside base.
func (c *contest) table(title, unit string, base *entry) table {
	t := table{title: title, header: []string{"case", "clients", unit + "/s, median", "of the repetitions", "server CPU each", "ratio to the best single"}}
	for _, e := range c.cases {
		cpu := "–"
		if c.cpu != nil {
			cpu = short(e.cpuEach())
		}
		var all string
		for i, r := range e.rates {
			if i > 0 {
				all += " · "
			}
			all += count(r)
		}
		t.add(e.name, fmt.Sprint(e.clients), count(e.rate()), all, cpu, count(e.rate()/base.rate()))
	}
	return t
}
