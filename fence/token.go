// Package fence carries the fencing token, and the rules by which a write is
// checked against it.
//
// A [Token] numbers the terms of one lease. It is constant within a term and
// larger in each later term of that name, through release, expiry, restart and
// cleaning of the store. A target that remembers the largest token it has seen
// can therefore refuse a writer whose term is over, however late its write
// arrives and whatever the writer still believes.
//
// What a token does not do: it says nothing about whether its holder is alive,
// and it protects no target that does not compare it in the write itself.
//
// The package is pure: it does no I/O and reads no clock.
package fence

import (
	"errors"
	"fmt"
	"strconv"
)

// Token numbers a term. The first term of a name has a token of 1 or more; the
// zero Token means "no term". Tokens fit a signed 64-bit database column, so
// the largest is 2^63-1. In JSON and text a token is a decimal string, because
// readers that hold numbers as floating point lose digits above 2^53.
type Token int64

// ErrToken reports text that is not a token.
var ErrToken = errors.New("fence: not a token")

// ParseToken reads a decimal token. It accepts 1 to 2^63-1 without sign or
// leading zero, and returns an error matching [ErrToken] otherwise.
func ParseToken(s string) (Token, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 || s[0] == '+' || s[0] == '0' {
		return 0, fmt.Errorf("%w: %q (a token is a whole number from 1 to 9223372036854775807)", ErrToken, s)
	}
	return Token(n), nil
}

// String returns the token in decimal.
func (t Token) String() string { return strconv.FormatInt(int64(t), 10) }

// MarshalText returns the token in decimal, which makes it a string in JSON.
func (t Token) MarshalText() ([]byte, error) { return strconv.AppendInt(nil, int64(t), 10), nil }

// UnmarshalText reads what MarshalText wrote, "0" included.
func (t *Token) UnmarshalText(b []byte) error {
	if string(b) == "0" {
		*t = 0
		return nil
	}
	n, err := ParseToken(string(b))
	if err != nil {
		return err
	}
	*t = n
	return nil
}

// ErrStale reports a guarded write that was refused because its token is not
// the current one. The write changed nothing.
var ErrStale = errors.New("fence: stale token")

// StaleError says which token a refused write carried and which is current.
// It matches [ErrStale].
type StaleError struct {
	Resource string // what was to be written: a lease name or a guarded resource
	Token    Token  // the token that the write carried
	Current  Token  // the token that the target knows; 0 if it could not tell
}

func (e *StaleError) Error() string {
	if e.Current == 0 {
		return fmt.Sprintf("fence: stale token %s for %q: no such term", e.Token, e.Resource)
	}
	return fmt.Sprintf("fence: stale token %s for %q: %s is current", e.Token, e.Resource, e.Current)
}

func (e *StaleError) Unwrap() error { return ErrStale }
