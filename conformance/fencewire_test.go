//go:build linux

package conformance_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/httpfence"
	"github.com/tenurehq/tenure/fence/sqlfence"
	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
	"github.com/tenurehq/tenure/store/postgres"
	"github.com/tenurehq/tenure/store/sqlite"
	"github.com/tenurehq/tenure/store/storetest"
)

// keep runs a keeper until the test ends.
func keep(t *testing.T, st store.Store) *tenure.Keeper {
	t.Helper()
	k, err := tenure.NewKeeper(st, tenure.Config{TTL: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, tenure.ErrNotReleased) {
			t.Error(err)
		}
	})
	return k
}

// TestWriteOnTheWire: A's write has left and is held up on the way; A's term ends,
// B's begins and B writes; then A's write arrives. It changes nothing and learns
// the newest token, and so does A's next try.
func TestWriteOnTheWire(t *testing.T) {
	t.Parallel()
	// write sends one write; far goes through the proxy.
	type write func(ctx context.Context, token fence.Token, value string) error
	targets := map[string]func(t *testing.T) (p *storetest.Proxy, marks fence.Marks, far, near write, read func() string){
		"sql": func(t *testing.T) (*storetest.Proxy, fence.Marks, write, write, func() string) {
			p, near, far := wiredPostgres(t)
			execSQL(t, near, "CREATE TABLE data (value text)")
			execSQL(t, near, "INSERT INTO data VALUES ('')")
			over := func(db *sql.DB) write {
				m := ownMarks(t, near, sqlfence.Postgres) // its tables; where it writes says tx
				return func(ctx context.Context, token fence.Token, value string) error {
					tx, err := db.BeginTx(ctx, nil)
					if err != nil {
						return err
					}
					defer func() { _ = tx.Rollback() }()
					if _, err := m.In(tx).Raise(ctx, "data", token); err != nil {
						return err
					}
					if _, err := tx.ExecContext(ctx, "UPDATE data SET value = $1", value); err != nil {
						return err
					}
					return tx.Commit()
				}
			}
			return p, ownMarks(t, near, sqlfence.Postgres), over(far), over(near), readValue(t, near, "SELECT value FROM data")
		},
		"column": func(t *testing.T) (*storetest.Proxy, fence.Marks, write, write, func() string) {
			p, near, far := wiredPostgres(t)
			execSQL(t, near, "CREATE TABLE data (id text PRIMARY KEY, value text NOT NULL, fence bigint)")
			execSQL(t, near, "INSERT INTO data VALUES ('data', '', NULL)")
			m, err := sqlfence.NewColumn(near, sqlfence.Postgres, sqlfence.Column{Table: "data", Key: "id", Token: "fence"})
			if err != nil {
				t.Fatal(err)
			}
			over := func(db *sql.DB) write { // one statement, as docs/FENCING.md has it
				return func(ctx context.Context, token fence.Token, value string) error {
					r, err := db.ExecContext(ctx, "UPDATE data SET value = $1, fence = $2 WHERE id = 'data' AND (fence IS NULL OR fence <= $2)", value, int64(token))
					if err != nil {
						return err
					}
					if n, err := r.RowsAffected(); n == 1 || err != nil {
						return err
					}
					_, err = m.Raise(ctx, "data", token) // says which is current
					return err
				}
			}
			return p, m, over(far), over(near), readValue(t, near, "SELECT value FROM data")
		},
		"http": func(t *testing.T) (*storetest.Proxy, fence.Marks, write, write, func() string) {
			db := openPostgres(t)
			m := ownMarks(t, db, sqlfence.Postgres)
			execSQL(t, db, "CREATE TABLE data (value text)")
			execSQL(t, db, "INSERT INTO data VALUES ('')")
			srv := httptest.NewServer(httpfence.NewGuard(m, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				execSQL(t, db, "UPDATE data SET value = $1", r.URL.Query().Get("value"))
			}), httpfence.Config{}))
			t.Cleanup(srv.Close)
			p := proxyTo(t, srv.Listener.Addr().String())
			over := func(addr string) write {
				base := &http.Transport{}
				t.Cleanup(base.CloseIdleConnections)
				return func(ctx context.Context, token fence.Token, value string) error {
					c := &http.Client{Transport: &httpfence.Transport{Resource: "data", Base: base, TokenFunc: func() (fence.Token, bool) { return token, true }}}
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"?value="+value, http.NoBody)
					if err != nil {
						return err
					}
					resp, err := c.Do(req)
					if err != nil {
						return err
					}
					defer resp.Body.Close()
					if err := httpfence.Stale(resp); err != nil {
						return err
					}
					if resp.StatusCode != http.StatusOK {
						return errors.New(resp.Status)
					}
					return nil
				}
			}
			return p, m, over(p.Addr()), over(srv.Listener.Addr().String()), readValue(t, db, "SELECT value FROM data")
		},
	}
	for name, target := range targets {
		for _, wrote := range []bool{true, false} { // B has written, or has only begun
			t.Run(fmt.Sprintf("%s/B wrote %v", name, wrote), func(t *testing.T) {
				t.Parallel()
				ctx := boundedContext(t)
				p, marks, far, near, read := target(t)
				st := memory.New()
				a, b := keep(t, st), keep(t, st)
				termA, err := a.TryAcquire(ctx, "data", tenure.WithMarks(marks))
				if err != nil {
					t.Fatal(err)
				}
				if err := far(ctx, termA.Token(), "A1"); err != nil { // opens the connection
					t.Fatal(err)
				}
				p.HoldRequests()
				late := make(chan error, 1)
				go func() { late <- far(ctx, termA.Token(), "A2") }()
				if err := st.Revoke(ctx, "data", termA.Token(), store.Revocation{By: "test", Why: "test", Now: true}); err != nil {
					t.Fatal(err)
				}
				termB, err := b.Acquire(ctx, "data", tenure.WithMarks(marks))
				if err != nil {
					t.Fatal(err)
				}
				want := "A1"
				if wrote {
					want = "B1"
					if err := near(ctx, termB.Token(), want); err != nil {
						t.Fatal(err)
					}
				}
				select {
				case err := <-late:
					t.Fatalf("A's write was not held: %v", err)
				default:
				}
				p.Pass()
				check := func(what string, err error) {
					t.Helper()
					var stale *fence.StaleError
					if !errors.As(err, &stale) || *stale != (fence.StaleError{Resource: "data", Token: termA.Token(), Current: termB.Token()}) {
						t.Errorf("%s: got %v, want stale by %s", what, err, termB.Token())
					}
					if got := read(); got != want {
						t.Errorf("%s: the data is %q, want %q", what, got, want)
					}
				}
				check("the late write", <-late)
				check("another try", far(ctx, termA.Token(), "A3"))
			})
		}
	}
}

func proxyTo(t *testing.T, addr string) *storetest.Proxy {
	t.Helper()
	p, err := storetest.NewProxy("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// wiredPostgres opens a fresh database twice: as it is, and through a proxy.
func wiredPostgres(t *testing.T) (p *storetest.Proxy, near, far *sql.DB) {
	t.Helper()
	u, err := url.Parse(pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	direct := u.String()
	p = proxyTo(t, u.Host)
	u.Host = p.Addr()
	for at, db := range map[string]**sql.DB{direct: &near, u.String(): &far} {
		if *db, err = sql.Open("pgx", at); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = (*db).Close() })
	}
	return p, near, far
}

func readValue(t *testing.T, db *sql.DB, query string) func() string {
	return func() (value string) {
		t.Helper()
		if err := db.QueryRowContext(t.Context(), query).Scan(&value); err != nil {
			t.Error(err)
		}
		return value
	}
}

// TestTokensNeverStartOver: three holders in turn, with the record cleaned away
// between; each new term passes the marks and each old one is refused. A store
// that has forgotten its tokens is noticed before it does harm, and its floor puts
// it right.
func TestTokensNeverStartOver(t *testing.T) {
	t.Parallel()
	stores := map[string]func(t *testing.T) store.Store{
		"memory": func(*testing.T) store.Store { return memory.New() },
		"sqlite": func(t *testing.T) store.Store {
			return migrated(t, filepath.Join(t.TempDir(), "tenure.db"), sqlite.Config{})
		},
		"postgres": func(t *testing.T) store.Store {
			pool, err := pgxpool.New(t.Context(), pgtest.Database(t))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			st, err := postgres.New(pool, postgres.Config{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(st.Close)
			if err := st.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			return st
		},
	}
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := boundedContext(t)
			st := open(t)
			db := databases[sqlfence.SQLite](t)
			marks := ownMarks(t, db, sqlfence.SQLite)
			var last fence.Token
			for range 3 {
				for range 3 {
					term, err := keep(t, st).Acquire(ctx, "data", tenure.WithMarks(marks))
					if err != nil {
						t.Fatal(err)
					}
					if term.Token() <= last || term.Token() < 1 {
						t.Fatalf("token %s after %s", term.Token(), last)
					}
					if last > 0 {
						if _, err := marks.Raise(ctx, "data", last); !errors.Is(err, fence.ErrStale) {
							t.Errorf("token %s after %s: got %v", last, term.Token(), err)
						}
					}
					last = term.Token()
					if err := term.Release(ctx); err != nil {
						t.Fatal(err)
					}
				}
				if c, ok := st.(store.Cleaner); ok {
					eventually(t, "the record is cleaned away", func() bool {
						n, err := c.Clean(ctx, 0)
						if err != nil {
							t.Fatal(err)
						}
						return n == 1
					})
				}
			}
			forgetful := open(t)
			k := keep(t, forgetful)
			var stale *fence.StaleError
			if term, err := k.TryAcquire(ctx, "data", tenure.WithMarks(marks)); term != nil || !errors.As(err, &stale) || stale.Current != last {
				t.Fatalf("a store that starts over: got %v, %v; want stale by %s", term, err, last)
			}
			if err := forgetful.RaiseFloor(ctx, "data", stale.Current); err != nil {
				t.Fatal(err)
			}
			if term, err := k.TryAcquire(ctx, "data", tenure.WithMarks(marks)); err != nil || term.Token() != last+1 {
				t.Errorf("after the floor was raised: got %v, %v", term, err)
			}
		})
	}
}

// TestLargeTokens: a token above 2^53 goes exactly through the program, its
// environment, its JSON, SQL of another language, and a mark.
func TestLargeTokens(t *testing.T) {
	t.Parallel()
	need(t, "psql", "postgresql-client")
	at, program := pgtest.Database(t), tenureBinary(t)
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(boundedContext(t), program, args...)
		cmd.Env = append(cmd.Environ(), "TENURE_STORE="+at, "DATABASE_URL="+at)
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("tenure %q: %v\n%s%s", args, err, out, errs.String())
		}
		return string(out)
	}
	run("migrate")
	run("fence", "install")
	db, err := sql.Open("pgx", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	marks := ownMarks(t, db, sqlfence.Postgres)
	show := func(token fence.Token) {
		t.Helper()
		if out := run("lease", "get", "large", "-o", "json"); !strings.Contains(out, `"token": "`+token.String()+`"`) {
			t.Errorf("tenure lease get: got %s, want the token %s as a string", out, token)
		}
		if got, err := marks.Raise(t.Context(), "large", token); err != nil || got != token {
			t.Errorf("the mark: got %s, %v", got, err)
		}
		if _, err := marks.Raise(t.Context(), "large", token-1); !errors.Is(err, fence.ErrStale) {
			t.Errorf("token %s: got %v, want ErrStale", token-1, err)
		}
	}
	for _, token := range []fence.Token{1 << 53, 1<<53 + 1, 1<<63 - 1<<32} {
		run("lease", "raise-floor", "large", "--to", (token - 1).String())
		out := run("run", "large", "--", "sh", "-c", `echo "$TENURE_TOKEN"; psql -X -q -A -t -v ON_ERROR_STOP=1 -c "SELECT tenure_fence('large', $TENURE_TOKEN)" "$DATABASE_URL"`)
		if strings.TrimSpace(out) != token.String() {
			t.Errorf("tenure run: got %q, want %s", out, token)
		}
		show(token)
	}
	// The largest one, which no store gets to: 2^63 terms.
	const largest = fence.Token(1<<63 - 1)
	execSQL(t, db, "UPDATE tenure_lease SET token = $1, ended_us = 0 WHERE name = 'large'", int64(largest))
	execSQL(t, db, "SELECT tenure_fence('large', $1)", int64(largest))
	show(largest)
}
