package fence

import (
	"context"
	"errors"
	"fmt"
)

// Marks remembers, for each resource, the largest token that was accepted: its
// mark. A target that checks and raises the mark in the same write as its data
// refuses every writer of an older term, however late the write arrives.
//
// An implementation is safe for concurrent use, decides each call as if the calls
// came one after the other, and has its decision on disk as soon as the data that
// it guards. Package fencetest shows whether it does.
//
// What a mark cannot tell: two writers with one token. A token belongs to one
// holder, so they are copies of one process, or one of them made it up; the
// store tells copies apart at their next renewal.
//
// Both calls return an error matching [ErrMark] for a resource, slot or token
// that breaks the rules of [CheckMark]. After any error but that, *StaleError and
// *SlotError the outcome is unknown; the same call may be sent again.
type Marks interface {
	// Raise accepts token for resource if it is at least the mark, and makes it
	// the mark. This is AtLeast: a term may write as often as it likes. A
	// resource without a mark accepts any token. Otherwise Raise returns
	// *StaleError and changes nothing. current is the mark afterwards, 0 if the
	// error is another one.
	Raise(ctx context.Context, resource string, token Token) (current Token, err error)

	// Once accepts token like Raise, and records that it did slot: a night, an
	// hour, an invoice. first is true for the one call that made the record.
	// It is false, without an error, if the record carries this very token: a
	// retry after a lost reply, or the slot comes a second time in a long term;
	// that is so even if the token has become stale since. Otherwise Once returns
	// *StaleError if the token is below the mark, and *SlotError, having raised
	// the mark, if the slot was done under another token.
	Once(ctx context.Context, resource, slot string, token Token) (first bool, err error)
}

// ErrMark reports a resource, a slot or a token that can have no mark.
var ErrMark = errors.New("fence: not allowed in a mark")

// MaxResource is the largest number of bytes of a resource's or a slot's name.
const MaxResource = 200

// CheckMark returns an error matching ErrMark unless token is 1 or more and each
// name has 1 to 200 bytes of printable ASCII without spaces, so that it goes
// unchanged through a header, a key and a log. Case matters.
func CheckMark(token Token, names ...string) error {
	if token < 1 {
		return fmt.Errorf("%w: token %s (a term has a token of 1 or more)", ErrMark, token)
	}
	for _, name := range names {
		ok := len(name) > 0 && len(name) <= MaxResource
		for i := range len(name) {
			ok = ok && name[i] > ' ' && name[i] < 0x7f
		}
		if !ok {
			return fmt.Errorf("%w: name %q (1 to %d bytes of printable ASCII without spaces)", ErrMark, name, MaxResource)
		}
	}
	return nil
}

// ErrSlotDone reports that a slot was done under another token. See SlotError.
var ErrSlotDone = errors.New("fence: slot is done")

// SlotError says under which token a slot was done. It matches [ErrSlotDone].
type SlotError struct {
	Resource string
	Slot     string
	Token    Token // the token that was refused; it is not stale
	By       Token // the token that the slot's record carries
}

func (e *SlotError) Error() string {
	return fmt.Sprintf("fence: slot %q of %q was done under token %s, not %s", e.Slot, e.Resource, e.By, e.Token)
}

func (e *SlotError) Unwrap() error { return ErrSlotDone }
