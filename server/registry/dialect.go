package registry

import (
	"encoding/json"
	"hash/fnv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Statements are written once, in what both databases understand, with marks
// where they differ:
//
//	$1         a parameter
//	{s}        the prefix of a table's name
//	{now}      the clock as the transaction read it last, in µs
//	{lock}     locks the rows read, in a SELECT of one table
//	{held}     keeps the terms read from being followed by others, in a SELECT of {leases}
//	{leases}   the lease table, as l
//	{join}     joins the lease named by the expression after it, which {of} ends
//	{lease}    the columns that scanLease reads
//	{live}     l surely is live, by the clock at this moment
//	{over}     l surely is over, by {now}; also if there is none
//	{changed}  the number of this change
//	{in}       is in a set; see dialect.set
//	{age}      how long ago n was last heard, in µs, below 0 if the clock was set back
//	           since; s is its row of fleet_seen
//	{greatest} the scalar function
//	{share}    keeps others from changing the rows read
//	{owned}    the states in which an item has an owner
//
// The clock of {now} is read before what it is compared with. A term that was
// over then can not have been renewed since, so that {over} is never wrong. {live}
// needs the opposite, so it reads the clock itself.

const (
	ownedStates = "state IN ('placed', 'running', 'stopping')"

	// As store.Record.Status and package postgres's own statements judge it.
	postgresLease = `coalesce(l.token, 0), coalesce(l.holder, ''),
		CASE WHEN coalesce(l.token, 0) = 0 THEN 'none' WHEN l.ended_us > 0 THEN 'released' WHEN l.expires_us <= {now} THEN 'lapsed'
			WHEN l.revoked OR l.token <= l.floor THEN 'revoked' ELSE 'held' END,
		CASE WHEN l.token > 0 AND l.ended_us = 0 THEN greatest(l.expires_us - {now}, 0) ELSE 0 END,
		CASE WHEN l.ended_us > 0 THEN greatest({now} - l.ended_us, 0) WHEN l.token > 0 THEN greatest({now} - l.expires_us, 0) ELSE 0 END`
	postgresLive = `(l.token > l.floor AND l.ended_us = 0 AND l.expires_us > {s}tenure_clock())`
	postgresOver = `(l.name IS NULL OR l.token = 0 OR l.ended_us > 0 OR l.expires_us <= {now})`

	// As package sqlite judges it: by the boot clock where that can be read, else
	// by watching, which that store began when it first wrote in this domain.
	sqliteObserved = " LEFT JOIN tenure_observed o ON o.name = l.name AND o.domain = {domain} AND o.attempt = l.attempt"

	sqliteOwn    = `(l.domain = {domain} AND l.expires_ns - l.ttl_ns <= {boot})`
	sqliteExpiry = `(CASE WHEN ` + sqliteOwn + ` THEN l.expires_ns WHEN o.until_ns - l.ttl_ns <= {boot} THEN o.until_ns ELSE {boot} + l.ttl_ns END)`
	sqliteLease  = `coalesce(l.token, 0), coalesce(l.holder, ''),
		CASE WHEN coalesce(l.token, 0) = 0 THEN 'none' WHEN l.ended_us <> 0 THEN 'released' WHEN ` + sqliteExpiry + ` <= {boot} THEN 'lapsed'
			WHEN l.revoked OR l.token <= l.floor THEN 'revoked' ELSE 'held' END,
		CASE WHEN l.token > 0 AND l.ended_us = 0 THEN max(` + sqliteExpiry + ` - {boot}, 0) / 1000 ELSE 0 END,
		CASE WHEN l.ended_us <> 0 THEN max({now} - l.ended_us, 0) WHEN l.token > 0 THEN max({boot} - ` + sqliteExpiry + `, 0) / 1000 ELSE 0 END`
	sqliteLive = `(l.token > l.floor AND l.ended_us = 0 AND ` + sqliteOwn + ` AND l.expires_ns > {boot})`
	sqliteOver = `(l.name IS NULL OR l.token = 0 OR l.ended_us <> 0 OR ` + sqliteExpiry + ` <= {boot})`
)

// dialect is what differs between the databases.
type dialect struct {
	name   Dialect
	schema string // Postgres
	prefix string // of the name of a table
	marks  *strings.Replacer
}

func newDialect(name Dialect, schema string) dialect {
	d := dialect{name: name, schema: schema}
	if name == Postgres {
		prefix := `"` + schema + `".`
		d.prefix = prefix
		d.marks = strings.NewReplacer(
			"{s}", prefix,
			"{lock}", " FOR NO KEY UPDATE",
			"{held}", " FOR KEY SHARE OF l",
			"{leases}", prefix+"tenure_lease l",
			"{join}", " LEFT JOIN "+prefix+"tenure_lease l ON l.name =",
			"{of}", "",
			"{lease}", postgresLease,
			"{live}", strings.ReplaceAll(postgresLive, "{s}", prefix),
			"{over}", postgresOver,
			"{changed}", "pg_current_xact_id()::text::bigint",
			"{in}", "= ANY",
			"{owned}", ownedStates,
			"{age}", "{now} - greatest(s.seen_us, n.joined_us)",
			"{greatest}", "greatest",
			"{share}", " FOR SHARE",
		)
		return d
	}
	d.marks = strings.NewReplacer(
		"$", "?",
		"{s}", "",
		"{lock}", "",
		"{held}", "",
		"{share}", "",
		"{leases}", "tenure_lease l"+sqliteObserved,
		"{join}", " LEFT JOIN tenure_lease l ON l.name =",
		"{of}", sqliteObserved,
		"{lease}", sqliteLease,
		"{live}", sqliteLive,
		"{over}", sqliteOver,
		"{in}", "IN",
		"{owned}", ownedStates,
		"{age}", "CASE WHEN s.domain = {domain} AND s.seen_ns <= {boot} THEN ({boot} - s.seen_ns) / 1000 ELSE {now} - max(coalesce(s.seen_us, 0), n.joined_us) END",
		"{greatest}", "max",
	)
	return d
}

// list returns a parameter that is a list, for set.
func (d dialect) list(values []string) any {
	if d.name == Postgres {
		if values == nil {
			return []string{}
		}
		return values
	}
	b, _ := json.Marshal(values) // strings always marshal
	return string(b)
}

// migration puts the prefix into a file of statements.
func (d dialect) migration(text string) string { return strings.ReplaceAll(text, "{s}", d.prefix) }

// set is the set of the values in a parameter made by list.
func (d dialect) set(parameter string) string {
	if d.name == Postgres {
		return "(" + parameter + ")"
	}
	return "(SELECT value FROM json_each(" + parameter + "))"
}

// rows are the values in a parameter made by list, as rows a with a column value.
func (d dialect) rows(parameter string) string {
	if d.name == Postgres {
		return "unnest(" + parameter + "::text[]) a(value)"
	}
	return "json_each(" + parameter + ") a"
}

// subset is what a query of one column answers, for {in}.
func (d dialect) subset(query string) string {
	if d.name == Postgres {
		return "(ARRAY(" + query + "))"
	}
	return "(" + query + ")"
}

// args prepares the parameters of a statement. For Postgres nothing is prepared
// by name, since a pooler in transaction mode gives the next transaction another
// connection.
func (d dialect) args(args []any) []any {
	if d.name == Postgres {
		return append([]any{pgx.QueryExecModeExec}, args...)
	}
	return args
}

// space is the first number of the advisory locks for one use, which keeps the
// schemas of one database apart.
func (d dialect) space(use string) int32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte("tenure fleet " + use + " " + d.schema)) // never fails
	return int32(h.Sum32())
}
