package fleet

import "time"

// Code is the stable code of a reason (P10).
type Code string

// The codes of exclusion. CodeInsufficient is followed by the name of a resource.
const (
	CodeStaleHeartbeat  Code = "stale_heartbeat"
	CodeObserving       Code = "observing"
	CodeNoLease         Code = "no_lease"
	CodeLeaseLapsed     Code = "lease_lapsed"
	CodeLeaseReleased   Code = "lease_released"
	CodeLeaseRevoked    Code = "lease_revoked"
	CodeCordoned        Code = "cordoned"
	CodeDraining        Code = "draining"
	CodeDrained         Code = "drained"
	CodeNotReady        Code = "not_ready"
	CodeInsufficient    Code = "insufficient_"
	CodeMissingLabel    Code = "missing_label"
	CodeMissingFeature  Code = "missing_feature"
	CodeMissingArtifact Code = "missing_artifact"
	CodeStuck           Code = "stuck"
	CodeFlapping        Code = "flapping"
	CodeDuplicateNode   Code = "duplicate_node"
	CodeOtherNode       Code = "other_node" // the request names another, or excludes this one
	CodeBrake           Code = "brake"
)

// The codes of a request that changed nothing. A lapsed or released lease has
// the code that it has as an exclusion.
const (
	CodeNotOwner    Code = "not_owner"
	CodeStaleToken  Code = "stale_token"
	CodeNoSuchWork  Code = "no_such_work"
	CodeNoSuchNode  Code = "no_such_node"
	CodeWorkExists  Code = "work_exists"
	CodeWrongState  Code = "wrong_state"
	CodeNoCapacity  Code = "no_capacity"
	CodeHostGone    Code = "host_gone" // pinned work whose node's lease is over
	CodeOldSequence Code = "old_sequence"
	CodeReplaced    Code = "incarnation_replaced"
)

// Exclusion is one reason why a node gets no new work.
type Exclusion struct {
	Code   Code      `json:"code"`
	Since  time.Time `json:"since,omitzero"` // zero if unknown
	Text   string    `json:"text"`           // what was seen, with figures
	Clears string    `json:"clears"`         // what would clear it
}

// Severity orders reasons.
type Severity string

// The severities, gravest first.
const (
	Critical Severity = "critical" // it may not act
	Warning  Severity = "warning"  // something is wrong with it
	Notice   Severity = "notice"   // it is as wanted, or does not fit
)

// Reason describes a code for people.
type Reason struct {
	Code     Code     `json:"code"` // CodeInsufficient stands for all its resources
	Severity Severity `json:"severity"`
	// Own reasons keep any new work from the node; the others depend on the request.
	Own    bool   `json:"own"`
	Text   string `json:"text"`
	Clears string `json:"clears"`
}

// Reasons returns all reasons of exclusion, gravest first.
func Reasons() []Reason { return nil }

// Insufficient returns the code for a lack of a resource.
func Insufficient(resource string) Code { return CodeInsufficient + Code(resource) }
