package conformance_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/sqlite"
)

// child is this test binary as another process, running TestSQLiteChild.
type child struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startChild(t *testing.T, path, role string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestSQLiteChild$", "-test.timeout=120s")
	cmd.Env = append(os.Environ(), "TENURE_SQLITE_CHILD="+role, "TENURE_SQLITE_PATH="+path)
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &child{t: t, cmd: cmd, in: in, out: bufio.NewScanner(out)}
}

func (c *child) say(line string) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.in, line); err != nil {
		c.t.Fatal(err)
	}
}

func (c *child) expect(line string) {
	c.t.Helper()
	if !c.out.Scan() || c.out.Text() != line {
		c.t.Fatalf("the child said %q, want %q (%v)", c.out.Text(), line, c.out.Err())
	}
}

// lines returns what the child says until it ends.
func (c *child) lines() (all []string) {
	for c.out.Scan() {
		all = append(all, c.out.Text())
	}
	return all
}

// TestSQLiteChild is the other process of the tests below.
func TestSQLiteChild(t *testing.T) {
	role, path := os.Getenv("TENURE_SQLITE_CHILD"), os.Getenv("TENURE_SQLITE_PATH")
	if role == "" {
		t.Skip("started by the tests of SQLite")
	}
	in := bufio.NewScanner(os.Stdin)
	switch role {
	case "lock": // keeps the write lock until told
		tx, err := beginBusy(t.Context(), openSQLite(t, path))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("locked")
		in.Scan()
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
	case "contend": // has 60 terms, each alone
		st := openStore(t, path, sqlite.Config{})
		for range 60 {
			rec := contend(t, st, "job", fmt.Sprint("pid-", os.Getpid()))
			alone, err := os.OpenFile(path+"-alone", os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				t.Fatalf("another process acts under the same lease: %v", err)
			}
			if rec, err = renew(t, st, rec); err != nil {
				t.Fatalf("renewal: %v", err)
			}
			_ = alone.Close()
			if err := os.Remove(alone.Name()); err != nil {
				t.Fatal(err)
			}
			fmt.Println(rec.Token)
			release(t, st, rec)
		}
	case "write": // has terms until it is killed
		st := openStore(t, path, sqlite.Config{})
		for {
			rec := contend(t, st, "job", "writer")
			fmt.Println(rec.Token)
			release(t, st, rec)
		}
	case "release": // releases and acquires when told
		st := openStore(t, path, sqlite.Config{})
		rec := contend(t, st, "job", "child")
		fmt.Println("held")
		for in.Scan() {
			release(t, st, rec)
			fmt.Println("released")
			if !in.Scan() {
				return
			}
			rec = contend(t, st, "job", "child")
			fmt.Println("held")
		}
	}
	if t.Failed() {
		return
	}
	// Nothing of the test framework's own in what is said.
	os.Exit(0)
}

// contend tries until it has the lease.
func contend(t *testing.T, st store.Store, name, holder string) store.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		rec, err := st.Acquire(ctx, store.Request{Name: name, Holder: holder, TTL: 10 * time.Second, Attempt: store.NewAttempt()})
		if err == nil {
			return rec
		}
		if !errors.Is(err, store.ErrHeld) {
			t.Fatalf("Acquire: %v", err)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("Acquire: %v", err)
		case <-time.After(time.Duration(1+rand.IntN(5)) * time.Millisecond):
		}
	}
}

// Processes that contend for one name never hold it together, and their tokens
// are all different and grow for each of them.
func TestSQLiteProcesses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	migrated(t, path, sqlite.Config{})
	children := []*child{startChild(t, path, "contend"), startChild(t, path, "contend"), startChild(t, path, "contend")}
	seen := map[string]bool{}
	for i, c := range children {
		lines := c.lines()
		if err := c.cmd.Wait(); err != nil || len(lines) != 60 {
			t.Fatalf("process %d: had %d terms, want 60 (%v): %q", i, len(lines), err, lines)
		}
		last := 0
		for _, line := range lines {
			token, err := strconv.Atoi(line)
			if err != nil || token <= last || seen[line] {
				t.Fatalf("process %d: token %q after %d, want a larger one that nobody else had", i, line, last)
			}
			last, seen[line] = token, true
		}
	}
}

// A process killed in the middle of writing leaves a file that works and has
// forgotten no term that it acknowledged.
func TestSQLiteKill(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	st := migrated(t, path, sqlite.Config{})
	db := openSQLite(t, path)
	last := fence.Token(0)
	for round := range 8 {
		c := startChild(t, path, "write")
		var lines []string
		for range 5 + rand.IntN(40) {
			if !c.out.Scan() {
				t.Fatalf("round %d: the writer ended: %v", round, c.cmd.Wait())
			}
			lines = append(lines, c.out.Text())
		}
		if err := c.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		// What it said before it was killed; the last line may be torn.
		rest := c.lines()
		_ = c.cmd.Wait()
		lines = append(lines, rest[:max(0, len(rest)-1)]...)
		token, err := fence.ParseToken(lines[len(lines)-1])
		if err != nil || token <= last {
			t.Fatalf("round %d: last token said is %q after %s", round, lines[len(lines)-1], last)
		}
		var ok string
		if err := db.QueryRow("PRAGMA integrity_check").Scan(&ok); err != nil || ok != "ok" {
			t.Fatalf("round %d: integrity check: %q (%v)", round, ok, err)
		}
		rec, err := st.Get(t.Context(), "job")
		if err != nil || rec.Token < token {
			t.Fatalf("round %d: record has token %s (%v), the killed process was given %s", round, rec.Token, err, token)
		}
		if rec.Status == store.Held {
			if err := st.Revoke(t.Context(), "job", rec.Token, store.Revocation{Why: "its process was killed", Now: true}); err != nil {
				t.Fatal(err)
			}
		}
		next := acquire(t, st, job("job", "parent"))
		if next.Token <= rec.Token {
			t.Fatalf("round %d: token %s after %s", round, next.Token, rec.Token)
		}
		last = next.Token
		release(t, st, next)
	}
}

// A watcher hears of each end of a term that another process had, also if that
// comes right after the registration.
func TestSQLiteWatchProcesses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	st := migrated(t, path, sqlite.Config{})
	c := startChild(t, path, "release")
	c.expect("held")
	for round := range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		events, err := st.Watch(ctx, "job")
		if err != nil {
			t.Fatal(err)
		}
		c.say("release")
		select {
		case e, open := <-events:
			if !open || e.Held || e.Name != "job" || e.Waiters < 1 {
				t.Fatalf("round %d: got event %+v (open %t), want the end of a term", round, e, open)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("round %d: no event", round)
		}
		cancel()
		c.expect("released")
		c.say("acquire")
		c.expect("held")
	}
	for range 50 { // the last watch takes the goroutine with it, a new one starts it again
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := st.Watch(ctx, "job"); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
}

// Operations that wait together share a commit, and each gets its own answer.
func TestSQLiteSharedCommit(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	st := migrated(t, path, sqlite.Config{})
	acquire(t, st, job("taken", "somebody"))
	tx, err := beginBusy(t.Context(), openSQLite(t, path))
	if err != nil {
		t.Fatal(err)
	}
	const n = 100
	type answer struct {
		i   int
		rec store.Record
		err error
	}
	answers := make(chan answer)
	for i := range n {
		go func() {
			rec, err := st.Acquire(t.Context(), store.Request{Name: fmt.Sprint("job/", i%(n/2)), Holder: fmt.Sprint("h", i), TTL: time.Minute, Attempt: store.NewAttempt()})
			answers <- answer{i, rec, err}
		}()
	}
	version := dataVersion(t, path)
	before := version(t)
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	won := map[string]int{}
	for range n {
		a := <-answers
		switch {
		case a.err == nil && a.rec.Holder == fmt.Sprint("h", a.i):
			won[a.rec.Name]++
		case !errors.Is(a.err, store.ErrHeld):
			t.Errorf("acquire %d: got %q (%v)", a.i, a.rec.Holder, a.err)
		}
	}
	for i := range n / 2 {
		if name := fmt.Sprint("job/", i); won[name] != 1 {
			t.Errorf("%s was won %d times, want once", name, won[name])
		}
	}
	if version(t) == before {
		t.Error("nothing was committed")
	}
}

// BenchmarkSQLiteRenew measures a durable renewal alone and in a batch, of one
// store in one file, and reports rows a second.
func BenchmarkSQLiteRenew(b *testing.B) {
	for _, n := range []int{1, 100, 500, 2000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			st, grants := heldSQLite(b, n)
			b.ResetTimer()
			for range b.N {
				for i := range grants {
					grants[i].Attempt = store.NewAttempt()
				}
				results, err := st.Renew(b.Context(), grants)
				if err != nil {
					b.Fatal(err)
				}
				for i := range results {
					if results[i].Err != nil {
						b.Fatal(results[i].Err)
					}
					grants[i].Known = []store.Attempt{grants[i].Attempt}
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// BenchmarkSQLiteRelease measures how long a shutdown with n terms takes.
func BenchmarkSQLiteRelease(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				st, grants := heldSQLite(b, n)
				for i := range grants {
					grants[i].Attempt = store.NewAttempt()
				}
				b.StartTimer()
				if _, err := st.Release(b.Context(), grants); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// heldSQLite returns a store with n held terms.
func heldSQLite(b *testing.B, n int) (*sqlite.Store, []store.Grant) {
	b.Helper()
	path := filepath.Join(b.TempDir(), "tenure.db")
	db, err := sql.Open("sqlite", sqlite.ModerncDSN(path))
	if err != nil {
		b.Fatal(err)
	}
	st, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = errors.Join(st.Close(), db.Close()) })
	if err := st.Migrate(b.Context()); err != nil {
		b.Fatal(err)
	}
	grants := make([]store.Grant, n)
	done := make(chan error)
	for i := range grants {
		go func() {
			rec, err := st.Acquire(b.Context(), store.Request{Name: fmt.Sprintf("jobs/%06d", i), Holder: "host/4711/0a1b2c3d", TTL: time.Hour, Attempt: store.NewAttempt()})
			grants[i] = store.Grant{Name: rec.Name, Token: rec.Token, TTL: time.Hour, Known: []store.Attempt{rec.Attempt}}
			done <- err
		}()
	}
	for range grants {
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	return st, grants
}
