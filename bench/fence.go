package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
)

const (
	fenceRows    = 10_000 // of the large statement
	fenceClients = 32
)

// fenceKind is a way to write to a table.
type fenceKind struct {
	name    string
	table   string
	guarded bool // it states its term first
}

var fenceKinds = []fenceKind{
	{"plain", "plain", false},
	{"tenure_fence, then as plain", "plain", true}, // the joined fence alone
	{"guarded table", "guarded", true},
}

// guards measures what a guard costs the writer: the same updates to a table
// without a guard, in a transaction that is guarded, and to a guarded table.
func (b *bench) guards(ctx context.Context) (section, error) {
	progress("Fence: guarded and plain updates")
	srv, err := b.serve(ctx)
	if err != nil {
		return section{}, err
	}
	name, err := srv.leases(ctx)
	if err != nil {
		return section{}, err
	}
	url := srv.url(name)
	st, err := openPostgres(ctx, url, nil)
	if err != nil {
		return section{}, err
	}
	defer st.close()
	req := store.Request{Name: "bench", Holder: "bench/1", TTL: longTTL, Attempt: store.NewAttempt()}
	rec, err := st.Acquire(ctx, req)
	if err != nil {
		return section{}, err
	}
	if err := fenceTables(ctx, st); err != nil {
		return section{}, err
	}
	settings, err := srv.settings(ctx)
	if err != nil {
		return section{}, err
	}
	s := section{id: "fence"}
	for _, size := range []struct{ rows, clients int }{{1, 1}, {1, fenceClients}, {fenceRows, 1}, {fenceRows, fenceClients}} {
		cases, closeAll, err := fenceCases(ctx, url, rec.Token, size.rows, size.clients)
		if err != nil {
			return section{}, err
		}
		c := &contest{cpu: srv.cpu, cases: cases}
		slice := b.slice
		if size.rows > 1 {
			slice *= 2 // such a statement takes long
		}
		err = c.run(ctx, b.reps, slice)
		closeAll()
		if err != nil {
			return section{}, err
		}
		plain, joined, guarded := cases[:1], cases[1:2], cases[2:]
		what := fmt.Sprintf("%s a statement, %s on one lease", plural(size.rows, "row"), plural(size.clients, "client"))
		s.rows = append(s.rows, row{"fence", "rows updated per second in a guarded table ÷ plain, " + what,
			fmt.Sprintf("%.2f × (%s/s); without the table's guard %.2f ×", advantage(guarded, plain), count(guarded[0].rate()), advantage(joined, plain)),
			fmt.Sprintf("1 × (%s/s)", count(plain[0].rate())), "–", noQuest})
		s.tables = append(s.tables, c.table(fmt.Sprintf("%s, %d repetitions of %s in turns", what, b.reps, slice), "rows", plain[0]))
	}
	s.how = []string{
		"Each client updates rows of its own in transactions of one statement. Plain is `BEGIN; UPDATE …; COMMIT` on a table with an owner, a token and their index; the second is the same after `SELECT tenure_fence(lease, token)`, " +
			"which locks the lease's row once; the third is that on a table that `tenure fence guard` guards, whose statement trigger checks and locks the term once more for each statement and whose row triggers are conditions " +
			"without a call. Each is one message to the server, without prepared statements. All clients write under one lease. PostgreSQL has what initdb sets: " + settings + ".",
	}
	return s, nil
}

// fenceTables makes the two tables, with the same columns and indexes.
func fenceTables(ctx context.Context, st *leaseStore) error {
	for _, table := range []string{"plain", "guarded"} {
		if _, err := st.pool.Exec(ctx, fmt.Sprintf(`CREATE TABLE %[1]s (id int PRIMARY KEY, client int NOT NULL, n int NOT NULL, note text NOT NULL, owner text, token bigint) WITH (fillfactor = 50);
			INSERT INTO %[1]s SELECT i, i / %[2]d, 0, 'a note of some length', 'bench', 1 FROM generate_series(0, %[3]d) i;
			CREATE INDEX ON %[1]s (owner, token); ANALYZE %[1]s`, table, fenceRows, fenceRows*fenceClients-1)); err != nil {
			return err
		}
	}
	steps, err := st.PlanFence(ctx)
	if err == nil {
		err = st.RunFence(ctx, steps)
	}
	if err == nil {
		steps, err = st.PlanGuard(ctx, postgres.TableGuard{Table: "guarded"})
	}
	if err == nil {
		err = st.RunFence(ctx, steps)
	}
	return err
}

// fenceCases returns an entry for each kind, in the order of fenceKinds.
func fenceCases(ctx context.Context, url string, token fence.Token, rows, clients int) (cases []*entry, closeAll func(), err error) {
	var conns []*pgx.Conn
	closeAll = func() {
		for _, c := range conns {
			_ = c.Close(context.WithoutCancel(ctx)) // the run is over
		}
	}
	for range clients {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		conns = append(conns, conn)
	}
	for _, kind := range fenceKinds {
		e := &entry{name: kind.name, clients: clients}
		for client, conn := range conns {
			e.workers = append(e.workers, kind.update(conn, token, client, rows))
		}
		cases = append(cases, e)
	}
	return cases, closeAll, nil
}

// update returns a worker that updates rows of its client, the next ones each time.
func (k fenceKind) update(conn *pgx.Conn, token fence.Token, client, rows int) worker {
	stated := ""
	if k.guarded {
		stated = fmt.Sprintf("SELECT tenure_fence('bench', %d); ", token)
	}
	next := 0
	return func(ctx context.Context) (int, error) {
		where := fmt.Sprintf("client = %d AND id BETWEEN %d AND %d", client, client*fenceRows, (client+1)*fenceRows-1)
		if rows == 1 {
			where = fmt.Sprintf("id = %d", client*fenceRows+next%fenceRows)
			next++
		}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		results, err := conn.PgConn().Exec(ctx, "BEGIN; "+stated+"UPDATE "+k.table+" SET n = n + 1 WHERE "+where+"; COMMIT").ReadAll()
		if err != nil {
			return 0, err
		}
		if changed := results[len(results)-2].CommandTag.RowsAffected(); changed != int64(rows) {
			return 0, fmt.Errorf("%s: %d rows changed, want %d", k.name, changed, rows)
		}
		return rows, nil
	}
}
