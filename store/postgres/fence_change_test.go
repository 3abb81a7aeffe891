package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
)

// fault returns what is wrong with the guard of the only guarded table.
func fault(t testing.TB, s *postgres.Store) string {
	t.Helper()
	all, err := s.Guarded(bounded(t))
	if err != nil || len(all) != 1 || all[0].Enabled != (all[0].Fault == "") {
		t.Fatalf("guarded tables: got %+v, error %v", all, err)
	}
	return all[0].Fault
}

// under runs a change in a transaction that has stated a term, and returns how
// many rows it changed and the error's SQLSTATE.
func under(t testing.TB, pool *pgxpool.Pool, g store.Grant, change string) (rows int64, code string) {
	t.Helper()
	tx := begin(t, pool, pgx.ReadCommitted)
	defer func() { _ = tx.Rollback(bounded(t)) }() // after a commit it does nothing
	exec(t, tx, "SELECT tenure_fence($1, $2)", g.Name, int64(g.Token))
	tag, err := tx.Exec(bounded(t), change)
	if err == nil {
		err = tx.Commit(bounded(t))
	}
	return tag.RowsAffected(), sqlState(err)
}

// TestFenceOfAnOlderForm: what was installed by an older program still refuses, is
// named, and is brought up to this form by the same commands.
func TestFenceOfAnOlderForm(t *testing.T) {
	t.Parallel()
	s, pool, _ := fenced(t)
	exec(t, pool, jobsTable)
	guardTable(t, s, postgres.TableGuard{Table: "jobs", AddColumns: true})
	g, other := hold(t, s, request("job")), hold(t, s, request("other"))
	exec(t, pool, fmt.Sprintf("BEGIN; SELECT tenure_fence('other', %d); UPDATE jobs SET owner = 'other'; COMMIT", other.Token))
	// The form of before: one trigger for the rows, two arguments for the statement's.
	exec(t, pool, `DO $$ DECLARE g text; f text; BEGIN
		SELECT split_part(encode(tgargs, 'escape'), '\000', 1) INTO g FROM pg_trigger WHERE tgname = '00_tenure_guard_statement';
		DROP TRIGGER "00_tenure_guard_other_owner" ON jobs; DROP TRIGGER "00_tenure_guard_newer_token" ON jobs; DROP TRIGGER "00_tenure_guard_statement" ON jobs;
		EXECUTE format('CREATE TRIGGER "00_tenure_guard_statement" BEFORE UPDATE OR DELETE ON jobs FOR EACH STATEMENT EXECUTE FUNCTION tenure_guard_statement(%L, ''zero'')', g);
		EXECUTE format('CREATE TRIGGER "00_tenure_guard_row" BEFORE UPDATE OR DELETE ON jobs FOR EACH ROW WHEN (OLD.owner IS DISTINCT FROM current_setting(%L, true)) EXECUTE FUNCTION tenure_guard_row(%L, ''zero'', ''owner'')', 'tenure.public_' || g || '_owner', g);
		COMMENT ON TRIGGER "00_tenure_guard_statement" ON jobs IS 'tenure fence 0123456789ab';
		COMMENT ON FUNCTION tenure_fence(text, bigint) IS 'tenure fence 0123456789ab'; END $$`)

	if got := fault(t, s); !strings.Contains(got, "tenure fence install") {
		t.Errorf("fault: got %q, want the older form named", got)
	}
	if !hasFinding(t, s, "fence_old_form") {
		t.Error("Diagnose does not name the older form")
	}
	if _, err := s.PlanGuard(bounded(t), postgres.TableGuard{Table: "jobs"}); !errors.Is(err, store.ErrSchema) || !strings.Contains(err.Error(), "tenure fence install") {
		t.Errorf("guard on an older fence: got %v, want to be told to install first", err)
	}
	apply(t, s, func() ([]postgres.FenceStep, error) { return s.PlanFence(bounded(t)) })
	before := refused(t, s, "other_owner")
	if rows, code := under(t, pool, g, "UPDATE jobs SET status = 'x'"); rows != 0 || code != "" {
		t.Errorf("rows of another lease, by a trigger of the older form: got %d changed, code %q, want none", rows, code)
	}
	if n := refused(t, s, "other_owner") - before; n != 20 {
		t.Errorf("got %d more rows refused, want 20", n)
	}
	guardTable(t, s, postgres.TableGuard{Table: "jobs"})
	if got := fault(t, s); got != "" {
		t.Errorf("after both commands: got fault %q", got)
	}
	if rows, code := under(t, pool, other, "UPDATE jobs SET status = 'x'"); rows != 20 || code != "" {
		t.Errorf("rows of the stated lease: got %d changed, code %q, want 20", rows, code)
	}
	if hasFinding(t, s, "fence_old_form") {
		t.Error("Diagnose names an older form that is not there any more")
	}
}

// TestFenceTableChanges: a table that changes beneath its guard is refused or
// guarded, and never passed over.
func TestFenceTableChanges(t *testing.T) {
	t.Parallel()
	s, pool, _ := fenced(t)
	exec(t, pool, jobsTable)
	guardTable(t, s, postgres.TableGuard{Table: "jobs", AddColumns: true})
	g := hold(t, s, request("job"))

	exec(t, pool, "ALTER TABLE jobs RENAME COLUMN token TO term")
	if got := fault(t, s); !strings.Contains(got, "renamed") {
		t.Errorf("after the token's column was renamed: got fault %q", got)
	}
	if _, code := under(t, pool, g, "UPDATE jobs SET owner = 'job'"); code != "42703" {
		t.Errorf("a claim that cannot write its token: got code %q, want 42703", code)
	}
	guardTable(t, s, postgres.TableGuard{Table: "jobs", Token: "term", AddColumns: true})
	exec(t, pool, "ALTER TABLE jobs RENAME COLUMN owner TO holder")
	if got := fault(t, s); !strings.Contains(got, "renamed") {
		t.Errorf("after the owner's column was renamed: got fault %q", got)
	}
	guardTable(t, s, postgres.TableGuard{Table: "jobs", Owner: "holder", Token: "term", AddColumns: true})
	if rows, code := under(t, pool, g, "UPDATE jobs SET holder = 'job'"); rows != 20 || code != "" || fault(t, s) != "" {
		t.Errorf("after both were guarded by their new names: got %d rows, code %q, fault %q", rows, code, fault(t, s))
	}

	exec(t, pool, "CREATE TABLE jobs_kept () INHERITS (jobs); INSERT INTO jobs_kept SELECT * FROM jobs LIMIT 3")
	if got := fault(t, s); !strings.Contains(got, "inherit") {
		t.Errorf("with a table that inherits: got fault %q", got)
	}
	if _, err := pool.Exec(bounded(t), "DELETE FROM jobs"); sqlState(err) != "55000" {
		t.Errorf("a statement that states nothing, with a table that inherits: got %v, want 55000", err)
	}
	if _, code := under(t, pool, g, "DELETE FROM jobs"); code != "55000" {
		t.Errorf("a statement that states a term, with a table that inherits: got code %q, want 55000", code)
	}
	exec(t, pool, "DROP TABLE jobs_kept")

	exec(t, pool, "CREATE TABLE customer (id int PRIMARY KEY); INSERT INTO customer SELECT generate_series(1, 20); ALTER TABLE jobs ADD FOREIGN KEY (id) REFERENCES customer ON DELETE CASCADE")
	if _, err := pool.Exec(bounded(t), "DELETE FROM customer WHERE id = 1"); sqlState(err) != "TN001" {
		t.Errorf("a cascade that states nothing: got %v, want TN001, or the key is broken", err)
	}
	other := hold(t, s, request("other"))
	if _, code := under(t, pool, other, "DELETE FROM customer WHERE id = 1"); code != "TN001" {
		t.Errorf("a cascade under another lease: got code %q, want TN001", code)
	}
	if rows, code := under(t, pool, g, "DELETE FROM customer WHERE id = 1"); rows != 1 || code != "" {
		t.Errorf("a cascade under the row's lease: got %d rows, code %q", rows, code)
	}
	var orphans int
	if err := pool.QueryRow(bounded(t), "SELECT count(*) FROM jobs j WHERE NOT EXISTS (SELECT FROM customer c WHERE c.id = j.id)").Scan(&orphans); err != nil || orphans != 0 {
		t.Errorf("got %d rows without their key, error %v", orphans, err)
	}
}

// TestFenceOtherColumns: a guard moves to other columns, and all that guards have
// added goes with the last.
func TestFenceOtherColumns(t *testing.T) {
	t.Parallel()
	s, pool, _ := fenced(t)
	exec(t, pool, jobsTable)
	guardTable(t, s, postgres.TableGuard{Table: "jobs", AddColumns: true})
	guardTable(t, s, postgres.TableGuard{Table: "jobs", Owner: "boss", Token: "term", AddColumns: true})
	apply(t, s, func() ([]postgres.FenceStep, error) { return s.PlanUnguard(bounded(t), "jobs", true) })
	var columns, indexes int
	if err := pool.QueryRow(bounded(t), "SELECT count(*), (SELECT count(*) FROM pg_index WHERE indrelid = 'jobs'::regclass) FROM pg_attribute WHERE attrelid = 'jobs'::regclass AND attnum > 0 AND NOT attisdropped").Scan(&columns, &indexes); err != nil || columns != 3 || indexes != 1 {
		t.Errorf("got %d columns and %d indexes, error %v, want the 3 and the 1 of before", columns, indexes, err)
	}
}

// TestFenceWholeTransaction: a term that is revoked while a transaction runs leaves
// no half of it.
func TestFenceWholeTransaction(t *testing.T) {
	t.Parallel()
	s, pool, _ := fenced(t)
	exec(t, pool, jobsTable)
	guardTable(t, s, postgres.TableGuard{Table: "jobs", AddColumns: true, Lease: "job"})
	for _, stated := range []string{"SELECT tenure_fence('job', %d)", "SELECT set_config('tenure.public_owner', 'job', true), set_config('tenure.public_token', '%d', true)"} {
		g := hold(t, s, request("job"))
		tx := begin(t, pool, pgx.ReadCommitted)
		exec(t, tx, fmt.Sprintf(stated, g.Token))
		exec(t, tx, "UPDATE jobs SET status = 'half' WHERE id = 1")
		if err := s.Revoke(bounded(t), "job", g.Token, store.Revocation{Why: "test", By: "test", Now: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(bounded(t), "UPDATE jobs SET status = 'half' WHERE id = 2"); sqlState(err) != "TN001" {
			t.Errorf("%s: the second statement: got error %v, want TN001", stated, err)
		}
		if err := tx.Rollback(bounded(t)); err != nil {
			t.Fatal(err)
		}
		// Begun after the revocation it changes nothing, and fails only where it is to.
		tx = begin(t, pool, pgx.ReadCommitted)
		exec(t, tx, fmt.Sprintf("SELECT set_config('tenure.public_owner', 'job', true), set_config('tenure.public_token', '%d', true)", g.Token))
		if tag, err := tx.Exec(bounded(t), "UPDATE jobs SET status = 'late'"); err != nil || tag.RowsAffected() != 0 {
			t.Errorf("after the revocation: got %v, error %v, want 0 rows", tag, err)
		}
		if err := tx.Rollback(bounded(t)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFenceLender: whoever installs it, the fence has the rights of the owner of the
// leases and no more, and guards that another role made are counted.
func TestFenceLender(t *testing.T) {
	t.Parallel()
	s, pool := fresh(t)
	role := fmt.Sprintf("leases_%d", time.Now().UnixNano())
	exec(t, pool, "CREATE ROLE "+role+"; GRANT CREATE ON SCHEMA public TO "+role+"; ALTER TABLE tenure_lease OWNER TO "+role)
	t.Cleanup(func() {
		exec(t, pool, "REASSIGN OWNED BY "+role+" TO CURRENT_USER; DROP OWNED BY "+role+"; DROP ROLE "+role)
	})
	exec(t, pool, "ALTER FUNCTION tenure_guard(text, bigint) OWNER TO "+role+"; GRANT EXECUTE ON FUNCTION tenure_current(text, bigint) TO "+role)
	apply(t, s, func() ([]postgres.FenceStep, error) { return s.PlanFence(bounded(t)) })
	rows, err := pool.Query(bounded(t), "SELECT p.proname FROM pg_proc p WHERE p.prosecdef AND p.proname LIKE 'tenure%' AND pg_get_userbyid(p.proowner) <> $1", role)
	if err != nil {
		t.Fatal(err)
	}
	more, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(more) != 0 {
		t.Errorf("got functions %q with more rights than the leases need, error %v", more, err)
	}
	exec(t, pool, jobsTable)
	guardTable(t, s, postgres.TableGuard{Table: "jobs", AddColumns: true})
	g := hold(t, s, request("job"))
	if rows, code := under(t, pool, g, "UPDATE jobs SET owner = 'job'"); rows != 20 || code != "" {
		t.Errorf("got %d rows, code %q, want 20", rows, code)
	}
	exec(t, pool, "DELETE FROM jobs")
	if n := refused(t, s, "not_stated"); n != 1 {
		t.Errorf("got %d refusals, want 1", n)
	}
}

// TestFenceFunctions: each function that lends its owner's rights has a search
// path that nobody else can fill, and those of triggers are nobody's to call.
func TestFenceFunctions(t *testing.T) {
	t.Parallel()
	_, pool, _ := fenced(t)
	rows, err := pool.Query(bounded(t), `SELECT p.proname, coalesce(array_to_string(p.proconfig, ' '), ''), p.prosecdef, p.prorettype = 'trigger'::regtype,
			has_function_privilege('public', p.oid, 'EXECUTE'), p.proowner = (SELECT relowner FROM pg_class WHERE oid = 'tenure_lease'::regclass)
		FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace AND p.proname LIKE 'tenure%'`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var lending []string
	for rows.Next() {
		var name, config string
		var definer, trigger, anybody, ofTables bool
		if err := rows.Scan(&name, &config, &definer, &trigger, &anybody, &ofTables); err != nil {
			t.Fatal(err)
		}
		if definer {
			lending = append(lending, name)
		}
		if definer && !strings.HasSuffix(config, "search_path=pg_catalog, pg_temp") {
			t.Errorf("%s runs with its owner's rights and with settings %q, want a search path of pg_catalog, pg_temp", name, config)
		}
		if definer && !ofTables {
			t.Errorf("%s has other rights than the owner of the leases", name)
		}
		if trigger && anybody {
			t.Errorf("%s can be made a trigger by anybody", name)
		}
	}
	if rows.Err() != nil || len(lending) < 5 {
		t.Errorf("got functions %q with their owner's rights, error %v, want 5", lending, rows.Err())
	}
}
