package fleet

import (
	"strings"
	"time"
)

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
	CodeNoAgent         Code = "no_agent"
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
	CodeLeaseHeld   Code = "lease_held"   // the owner's lease is not over
	CodeLeaseRecent Code = "lease_recent" // over, but the owner may win it back
	CodeRateLimited Code = "rate_limited" // other takeovers come first
	CodeHostGone    Code = "host_gone"    // pinned work whose node's lease is over
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

// Severity says how grave a reason is.
type Severity string

// The severities, gravest first.
const (
	Critical Severity = "critical" // the node may not act
	Warning  Severity = "warning"  // something is wrong with it
	Notice   Severity = "notice"   // it is as somebody wanted it, or it does not fit
)

// Reason describes a code of exclusion for people.
type Reason struct {
	Code     Code     `json:"code"` // CodeInsufficient stands for every resource
	Severity Severity `json:"severity"`
	// Own reasons keep all new work from the node. The others depend on the request.
	Own    bool   `json:"own"`
	Text   string `json:"text"`
	Clears string `json:"clears"`
}

// Reasons returns all reasons of exclusion, gravest first. This is the order of
// [Exclusions].
func Reasons() []Reason {
	return []Reason{
		{CodeDuplicateNode, Critical, true, "another process uses the name of this node", "one of the two ends, or is given another name"},
		{CodeLeaseRevoked, Critical, true, "an operator revoked its lease: it may act until the expiry at most, and cannot renew", "its agent acquires the lease anew after the expiry"},
		{CodeLeaseLapsed, Critical, true, "its lease has lapsed: it must have stopped acting", "its agent reaches the server and acquires the lease anew"},
		{CodeLeaseReleased, Critical, true, "its agent gave its lease back", "its agent is started again"},
		{CodeNoLease, Critical, true, "it has never held a lease, or the record was cleaned away", "its agent acquires the lease"},
		{CodeStaleHeartbeat, Warning, true, "it has not been heard for longer than the detector allows", "its next heartbeat"},
		{CodeObserving, Warning, true, "nobody has listened long enough to tell whether it is there", "its next heartbeat, or a full timeout of listening"},
		{CodeBrake, Warning, true, "so many nodes fell silent with it that the observer is doubted first; its work is not taken", "the brake lets go: by recovery, by an operator, or after a time of the server's proven health"},
		{CodeNotReady, Warning, true, "it says that it is not ready", "it reports that it is ready"},
		{CodeFlapping, Warning, true, "it lost its lease, or was suspect, too often lately", "a quiet time without a further loss"},
		{CodeStuck, Warning, true, "work that it has makes no progress", "the work makes progress, ends, or is stopped"},
		{CodeDrained, Notice, true, "it was drained, and nothing is left on it", "an operator resumes it"},
		{CodeDraining, Notice, true, "it is being drained", "an operator resumes it"},
		{CodeCordoned, Notice, true, "an operator keeps new work from it", "an operator resumes it with --what all: resume alone ends a drain"},
		{CodeOtherNode, Notice, false, "the request names another node, or excludes this one", "another request"},
		{CodeNoAgent, Notice, false, "it is probed, and has no agent that could start work", "an agent beats for it, and it is probed no more"},
		{CodeMissingLabel, Notice, false, "it lacks a label that the request asks for", "the agent is given the label, or another request"},
		{CodeMissingFeature, Notice, false, "it lacks a feature that the request asks for", "the agent reports the feature, or another request"},
		{CodeMissingArtifact, Notice, false, "it lacks an artifact that the request asks for", "the agent reports the artifact, or another request"},
		{CodeInsufficient, Notice, false, "less of a resource is free than the request asks for", "work on it ends, or it offers more"},
	}
}

// ReasonOf returns the reason of a code; false if it is no code of exclusion.
func ReasonOf(c Code) (Reason, bool) {
	if strings.HasPrefix(string(c), string(CodeInsufficient)) {
		c = CodeInsufficient
	}
	for _, r := range Reasons() {
		if r.Code == c {
			return r, true
		}
	}
	return Reason{}, false
}

// Insufficient returns the code for a lack of a resource.
func Insufficient(resource string) Code { return CodeInsufficient + Code(resource) }
