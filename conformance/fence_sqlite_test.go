//go:build linux

package conformance_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/sqlite"
)

// TestInGuard: a guarded transaction of SQLite keeps renewals waiting for half the
// margin at most, whatever its function does.
func TestInGuard(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "leases.db")
	st := migrated(t, path, sqlite.Config{})
	db := openSQLite(t, path)
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE bill (n INTEGER)"); err != nil {
		t.Fatal(err)
	}
	rec := acquire(t, st, job("job", "a"))
	bills := func() (n int) {
		t.Helper()
		if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM bill").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	insert := func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO bill VALUES (1)")
		return err
	}
	if err := sqlite.InGuard(t.Context(), db, "job", rec.Token, time.Minute, insert); err != nil || bills() != 1 {
		t.Errorf("a short transaction: got error %v and %d rows, want 1", err, bills())
	}
	if err := sqlite.InGuard(t.Context(), db, "job", rec.Token+1, time.Minute, insert); !errors.Is(err, fence.ErrStale) || bills() != 1 {
		t.Errorf("with another token: got error %v and %d rows, want it refused", err, bills())
	}
	broken := errors.New("broken")
	err := sqlite.InGuard(t.Context(), db, "job", rec.Token, time.Minute, func(ctx context.Context, tx *sql.Tx) error {
		return errors.Join(insert(ctx, tx), broken)
	})
	if !errors.Is(err, broken) || bills() != 1 {
		t.Errorf("a function that fails: got error %v and %d rows, want its own and no row", err, bills())
	}
	if err := sqlite.InGuard(t.Context(), db, "job", rec.Token, 0, insert); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("without a margin: got error %v, want one matching %q", err, store.ErrInvalid)
	}

	// A function that does not heed its context holds nobody up for longer.
	const margin = 200 * time.Millisecond
	inside, end, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		result <- sqlite.InGuard(context.WithoutCancel(t.Context()), db, "job", rec.Token, margin, func(ctx context.Context, tx *sql.Tx) error {
			err := insert(ctx, tx)
			close(inside)
			<-end
			return err
		})
	}()
	<-inside
	began := time.Now()
	release(t, st, rec) // a write, which waits
	next := acquire(t, st, job("job", "b"))
	if next.Token != rec.Token+1 {
		t.Errorf("the next term beside a guarded transaction that is stuck: got token %s", next.Token)
	}
	t.Logf("waited for %s", time.Since(began))
	close(end)
	if err := <-result; !errors.Is(err, sqlite.ErrTooLong) || bills() != 1 {
		t.Errorf("a function that takes too long: got error %v and %d rows, want %q and no row", err, bills(), sqlite.ErrTooLong)
	}
}

// TestInGuardWaits: it waits for another writer, and not beyond its context.
func TestInGuardWaits(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "leases.db")
	st := migrated(t, path, sqlite.Config{})
	db := openSQLite(t, path)
	rec := acquire(t, st, job("job", "a"))
	other, err := db.BeginTx(t.Context(), nil) // takes the write lock
	if err != nil {
		t.Fatal(err)
	}
	nothing := func(context.Context, *sql.Tx) error { return nil }
	brief, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := sqlite.InGuard(brief, db, "job", rec.Token, time.Minute, nothing); !errors.Is(err, store.ErrBusy) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beside a writer: got error %v, want one matching %q", err, store.ErrBusy)
	}
	result := make(chan error, 1)
	go func() {
		result <- sqlite.InGuard(context.WithoutCancel(t.Context()), db, "job", rec.Token, time.Minute, nothing)
	}()
	select {
	case err := <-result:
		t.Errorf("beside a writer: got %v, want it to wait", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := other.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Errorf("after the writer: %v", err)
	}
}

// TestInGuardCountsFromTheLock: half the margin is for what it does, and not for
// what it waits, also where the write lock is waited for inside the transaction.
func TestInGuardCountsFromTheLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "leases.db")
	st := migrated(t, path, sqlite.Config{})
	rec := acquire(t, st, job("job", "a"))
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(30000)") // BEGIN takes no lock
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	other, err := openSQLite(t, path).BeginTx(t.Context(), nil) // takes the write lock
	if err != nil {
		t.Fatal(err)
	}
	const margin = 200 * time.Millisecond
	result := make(chan error, 1)
	go func() {
		result <- sqlite.InGuard(context.WithoutCancel(t.Context()), db, "job", rec.Token, margin, func(context.Context, *sql.Tx) error { return nil })
	}()
	select {
	case err := <-result:
		t.Fatalf("beside a writer: got %v, want it to wait", err)
	case <-time.After(2 * margin):
	}
	if err := other.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Errorf("after a wait of more than the margin: %v", err)
	}
}
