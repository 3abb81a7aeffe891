package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"github.com/tenurehq/tenure/store"
)

// Primary result codes, https://sqlite.org/rescode.html.
const (
	codePerm     = 3
	codeBusy     = 5
	codeLocked   = 6
	codeReadOnly = 8
	codeCorrupt  = 11
	codeFull     = 13
	codeCantOpen = 14
	codeAuth     = 23
	codeNotADB   = 26
)

// resultCode returns SQLite's primary result code of err, 0 if it has none that
// can be told. Drivers name it differently, and some only in their text.
func resultCode(err error) int {
	var coder interface{ Code() int } // modernc.org/sqlite
	if errors.As(err, &coder) {
		return coder.Code() & 0xff
	}
	text := err.Error()
	for _, t := range []struct {
		part string
		code int
	}{
		{"database is locked", codeBusy},
		{"database table is locked", codeLocked},
		{"readonly database", codeReadOnly},
		{"malformed", codeCorrupt},
		{"database or disk is full", codeFull},
		{"unable to open database file", codeCantOpen},
		{"access permission denied", codePerm},
		{"authorization denied", codeAuth},
		{"not authorized", codeAuth},
		{"file is not a database", codeNotADB},
	} {
		if strings.Contains(text, t.part) {
			return t.code
		}
	}
	return 0
}

func isBusy(err error) bool {
	if err == nil {
		return false
	}
	code := resultCode(err)
	return code == codeBusy || code == codeLocked
}

// classify gives err, from a driver, the sentinel of package store that it
// stands for. The driver's text stays in the message.
func classify(doing string, err error) error {
	if err == nil || store.Classify(err) != store.CodeNoContact && !errors.Is(err, driver.ErrBadConn) {
		return err // nil, or classified already
	}
	wrap := func(as error, next string) error {
		return fmt.Errorf("sqlite: %s: %w: %w%s", doing, as, err, next)
	}
	switch resultCode(err) {
	case codeBusy, codeLocked:
		return wrap(&store.BusyError{}, "")
	case codeReadOnly:
		return wrap(store.ErrReadOnly, " (the file, or the directory in which SQLite keeps its WAL, cannot be written by this user)")
	case codeCantOpen:
		return wrap(store.ErrPermission, " (the directory must exist, and this user must be able to read and write it and the file)")
	case codePerm, codeAuth:
		return wrap(store.ErrPermission, "")
	case codeNotADB:
		return wrap(store.ErrSchema, ": it is no SQLite database, or damaged: name another file, or restore this one and raise the floor")
	case codeCorrupt:
		return wrap(store.ErrUnavailable, " (run tenure doctor; restore the file and raise the floor)")
	case codeFull:
		return wrap(store.ErrUnavailable, " (free space on its disk)")
	}
	text := err.Error()
	for _, part := range []string{"no such table", "no such column", "has no column named", "no such view"} {
		if strings.Contains(text, part) {
			return wrap(store.ErrSchema, ": run: tenure migrate")
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("sqlite: %s: %w", doing, err)
	}
	return wrap(store.ErrUnavailable, "")
}

// classify is the function of that name for an error of this store's file,
// naming who has it locked.
func (s *Store) classify(doing string, err error) error {
	err = classify(doing, err)
	var busy *store.BusyError
	if errors.As(err, &busy) && busy.Blockers == nil {
		busy.Blockers = lockHolders(s.path)
	}
	return err
}
