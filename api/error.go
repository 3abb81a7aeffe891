package api

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// Error is a decoded refusal of a server, or one that a server is about to send.
// Where Code is that of package store, it unwraps to the error of package store
// with its facts: *store.HeldError, *store.BusyError, *store.SlotError,
// *store.InvalidError or the sentinel. unauthorized and forbidden match
// store.ErrPermission, and whatever leaves the outcome unknown matches
// store.ErrUnavailable.
type Error struct {
	Code       string
	Message    string
	Status     int // of HTTP
	RetryAfter time.Duration
	Counts     map[fleet.Code]int // of no_capacity: nodes by the reason that leaves them out
	Owner      string             // who has the work item, where a change was refused
	Current    fence.Token        // its token
	cause      error
}

// Refuse returns the refusal of a server with a code of package fleet or of this
// one. Counts, RetryAfter and the like are the caller's to add.
func Refuse[C ~string](code C, format string, args ...any) *Error {
	return &Error{Code: string(code), Message: fmt.Sprintf(format, args...), Status: Status(string(code)), cause: causes[string(code)]}
}

// RefuseInvalid returns the refusal of an argument.
func RefuseInvalid(field, value, rule string) *Error {
	return NewError(&store.InvalidError{Field: field, Value: value, Rule: rule})
}

// NewError returns err as a server sends it: itself if it is an *Error, one with
// the code of package store, or no_contact.
func NewError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	code := string(store.Classify(err))
	return &Error{Code: code, Message: err.Error(), Status: Status(code), cause: err}
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the error of package store that belongs to the code, or nil.
func (e *Error) Unwrap() error { return e.cause }

// Problem returns e as it is sent.
func (e *Error) Problem() Problem {
	p := Problem{
		Code: e.Code, Message: e.Message, RetryAfterMS: (e.RetryAfter + time.Millisecond - 1).Milliseconds(),
		Counts: maps.Clone(e.Counts), Owner: e.Owner, Current: e.Current,
	}
	if invalid, ok := errors.AsType[*store.InvalidError](e.cause); ok {
		p.Field, p.Value, p.Rule = invalid.Field, invalid.Value, invalid.Rule
	}
	if invalid, ok := errors.AsType[*fleet.InvalidError](e.cause); ok {
		p.Field, p.Value, p.Rule = invalid.Field, invalid.Value, invalid.Rule
	}
	if held, ok := errors.AsType[*store.HeldError](e.cause); ok {
		p.Held = &HeldFacts{Record: NewRecord(held.Record), RemainingUS: Microseconds(held.Remaining), Reason: held.Reason}
	}
	p.Busy = busyFacts(e.cause)
	if slot, ok := errors.AsType[*store.SlotError](e.cause); ok {
		s := NewSlot(slot.Slot)
		p.Slot = &s
	}
	return p
}

// Error returns the refusal that p is, if it is one: its code is known and
// belongs to status.
func (p *Problem) Error(status int) (*Error, bool) {
	if known, ok := statuses[p.Code]; !ok || known != status {
		return nil, false
	}
	e := &Error{
		Code: p.Code, Message: p.Message, Status: status, RetryAfter: time.Duration(min(max(p.RetryAfterMS, 0), int64(time.Hour/time.Millisecond))) * time.Millisecond,
		Counts: p.Counts, Owner: p.Owner, Current: p.Current, cause: causes[p.Code],
	}
	switch {
	case p.Code == string(store.CodeInvalid):
		e.cause = &store.InvalidError{Field: p.Field, Value: p.Value, Rule: p.Rule}
	case p.Code == string(store.CodeHeld) && p.Held != nil:
		e.cause = &store.HeldError{Record: p.Held.Record.Store(), Remaining: duration(p.Held.RemainingUS), Reason: p.Held.Reason}
	case p.Code == string(store.CodeBusy) && p.Busy != nil:
		e.cause = p.Busy.error()
	case p.Code == string(store.CodeSlotDone) && p.Slot != nil:
		e.cause = &store.SlotError{Slot: p.Slot.Store()}
	}
	return e, true
}

// causes are what a code matches if the problem brings no facts.
var causes = map[string]error{
	string(store.CodeHeld):        store.ErrHeld,
	string(store.CodeSuperseded):  store.ErrSuperseded,
	string(store.CodeExpired):     store.ErrExpired,
	string(store.CodeMissing):     store.ErrMissing,
	string(store.CodeRevoked):     store.ErrRevoked,
	string(store.CodeReleased):    store.ErrReleased,
	string(store.CodeNotFound):    store.ErrNotFound,
	string(store.CodeSlotDone):    store.ErrSlotDone,
	string(store.CodeClockStep):   store.ErrClockStep,
	string(store.CodeBusy):        store.ErrBusy,
	string(store.CodePermission):  store.ErrPermission,
	string(store.CodeReadOnly):    store.ErrReadOnly,
	string(store.CodeSchema):      store.ErrSchema,
	string(store.CodeCopied):      store.ErrCopied,
	string(store.CodeUnsupported): store.ErrUnsupported,
	string(store.CodeInvalid):     store.ErrInvalid,
	string(store.CodeNoContact):   store.ErrUnavailable,
	string(store.CodeStale):       fence.ErrStale,
	CodeFault:                     store.ErrUnavailable,
	CodeNotReady:                  store.ErrUnavailable,
	CodeUnauthorized:              store.ErrPermission,
	CodeForbidden:                 store.ErrPermission,
	CodeNoSuchPath:                store.ErrUnsupported,
	CodeNoSuchMethod:              store.ErrUnsupported,
	CodeTooLarge:                  store.ErrInvalid,
	CodeMediaType:                 store.ErrInvalid,
}

// NewResult returns the wire form of the outcome of one grant.
func NewResult(r store.Result) RenewResult {
	var w RenewResult
	if r.Err != nil {
		w.Code, w.Text, w.Busy = store.Classify(r.Err), r.Err.Error(), busyFacts(r.Err)
	}
	if r.Record.Name != "" {
		rec := NewRecord(r.Record)
		w.Record = &rec
	}
	return w
}

// Store returns the outcome as package store has it. A code that is not known
// leaves the outcome unknown.
func (w *RenewResult) Store() store.Result {
	var r store.Result
	if w.Record != nil {
		r.Record = w.Record.Store()
	}
	if w.Code == "" {
		return r
	}
	cause, ok := causes[string(w.Code)]
	if !ok {
		r.Err = fmt.Errorf("api: answer with the unknown code %q: %w", w.Code, store.ErrUnavailable)
		return r
	}
	if w.Code == store.CodeBusy && w.Busy != nil {
		cause = w.Busy.error()
	}
	r.Err = &Error{Code: string(w.Code), Message: w.Text, Status: Status(string(w.Code)), cause: cause}
	return r
}

func busyFacts(err error) *BusyFacts {
	busy, ok := errors.AsType[*store.BusyError](err)
	if !ok {
		return nil
	}
	return &BusyFacts{Name: busy.Name, Blockers: busy.Blockers}
}

func (b *BusyFacts) error() error { return &store.BusyError{Name: b.Name, Blockers: b.Blockers} }

// NewSlot returns the wire form of s.
func NewSlot(s store.Slot) Slot {
	return Slot{Name: s.Name, Slot: s.Slot, Token: s.Token, Holder: s.Holder, DoneAt: utc(s.DoneAt)}
}

// Store returns the slot as package store has it.
func (s *Slot) Store() store.Slot {
	return store.Slot{Name: s.Name, Slot: s.Slot, Token: s.Token, Holder: s.Holder, DoneAt: s.DoneAt}
}
