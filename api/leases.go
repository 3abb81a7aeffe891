package api

import (
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// AcquireRequest is the body of POST leases/acquire, which answers a Record. See
// store.Request.
type AcquireRequest struct {
	Name          string            `json:"name"`
	Holder        string            `json:"holder"`
	TTLUS         int64             `json:"ttl_us" minimum:"1" maximum:"86400000000"`
	Attempt       store.Attempt     `json:"attempt"`
	Known         []store.Attempt   `json:"known,omitempty"`
	Replace       *Replace          `json:"replace,omitempty"`
	MinHoldUS     int64             `json:"min_hold_us,omitempty" minimum:"0" maximum:"31622400000000"`
	IfRevision    store.Revision    `json:"if_revision,omitempty"`
	ClockNotAfter time.Time         `json:"clock_not_after,omitzero"`
	Meta          map[string]string `json:"meta,omitempty"`
}

// Replace names a term of the asker's own that may be ended although it is
// unexpired.
type Replace struct {
	Token fence.Token     `json:"token"`
	Known []store.Attempt `json:"known"`
}

// RenewGrant extends one term; see store.Grant.
type RenewGrant struct {
	Name    string          `json:"name"`
	Token   fence.Token     `json:"token"`
	TTLUS   int64           `json:"ttl_us" minimum:"1" maximum:"86400000000"`
	Attempt store.Attempt   `json:"attempt"`
	Known   []store.Attempt `json:"known"`
}

// RenewRequest is the body of POST leases/renew.
type RenewRequest struct {
	Grants []RenewGrant `json:"grants"`
}

// ReleaseGrant ends one term; see store.Grant. A token of "0" matches by attempt alone.
type ReleaseGrant struct {
	Name      string          `json:"name"`
	Token     fence.Token     `json:"token"`
	Attempt   store.Attempt   `json:"attempt"`
	Known     []store.Attempt `json:"known"`
	HandoffTo string          `json:"handoff_to,omitempty"`
}

// ReleaseRequest is the body of POST leases/release.
type ReleaseRequest struct {
	Grants []ReleaseGrant `json:"grants"`
}

// Results answers leases/renew and leases/release with one result for each
// grant, in order. A grant that was refused is no error of the request.
type Results struct {
	Results []RenewResult `json:"results"`
}

// RevokeRequest is the body of POST leases/revoke; see store.Revocation. Its
// answer is a TermRef.
type RevokeRequest struct {
	Name      string      `json:"name"`
	Token     fence.Token `json:"token"`
	Why       string      `json:"why,omitempty"`
	By        string      `json:"by,omitempty"`
	Now       bool        `json:"now,omitempty"`
	HandoffTo string      `json:"handoff_to,omitempty"`
}

// TermRef names a term.
type TermRef struct {
	Name  string      `json:"name"`
	Token fence.Token `json:"token"`
}

// FloorRequest is the body of POST leases/floor: of one name, or of all. The
// answer repeats it.
type FloorRequest struct {
	Name  string      `json:"name,omitempty"`
	All   bool        `json:"all,omitempty"`
	Floor fence.Token `json:"floor"`
}

// DoneRequest is the body of POST leases/done: slot is done under the live term
// that the rest shows. The answer is a SlotRef.
type DoneRequest struct {
	Name    string          `json:"name"`
	Token   fence.Token     `json:"token"`
	Attempt store.Attempt   `json:"attempt"`
	Known   []store.Attempt `json:"known"`
	Slot    string          `json:"slot"`
}

// SlotRef names a slot of a lease.
type SlotRef struct {
	Name string `json:"name"`
	Slot string `json:"slot"`
}

// Slot is a store.Slot in JSON.
type Slot struct {
	Name   string      `json:"name"`
	Slot   string      `json:"slot"`
	Token  fence.Token `json:"token"`
	Holder string      `json:"holder"`
	DoneAt time.Time   `json:"done_at"`
}

// CleanRequest is the body of POST leases/clean.
type CleanRequest struct {
	IdleUS int64 `json:"idle_us" minimum:"0" maximum:"31622400000000"`
}

// Cleaned answers it.
type Cleaned struct {
	Removed int `json:"removed"`
}

// Leases answers GET leases with the records below a prefix, in byte order of
// their names. Next is the "after" of the page that follows; "" if none does.
type Leases struct {
	Leases []Record `json:"leases"`
	Next   string   `json:"next,omitempty"`
}

// Term is a store.Term in JSON.
type Term struct {
	Name       string      `json:"name"`
	Token      fence.Token `json:"token"`
	Holder     string      `json:"holder"`
	AcquiredAt time.Time   `json:"acquired_at"`
	EndedAt    time.Time   `json:"ended_at,omitzero"`
	End        string      `json:"end,omitempty"`
	Why        string      `json:"why,omitempty"`
}

// History answers GET leases/history with the terms of a lease, newest first. Next
// is the "before" of the page that follows; 0 on the last one.
type History struct {
	Name  string      `json:"name"`
	Terms []Term      `json:"terms"`
	Next  fence.Token `json:"next,omitzero"`
}

// Features answers GET leases/features; see store.Features.
type Features struct {
	Backend       string          `json:"backend"`
	Clock         store.ClockKind `json:"clock"`
	MinTTLUS      int64           `json:"min_ttl_us"`
	GranularityUS int64           `json:"granularity_us"`
	BatchRenew    bool            `json:"batch_renew"`
	Watch         bool            `json:"watch"`
	Reach         string          `json:"reach"`
	TokensReset   string          `json:"tokens_reset"`
	LosesWrites   string          `json:"loses_writes"`
	ClockCaution  string          `json:"clock_caution"`
}

// Findings answers GET leases/doctor; see store.Doctor.
type Findings struct {
	Findings []Finding `json:"findings"`
}

// Finding is a store.Finding in JSON.
type Finding struct {
	Code     string         `json:"code"`
	Severity store.Severity `json:"severity"`
	Text     string         `json:"text"`
	Fix      string         `json:"fix,omitempty"`
}

// LeaseEvent is the data of an event of GET leases/watch; see store.Event.
type LeaseEvent struct {
	Name        string `json:"name"`
	Held        bool   `json:"held"`
	RemainingUS int64  `json:"remaining_us,omitempty"`
	Waiters     int    `json:"waiters"`
}

// NewAcquireRequest returns the wire form of r.
func NewAcquireRequest(r store.Request) AcquireRequest {
	w := AcquireRequest{
		Name: r.Name, Holder: r.Holder, TTLUS: Microseconds(r.TTL), Attempt: r.Attempt, Known: r.Known,
		MinHoldUS: Microseconds(r.MinHold), IfRevision: r.IfRevision, ClockNotAfter: utc(r.ClockNotAfter), Meta: r.Meta,
	}
	if r.Replace != nil {
		w.Replace = &Replace{Token: r.Replace.Token, Known: r.Replace.Known}
	}
	return w
}

// Store returns the request as package store has it.
func (r *AcquireRequest) Store() store.Request {
	req := store.Request{
		Name: r.Name, Holder: r.Holder, TTL: duration(r.TTLUS), Attempt: r.Attempt, Known: r.Known,
		MinHold: duration(r.MinHoldUS), IfRevision: r.IfRevision, ClockNotAfter: r.ClockNotAfter, Meta: r.Meta,
	}
	if r.Replace != nil {
		req.Replace = &store.Grant{Name: r.Name, Token: r.Replace.Token, Known: r.Replace.Known}
	}
	return req
}

// Store returns the grant as package store has it.
func (g *RenewGrant) Store() store.Grant {
	return store.Grant{Name: g.Name, Token: g.Token, TTL: duration(g.TTLUS), Attempt: g.Attempt, Known: g.Known}
}

// Store returns the grant as package store has it.
func (g *ReleaseGrant) Store() store.Grant {
	return store.Grant{Name: g.Name, Token: g.Token, Attempt: g.Attempt, Known: g.Known, HandoffTo: g.HandoffTo}
}

// Idle returns how long ago a term must have ended.
func (r *CleanRequest) Idle() time.Duration { return duration(r.IdleUS) }

// NewTerm returns the wire form of t.
func NewTerm(t store.Term) Term {
	return Term{Name: t.Name, Token: t.Token, Holder: t.Holder, AcquiredAt: utc(t.AcquiredAt), EndedAt: utc(t.EndedAt), End: t.End, Why: t.Why}
}

// Store returns the term as package store has it.
func (t *Term) Store() store.Term {
	return store.Term{Name: t.Name, Token: t.Token, Holder: t.Holder, AcquiredAt: t.AcquiredAt, EndedAt: t.EndedAt, End: t.End, Why: t.Why}
}

// NewFeatures returns the wire form of f.
func NewFeatures(f store.Features) Features {
	return Features{
		Backend: f.Backend, Clock: f.Clock, MinTTLUS: Microseconds(f.MinTTL), GranularityUS: Microseconds(f.Granularity),
		BatchRenew: f.BatchRenew, Watch: f.Watch, Reach: f.Reach, TokensReset: f.TokensReset, LosesWrites: f.LosesWrites, ClockCaution: f.ClockCaution,
	}
}

// NewLeaseEvent returns the wire form of e.
func NewLeaseEvent(e store.Event) LeaseEvent {
	return LeaseEvent{Name: e.Name, Held: e.Held, RemainingUS: Microseconds(e.Remaining), Waiters: e.Waiters}
}
