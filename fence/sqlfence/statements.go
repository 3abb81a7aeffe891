package sqlfence

import (
	"fmt"
	"strings"
)

// statements is the SQL of one place of marks.
type statements struct {
	create []string
	// turn comes first in create's transaction, so that one makes the tables at a
	// time: in Postgres IF NOT EXISTS does not see what another transaction is
	// making. "" where the database lets one write at a time anyway.
	turn string

	// raise are tried in order until one returns a row, which means accepted.
	// Parameters: resource, token.
	raise []string
	// current reads the mark of a resource.
	current string
	// record makes the record of a slot, if there is none. Parameters: resource,
	// slot, token.
	record string
	// slot reads the token of a slot's record.
	slot string
}

// write makes the statements. The names are quoted. own says that rows of the
// table may be inserted.
func write(dialect Dialect, table, key, token string, own bool) statements {
	p := func(n int) string {
		if dialect == SQLite {
			return fmt.Sprintf("?%d", n)
		}
		return fmt.Sprintf("$%d", n)
	}
	text, number, options := `text COLLATE "C"`, "bigint", ""
	if dialect == SQLite {
		text, number, options = "TEXT", "INTEGER", " WITHOUT ROWID"
	}
	resource := p(1)
	if !own { // tables may have rows with the same key
		resource = fmt.Sprintf("'%s:' || CAST(%s AS text)", strings.ReplaceAll(table, `"`, ""), p(1))
	}
	s := statements{
		current: fmt.Sprintf("SELECT %s FROM %s WHERE %s = %s", token, table, key, p(1)),
		record:  fmt.Sprintf("INSERT INTO %s (resource, slot, token) VALUES (%s, %s, %s) ON CONFLICT (resource, slot) DO NOTHING", slotTable, resource, p(2), p(3)),
		slot:    fmt.Sprintf("SELECT token FROM %s WHERE resource = %s AND slot = %s", slotTable, resource, p(2)),
	}
	slots := fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (resource %s NOT NULL, slot %s NOT NULL, token %s NOT NULL CHECK (token > 0), PRIMARY KEY (resource, slot))%s", slotTable, text, text, number, options)
	if dialect == Postgres {
		s.turn = "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('tenure marks'), 0)"
	}
	if !own {
		s.create = []string{slots}
		// An update also where the token is the mark: the caller goes on to update
		// this row, and of two that share it, both would wait for the other.
		s.raise = []string{fmt.Sprintf("UPDATE %[1]s SET %[3]s = %[5]s WHERE %[2]s = %[4]s AND (%[3]s IS NULL OR %[3]s <= %[5]s) RETURNING %[3]s", table, key, token, p(1), p(2))}
		return s
	}
	s.create = []string{
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (%s %s NOT NULL PRIMARY KEY, %s %s NOT NULL CHECK (%[4]s > 0))%[6]s", table, key, text, token, number, options),
		slots,
	}
	const conflict = " ON CONFLICT (%[2]s) DO UPDATE SET %[3]s = excluded.%[3]s WHERE m.%[3]s <= excluded.%[3]s RETURNING %[3]s"
	if dialect == SQLite {
		// A writer from its first step on.
		s.raise = []string{fmt.Sprintf("INSERT INTO %[1]s AS m (%[2]s, %[3]s) VALUES (%[4]s, %[5]s)"+conflict, table, key, token, p(1), p(2))}
		return s
	}
	s.raise = []string{
		fmt.Sprintf("SELECT %[3]s FROM %[1]s WHERE %[2]s = %[4]s AND %[3]s = %[5]s FOR SHARE", table, key, token, p(1), p(2)),
		// The conflict takes the row also where its WHERE refuses. The other WHERE
		// lets a refused writer who does not roll back stand in nobody's way.
		fmt.Sprintf("INSERT INTO %[1]s AS m (%[2]s, %[3]s) SELECT CAST(%[4]s AS text), CAST(%[5]s AS bigint) WHERE NOT EXISTS (SELECT FROM %[1]s n WHERE n.%[2]s = %[4]s AND n.%[3]s > %[5]s)"+conflict, table, key, token, p(1), p(2)),
	}
	return s
}
