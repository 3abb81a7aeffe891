package tenure

import (
	"errors"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/term"
	"github.com/tenurehq/tenure/store"
)

var (
	// ErrLost reports that a term is over against the holder's will. See LostError.
	ErrLost = errors.New("tenure: term is lost")
	// ErrReleased reports that a term was released by its holder.
	ErrReleased = errors.New("tenure: term is released")
	// ErrClosed reports that the Keeper's Run has ended or is ending.
	ErrClosed = errors.New("tenure: keeper is closed")
	// ErrNotRunning reports that Run was not called.
	ErrNotRunning = errors.New("tenure: keeper is not running; start it with go keeper.Run(ctx)")
	// ErrTooSlow reports a term that was won so slowly that nothing of it was
	// left to act on; it was given back.
	ErrTooSlow = errors.New("tenure: store answered too slowly")
	// ErrNotReleased reports a term that could not be given back and is left to expire.
	ErrNotReleased = errors.New("tenure: not released, left to expire")
)

// Reason is the stable code of why a term ended or is in doubt.
type Reason string

// The reasons. The first group are answers of the store, the second what kept
// renewals from being confirmed until TrustedUntil, the third what the holder
// found itself.
const (
	ReasonSuperseded = Reason(store.CodeSuperseded)
	ReasonExpired    = Reason(store.CodeExpired)
	ReasonMissing    = Reason(store.CodeMissing)
	ReasonRevoked    = Reason(store.CodeRevoked)
	ReasonEnded      = Reason(store.CodeReleased) // somebody else released it

	ReasonNoContact  = Reason(store.CodeNoContact)
	ReasonBusy       = Reason(store.CodeBusy)
	ReasonPermission = Reason(store.CodePermission)
	ReasonReadOnly   = Reason(store.CodeReadOnly)
	ReasonSchema     = Reason(store.CodeSchema)
	ReasonCopied     = Reason(store.CodeCopied)

	ReasonPaused     = Reason(term.Paused)
	ReasonNoProgress = Reason(term.NoProgress)
	ReasonWallStep   = Reason(term.WallStep) // doubt only
	ReasonForked     = Reason("forked")
	ReasonRestored   = Reason("restored")
	ReasonWake       = Reason("wake")        // doubt only
	ReasonShutdown   = Reason("shutdown")    // cause of a term's context while it drains
	ReasonExpiring   = Reason(EventExpiring) // Run ended before the term was released
)

// LostError says why a term ended. It matches ErrLost, and the error behind it
// where there was one. As the cause of a context with ReasonShutdown it asks to
// stop: the term is still held and renewed until it is released.
type LostError struct {
	Reason  Reason
	Lease   string
	Holder  string
	Token   fence.Token
	Rival   string        // holder of the record as it was found; "" if unknown
	Current fence.Token   // token of the record as it was found; 0 if unknown
	Why     string        // an operator's words, or what the platform told
	Held    time.Duration // since the request that won the term left
	Age     time.Duration // of the last confirmation
	Err     error         // what the store answered last; nil if nothing
}

func (e *LostError) Error() string {
	s := fmt.Sprintf("tenure: lost %q (token %s) after %s: %s", e.Lease, e.Token, e.Held.Round(time.Millisecond), e.Reason)
	if e.Reason == ReasonShutdown {
		s = fmt.Sprintf("tenure: asked to stop work under %q (token %s): %s", e.Lease, e.Token, e.Reason)
	}
	if e.Rival != "" && e.Rival != e.Holder {
		s += fmt.Sprintf(", now held by %q (token %s)", e.Rival, e.Current)
	}
	if e.Why != "" {
		s += fmt.Sprintf(" (%q)", e.Why)
	}
	if e.Err != nil && !store.Definite(e.Err) {
		s += fmt.Sprintf(", last confirmed %s ago: %v", e.Age.Round(time.Millisecond), e.Err)
	}
	return s
}

// Unwrap returns ErrLost (not for ReasonShutdown) and Err.
func (e *LostError) Unwrap() []error {
	var list []error
	if e.Reason != ReasonShutdown {
		list = append(list, ErrLost)
	}
	if e.Err != nil {
		list = append(list, e.Err)
	}
	return list
}
