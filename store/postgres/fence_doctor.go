package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tenurehq/tenure/store"
)

// fenceFindings are about the functions that callers of the leases and of the fence
// call, and about the guards of tables, if there are any.
func (s *Store) fenceFindings(ctx context.Context) ([]store.Finding, error) {
	var found []store.Finding
	others, err := s.do(ctx, "diagnose", s.strangers(nil, append(fenceNames(), leaseFunctions...), s.ofLeases()))
	if err != nil {
		return nil, err
	}
	for _, r := range others {
		text, fix := foreignFunction(r)
		found = append(found, store.Finding{Code: "foreign_function", Severity: store.Broken, Text: text, Fix: fix})
	}
	if len(found) > 0 {
		return found, nil // what else there is to say would be asked of them
	}
	present, err := s.fence(ctx)
	if err != nil || !present.installed() {
		return nil, err
	}
	if !present.owned {
		found = append(found, store.Finding{
			Code: "fence_owner", Severity: store.Warning,
			Text: fmt.Sprintf("functions of the fence in schema %q do not belong to %q, the owner of the leases, and lend the rights of whom they belong to", s.schema, present.lender),
			Fix:  "tenure fence install",
		})
	} else if _, err := s.installed(ctx); errors.Is(err, store.ErrSchema) {
		found = append(found, store.Finding{
			Code: "fence_old_form", Severity: store.Warning, Text: fmt.Sprintf("the functions of the fence in schema %q are of an older form", s.schema),
			Fix: "tenure fence install",
		})
	} else if err != nil {
		return nil, err
	}
	guarded, err := s.Guarded(ctx)
	if err != nil {
		return nil, err
	}
	for _, g := range guarded {
		if !g.Enabled {
			found = append(found, store.Finding{
				Code: "guard_faulty", Severity: store.Warning, Text: fmt.Sprintf("the guard of table %s is not as it should be: %s", g.Table, g.Fault),
				Fix: "tenure fence guard, with that table and the options of before",
			})
		}
	}
	return found, nil
}

// markFindings are about the tables in which package sqlfence keeps marks, if this
// database has any: a mark that a crash takes back lets the writers of an older term in.
func (s *Store) markFindings(ctx context.Context) ([]store.Finding, error) {
	rows, err := s.do(ctx, "diagnose", `SELECT format('%I.%I', n.nspname, c.relname), c.relpersistence = 'u', current_setting('fsync')::bool, current_setting('synchronous_commit') = 'off',
			coalesce((SELECT string_agg(DISTINCT coalesce(r.rolname, 'all roles'), ', ') FROM pg_db_role_setting d LEFT JOIN pg_roles r ON r.oid = d.setrole, unnest(d.setconfig) v
				WHERE d.setdatabase IN (0, (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())) AND lower(v) ~ '^synchronous_commit=(off|false|no|0)$'), '')
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relname IN ('tenure_mark', 'tenure_mark_slot') AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't' ORDER BY 1`)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	var found []store.Finding
	var tables []string
	fsync, lazy, roles := true, false, ""
	for _, r := range rows {
		table, unlogged := r.text(), r.boolean()
		fsync, lazy, roles = r.boolean(), r.boolean(), r.text()
		if r.err != nil {
			return nil, r.err
		}
		tables = append(tables, table)
		if unlogged {
			found = append(found, store.Finding{
				Code: "marks_unlogged", Severity: store.Broken, Text: fmt.Sprintf("table %s is not logged: a crash of the server empties it, and then the marks let writers of older terms in", table),
				Fix: fmt.Sprintf("ALTER TABLE %s SET LOGGED;", table),
			})
		}
	}
	lost := fmt.Sprintf("a crash of the server can take back the last marks in %s, which then let writers of older terms in", strings.Join(tables, ", "))
	switch {
	case !fsync:
		found = append(found, store.Finding{Code: "marks_not_durable", Severity: store.Broken, Text: "fsync is off: " + lost, Fix: "set fsync = on"})
	case lazy || roles != "":
		who := ""
		if roles != "" {
			who = " for " + roles
		}
		found = append(found, store.Finding{
			Code: "marks_not_durable", Severity: store.Warning, Text: "synchronous_commit is off" + who + ": " + lost,
			Fix: "ALTER ROLE or ALTER DATABASE … SET synchronous_commit = on, for whoever raises marks",
		})
	}
	return found, nil
}
