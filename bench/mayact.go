package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
)

// mayAct measures B6.
func (b *bench) mayAct(ctx context.Context) (section, error) {
	progress("B6: MayAct")
	k, stop, err := keep(ctx, memory.New(), tenure.Config{})
	if err != nil {
		return section{}, err
	}
	defer stop()
	term, err := k.Acquire(ctx, "bench")
	if err != nil {
		return section{}, err
	}
	var now time.Time
	cases := []struct {
		name string
		f    func()
	}{
		{"`time.Now`", func() { now = time.Now() }},
		{"`MayAct`, fast path", func() { term.MayAct() }},
		{"`MayAct`, full reading of the clocks (as `State` does)", func() { term.State() }},
	}
	t := table{title: fmt.Sprintf("%d repetitions in turns", b.reps), header: []string{"", "ns, median", "of the repetitions", "allocations", "bytes"}}
	times, allocs := make([][]float64, len(cases)), make([]int64, len(cases))
	bytes := make([]int64, len(cases))
	for range b.reps {
		for i, c := range cases {
			r := testing.Benchmark(func(tb *testing.B) {
				tb.ReportAllocs()
				for tb.Loop() {
					c.f()
				}
			})
			times[i] = append(times[i], float64(r.T.Nanoseconds())/float64(r.N))
			allocs[i], bytes[i] = max(allocs[i], r.AllocsPerOp()), max(bytes[i], r.AllocedBytesPerOp())
		}
	}
	if now.IsZero() {
		return section{}, errors.New("the clock was not read")
	}
	if _, ok := term.MayAct(); !ok {
		return section{}, fmt.Errorf("the term was lost while it was measured: %w", term.Err())
	}
	for i, c := range cases {
		var all string
		for j, n := range times[i] {
			if j > 0 {
				all += " · "
			}
			all += count(n)
		}
		t.add(c.name, count(median(times[i])), all, fmt.Sprint(allocs[i]), fmt.Sprint(bytes[i]))
	}
	fast := median(times[1])
	return section{
		id: "b6",
		rows: []row{{"b6", "`MayAct`, fast path", fmt.Sprintf("%s ns, %d allocations", count(fast), allocs[1]), fmt.Sprintf("`time.Now` %s ns", count(median(times[0]))),
			"≤ 200 ns, 0", judge(fast <= 200 && allocs[1] == 0)}},
		how:    []string{"By `testing.Benchmark`, on a term of a store in memory with a running keeper. The full reading is what decides when the wall clock and the monotonic clock disagree, and at each tick of the keeper."},
		tables: []table{t},
	}, nil
}

// keep returns a running keeper. stop ends it without waiting for what is still
// held to be released.
func keep(ctx context.Context, st store.Store, cfg tenure.Config) (k *tenure.Keeper, stop func(), err error) {
	if cfg.DrainTimeout == 0 {
		cfg.DrainTimeout = time.Millisecond
	}
	k, err = tenure.NewKeeper(st, cfg)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = k.Run(ctx) // what was not released is told by nobody: the run is over
	}()
	return k, func() { cancel(); <-ended }, nil
}
