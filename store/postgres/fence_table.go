package postgres

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tenurehq/tenure/store"
)

// OnStale says what a guarded table does with a statement that it refuses.
type OnStale string

// What a guarded table can do.
const (
	Zero  OnStale = "zero"  // the rows stay as they are, and the statement answers that it changed none of them
	Raise OnStale = "raise" // an error with SQLSTATE TN001 aborts the transaction
)

// TableGuard says how a table is to be guarded. Each row then belongs to the lease
// that its owner column names, or to nobody if that is null.
//
// An UPDATE or DELETE changes rows only in a transaction that has stated a lease
// and its current token, by tenure_fence, and of the rows only those that are
// that lease's or nobody's. An update writes the stated token beside the owner. A
// row is claimed by setting its owner to the stated lease, and given up by
// setting it to null. TRUNCATE is refused. INSERT is not guarded: use Guard or
// tenure_fence in the transaction, which refuse by themselves.
//
// An error, and not zero rows, is also what a statement gets whose term ended
// since this transaction stated it, so that no half of the transaction commits;
// what a foreign key cascades, which zero rows would break; every statement
// while another table inherits from the guarded one; and once it is itself a
// partition or child, a statement that names the other table.
//
// The guard is for mistakes, not for malice: who may alter the table can remove
// it, and replication and session_replication_role = replica go past it.
type TableGuard struct {
	Table   string  // as in SQL, with or without its schema
	Owner   string  // column of type text; default "owner"
	Token   string  // column of type bigint; default "token"
	OnStale OnStale // default Zero

	// AddColumns adds the columns that are missing, and an index on both. None
	// of it rewrites the table or holds up its writers for longer than a moment.
	AddColumns bool
	// Lease, with AddColumns, is the owner of the rows that there are, and by
	// default of later ones; "" leaves them nobody's.
	Lease string
}

// relation is what is known of a table that is to be guarded.
type relation struct {
	schema, name string
	qualified    string // as Guarded names it
	cannot       string // why it cannot be guarded, "" if it can
	owner, token string // types of the columns, "" for none
	fallback     string // the owner column's default, as an expression
	loose        bool   // the owner column's collation takes different names for one
	cascades     bool   // rows of other tables can take its rows with them
	indexed      bool
	broken       bool   // our index is there and not valid
	guard        string // of the guard that is in place, else what it will be
	mark         string // of the guard that is in place
	triggers     int64  // of it, enabled
}

func (r *relation) sql() string { return pgx.Identifier{r.schema, r.name}.Sanitize() }

// index names the index that a guard makes on its columns. Another guard of the
// table, on others, makes another.
func (r *relation) index(g *TableGuard) string {
	sum := sha256.Sum256([]byte(g.Owner + " " + g.Token))
	return "tenure_guard_" + r.guard + "_" + hex.EncodeToString(sum[:4])
}

// guardRule is what guardOf gives. A trigger's argument is chosen by whoever made
// the trigger, so a name that is read from one is held against this.
var guardRule = regexp.MustCompile(`^[0-9a-f]{10}$`)

// guardOf names the guard of a table, and with it its settings and counters. The
// name stays when the table is renamed.
func guardOf(qualified string, oid int64) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", qualified, oid))
	return hex.EncodeToString(sum[:5])
}

var columnRule = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

func (g *TableGuard) check() error {
	g.Owner, g.Token, g.OnStale = cmp.Or(g.Owner, "owner"), cmp.Or(g.Token, "token"), cmp.Or(g.OnStale, Zero)
	switch {
	case g.Table == "":
		return &store.InvalidError{Field: "table", Rule: "the name of a table"}
	case !columnRule.MatchString(g.Owner):
		return &store.InvalidError{Field: "owner column", Value: g.Owner, Rule: "1 to 63 letters, digits and underscores, not beginning with a digit"}
	case !columnRule.MatchString(g.Token) || g.Token == g.Owner:
		return &store.InvalidError{Field: "token column", Value: g.Token, Rule: "1 to 63 letters, digits and underscores, not beginning with a digit, and not the owner's column"}
	case g.OnStale != Zero && g.OnStale != Raise:
		return &store.InvalidError{Field: "on-stale", Value: string(g.OnStale), Rule: "zero or raise"}
	case g.Lease != "" && !g.AddColumns:
		return &store.InvalidError{Field: "lease", Value: g.Lease, Rule: "given only with the order to add the columns"}
	case g.Lease != "":
		return store.CheckName(g.Lease)
	}
	return nil
}

// guardTriggers are those that fence/guard.sql makes.
var guardTriggers = []string{
	"00_tenure_guard_statement", "00_tenure_guard_truncate", "00_tenure_guard_other_owner", "00_tenure_guard_newer_token",
	"00_tenure_guard_token_own", "00_tenure_guard_token_none",
}

// triggers is a query for the triggers of guards. Whoever owns a table can give a
// trigger any name and any arguments, so it is one of these only if it calls the
// fence's function, which nobody else can put on a table.
func (s *Store) triggers() string {
	return `SELECT g.* FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid
		JOIN pg_class l ON l.oid = '` + s.prefix + `tenure_lease'::regclass AND l.relnamespace = p.pronamespace AND l.relowner = p.proowner
		WHERE g.tgname IN ('` + strings.Join(guardTriggers, "', '") + `')
			AND p.proname = CASE WHEN g.tgname IN ('00_tenure_guard_statement', '00_tenure_guard_truncate') THEN 'tenure_guard_statement'
				WHEN g.tgname IN ('00_tenure_guard_other_owner', '00_tenure_guard_newer_token') THEN 'tenure_guard_row' ELSE 'tenure_guard_token' END`
}

// addedColumn is the comment by which a column that a guard added is known again.
const addedColumn = "added by tenure fence guard"

var guardReasons = []string{"not_stated", "stale", "other_owner", "newer_token", "truncate"}

// PlanGuard returns the steps that guard a table as g says. There are none if it
// is so already; another g changes the guard. It changes nothing, and guesses
// nothing: views, foreign, partitioned, inherited and temporary tables, tables
// with rules, missing columns and columns of other types or of a collation that
// is not deterministic are refused with an
// error matching store.ErrUnsupported or store.ErrInvalid that says why.
func (s *Store) PlanGuard(ctx context.Context, g TableGuard) ([]FenceStep, error) {
	if err := g.check(); err != nil {
		return nil, err
	}
	present, err := s.installed(ctx)
	if err != nil {
		return nil, err
	}
	rel, err := s.relation(ctx, &g)
	if err != nil {
		return nil, err
	}
	if err := rel.fits(&g); err != nil {
		return nil, err
	}
	var steps []FenceStep
	owner, token := pgx.Identifier{g.Owner}.Sanitize(), pgx.Identifier{g.Token}.Sanitize()
	text, mark := s.fenceText("guard.sql", []string{
		"{{table}}", rel.sql(), "{{guard}}", rel.guard, "{{on_stale}}", string(g.OnStale),
		"{{owner}}", owner, "{{token}}", token, "{{token_text}}", "'" + g.Token + "'", "{{owner_text}}", "'" + g.Owner + "'",
		"{{lender}}", pgx.Identifier{present.lender}.Sanitize(),
	})
	if columns := rel.columns(&g); columns != "" || rel.mark != mark || rel.triggers != int64(len(guardTriggers)) {
		what := "guard " + rel.sql()
		if columns != "" {
			what = "add columns to " + rel.sql() + " and guard it"
		}
		steps = append(steps, FenceStep{What: what,
			SQL: columns + text + fmt.Sprintf("COMMENT ON TRIGGER \"00_tenure_guard_statement\" ON %s IS '%s';\n", rel.sql(), mark)})
	}
	if g.AddColumns && rel.broken {
		steps = append(steps, FenceStep{What: "drop an index that was not finished", Alone: true,
			SQL: "DROP INDEX CONCURRENTLY IF EXISTS " + pgx.Identifier{rel.schema, rel.index(&g)}.Sanitize() + ";\n"})
	}
	if g.AddColumns && !rel.indexed {
		steps = append(steps, FenceStep{What: "index the columns, beside the table's writers", Alone: true,
			SQL: fmt.Sprintf("CREATE INDEX CONCURRENTLY %s ON %s (%s, %s);\n", pgx.Identifier{rel.index(&g)}.Sanitize(), rel.sql(), owner, token)})
	}
	return steps, nil
}

// fits returns why the table cannot be guarded as g says.
func (r *relation) fits(g *TableGuard) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("postgres: guard %s: %s: %w", r.sql(), fmt.Sprintf(format, args...), store.ErrUnsupported)
	}
	if r.cannot != "" {
		return refuse("%s", r.cannot)
	}
	if r.cascades && g.OnStale == Zero {
		return refuse("a foreign key of it deletes or changes its rows with those of another table (ON DELETE or ON UPDATE CASCADE, SET NULL or SET DEFAULT), and to leave them would break the key: choose to raise an error on stale writes")
	}
	for _, c := range []struct{ name, typ, want string }{{g.Owner, r.owner, "text"}, {g.Token, r.token, "bigint"}} {
		switch {
		case c.typ == "" && !g.AddColumns:
			return &store.InvalidError{Field: "column", Value: c.name, Rule: "a column of type " + c.want + " of " + r.sql() + ": have it added (--add-columns), or name another"}
		case c.typ != "" && c.typ != c.want:
			return &store.InvalidError{Field: "column", Value: c.name, Rule: fmt.Sprintf("of type %s in %s, not %s: name another (--owner-column, --token-column)", c.want, r.sql(), c.typ)}
		}
	}
	if r.loose {
		return &store.InvalidError{Field: "column", Value: g.Owner, Rule: "of a deterministic collation in " + r.sql() + ", or it takes the names of two leases for one: ALTER TABLE … ALTER COLUMN … TYPE text COLLATE \"C\", or name another (--owner-column)"}
	}
	if g.Lease != "" && r.owner != "" && r.fallback != textDefault(g.Lease) {
		return refuse("column %q is there already and its default is not %q: set the default and the owner of its rows yourself, and give no lease here", g.Owner, g.Lease)
	}
	return nil
}

// textDefault is how PostgreSQL shows the default of a text column. The name of
// a lease needs no escape.
func textDefault(lease string) string { return "'" + lease + "'::text" }

// columns is the statement that adds what is missing, "" if nothing is.
func (r *relation) columns(g *TableGuard) string {
	var add, comments []string
	column := func(name, typ string) {
		add = append(add, "ADD COLUMN "+pgx.Identifier{name}.Sanitize()+" "+typ)
		comments = append(comments, fmt.Sprintf("COMMENT ON COLUMN %s.%s IS '%s';\n", r.sql(), pgx.Identifier{name}.Sanitize(), addedColumn))
	}
	if r.owner == "" {
		if g.Lease != "" {
			column(g.Owner, "text DEFAULT "+textDefault(g.Lease))
		} else {
			column(g.Owner, "text")
		}
	}
	if r.token == "" {
		column(g.Token, "bigint")
	}
	if add == nil {
		return ""
	}
	return "ALTER TABLE " + r.sql() + " " + strings.Join(add, ", ") + ";\n" + strings.Join(comments, "")
}

// relation looks at the table that g names, by the search path that the role
// has. The error matches store.ErrNotFound if there is none.
func (s *Store) relation(ctx context.Context, g *TableGuard) (*relation, error) {
	var find call
	find.WriteString("SET LOCAL search_path TO DEFAULT; SELECT coalesce(pg_catalog.to_regclass(")
	find.quote(g.Table)
	find.WriteString(")::pg_catalog.oid, 0)")
	found, err := s.one(ctx, "look at the table", find.String())
	if pg, ok := serverError(err); ok && (pg.Code == "42602" || pg.Code == "42601" || pg.Code == "0A000") {
		return nil, &store.InvalidError{Field: "table", Value: g.Table, Rule: "a name as in SQL, with or without its schema, in the database of the leases"}
	}
	if err != nil {
		return nil, err
	}
	oid := found.number()
	if found.err != nil || oid == 0 {
		return nil, cmp.Or(found.err, error(&refusal{text: fmt.Sprintf("postgres: there is no table %q, or it is not on the role's search path: write SCHEMA.TABLE", g.Table), class: store.ErrNotFound, cause: store.ErrNotFound}))
	}
	r, err := s.one(ctx, "look at the table", fmt.Sprintf("WITH t AS (SELECT c.*, n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %d), mine AS (", oid)+s.triggers()+` AND g.tgrelid = (SELECT t.oid FROM t))
		SELECT t.nspname, t.relname, format('%I.%I', t.nspname, t.relname),
			CASE WHEN t.relkind = 'p' THEN 'it is partitioned, and a statement''s trigger does not fire for each way to its rows'
				WHEN t.relkind IN ('v', 'm') THEN 'it is a view: guard the tables beneath it'
				WHEN t.relkind = 'f' THEN 'it is a foreign table: guard it where it is'
				WHEN t.relkind <> 'r' THEN 'it is no table'
				WHEN t.relispartition OR EXISTS (SELECT FROM pg_inherits i WHERE t.oid IN (i.inhrelid, i.inhparent))
					THEN 'it is a partition or has to do with inheritance, and a statement''s trigger does not fire for each way to its rows'
				WHEN t.relpersistence = 't' THEN 'it is temporary, so nobody else writes to it'
				WHEN t.relhasrules THEN 'it has rules, which change statements before a trigger sees them'
				WHEN t.nspname IN ('pg_catalog', 'information_schema') OR t.relname LIKE 'tenure\_%' AND t.nspname = '`+s.schema+`' THEN 'it is a table of the system''s or of tenure''s own'
				ELSE '' END,
			coalesce((SELECT CASE WHEN a.attgenerated <> '' THEN 'generated' ELSE format_type(a.atttypid, NULL) END FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attname = '`+g.Owner+`' AND NOT a.attisdropped), ''),
			coalesce((SELECT CASE WHEN a.attgenerated <> '' OR a.attidentity <> '' THEN 'generated' ELSE format_type(a.atttypid, NULL) END FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attname = '`+g.Token+`' AND NOT a.attisdropped), ''),
			coalesce((SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum WHERE d.adrelid = t.oid AND a.attname = '`+g.Owner+`'), ''),
			EXISTS (SELECT FROM pg_attribute a JOIN pg_collation o ON o.oid = a.attcollation WHERE a.attrelid = t.oid AND a.attname = '`+g.Owner+`' AND NOT a.attisdropped AND NOT o.collisdeterministic),
			EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = t.oid AND k.contype = 'f' AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd'))),
			EXISTS (SELECT FROM pg_index i WHERE i.indrelid = t.oid AND i.indisvalid AND i.indpred IS NULL AND i.indnkeyatts >= 2
				AND (SELECT array_agg(a.attname::text ORDER BY k.n) FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, n) JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = k.attnum WHERE k.n <= 2) = ARRAY['`+g.Owner+`', '`+g.Token+`']),
			coalesce((SELECT split_part(encode(mine.tgargs, 'escape'), '\000', 1) FROM mine WHERE mine.tgname = '00_tenure_guard_statement'), ''),
			coalesce((SELECT obj_description(mine.oid, 'pg_trigger') FROM mine WHERE mine.tgname = '00_tenure_guard_statement'), ''),
			(SELECT count(*) FROM mine WHERE mine.tgenabled IN ('O', 'A'))
		FROM t`)
	if err != nil {
		return nil, err
	}
	rel := &relation{
		schema: r.text(), name: r.text(), qualified: r.text(), cannot: r.text(), owner: r.text(), token: r.text(), fallback: r.text(),
		loose: r.boolean(), cascades: r.boolean(), indexed: r.boolean(), guard: r.text(), mark: r.text(), triggers: r.number(),
	}
	if !guardRule.MatchString(rel.guard) {
		rel.guard = guardOf(rel.qualified, oid)
	}
	if r.err != nil {
		return nil, r.err
	}
	return rel, s.findIndex(ctx, rel, g)
}

// findIndex looks whether the index that a guard makes is there, unfinished.
func (s *Store) findIndex(ctx context.Context, rel *relation, g *TableGuard) error {
	var c call
	c.WriteString("SELECT EXISTS (SELECT FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_namespace n ON n.oid = x.relnamespace WHERE NOT i.indisvalid AND x.relname = ")
	c.quote(rel.index(g))
	c.WriteString(" AND n.nspname = ")
	c.quote(rel.schema)
	c.WriteString(")")
	r, err := s.one(ctx, "look at the table", c.String())
	if err != nil {
		return err
	}
	rel.broken = r.boolean()
	return r.err
}

// PlanUnguard returns the steps that take the guard off a table, and drop its
// counters and the index that it made. The columns stay unless dropColumns is
// set, and then those that a guard did not add stay. There are no steps if the
// table has no guard.
func (s *Store) PlanUnguard(ctx context.Context, table string, dropColumns bool) ([]FenceStep, error) {
	guarded, err := s.Guarded(ctx)
	if err != nil {
		return nil, err
	}
	g := TableGuard{Table: table}
	if err := g.check(); err != nil {
		return nil, err
	}
	rel, err := s.relation(ctx, &g)
	if err != nil {
		return nil, err
	}
	var steps []FenceStep
	text := ""
	for _, have := range guarded {
		if have.Table != rel.qualified {
			continue
		}
		for _, name := range append([]string{"00_tenure_guard_row"}, guardTriggers...) { // the first is of an older form
			text += fmt.Sprintf("DROP TRIGGER IF EXISTS %s ON %s;\n", pgx.Identifier{name}.Sanitize(), rel.sql())
		}
		for _, reason := range guardReasons {
			text += "DROP SEQUENCE IF EXISTS " + pgx.Identifier{s.schema, "tenure_refused_" + rel.guard + "_" + reason}.Sanitize() + ";\n"
		}
		steps = append(steps, FenceStep{What: "take the guard off " + rel.sql(), SQL: text})
	}
	added, indexes, err := s.added(ctx, rel)
	if err != nil {
		return nil, err
	}
	for _, index := range indexes {
		steps = append(steps, FenceStep{What: "drop the guard's index", Alone: true,
			SQL: "DROP INDEX CONCURRENTLY IF EXISTS " + pgx.Identifier{rel.schema, index}.Sanitize() + ";\n"})
	}
	if dropColumns && len(added) > 0 {
		var drop []string
		for _, name := range added {
			drop = append(drop, "DROP COLUMN "+pgx.Identifier{name}.Sanitize())
		}
		steps = append(steps, FenceStep{What: "drop the columns that the guard added", SQL: "ALTER TABLE " + rel.sql() + " " + strings.Join(drop, ", ") + ";\n"})
	}
	return steps, nil
}

// added returns the columns and the indexes that guards added to a table.
func (s *Store) added(ctx context.Context, rel *relation) (columns, indexes []string, err error) {
	var c call
	c.WriteString("WITH t AS (SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = ")
	c.quote(rel.schema)
	c.WriteString(" AND c.relname = ")
	c.quote(rel.name)
	c.WriteString(`) SELECT false, a.attname FROM t JOIN pg_attribute a ON a.attrelid = t.oid AND NOT a.attisdropped AND col_description(t.oid, a.attnum) = '` + addedColumn + `'
		UNION ALL SELECT true, x.relname FROM t JOIN pg_index i ON i.indrelid = t.oid JOIN pg_class x ON x.oid = i.indexrelid WHERE starts_with(x.relname, `)
	c.quote("tenure_guard_" + rel.guard + "_")
	c.WriteString(")")
	rows, err := s.do(ctx, "look at the table", c.String())
	if err != nil {
		return nil, nil, err
	}
	for _, r := range rows {
		if r.boolean() {
			indexes = append(indexes, r.text())
		} else {
			columns = append(columns, r.text())
		}
		if r.err != nil {
			return nil, nil, r.err
		}
	}
	return columns, indexes, nil
}

// Guarded is a table with a guard.
type Guarded struct {
	Table   string // with its schema, quoted where SQL needs it
	OnStale OnStale
	Enabled bool   // it guards as PlanGuard says
	Fault   string // why it does not, and what to do; "" if it does
	// Refused counts by reason: "not_stated", "stale" and "truncate" statements,
	// "other_owner" and "newer_token" rows. A crash of the server may have added up to
	// 32 to each.
	Refused map[string]int64
}

// Guarded returns the guarded tables, by name.
func (s *Store) Guarded(ctx context.Context) ([]Guarded, error) {
	if present, err := s.fence(ctx); err != nil {
		return nil, err
	} else if !present.installed() {
		return nil, s.errNoFence()
	}
	_, mark := s.fenceText("guard.sql", nil)
	form := mark[:strings.LastIndexByte(mark, ' ')]
	rows, err := s.do(ctx, "list guarded tables", `WITH mine AS (`+s.triggers()+`)
		SELECT f.relation, a.args[2],
			(SELECT count(*) FROM mine o WHERE o.tgrelid = t.tgrelid AND o.tgenabled IN ('O', 'A')),
			coalesce(obj_description(t.oid, 'pg_trigger'), '') LIKE '`+form+` %',
			(SELECT count(*) FROM pg_attribute c WHERE c.attrelid = t.tgrelid AND NOT c.attisdropped AND c.attname IN (a.args[3], a.args[4])),
			EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = t.tgrelid),
			EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = t.tgrelid), f.reason, f.refused
		FROM mine t JOIN pg_class r ON r.oid = t.tgrelid JOIN pg_namespace n ON n.oid = r.relnamespace
			JOIN `+s.prefix+`tenure_refusals() f ON f.relation = format('%I.%I', n.nspname, r.relname),
			string_to_array(encode(t.tgargs, 'escape'), '\000') a(args)
		WHERE t.tgname = '00_tenure_guard_statement'
		ORDER BY f.relation, f.reason`)
	if err != nil {
		return nil, err
	}
	var all []Guarded
	for _, r := range rows {
		g := Guarded{Table: r.text(), OnStale: OnStale(r.text()), Refused: map[string]int64{}}
		triggers, current, columns, children, child := r.number(), r.boolean(), r.number(), r.boolean(), r.boolean()
		reason, refused := r.text(), r.number()
		if r.err != nil {
			return nil, r.err
		}
		switch {
		case !current:
			g.Fault = "old form: tenure fence install, then guard it again"
		case triggers != int64(len(guardTriggers)):
			g.Fault = "incomplete: guard it again"
		case columns != 2:
			g.Fault = "a column was renamed: guard it again"
		case children:
			g.Fault = "tables inherit from it: each statement fails"
		case child:
			g.Fault = "it has become a partition or child: statements that name the other table fail"
		}
		g.Enabled = g.Fault == ""
		if len(all) == 0 || all[len(all)-1].Table != g.Table {
			all = append(all, g)
		}
		all[len(all)-1].Refused[reason] = refused
	}
	return all, nil
}
