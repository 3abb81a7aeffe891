package postgres_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	osexec "os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
)

// fenced returns a store with the fence installed, another client, and the URL.
func fenced(t testing.TB) (*postgres.Store, *pgxpool.Pool, string) {
	t.Helper()
	url := pgtest.Database(t)
	pool := openPool(t, url)
	s := open(t, pool, postgres.Config{})
	if err := s.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, s, func() ([]postgres.FenceStep, error) { return s.PlanFence(bounded(t)) })
	return s, pool, url
}

// apply runs a plan, and checks that it then has nothing left to do.
func apply(t testing.TB, s *postgres.Store, plan func() ([]postgres.FenceStep, error)) {
	t.Helper()
	steps, err := plan()
	if err == nil {
		err = s.RunFence(bounded(t), steps)
	}
	if err != nil {
		t.Fatal(err)
	}
	if again, err := plan(); err != nil || len(again) != 0 {
		t.Fatalf("the plan once more: got %v, error %v, want nothing to do", again, err)
	}
}

func guardTable(t testing.TB, s *postgres.Store, g postgres.TableGuard) {
	t.Helper()
	apply(t, s, func() ([]postgres.FenceStep, error) { return s.PlanGuard(bounded(t), g) })
}

const jobsTable = `CREATE TABLE jobs (id int PRIMARY KEY, status text NOT NULL, updated_at timestamptz NOT NULL DEFAULT now());
	INSERT INTO jobs SELECT n, CASE WHEN n % 2 = 0 THEN 'running' ELSE 'queued' END, now() - interval '1 hour' FROM generate_series(1, 20) n`

// psql runs statements as any caller in any language would, and returns what it said.
func psql(t testing.TB, url, statements string) string {
	t.Helper()
	path, err := osexec.LookPath("psql")
	if err != nil {
		t.Skip("psql is missing; run: apt-get install -y postgresql-client")
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := osexec.CommandContext(ctx, path, "-X", "-A", "-t", "-v", "VERBOSITY=verbose", "-d", url)
	cmd.Stdin = strings.NewReader(statements)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("psql: %v\n%s", err, out)
	}
	return string(bytes.TrimSpace(out))
}

func refused(t testing.TB, s *postgres.Store, reason string) int64 {
	t.Helper()
	all, err := s.Guarded(bounded(t))
	if err != nil || len(all) == 0 {
		t.Fatalf("guarded tables: got %v, error %v", all, err)
	}
	return all[0].Refused[reason]
}

// TestFenceSweep: the sweep that takes silence for the end of a worker changes
// nothing; the one under the worker's lease changes that worker's rows.
func TestFenceSweep(t *testing.T) {
	t.Parallel()
	s, pool, url := fenced(t)
	exec(t, pool, jobsTable)
	guardTable(t, s, postgres.TableGuard{Table: "jobs", AddColumns: true})
	one, two := hold(t, s, request("worker/1")), hold(t, s, request("worker/2"))
	for i, g := range []store.Grant{one, two} {
		got := psql(t, url, fmt.Sprintf("BEGIN; SELECT tenure_fence('%s', %d); UPDATE jobs SET owner = '%s' WHERE status = 'running' AND id %% 4 = %d; COMMIT;", g.Name, g.Token, g.Name, 2*i))
		if !strings.Contains(got, "UPDATE 5") {
			t.Fatalf("claim of 5 rows by %s: got %q", g.Name, got)
		}
	}
	const sweep = "DELETE FROM jobs WHERE status = 'running' AND updated_at < now() - interval '5 minutes';"
	if got := psql(t, url, sweep); got != "DELETE 0" {
		t.Errorf("the sweep: got %q, want DELETE 0", got)
	}
	if n := refused(t, s, "not_stated"); n != 1 {
		t.Errorf("got %d refusals for not_stated, want 1", n)
	}
	// Worker 1 is gone, and who takes its lease may sweep what it left.
	next := hold(t, s, replacing(one))
	if got := psql(t, url, fmt.Sprintf("BEGIN; SELECT tenure_fence('worker/1', %d); %s COMMIT;", next.Token, sweep)); got != "BEGIN\n\nDELETE 5\nCOMMIT" {
		t.Errorf("the sweep under the lease of worker 1: got %q, want 5 rows", got)
	}
	if n := refused(t, s, "other_owner"); n != 5 {
		t.Errorf("got %d rows refused for other_owner, want 5", n)
	}
	if got := psql(t, url, fmt.Sprintf("BEGIN; SELECT tenure_fence('worker/1', %d); %s COMMIT;", one.Token, sweep)); !strings.Contains(got, "ERROR:  TN001: stale token 1") || !strings.HasSuffix(got, "ROLLBACK") {
		t.Errorf("the sweep under a term that is over: got %q, want TN001", got)
	}
	if got := psql(t, url, "SELECT count(*) FROM jobs WHERE owner = 'worker/2' AND token = 1"); got != "5" {
		t.Errorf("got %s rows of worker 2, want 5", got)
	}
}

// TestFenceColumns: the token follows the owner.
func TestFenceColumns(t *testing.T) {
	t.Parallel()
	s, pool, url := fenced(t)
	exec(t, pool, jobsTable)
	guardTable(t, s, postgres.TableGuard{Table: "jobs", AddColumns: true})
	g := hold(t, s, request("worker/1"))
	for _, step := range []struct{ change, want string }{
		{"UPDATE jobs SET status = 'seen' WHERE id = 1", "|"},             // nobody's stays nobody's
		{"UPDATE jobs SET owner = 'worker/1' WHERE id = 1", "worker/1|1"}, // claimed
		{"UPDATE jobs SET token = 99 WHERE id = 1", "worker/1|1"},
		{"UPDATE jobs SET owner = 'worker/2' WHERE id = 1", "worker/2|"}, // given away
		{"UPDATE jobs SET owner = NULL WHERE id = 1", "worker/2|"},       // not ours any more
		{"INSERT INTO jobs VALUES (1, 'again') ON CONFLICT (id) DO UPDATE SET status = 'again', owner = NULL", "worker/2|"},
	} {
		psql(t, url, fmt.Sprintf("BEGIN; SELECT tenure_fence('worker/1', %d); %s; COMMIT", g.Token, step.change))
		if got := psql(t, url, "SELECT owner, token FROM jobs WHERE id = 1"); got != step.want {
			t.Errorf("after %s: got %q, want %q", step.change, got, step.want)
		}
	}
	if got := psql(t, url, "TRUNCATE jobs"); !strings.Contains(got, "TN001") {
		t.Errorf("TRUNCATE: got %q, want TN001", got)
	}
	// A row of a later term, as after the lease's table was restored from a backup.
	exec(t, pool, "SET session_replication_role = replica; UPDATE jobs SET owner = 'worker/1', token = 9 WHERE id = 2; SET session_replication_role = origin")
	if got := psql(t, url, fmt.Sprintf("BEGIN; SELECT tenure_fence('worker/1', %d); UPDATE jobs SET status = 'x' WHERE id = 2; COMMIT", g.Token)); !strings.Contains(got, "UPDATE 0") {
		t.Errorf("update of a row of a later term: got %q, want 0 rows", got)
	}
	for reason, want := range map[string]int64{"other_owner": 2, "newer_token": 1, "truncate": 1, "stale": 0} {
		if n := refused(t, s, reason); n != want {
			t.Errorf("refused for %s: got %d, want %d", reason, n, want)
		}
	}
}

// TestFenceStatement: what was stated ends with what holds the takeover off.
func TestFenceStatement(t *testing.T) {
	t.Parallel()
	s, pool, url := fenced(t)
	exec(t, pool, jobsTable)
	guardTable(t, s, postgres.TableGuard{Table: "public.jobs", AddColumns: true, Lease: "jobs"})
	if got := psql(t, url, "SELECT count(*) FROM jobs WHERE owner = 'jobs' AND token IS NULL"); got != "20" {
		t.Fatalf("got %s rows with the lease as their owner, want 20", got)
	}
	g := hold(t, s, request("jobs"))
	stated := fmt.Sprintf("SELECT tenure_fence('jobs', %d);", g.Token)
	const update = "UPDATE jobs SET status = 'done' WHERE id = 1;"
	for _, step := range []struct{ what, statements, want string }{
		{"stated", "BEGIN;" + stated + update + "COMMIT", "UPDATE 1"},
		{"in another transaction", stated + update, "UPDATE 0"},
		{"in a savepoint that was released", "BEGIN; SAVEPOINT a;" + stated + "RELEASE a;" + update + "COMMIT", "UPDATE 1"},
		{"in a savepoint that was rolled back", "BEGIN; SAVEPOINT a;" + stated + "ROLLBACK TO a;" + update + "COMMIT", "UPDATE 0"},
		{"before a savepoint that was rolled back", "BEGIN;" + stated + "SAVEPOINT a;" + update + "ROLLBACK TO a;" + update + "COMMIT", "UPDATE 1"},
		{"by hand, with the current token", fmt.Sprintf("SET tenure.public_owner = 'jobs'; SET tenure.public_token = '%d';", g.Token) + update, "UPDATE 1"},
		{"by hand, with another token", "SET tenure.public_owner = 'jobs'; SET tenure.public_token = '7';" + update, "UPDATE 0"},
		{"by hand, with what is no token", "SET tenure.public_owner = 'jobs'; SET tenure.public_token = 'x';" + update, "UPDATE 0"},
		{"by a merge", "BEGIN;" + stated + "MERGE INTO jobs USING (SELECT 1 AS id) n ON n.id = jobs.id WHEN MATCHED THEN UPDATE SET status = 'm'; COMMIT", "MERGE 1"},
		{"not at all, by a merge", "MERGE INTO jobs USING (SELECT 1 AS id) n ON n.id = jobs.id WHEN MATCHED THEN DELETE", "MERGE 0"},
		{"not at all, in a common table expression", "WITH gone AS (DELETE FROM jobs RETURNING id) SELECT 'deleted ' || count(*) FROM gone", "deleted 0"},
	} {
		if got := psql(t, url, step.statements); !strings.Contains(got, step.want) {
			t.Errorf("stated %s: got %q, want %s", step.what, got, step.want)
		}
	}
	guardTable(t, s, postgres.TableGuard{Table: "jobs", OnStale: postgres.Raise})
	before := refused(t, s, "not_stated")
	if got := psql(t, url, update); !strings.Contains(got, "TN001") {
		t.Errorf("not stated, with raise: got %q, want TN001", got)
	}
	if n := refused(t, s, "not_stated"); n != before+1 {
		t.Errorf("got %d refusals, want %d: what is rolled back counts too", n, before+1)
	}
	if got := psql(t, url, "BEGIN;"+stated+update+"COMMIT"); !strings.Contains(got, "UPDATE 1") {
		t.Errorf("stated, with raise: got %q", got)
	}
}

// TestFenceTakeover: a takeover waits for the statement's lock, and a snapshot of
// before the takeover does not help a stale statement.
func TestFenceTakeover(t *testing.T) {
	t.Parallel()
	s, pool, _ := fenced(t)
	exec(t, pool, jobsTable)
	guardTable(t, s, postgres.TableGuard{Table: "jobs", AddColumns: true, Lease: "jobs"})
	for _, level := range levels {
		g := hold(t, s, request("jobs"))
		tx := begin(t, pool, level)
		exec(t, tx, fmt.Sprintf("SELECT set_config('tenure.public_owner', 'jobs', true), set_config('tenure.public_token', '%d', true)", g.Token))
		next := hold(t, s, replacing(g))
		tag, err := tx.Exec(bounded(t), "UPDATE jobs SET status = 'stale'")
		if level == pgx.ReadCommitted && (err != nil || tag.RowsAffected() != 0) || level != pgx.ReadCommitted && sqlState(err) != "40001" {
			t.Errorf("%s: stale update with a claim by hand: got %v, error %v", level, tag, err)
		}
		if err := tx.Rollback(bounded(t)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Release(bounded(t), []store.Grant{next}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFenceNeedsNoRights: the caller's role has a right on the table alone.
func TestFenceNeedsNoRights(t *testing.T) {
	t.Parallel()
	s, pool, _ := fenced(t)
	exec(t, pool, jobsTable)
	guardTable(t, s, postgres.TableGuard{Table: "jobs", AddColumns: true})
	g := hold(t, s, request("worker/1"))
	role := fmt.Sprintf("app_%d", time.Now().UnixNano())
	exec(t, pool, "CREATE ROLE "+role+"; GRANT SELECT, UPDATE, DELETE ON jobs TO "+role)
	t.Cleanup(func() { exec(t, pool, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	tx := begin(t, pool, pgx.ReadCommitted)
	exec(t, tx, "SET LOCAL ROLE "+role)
	exec(t, tx, "SET LOCAL search_path = pg_temp")
	exec(t, tx, "SELECT public.tenure_fence($1, $2)", g.Name, int64(g.Token))
	if tag, err := tx.Exec(bounded(t), "UPDATE public.jobs SET owner = 'worker/1' WHERE id < 3"); err != nil || tag.RowsAffected() != 2 {
		t.Errorf("update: got %v, error %v, want 2 rows", tag, err)
	}
	exec(t, tx, "SELECT set_config('tenure.public_owner', '', true)")
	if tag, err := tx.Exec(bounded(t), "DELETE FROM public.jobs"); err != nil || tag.RowsAffected() != 0 {
		t.Errorf("delete that states nothing: got %v, error %v, want 0 rows", tag, err)
	}
	if _, err := tx.Exec(bounded(t), "SELECT public.tenure_refuse('x', 'y')"); sqlState(err) != "42501" {
		t.Errorf("counting by hand: got error %v, want it not permitted", err)
	}
}

// TestFenceRefusesToGuess: what cannot be guarded is said, and nothing is changed.
func TestFenceRefusesToGuess(t *testing.T) {
	t.Parallel()
	s, pool, _ := fenced(t)
	exec(t, pool, `CREATE TABLE parted (id int) PARTITION BY RANGE (id);
		CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (9);
		CREATE TABLE base (id int); CREATE TABLE derived () INHERITS (base);
		CREATE TABLE plain (id int PRIMARY KEY); CREATE VIEW seen AS SELECT * FROM plain;
		CREATE TABLE typed (id int, owner int, token int);
		CREATE TABLE own (id int, owner text DEFAULT 'me', token bigint);
		CREATE TABLE child (id int REFERENCES plain ON DELETE CASCADE);
		CREATE TABLE ruled (id int); CREATE RULE r AS ON DELETE TO ruled DO INSTEAD NOTHING;
		CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw; CREATE FOREIGN TABLE far (id int) SERVER files OPTIONS (filename '/dev/null')`)
	for _, c := range []struct {
		g    postgres.TableGuard
		is   error
		says string
	}{
		{postgres.TableGuard{Table: "parted", AddColumns: true}, store.ErrUnsupported, "partitioned"},
		{postgres.TableGuard{Table: "part", AddColumns: true}, store.ErrUnsupported, "partition"},
		{postgres.TableGuard{Table: "base", AddColumns: true}, store.ErrUnsupported, "inheritance"},
		{postgres.TableGuard{Table: "derived", AddColumns: true}, store.ErrUnsupported, "inheritance"},
		{postgres.TableGuard{Table: "seen", AddColumns: true}, store.ErrUnsupported, "view"},
		{postgres.TableGuard{Table: "far", AddColumns: true}, store.ErrUnsupported, "foreign"},
		{postgres.TableGuard{Table: "ruled", AddColumns: true}, store.ErrUnsupported, "rules"},
		{postgres.TableGuard{Table: "child", AddColumns: true}, store.ErrUnsupported, "foreign key"},
		{postgres.TableGuard{Table: "tenure_lease", AddColumns: true}, store.ErrUnsupported, "tenure's own"},
		{postgres.TableGuard{Table: "pg_catalog.pg_class", AddColumns: true}, store.ErrUnsupported, "system's"},
		{postgres.TableGuard{Table: "plain"}, store.ErrInvalid, "--add-columns"},
		{postgres.TableGuard{Table: "typed", AddColumns: true}, store.ErrInvalid, "not integer"},
		{postgres.TableGuard{Table: "own", AddColumns: true, Lease: "you"}, store.ErrUnsupported, "its default is not"},
		{postgres.TableGuard{Table: "plain", Lease: "you"}, store.ErrInvalid, "lease"},
		{postgres.TableGuard{Table: "plain", OnStale: "ignore"}, store.ErrInvalid, "zero or raise"},
		{postgres.TableGuard{Table: "plain", Owner: "a-b"}, store.ErrInvalid, "owner column"},
		{postgres.TableGuard{Table: "nothing"}, store.ErrNotFound, "SCHEMA.TABLE"},
		{postgres.TableGuard{Table: "a b; DROP TABLE plain"}, store.ErrInvalid, "as in SQL"},
		{postgres.TableGuard{Table: "other.public.plain"}, store.ErrInvalid, "in the database of the leases"},
	} {
		if steps, err := s.PlanGuard(bounded(t), c.g); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) || steps != nil {
			t.Errorf("%+v: got %v, error %v, want one matching %q that says %q", c.g, steps, err, c.is, c.says)
		}
	}
	guardTable(t, s, postgres.TableGuard{Table: "child", AddColumns: true, OnStale: postgres.Raise})
	exec(t, pool, "INSERT INTO plain VALUES (1); INSERT INTO child VALUES (1)")
	if _, err := pool.Exec(bounded(t), "DELETE FROM plain"); sqlState(err) != "TN001" {
		t.Errorf("a cascade into a guarded table: got error %v, want TN001", err)
	}
}

// TestFenceRemove: what was added is taken away, and only that.
func TestFenceRemove(t *testing.T) {
	t.Parallel()
	s, pool, _ := fenced(t)
	shape := func() (columns string) {
		t.Helper()
		err := pool.QueryRow(bounded(t), `SELECT string_agg(x, ' ' ORDER BY x) FROM (
			SELECT attname || '' FROM pg_attribute WHERE attrelid = '"Odd name"'::regclass AND attnum > 0 AND NOT attisdropped
			UNION ALL SELECT tgname || '' FROM pg_trigger WHERE tgrelid = '"Odd name"'::regclass
			UNION ALL SELECT indexrelid::regclass || '' FROM pg_index WHERE indrelid = '"Odd name"'::regclass
			UNION ALL SELECT relname || '' FROM pg_class WHERE relkind = 'S'
			UNION ALL SELECT proname || '' FROM pg_proc WHERE proname LIKE 'tenure\_fence%' OR proname LIKE 'tenure\_refus%' OR proname LIKE 'tenure\_guard\_%') n(x)`).Scan(&columns)
		if err != nil {
			t.Fatal(err)
		}
		return columns
	}
	exec(t, pool, `CREATE TABLE "Odd name" (id int, holder text)`)
	before := shape()
	guardTable(t, s, postgres.TableGuard{Table: `"Odd name"`, Owner: "holder", Token: "Term", AddColumns: true})
	if _, err := s.PlanFenceRemoval(bounded(t)); !errors.Is(err, store.ErrBusy) || !strings.Contains(err.Error(), `public."Odd name"`) {
		t.Errorf("removal beneath a guarded table: got error %v, want one that names it", err)
	}
	exec(t, pool, `ALTER TABLE "Odd name" DISABLE TRIGGER "00_tenure_guard_other_owner"`)
	if all, err := s.Guarded(bounded(t)); err != nil || len(all) != 1 || all[0].Enabled {
		t.Errorf("with a trigger disabled: got %+v, error %v", all, err)
	}
	guardTable(t, s, postgres.TableGuard{Table: `"Odd name"`, Owner: "holder", Token: "Term"}) // heals it
	apply(t, s, func() ([]postgres.FenceStep, error) { return s.PlanUnguard(bounded(t), `public."Odd name"`, true) })
	if after := shape(); after != before {
		t.Errorf("after the guard was taken off: got %s, want %s", after, before)
	}
	apply(t, s, func() ([]postgres.FenceStep, error) { return s.PlanFenceRemoval(bounded(t)) })
	if after := shape(); after != "holder id" {
		t.Errorf("after the fence was removed: got %s", after)
	}
	if _, err := s.PlanGuard(bounded(t), postgres.TableGuard{Table: `"Odd name"`, AddColumns: true}); !errors.Is(err, store.ErrSchema) || !strings.Contains(err.Error(), "tenure fence install") {
		t.Errorf("guard without the fence: got error %v, want one that says how to install it", err)
	}
}

// TestFenceOnline: a guard waits for nobody's transaction for long, and lets
// writers write while it makes its index.
func TestFenceOnline(t *testing.T) {
	t.Parallel()
	s, pool, _ := fenced(t)
	exec(t, pool, jobsTable)
	tx := begin(t, pool, pgx.ReadCommitted)
	exec(t, tx, "UPDATE jobs SET status = 'busy'")
	steps, err := s.PlanGuard(bounded(t), postgres.TableGuard{Table: "jobs", AddColumns: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.RunFence(bounded(t), steps); !errors.Is(err, store.ErrBusy) {
		t.Errorf("beside a long transaction: got %v, want an error matching %q", err, store.ErrBusy)
	}
	if err := tx.Rollback(bounded(t)); err != nil {
		t.Fatal(err)
	}
	// An index that was not finished is made anew.
	exec(t, pool, "ALTER TABLE jobs ADD COLUMN owner text, ADD COLUMN token bigint")
	guardTable(t, s, postgres.TableGuard{Table: "jobs", AddColumns: true})
	exec(t, pool, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = (SELECT oid FROM pg_class WHERE relname LIKE 'tenure\\_guard\\_%' AND relkind = 'i')")
	guardTable(t, s, postgres.TableGuard{Table: "jobs", AddColumns: true})
}

// TestFenceLargestToken: tokens of 63 bits pass unharmed.
func TestFenceLargestToken(t *testing.T) {
	t.Parallel()
	s, pool, url := fenced(t)
	exec(t, pool, jobsTable)
	guardTable(t, s, postgres.TableGuard{Table: "jobs", AddColumns: true})
	hold(t, s, request("job"))
	for _, token := range []fence.Token{1 << 53, 1<<53 + 1, 1<<63 - 1} {
		exec(t, pool, "UPDATE tenure_lease SET token = $1", int64(token))
		psql(t, url, fmt.Sprintf("BEGIN; SELECT tenure_fence('job', %d); UPDATE jobs SET owner = 'job' WHERE id = 7; COMMIT", token))
		if got, want := psql(t, url, "SELECT owner, token FROM jobs WHERE id = 7"), "job|"+token.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if got := psql(t, url, fmt.Sprintf("SELECT tenure_fence('job', %d)", token-1)); !strings.Contains(got, "TN001") || !strings.Contains(got, "DETAIL:  "+token.String()) {
			t.Errorf("the token before: got %q, want TN001 with the current token as the detail", got)
		}
	}
}

// TestGuardSQL: the guard of a *sql.Tx gives the same answers.
func TestGuardSQL(t *testing.T) {
	t.Parallel()
	s, pool := fresh(t)
	g := hold(t, s, request("job"))
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		old, err := db.BeginTx(bounded(t), &sql.TxOptions{Isolation: level})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := old.ExecContext(bounded(t), "SELECT count(*) FROM pg_class"); err != nil {
			t.Fatal(err)
		}
		next := hold(t, s, replacing(g))
		err = postgres.GuardSQL(bounded(t), old, "", g.Name, g.Token)
		if stale, ok := errors.AsType[*fence.StaleError](err); level == sql.LevelReadCommitted && (!ok || stale.Current != next.Token) {
			t.Errorf("%s: got %v, want the token refused and %s named", level, err, next.Token)
		}
		if level != sql.LevelReadCommitted && (!errors.Is(err, store.ErrBusy) || sqlState(err) != "40001") {
			t.Errorf("%s: got %v, want a serialization failure", level, err)
		}
		if err := old.Rollback(); err != nil {
			t.Fatal(err)
		}
		tx, err := db.BeginTx(bounded(t), &sql.TxOptions{Isolation: level})
		if err != nil {
			t.Fatal(err)
		}
		if err := postgres.GuardSQL(bounded(t), tx, "", next.Name, next.Token); err != nil {
			t.Errorf("%s: current token: %v", level, err)
		}
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
		g = next
	}
}

// TestFenceLendsNoRights: what the fence runs with its owner's rights looks at
// nothing that somebody else may have defined. A cast to json, which a look at a
// row as json would call, is such a thing.
func TestFenceLendsNoRights(t *testing.T) {
	t.Parallel()
	s, pool, _ := fenced(t)
	exec(t, pool, "CREATE TABLE asked (by text NOT NULL); GRANT INSERT ON asked TO PUBLIC")
	role := "writer_" + strings.ToLower(store.NewAttempt().String()[:8])
	exec(t, pool, "CREATE ROLE "+role+" LOGIN; GRANT ALL ON SCHEMA public TO "+role)
	t.Cleanup(func() {
		_, _ = pool.Exec(context.Background(), "DROP OWNED BY "+role+" CASCADE; DROP ROLE "+role)
	})
	trap := `CREATE TYPE trap AS ENUM ('a');
		CREATE FUNCTION spring(trap) RETURNS json LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.asked VALUES (current_user); RETURN '1'; END $$;
		CREATE CAST (trap AS json) WITH FUNCTION spring(trap);
		CREATE TABLE traps (id int PRIMARY KEY, owner text, token bigint, c trap); INSERT INTO traps VALUES (1, 'theirs', 1, 'a'), (2, 'job', 9, 'a'), (3, NULL, NULL, 'a')`
	exec(t, pool, "SET ROLE "+role+"; "+trap+"; RESET ROLE")
	g := hold(t, s, request("job"))
	guardTable(t, s, postgres.TableGuard{Table: "traps"})

	tx := begin(t, pool, pgx.ReadCommitted)
	exec(t, tx, "SET LOCAL ROLE "+role)
	exec(t, tx, "SELECT tenure_fence('job', $1)", int64(g.Token))
	exec(t, tx, "UPDATE traps SET owner = 'job'")
	exec(t, tx, "DELETE FROM traps WHERE id < 3")
	if err := tx.Commit(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if got := refused(t, s, "other_owner"); got != 2 {
		t.Errorf("rows of another owner: got %d refusals, want 2", got)
	}
	if got := refused(t, s, "newer_token"); got != 2 {
		t.Errorf("rows of a later term: got %d refusals, want 2", got)
	}
	var other int
	if err := pool.QueryRow(bounded(t), "SELECT count(*) FROM asked WHERE by <> $1", role).Scan(&other); err != nil || other != 0 {
		t.Errorf("the trap was sprung %d times with another role's rights, error %v; want never", other, err)
	}

	// Nor may anybody put the guard's functions on a table of their own.
	for _, f := range []string{"tenure_guard_row", "tenure_guard_statement"} {
		_, err := pool.Exec(bounded(t), "SET ROLE "+role+"; CREATE TEMP TABLE own (owner text); CREATE TRIGGER b BEFORE UPDATE ON own FOR EACH ROW EXECUTE FUNCTION public."+f+"('x', 'zero', 'owner')")
		if sqlState(err) != "42501" {
			t.Errorf("%s on another's table: got %v, want permission denied", f, err)
		}
	}
}
