package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
)

var levels = []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}

func request(name string) store.Request {
	return store.Request{Name: name, Holder: "host/1", TTL: time.Minute, Attempt: store.NewAttempt()}
}

// hold begins a term and returns the grant to renew it with.
func hold(t testing.TB, s *postgres.Store, req store.Request) store.Grant {
	t.Helper()
	rec, err := s.Acquire(bounded(t), req)
	if err != nil {
		t.Fatal(err)
	}
	return store.Grant{Name: rec.Name, Token: rec.Token, TTL: req.TTL, Attempt: store.NewAttempt(), Known: []store.Attempt{rec.Attempt}}
}

// replacing asks for the term after g's, which need not lapse for it.
func replacing(g store.Grant) store.Request {
	req := request(g.Name)
	req.Replace = &g
	return req
}

func begin(t testing.TB, pool *pgxpool.Pool, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := pool.BeginTx(bounded(t), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // if the test left it open
	return tx
}

func exec(t testing.TB, db interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}, statement string, args ...any) {
	t.Helper()
	if _, err := db.Exec(bounded(t), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// blocked waits until a server process with this application name waits for a lock.
func blocked(t testing.TB, pool *pgxpool.Pool, query string) {
	t.Helper()
	eventually(t, "a request waits for a lock", func() bool {
		var n int
		err := pool.QueryRow(bounded(t), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE $1", "%"+query+"%").Scan(&n)
		return err == nil && n > 0
	})
}

func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for start := time.Now(); !done(); {
		if time.Since(start) > limit {
			t.Fatalf("still not so after %s: %s", limit, what)
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}

// TestP7GuardFirst: the takeover waits for the commit of a guarded transaction.
func TestP7GuardFirst(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		t.Run(strings.ReplaceAll(string(level), " ", "_"), func(t *testing.T) {
			t.Parallel()
			_, pool := fresh(t)
			exec(t, pool, "CREATE TABLE target (token bigint)")
			s := open(t, pool, postgres.Config{TakeoverWait: limit})
			g := hold(t, s, request("job"))
			tx := begin(t, pool, level)
			if err := guardedInsert(t, tx, g); err != nil {
				t.Fatal(err)
			}
			type answer struct {
				rec store.Record
				err error
			}
			answers := make(chan answer, 1)
			go func() {
				rec, err := s.Acquire(context.Background(), replacing(g))
				answers <- answer{rec, err}
			}()
			blocked(t, pool, "tenure_acquire")
			if err := tx.Commit(bounded(t)); err != nil {
				t.Fatalf("commit of the guarded transaction: %v", err)
			}
			a := <-answers
			if a.err != nil || a.rec.Token != g.Token+1 {
				t.Errorf("takeover after the commit: got token %s, error %v, want token %s", a.rec.Token, a.err, g.Token+1)
			}
		})
	}
}

func guardedInsert(t testing.TB, tx pgx.Tx, g store.Grant) error {
	if err := postgres.Guard(bounded(t), tx, "", g.Name, g.Token); err != nil {
		return err
	}
	_, err := tx.Exec(bounded(t), "INSERT INTO target VALUES ($1)", int64(g.Token))
	return err
}

// takeoverThenGuard opens a transaction and its snapshot, lets the next term
// begin, and then tries a guarded write of the old one.
func takeoverThenGuard(t *testing.T, s *postgres.Store, pool *pgxpool.Pool, level pgx.TxIsoLevel) error {
	t.Helper()
	g := hold(t, s, request("job/"+strings.ReplaceAll(string(level), " ", "_")))
	tx := begin(t, pool, level)
	exec(t, tx, "SELECT count(*) FROM target")
	hold(t, s, replacing(g))
	if err := guardedInsert(t, tx, g); err != nil {
		return err
	}
	return tx.Commit(bounded(t))
}

// TestP7SnapshotFirst: a snapshot from before the takeover does not let a stale
// write through.
func TestP7SnapshotFirst(t *testing.T) {
	t.Parallel()
	s, pool := fresh(t)
	exec(t, pool, "CREATE TABLE target (token bigint)")
	for _, level := range levels {
		err := takeoverThenGuard(t, s, pool, level)
		stale, isStale := errors.AsType[*fence.StaleError](err)
		switch {
		case level == pgx.ReadCommitted && (!isStale || stale.Token != 1 || stale.Current != 2):
			t.Errorf("%s: got error %v, want token 1 refused and 2 named", level, err)
		case level != pgx.ReadCommitted && (isStale || !errors.Is(err, store.ErrBusy) || sqlState(err) != "40001"):
			t.Errorf("%s: got error %v, want a serialization failure that is not stale", level, err)
		}
	}
	var n int
	if err := pool.QueryRow(bounded(t), "SELECT count(*) FROM target").Scan(&n); err != nil || n != 0 {
		t.Errorf("got %d stale writes, error %v, want none", n, err)
	}
}

func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// TestP7AnyUpdateOfTheToken: whoever changes the token, the guard sees it, and
// that stands on UNIQUE (name, token). Without the index a plain update lets the
// stale write commit, and Check says so.
func TestP7AnyUpdateOfTheToken(t *testing.T) {
	t.Parallel()
	s, pool := fresh(t)
	exec(t, pool, "CREATE TABLE target (token bigint)")
	stale := func() error {
		g := hold(t, s, request("job/"+store.NewAttempt().String()))
		tx := begin(t, pool, pgx.RepeatableRead)
		exec(t, tx, "SELECT count(*) FROM target")
		exec(t, pool, "UPDATE tenure_lease SET token = token + 1 WHERE name = $1", g.Name)
		if err := guardedInsert(t, tx, g); err != nil {
			return err
		}
		return tx.Commit(bounded(t))
	}
	if err := stale(); sqlState(err) != "40001" {
		t.Errorf("guard after a foreign update of the token: got error %v, want a serialization failure", err)
	}
	exec(t, pool, "ALTER TABLE tenure_lease DROP CONSTRAINT tenure_lease_name_token")
	if err := stale(); err != nil {
		t.Errorf("without the index: got error %v; if PostgreSQL refuses this by itself now, the index is not needed any more", err)
	}
	if err := s.Check(bounded(t)); !errors.Is(err, store.ErrSchema) || !strings.Contains(err.Error(), "(name, token)") {
		t.Errorf("Check without the index: got error %v, want one that names it", err)
	}
}

// TestGuardNeedsNoRights: an application's role has no right on the leases.
func TestGuardNeedsNoRights(t *testing.T) {
	t.Parallel()
	s, pool := fresh(t)
	g := hold(t, s, request("job"))
	role := fmt.Sprintf("app_%d", time.Now().UnixNano())
	exec(t, pool, "CREATE ROLE "+role)
	t.Cleanup(func() { exec(t, pool, "DROP ROLE "+role) })
	tx := begin(t, pool, pgx.ReadCommitted)
	exec(t, tx, "SET LOCAL ROLE "+role)
	exec(t, tx, "SET LOCAL search_path = pg_temp")
	if err := postgres.Guard(bounded(t), tx, "", g.Name, g.Token); err != nil {
		t.Errorf("guard by a role without rights: %v", err)
	}
	if err := postgres.Guard(bounded(t), tx, "", g.Name, g.Token+1); !errors.Is(err, fence.ErrStale) {
		t.Errorf("guard with a later token: got %v, want one matching %q", err, fence.ErrStale)
	}
	if err := tx.Rollback(bounded(t)); err != nil {
		t.Error(err)
	}
}

func TestGuardBelowTheFloor(t *testing.T) {
	t.Parallel()
	s, pool := fresh(t)
	g := hold(t, s, request("job"))
	if err := s.RaiseFloor(bounded(t), "", 41); err != nil {
		t.Fatal(err)
	}
	tx := begin(t, pool, pgx.ReadCommitted)
	err := postgres.Guard(bounded(t), tx, "", g.Name, g.Token)
	if stale, ok := errors.AsType[*fence.StaleError](err); !ok || stale.Current != 41 {
		t.Errorf("guard of token 1 below floor 41: got %v, want it refused and 41 named", err)
	}
}

// TestTakeoverNamesBlockers: the wait is bounded, and the error says for whom.
func TestTakeoverNamesBlockers(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := openPool(t, url)
	s := open(t, pool, postgres.Config{TakeoverWait: 50 * time.Millisecond})
	if err := s.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	guards := openPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "billing" })
	g := hold(t, s, request("job"))
	busy := func(want ...string) {
		t.Helper()
		_, err := s.Acquire(bounded(t), replacing(g))
		e, ok := errors.AsType[*store.BusyError](err)
		if !ok || e.Name != "job" || len(e.Blockers) != len(want) {
			t.Errorf("got error %v, want a *store.BusyError with blockers like %q", err, want)
			return
		}
		for _, w := range want {
			if !strings.Contains(strings.Join(e.Blockers, "; "), w) {
				t.Errorf("got blockers %q, want one like %q", e.Blockers, w)
			}
		}
	}
	first, second := begin(t, guards, pgx.ReadCommitted), begin(t, guards, pgx.ReadCommitted)
	for _, tx := range []pgx.Tx{first, second} {
		if err := postgres.Guard(bounded(t), tx, "", g.Name, g.Token); err != nil {
			t.Fatal(err)
		}
		if tx == first {
			busy("billing, idle in transaction")
		}
	}
	busy(fmt.Sprint("pid ", first.Conn().PgConn().PID()), fmt.Sprint("pid ", second.Conn().PgConn().PID()))
	if err := second.Rollback(bounded(t)); err != nil {
		t.Fatal(err)
	}
	exec(t, first, "PREPARE TRANSACTION 'transfer-9'")
	busy(`prepared transaction "transfer-9"`)
	if !hasFinding(t, s, "prepared_transactions") {
		t.Error("Diagnose does not name the prepared transaction")
	}
	res, err := s.Renew(bounded(t), []store.Grant{g})
	if err != nil || res[0].Err != nil {
		t.Errorf("renewal beside a guarded transaction: %v, %v", err, res)
	}
	exec(t, pool, "COMMIT PREPARED 'transfer-9'")
	g.Known = append(g.Known, g.Attempt)
	hold(t, s, replacing(g))
}

// TestBlockerOfANewName: the row is not there yet, whoever inserts it is named.
func TestBlockerOfANewName(t *testing.T) {
	t.Parallel()
	_, pool := fresh(t)
	s := open(t, pool, postgres.Config{TakeoverWait: 50 * time.Millisecond})
	tx := begin(t, pool, pgx.ReadCommitted)
	exec(t, tx, "INSERT INTO tenure_lease (name) VALUES ('new')")
	_, err := s.Acquire(bounded(t), request("new"))
	if busy, ok := errors.AsType[*store.BusyError](err); !ok || len(busy.Blockers) != 1 {
		t.Errorf("got error %v, want a *store.BusyError with one blocker", err)
	}
}

// TestGuardOfAnEndedTerm: a term that was released or revoked is refused before
// the next one is granted.
func TestGuardOfAnEndedTerm(t *testing.T) {
	t.Parallel()
	s, pool := fresh(t)
	exec(t, pool, "CREATE TABLE target (token bigint)")
	for name, end := range map[string]func(g store.Grant) error{
		"released": func(g store.Grant) error {
			results, err := s.Release(bounded(t), []store.Grant{g})
			return errors.Join(err, results[0].Err)
		},
		"revoked": func(g store.Grant) error { return s.Revoke(bounded(t), g.Name, g.Token, store.Revocation{Why: "test"}) },
		"revoked now": func(g store.Grant) error {
			return s.Revoke(bounded(t), g.Name, g.Token, store.Revocation{Why: "test", Now: true})
		},
	} {
		g := hold(t, s, request(strings.ReplaceAll(name, " ", "-")))
		if err := end(g); err != nil {
			t.Fatal(err)
		}
		for _, level := range levels {
			tx := begin(t, pool, level)
			err := guardedInsert(t, tx, g)
			if stale, ok := errors.AsType[*fence.StaleError](err); !ok || stale.Current != 0 {
				t.Errorf("%s, %s: got %v, want a stale token without a next one", name, level, err)
			}
			_ = tx.Rollback(context.Background())
		}
	}
}

// TestTakeoverIsNotStarved: guarded transactions of a term that is over, each
// short, and always some of them open, do not hold off the next term.
func TestTakeoverIsNotStarved(t *testing.T) {
	t.Parallel()
	const writers = 12
	_, pool := fresh(t, func(c *pgxpool.Config) { c.MaxConns = writers + 2 })
	s := open(t, pool, postgres.Config{TakeoverWait: limit})
	g := hold(t, s, request("job"))
	opened, ended := make(chan struct{}, writers), make(chan error, writers)
	for i := range writers {
		work := fmt.Sprintf("SELECT pg_sleep(%d / 1000.0)", 150+17*i) // of different lengths, so that they overlap
		go func() {
			for first := true; ; first = false {
				tx, err := pool.Begin(t.Context())
				if err == nil {
					if err = postgres.Guard(t.Context(), tx, "", g.Name, g.Token); err == nil {
						_, err = tx.Exec(t.Context(), work)
					}
					_ = tx.Rollback(context.WithoutCancel(t.Context()))
				}
				if first {
					opened <- struct{}{}
				}
				if err != nil {
					ended <- err
					return
				}
			}
		}()
	}
	for range writers {
		<-opened
	}
	rec, err := s.Acquire(bounded(t), replacing(g))
	if err != nil || rec.Token != g.Token+1 {
		t.Errorf("takeover among guarded transactions: got token %s, error %v, want token %s", rec.Token, err, g.Token+1)
	}
	for range writers {
		err := <-ended
		if stale, ok := errors.AsType[*fence.StaleError](err); !ok || stale.Current != g.Token+1 {
			t.Errorf("a guard after the takeover: got %v, want a stale token", err)
		}
	}
}

// idle opens a transaction that was told its token is stale, and stays open: it has
// the guards' advisory lock of the name, and no row.
func idle(t *testing.T, pool *pgxpool.Pool, name string) {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	current := true
	if err := tx.QueryRow(t.Context(), "SELECT tenure_current($1, 999)", name).Scan(&current); err != nil || current {
		t.Fatalf("a token that was never granted: got current %t, %v", current, err)
	}
}

// TestTakeoverOfAFreeRow: who has only the guards' advisory lock holds off no term
// whose row is free.
func TestTakeoverOfAFreeRow(t *testing.T) {
	t.Parallel()
	_, pool := fresh(t)
	s := open(t, pool, postgres.Config{TakeoverWait: limit})
	g := hold(t, s, request("job"))
	idle(t, pool, g.Name)
	began := time.Now()
	if rec, err := s.Acquire(bounded(t), replacing(g)); err != nil || rec.Token != g.Token+1 || time.Since(began) > limit/3 { // it would wait for half of the time left
		t.Errorf("got token %s, %v after %s, want the next term without the lock", rec.Token, err, time.Since(began))
	}
}

// TestTakeoverOnceTheRowIsFree: nor one whose row becomes free while the takeover
// waits for that lock.
func TestTakeoverOnceTheRowIsFree(t *testing.T) {
	t.Parallel()
	_, pool := fresh(t)
	s := open(t, pool, postgres.Config{TakeoverWait: 2 * time.Second})
	g := hold(t, s, request("job"))
	idle(t, pool, g.Name)
	guarded, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer guarded.Rollback(context.Background())
	if err := postgres.Guard(t.Context(), guarded, "", g.Name, g.Token); err != nil {
		t.Fatal(err)
	}
	freed := make(chan error, 1)
	go func() {
		for waits := false; !waits; {
			if err := pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))").Scan(&waits); err != nil {
				freed <- err
				return
			}
		}
		freed <- guarded.Rollback(t.Context())
	}()
	rec, err := s.Acquire(bounded(t), replacing(g))
	if err != nil || rec.Token != g.Token+1 {
		t.Errorf("got token %s, %v, want the next term", rec.Token, err)
	}
	if err := <-freed; err != nil {
		t.Error(err)
	}
}
