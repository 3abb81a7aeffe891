package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/store"
)

// The tests of this file are inside the package because what they test needs no
// driver, which the root module must not import; the rest is in conformance.

// coded is an error as modernc.org/sqlite makes them.
type coded struct {
	text string
	code int
}

func (e coded) Error() string { return e.text }
func (e coded) Code() int     { return e.code }

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err  error
		want error
	}{
		{coded{"database is locked (5) (SQLITE_BUSY)", 5}, store.ErrBusy},
		{coded{"database is locked (517) (SQLITE_BUSY_SNAPSHOT)", 5 | 2<<8}, store.ErrBusy},
		{coded{"database table is locked", 6}, store.ErrBusy},
		{coded{"attempt to write a readonly database (8)", 8}, store.ErrReadOnly},
		{coded{"attempt to write a readonly database (1544)", 8 | 6<<8}, store.ErrReadOnly},
		{coded{"unable to open database file (14)", 14}, store.ErrPermission},
		{coded{"access permission denied (3)", 3}, store.ErrPermission},
		{coded{"disk I/O error (778)", 10 | 3<<8}, store.ErrUnavailable},
		{coded{"database or disk is full (13)", 13}, store.ErrUnavailable},
		{coded{"database disk image is malformed (11)", 11}, store.ErrUnavailable},
		{coded{"file is not a database (26)", 26}, store.ErrSchema},
		{coded{"SQL logic error: no such table: tenure_meta (1)", 1}, store.ErrSchema},
		// Drivers without Code() say it in SQLite's own words.
		{errors.New("database is locked"), store.ErrBusy},
		{errors.New("attempt to write a readonly database"), store.ErrReadOnly},
		{errors.New("unable to open database file: no such file or directory"), store.ErrPermission},
		{errors.New("database or disk is full"), store.ErrUnavailable},
		{errors.New("no such table: tenure_lease"), store.ErrSchema},
		{errors.New("file is not a database"), store.ErrSchema},
		{errors.New("something new"), store.ErrUnavailable},
		{driver.ErrBadConn, store.ErrUnavailable},
		{fmt.Errorf("wrapped: %w", context.DeadlineExceeded), context.DeadlineExceeded},
		{fmt.Errorf("classified: %w", store.ErrCopied), store.ErrCopied},
	} {
		got := classify("renew", tc.err)
		if !errors.Is(got, tc.want) || !errors.Is(got, tc.err) {
			t.Errorf("classify(%v): got %v, want it to match %v and the cause", tc.err, got, tc.want)
		}
	}
	if err := classify("renew", nil); err != nil {
		t.Errorf("classify(nil): got %v", err)
	}
}

func TestDSN(t *testing.T) {
	t.Parallel()
	const path = "/var/lib/a b?c#d%41.db"
	for _, dsn := range []string{ModerncDSN(path), MattnDSN(path)} {
		file, query, _ := strings.Cut(dsn, "?")
		if file != "file:/var/lib/a%20b%3Fc%23d%2541.db" {
			t.Errorf("file: got %q", file)
		}
		for _, part := range []string{"busy_timeout", "journal_mode", "WAL", "synchronous", "FULL", "_txlock=immediate"} {
			if !strings.Contains(query, part) {
				t.Errorf("%q: want %s in it", dsn, part)
			}
		}
	}
}

func TestSameBoot(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		a, b string
		want bool
	}{
		{"boot-1", "boot-1", true},
		{"boot-1", "boot-1+5.0", true},
		{"boot-1", "boot-2", false},
		{wallDomain, wallDomain, false}, // the wall clock is everywhere
	} {
		if got := sameBoot(tc.a, tc.b); got != tc.want {
			t.Errorf("sameBoot(%q, %q): got %t, want %t", tc.a, tc.b, got, tc.want)
		}
	}
}

// What a person reads says what to do, in the words of the command line.
func TestClassifyAdvice(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"no such table: tenure_meta": "run: tenure migrate",
		"file is not a database":     "it is no SQLite database",
	} {
		got := classify("check", errors.New(text)).Error()
		if !strings.Contains(got, want) || strings.Contains(got, "Migrate") || want != "run: tenure migrate" && strings.Contains(got, "migrate") {
			t.Errorf("%s: got %q, want it to say %q", text, got, want)
		}
	}
}
