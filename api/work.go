package api

import (
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
)

// Work is a fleet.Work in JSON.
type Work struct {
	fleet.Spec
	State  fleet.WorkState `json:"state"`
	Owner  string          `json:"owner,omitempty"`
	Token  fence.Token     `json:"token"`
	Moving bool            `json:"moving,omitempty"`
	Why    string          `json:"why,omitempty"`

	Progress   string    `json:"progress,omitempty"`
	ProgressAt time.Time `json:"progress_at,omitzero"`
	Stuck      bool      `json:"stuck,omitempty"`
	Submitted  time.Time `json:"submitted_at"`
	Assigned   time.Time `json:"assigned_at,omitzero"`
	Started    time.Time `json:"started_at,omitzero"`
	EndedAt    time.Time `json:"ended_at,omitzero"`
	ExitCode   int       `json:"exit_code,omitempty"`
	Result     string    `json:"result,omitempty"`
	TakenFrom  string    `json:"taken_from,omitempty"`
	Takeovers  int       `json:"takeovers,omitempty"`

	// Existing, in the answer to a submission: the same item was there already, and
	// nothing was changed.
	Existing bool `json:"existing,omitempty"`
}

// NewWork returns the wire form of w. Stuck is the caller's to judge.
func NewWork(w fleet.Work) Work {
	return Work{
		Spec: w.Spec, State: w.State, Owner: w.Owner, Token: w.Token, Moving: w.Moving, Why: w.Why,
		Progress: w.Progress, ProgressAt: w.ProgressAt, Submitted: w.Submitted, Assigned: w.Assigned, Started: w.Started,
		EndedAt: w.EndedAt, ExitCode: w.ExitCode, Result: w.Result, TakenFrom: w.TakenFrom, Takeovers: w.Takeovers,
	}
}

// SubmitRequest is the body of POST work, which answers the Work with its owner.
type SubmitRequest struct {
	Spec  fleet.Spec `json:"spec"`
	Actor string     `json:"actor,omitempty"`
	// Queue stores an item that fits nowhere now, to be placed later. Otherwise
	// the answer is no_capacity, and nothing is stored.
	Queue bool `json:"queue,omitempty"`
}

// Works answers GET work, in order of id. Next is the "after" of the page that
// follows; "" if none does.
type Works struct {
	Work []Work `json:"work"`
	Next string `json:"next,omitempty"`
}

// What a lookup found.
const (
	OwnerFound  = "owner"
	OwnerNone   = "no_owner"
	OwnerLapsed = "owner_lapsed" // the owner's lease is over; there is no other yet
)

// Owner answers GET work/{id}/owner.
type Owner struct {
	Work    string      `json:"work"`
	Answer  string      `json:"answer"`
	Node    string      `json:"node,omitempty"`
	Address string      `json:"address,omitempty"`
	Token   fence.Token `json:"token,omitzero"` // of the item
	Text    string      `json:"text,omitempty"` // for people: "its host is gone", …
}

// WorkOrder is the body of POST work/{id}/stop and work/{id}/move, which answer
// the Work.
type WorkOrder struct {
	Actor  string `json:"actor"`
	Reason string `json:"reason"`
}

// ProgressRequest is the body of POST work/{id}/progress, which answers a
// WorkVerdict: a refusal is no error.
type ProgressRequest struct {
	Token  fence.Token `json:"token"` // of the item
	Lease  fence.Token `json:"lease"` // of its node's term
	Node   string      `json:"node"`
	Marker string      `json:"marker"`
}

// WorkWhy answers GET why/work/{id}.
type WorkWhy struct {
	Work  Work  `json:"work"`
	Owner Owner `json:"owner"`
	// Text says all of it in lines, for people.
	Text []string `json:"text"`
	// Lease is that of the owner.
	Lease *NodeLease `json:"lease,omitempty"`
	// Next says what has to happen for it to go on.
	Next string `json:"next"`
	// Counts says how many nodes are left out for each reason, if it has no owner.
	Counts map[fleet.Code]int `json:"counts,omitempty"`
	// Nodes says why each node is left out, if it has no owner.
	Nodes  []Eligible    `json:"nodes,omitempty"`
	Brake  *BrakeState   `json:"brake,omitempty"` // that holds it, if one does
	Events []fleet.Event `json:"events"`          // the last ones, in order
}
