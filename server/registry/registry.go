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
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
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
}

// Registry is a fleet's registry. It is safe for concurrent use, by several
// processes too. Its errors name the step and match store.ErrBusy,
// store.ErrSchema, store.ErrReadOnly or store.ErrUnavailable where that is the
// cause; after any other error of a write its outcome is unknown, and each write
// can be repeated safely.
type Registry struct {
}

// New returns a registry in db, which it never closes. For Postgres db is a
// stdlib adapter of pgx (stdlib.OpenDBFromPool); a pooler in transaction mode may
// lie between. For SQLite db is opened as for the lease store, of the same file.
// New changes nothing.
func New(db *sql.DB, cfg Config) (*Registry, error) { return nil, errors.ErrUnsupported }

// Migrate makes the tables and views or brings them to this package's version,
// in one transaction. The lease tables must be there. It returns an error
// matching store.ErrSchema if they are not, or if the fleet's are of a later
// version.
func (r *Registry) Migrate(ctx context.Context) error { return nil }

// Check reports whether the tables are as this package needs them, with an error
// matching store.ErrSchema that names the next step. It changes nothing.
func (r *Registry) Check(ctx context.Context) error { return nil }

// SetSuspect tells the view tenure_nodes after which silence a node counts as
// stale there. Nothing else reads it.
func (r *Registry) SetSuspect(ctx context.Context, after time.Duration) error { return nil }

// Refusals returns how many writes of this process changed nothing, by code.
func (r *Registry) Refusals() map[fleet.Code]uint64 { return nil }

// Cursor says up to where changes were read. The zero Cursor is before all.
type Cursor int64

// Nodes returns the nodes that changed since a cursor, and the cursor for the
// next call; from the zero Cursor, all nodes that were not removed. A change is
// one of facts, incarnation, intent or work; beats and renewals are none, see
// Signs. A change may be returned twice and is never left out, except that after
// a failover which lost writes only a full read is sure.
func (r *Registry) Nodes(ctx context.Context, since Cursor) ([]Node, Cursor, error) {
	return nil, 0, nil
}

// Node returns one node, and whether there is one that was not removed.
func (r *Registry) Node(ctx context.Context, id string) (Node, bool, error) {
	return Node{}, false, nil
}

// Sign is what changes of a node at each beat.
type Sign struct {
	Node        string
	Incarnation string
	LastSeen    time.Time
	Age         time.Duration // of LastSeen
	Lease       fleet.Lease
}

// Signs returns the signs of life of some nodes, or of all if nodes is nil, in
// order of id.
func (r *Registry) Signs(ctx context.Context, nodes []string) ([]Sign, error) {
	return nil, errors.ErrUnsupported
}

// Join records a new incarnation of a node, or changed facts of the present one.
// The intent for the node stays. An incarnation that was replaced by a later Join
// gets code incarnation_replaced.
func (r *Registry) Join(ctx context.Context, rep Report) (Verdict, error) {
	return Verdict{}, errors.ErrUnsupported
}

// Flush records in one statement when nodes were last heard. What is older than
// what is known, or of another incarnation than the node's present one, is left.
func (r *Registry) Flush(ctx context.Context, seen []Seen) error { return nil }

// IntentFunc returns what an intent becomes by the wish of mark's actor, or the
// code for why not. It may be called more than once.
type IntentFunc func(now fleet.Intent, mark fleet.Mark) (fleet.Intent, fleet.Code)

// SetIntent changes the intent for a node by change, under the node's row lock,
// and returns the intent after it. If change leaves it as it is, nothing is
// written.
func (r *Registry) SetIntent(ctx context.Context, node string, o Order, change IntentFunc) (fleet.Intent, Verdict, error) {
	return fleet.Intent{}, Verdict{}, nil
}

// CompleteDrain records that the drain of a node is done, if the node owns
// nothing any more: code wrong_state if it does, or if no drain is under way.
func (r *Registry) CompleteDrain(ctx context.Context, f Fence, node, actor string) (Verdict, error) {
	return Verdict{}, nil
}

// NoteLapse records once for a term of a node's lease that it is over, for
// Node.Lapses: code wrong_state if the lease has that term no more, or it is not
// over.
func (r *Registry) NoteLapse(ctx context.Context, f Fence, node string, lease fence.Token, actor string) (Verdict, error) {
	return Verdict{}, nil
}

// Remove forgets a node and the intent for it: code wrong_state while it owns
// work or its lease is live.
func (r *Registry) Remove(ctx context.Context, node string, o Order) (Verdict, error) {
	return Verdict{}, nil
}

// Lapsed returns the items in owned states whose node's lease is over, in order
// of id.
func (r *Registry) Lapsed(ctx context.Context) ([]Owned, error) { return nil, errors.ErrUnsupported }

// Submit stores an item as pending. Submitting the same again, by id and content,
// answers as the first time, wherever the item stands; other content gets
// work_exists.
func (r *Registry) Submit(ctx context.Context, spec fleet.Spec, actor string) (Verdict, error) {
	return Verdict{}, nil
}

// SubmitTo stores an item and places it, or does neither. The Work and Token of p
// are not used. It is repeated like Submit.
func (r *Registry) SubmitTo(ctx context.Context, spec fleet.Spec, p Placement) (Verdict, error) {
	return Verdict{}, nil
}

// Place assigns a pending item. The codes say what failed: no_such_work,
// wrong_state (not pending), stale_token (of the item, of the node's lease, or of
// the fence, as the text says), no_such_node, cordoned, draining, drained,
// no_lease, lease_lapsed, lease_released, lease_revoked, insufficient_….
func (r *Registry) Place(ctx context.Context, p Placement) (Verdict, error) {
	return Verdict{}, errors.ErrUnsupported
}

// Takeover moves an item from a node whose lease is over to p.Node. Besides the
// codes of Place: not_owner, stale_token (the item or the lease of From has
// another one), wrong_state (the item is not owned, it is being stopped for good,
// or the lease of From is live), host_gone (it is pinned).
func (r *Registry) Takeover(ctx context.Context, t Takeover) (Verdict, error) {
	return Verdict{}, errors.ErrUnsupported
}

// ReleaseToPending takes an item from a node whose lease is over without giving
// it to another; t.Node and t.Lease are not used. An item that was being stopped
// for good ends as stopped.
func (r *Registry) ReleaseToPending(ctx context.Context, t Takeover) (Verdict, error) {
	return Verdict{}, nil
}

// Apply makes changes that owners report, and answers each at its index. A
// repeated report of an end answers "" again. The codes are no_such_work,
// not_owner, stale_token, wrong_state, no_lease, lease_lapsed, lease_released.
func (r *Registry) Apply(ctx context.Context, changes []Change) ([]Verdict, error) {
	return nil, errors.ErrUnsupported
}

// Stop orders that an item be ended for good. A pending one ends at once.
func (r *Registry) Stop(ctx context.Context, work string, o Order) (Verdict, error) {
	return Verdict{}, nil
}

// Move orders that a movable item be stopped and placed again elsewhere:
// host_gone if it is pinned, wrong_state if nobody has it.
func (r *Registry) Move(ctx context.Context, f Fence, work string, o Order) (Verdict, error) {
	return Verdict{}, nil
}

// Work returns an item, and whether there is one.
func (r *Registry) Work(ctx context.Context, id string) (fleet.Work, bool, error) {
	return fleet.Work{}, false, nil
}

// Works returns the items that a filter chooses, in order of id.
func (r *Registry) Works(ctx context.Context, f Filter) ([]fleet.Work, error) {
	return nil, errors.ErrUnsupported
}

// Location is an item with where it is to be found.
type Location struct {
	Work    fleet.Work
	Address string      // of the owner
	Lease   fleet.Lease // of the owner
}

// Locate answers a lookup in one read, and whether there is such an item.
func (r *Registry) Locate(ctx context.Context, work string) (Location, bool, error) {
	return Location{}, false, nil
}

// Orders is all that a node is to do, at one revision.
type Orders struct {
	Revision uint64
	Intent   fleet.Intent
	Work     []fleet.Work // what it owns, in order of id
}

// Orders returns the orders of a node, and whether there is such a node.
func (r *Registry) Orders(ctx context.Context, node string) (Orders, bool, error) {
	return Orders{}, false, nil
}

// Events returns entries of the ledger in order of Seq. An event that was
// returned has no earlier one that is still to come.
func (r *Registry) Events(ctx context.Context, f EventFilter) ([]fleet.Event, error) {
	return nil, errors.ErrUnsupported
}

// Append adds events to the ledger; Seq and At are set by it.
func (r *Registry) Append(ctx context.Context, f Fence, events ...fleet.Event) (Verdict, error) {
	return Verdict{}, nil
}

// Taken is one takeover of the ledger. Evidence.To is "" while nobody has the
// item.
type Taken struct {
	Seq   int64
	Work  string
	Actor string
	fleet.Evidence
}

// TakeoverFilter chooses takeovers.
type TakeoverFilter struct {
	After int64  // Seq
	Work  string // "" for all
	Node  string // that lost or got it; "" for all
	Limit int    // 0: 1,000
	Last  bool   // the newest Limit, still in order of Seq
}

// Takeovers returns takeovers in order of Seq.
func (r *Registry) Takeovers(ctx context.Context, f TakeoverFilter) ([]Taken, error) {
	return nil, errors.ErrUnsupported
}

// MarkRedirected records when a lookup first answered the new owner of a
// takeover. Later calls change nothing.
func (r *Registry) MarkRedirected(ctx context.Context, work string, token fence.Token) error {
	return nil
}

// Brake is the brake as it is kept: the state that the active replica saved, and
// what operators have ordered since.
type Brake struct {
	State  json.RawMessage // nil: none was saved
	Saved  time.Time
	Orders []BrakeOrder
}

// BrakeOrder is an operator's word on the brake of one domain ("" is the whole).
type BrakeOrder struct {
	Seq    int64
	Domain string
	What   string // confirm or release
	Order
	At time.Time
}

// Brake returns the brake.
func (r *Registry) Brake(ctx context.Context) (Brake, error) { return Brake{}, nil }

// SaveBrake keeps the state of the brake, and drops the orders up to the Seq that
// it has taken into account.
func (r *Registry) SaveBrake(ctx context.Context, f Fence, state json.RawMessage, seen int64) (Verdict, error) {
	return Verdict{}, nil
}

// OrderBrake keeps an operator's word for the active replica.
func (r *Registry) OrderBrake(ctx context.Context, o BrakeOrder) error { return nil }

// Retention says what Prune keeps. A zero age or number keeps all.
type Retention struct {
	Events    time.Duration // age of events and takeovers
	MaxEvents int64
	Ended     time.Duration // age of the end of work
	Removed   time.Duration // age of the removal of nodes
}

// Prune deletes what a retention does not keep, and returns how many rows.
func (r *Registry) Prune(ctx context.Context, keep Retention) (int64, error) { return 0, nil }
