package postgres

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenurehq/tenure/store"
)

//go:embed fence/*.sql
var fenceFiles embed.FS

// fenceLockWait bounds how long a step waits for a lock, since everybody else
// then waits behind it.
const fenceLockWait = 2 * time.Second

// FenceStep is one part of a change to the fence: what is done in one transaction,
// or alone if it cannot be in one.
type FenceStep struct {
	What  string // for people
	SQL   string
	Alone bool // not in a transaction
}

// PlanFence returns the steps that add to the schema, beside the leases, what
// callers in other languages and guarded tables need: tenure_fence(resource,
// token) foremost. There are none if it is in place; an older form is replaced. It
// changes nothing. Who runs the steps must be the owner of tenure_lease, a member
// of that role or a superuser: the functions have that owner's rights, so that
// they lend nobody more than the leases. A function of one of their names that
// somebody else made is not taken over: the error names it and matches
// store.ErrSchema.
func (s *Store) PlanFence(ctx context.Context) ([]FenceStep, error) {
	text, mark := s.fenceText("install.sql", nil)
	present, err := s.fence(ctx)
	if err != nil {
		return nil, err
	}
	r, err := s.one(ctx, "look at the fence", `SELECT pg_has_role(c.relowner, 'MEMBER'), has_schema_privilege('`+s.schema+`', 'CREATE'), current_user
		FROM pg_class c WHERE c.oid = '`+s.prefix+`tenure_lease'::regclass`)
	if err != nil {
		return nil, err
	}
	member, creates, user := r.boolean(), r.boolean(), r.text()
	switch {
	case r.err != nil:
		return nil, r.err
	case present.mark == mark && present.owned:
		return nil, nil
	case !member || !creates:
		return nil, fmt.Errorf("postgres: install the fence: role %q must be %q, the owner of %stenure_lease whose rights the functions have, or a member of it, and be allowed to CREATE in schema %q: use the role that runs tenure migrate: %w", user, present.lender, s.prefix, s.schema, store.ErrPermission)
	}
	for _, f := range fenceFunctions {
		// To replace a function keeps its owner and who may call it. So one that
		// somebody makes before the steps are run must not be replaced.
		if name, _, _ := strings.Cut(f, "("); !slices.Contains(present.functions, f) {
			text = strings.Replace(text, "CREATE OR REPLACE FUNCTION "+s.prefix+name+"(", "CREATE FUNCTION "+s.prefix+name+"(", 1)
		}
	}
	for _, f := range fenceFunctions {
		text += "ALTER FUNCTION " + s.prefix + f + " OWNER TO " + pgx.Identifier{present.lender}.Sanitize() + ";\n"
	}
	text += fmt.Sprintf("COMMENT ON FUNCTION %stenure_fence(text, bigint) IS '%s';\n", s.prefix, mark)
	return []FenceStep{{What: "add tenure_fence and the guard's functions", SQL: text}}, nil
}

// fenceFunctions are those of fence/install.sql, those first that call others.
var fenceFunctions = []string{
	"tenure_refusals()", "tenure_guard_token()", "tenure_guard_row()", "tenure_guard_statement()",
	"tenure_must_raise(oid)", "tenure_refuse(text, text)", "tenure_fence(text, bigint)",
}

// fenceNames returns the names of fenceFunctions.
func fenceNames() []string {
	var names []string
	for _, f := range fenceFunctions {
		name, _, _ := strings.Cut(f, "(")
		names = append(names, name)
	}
	return names
}

// PlanFenceRemoval returns the steps that undo those of PlanFence. It returns an
// error matching store.ErrBusy while a table is guarded.
func (s *Store) PlanFenceRemoval(ctx context.Context) ([]FenceStep, error) {
	if present, err := s.fence(ctx); err != nil || !present.installed() {
		return nil, err
	}
	guarded, err := s.Guarded(ctx)
	if err != nil {
		return nil, err
	}
	if len(guarded) > 0 {
		var tables []string
		for _, g := range guarded {
			tables = append(tables, g.Table)
		}
		return nil, fmt.Errorf("postgres: remove the fence: tables are guarded by it (%s): remove their guards first: %w", strings.Join(tables, ", "), store.ErrBusy)
	}
	text := ""
	for _, f := range fenceFunctions {
		text += "DROP FUNCTION IF EXISTS " + s.prefix + f + ";\n"
	}
	// Tables that were dropped leave their counters behind.
	rows, err := s.do(ctx, "look at the fence", "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = '"+s.schema+
		"' AND c.relkind = 'S' AND c.relname ~ '^tenure_refused_[0-9a-f]{10}_("+strings.Join(guardReasons, "|")+")$'")
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		text += "DROP SEQUENCE IF EXISTS " + pgx.Identifier{s.schema, r.text()}.Sanitize() + ";\n"
	}
	return []FenceStep{{What: "drop tenure_fence and the guard's functions", SQL: text}}, nil
}

// fencing is what is there of the fence.
type fencing struct {
	lender    string   // the owner of the leases, whose rights the functions have
	functions []string // those of fenceFunctions that are there
	owned     bool     // by the lender: each of them
	mark      string   // of the text that they were made by
}

func (f *fencing) installed() bool { return slices.Contains(f.functions, "tenure_refusals()") }

// ofLeases is true of roles that have the rights of the owner of the leases.
func (s *Store) ofLeases() string {
	return "pg_has_role(o.owner, (SELECT l.relowner FROM pg_class l WHERE l.oid = '" + s.prefix + "tenure_lease'::regclass), 'MEMBER')"
}

// fence looks at the fence. It returns an error matching store.ErrSchema that names
// a function of the fence's names which somebody else made. Until that is gone
// nothing of the fence is safe to call.
func (s *Store) fence(ctx context.Context) (fencing, error) {
	others, err := s.do(ctx, "look at the fence", s.strangers(nil, fenceNames(), s.ofLeases()))
	if err != nil {
		return fencing{}, err
	}
	if len(others) > 0 {
		what, fix := foreignFunction(others[0])
		return fencing{}, fmt.Errorf("postgres: the fence of schema %q: %s: %s: %w", s.schema, what, fix, store.ErrSchema)
	}
	rows, err := s.do(ctx, "look at the fence", `SELECT pg_get_userbyid(l.relowner), coalesce(p.proname || '(' || oidvectortypes(p.proargtypes) || ')', ''),
			coalesce(p.proowner = l.relowner, true), coalesce(obj_description(p.oid, 'pg_proc'), '')
		FROM pg_class l LEFT JOIN pg_proc p ON p.pronamespace = l.relnamespace AND p.proname IN ('`+strings.Join(fenceNames(), "', '")+`')
		WHERE l.oid = '`+s.prefix+`tenure_lease'::regclass`)
	if err != nil {
		return fencing{}, err
	}
	found := fencing{owned: true}
	for _, r := range rows {
		lender, function, owned, mark := r.text(), r.text(), r.boolean(), r.text()
		if r.err != nil {
			return fencing{}, r.err
		}
		found.lender = lender
		if !slices.Contains(fenceFunctions, function) {
			continue // somebody's with other arguments
		}
		found.functions = append(found.functions, function)
		found.owned = found.owned && owned
		if function == "tenure_fence(text, bigint)" {
			found.mark = mark
		}
	}
	return found, nil
}

// foreignFunction says, of a row of strangers, what is wrong and what to do.
func foreignFunction(r *row) (text, fix string) {
	_, function, owner := r.text(), r.text(), r.text()
	return fmt.Sprintf("function %s belongs to role %q, which has not the rights of the leases' owner: whoever calls it runs that role's code", function, owner),
		fmt.Sprintf("find out who needs it, then: DROP FUNCTION %s;", function)
}

// installed returns what is there of the fence, or an error matching
// store.ErrSchema if that is nothing, or is of another form than this package's.
func (s *Store) installed(ctx context.Context) (fencing, error) {
	present, err := s.fence(ctx)
	if err != nil {
		return fencing{}, err
	}
	if !present.installed() {
		return fencing{}, s.errNoFence()
	}
	if _, mark := s.fenceText("install.sql", nil); present.mark != mark {
		return fencing{}, fmt.Errorf("postgres: the fence of schema %q is of an older form: run: tenure fence install: %w", s.schema, store.ErrSchema)
	}
	if !present.owned {
		return fencing{}, fmt.Errorf("postgres: the fence of schema %q has another owner than the leases: run: tenure fence install: %w", s.schema, store.ErrSchema)
	}
	return present, nil
}

// fenceText returns a file of the fence with names put in, and the mark by which
// this text of it is known again: "tenure fence", the form, the text. The form is
// that of the file, whatever the names.
func (s *Store) fenceText(file string, names []string) (text, mark string) {
	b, err := fenceFiles.ReadFile("fence/" + file)
	if err != nil {
		panic(err) // it is embedded
	}
	text = strings.NewReplacer(append([]string{
		"{{schema}}", `"` + s.schema + `"`,
		"{{name}}", s.schema,
		"{{setting}}", "tenure." + strings.ToLower(s.schema),
	}, names...)...).Replace(string(b))
	form, sum := sha256.Sum256(b), sha256.Sum256([]byte(text))
	return text, "tenure fence " + hex.EncodeToString(form[:4]) + " " + hex.EncodeToString(sum[:6])
}

// RunFence runs steps in order. A step in a transaction is done whole or not at
// all. One that has to wait for a lock for more than 2 s is given up with an
// error matching store.ErrBusy: everybody who uses the table would wait behind
// it. The steps are then planned and run again.
func (s *Store) RunFence(ctx context.Context, steps []FenceStep) error {
	for _, step := range steps {
		if err := s.runFence(ctx, step); err != nil {
			return fenceFailure(step, err)
		}
	}
	return nil
}

func (s *Store) runFence(ctx context.Context, step FenceStep) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	text := fmt.Sprintf("SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL lock_timeout = %d; %s", fenceLockWait.Milliseconds(), step.SQL)
	if step.Alone {
		// It waits for transactions, in whose way it is not.
		text = step.SQL
	}
	_, err = conn.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol)
	return err
}

// fenceFailure is failure for a step.
func fenceFailure(step FenceStep, err error) error {
	class, next := store.ErrUnavailable, ""
	if pg, ok := serverError(err); ok {
		switch pg.Code {
		case "42501":
			class, next = store.ErrPermission, ": run it as a role that owns the table and may do what the role of tenure fence install may, or as a superuser"
		case codeLockTimeout, codeDeadlock:
			class, next = store.ErrBusy, ": the table is in use by a long transaction, run it again"
		case "25006":
			class = store.ErrReadOnly
		default:
			class = store.ErrSchema
		}
	}
	return &refusal{text: fmt.Sprintf("postgres: %s: %s%s", step.What, causes(err), next), class: class, cause: err}
}

// errNoFence says that PlanFence's steps are needed first.
func (s *Store) errNoFence() error {
	return fmt.Errorf("postgres: schema %q has no fence: run: tenure fence install: %w", s.schema, store.ErrSchema)
}
