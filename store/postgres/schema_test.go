package postgres_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
)

func TestMigrateTogether(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	var group sync.WaitGroup
	for range 6 {
		s := open(t, openPool(t, url), postgres.Config{Schema: "Leases_of_ours"})
		group.Go(func() {
			if err := s.Migrate(bounded(t)); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	pool := openPool(t, url)
	s := open(t, pool, postgres.Config{Schema: "Leases_of_ours"})
	if err := s.Check(bounded(t)); err != nil {
		t.Error(err)
	}
	var versions int
	if err := pool.QueryRow(bounded(t), `SELECT count(*) FROM "Leases_of_ours".tenure_schema`).Scan(&versions); err != nil || versions != postgres.Version {
		t.Errorf("got %d versions applied, error %v, want %d", versions, err, postgres.Version)
	}
}

// TestSchemasAreApart: two schemas of one database share no lease and no waiter.
func TestSchemasAreApart(t *testing.T) {
	t.Parallel()
	a, pool := fresh(t)
	b := open(t, pool, postgres.Config{Schema: "other"})
	if err := b.Check(bounded(t)); !errors.Is(err, store.ErrSchema) {
		t.Errorf("Check before Migrate: got error %v, want one matching %q", err, store.ErrSchema)
	}
	if _, err := b.Acquire(bounded(t), request("job")); !errors.Is(err, store.ErrSchema) || !strings.Contains(err.Error(), "run: tenure migrate") {
		t.Errorf("Acquire before Migrate: got error %v, want one that names tenure migrate", err)
	}
	if !hasFinding(t, b, "schema_missing") {
		t.Error("Diagnose does not name the missing tables")
	}
	if err := b.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	events, err := a.Watch(bounded(t), "job")
	if err != nil {
		t.Fatal(err)
	}
	hold(t, b, request("job"))
	g := hold(t, a, request("job"))
	if e := next(t, events); !e.Held || g.Token != 1 {
		t.Errorf("got event %+v and token %s, want a start and token 1", e, g.Token)
	}
	select {
	case e := <-events:
		t.Errorf("the other schema's term was told too: %+v", e)
	default:
	}
}

// TestCheckBites: each thing that Check insists on.
func TestCheckBites(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, breakIt, want string }{
		{"intact", "SELECT 1", ""},
		{"index_partial", "ALTER TABLE tenure_lease DROP CONSTRAINT tenure_lease_name_token; CREATE UNIQUE INDEX ON tenure_lease (name, token) WHERE token > 0", "(name, token)"},
		{"index_not_unique", "ALTER TABLE tenure_lease DROP CONSTRAINT tenure_lease_name_token; CREATE INDEX ON tenure_lease (name, token)", "(name, token)"},
		{"index_wider", "ALTER TABLE tenure_lease DROP CONSTRAINT tenure_lease_name_token; CREATE UNIQUE INDEX ON tenure_lease (name, token, floor)", "(name, token)"},
		{"index_invalid", "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'tenure_lease_name_token'::regclass", "(name, token)"},
		{"index_other_order", "ALTER TABLE tenure_lease DROP CONSTRAINT tenure_lease_name_token; CREATE UNIQUE INDEX ON tenure_lease (token, name)", ""},
		{"unlogged", "ALTER TABLE tenure_lease SET UNLOGGED", "not logged"},
		{"fillfactor", "ALTER TABLE tenure_lease RESET (fillfactor)", "fillfactor 100"},
		{"older", "DELETE FROM tenure_schema WHERE version > 1", "version 1"},
		{"newer", "INSERT INTO tenure_schema VALUES (99)", "version 99"},
		{"function", "DROP FUNCTION tenure_guard", "1 of tenure's 13 functions"},
		{"floor", "DELETE FROM tenure_floor", "tenure_floor has 0 rows"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, pool := fresh(t)
			if _, err := pool.Exec(bounded(t), test.breakIt); err != nil {
				t.Fatal(err)
			}
			err := s.Check(bounded(t))
			switch {
			case test.want == "" && err != nil:
				t.Errorf("got error %v, want none", err)
			case test.want != "" && (!errors.Is(err, store.ErrSchema) || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got error %v, want one matching %q that says %q", err, store.ErrSchema, test.want)
			}
		})
	}
	s, pool := fresh(t)
	exec(t, pool, "INSERT INTO tenure_schema VALUES (99)")
	if err := s.Migrate(context.Background()); !errors.Is(err, store.ErrSchema) {
		t.Errorf("Migrate of later tables: got error %v, want one matching %q", err, store.ErrSchema)
	}
}
