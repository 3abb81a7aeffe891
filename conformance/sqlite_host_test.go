package conformance_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/sqlite"
)

// machine is a host whose clocks and identity a test sets.
type machine struct {
	id, domain string
	boot       time.Duration
	wall       time.Time
}

func newMachine() *machine {
	return &machine{id: "machine-a", domain: "boot-1", boot: time.Hour, wall: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
}

func (m *machine) config() sqlite.Config {
	return sqlite.Config{Host: sqlite.Host{
		ID: m.id, Domain: m.domain,
		Boot: func() time.Duration { return m.boot },
		Wall: func() time.Time { return m.wall },
	}}
}

func (m *machine) pass(d time.Duration) { m.boot, m.wall = m.boot+d, m.wall.Add(d) }

// reboot takes a minute, and the boot clock starts over.
func (m *machine) reboot(domain string) {
	m.domain, m.boot, m.wall = domain, 10*time.Second, m.wall.Add(time.Minute)
}

func want(t *testing.T, what string, err, match error) {
	t.Helper()
	if !errors.Is(err, match) {
		t.Fatalf("%s: got error %v, want one matching %v", what, err, match)
	}
}

func acquire(t *testing.T, st store.Store, req store.Request) store.Record {
	t.Helper()
	req.Attempt = store.NewAttempt()
	rec, err := st.Acquire(t.Context(), req)
	if err != nil {
		t.Fatalf("Acquire of %q by %s: %v", req.Name, req.Holder, err)
	}
	return rec
}

func try(t *testing.T, st store.Store, name, holder string) (*store.HeldError, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := st.Acquire(ctx, store.Request{Name: name, Holder: holder, TTL: 30 * time.Second, Attempt: store.NewAttempt()})
	var held *store.HeldError
	errors.As(err, &held)
	return held, err
}

func renew(t *testing.T, st store.Store, rec store.Record) (store.Record, error) {
	t.Helper()
	res, err := st.Renew(t.Context(), []store.Grant{{Name: rec.Name, Token: rec.Token, TTL: rec.TTL, Attempt: store.NewAttempt(), Known: []store.Attempt{rec.Attempt}}})
	if err != nil {
		t.Fatalf("Renew of %q: %v", rec.Name, err)
	}
	return res[0].Record, res[0].Err
}

func release(t *testing.T, st store.Store, rec store.Record) {
	t.Helper()
	res, err := st.Release(t.Context(), []store.Grant{{Name: rec.Name, Token: rec.Token, Attempt: store.NewAttempt(), Known: []store.Attempt{rec.Attempt}}})
	if err == nil {
		err = res[0].Err
	}
	if err != nil {
		t.Fatalf("Release of %q: %v", rec.Name, err)
	}
}

func job(name, holder string) store.Request {
	return store.Request{Name: name, Holder: holder, TTL: 30 * time.Second}
}

// A reboot frees everything within one TTL, also for processes that try once
// and go (C15), and never earlier.
func TestSQLiteReboot(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	host := newMachine()
	old := migrated(t, path, host.config())
	before := acquire(t, old, job("job", "a"))
	other := acquire(t, old, job("other", "a"))
	req := job("nightly", "a")
	req.MinHold = time.Hour
	nightly := acquire(t, old, req)
	release(t, old, nightly)

	host.reboot("boot-2")
	version := dataVersion(t, path)
	start := host.boot
	var won time.Duration
	writes := 0
	for last := version(t); ; {
		// Every try is a process of its own.
		held, err := try(t, openStore(t, path, host.config()), "job", "b")
		if n := version(t); n != last {
			last = n
			writes++
		}
		if err == nil {
			won = host.boot - start
			break
		}
		if held == nil || held.Reason != store.HeldMaybe || held.Remaining > 30*time.Second {
			t.Fatalf("try after %s: got %v, want held, may be stale, for at most the TTL", host.boot-start, err)
		}
		if host.boot-start > time.Minute {
			t.Fatal("the lease of before the reboot was never obtained")
		}
		host.pass(5 * time.Second)
	}
	if won != 30*time.Second {
		t.Errorf("obtained %s after the first try, want the TTL, 30s", won)
	}
	if writes != 2 { // the first look and the grant
		t.Errorf("the tries wrote %d times, want 2", writes)
	}
	after := openStore(t, path, host.config())
	// The first write in the new domain began to watch all open terms.
	if _, err := try(t, after, "other", "b"); err != nil {
		t.Errorf("acquire of another lease of before the reboot: %v", err)
	}
	if rec, _ := after.Get(t.Context(), "job"); rec.Token <= before.Token || rec.Holder != "b" {
		t.Errorf("record: got token %s of %q, want more than %s of b", rec.Token, rec.Holder, before.Token)
	}
	_, err := renew(t, after, other)
	want(t, "renewal of a term of before the reboot", err, store.ErrSuperseded)
	// The min-hold of an hour began before the reboot and goes on.
	held, err := try(t, after, "nightly", "b")
	if held == nil || held.Reason != store.HeldByMinHold || held.Remaining < 50*time.Minute || held.Remaining > 59*time.Minute {
		t.Errorf("acquire during a min-hold of before the reboot: got %v, want about 58m left of it", err)
	}
}

// A holder that goes on in another domain, which a restored process or another
// time namespace may do, is not revived, and not cut short by a watcher either.
func TestSQLiteForeignDomain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	host := newMachine()
	a := migrated(t, path, host.config())
	rec := acquire(t, a, job("job", "a"))

	there := newMachine()
	there.domain, there.boot = "boot-1+100.0", 10*time.Second
	b := openStore(t, path, there.config())
	_, err := renew(t, b, rec)
	want(t, "renewal from another domain", err, store.ErrExpired)
	for range 4 {
		if held, err := try(t, b, "job", "b"); held == nil || held.Reason != store.HeldMaybe {
			t.Fatalf("acquire from another domain: got %v, want may be stale", err)
		}
		host.pass(20 * time.Second)
		there.pass(20 * time.Second)
		if rec, err = renew(t, a, rec); err != nil {
			t.Fatalf("renewal in its own domain: %v", err)
		}
	}
	there.pass(29 * time.Second)
	if held, err := try(t, b, "job", "b"); held == nil {
		t.Fatalf("acquire after a renewal that was not watched yet: got %v, want it refused", err)
	}
	there.pass(30 * time.Second)
	if _, err := try(t, b, "job", "b"); err != nil {
		t.Fatalf("acquire after a full TTL of watching: %v", err)
	}
	_, err = renew(t, a, rec)
	want(t, "renewal after it", err, store.ErrSuperseded)
}

// A clock behind what it wrote itself is that of a machine restored from a
// snapshot: nothing is held for ever.
func TestSQLiteClockWentBack(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	host := newMachine()
	st := migrated(t, path, host.config())
	rec := acquire(t, st, job("job", "a"))
	host.boot -= 40 * time.Minute
	if got, _ := st.Get(t.Context(), "job"); got.Remaining > got.TTL {
		t.Errorf("remaining: got %s, want at most the TTL", got.Remaining)
	}
	_, err := renew(t, st, rec)
	want(t, "renewal", err, store.ErrExpired)
	if held, err := try(t, st, "job", "b"); held == nil || held.Reason != store.HeldMaybe {
		t.Fatalf("acquire: got %v, want may be stale", err)
	}
	host.pass(30 * time.Second)
	if _, err := try(t, st, "job", "b"); err != nil {
		t.Fatalf("acquire after a TTL: %v", err)
	}
}

// A step of the wall clock ends no term.
func TestSQLiteWallStep(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	host := newMachine()
	st := migrated(t, path, host.config())
	rec := acquire(t, st, job("job", "a"))
	for _, step := range []time.Duration{time.Hour, -2 * time.Hour, 50 * 365 * 24 * time.Hour} {
		host.wall = host.wall.Add(step)
		later := openStore(t, path, host.config())
		if held, err := try(t, later, "job", "b"); held == nil || held.Remaining != 30*time.Second {
			t.Errorf("after a step of %s: got %v, want held for 30s", step, err)
		}
		var err error
		if rec, err = renew(t, later, rec); err != nil {
			t.Fatalf("renewal after a step of %s: %v", step, err)
		}
	}
	host.pass(30 * time.Second)
	if _, err := try(t, st, "job", "b"); err != nil {
		t.Errorf("acquire after the TTL: %v", err)
	}
}

func TestSQLiteCopied(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, copied := filepath.Join(dir, "tenure.db"), filepath.Join(dir, "copy.db")
	host := newMachine()
	st := migrated(t, path, host.config())
	rec := acquire(t, st, job("job", "a"))
	if err := st.RaiseFloor(t.Context(), "unheld", 7); err != nil {
		t.Fatal(err)
	}
	copyDatabase(t, path, copied)

	there := newMachine()
	there.id, there.domain = "machine-b", "boot-x"
	b := openStore(t, copied, there.config())
	_, err := try(t, b, "job", "b")
	want(t, "acquire", err, store.ErrCopied)
	if store.Classify(err) != store.CodeCopied || !strings.Contains(err.Error(), "machine-a") || !strings.Contains(err.Error(), "tenure lease raise-floor") {
		t.Errorf("error %q: want it to name the hosts and the next step", err)
	}
	_, err = b.Get(t.Context(), "job")
	want(t, "Get", err, store.ErrCopied)
	want(t, "Migrate", b.Migrate(t.Context()), store.ErrCopied)
	want(t, "Check", b.Check(t.Context()), store.ErrCopied)
	want(t, "RaiseFloor of one name", b.RaiseFloor(t.Context(), "job", 100), store.ErrCopied)
	want(t, "RaiseFloor of all to no more than the tokens", b.RaiseFloor(t.Context(), "", 7), store.ErrCopied)
	if codes := findings(t, b); codes["store_copied"] != store.Broken {
		t.Errorf("findings: got %v, want store_copied", codes)
	}

	if err := b.Adopt(t.Context()); err != nil {
		t.Fatalf("Adopt: %v", err)
	}
	if err := b.Check(t.Context()); err != nil {
		t.Errorf("Check after Adopt: %v", err)
	}
	if codes := findings(t, b); len(codes) != 0 {
		t.Errorf("findings after Adopt: got %v, want none", codes)
	}
	if held, err := try(t, b, "job", "b"); held == nil || held.Reason != store.HeldMaybe {
		t.Fatalf("acquire: got %v, want may be stale", err)
	}
	there.pass(30 * time.Second)
	next := acquire(t, b, job("job", "b"))
	if next.Token < rec.Token+1_000_000 {
		t.Errorf("token after Adopt: got %s, want far more than %s", next.Token, rec.Token)
	}
	// The original goes its own way: nothing in it can know.
	if _, err := renew(t, st, rec); err != nil {
		t.Errorf("renewal in the original: %v", err)
	}
	// On one boot it is one machine, whatever its containers say it is.
	container := newMachine()
	container.id = "container"
	if _, err := try(t, openStore(t, path, container.config()), "job", "b"); !errors.Is(err, store.ErrHeld) {
		t.Errorf("acquire from a container of the host: got %v, want held", err)
	}
	// An explicit floor above every token does what Adopt does.
	third := newMachine()
	third.id, third.domain = "machine-c", "boot-y"
	c := openStore(t, copied, third.config())
	want(t, "Check on a third host", c.Check(t.Context()), store.ErrCopied)
	if err := c.RaiseFloor(t.Context(), "", next.Token+100); err != nil {
		t.Fatalf("RaiseFloor of all: %v", err)
	}
	if err := c.Check(t.Context()); err != nil {
		t.Errorf("Check after RaiseFloor of all: %v", err)
	}
}

// A file restored on its own host is told by its inode.
func TestSQLiteRestored(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, copied := filepath.Join(dir, "tenure.db"), filepath.Join(dir, "copy.db")
	host := newMachine()
	acquire(t, migrated(t, path, host.config()), job("job", "a"))
	copyDatabase(t, path, copied)
	st := openStore(t, copied, host.config())
	if codes := findings(t, st); codes["inode_changed"] != store.Warning {
		t.Errorf("findings: got %v, want inode_changed", codes)
	}
	if err := st.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if codes := findings(t, st); len(codes) != 0 {
		t.Errorf("findings after Adopt: got %v, want none", codes)
	}
}

// copyDatabase copies the content of the database at from by its own means.
func copyDatabase(t *testing.T, from, to string) {
	t.Helper()
	if _, err := openSQLite(t, from).Exec("VACUUM INTO ?", to); err != nil {
		t.Fatal(err)
	}
	// As a copied file it comes with its journal mode, which VACUUM INTO drops.
	if _, err := openSQLite(t, to).Exec("PRAGMA journal_mode=WAL"); err != nil {
		t.Fatal(err)
	}
}

// findings returns the codes of what Diagnose found beyond information.
func findings(t *testing.T, st *sqlite.Store) map[string]store.Severity {
	t.Helper()
	found, err := st.Diagnose(t.Context())
	if err != nil {
		t.Fatalf("Diagnose: %v", err)
	}
	codes := map[string]store.Severity{}
	for _, f := range found {
		if f.Severity != store.Info {
			codes[f.Code] = f.Severity
			if f.Fix == "" || f.Text == "" {
				t.Errorf("finding %s: got text %q and fix %q, want both", f.Code, f.Text, f.Fix)
			}
		}
	}
	return codes
}

func TestSQLiteThisHost(t *testing.T) {
	t.Parallel()
	a, err := sqlite.ThisHost()
	if err != nil {
		t.Fatal(err)
	}
	b, err := sqlite.ThisHost()
	if err != nil {
		t.Fatal(err)
	}
	if a.Domain == "" || a.Domain != b.Domain || a.ID != b.ID {
		t.Errorf("this host: got %q in %q, then %q in %q", a.ID, a.Domain, b.ID, b.Domain)
	}
	if x, y := a.Boot(), b.Boot(); x <= 0 || y < x {
		t.Errorf("boot clock: got %s, then %s", x, y)
	}
}

// Clean forgets records and no token.
func TestSQLiteCleanAfterReboot(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	host := newMachine()
	st := migrated(t, path, host.config())
	open, done := acquire(t, st, job("open", "a")), acquire(t, st, job("done", "a"))
	release(t, st, done)
	host.reboot("boot-2")
	after := openStore(t, path, host.config())
	if n, err := after.Clean(t.Context(), 0); n != 1 || err != nil {
		t.Errorf("Clean: removed %d (%v), want only the released one", n, err)
	}
	host.pass(30 * time.Second)
	if n, err := after.Clean(t.Context(), 0); n != 1 || err != nil {
		t.Errorf("Clean after a TTL of watching: removed %d (%v), want the other", n, err)
	}
	if rec := acquire(t, after, job("new", "b")); rec.Token <= max(open.Token, done.Token) {
		t.Errorf("first token of a new name: got %s, want more than %s", rec.Token, max(open.Token, done.Token))
	}
	if _, err := after.Get(t.Context(), "open"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Get of a cleaned name: got %v, want not found", err)
	}
}

// A file with two names has two WALs, and neither shows what the other holds.
func TestSQLiteTwoNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "tenure.db")
	migrated(t, path, sqlite.Config{})
	if err := os.Link(path, filepath.Join(dir, "other.db")); err != nil {
		t.Skipf("no hard links here: %v", err)
	}
	if _, err := sqlite.New(openSQLite(t, path), sqlite.Config{}); !errors.Is(err, store.ErrUnsupported) || !strings.Contains(err.Error(), "2 names") {
		t.Errorf("New on a file with two names: got %v, want ErrUnsupported and why", err)
	}
}

// The file is removed under a holder: whoever opens the path anew cannot know
// of the term, so the holder must learn at its next renewal that it is over.
func TestSQLiteFileRemoved(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	migrated(t, path, sqlite.Config{})
	st := openStore(t, path, sqlite.Config{})
	rec := acquire(t, st, job("job", "a"))
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	migrated(t, path, sqlite.Config{})
	if again := acquire(t, openStore(t, path, sqlite.Config{}), job("job", "b")); again.Token != 1 {
		t.Fatalf("the new file gave token %s; the case is not the one to test", again.Token)
	}
	if rec, err := st.Get(t.Context(), "job"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("reading the removed file: got %+v, %v; want no answer, since another holds the lease now (P8)", rec, err)
	}
	_, err := st.Renew(t.Context(), []store.Grant{{Name: "job", Token: rec.Token, TTL: rec.TTL, Attempt: store.NewAttempt(), Known: []store.Attempt{rec.Attempt}}})
	if !store.Definite(err) || !errors.Is(err, store.ErrMissing) {
		t.Errorf("renewal after the file was removed: got %v, want a definite loss", err)
	}
}
