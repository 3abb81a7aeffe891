package main

import (
	"context"
	"database/sql"
	"fmt"

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
