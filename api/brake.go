package api

import (
	"time"

	"github.com/tenurehq/tenure/fleet"
)

// Brake answers GET brake, brake/confirm and brake/release.
type Brake struct {
	Engaged bool         `json:"engaged"`
	Domains []BrakeState `json:"domains"` // those that hold something now, and those confirmed
}

// BrakeState is the brake of one failure domain, or of the whole fleet.
type BrakeState struct {
	Domain  string     `json:"domain"` // "zone=b", or "all"
	Engaged bool       `json:"engaged"`
	Code    fleet.Code `json:"code,omitempty"` // stale_heartbeat, or not_ready
	Reason  string     `json:"reason,omitempty"`
	Since   time.Time  `json:"since,omitzero"`
	Down    int        `json:"down"` // nodes that fell silent or turned not ready
	Of      int        `json:"of"`
	// LetsGoMS is how long it holds at most from now.
	LetsGoMS  int64       `json:"lets_go_ms,omitempty"`
	Confirmed *fleet.Mark `json:"confirmed,omitempty"` // an operator who said the loss is real
	Withheld  []Withheld  `json:"withheld,omitempty"`
	Text      string      `json:"text"`
}

// Withheld is an action that a brake keeps from happening.
type Withheld struct {
	Action string `json:"action"` // takeover, exclusion
	Node   string `json:"node,omitempty"`
	Work   string `json:"work,omitempty"`
}

// BrakeRequest is the body of POST brake/confirm (the loss is real: let the
// consequences happen) and brake/release (let go now).
type BrakeRequest struct {
	Domain string `json:"domain"`
	Actor  string `json:"actor"`
	Reason string `json:"reason"`
}
