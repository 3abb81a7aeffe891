package store

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tenurehq/tenure/fence"
)

// Limits of every store.
const (
	MaxName   = 200            // bytes of a lease name, a holder or a slot
	MaxTTL    = 24 * time.Hour // longest term without a renewal
	MaxHold   = 366 * 24 * time.Hour
	MaxMeta   = 4096 // bytes of Request.Meta as JSON
	MaxReason = 1024 // bytes of Revocation.Why and By
	MaxKnown  = 64   // attempts that a grant may list
	// MaxHandoff bounds how long a released lease stays reserved.
	MaxHandoff = 10 * time.Second
)

const nameRule = "1 to 200 bytes of A-Z a-z 0-9 . _ - / : @ +, beginning with a letter or digit, without an empty, \".\" or \"..\" segment between slashes"

// CheckName returns an error matching ErrInvalid unless name follows the one
// rule for names on every store: 1–200 bytes of A–Z a–z 0–9 . _ - / : @ +,
// beginning with a letter or digit, no empty, "." or ".." segment. Case matters.
func CheckName(name string) error { return checkName("name", name) }

// CheckHolder returns an error matching ErrInvalid unless holder follows the rule for names.
func CheckHolder(holder string) error { return checkName("holder", holder) }

// CheckSlot returns an error matching ErrInvalid unless slot follows the rule for names.
func CheckSlot(slot string) error { return checkName("slot", slot) }

func checkName(field, s string) error {
	if !validName(s) {
		return &InvalidError{Field: field, Value: shorten(s), Rule: nameRule}
	}
	return nil
}

func validName(s string) bool {
	if len(s) < 1 || len(s) > MaxName || !alphanumeric(s[0]) {
		return false
	}
	for i := range len(s) {
		if !nameByte(s[i]) {
			return false
		}
	}
	for segment := range strings.SplitSeq(s, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return false
		}
	}
	return true
}

// CheckPrefix returns an error matching ErrInvalid if prefix holds a byte that
// no name can hold.
func CheckPrefix(prefix string) error {
	for i := range len(prefix) {
		if !nameByte(prefix[i]) {
			return &InvalidError{Field: "prefix", Value: shorten(prefix), Rule: "the beginning of a name, which is " + nameRule}
		}
	}
	return nil
}

func nameByte(c byte) bool { return alphanumeric(c) || strings.IndexByte("._-/:@+", c) >= 0 }

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

func shorten(s string) string {
	const most = 64
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// CheckTTL returns an error matching ErrInvalid unless least ≤ ttl ≤ MaxTTL.
func CheckTTL(ttl, least time.Duration) error {
	if ttl < least || ttl > MaxTTL || ttl <= 0 {
		return &InvalidError{Field: "ttl", Value: ttl.String(), Rule: fmt.Sprintf("from %s to %s", least, MaxTTL)}
	}
	return nil
}

// Check returns an error matching ErrInvalid if r breaks a rule. leastTTL is
// the store's Features.MinTTL.
func (r *Request) Check(leastTTL time.Duration) error {
	if err := CheckName(r.Name); err != nil {
		return err
	}
	if err := CheckHolder(r.Holder); err != nil {
		return err
	}
	if err := CheckTTL(r.TTL, leastTTL); err != nil {
		return err
	}
	if err := checkAttempts(r.Attempt, r.Known); err != nil {
		return err
	}
	if r.MinHold < 0 || r.MinHold > MaxHold {
		return &InvalidError{Field: "min_hold", Value: r.MinHold.String(), Rule: fmt.Sprintf("from 0s to %s", MaxHold)}
	}
	if r.Replace != nil && (r.Replace.Name != r.Name || r.Replace.Token < 1) {
		return &InvalidError{Field: "replace", Value: shorten(r.Replace.Name), Rule: "an earlier term of the same name"}
	}
	if len(r.Meta) > 0 {
		b, err := json.Marshal(r.Meta)
		if err != nil || len(b) > MaxMeta {
			return &InvalidError{Field: "meta", Value: shorten(string(b)), Rule: fmt.Sprintf("at most %d bytes as JSON, this is %d", MaxMeta, len(b))}
		}
	}
	return nil
}

// CheckRenew returns an error matching ErrInvalid if g cannot be sent to Renew.
func (g *Grant) CheckRenew(leastTTL time.Duration) error {
	if err := CheckTTL(g.TTL, leastTTL); err != nil {
		return err
	}
	if g.Token < 1 {
		return &InvalidError{Field: "token", Value: g.Token.String(), Rule: "1 or more"}
	}
	return g.check()
}

// CheckRelease returns an error matching ErrInvalid if g cannot be sent to Release.
func (g *Grant) CheckRelease() error {
	if g.Token < 0 {
		return &InvalidError{Field: "token", Value: g.Token.String(), Rule: "0 (match by attempt) or more"}
	}
	if g.HandoffTo != "" {
		if err := checkName("handoff", g.HandoffTo); err != nil {
			return err
		}
	}
	return g.check()
}

func (g *Grant) check() error {
	if err := CheckName(g.Name); err != nil {
		return err
	}
	if len(g.Known) == 0 {
		return &InvalidError{Field: "known", Value: "", Rule: "at least one attempt by which the term is recognised"}
	}
	return checkAttempts(g.Attempt, g.Known)
}

func checkAttempts(sent Attempt, known []Attempt) error {
	if sent.IsZero() {
		return &InvalidError{Field: "attempt", Value: sent.String(), Rule: "a fresh one for each send, from NewAttempt"}
	}
	if len(known) > MaxKnown {
		return &InvalidError{Field: "known", Value: fmt.Sprint(len(known)), Rule: fmt.Sprintf("at most %d attempts", MaxKnown)}
	}
	for _, k := range known {
		if k == sent || k.IsZero() {
			return &InvalidError{Field: "known", Value: k.String(), Rule: "earlier attempts only, none of them zero"}
		}
	}
	return nil
}

// Check returns an error matching ErrInvalid if v breaks a rule.
func (v *Revocation) Check() error {
	for field, text := range map[string]string{"reason": v.Why, "by": v.By} {
		if len(text) > MaxReason || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
			return &InvalidError{Field: field, Value: shorten(text), Rule: fmt.Sprintf("one line of at most %d bytes of UTF-8, without control characters", MaxReason)}
		}
	}
	if v.HandoffTo != "" {
		return checkName("handoff", v.HandoffTo)
	}
	return nil
}

// CheckFloor returns an error matching ErrInvalid unless floor can be raised to.
// The upper bound leaves room for terms to come.
func CheckFloor(name string, floor fence.Token) error {
	const most = fence.Token(1<<63 - 1 - 1<<32)
	if floor < 1 || floor > most {
		return &InvalidError{Field: "floor", Value: floor.String(), Rule: fmt.Sprintf("from 1 to %d", most)}
	}
	if name == "" {
		return nil
	}
	return CheckName(name)
}

// HandoffTime is how long a lease with this TTL stays reserved after a handoff.
func HandoffTime(ttl time.Duration) time.Duration { return min(ttl, MaxHandoff) }

// Reserved reports whether a reservation for whom lets holder in: its full
// identity, or the part of it before the first slash (a host, by default).
func Reserved(whom, holder string) bool {
	if whom == "" {
		return false
	}
	host, _, _ := strings.Cut(holder, "/")
	return whom == holder || whom == host
}

// Verdict is what a store does with an Acquire.
type Verdict int

// The verdicts.
const (
	Refuse   Verdict = iota // write nothing, return the error
	Start                   // begin a term with a larger token
	Continue                // extend the term that an earlier send of this Acquire began
)

// JudgeAcquire returns what Acquire does for req on a record found as r (nil if
// there is none), whose Status, Remaining, Wait and Now are already by the
// store's clock. Stores that decide in Go share it; the others follow it.
func JudgeAcquire(r *Record, req *Request) (Verdict, error) {
	if r == nil {
		if req.IfRevision != "" {
			return Refuse, ErrMissing
		}
		return Start, nil
	}
	held := func(reason string) (Verdict, error) {
		return Refuse, &HeldError{Record: *r, Remaining: max(r.Remaining, r.Wait), Reason: reason}
	}
	if r.Status == Held {
		switch {
		case known(r.Attempt, req.Known) && !r.Revoked && r.Token > r.Floor:
			return Continue, nil
		case req.Replace != nil && JudgeRenew(r, req.Replace) == nil:
			return Start, nil
		}
		return held(HeldByTerm)
	}
	if req.IfRevision != "" && req.IfRevision != r.Revision {
		return held(HeldChanged)
	}
	if r.Wait > 0 && !Reserved(r.ReservedFor, req.Holder) {
		if r.ReservedFor != "" {
			return held(HeldReserved)
		}
		return held(HeldByMinHold)
	}
	if r.Status == Lapsed && !req.ClockNotAfter.IsZero() && r.Now.After(req.ClockNotAfter) {
		return Refuse, ErrClockStep
	}
	return Start, nil
}

// JudgeRenew returns what Renew answers for g on a record found as r, nil if
// the term is extended. As for JudgeAcquire, r is by the store's clock.
func JudgeRenew(r *Record, g *Grant) error {
	switch {
	case r.Token < g.Token:
		return ErrMissing
	case r.Token > g.Token:
		return ErrSuperseded
	case r.Revoked || r.Token <= r.Floor:
		return ErrRevoked
	case r.Status == Released:
		return ErrReleased
	case !known(r.Attempt, g.Known):
		return ErrSuperseded
	case r.Status != Held:
		return ErrExpired
	}
	return nil
}

// JudgeRelease returns what Release answers for g on a record found as r: nil
// if the term is ended by it, or was ended by an earlier send of it.
func JudgeRelease(r *Record, g *Grant) error {
	mine := known(r.Attempt, g.Known)
	switch {
	case g.Token == 0 && mine:
		return nil
	case g.Token == 0:
		return ErrSuperseded
	case r.Token < g.Token:
		return ErrMissing
	case r.Token > g.Token:
		return ErrSuperseded
	case mine:
		return nil
	case r.Status == Released:
		return ErrReleased
	}
	return ErrSuperseded
}

func known(a Attempt, list []Attempt) bool { return !a.IsZero() && slices.Contains(list, a) }
