package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure/fence"
)

// Decisions: the store answered and this is its answer.
var (
	// ErrHeld reports that a term cannot start now. See HeldError.
	ErrHeld = errors.New("store: lease is held")
	// ErrSuperseded reports that the record belongs to a later term, or to a
	// copy of this holder that renewed it.
	ErrSuperseded = errors.New("store: term is superseded")
	// ErrExpired reports that the term's expiry has passed by the store's clock.
	ErrExpired = errors.New("store: term has expired")
	// ErrMissing reports that the record of the term is not there.
	ErrMissing = errors.New("store: record of the term is missing")
	// ErrRevoked reports that an operator ended the term or raised the floor above it.
	ErrRevoked = errors.New("store: term is revoked")
	// ErrReleased reports that the term was released.
	ErrReleased = errors.New("store: term was released")
	// ErrNotFound reports that the store has no such lease, from an authoritative read.
	ErrNotFound = errors.New("store: no such lease")
	// ErrSlotDone reports that the slot is done already. See SlotError.
	ErrSlotDone = errors.New("store: slot is done")
	// ErrClockStep reports that the store's clock showed more than the caller
	// allowed, so that an expiry was not trusted.
	ErrClockStep = errors.New("store: the store's clock has stepped")
)

// Refusals: no decision was made on the lease. None of them is a loss.
var (
	// ErrBusy reports that somebody else has the record, or the database, locked.
	ErrBusy = errors.New("store: busy")
	// ErrPermission reports that the store does not allow the operation.
	ErrPermission = errors.New("store: permission denied")
	// ErrReadOnly reports that the store accepts no writes now.
	ErrReadOnly = errors.New("store: read-only")
	// ErrSchema reports that the tables are missing or of another version.
	ErrSchema = errors.New("store: schema is not as expected")
	// ErrUnavailable reports that the store could not be reached or did not answer.
	ErrUnavailable = errors.New("store: no answer")
	// ErrCopied reports that the database is a copy from another host.
	ErrCopied = errors.New("store: database was copied from another host")
	// ErrUnsupported reports something that this store cannot do.
	ErrUnsupported = errors.New("store: not supported")
)

// ErrInvalid reports an argument that breaks a rule. See InvalidError.
var ErrInvalid = errors.New("store: invalid argument")

// HeldError says why a term cannot start now. It matches ErrHeld.
type HeldError struct {
	Record Record
	// Remaining is how long a newcomer has to wait at most, by the store's
	// clock when it answered, if nobody renews.
	Remaining time.Duration
	// Reason is a stable code: "held", "min_hold", "reserved", "changed"
	// (Request.IfRevision did not match) or "may_be_stale" (an observed store
	// that has not watched long enough).
	Reason string
}

// Reasons of a HeldError.
const (
	HeldByTerm    = "held"
	HeldByMinHold = "min_hold"
	HeldReserved  = "reserved"
	HeldChanged   = "changed"
	HeldMaybe     = "may_be_stale"
)

func (e *HeldError) Error() string {
	left := e.Remaining.Round(time.Millisecond)
	switch e.Reason {
	case HeldByMinHold:
		return fmt.Sprintf("store: lease %q is kept free for another %s (min-hold of token %s)", e.Record.Name, left, e.Record.Token)
	case HeldReserved:
		return fmt.Sprintf("store: lease %q is reserved for %q for another %s", e.Record.Name, e.Record.ReservedFor, left)
	case HeldChanged:
		return fmt.Sprintf("store: lease %q has changed since it was read (token %s, %s)", e.Record.Name, e.Record.Token, e.Record.Status)
	case HeldMaybe:
		return fmt.Sprintf("store: lease %q is held by %q (token %s), may be stale, wait up to %s", e.Record.Name, e.Record.Holder, e.Record.Token, left)
	}
	return fmt.Sprintf("store: lease %q is held by %q (token %s) for up to %s", e.Record.Name, e.Record.Holder, e.Record.Token, left)
}

func (e *HeldError) Unwrap() error { return ErrHeld }

// InvalidError names an argument, its value and the rule that it breaks. It
// matches ErrInvalid.
type InvalidError struct {
	Field string // "name", "ttl", …
	Value string // as given, shortened
	Rule  string
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("store: %s %q: %s", e.Field, e.Value, e.Rule)
}

func (e *InvalidError) Unwrap() error { return ErrInvalid }

// BusyError names who is in the way. It matches ErrBusy.
type BusyError struct {
	Name     string   // the lease, "" for the whole database
	Blockers []string // "pid 4711 (psql, idle in transaction since …)", "prepared transaction \"x\""
}

func (e *BusyError) Error() string {
	what := "the database"
	if e.Name != "" {
		what = fmt.Sprintf("lease %q", e.Name)
	}
	if len(e.Blockers) == 0 {
		return "store: busy: " + what + " is locked by somebody else"
	}
	return fmt.Sprintf("store: busy: %s is locked by %s", what, strings.Join(e.Blockers, ", "))
}

func (e *BusyError) Unwrap() error { return ErrBusy }

// SlotError says who completed a slot. It matches ErrSlotDone.
type SlotError struct{ Slot Slot }

func (e *SlotError) Error() string {
	return fmt.Sprintf("store: slot %q of %q was done by %q (token %s)", e.Slot.Slot, e.Slot.Name, e.Slot.Holder, e.Slot.Token)
}

func (e *SlotError) Unwrap() error { return ErrSlotDone }

// Code is the stable code of an outcome, for logs, metrics and exit reports.
type Code string

// The codes. A code per reason (P10); Classify maps errors to them.
const (
	CodeHeld        Code = "held"
	CodeSuperseded  Code = "superseded"
	CodeExpired     Code = "expired"
	CodeMissing     Code = "missing"
	CodeRevoked     Code = "revoked"
	CodeReleased    Code = "released"
	CodeNotFound    Code = "not_found"
	CodeSlotDone    Code = "slot_done"
	CodeClockStep   Code = "store_clock_step"
	CodeBusy        Code = "busy"
	CodePermission  Code = "permission"
	CodeReadOnly    Code = "read_only"
	CodeSchema      Code = "schema"
	CodeCopied      Code = "store_copied"
	CodeUnsupported Code = "unsupported"
	CodeInvalid     Code = "invalid"
	CodeNoContact   Code = "no_contact"
	CodeStale       Code = "stale_token"
)

var codes = []struct {
	err  error
	code Code
}{
	{ErrHeld, CodeHeld}, {ErrSuperseded, CodeSuperseded}, {ErrExpired, CodeExpired}, {ErrMissing, CodeMissing},
	{ErrRevoked, CodeRevoked}, {ErrReleased, CodeReleased}, {ErrNotFound, CodeNotFound}, {ErrSlotDone, CodeSlotDone},
	{ErrClockStep, CodeClockStep}, {ErrBusy, CodeBusy}, {ErrPermission, CodePermission}, {ErrReadOnly, CodeReadOnly},
	{ErrSchema, CodeSchema}, {ErrCopied, CodeCopied}, {ErrUnsupported, CodeUnsupported}, {ErrInvalid, CodeInvalid},
	{fence.ErrStale, CodeStale}, {ErrUnavailable, CodeNoContact}, {context.DeadlineExceeded, CodeNoContact}, {context.Canceled, CodeNoContact},
}

// Classify returns the code of err; CodeNoContact for an error of no known
// kind, since its outcome is unknown, and "" for nil.
func Classify(err error) Code {
	if err == nil {
		return ""
	}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return CodeNoContact
}

// Definite reports whether err, from Renew, says for certain that the term is over.
func Definite(err error) bool {
	switch Classify(err) {
	case CodeSuperseded, CodeExpired, CodeMissing, CodeRevoked, CodeReleased:
		return true
	}
	return false
}
