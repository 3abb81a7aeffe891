package conformance_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/sqlite"
)

// What is not as it must be is refused with its name and the next step, by an
// error of the right kind, and never with a panic or "corrupt".
func TestSQLiteRefusals(t *testing.T) {
	t.Parallel()
	open := func(t *testing.T, dsn string) (*sqlite.Store, error) {
		db, err := sql.Open("sqlite", dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		st, err := sqlite.New(db, sqlite.Config{})
		if err == nil {
			t.Cleanup(func() { _ = st.Close() })
		}
		return st, err
	}
	file := func(t *testing.T) string { return filepath.Join(t.TempDir(), "tenure.db") }
	tests := map[string]struct {
		match error
		says  []string
		run   func(t *testing.T) error
	}{
		"no tables": {store.ErrSchema, []string{"run: tenure migrate"}, func(t *testing.T) error {
			st, err := open(t, sqlite.ModerncDSN(file(t)))
			if err != nil {
				return err
			}
			_, err = try(t, st, "job", "a")
			return err
		}},
		"no tables, Check": {store.ErrSchema, []string{"run: tenure migrate"}, func(t *testing.T) error {
			st, err := open(t, sqlite.ModerncDSN(file(t)))
			if err != nil {
				return err
			}
			return st.Check(t.Context())
		}},
		"tables dropped behind an open store": {store.ErrSchema, []string{"run: tenure migrate"}, func(t *testing.T) error {
			path := file(t)
			st := migrated(t, path, sqlite.Config{})
			rec := acquire(t, st, job("job", "a"))
			if _, err := openSQLite(t, path).Exec("DROP VIEW tenure_leases; DROP TABLE tenure_lease"); err != nil {
				t.Fatal(err)
			}
			_, err := st.Renew(t.Context(), []store.Grant{{Name: "job", Token: rec.Token, TTL: rec.TTL, Attempt: store.NewAttempt(), Known: []store.Attempt{rec.Attempt}}})
			return err
		}},
		"newer tables": {store.ErrSchema, []string{"99", "newer"}, func(t *testing.T) error {
			path := file(t)
			migrated(t, path, sqlite.Config{})
			if _, err := openSQLite(t, path).Exec("UPDATE tenure_meta SET value = '99' WHERE key = 'schema'"); err != nil {
				t.Fatal(err)
			}
			st := openStore(t, path, sqlite.Config{})
			_, err := try(t, st, "job", "a")
			return errors.Join(err, st.Migrate(t.Context()))
		}},
		"journal mode": {store.ErrSchema, []string{"journal_mode", "delete", "wal"}, func(t *testing.T) error {
			st, err := open(t, "file:"+file(t))
			if err != nil {
				return err
			}
			return st.Migrate(t.Context())
		}},
		"synchronous": {store.ErrSchema, []string{"synchronous", "FULL"}, func(t *testing.T) error {
			st, err := open(t, "file:"+file(t)+"?_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)")
			if err != nil {
				return err
			}
			return st.Migrate(t.Context())
		}},
		"one connection": {store.ErrUnsupported, []string{"SetMaxOpenConns"}, func(t *testing.T) error {
			db := openSQLite(t, file(t))
			db.SetMaxOpenConns(1)
			_, err := sqlite.New(db, sqlite.Config{})
			return err
		}},
		"in memory": {store.ErrUnsupported, []string{"memory"}, func(t *testing.T) error {
			_, err := open(t, ":memory:")
			return err
		}},
		"history": {store.ErrInvalid, []string{"history", "-1"}, func(t *testing.T) error {
			_, err := sqlite.New(openSQLite(t, file(t)), sqlite.Config{History: -1})
			return err
		}},
		"no directory": {store.ErrPermission, []string{"directory"}, func(t *testing.T) error {
			_, err := open(t, sqlite.ModerncDSN(filepath.Join(t.TempDir(), "missing", "tenure.db")))
			return err
		}},
		"a directory": {store.ErrPermission, nil, func(t *testing.T) error {
			_, err := open(t, sqlite.ModerncDSN(t.TempDir()))
			return err
		}},
		"not a database": {store.ErrSchema, []string{"not a database"}, func(t *testing.T) error {
			path := file(t)
			if err := os.WriteFile(path, []byte(strings.Repeat("this is no database\n", 100)), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := open(t, sqlite.ModerncDSN(path))
			return err
		}},
		"read-only": {store.ErrReadOnly, []string{"cannot be written"}, func(t *testing.T) error {
			path := file(t)
			rec := acquire(t, migrated(t, path, sqlite.Config{}), job("job", "a"))
			st, err := open(t, sqlite.ModerncDSN(path)+"&mode=ro")
			if err != nil {
				return err
			}
			if _, err := st.Get(t.Context(), "job"); err != nil {
				t.Errorf("Get from a read-only database: %v", err)
			}
			_, err = st.Renew(t.Context(), []store.Grant{{Name: "job", Token: rec.Token, TTL: rec.TTL, Attempt: store.NewAttempt(), Known: []store.Attempt{rec.Attempt}}})
			return err
		}},
		"closed": {store.ErrUnavailable, []string{"closed"}, func(t *testing.T) error {
			st := migrated(t, file(t), sqlite.Config{})
			if err := st.Close(); err != nil {
				t.Fatal(err)
			}
			_, err := try(t, st, "job", "a")
			return err
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := tc.run(t)
			if !errors.Is(err, tc.match) {
				t.Fatalf("got error %v, want one matching %v", err, tc.match)
			}
			if text := err.Error(); strings.Contains(text, "corrupt") || strings.Contains(text, "\n") && name != "newer tables" {
				t.Errorf("message %q: want one line without \"corrupt\"", text)
			}
			for _, part := range tc.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("message %q: want it to say %q", err, part)
				}
			}
		})
	}
}

// A path with anything in it opens that file and no other.
func TestSQLitePaths(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"plain.db", "with space.db", "a?b.db", "a%41b.db", "a#b.db", "a&mode=memory.db", "ü.db"} {
		path := filepath.Join(t.TempDir(), name)
		st := migrated(t, path, sqlite.Config{})
		if _, err := os.Stat(path); err != nil || st.Path() != path {
			t.Errorf("%q: the store is in %q (%v)", path, st.Path(), err)
		}
	}
}

// Several processes may make the tables at once, and again.
func TestSQLiteMigrateAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	openStore(t, path, sqlite.Config{}) // turns WAL on, which no two can do at once
	var all sync.WaitGroup
	for range 8 {
		st := openStore(t, path, sqlite.Config{})
		all.Go(func() {
			for range 2 {
				if err := st.Migrate(t.Context()); err != nil {
					t.Errorf("Migrate: %v", err)
				}
			}
			if err := st.Check(t.Context()); err != nil {
				t.Errorf("Check: %v", err)
			}
		})
	}
	all.Wait()
}

// A busy file is waited for inside the time that there is, and named (C07).
func TestSQLiteBusy(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	st := migrated(t, path, sqlite.Config{})
	rec := acquire(t, st, job("job", "a"))
	stranger := startChild(t, path, "lock")
	stranger.expect("locked")

	// No longer than the caller has time.
	ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond)
	defer cancel()
	grant := store.Grant{Name: "job", Token: rec.Token, TTL: rec.TTL, Attempt: store.NewAttempt(), Known: []store.Attempt{rec.Attempt}}
	_, err := st.Renew(ctx, []store.Grant{grant})
	want(t, "renewal while another process writes", err, store.ErrBusy)
	var busy *store.BusyError
	if !errors.As(err, &busy) || len(busy.Blockers) != 1 || !strings.Contains(busy.Blockers[0], fmt.Sprint(stranger.cmd.Process.Pid)) {
		t.Errorf("error %v: want it to name process %d", err, stranger.cmd.Process.Pid)
	}
	if store.Classify(err) != store.CodeBusy || strings.Contains(err.Error(), "corrupt") {
		t.Errorf("error %v: got code %s, want busy", err, store.Classify(err))
	}
	// Nothing came of it, and nothing comes of it later.
	if got, err := st.Get(t.Context(), "job"); err != nil || got.Attempt != rec.Attempt {
		t.Errorf("record: got attempt %s (%v), want it unchanged", got.Attempt, err)
	}
	// A losing try does not need the write lock.
	if held, err := try(t, st, "job", "b"); held == nil {
		t.Errorf("losing try while another process writes: got %v, want held", err)
	}
	// A write that waits gets through as soon as the other lets go.
	done := make(chan error, 1)
	grant.Attempt, grant.Known = store.NewAttempt(), []store.Attempt{rec.Attempt}
	waiting, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	go func() {
		res, err := st.Renew(waiting, []store.Grant{grant})
		if err == nil {
			err = res[0].Err
		}
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("renewal ended with %v while another process held the write lock", err)
	case <-time.After(300 * time.Millisecond):
	}
	stranger.say("unlock")
	if err := <-done; err != nil {
		t.Errorf("renewal after the other process let go: %v", err)
	}
	if got, _ := st.Get(t.Context(), "job"); got.Attempt != grant.Attempt {
		t.Errorf("record: got attempt %s, want that of the last renewal, %s", got.Attempt, grant.Attempt)
	}
}

// The clock is read after the write lock was taken (C34): time that passes
// behind another's lock is not taken off the new term.
func TestSQLiteClockBehindLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	st := migrated(t, path, sqlite.Config{})
	db := openSQLite(t, path)
	tx, err := beginBusy(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan store.Record, 1)
	go func() {
		rec, err := st.Acquire(t.Context(), store.Request{Name: "job", Holder: "a", TTL: 30 * time.Second, Attempt: store.NewAttempt()})
		if err != nil {
			t.Errorf("Acquire behind a lock: %v", err)
		}
		got <- rec
	}()
	<-time.After(300 * time.Millisecond) // the time that is not to be lost
	locked := time.Now()
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if rec := <-got; rec.Remaining < rec.TTL || rec.AcquiredAt.Before(locked.Add(-time.Millisecond)) {
		t.Errorf("term behind a lock: got from %s with %s remaining, want from %s on with %s", rec.AcquiredAt, rec.Remaining, locked, rec.TTL)
	}
}

// A try that loses leaves the WAL as it was, byte for byte.
func TestSQLiteLosingTryWritesNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	st := migrated(t, path, sqlite.Config{})
	other := openStore(t, path, sqlite.Config{})
	acquire(t, st, job("job", "a"))
	if held, _ := try(t, other, "job", "b"); held == nil {
		t.Fatal("a held lease was acquired")
	}
	version := dataVersion(t, path)
	before, n := walState(t, path), version(t)
	for i := range 500 {
		if held, err := try(t, []store.Store{st, other}[i%2], "job", "b"); held == nil || held.Record.Holder != "a" {
			t.Fatalf("try %d: got %v, want held by a", i, err)
		}
	}
	if after := walState(t, path); after != before || version(t) != n {
		t.Errorf("WAL after 500 losing tries: got %s, want %s", after, before)
	}
	acquire(t, st, job("free", "a"))
	if after := walState(t, path); after == before {
		t.Error("a winning try left the WAL as it was: the test sees nothing")
	}
}

func walState(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Stat(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(info.Size(), info.ModTime().UnixNano())
}

// No guarded transaction commits after the next term was granted (P7), and the
// next term waits for one that is open.
func TestSQLiteGuard(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	st := migrated(t, path, sqlite.Config{})
	db := openSQLite(t, path)
	if _, err := db.Exec("CREATE TABLE guarded (name TEXT PRIMARY KEY, token INTEGER)"); err != nil {
		t.Fatal(err)
	}
	first := acquire(t, st, job("job", "a"))
	tx, err := guarded(t.Context(), db, "job", first.Token)
	if err != nil {
		t.Fatal(err)
	}
	// Even an operator's revocation waits.
	brief, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err = st.Revoke(brief, "job", first.Token, store.Revocation{Now: true})
	want(t, "Revoke beside an open guarded transaction", err, store.ErrBusy)
	if err := tx.Commit(); err != nil {
		t.Fatalf("commit: %v", err)
	}
	if err := st.Revoke(t.Context(), "job", first.Token, store.Revocation{Now: true}); err != nil {
		t.Fatal(err)
	}
	second := acquire(t, st, job("job", "b"))
	_, err = guarded(t.Context(), db, "job", first.Token)
	var stale *fence.StaleError
	if !errors.As(err, &stale) || stale.Current != second.Token || stale.Token != first.Token || stale.Resource != "job" {
		t.Errorf("guarded write of an old term: got %v, want stale with %s current", err, second.Token)
	}
	if _, err := guarded(t.Context(), db, "nobody", 1); !errors.Is(err, fence.ErrStale) {
		t.Errorf("guarded write without a term: got %v, want stale", err)
	}
	var token fence.Token
	if err := db.QueryRow("SELECT token FROM guarded").Scan(&token); err != nil || token != first.Token {
		t.Errorf("guarded row: got %s (%v), want what the first term wrote", token, err)
	}

	// A deferred transaction that read before cannot pass the guard on what it
	// read: it is told to begin again.
	deferred, err := sql.Open("sqlite", strings.ReplaceAll(sqlite.ModerncDSN(path), "_txlock=immediate", "_txlock=deferred"))
	if err != nil {
		t.Fatal(err)
	}
	defer deferred.Close()
	old, err := deferred.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Rollback() }()
	var n int
	if err := old.QueryRow("SELECT count(*) FROM tenure_lease").Scan(&n); err != nil {
		t.Fatal(err)
	}
	release(t, st, second)
	acquire(t, st, job("job", "c"))
	want(t, "guard in a snapshot of before the grant", sqlite.Guard(t.Context(), old, "job", second.Token), store.ErrBusy)

	// In a deferred transaction that did not, it takes the write lock itself.
	current, _ := st.Get(t.Context(), "job")
	fresh, err := deferred.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := sqlite.Guard(t.Context(), fresh, "job", current.Token); err != nil {
		t.Fatal(err)
	}
	brief, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	want(t, "Revoke beside a deferred guarded transaction", st.Revoke(brief, "job", current.Token, store.Revocation{Now: true}), store.ErrBusy)
	if err := fresh.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := st.RaiseFloor(t.Context(), "job", current.Token); err != nil {
		t.Fatal(err)
	}
	if _, err := guarded(t.Context(), db, "job", current.Token); !errors.Is(err, fence.ErrStale) {
		t.Errorf("guarded write of a term at the floor: got %v, want stale", err)
	}
}

// The tables say by themselves what an operator on call wants to know.
func TestSQLiteReadable(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	st := migrated(t, path, sqlite.Config{})
	req := job("jobs/nightly", "web-7/4242")
	req.Meta = map[string]string{"host": "web-7"}
	rec := acquire(t, st, req)
	if err := st.Revoke(t.Context(), rec.Name, rec.Token, store.Revocation{Why: "disk is full", By: "ann"}); err != nil {
		t.Fatal(err)
	}
	var holder, state, acquired, expires, why, by, meta string
	var ttl float64
	err := openSQLite(t, path).QueryRow("SELECT holder, state, acquired_at, expires_at, ttl_s, why, revoked_by, meta FROM tenure_leases").Scan(&holder, &state, &acquired, &expires, &ttl, &why, &by, &meta)
	if err != nil {
		t.Fatal(err)
	}
	if holder != "web-7/4242" || state != "revoked" || why != "disk is full" || by != "ann" || ttl != 30 || meta != `{"host":"web-7"}` {
		t.Errorf("got %q %q %q %q %v %q", holder, state, why, by, ttl, meta)
	}
	const layout = "2006-01-02T15:04:05.000Z"
	if got, err := time.Parse(layout, acquired); err != nil || got.Sub(rec.AcquiredAt).Abs() > 2*time.Millisecond {
		t.Errorf("acquired_at: got %q, want %s", acquired, rec.AcquiredAt)
	}
	if got, err := time.Parse(layout, expires); err != nil || got.Sub(rec.ExpiresAt).Abs() > 2*time.Millisecond {
		t.Errorf("expires_at: got %q, want %s", expires, rec.ExpiresAt)
	}
}

// A directory that cannot be written costs the watch and nothing else.
func TestSQLiteWakeFileBlocked(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	st := migrated(t, path, sqlite.Config{})
	if err := os.Symlink("/nonexistent/elsewhere", path+"-wake"); err != nil { // root ignores modes; a link is not followed
		t.Fatal(err)
	}
	_, err := st.Watch(t.Context(), "job")
	want(t, "Watch", err, store.ErrUnsupported)
	release(t, st, acquire(t, st, job("job", "a")))
}

// When the wake file is taken away the channel closes, and the waiter asks.
func TestSQLiteWakeFileRemoved(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	st := migrated(t, path, sqlite.Config{})
	rec := acquire(t, st, job("job", "a"))
	events, err := st.Watch(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path + "-wake"); err != nil {
		t.Fatal(err)
	}
	select {
	case e, open := <-events:
		if open {
			t.Fatalf("got event %+v, want the channel closed", e)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the channel stays open")
	}
	if events, err = st.Watch(t.Context(), "job"); err != nil {
		t.Fatalf("Watch again: %v", err)
	}
	release(t, st, rec)
	select {
	case e := <-events:
		if e.Held {
			t.Errorf("got event %+v, want the end of a term", e)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("no event from the new wake file")
	}
}
