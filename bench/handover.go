package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

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
		s.rows = append(s.rows, row{"b4", fmt.Sprintf("hand-over after a clean release, %s, p50 / p99", label), pair(list), "below", "≤ 3 / 20 ms",
			judge(median(list) <= 3*time.Millisecond && quantile(list, 0.99) <= 20*time.Millisecond)})
	}
	s.how = []string{
		"Each contestant has a keeper and a store of its own (its own connections, or its own handle of the file), all in one process, so that one clock measures. The last holder joins the waiters again before the next release. " +
			"Two durable commits lie in each hand-over. Tries count the requests for the lease by those who were waiting when it was released.",
	}
	s.tables = []table{t}
	return s, nil
}

// peerHandovers measures B4, the peers' side.
func (b *bench) peerHandovers(ctx context.Context) (section, error) {
	const lanes = 10
	progress("B4: hand-overs of the peers, %s", b.window)
	srv, err := b.serve(ctx)
	if err != nil {
		return section{}, err
	}
	name, err := srv.database(ctx)
	if err != nil {
		return section{}, err
	}
	until := time.Now().Add(b.window)
	var elected, locked []time.Duration
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) { elected, err = electionHandovers(ctx, lanes, until, false); return err })
	group.Go(func() (err error) { locked, err = pglockHandovers(ctx, srv.url(name), lanes, until, false); return err })
	if err := group.Wait(); err != nil {
		return section{}, err
	}
	t := table{title: "The same of the peers, with their defaults and one waiter", header: spreadHeader}
	t.add(spread("client-go, ReleaseOnCancel", elected)...)
	t.add(spread("pglock", locked)...)
	return section{
		id:     "b4",
		rows:   []row{{"b4", "the same of the peers, in this run, p50 / p99", "–", fmt.Sprintf("client-go with ReleaseOnCancel %s; pglock %s", pair(elected), pair(locked)), "–", noQuest}},
		how:    []string{"The peers poll, so the moment of the release was chosen at random within their beat. client-go runs against an HTTP server in this process that answers as the Kubernetes API does; pglock runs on Postgres."},
		tables: []table{t},
	}, nil
}

// lanesOf runs n lanes side by side and puts what they measured together.
func lanesOf(ctx context.Context, n int, lane func(context.Context, int) ([]time.Duration, error)) ([]time.Duration, error) {
	lists := make([][]time.Duration, n)
	group, ctx := errgroup.WithContext(ctx)
	for i := range n {
		group.Go(func() (err error) { lists[i], err = lane(ctx, i); return err })
	}
	err := group.Wait()
	return slices.Concat(lists...), err
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
