package postgres_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure/store"
)

// Whoever may create operators where a caller's search path leads must not have
// them taken for PostgreSQL's own: they would run with the caller's rights, and
// bend the clock.
func TestForeignOperatorsAreNotUsed(t *testing.T) {
	t.Parallel()
	s, pool := fresh(t)
	for _, statement := range []string{
		"CREATE TABLE public.intruded (who text)",
		`CREATE FUNCTION public.intrude(numeric, int) RETURNS numeric LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO public.intruded VALUES (current_user);
			RETURN pg_catalog.numeric_mul($1, $2::numeric) + 3600000000;
		END $$`,
		"CREATE OPERATOR public.* (LEFTARG = numeric, RIGHTARG = int, FUNCTION = public.intrude)",
		`CREATE FUNCTION public.intrude(text, bigint) RETURNS text LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO public.intruded VALUES (current_user);
			RETURN '';
		END $$`,
		"CREATE OPERATOR public.|| (LEFTARG = text, RIGHTARG = bigint, FUNCTION = public.intrude)",
	} {
		exec(t, pool, statement)
	}
	g := hold(t, s, request("a"))
	if _, err := s.Renew(bounded(t), []store.Grant{g}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(bounded(t), "a"); err != nil {
		t.Fatal(err)
	}
	if err := s.RaiseFloor(bounded(t), "b", 7); err != nil {
		t.Fatal(err)
	}
	if n := count(t, pool, "SELECT count(*) FROM public.intruded"); n != 0 {
		t.Errorf("a foreign operator was called %d times", n)
	}
}

func count(t *testing.T, pool *pgxpool.Pool, query string) (n int) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
