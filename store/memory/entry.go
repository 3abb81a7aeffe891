package memory

import (
	"maps"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

const maxHistory = 100 // terms kept for each name

// entry is what is kept of one name. Its methods are called with the store
// locked and with one reading of the clock for a whole decision.
type entry struct {
	name     string
	revision store.Revision
	token    fence.Token // 0 while there was no term
	floor    fence.Token

	// The current or last term.
	holder     string
	attempt    store.Attempt
	ttl        time.Duration
	meta       map[string]string
	acquiredAt time.Time
	renewedAt  time.Time
	expiresAt  time.Time
	endedAt    time.Time // zero unless released
	revoked    bool
	why        string
	revokedBy  string
	handoffTo  string // of the revocation, for when the term is released

	// What keeps the next term from starting.
	holdUntil     time.Time // min-hold; zero if none
	reservedFor   string
	reservedUntil time.Time

	past []store.Term // terms before the current or last one, oldest first
}

func (e *entry) status(now time.Time) store.Status {
	switch {
	case e.token == 0:
		return store.Unheld
	case !e.endedAt.IsZero():
		return store.Released
	case now.Before(e.expiresAt):
		return store.Held
	}
	return store.Lapsed
}

// start begins a term.
func (e *entry) start(now time.Time, req *store.Request) {
	if e.token > 0 {
		last := e.term(now)
		if last.End == "" {
			last.End, last.EndedAt = "replaced", now
		}
		e.past = append(e.past, last)
		if extra := len(e.past) - (maxHistory - 1); extra > 0 {
			e.past = append(e.past[:0], e.past[extra:]...)
		}
	}
	hold := e.holdUntil // of a replaced term: it goes on, however that term ended
	if until := now.Add(req.MinHold); req.MinHold > 0 && until.After(hold) {
		hold = until
	}
	*e = entry{
		name:       e.name,
		token:      max(e.token, e.floor) + 1,
		floor:      e.floor,
		holder:     req.Holder,
		attempt:    req.Attempt,
		ttl:        req.TTL,
		meta:       maps.Clone(req.Meta),
		acquiredAt: now,
		renewedAt:  now,
		expiresAt:  now.Add(req.TTL),
		holdUntil:  hold,
		past:       e.past,
	}
}

// extend moves the expiry of the term and makes attempt the one to know.
func (e *entry) extend(now time.Time, ttl time.Duration, attempt store.Attempt) {
	e.attempt, e.ttl, e.renewedAt, e.expiresAt = attempt, ttl, now, now.Add(ttl)
}

// end ends the term and begins the reservation, if there is one. What an
// operator chose goes before what the holder asks for.
func (e *entry) end(now time.Time, reserve time.Duration, handoffTo string) {
	e.endedAt = now
	if e.handoffTo != "" {
		handoffTo = e.handoffTo
	}
	if handoffTo != "" {
		e.reservedFor, e.reservedUntil = handoffTo, now.Add(reserve)
	}
}

// ended returns when the last term ended.
func (e *entry) ended(now time.Time) time.Time {
	switch e.status(now) {
	case store.Released:
		return e.endedAt
	case store.Lapsed:
		return e.expiresAt
	}
	return time.Time{}
}

// term returns the current or last term as history tells it.
func (e *entry) term(now time.Time) store.Term {
	t := store.Term{Name: e.name, Token: e.token, Holder: e.holder, AcquiredAt: e.acquiredAt, EndedAt: e.ended(now), Why: e.why}
	switch status := e.status(now); {
	case status == store.Held:
	case e.revoked:
		t.End = "revoked"
	case status == store.Released:
		t.End = "released"
	default:
		t.End = "expired"
	}
	return t
}

// record returns what the store knows, as of now.
func (e *entry) record(now time.Time) store.Record {
	r := store.Record{
		Name:       e.name,
		Status:     e.status(now),
		Holder:     e.holder,
		Token:      e.token,
		Floor:      e.floor,
		Revision:   e.revision,
		Attempt:    e.attempt,
		TTL:        e.ttl,
		Revoked:    e.revoked,
		Why:        e.why,
		RevokedBy:  e.revokedBy,
		AcquiredAt: e.acquiredAt,
		RenewedAt:  e.renewedAt,
		ExpiresAt:  e.expiresAt,
		EndedAt:    e.endedAt,
		Now:        now,
		Meta:       maps.Clone(e.meta),
	}
	if r.Status == store.Held {
		r.Remaining = e.expiresAt.Sub(now)
	}
	hold, reserved := max(e.holdUntil.Sub(now), 0), max(e.reservedUntil.Sub(now), 0)
	r.Wait = max(hold, reserved)
	if hold == 0 && reserved > 0 {
		r.ReservedFor = e.reservedFor
	}
	return r
}
