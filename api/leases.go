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

// History answers GET leases/history with the terms of a lease, newest first.
type History struct {
	Name  string `json:"name"`
	Terms []Term `json:"terms"`
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
