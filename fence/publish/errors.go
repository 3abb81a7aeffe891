package publish

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

var (
	// ErrNone reports that nothing is published under the name, from an
	// authoritative read. It matches store.ErrNotFound.
	ErrNone error = none{}
	// ErrDropped reports that a sweep has dropped the set, or the attempt: it was
	// neither published nor retained nor in use. Begin again.
	ErrDropped = errors.New("publish: dropped by a sweep")
	// ErrDamaged reports that an object of a set is missing or is not what was
	// published.
	ErrDamaged = errors.New("publish: not as published")
	// ErrChanged reports that a file was not what the manifest says when it was sent.
	ErrChanged = errors.New("publish: file changed since it was listed")
)

// none is ErrNone.
type none struct{}

// Error tells of a publication, and not of the lease that ErrNotFound names.
func (none) Error() string { return "publish: nothing is published" }

// Unwrap returns store.ErrNotFound.
func (none) Unwrap() error { return store.ErrNotFound }

// sqlState returns the code of a Postgres error.
func sqlState(err error) string {
	var stated interface{ SQLState() string }
	if errors.As(err, &stated) {
		return stated.SQLState()
	}
	return ""
}

// isBusy reports SQLite's codes BUSY and LOCKED, https://sqlite.org/rescode.html.
func isBusy(err error) bool {
	var coded interface{ Code() int }
	if errors.As(err, &coded) {
		return coded.Code()&0xff == 5 || coded.Code()&0xff == 6
	}
	return err != nil && strings.Contains(err.Error(), "is locked")
}

// failure gives an error of the database the sentinel of package store that it
// stands for.
func failure(doing string, err error) error {
	for _, own := range []error{
		fence.ErrStale, ErrNone, ErrDropped, ErrDamaged, store.ErrInvalid, store.ErrSchema, store.ErrBusy, store.ErrCopied,
		store.ErrPermission, store.ErrReadOnly, store.ErrUnavailable,
	} {
		if errors.Is(err, own) {
			return fmt.Errorf("publish: %s: %w", doing, err)
		}
	}
	class, next, text := store.ErrUnavailable, "", err.Error()
	switch state := sqlState(err); {
	case isBusy(err), state == "55P03", state == "40P01", state == "40001":
		class = store.ErrBusy
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("publish: %s: %w", doing, err)
	case state == "42P01", state == "42883", state == "42703", state == "3F000",
		strings.Contains(text, "no such table"), strings.Contains(text, "no such column"):
		class, next = store.ErrSchema, ": run: tenure migrate"
	case state == "25006", strings.Contains(text, "readonly database"):
		class = store.ErrReadOnly
	case state == "42501":
		class = store.ErrPermission
	}
	return fmt.Errorf("publish: %s: %w: %w%s", doing, class, err, next)
}
