package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
)

// stranger returns a plain role that may make things in the schema of the leases, as
// everybody might before PostgreSQL 15, and a pool of its own.
func stranger(t testing.TB, admin *pgxpool.Pool, url string) (role string, pool *pgxpool.Pool) {
	t.Helper()
	role = "eve_" + strings.ToLower(store.NewAttempt().String()[:6])
	exec(t, admin, "CREATE ROLE "+role+" LOGIN PASSWORD 'x'; GRANT USAGE, CREATE ON SCHEMA public TO "+role)
	pool = openPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Password = role, "x" })
	t.Cleanup(func() {
		pool.Close()
		_, _ = admin.Exec(context.Background(), "DROP OWNED BY "+role+" CASCADE; DROP ROLE "+role)
	})
	return role, pool
}

// stillPlain fails the test if a role has become a superuser.
func stillPlain(t testing.TB, admin *pgxpool.Pool, role, after string) {
	t.Helper()
	var super bool
	if err := admin.QueryRow(bounded(t), "SELECT rolsuper FROM pg_roles WHERE rolname = $1", role).Scan(&super); err != nil {
		t.Fatal(err)
	}
	if super {
		t.Fatalf("%s: role %s has made itself a superuser", after, role)
	}
}

// TestFenceOfAHostileTable: whoever owns a table chooses its triggers and their
// arguments, and its name. None of it is run as SQL by who guards the table.
func TestFenceOfAHostileTable(t *testing.T) {
	t.Parallel()
	s, admin, url := fenced(t)
	role, pool := stranger(t, admin, url)
	attack := "ALTER ROLE " + role + " SUPERUSER; SELECT true; --"
	exec(t, admin, "CREATE SCHEMA "+role+" AUTHORIZATION "+role)
	exec(t, pool, "CREATE FUNCTION "+role+".f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
	for i, table := range []string{"plain", `a"; ` + attack, "two\n" + attack, "{{guard}}'); " + attack, `it's \`} {
		name := role + `."` + strings.ReplaceAll(table, `"`, `""`) + `"`
		exec(t, pool, "CREATE TABLE "+name+" (id int, owner text, token bigint)")
		for _, arg := range []string{"x'); " + attack, "x(_|$)' OR true; " + attack, "x; " + attack, "0123456789"} {
			exec(t, pool, fmt.Sprintf(`DROP TRIGGER IF EXISTS "00_tenure_guard_statement" ON %s`, name))
			exec(t, pool, fmt.Sprintf(`CREATE TRIGGER "00_tenure_guard_statement" BEFORE UPDATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION %s.f('%s', 'zero', 'owner', 'token')`,
				name, role, strings.ReplaceAll(arg, "'", "''")))
			steps, err := s.PlanGuard(bounded(t), postgres.TableGuard{Table: name, AddColumns: true})
			if err != nil {
				t.Errorf("plan to guard %s: %v", name, err)
			}
			for _, step := range steps {
				if strings.Contains(step.SQL, "0123456789") {
					t.Errorf("plan to guard %s: it takes the name of a guard, and with it the counters, from another's trigger", name)
				}
			}
			if _, err := s.PlanUnguard(bounded(t), name, true); err != nil {
				t.Errorf("plan to take the guard off %s: %v", name, err)
			}
			stillPlain(t, admin, role, "plans for "+name)
		}
		guardTable(t, s, postgres.TableGuard{Table: name, AddColumns: true})
		if all, err := s.Guarded(bounded(t)); err != nil || len(all) != 1 || !all[0].Enabled {
			t.Errorf("table %d: guarded tables: got %+v, error %v", i, all, err)
		}
		if tag, err := pool.Exec(bounded(t), "DELETE FROM "+name); err != nil || tag.RowsAffected() != 0 {
			t.Errorf("a sweep of %s: got %v, error %v", name, tag, err)
		}
		apply(t, s, func() ([]postgres.FenceStep, error) { return s.PlanUnguard(bounded(t), name, true) })
		stillPlain(t, admin, role, "guard of "+name)
	}
}

// TestFenceRemovalOfHostileNames: a sequence of somebody else's in the schema is no
// counter, whatever its name says.
func TestFenceRemovalOfHostileNames(t *testing.T) {
	t.Parallel()
	s, admin, url := fenced(t)
	role, pool := stranger(t, admin, url)
	exec(t, pool, `CREATE SEQUENCE public."tenure_refused_; ALTER ROLE `+role+` SUPERUSER; --"; CREATE SEQUENCE public.tenure_refused_by_us`)
	apply(t, s, func() ([]postgres.FenceStep, error) { return s.PlanFenceRemoval(bounded(t)) })
	stillPlain(t, admin, role, "removal of the fence")
	var left int
	if err := admin.QueryRow(bounded(t), `SELECT count(*) FROM pg_class WHERE relkind = 'S' AND relname LIKE 'tenure\_refused%'`).Scan(&left); err != nil || left != 2 {
		t.Errorf("got %d sequences of the other role, error %v, want its 2", left, err)
	}
}

// TestFenceFunctionsOfOthers: a function under one of the fence's names that another
// role made is refused and named, and never run or taken over.
func TestFenceFunctionsOfOthers(t *testing.T) {
	t.Parallel()
	for name, function := range map[string]string{
		"one that is called":        "tenure_refusals() RETURNS TABLE (relation text, reason text, refused bigint) LANGUAGE sql AS 'SELECT public.sprung(), NULL::text, 0'",
		"one of a trigger":          "tenure_guard_statement() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
		"one that suits calls more": "tenure_fence(text, int) RETURNS text LANGUAGE sql AS 'SELECT public.sprung()'",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			admin := openPool(t, url)
			s := open(t, admin, postgres.Config{})
			if err := s.Migrate(bounded(t)); err != nil {
				t.Fatal(err)
			}
			role, pool := stranger(t, admin, url)
			early, err := s.PlanFence(bounded(t))
			if err != nil {
				t.Fatal(err)
			}
			exec(t, pool, "CREATE TABLE public.asked (by text); GRANT INSERT ON public.asked TO PUBLIC")
			exec(t, pool, "CREATE FUNCTION public.sprung() RETURNS text LANGUAGE sql AS 'INSERT INTO public.asked VALUES (current_user) RETURNING by'")
			exec(t, pool, "CREATE FUNCTION public."+function)
			if strings.Contains(function, "trigger") {
				exec(t, pool, "CREATE TABLE public.theirs (owner text, token bigint)")
				exec(t, pool, `CREATE TRIGGER "00_tenure_guard_statement" BEFORE UPDATE ON public.theirs FOR EACH STATEMENT EXECUTE FUNCTION tenure_guard_statement('x''); ALTER ROLE `+role+` SUPERUSER; SELECT true; --')`)
			}
			refuses := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, store.ErrSchema) || !strings.Contains(err.Error(), function[:strings.IndexByte(function, '(')]) || !strings.Contains(err.Error(), role) || !strings.Contains(err.Error(), "DROP FUNCTION") {
					t.Errorf("%s: got %v, want the function, its role and the next step named", what, err)
				}
			}
			_, err = s.PlanFence(bounded(t))
			refuses("PlanFence", err)
			_, err = s.PlanFenceRemoval(bounded(t))
			refuses("PlanFenceRemoval", err)
			_, err = s.Guarded(bounded(t))
			refuses("Guarded", err)
			_, err = s.PlanGuard(bounded(t), postgres.TableGuard{Table: "asked", AddColumns: true})
			refuses("PlanGuard", err)
			_, err = s.PlanUnguard(bounded(t), "asked", false)
			refuses("PlanUnguard", err)
			if !hasFinding(t, s, "foreign_function") {
				t.Error("Diagnose does not name the function")
			}
			// Made between the plan and its run, it is not taken over either.
			if !strings.Contains(function, "(text, int)") {
				if err := s.RunFence(bounded(t), early); err == nil {
					t.Error("the plan of before ran over the function of another role")
				}
			}
			var by []string
			if err := admin.QueryRow(bounded(t), "SELECT coalesce(array_agg(by), '{}') FROM asked").Scan(&by); err != nil || len(by) != 0 {
				t.Errorf("the other role's code ran with the rights of %q, error %v; want never", by, err)
			}
			stillPlain(t, admin, role, name)
		})
	}
}

// TestFenceOwner: functions that a superuser owns lend more rights than the leases
// need; doctor says so, and to install the fence again puts it right.
func TestFenceOwner(t *testing.T) {
	t.Parallel()
	s, admin, url := fenced(t)
	role, _ := stranger(t, admin, url)
	t.Cleanup(func() { exec(t, admin, "REASSIGN OWNED BY "+role+" TO CURRENT_USER") })
	exec(t, admin, "ALTER TABLE tenure_lease OWNER TO "+role)
	if !hasFinding(t, s, "fence_owner") {
		t.Error("Diagnose does not say that the functions have another owner than the leases")
	}
	apply(t, s, func() ([]postgres.FenceStep, error) { return s.PlanFence(bounded(t)) })
	var others int
	if err := admin.QueryRow(bounded(t), `SELECT count(*) FROM pg_proc WHERE proname = ANY ('{tenure_fence,tenure_refuse,tenure_refusals,tenure_must_raise,tenure_guard_row,tenure_guard_token,tenure_guard_statement}') AND pg_get_userbyid(proowner) <> $1`, role).Scan(&others); err != nil || others != 0 {
		t.Errorf("got %d functions of another owner, error %v, want none", others, err)
	}
	if hasFinding(t, s, "fence_owner") {
		t.Error("Diagnose still says that the functions have another owner")
	}
}

// TestMigrateOverOthers: tables and functions of tenure's names that another role
// made are refused and named; those of a role that one is a member of are one's own.
func TestMigrateOverOthers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, made, thing string }{
		{"version", "CREATE TABLE public.tenure_schema (version int PRIMARY KEY, applied_at timestamptz); INSERT INTO public.tenure_schema VALUES (1), (2)", "public.tenure_schema"},
		{"view", "CREATE VIEW public.tenure_schema AS SELECT 2 AS version", "public.tenure_schema"},
		{"table", "CREATE TABLE public.tenure_lease (name text)", "public.tenure_lease"},
		{"function", "CREATE FUNCTION public.tenure_clock() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'", "public.tenure_clock()"},
		{"overload", "CREATE FUNCTION public.tenure_guard(text, int) RETURNS void LANGUAGE sql AS ''", "public.tenure_guard(text,integer)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			admin := openPool(t, url)
			s := open(t, admin, postgres.Config{})
			role, pool := stranger(t, admin, url)
			exec(t, pool, test.made)
			err := s.Migrate(bounded(t))
			if !errors.Is(err, store.ErrSchema) || !strings.Contains(err.Error(), test.thing) || !strings.Contains(err.Error(), role) || !strings.Contains(err.Error(), "drop it") {
				t.Errorf("got %v, want %s of %s refused, and the next step", err, test.thing, role)
			}
		})
	}
	t.Run("own", func(t *testing.T) {
		t.Parallel()
		url := pgtest.Database(t)
		admin := openPool(t, url)
		role, pool := stranger(t, admin, url)
		member, second := stranger(t, admin, url)
		exec(t, admin, "GRANT "+role+" TO "+member)
		for i, p := range []*pgxpool.Pool{pool, second, pool} { // its maker, a member, its maker
			if err := open(t, p, postgres.Config{}).Migrate(bounded(t)); err != nil {
				t.Errorf("migration %d: %v", i, err)
			}
		}
		exec(t, admin, "DROP OWNED BY "+role+", "+member+" CASCADE")
	})
	t.Run("later", func(t *testing.T) {
		t.Parallel()
		url := pgtest.Database(t)
		admin := openPool(t, url)
		s := open(t, admin, postgres.Config{})
		if err := s.Migrate(bounded(t)); err != nil {
			t.Fatal(err)
		}
		_, pool := stranger(t, admin, url)
		exec(t, pool, "CREATE FUNCTION public.tenure_guard(text, int) RETURNS void LANGUAGE sql AS ''")
		if !hasFinding(t, s, "foreign_function") {
			t.Error("Diagnose does not name an overload of another role's")
		}
	})
}

// TestFenceBecomesAChild: once a guarded table is a partition or a child, a statement
// that names the other table asks nobody before its first row. It fails and is
// counted; those that name the table itself are as before.
func TestFenceBecomesAChild(t *testing.T) {
	t.Parallel()
	for name, attach := range map[string]string{
		"partition": "CREATE TABLE whole (LIKE jobs) PARTITION BY RANGE (id); ALTER TABLE whole ATTACH PARTITION jobs FOR VALUES FROM (0) TO (1000)",
		"child":     "CREATE TABLE whole (LIKE jobs); ALTER TABLE jobs INHERIT whole",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, pool, _ := fenced(t)
			exec(t, pool, jobsTable)
			guardTable(t, s, postgres.TableGuard{Table: "jobs", AddColumns: true, Lease: "job"})
			g := hold(t, s, request("job"))
			exec(t, pool, attach)
			if got := fault(t, s); !strings.Contains(got, "partition or child") {
				t.Errorf("got fault %q, want it told", got)
			}
			if _, code := under(t, pool, g, "UPDATE whole SET status = 'x' WHERE id = 1"); code != "55000" {
				t.Errorf("the rightful holder, by way of the other table: got code %q, want 55000", code)
			}
			if _, err := pool.Exec(bounded(t), "DELETE FROM whole"); sqlState(err) != "55000" {
				t.Errorf("a sweep by way of the other table: got %v, want 55000", err)
			}
			if n := refused(t, s, "not_stated"); n != 2 {
				t.Errorf("got %d refusals counted, want 2", n)
			}
			if rows, code := under(t, pool, g, "UPDATE jobs SET status = 'x'"); rows != 20 || code != "" {
				t.Errorf("the rightful holder, by the table's own name: got %d rows, code %q, want 20", rows, code)
			}
			if tag, err := pool.Exec(bounded(t), "DELETE FROM jobs"); err != nil || tag.RowsAffected() != 0 {
				t.Errorf("a sweep by the table's own name: got %v, error %v, want 0 rows", tag, err)
			}
			if n := refused(t, s, "not_stated"); n != 3 {
				t.Errorf("got %d refusals counted, want 3", n)
			}
		})
	}
}

// TestFenceClaimTooLarge: a claim by hand that no token can be is no claim.
func TestFenceClaimTooLarge(t *testing.T) {
	t.Parallel()
	s, pool, _ := fenced(t)
	exec(t, pool, jobsTable)
	for _, test := range []struct {
		on   postgres.OnStale
		want string
	}{{postgres.Zero, ""}, {postgres.Raise, "TN001"}} {
		guardTable(t, s, postgres.TableGuard{Table: "jobs", AddColumns: true, OnStale: test.on})
		for _, number := range []string{"9223372036854775808", "99999999999999999999", "1" + strings.Repeat("0", 300)} {
			tag, err := pool.Exec(bounded(t), "SET tenure.public_owner = 'job'; SET tenure.public_token = '"+number+"'; DELETE FROM jobs")
			if sqlState(err) != test.want || tag.RowsAffected() != 0 {
				t.Errorf("%s, token %.20s: got %v, error %v, want code %q", test.on, number, tag, err, test.want)
			}
		}
	}
}

// TestFenceCollation: a column that takes two names for one cannot tell owners apart.
func TestFenceCollation(t *testing.T) {
	t.Parallel()
	s, pool, _ := fenced(t)
	exec(t, pool, `CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
		CREATE TABLE loose (id int, owner text COLLATE nocase, token bigint)`)
	if _, err := s.PlanGuard(bounded(t), postgres.TableGuard{Table: "loose"}); !errors.Is(err, store.ErrInvalid) || !strings.Contains(err.Error(), "deterministic") {
		t.Errorf("got %v, want the collation refused", err)
	}
}

// TestMarksDurability: what a crash would do to marks is said.
func TestMarksDurability(t *testing.T) {
	t.Parallel()
	s, pool := fresh(t)
	codes := func() (found []string) {
		t.Helper()
		findings, err := s.Diagnose(bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range findings {
			if strings.HasPrefix(f.Code, "marks") {
				found = append(found, f.Code)
			}
		}
		return found
	}
	exec(t, pool, "ALTER DATABASE "+pool.Config().ConnConfig.Database+" SET synchronous_commit = off")
	if got := codes(); got != nil {
		t.Errorf("without marks: got %q", got)
	}
	exec(t, pool, `CREATE SCHEMA "of data"; CREATE UNLOGGED TABLE "of data".tenure_mark (resource text PRIMARY KEY, token bigint); CREATE TABLE "of data".tenure_mark_slot (resource text)`)
	if got := codes(); !slices.Contains(got, "marks_unlogged") || !slices.Contains(got, "marks_not_durable") {
		t.Errorf("unlogged, with synchronous_commit off: got %q", got)
	}
	exec(t, pool, `ALTER TABLE "of data".tenure_mark SET LOGGED; ALTER DATABASE `+pool.Config().ConnConfig.Database+" RESET synchronous_commit")
	if got := codes(); got != nil {
		t.Errorf("after both were put right: got %q", got)
	}
}
