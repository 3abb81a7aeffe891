package publish

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

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

// LocalError is an error of a file on this host: of those that are published, or
// of those that a fetch makes.
type LocalError struct {
	Doing string // "scan", "upload" or "fetch"
	Err   error
}

func (e *LocalError) Error() string {
	return fmt.Sprintf("publish: %s: on this host: %v", e.Doing, e.Err)
}

func (e *LocalError) Unwrap() error { return e.Err }

// localFailure names the step of an error, and says if it is one of this host's files.
func localFailure(doing string, err error) error {
	var path *fs.PathError
	var link *os.LinkError
	var call *os.SyscallError
	var errno syscall.Errno
	if errors.As(err, &path) || errors.As(err, &link) || errors.As(err, &call) || errors.As(err, &errno) {
		return &LocalError{Doing: doing, Err: err}
	}
	return fmt.Errorf("publish: %s: %w", doing, err)
}

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
