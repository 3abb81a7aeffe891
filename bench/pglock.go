package main

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"time"

	"cirello.io/pglock"
	"github.com/lib/pq"
)

// openPglock returns a pglock client over the driver that it recommends, with
// its tables. w may be nil.
func openPglock(url string, connections int, w *wire, opts ...pglock.ClientOption) (*pglock.Client, func(), error) {
	connector, err := pq.NewConnector(url)
	if err != nil {
		return nil, nil, err
	}
	if w != nil {
		connector.Dialer(w)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	client, err := pglock.New(db, opts...)
	if err == nil {
		err = client.TryCreateTable()
	}
	if err != nil {
		db.Close()
		return nil, nil, err
	}
	return client, func() { db.Close() }, nil
}

// pglockHeartbeats are pglock's heartbeats as fast as they go, of many locks.
func pglockHeartbeats(ctx context.Context, url string) (cases []*entry, closeAll func(), err error) {
	const each = 8
	client, closeAll, err := openPglock(url, 16, nil, pglock.WithHeartbeatFrequency(0))
	if err != nil {
		return nil, nil, err
	}
	var workers []worker
	for i := range 16 {
		var locks []*pglock.Lock
		for j := range each {
			l, err := client.AcquireContext(ctx, fmt.Sprintf("peer-%d-%d", i, j))
			if err != nil {
				closeAll()
				return nil, nil, err
			}
			locks = append(locks, l)
		}
		n := 0
		workers = append(workers, func(ctx context.Context) (int, error) {
			n++
			return 1, client.SendHeartbeat(ctx, locks[n%each])
		})
	}
	for _, clients := range []int{1, 16} {
		cases = append(cases, &entry{name: "pglock heartbeat", clients: clients, workers: workers[:clients]})
	}
	return cases, closeAll, nil
}

// pglockHandovers has two clients hand locks to and fro until the time is up,
// and returns how long each hand-over took from the call of Release. If holders
// crash instead, it returns how long after the expiry it was.
func pglockHandovers(ctx context.Context, url string, lanes int, until time.Time, crash bool) ([]time.Duration, error) {
	// The heartbeats are ours, so that they can end and their time is known.
	client, closeClient, err := openPglock(url, 2*lanes, nil, pglock.WithHeartbeatFrequency(0))
	if err != nil {
		return nil, err
	}
	defer closeClient()
	return lanesOf(ctx, lanes, func(ctx context.Context, lane int) (list []time.Duration, err error) {
		name := fmt.Sprintf("baton-%d", lane)
		holder, err := client.AcquireContext(ctx, name)
		if err != nil {
			return nil, err
		}
		type win struct {
			lock *pglock.Lock
			at   time.Time
			err  error
		}
		for {
			won := make(chan win, 1)
			go func() {
				l, err := client.AcquireContext(ctx, name)
				won <- win{l, time.Now(), err}
			}()
			// Anywhere between two looks of the waiter, after its first.
			last, err := beatUpTo(ctx, client, holder, time.Second, pglock.DefaultLeaseDuration)
			if err != nil {
				return nil, err
			}
			start := last.Add(pglock.DefaultLeaseDuration)
			if !crash {
				start = time.Now()
				if err := client.ReleaseContext(ctx, holder); err != nil {
					return nil, err
				}
			}
			w := <-won
			if w.err != nil {
				return nil, w.err
			}
			list = append(list, w.at.Sub(start))
			if holder = w.lock; time.Now().After(until.Add(-pglock.DefaultLeaseDuration)) {
				return list, client.ReleaseContext(ctx, holder)
			}
		}
	})
}

// beatUpTo sends pglock's heartbeats at its default frequency for a random time
// between the two, and returns when the last one left.
func beatUpTo(ctx context.Context, client *pglock.Client, l *pglock.Lock, least, most time.Duration) (last time.Time, err error) {
	end := time.Now().Add(least + time.Duration(rand.Int64N(int64(most-least))))
	for {
		last = time.Now()
		if err := client.SendHeartbeat(ctx, l); err != nil {
			return last, err
		}
		left := time.Until(end)
		if err := pause(ctx, min(left, pglock.DefaultHeartbeatFrequency)); err != nil || left <= pglock.DefaultHeartbeatFrequency {
			return last, err
		}
	}
}
