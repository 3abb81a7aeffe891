package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
	_ "modernc.org/sqlite" // the driver of sqlite.ModerncDSN

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/sqlite"
)

const (
	perStore = 2000 // leases of one holder
	longTTL  = time.Hour
)

var batches = []int{1, 100, 500, 2000}

// fleet is the leases of one holder in one store, which renews them in turn.
type fleet struct {
	st     store.Store
	grants []store.Grant
	next   int
}

// newFleet acquires n leases, side by side.
func newFleet(ctx context.Context, st store.Store, prefix string, n int) (*fleet, error) {
	f := &fleet{st: st, grants: make([]store.Grant, n)}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range n {
		group.Go(func() error {
			req := store.Request{Name: fmt.Sprintf("%s-%05d", prefix, i), Holder: "bench/" + prefix, TTL: longTTL, Attempt: store.NewAttempt()}
			rec, err := st.Acquire(ctx, req)
			f.grants[i] = store.Grant{Name: req.Name, Token: rec.Token, TTL: longTTL, Known: []store.Attempt{req.Attempt}}
			return err
		})
	}
	return f, group.Wait()
}

// renew returns a worker that renews size leases in one request: the next ones
// each time, so that each lease is renewed as often as any other.
func (f *fleet) renew(size int) worker {
	return func(ctx context.Context) (int, error) {
		if f.next+size > len(f.grants) {
			f.next = 0
		}
		part := f.grants[f.next : f.next+size]
		f.next += size
		for i, attempt := range store.NewAttempts(size) { // as the keeper does
			part[i].Attempt = attempt
		}
		results, err := f.st.Renew(ctx, part)
		if err != nil {
			return 0, err
		}
		for i := range part {
			if results[i].Err != nil {
				return 0, fmt.Errorf("renew %q: %w", part[i].Name, results[i].Err)
			}
			part[i].Known[0] = part[i].Attempt
		}
		return size, nil
	}
}

// renewals measures B1 on Postgres.
func (b *bench) renewals(ctx context.Context) (section, error) {
	progress("B1: renewals on Postgres")
	srv, err := b.serve(ctx)
	if err != nil {
		return section{}, err
	}
	name, err := srv.leases(ctx)
	if err != nil {
		return section{}, err
	}
	url := srv.url(name)
	c := &contest{cpu: srv.cpu}

	// Four holders of many leases, and 64 of a few each, for the one-row form.
	var many, few []*fleet
	for i := range 4 + 64 {
		st, err := openPostgres(ctx, url, nil)
		if err != nil {
			return section{}, err
		}
		defer st.close()
		n := perStore
		if i >= 4 {
			n = perStore / 64
		}
		f, err := newFleet(ctx, st, fmt.Sprintf("h%02d", i), n)
		if err != nil {
			return section{}, err
		}
		if i < 4 {
			many = append(many, f)
		} else {
			few = append(few, f)
		}
	}
	batched := func(size, clients int) *entry {
		e := &entry{name: fmt.Sprintf("tenure, %s a request", plural(size, "row")), clients: clients}
		for _, f := range many[:clients] {
			e.workers = append(e.workers, f.renew(size))
		}
		return e
	}
	var batch, single []*entry
	for _, clients := range []int{1, 4} {
		for _, size := range batches {
			e := batched(size, clients)
			if size == 1 {
				single = append(single, e)
			} else {
				batch = append(batch, e)
			}
		}
	}
	for _, clients := range []int{16, 64} {
		e := &entry{name: "tenure, 1 row a request", clients: clients}
		for _, f := range few[:clients] {
			e.workers = append(e.workers, f.renew(1))
		}
		single = append(single, e)
	}
	upserts, closeUpserts, err := upserts(ctx, url)
	if err != nil {
		return section{}, err
	}
	defer closeUpserts()
	heartbeats, closeHeartbeats, err := pglockHeartbeats(ctx, url)
	if err != nil {
		return section{}, err
	}
	defer closeHeartbeats()
	own := slices.Clone(single)
	single = append(single, upserts...)
	c.cases = append(alternate(batch, single), heartbeats...)

	updatesBefore, hotBefore, err := heapOnly(ctx, many[0].st.(*leaseStore))
	if err != nil {
		return section{}, err
	}
	if err := c.run(ctx, b.reps, b.slice); err != nil {
		return section{}, err
	}
	if err := pause(ctx, 1500*time.Millisecond); err != nil { // a server process tells its counts at most once a second, at its next transaction
		return section{}, err
	}
	for _, f := range many {
		if _, err := f.renew(1)(ctx); err != nil {
			return section{}, err
		}
	}
	updates, hot, err := heapOnly(ctx, many[0].st.(*leaseStore))
	if err != nil {
		return section{}, err
	}
	settings, err := srv.settings(ctx)
	if err != nil {
		return section{}, err
	}

	most, one, beat := best(batch), best(single), best(heartbeats)
	ratio, ownRatio := advantage(batch, single), advantage(batch, own)
	share := float64(hot-hotBefore) / float64(max(updates-updatesBefore, 1))
	cheapest := most
	for _, e := range batch {
		if e.cpuEach() < cheapest.cpuEach() {
			cheapest = e
		}
	}
	s := section{id: "b1"}
	s.rows = []row{
		{"b1", "durable renewals per second on one Postgres ÷ one row a statement at its best", fmt.Sprintf("%s ×  (%s/s)", count(ratio), count(most.rate())),
			fmt.Sprintf("1 × (%s/s, %s, %s); pglock %s ×", count(one.rate()), one.name, plural(one.clients, "client"), count(beat.rate()/one.rate())), "≥ 40 ×", judge(ratio >= 40)},
		{"b1", "the same ÷ tenure's own renewal of one row, at its best", fmt.Sprintf("%s ×", count(ownRatio)),
			fmt.Sprintf("1 × (%s/s, %s)", count(best(own).rate()), plural(best(own).clients, "client")), "≥ 40 ×", judge(ownRatio >= 40)},
		{"b1", "server CPU a renewal, at the best batch", fmt.Sprintf("%s (%s, %s)", short(cheapest.cpuEach()), cheapest.name, plural(cheapest.clients, "client")),
			fmt.Sprintf("%s (%s)", short(one.cpuEach()), one.name), "≤ 4 µs", judge(cheapest.cpuEach() <= 4*time.Microsecond)},
		{"b1", "renewals that were heap-only updates", fmt.Sprintf("%.1f %%", 100*share), "0 % with an index on the expiry", "–", noQuest},
	}
	s.how = []string{
		"A holder renews its leases through `store.Renew` (fresh attempt for each row and send, the compare with the attempts known, the skip of rows that somebody locked), on a connection of its own, " +
			"with what initdb sets: " + settings + ". The peers' form is one `INSERT … ON CONFLICT DO UPDATE … WHERE` a row, prepared, on a table without an index on the expiry and with fillfactor 50; pglock's is its `SendHeartbeat`. " +
			"The ratio is that of the best batch to the best one-row case, whoever's it is, in each repetition, and of these the median; the second is that to the same statement with one row. Server CPU is that of all processes of the server (backends, WAL writer, checkpointer, autovacuum) over all repetitions.",
	}
	s.tables = []table{c.table(fmt.Sprintf("Postgres, %d repetitions of %s in turns", b.reps, b.slice), "rows", one)}
	return s, nil
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%s %ss", thousands(n), noun)
}

// heapOnly returns how many updates the table of leases has seen, and how many
// of them touched no index.
func heapOnly(ctx context.Context, st *leaseStore) (updates, hot int64, err error) {
	err = st.pool.QueryRow(ctx, "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'tenure_lease'").Scan(&updates, &hot)
	return updates, hot, err
}

// upserts are the peers' way, one row a statement, in its best form.
func upserts(ctx context.Context, url string) (cases []*entry, closeAll func(), err error) {
	var conns []*pgx.Conn
	closeAll = func() {
		for _, c := range conns {
			_ = c.Close(context.WithoutCancel(ctx)) // the run is over
		}
	}
	for i := range 64 {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		conns = append(conns, conn)
		if i == 0 {
			if _, err := conn.Exec(ctx, `CREATE TABLE peer (name text PRIMARY KEY, holder text NOT NULL, expires timestamptz NOT NULL) WITH (fillfactor = 50)`); err != nil {
				closeAll()
				return nil, nil, err
			}
		}
	}
	const upsert = `INSERT INTO peer (name, holder, expires) VALUES ($1, $2, now() + interval '30 s')
		ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires = excluded.expires
		WHERE peer.holder = excluded.holder OR peer.expires < now()`
	for _, clients := range []int{1, 16, 64} {
		e := &entry{name: "upsert, 1 row a statement", clients: clients}
		each := perStore / clients
		for i, conn := range conns[:clients] {
			n := 0
			e.workers = append(e.workers, func(ctx context.Context) (int, error) {
				n++
				tag, err := conn.Exec(ctx, upsert, fmt.Sprintf("peer-%05d", i*each+n%each), "bench")
				return int(tag.RowsAffected()), err
			})
		}
		cases = append(cases, e)
	}
	return cases, closeAll, nil
}

// renewalsSQLite measures B1 on SQLite.
func (b *bench) renewalsSQLite(ctx context.Context) (section, error) {
	progress("B1: renewals on SQLite")
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return section{}, err
	}
	defer os.RemoveAll(dir)
	st, err := openSQLite(ctx, filepath.Join(dir, "leases.db"))
	if err != nil {
		return section{}, err
	}
	defer st.close()
	f, err := newFleet(ctx, st, "h", perStore)
	if err != nil {
		return section{}, err
	}
	plain, err := sql.Open("sqlite", sqlite.ModerncDSN(filepath.Join(dir, "plain.db")))
	if err != nil {
		return section{}, err
	}
	defer plain.Close()
	plain.SetMaxOpenConns(1)
	if _, err := plain.ExecContext(ctx, "CREATE TABLE peer (name TEXT PRIMARY KEY, holder TEXT NOT NULL, expires INTEGER NOT NULL) WITHOUT ROWID"); err != nil {
		return section{}, err
	}
	upsert, err := plain.PrepareContext(ctx, `INSERT INTO peer (name, holder, expires) VALUES (?, ?, ?)
		ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires = excluded.expires
		WHERE peer.holder = excluded.holder OR peer.expires < 0`)
	if err != nil {
		return section{}, err
	}
	defer func() { _ = upsert.Close() }() // the run is over

	c := &contest{}
	var batch, single []*entry
	for _, size := range batches {
		e := &entry{name: fmt.Sprintf("tenure, %s a commit", plural(size, "row")), clients: 1, workers: []worker{f.renew(size)}}
		if size == 1 {
			single = append(single, e)
		} else {
			batch = append(batch, e)
		}
	}
	own := slices.Clone(single)
	n := 0
	// SQLite writes nothing if nothing changes, so the expiry must be a new one.
	single = append(single, &entry{name: "upsert, 1 row a commit", clients: 1, workers: []worker{func(ctx context.Context) (int, error) {
		n++
		_, err := upsert.ExecContext(ctx, fmt.Sprintf("peer-%05d", n%perStore), "bench", time.Now().Add(longTTL).UnixMicro())
		return 1, err
	}}})
	c.cases = alternate(batch, single)
	if err := c.run(ctx, b.reps, b.slice); err != nil {
		return section{}, err
	}
	most, one := best(batch), best(single)
	ratio, ownRatio := advantage(batch, single), advantage(batch, own)
	return section{
		id: "b1",
		rows: []row{
			{"b1", "the same on SQLite (WAL, synchronous FULL) ÷ one row a commit", fmt.Sprintf("%s × (%s/s)", count(ratio), count(most.rate())),
				fmt.Sprintf("1 × (%s/s, %s)", count(one.rate()), one.name), "≥ 65 ×", judge(ratio >= 65)},
			{"b1", "the same on SQLite ÷ tenure's own renewal of one row", fmt.Sprintf("%s ×", count(ownRatio)),
				fmt.Sprintf("1 × (%s/s)", count(best(own).rate())), "≥ 65 ×", judge(ownRatio >= 65)},
		},
		how:    []string{"On SQLite (modernc.org/sqlite) the same leases are renewed by one writer, as a file has one writer at a time; the peers' form is one prepared upsert a commit."},
		tables: []table{c.table(fmt.Sprintf("SQLite, %d repetitions of %s in turns", b.reps, b.slice), "rows", one)},
	}, nil
}

// fileStore is a SQLite store with the database it was made on.
type fileStore struct {
	*sqlite.Store
	db *sql.DB
}

// openSQLite returns a store on the file, whose tables it makes if there are none.
func openSQLite(ctx context.Context, path string) (*fileStore, error) {
	db, err := sql.Open("sqlite", sqlite.ModerncDSN(path))
	if err != nil {
		return nil, err
	}
	st, err := sqlite.New(db, sqlite.Config{})
	if err == nil {
		err = st.Migrate(ctx)
	}
	if err != nil {
		db.Close()
		return nil, err
	}
	return &fileStore{Store: st, db: db}, nil
}

func (s *fileStore) close() {
	_ = s.Close() // the run is over
	s.db.Close()
}
