package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// settle is how long a server process that has become idle may keep what it
// has counted to itself, and a little.
const settle = 12 * time.Second

// idleHolder is a holder whose requests are counted while nothing happens.
type idleHolder struct {
	name     string
	terms    int
	database string
	wire     *wire
	before   activity
}

// holders measures B2.
func (b *bench) holders(ctx context.Context) (section, error) {
	progress("B2: requests of idle holders, %s", b.window)
	// Autovacuum's transactions would be counted.
	srv, err := b.serve(ctx, "autovacuum=off")
	if err != nil {
		return section{}, err
	}
	var all []*idleHolder
	for _, n := range []int{1, 1000} {
		h := &idleHolder{name: "tenure, TTL 30 s", terms: n, wire: new(wire)}
		if h.database, err = srv.leases(ctx); err != nil {
			return section{}, err
		}
		st, err := openPostgres(ctx, srv.url(h.database), h.wire.dial)
		if err != nil {
			return section{}, err
		}
		c, err := newContestant(ctx, st, st.close, tenure.Config{})
		if err != nil {
			return section{}, err
		}
		defer c.close()
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(8)
		for i := range n {
			group.Go(func() error {
				_, err := c.keeper.Acquire(ctx, fmt.Sprintf("idle-%04d", i))
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return section{}, err
		}
		all = append(all, h)
	}
	const locks = 10
	peer := &idleHolder{name: "pglock, defaults", terms: locks, wire: new(wire)}
	if peer.database, err = srv.database(ctx); err != nil {
		return section{}, err
	}
	client, closePeer, err := openPglock(srv.url(peer.database), 4, peer.wire)
	if err != nil {
		return section{}, err
	}
	defer closePeer()
	for i := range locks {
		if _, err := client.AcquireContext(ctx, fmt.Sprintf("idle-%d", i)); err != nil {
			return section{}, err
		}
	}
	all = append(all, peer)

	if err := pause(ctx, settle); err != nil {
		return section{}, err
	}
	for _, h := range all {
		if h.before, err = srv.activity(ctx, h.database); err != nil {
			return section{}, err
		}
		h.wire.reset()
	}
	start := time.Now()
	leader, _, err := elections(ctx, b.window)
	if err != nil {
		return section{}, err
	}
	minutes := time.Since(start).Minutes()

	t := table{title: fmt.Sprintf("In %s, a minute", b.window), header: []string{"holder", "terms", "requests", "requests, by the time between", "transactions at the server", "rows written", "rows a term, by that rate"}}
	rates := make([]float64, len(all))
	written := make([]float64, len(all))
	for i, h := range all {
		after, err := srv.activity(ctx, h.database)
		if err != nil {
			return section{}, err
		}
		asked, wrote := float64(h.wire.asked()), float64(after.updated-h.before.updated)
		rates[i] = h.wire.perMinute()
		// By the server's own counts, which end a beat earlier or later than ours.
		written[i] = wrote / float64(max(after.commits-h.before.commits, 1)) * rates[i] / float64(h.terms)
		if h == peer { // many beats, of a few requests and transactions each
			rates[i], written[i] = asked/minutes, wrote/minutes/float64(h.terms)
		}
		t.add(h.name, thousands(h.terms), count(asked/minutes), count(rates[i]), count(float64(after.commits-h.before.commits)/minutes), count(wrote/minutes), count(written[i]))
	}
	t.add("client-go, defaults", "1", count(leader), "–", "–", count(leader), count(leader))
	perLock := rates[2] / locks
	const jitter = 1.01 // an interval is shortened by up to 1 %
	return section{
		id: "b2",
		rows: []row{
			{"b2", "requests a minute of a process holding 1 / 1,000 terms of TTL 30 s", count(rates[0]) + " / " + count(rates[1]),
				fmt.Sprintf("pglock %s a lock, client-go %s a lease", count(perLock), count(leader)), "≤ 6, whatever n, and 1 % for the jitter", judge(rates[0] <= 6*jitter && rates[1] <= 6*jitter)},
			{"b2", "rows written a minute, for each term of 1,000", count(written[1]), fmt.Sprintf("pglock %s, client-go %s", count(written[2]), count(leader)), "≤ 6, and 1 %", judge(written[1] <= 6*jitter)},
		},
		how: []string{
			"Requests are what the client sends to be executed (Query and Execute messages), counted in its connections; for tenure the rate is taken between the first and the last in the window, so that a beat more or less at its ends does not matter. " +
				"Transactions and rows are the server's own counts for the database, read in another database, with autovacuum off. pglock uses lib/pq, as its documentation says; preparing a statement is not counted. " +
				"client-go's election runs with its defaults against an HTTP server in this process that answers reads and conditional updates of leases as the Kubernetes API does; an update is one request and one write.",
		},
		tables: []table{t},
	}, nil
}

// waiters measures B3: what waiting costs while the holder renews.
func (b *bench) waiters(ctx context.Context) (section, error) {
	progress("B3: requests of waiters, %s", b.window)
	srv, err := b.serve(ctx, "autovacuum=off")
	if err != nil {
		return section{}, err
	}
	const each, stores = 5, 4
	type kind struct {
		name     string
		watch    bool
		wire     wire
		all      []*contestant
		database string
		before   activity
	}
	kinds := []*kind{{name: "tenure, with a watch", watch: true}, {name: "tenure, without one"}}
	tries := func(k *kind) (n int64) {
		for _, c := range k.all {
			n += c.tries.Load()
		}
		return n
	}
	for _, k := range kinds {
		name, err := srv.leases(ctx)
		if err != nil {
			return section{}, err
		}
		k.database = name
		holder, err := openPostgres(ctx, srv.url(name), nil)
		if err != nil {
			return section{}, err
		}
		h, err := newContestant(ctx, holder, holder.close, tenure.Config{})
		if err != nil {
			return section{}, err
		}
		defer h.close()
		if _, err := h.keeper.Acquire(ctx, "busy"); err != nil {
			return section{}, err
		}
		wins := make(chan win, each*stores)
		for range stores {
			st, err := openPostgres(ctx, srv.url(name), k.wire.dial)
			if err != nil {
				return section{}, err
			}
			var s store.Store = st
			if !k.watch {
				s = blind{st}
			}
			c, err := newContestant(ctx, s, st.close, tenure.Config{})
			if err != nil {
				return section{}, err
			}
			defer c.close()
			k.all = append(k.all, c)
			for range each {
				if err := c.queue(ctx, "busy", wins); err != nil {
					return section{}, err
				}
			}
		}
	}
	if err := pause(ctx, settle); err != nil {
		return section{}, err
	}
	for _, k := range kinds {
		k.wire.reset()
		for _, c := range k.all {
			c.tries.Store(0)
		}
		if k.before, err = srv.activity(ctx, k.database); err != nil {
			return section{}, err
		}
	}
	start := time.Now()
	_, standby, err := elections(ctx, b.window)
	if err != nil {
		return section{}, err
	}
	per := time.Since(start).Minutes() * each * stores
	t := table{title: fmt.Sprintf("%d waiters for a lease of TTL 30 s that its holder renews, in %s; a minute and waiter", each*stores, b.window),
		header: []string{"", "requests for the lease", "messages on the wire, the pool's pings included", "rows written, the holder's included"}}
	rates := make([]float64, len(kinds))
	for i, k := range kinds {
		after, err := srv.activity(ctx, k.database)
		if err != nil {
			return section{}, err
		}
		rates[i] = float64(tries(k)) / per
		t.add(k.name, count(rates[i]), count(float64(k.wire.asked())/per), fmt.Sprintf("%d (in all, of the holder's %.1f renewals)", after.updated-k.before.updated, 6*time.Since(start).Minutes()))
	}
	t.add("client-go, defaults", count(standby), "–", "–")
	return section{
		id: "b3",
		rows: []row{
			{"b3", "store requests a minute of a waiter, with a watch", count(rates[0]), "client-go " + count(standby), "0", judge(rates[0] == 0)},
			{"b3", "the same where the store cannot tell", count(rates[1]), "client-go " + count(standby), "≤ 2", judge(rates[1] <= 2)},
		},
		how:    []string{"A waiter knows when the term that it waits for would expire, as last told, and asks then: a crash shows in no other way. It counts the requests for the lease after the first two (the first, and one after the watch began)."},
		tables: []table{t},
	}, nil
}

// silence measures B3 where nothing happens: many waiters, one name, a holder
// who need not renew. Then the lease is released, again and again.
func (b *bench) silence(ctx context.Context) (section, error) {
	const each, stores, handovers = 25, 8, 20
	window := b.window / 5
	progress("B3: what %d waiters write, 3 × %s", each*stores, window)
	srv, err := b.serve(ctx, "autovacuum=off")
	if err != nil {
		return section{}, err
	}
	name, err := srv.leases(ctx)
	if err != nil {
		return section{}, err
	}
	st, err := openPostgres(ctx, srv.url(name), nil)
	if err != nil {
		return section{}, err
	}
	defer st.close()
	req := store.Request{Name: "quiet", Holder: "bench/holder", TTL: longTTL, Attempt: store.NewAttempt()}
	rec, err := st.Acquire(ctx, req)
	if err != nil {
		return section{}, err
	}
	if _, err := srv.admin.Exec(ctx, "CHECKPOINT"); err != nil {
		return section{}, err
	}
	// The server notes its running transactions once after the last write.
	if err := pause(ctx, 16*time.Second); err != nil {
		return section{}, err
	}

	var w wire
	t := table{title: fmt.Sprintf("A lease that needs no renewal, %s each", window), header: []string{"", "requests for the lease", "messages on the wire", "log written, bytes"}}
	var lost, written [3]int64
	var all [3][]*contestant
	sum := func(list []*contestant) (n int64) {
		for _, c := range list {
			n += c.tries.Load()
		}
		return n
	}
	var wins [3]chan win
	waiting, stopWaiting := context.WithCancel(ctx)
	defer stopWaiting()
	for i, label := range []string{"nobody waits", fmt.Sprintf("%d wait without a watch", each*stores), fmt.Sprintf("%d wait with a watch", each*stores)} {
		wins[i] = make(chan win, each*stores)
		round, endRound := context.WithCancel(waiting)
		defer endRound()
		for range stores {
			if i == 0 {
				break
			}
			own, err := openPostgres(ctx, srv.url(name), w.dial)
			if err != nil {
				return section{}, err
			}
			var s store.Store = own
			if i == 1 {
				s = blind{own}
			}
			c, err := newContestant(ctx, s, own.close, tenure.Config{})
			if err != nil {
				return section{}, err
			}
			defer c.close()
			all[i] = append(all[i], c)
			for range each {
				if err := c.queue(round, "quiet", wins[i]); err != nil {
					return section{}, err
				}
			}
		}
		w.reset()
		before := sum(all[i])
		wal, err := srv.wal(ctx)
		if err != nil {
			return section{}, err
		}
		if err := pause(ctx, window); err != nil {
			return section{}, err
		}
		walAfter, err := srv.wal(ctx)
		if err != nil {
			return section{}, err
		}
		asked := sum(all[i]) - before
		lost[i], written[i] = asked, walAfter-wal
		t.add(label, thousands(int(asked)), thousands(w.asked()), thousands(int(written[i])))
		if i == 1 {
			endRound()
		}
	}

	// One release wakes many; exactly one wins.
	grant := store.Grant{Name: req.Name, Token: rec.Token, Attempt: store.NewAttempt(), Known: []store.Attempt{req.Attempt}}
	release := func(ctx context.Context) error {
		results, err := st.Release(ctx, []store.Grant{grant})
		if err != nil {
			return err
		}
		return results[0].Err
	}
	var tries []float64
	var most float64
	for range handovers {
		before := sum(all[2])
		if err := release(ctx); err != nil {
			return section{}, err
		}
		won := <-wins[2]
		if won.err != nil {
			return section{}, won.err
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil { // whoever asks too late has asked by then
			return section{}, err
		}
		select {
		case w := <-wins[2]:
			return section{}, fmt.Errorf("a second waiter for %q was answered: %w", req.Name, w.err)
		default:
		}
		n := float64(sum(all[2]) - before)
		tries = append(tries, n)
		most = max(most, n)
		release = won.term.Release
	}
	s := section{
		id: "b3",
		rows: []row{
			{"b3", fmt.Sprintf("%d waiters with a watch, while the expiry is far", each*stores), fmt.Sprintf("%d requests, %d bytes of log", lost[2], written[2]), fmt.Sprintf("nobody waiting: %d bytes of log", written[0]),
				"0 requests, never a write", judge(lost[2] == 0 && written[2] <= written[0])},
			{"b3", fmt.Sprintf("%d waiters without one", each*stores), fmt.Sprintf("%d losing requests, %d bytes of log", lost[1], written[1]), "each losing upsert logs and flushes", "never a write", judge(written[1] <= written[0])},
			{"b3", fmt.Sprintf("tries that one release causes with %d waiters, median of %d hand-overs; winners", each*stores, handovers), fmt.Sprintf("%.0f (at most %.0f); 1", median(tries), most), fmt.Sprint(each * stores), "–", noQuest},
		},
		how:    []string{fmt.Sprintf("For what waiting writes, the lease has a TTL of an hour and nobody renews it, so that the server's log (`pg_current_wal_insert_lsn`) moves only if a waiter moves it. %d waiters share %d stores, as in %d processes.", each*stores, stores, stores)},
		tables: []table{t},
	}
	return s, nil
}
