// Package registry keeps a fleet's durable facts beside its leases: nodes, what
// operators want of them, work with its owners and tokens, the ledger of events
// and takeovers, and the brake. It is the same on SQLite and on Postgres.
//
// # Promised
//
// Every change of a work item by its owner is one statement that names the
// owner, the item's token and the node's live term. Every placement and takeover
// is one transaction that states what it relies on: the item is still as it was
// read, the target may still get work, has room, and holds its lease; and for a
// takeover that the term of the former owner is over. What does not hold any more
// changes nothing and is answered by a [Verdict] with a code (P7, P10); it is
// never an error. A write that carries a [Fence] does nothing once a later term
// of that lease was granted.
//
// Reads are authoritative: of the primary, at this moment (P8).
//
// # Not promised
//
// The registry judges no liveness, places nothing by itself and moves nothing.
// Rules are package fleet's, decisions are the server's.
//
// # How
//
// The tables (fleet_…) lie in the database and schema of the lease tables, since
// the conditions join them. Instants are microseconds since 1970 by the
// database's clock: Postgres's own, or on SQLite the host's wall clock at New
// plus the progress of its boot clock. Terms are judged as package store's
// implementations do: a term whose expiry cannot be read (SQLite, after a reboot)
// counts as live for whoever would take its work, and as over for whoever would
// act under it.
//
// Rows are locked in one order, so that no two transactions wait for each other:
// the fence's lease, node rows in byte order of their ids, then work items in
// theirs. Leases of nodes are locked FOR KEY SHARE only, which no renewal waits
// for.
package registry

import (
	"cmp"
	"database/sql"
	"maps"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// Dialect says which database it is.
type Dialect string

// The databases.
const (
	SQLite   Dialect = "sqlite"
	Postgres Dialect = "postgres"
)

// Clock is the clock by which a SQLite lease store judges expiry; the fields are
// those of that store's Host. Postgres has its own.
type Clock struct {
	Domain string
	Boot   func() time.Duration
	Wall   func() time.Time // read once, in New
}

// Config holds what New needs to know.
type Config struct {
	Dialect Dialect
	// Schema is that of the lease tables on Postgres. Default "public".
	Schema string
	// Clock is required for SQLite, and must be that of the lease store.
	Clock Clock
	// Lost is the lease store's on SQLite: it answers an error once the file was
	// removed or replaced, and then so does every operation. Nil never does.
	Lost func() error
}

// Registry is a fleet's registry. It is safe for concurrent use, by several
// processes too. Its errors name the step and match store.ErrBusy,
// store.ErrSchema, store.ErrReadOnly or store.ErrUnavailable where that is the
// cause; after any other error of a write its outcome is unknown, and each write
// can be repeated safely.
type Registry struct {
	dialect
	db     *sql.DB
	domain string
	clock  func() (wall, boot int64)
	lost   func() error  // SQLite; nil if nobody can tell
	turn   chan struct{} // holds a value while a write of this process is under way; SQLite

	observe atomic.Pointer[func(op string, took time.Duration, err error)]

	mu       sync.Mutex
	accepted uint64
	fenced   uint64 // of accepted
	refusals map[fleet.Code]uint64
}

var schemaRule = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,47}$`)

// New returns a registry in db, which it never closes. For Postgres db is a
// stdlib adapter of pgx (stdlib.OpenDBFromPool); a pooler in transaction mode may
// lie between. For SQLite db is opened as for the lease store, on the same file.
// New reads and changes nothing. It returns an error matching store.ErrInvalid
// for a bad Config.
func New(db *sql.DB, cfg Config) (*Registry, error) {
	r := &Registry{db: db, refusals: map[fleet.Code]uint64{}, turn: make(chan struct{}, 1)}
	switch cfg.Dialect {
	case Postgres:
		schema := cmp.Or(cfg.Schema, "public")
		if !schemaRule.MatchString(schema) {
			return nil, &store.InvalidError{Field: "schema", Value: schema, Rule: "1 to 48 letters, digits and underscores, not beginning with a digit"}
		}
		r.dialect = newDialect(Postgres, schema)
	case SQLite:
		c := cfg.Clock
		if c.Domain == "" || c.Boot == nil || c.Wall == nil {
			return nil, &store.InvalidError{Field: "clock", Value: c.Domain, Rule: "that of the lease store's Host"}
		}
		r.dialect, r.domain, r.lost = newDialect(SQLite, ""), c.Domain, cfg.Lost
		origin := c.Wall().UTC().Round(0).Add(-c.Boot())
		r.clock = func() (wall, boot int64) {
			at := c.Boot()
			return origin.Add(at).UnixMicro(), int64(at)
		}
	default:
		return nil, &store.InvalidError{Field: "dialect", Value: string(cfg.Dialect), Rule: "sqlite or postgres"}
	}
	return r, nil
}

// Refusals returns how many writes of this process changed nothing, by code.
func (r *Registry) Refusals() map[fleet.Code]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.refusals)
}

// Accepted returns how many conditional writes of this process were made.
func (r *Registry) Accepted() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.accepted
}

// Fenced returns how many of Accepted were made under a Fence.
func (r *Registry) Fenced() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fenced
}

func (r *Registry) count(code fleet.Code, f Fence) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if code == "" {
		r.accepted++
		if f != (Fence{}) {
			r.fenced++
		}
		return
	}
	r.refusals[code]++
}

// Observe has f called after each transaction from now on, in place of the one
// given before: op is "read" or "write", took counts the wait for a connection and
// for this process's turn too, and err is what the caller gets. f must be safe for
// concurrent use and return quickly.
func (r *Registry) Observe(f func(op string, took time.Duration, err error)) { r.observe.Store(&f) }
