package api

import (
	"maps"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// Record is a store.Record in JSON. Durations are rounded up to microseconds.
type Record struct {
	Name        string            `json:"name"`
	Status      store.Status      `json:"status"`
	Holder      string            `json:"holder,omitempty"`
	Token       fence.Token       `json:"token"`
	Floor       fence.Token       `json:"floor,omitzero"`
	Revision    store.Revision    `json:"revision,omitempty"`
	Attempt     store.Attempt     `json:"attempt,omitzero"`
	TTLUS       int64             `json:"ttl_us"`
	RemainingUS int64             `json:"remaining_us"`
	WaitUS      int64             `json:"wait_us,omitempty"`
	ReservedFor string            `json:"reserved_for,omitempty"`
	Revoked     bool              `json:"revoked,omitempty"`
	Why         string            `json:"why,omitempty"`
	RevokedBy   string            `json:"revoked_by,omitempty"`
	AcquiredAt  time.Time         `json:"acquired_at,omitzero"`
	RenewedAt   time.Time         `json:"renewed_at,omitzero"`
	ExpiresAt   time.Time         `json:"expires_at,omitzero"`
	EndedAt     time.Time         `json:"ended_at,omitzero"`
	Now         time.Time         `json:"now"`
	Meta        map[string]string `json:"meta,omitempty"`
}

// NewRecord returns the wire form of r.
func NewRecord(r store.Record) Record {
	return Record{
		Name: r.Name, Status: r.Status, Holder: r.Holder, Token: r.Token, Floor: r.Floor, Revision: r.Revision, Attempt: r.Attempt,
		TTLUS: Microseconds(r.TTL), RemainingUS: Microseconds(r.Remaining), WaitUS: Microseconds(r.Wait), ReservedFor: r.ReservedFor,
		Revoked: r.Revoked, Why: r.Why, RevokedBy: r.RevokedBy,
		AcquiredAt: utc(r.AcquiredAt), RenewedAt: utc(r.RenewedAt), ExpiresAt: utc(r.ExpiresAt), EndedAt: utc(r.EndedAt), Now: utc(r.Now),
		Meta: maps.Clone(r.Meta),
	}
}

// Store returns the record as package store has it.
func (r *Record) Store() store.Record {
	return store.Record{
		Name: r.Name, Status: r.Status, Holder: r.Holder, Token: r.Token, Floor: r.Floor, Revision: r.Revision, Attempt: r.Attempt,
		TTL: duration(r.TTLUS), Remaining: duration(r.RemainingUS), Wait: duration(r.WaitUS), ReservedFor: r.ReservedFor,
		Revoked: r.Revoked, Why: r.Why, RevokedBy: r.RevokedBy,
		AcquiredAt: r.AcquiredAt, RenewedAt: r.RenewedAt, ExpiresAt: r.ExpiresAt, EndedAt: r.EndedAt, Now: r.Now,
		Meta: r.Meta,
	}
}

// Microseconds returns d in microseconds, rounded up: a TTL is never granted
// shorter than it was asked for, and nobody is told to come back too early.
func Microseconds(d time.Duration) int64 {
	n := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}

// duration returns us microseconds. One that does not fit is the longest that does.
func duration(us int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Microsecond)
	return time.Duration(min(max(us, -most), most)) * time.Microsecond
}

// utc drops the monotonic reading, for the edge.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}
