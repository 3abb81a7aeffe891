// Package store is the contract between tenure and the databases that keep its
// leases.
//
// # Promised
//
// A lease is a record with a name. By the store's own clock at most one term
// of a name is unexpired (P2), and each term carries a larger token than the
// one before it, for the whole life of the name (P1): release, expiry, cleaning
// and restart end terms and never reset the counter. A losing Acquire writes
// nothing. A reply that got lost does no harm, because each send carries an
// attempt by which it is recognised afterwards (P6).
//
// # Not promised
//
// A Store does not retry, does not wait, adds no jitter and trusts nothing on
// the caller's behalf. Package tenure's Keeper does that. A Store cannot stop a
// holder; it only refuses to extend its term.
//
// # How a term is recognised
//
// Whoever sends a request makes an [Attempt] for it, a value never used
// before. The record keeps the attempt of the last write that its holder made.
// A holder lists in [Grant.Known] the attempts that it may find there: the last
// one that was confirmed and every later one that went without an answer.
// Neither the holder's name nor the token proves anything: two processes that
// were resumed from one memory image share both, but the first of them to renew
// leaves an attempt that the other does not know, and the other is superseded.
//
//	          Acquire (token+1)
//	free ────────────────────────► held ──┐ Renew (same token,
//	  ▲                             │  ▲  │        new expiry)
//	  │   Release, or Revoke now    │  └──┘
//	  ├─────────────────────────────┤
//	  │                             │ expiry passes
//	  │ Release                     ▼
//	  └────────────────────────── lapsed ── Acquire (token+1) ─► held
//
// A lapsed term is never revived. Revoke leaves a term held and refuses its
// renewals.
package store

import (
	"context"
	"iter"
	"time"

	"github.com/tenurehq/tenure/fence"
)

// Store keeps leases. All methods are safe for concurrent use. All of them
// return an error matching [ErrInvalid] before they send anything if an
// argument breaks a rule of this package, and one of the classified errors of
// this package (see [Classify]) when the store refused or did not answer.
//
// When a call returns an error that matches neither a decision nor a refusal,
// its outcome is unknown: the request may have been applied. Acquire, Renew,
// Release and Revoke can have such an outcome; the caller then lists the
// attempt as one that may be found later.
type Store interface {
	// Acquire starts a term if the lease is free or lapsed, or if the record's
	// last attempt is in req.Known (an earlier Acquire of this caller that was
	// applied and whose reply was lost: the term goes on with its token and a
	// new expiry). It returns *HeldError otherwise, and then has written nothing.
	// JudgeAcquire is this rule as code.
	Acquire(ctx context.Context, req Request) (Record, error)

	// Renew extends terms, in one round trip where the store can. It returns one
	// Result for each grant, in order; the error is for the request as a whole
	// and leaves the outcome of every grant unknown. It never creates a record
	// and never revives a lapsed term.
	//
	// Result.Err is nil, or matches the first of these that applies: ErrMissing
	// (no record, or one with a smaller token: the store forgot), ErrSuperseded
	// (a larger token), ErrRevoked, ErrReleased, ErrSuperseded (another attempt
	// than the known ones: a copy renewed), ErrExpired. ErrBusy says that
	// somebody else has locked the record, that nothing was decided, and that
	// the grant should be sent again alone. JudgeRenew is this rule as code.
	Renew(ctx context.Context, grants []Grant) ([]Result, error)

	// Release ends terms and keeps their records. Result.Err is nil if the term
	// is ended, also when an earlier Release whose attempt is in Known ended it;
	// a lapsed or revoked term can be released. ErrSuperseded, ErrMissing,
	// ErrReleased and ErrBusy are as for Renew, and then nothing was changed.
	// A grant with a zero token is matched by its attempts alone: it gives back
	// an Acquire whose reply never came. JudgeRelease is this rule as code.
	Release(ctx context.Context, grants []Grant) ([]Result, error)

	// Get returns the record, or an error matching ErrNotFound, from an
	// authoritative read.
	Get(ctx context.Context, name string) (Record, error)

	// List yields the records whose names begin with prefix, in byte order of
	// their names; "" means all. It stops after the first error.
	List(ctx context.Context, prefix string) iter.Seq2[Record, error]

	// Revoke marks the term with exactly this token, so that every later
	// renewal of it answers ErrRevoked. See [Revocation]. It returns
	// ErrNotFound if there is no record and ErrSuperseded if the record's token
	// is another or its term has ended.
	Revoke(ctx context.Context, name string, token fence.Token, rev Revocation) error

	// RaiseFloor makes every later token of name larger than floor; "" means
	// every name, also those that the store does not know. A live term whose
	// token is not larger than the floor ends as if revoked. A floor that is
	// not above the present one changes nothing.
	RaiseFloor(ctx context.Context, name string, floor fence.Token) error

	// Features says what this store can and cannot ensure.
	Features() Features
}

// Request asks for a new term.
type Request struct {
	Name    string        // see CheckName
	Holder  string        // the identity of the asking process; see CheckHolder
	TTL     time.Duration // life of the term on the store's clock, from the write
	Attempt Attempt       // of this send; never one that was sent before
	Known   []Attempt     // earlier sends of this Acquire that went without an answer

	// Replace names a term of the caller's own that this Acquire may end
	// although it is unexpired: recognised as a renewal of it would be. The new
	// term has a larger token. Nil means none.
	Replace *Grant

	// MinHold keeps the lease from starting another term before this long after
	// this one began, however it ends. 0 means none. It is kept by the store,
	// so that it outlasts the holder's process.
	MinHold time.Duration

	// IfRevision, if set, lets a term start on a free or lapsed lease only while
	// the record is still at this revision: *HeldError with Reason "changed"
	// otherwise, ErrMissing if there is no record.
	IfRevision Revision

	// ClockNotAfter, if set, is the latest that the store's clock should show.
	// If it shows more, a term that ended by expiry alone is not taken over:
	// the error matches ErrClockStep. A free lease is not affected.
	ClockNotAfter time.Time

	// Meta is kept with the record for people to read; at most MaxMeta bytes as JSON.
	Meta map[string]string
}

// Grant is what a holder shows to renew or release a term.
type Grant struct {
	Name    string
	Token   fence.Token
	TTL     time.Duration // of the term from this renewal on; unused by Release
	Attempt Attempt       // of this send; never one that was sent before
	Known   []Attempt     // the last confirmed attempt and all later unanswered ones

	// HandoffTo, in a Release, reserves the lease for that holder for
	// HandoffTime(term's TTL); see Reserved. "" means free to all.
	HandoffTo string
}

// Result is the outcome of one grant.
type Result struct {
	// Record is the record as found, if it was found, where Err is not nil. After
	// a Release it is the record as written. After a Renew it says at least Name,
	// Status, Token, Attempt, TTL, Remaining, RenewedAt, ExpiresAt and Now; a store
	// may leave the rest out, so that extending a thousand terms is not reading them.
	Record Record
	Err    error
}

// Revocation is an operator's reason and choice.
type Revocation struct {
	Why string // shown to the holder and kept; one line, at most MaxReason bytes
	By  string // who revoked; one line, at most MaxReason bytes
	// Now frees the lease at once, min-hold and all, without waiting for the
	// holder: two may act until the old one learns of it.
	Now bool
	// HandoffTo reserves the lease, once the term ends, as Grant.HandoffTo does.
	HandoffTo string
}

// Status says where a record stands by the store's clock at the answer.
type Status string

// The states of a record.
const (
	Held     Status = "held"     // a term is unexpired
	Lapsed   Status = "lapsed"   // the last term expired and was not released
	Released Status = "released" // the last term was released, or revoked with Now
	Unheld   Status = "unheld"   // no term yet; only a floor was set
)

// Record is what a store knows of one lease. Instants are the store's clock and
// for display; durations were computed by the store when it answered.
type Record struct {
	Name      string
	Status    Status
	Holder    string        // of the current or last term
	Token     fence.Token   // of the current or last term; 0 if Unheld
	Floor     fence.Token   // the next token is larger than this and than Token
	Revision  Revision      // changes at every write
	Attempt   Attempt       // of the holder's last accepted write
	TTL       time.Duration // of the current or last term, as last granted
	Remaining time.Duration // until expiry; 0 unless Held; never more than TTL

	// Wait is how long it will be before a new term may start although none is
	// held: min-hold or reservation. While Held it is counted in too, so that
	// max(Remaining, Wait) is always how long a newcomer must wait at most.
	Wait        time.Duration
	ReservedFor string // who need not wait for a reservation; "" if none is running

	Revoked   bool   // renewals are refused; the reason is in Why
	Why       string // of the revocation
	RevokedBy string

	AcquiredAt time.Time // when the current or last term began
	RenewedAt  time.Time // the last accepted Acquire or Renew
	ExpiresAt  time.Time // when it lapses or lapsed
	EndedAt    time.Time // when it was released; zero otherwise
	Now        time.Time // the store's clock when it answered

	Meta map[string]string
}

// Free reports whether holder could start a term of r now, were nobody to come first.
func (r *Record) Free(holder string) bool {
	return r.Status != Held && (r.Wait <= 0 || Reserved(r.ReservedFor, holder))
}

// Revision is a store's compare-and-swap value. It is opaque: compare for
// equality, and never show it as a token.
type Revision string

// ClockKind says whose clock decides expiry.
type ClockKind string

// The kinds of clock.
const (
	ClockServer   ClockKind = "server"   // the database server's
	ClockHost     ClockKind = "host"     // this host's boot clock; one host only
	ClockProcess  ClockKind = "process"  // this process's; memory only
	ClockObserved ClockKind = "observed" // none: judged by watching
)

// Features says what a store can and cannot ensure. `tenure doctor` prints it
// and the table in docs/STORES.md is generated from it.
type Features struct {
	Backend      string        // "postgres"
	Clock        ClockKind     // whose clock decides
	MinTTL       time.Duration // shortest TTL that is granted
	Granularity  time.Duration // of the clock; expiry is never rounded down
	BatchRenew   bool          // Renew of n grants is one round trip
	Watch        bool          // implements Watcher
	JoinedFence  bool          // a guarded write can join the same transaction
	Reach        string        // who can share it: "one process", "one host", "any host"
	TokensReset  string        // what makes tokens start over
	LosesWrites  string        // when an acknowledged write can be lost
	ClockCaution string        // what a step of its clock does
}

// Watcher is implemented by stores that tell of ends and starts of terms, so
// that waiting costs no request.
type Watcher interface {
	// Watch returns once it is registered: every term of name that ends by
	// release or revocation, or starts, after that is told on the channel. The
	// channel closes when ctx ends or when the store can no longer tell, and
	// the waiter must then ask. Events may be told twice and merged; an event
	// is a hint to ask, not an answer. An error matching ErrUnsupported says
	// that this store, as it was opened, cannot watch.
	Watch(ctx context.Context, name string) (<-chan Event, error)
}

// Event tells of the end or start of a term.
type Event struct {
	Name string
	// Held says that a term started; false, that one ended.
	Held bool
	// Remaining is, for a start, how long the new term has at most at the time
	// the event was sent.
	Remaining time.Duration
	// Waiters is an estimate of how many wait for this name at this store, to
	// spread their tries. At least 1.
	Waiters int
}

// Historian is implemented by stores that keep the past terms of a lease.
type Historian interface {
	// History yields the terms of name, newest first.
	History(ctx context.Context, name string) iter.Seq2[Term, error]
}

// Term is one past or current holding of a lease.
type Term struct {
	Name       string
	Token      fence.Token
	Holder     string
	AcquiredAt time.Time // store's clock
	EndedAt    time.Time // zero while it is held; the expiry if it lapsed
	// End says how it ended: "" while it is held, else "released", "expired",
	// "revoked" or "replaced".
	End string
	Why string // of a revocation
}

// Slotter is implemented by stores that remember which slots of a lease are
// done: a night, an hour, an invoice run. A slot is done at most once.
type Slotter interface {
	// Done records, under the live term that g shows, that slot is done. It looks
	// at the slot first: nil if it was already done under the same token,
	// *SlotError (matching ErrSlotDone) if it was done under another. Then it
	// judges the term, and returns the errors of Renew if it is not live.
	Done(ctx context.Context, g Grant, slot string) error
	// Slot returns the entry of slot, or ErrNotFound.
	Slot(ctx context.Context, name, slot string) (Slot, error)
}

// Slot is the entry of one slot that is done.
type Slot struct {
	Name   string
	Slot   string
	Token  fence.Token
	Holder string
	DoneAt time.Time // store's clock
}

// Cleaner is implemented by stores that can drop records of leases that are not used any more.
type Cleaner interface {
	// Clean removes records of terms that ended at least idle ago and cannot be
	// held, and in the same step raises the floor for unknown names to the
	// largest token removed. It returns how many were removed.
	Clean(ctx context.Context, idle time.Duration) (int, error)
}

// Doctor is implemented by stores that can look at their server's settings.
type Doctor interface {
	// Diagnose returns what could weaken a promise. It changes nothing.
	Diagnose(ctx context.Context) ([]Finding, error)
}

// Severity ranks a finding.
type Severity string

// The severities.
const (
	Info    Severity = "info"
	Warning Severity = "warning"
	Broken  Severity = "broken" // a promise does not hold
)

// Finding is one observation of a Doctor.
type Finding struct {
	Code     string // stable, snake_case
	Severity Severity
	Text     string // what was seen
	Fix      string // the next step; "" if none is needed
}
