package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tenurehq/tenure"
)

// handovers measures B4, tenure's side.
func (b *bench) handovers(ctx context.Context) (section, error) {
	srv, err := b.serve(ctx)
	if err != nil {
		return section{}, err
	}
	name, err := srv.leases(ctx)
	if err != nil {
		return section{}, err
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return section{}, err
	}
	defer os.RemoveAll(dir)
	onPostgres := func() (*contestant, error) {
		st, err := openPostgres(ctx, srv.url(name), nil)
		if err != nil {
			return nil, err
		}
		return newContestant(ctx, st, st.close, tenure.Config{})
	}
	onSQLite := func() (*contestant, error) {
		st, err := openSQLite(ctx, filepath.Join(dir, "leases.db"))
		if err != nil {
			return nil, err
		}
		return newContestant(ctx, st, st.close, tenure.Config{})
	}
	cases := []struct {
		name    string
		waiters int
		open    func() (*contestant, error)
	}{
		{"tenure, Postgres", 1, onPostgres},
		{"tenure, Postgres", 50, onPostgres},
		{"tenure, SQLite", 1, onSQLite},
		{"tenure, SQLite", 50, onSQLite},
	}
	s := section{id: "b4"}
	t := table{title: "From the call of Release to the next holder's Acquire returning", header: append(append([]string{}, spreadHeader...), "tries a hand-over")}
	for i, c := range cases {
		progress("B4: hand-over, %s, %s", c.name, plural(c.waiters, "waiter"))
		list, tries, err := relay(ctx, fmt.Sprintf("baton-%d", i), c.waiters+1, b.rounds, c.open)
		if err != nil {
			return section{}, err
		}
		label := fmt.Sprintf("%s, %s", c.name, plural(c.waiters, "waiter"))
		t.add(append(spread(label, list), count(tries))...)
		s.rows = append(s.rows, row{"b4", fmt.Sprintf("hand-over after a clean release, %s, p50 / p99", label), pair(list), "7 / 119 ms (etcd, cited from an earlier run)", "≤ 3 / 20 ms",
			judge(median(list) <= 3*time.Millisecond && quantile(list, 0.99) <= 20*time.Millisecond)})
	}
	s.how = []string{
		"Each contestant has a keeper and a store of its own (its own connections, or its own handle of the file), all in one process, so that one clock measures. The last holder joins the waiters again before the next release. " +
			"Two durable commits lie in each hand-over. Tries count the requests for the lease by those who were waiting when it was released.",
	}
	s.tables = []table{t}
	return s, nil
}

// relay has n contestants hand one lease on, and returns how long each hand-over
// took and how many requests it needed, on average.
func relay(ctx context.Context, name string, n, rounds int, open func() (*contestant, error)) (list []time.Duration, tries float64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all := make([]*contestant, n)
	for i := range all {
		if all[i], err = open(); err != nil {
			return nil, 0, err
		}
		defer all[i].close()
	}
	term, err := all[0].keeper.Acquire(ctx, name)
	if err != nil {
		return nil, 0, err
	}
	wins := make(chan win, n)
	for _, c := range all[1:] {
		if err := c.queue(ctx, name, wins); err != nil {
			return nil, 0, err
		}
	}
	holder := all[0]
	sum := func() (total int64) {
		for _, c := range all {
			total += c.tries.Load()
		}
		return total
	}
	var needed int64
	for range rounds {
		before := sum()
		start := time.Now()
		released := make(chan error, 1)
		go func() { released <- term.Release(ctx) }()
		var w win
		select {
		case w = <-wins:
		case <-time.After(time.Minute):
			return nil, 0, fmt.Errorf("%q was not handed over within a minute", name)
		}
		if w.err != nil {
			return nil, 0, w.err
		}
		if err := <-released; err != nil {
			return nil, 0, err
		}
		list = append(list, w.at.Sub(start))
		// Whoever comes too late has asked by now or has been told of the new term.
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return nil, 0, err
		}
		needed += sum() - before
		last := holder
		holder, term = w.by, w.term
		if err := last.queue(ctx, name, wins); err != nil {
			return nil, 0, err
		}
	}
	return list, float64(needed) / float64(rounds), term.Release(ctx)
}
