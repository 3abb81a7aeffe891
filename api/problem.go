package api

import (
	"net/http"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// ProblemType is the content type of a Problem.
const ProblemType = "application/problem+json"

// Problem is the body of every answer whose status is not 2xx, but that of
// nodes/{id}/eligible.
type Problem struct {
	// Code is a store.Code, a fleet.Code or one of the codes of this package.
	Code    string `json:"code"`
	Message string `json:"message"`
	// RetryAfterMS is when to try again at the earliest; 0 if the server cannot
	// tell, or if trying again changes nothing. The header Retry-After says the same.
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`

	// Field, Value and Rule say what was wrong with an argument (invalid).
	Field string `json:"field,omitempty"`
	Value string `json:"value,omitempty"`
	Rule  string `json:"rule,omitempty"`

	Held *HeldFacts `json:"held,omitempty"` // (held)
	Busy *BusyFacts `json:"busy,omitempty"` // (busy)
	Slot *Slot      `json:"slot,omitempty"` // (slot_done)
	// Counts says how many nodes were left out for each reason (no_capacity).
	Counts map[fleet.Code]int `json:"counts,omitempty"`
	// Owner and Current say who has a work item, and its token, where a change of
	// it was refused.
	Owner   string      `json:"owner,omitempty"`
	Current fence.Token `json:"current,omitzero"`
}

// HeldFacts say why a term cannot start now; see store.HeldError.
type HeldFacts struct {
	Record      Record `json:"record"`
	RemainingUS int64  `json:"remaining_us"`
	Reason      string `json:"reason"`
}

// BusyFacts say who is in the way; see store.BusyError.
type BusyFacts struct {
	Name     string   `json:"name,omitempty"`
	Blockers []string `json:"blockers,omitempty"`
}

// The codes of the interface itself.
const (
	CodeFault        = "fault"        // a defect of the server; the outcome is unknown
	CodeNotReady     = "not_ready"    // the server has not loaded what it answers from
	CodeUnauthorized = "unauthorized" // no credential, or an unknown one
	CodeForbidden    = "forbidden"    // the credential's role does not allow it
	CodeNoSuchPath   = "no_such_path"
	CodeNoSuchMethod = "no_such_method" // the path is there, the method is not
	CodeTooLarge     = "too_large"      // the body is above the limit
	CodeMediaType    = "media_type"     // the body is not declared as application/json
)

// statuses says with which HTTP status each code is answered. A client believes
// a code only under its own status.
var statuses = map[string]int{
	CodeFault:        http.StatusInternalServerError,
	CodeNotReady:     http.StatusServiceUnavailable,
	CodeUnauthorized: http.StatusUnauthorized,
	CodeForbidden:    http.StatusForbidden,
	CodeNoSuchPath:   http.StatusNotFound,
	CodeNoSuchMethod: http.StatusMethodNotAllowed,
	CodeTooLarge:     http.StatusRequestEntityTooLarge,
	CodeMediaType:    http.StatusUnsupportedMediaType,

	string(store.CodeHeld):        http.StatusConflict,
	string(store.CodeSuperseded):  http.StatusConflict,
	string(store.CodeExpired):     http.StatusConflict,
	string(store.CodeMissing):     http.StatusConflict,
	string(store.CodeRevoked):     http.StatusConflict,
	string(store.CodeReleased):    http.StatusConflict,
	string(store.CodeSlotDone):    http.StatusConflict,
	string(store.CodeClockStep):   http.StatusConflict,
	string(store.CodeStale):       http.StatusConflict,
	string(store.CodeNotFound):    http.StatusNotFound,
	string(store.CodeInvalid):     http.StatusBadRequest,
	string(store.CodeUnsupported): http.StatusNotImplemented,
	// What the server's own database refuses the server is no fault of the client.
	string(store.CodePermission): http.StatusServiceUnavailable,
	string(store.CodeBusy):       http.StatusServiceUnavailable,
	string(store.CodeReadOnly):   http.StatusServiceUnavailable,
	string(store.CodeSchema):     http.StatusServiceUnavailable,
	string(store.CodeCopied):     http.StatusServiceUnavailable,
	string(store.CodeNoContact):  http.StatusServiceUnavailable,

	string(fleet.CodeNotOwner):      http.StatusConflict,
	string(fleet.CodeLeaseLapsed):   http.StatusConflict,
	string(fleet.CodeLeaseReleased): http.StatusConflict,
	string(fleet.CodeLeaseRevoked):  http.StatusConflict,
	string(fleet.CodeNoLease):       http.StatusConflict,
	string(fleet.CodeWorkExists):    http.StatusConflict,
	string(fleet.CodeWrongState):    http.StatusConflict,
	string(fleet.CodeDuplicateNode): http.StatusConflict,
	string(fleet.CodeOldSequence):   http.StatusConflict,
	string(fleet.CodeReplaced):      http.StatusConflict,
	string(fleet.CodeNoSuchWork):    http.StatusNotFound,
	string(fleet.CodeNoSuchNode):    http.StatusNotFound,
	string(fleet.CodeNoCapacity):    http.StatusServiceUnavailable,
	string(fleet.CodeBrake):         http.StatusServiceUnavailable,
	string(fleet.CodeObserving):     http.StatusServiceUnavailable,
	string(fleet.CodeHostGone):      http.StatusServiceUnavailable,
}

// Status returns the HTTP status with which code is answered, 500 for an
// unknown code.
func Status(code string) int {
	if status, ok := statuses[code]; ok {
		return status
	}
	return http.StatusInternalServerError
}
