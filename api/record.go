package api

import (
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// Record is a store.Record in JSON.
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
