package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tenurehq/tenure/store"
)

// The migrations are plain files that are applied in order, each once. A
// migration tool would bring database/sql, a table and a lock of its own for
// what are these few lines; its lock is one of the session, which a
// transaction-mode pooler does not keep.
//
//go:embed migrations/*.sql
var migrations embed.FS

// Version is the version of the tables and functions that this package needs.
const Version = 2

// What the migrations make.
var (
	leaseTables    = []string{"tenure_schema", "tenure_lease", "tenure_term", "tenure_slot", "tenure_floor", "tenure_status"}
	leaseFunctions = []string{
		"tenure_clock", "tenure_begin", "tenure_tell", "tenure_acquire", "tenure_renew", "tenure_release",
		"tenure_revoke", "tenure_raise_floor", "tenure_done", "tenure_clean", "tenure_current", "tenure_guard", "tenure_blockers",
	}
)

// strangers is a query for the tables, views and functions of these names in the
// schema whose owner does not meet a condition on o.owner: their kind, name and
// owner. Where a role may create in the schema it can have made them before
// tenure did, to keep what is in them or to have its code run by who calls them.
// A function counts whatever its arguments: one that suits a call more is called.
func (s *Store) strangers(tables, functions []string, trusted string) string {
	return `SELECT o.kind, o.name, pg_get_userbyid(o.owner) FROM (
			SELECT 'table' AS kind, c.oid::regclass::text AS name, c.relowner AS owner, c.relnamespace AS namespace FROM pg_class c WHERE c.relname IN ('` + strings.Join(tables, "', '") + `')
			UNION ALL
			SELECT 'function', p.oid::regprocedure::text, p.proowner, p.pronamespace FROM pg_proc p WHERE p.proname IN ('` + strings.Join(functions, "', '") + `')) o
		WHERE o.namespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = '` + s.schema + `') AND NOT (` + trusted + `) ORDER BY 1, 2`
}

// ofMigrator is true of roles that have the rights of the role that asks, and of
// those whose rights it was given. A superuser was given nobody's.
const ofMigrator = `EXISTS (SELECT FROM pg_roles me WHERE me.rolname = current_user
	AND (pg_has_role(o.owner, me.oid, 'MEMBER') OR NOT me.rolsuper AND pg_has_role(me.oid, o.owner, 'MEMBER')))`

// Migrate brings the schema's tables and functions to this package's version,
// in one transaction, and makes the schema if there is none. Several may call
// it at once: one works and the others wait. It returns an error matching
// store.ErrSchema if the tables are of a later version, or if another role made
// some of the tables or functions, of which it names the first.
func (s *Store) Migrate(ctx context.Context) error {
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error { return s.migrate(ctx, tx) })
	if err == nil || errors.Is(err, store.ErrSchema) {
		return err
	}
	return s.migrateFailure(err)
}

func (s *Store) migrate(ctx context.Context, tx pgx.Tx) error {
	run := func(statement string) ([]*row, error) {
		results, err := tx.Conn().PgConn().Exec(ctx, statement).ReadAll()
		if err != nil || len(results) == 0 {
			return nil, err
		}
		var rows []*row
		for _, values := range results[len(results)-1].Rows {
			rows = append(rows, &row{columns: values})
		}
		return rows, nil
	}
	if _, err := run(fmt.Sprintf("SET LOCAL search_path = pg_catalog, pg_temp; SELECT pg_advisory_xact_lock(%d, 0)", s.space())); err != nil {
		return err
	}
	// CREATE SCHEMA IF NOT EXISTS asks for a right that is not needed if it does.
	if rows, err := run("SELECT FROM pg_namespace WHERE nspname = '" + s.schema + "'"); err != nil {
		return err
	} else if len(rows) == 0 {
		if _, err := run(`CREATE SCHEMA "` + s.schema + `"`); err != nil {
			return err
		}
	}
	if rows, err := run(s.strangers(leaseTables, leaseFunctions, ofMigrator)); err != nil {
		return err
	} else if len(rows) > 0 {
		kind, name, owner := rows[0].text(), rows[0].text(), rows[0].text()
		return fmt.Errorf("postgres: migrate: %s %s belongs to role %q, which is not the one that migrates, nor one that it is a member of: if it was made by tenure migrate, run that as %[3]q; if not, find out who needs it and drop it: %w",
			kind, name, owner, store.ErrSchema)
	}
	present := 0
	if rows, err := run("SELECT FROM pg_tables WHERE schemaname = '" + s.schema + "' AND tablename = 'tenure_schema'"); err != nil {
		return err
	} else if len(rows) > 0 {
		rows, err := run("SELECT coalesce(max(version), 0) FROM " + s.prefix + "tenure_schema")
		if err != nil {
			return err
		}
		present = int(rows[0].number())
	}
	if present > Version {
		return tooNew(s.schema, present)
	}
	files, err := fs.Glob(migrations, "migrations/*.sql") // sorted, and numbered from 1
	if err != nil {
		return err
	}
	for i, file := range files[present:] {
		text, err := migrations.ReadFile(file)
		if err != nil {
			return err
		}
		if _, err := run(s.expand(string(text))); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if _, err := run(fmt.Sprintf("INSERT INTO %stenure_schema (version) VALUES (%d)", s.prefix, present+i+1)); err != nil {
			return err
		}
	}
	return nil
}

// expand puts this schema's names into a migration.
func (s *Store) expand(text string) string {
	return strings.NewReplacer(
		"{{schema}}", `"`+s.schema+`"`,
		"{{space}}", strconv.Itoa(int(s.space())),
		"{{guards}}", strconv.Itoa(int(s.guards())),
		"{{channel}}", s.channel(),
	).Replace(text)
}

func tooNew(schema string, present int) error {
	return fmt.Errorf("postgres: schema %q has version %d of tenure's tables, this program knows %d: use a newer program: %w", schema, present, Version, store.ErrSchema)
}

// Check reports whether the tables are as this package needs them: their
// version, the index UNIQUE (name, token) that the fence stands on, that they
// are logged, and the room that renewals need. It returns an error matching
// store.ErrSchema that names all that is wrong. It changes nothing.
func (s *Store) Check(ctx context.Context) error {
	findings, err := s.inspect(ctx)
	if err != nil {
		return err
	}
	var wrong []string
	for _, f := range findings {
		wrong = append(wrong, f.Text+": "+f.Fix)
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("postgres: check: %s: %w", strings.Join(wrong, "; "), store.ErrSchema)
}

// inspect looks at the tables for Check and Diagnose.
func (s *Store) inspect(ctx context.Context) ([]store.Finding, error) {
	const migrate = "run: tenure migrate"
	r, err := s.one(ctx, "check", "SELECT coalesce((SELECT max(version) FROM "+s.prefix+"tenure_schema), 0), "+
		// The index must be exactly this: usable, unique, on all rows, on these two columns.
		`(SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname = '`+s.schema+`' AND c.relname = 'tenure_lease' AND i.indisvalid AND i.indisready AND i.indislive
				AND i.indisunique AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts = 2
				AND (SELECT array_agg(a.attname::text ORDER BY a.attname) FROM pg_attribute a
					WHERE a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:1])) = '{name,token}'),
		(SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname = '`+s.schema+`' AND c.relname IN ('tenure_lease', 'tenure_term', 'tenure_slot', 'tenure_floor') AND c.relpersistence <> 'p'),
		(SELECT coalesce(max(substring(o FROM '^fillfactor=([0-9]+)$')::int), 100) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, unnest(c.reloptions) o
			WHERE n.nspname = '`+s.schema+`' AND c.relname = 'tenure_lease'),
		(SELECT count(DISTINCT p.proname) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
			WHERE n.nspname = '`+s.schema+`' AND p.proname IN ('`+strings.Join(leaseFunctions, "', '")+`')),
		(SELECT count(*) FROM `+s.prefix+`tenure_floor)`)
	if err != nil {
		return nil, err
	}
	version, index, unlogged, fill, functions, floors := r.number(), r.number(), r.number(), r.number(), r.number(), r.number()
	if r.err != nil {
		return nil, r.err
	}
	var found []store.Finding
	broken := func(code, text, fix string) {
		found = append(found, store.Finding{Code: code, Severity: store.Broken, Text: text, Fix: fix})
	}
	if version > Version {
		return nil, tooNew(s.schema, int(version))
	}
	if version < Version {
		broken("schema_version", fmt.Sprintf("schema %q has version %d of tenure's tables, this program needs %d", s.schema, version, Version), migrate)
	}
	if index == 0 {
		broken("index_missing", "table tenure_lease has no valid unique index on exactly (name, token), so a stale guarded transaction can commit",
			fmt.Sprintf("ALTER TABLE %stenure_lease ADD CONSTRAINT tenure_lease_name_token UNIQUE (name, token)", s.prefix))
	}
	if unlogged > 0 {
		broken("unlogged", fmt.Sprintf("%d of tenure's tables are not logged, so a crash empties them and tokens start over", unlogged), "ALTER TABLE … SET LOGGED")
	}
	if fill > 70 {
		broken("fillfactor", fmt.Sprintf("table tenure_lease has fillfactor %d, so renewals cannot be heap-only and bloat its indexes", fill),
			fmt.Sprintf("ALTER TABLE %stenure_lease SET (fillfactor = 50)", s.prefix))
	}
	if want := int64(len(leaseFunctions)); functions < want {
		broken("functions_missing", fmt.Sprintf("%d of tenure's %d functions are missing", want-functions, want), migrate)
	}
	if floors != 1 {
		broken("floor_missing", fmt.Sprintf("table tenure_floor has %d rows, must have 1", floors), "INSERT INTO "+s.prefix+"tenure_floor DEFAULT VALUES, then raise the floor above every token that was granted")
	}
	return found, nil
}
