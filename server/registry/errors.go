package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tenurehq/tenure/store"
)

func sqlState(err error) string {
	var stated interface{ SQLState() string } // pgconn.PgError
	if errors.As(err, &stated) {
		return stated.SQLState()
	}
	return ""
}

// isBusy reports SQLite's codes BUSY and LOCKED, https://sqlite.org/rescode.html.
func isBusy(err error) bool {
	var coded interface{ Code() int } // modernc.org/sqlite
	if errors.As(err, &coded) {
		return coded.Code()&0xff == 5 || coded.Code()&0xff == 6
	}
	return err != nil && strings.Contains(err.Error(), "is locked")
}

// failure gives an error of the database the sentinel of package store that it
// stands for, where the caller can do something about it.
func (r *Registry) failure(doing string, err error) error {
	class, next := store.ErrUnavailable, ""
	text := err.Error()
	switch state := sqlState(err); {
	case errors.Is(err, store.ErrInvalid), errors.Is(err, store.ErrSchema), errors.Is(err, store.ErrBusy):
		return fmt.Errorf("registry: %s: %w", doing, err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		if !isBusy(err) {
			return fmt.Errorf("registry: %s: %w", doing, err)
		}
		class = store.ErrBusy
	case isBusy(err), state == "55P03", state == "40P01", state == "40001":
		class = store.ErrBusy
	case state == "42P01", state == "42883", state == "42703", state == "3F000",
		strings.Contains(text, "no such table"), strings.Contains(text, "no such column"), strings.Contains(text, "no such view"):
		class, next = store.ErrSchema, ": run: tenure migrate"
	case state == "25006", strings.Contains(text, "readonly database"):
		class = store.ErrReadOnly
	case state == "42501":
		class = store.ErrPermission
	case state == "22P05", state == "22021":
		class = store.ErrInvalid
	}
	return fmt.Errorf("registry: %s: %w: %w%s", doing, class, err, next)
}
