package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
	"github.com/tenurehq/tenure/store/storetest"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, test := range []struct {
		name string
		pool *pgxpool.Pool
		cfg  postgres.Config
	}{
		{"no pool", nil, postgres.Config{}},
		{"schema that needs escapes", pool, postgres.Config{Schema: `a"b`}},
		{"schema too long for the channel", pool, postgres.Config{Schema: strings.Repeat("a", 49)}},
		{"negative wait", pool, postgres.Config{TakeoverWait: -1}},
		{"wait of days", pool, postgres.Config{TakeoverWait: 48 * time.Hour}},
	} {
		if _, err := postgres.New(test.pool, test.cfg); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%s: got error %v, want one matching %q", test.name, err, store.ErrInvalid)
		}
	}
}

// TestLosingTryWritesNothing: neither a row, nor a lock, nor a transaction id.
func TestLosingTryWritesNothing(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{Settings: quiet})
	pool := openPool(t, srv.Database(t))
	s := open(t, pool, postgres.Config{})
	if err := s.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	hold(t, s, request("job"))
	lose := func(n int) {
		for range n {
			if _, err := s.Acquire(bounded(t), request("job")); !errors.Is(err, store.ErrHeld) {
				t.Fatalf("losing try: got error %v, want one matching %q", err, store.ErrHeld)
			}
		}
	}
	lose(1) // the first read may tidy the page
	before := walPosition(t, pool)
	lose(100)
	if after := walPosition(t, pool); after != before {
		t.Errorf("100 losing tries moved the write-ahead log by %d bytes, want 0", after-before)
	}
}

// TestRenewalIsHeapOnly is not parallel: while a transaction of another test is
// open, in whichever database, the server does not look again at what it may clean up.
func TestRenewalIsHeapOnly(t *testing.T) {
	s, pool := fresh(t)
	const leases, rounds = 50, 20
	grants := make([]store.Grant, leases)
	for i := range grants {
		grants[i] = hold(t, s, request(fmt.Sprint("job/", i)))
	}
	updates := func() (all, hot int) {
		err := pool.QueryRow(bounded(t), "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'tenure_lease'").Scan(&all, &hot)
		if err != nil {
			t.Fatal(err)
		}
		return all, hot
	}
	// A snapshot that somebody else holds in this instant, such as an autovacuum's,
	// keeps the server from using space again; so the best of several tries counts,
	// and a few updates may miss. With an index on what renewal changes none is
	// heap-only.
	const enough = leases * rounds * 9 / 10
	most := 0
	for try := 1; try <= 5 && most < enough; try++ {
		before, hotBefore := updates()
		renewing := open(t, pool, postgres.Config{})
		for range rounds {
			renewAll(t, renewing, grants)
		}
		renewing.Close() // a process reports its counters when it ends
		var all, hot int
		eventually(t, "the counters show every renewal", func() bool {
			all, hot = updates()
			return all-before >= leases*rounds
		})
		most = max(most, hot-hotBefore)
	}
	if most < enough {
		t.Errorf("of %d renewals %d at most were heap-only", leases*rounds, most)
	}
}

func renewAll(t testing.TB, s *postgres.Store, grants []store.Grant) {
	t.Helper()
	for i := range grants {
		grants[i].Attempt = store.NewAttempt()
	}
	results, err := s.Renew(bounded(t), grants)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		if r.Err != nil {
			t.Fatalf("renewal of %q: %v", grants[i].Name, r.Err)
		}
		grants[i].Known = []store.Attempt{grants[i].Attempt}
	}
}

// TestBusyRowDelaysNoOther: what a stranger has locked is ErrBusy at once, alone
// and in a batch, for Renew and for Release.
func TestBusyRowDelaysNoOther(t *testing.T) {
	t.Parallel()
	s, pool := fresh(t)
	grants := []store.Grant{hold(t, s, request("c")), hold(t, s, request("b")), hold(t, s, request("a"))}
	gone := grants[0]
	gone.Name, gone.Attempt = "gone", store.NewAttempt()
	unlock := lockRow(t, pool, "b")
	check := func(what string, ask func(context.Context, []store.Grant) ([]store.Result, error)) {
		t.Helper()
		for _, batch := range [][]store.Grant{grants[1:2], append([]store.Grant{gone}, grants...)} {
			for i := range batch {
				batch[i].Attempt = store.NewAttempt()
			}
			results, err := ask(bounded(t), batch)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			for i, r := range results {
				want := map[string]error{"b": store.ErrBusy, "gone": store.ErrMissing}[batch[i].Name]
				if !errors.Is(r.Err, want) {
					t.Errorf("%s of %q: got error %v, want %v", what, batch[i].Name, r.Err, want)
				}
				if r.Err == nil {
					for j := range grants {
						if grants[j].Name == batch[i].Name {
							grants[j].Known = append(grants[j].Known, batch[i].Attempt)
						}
					}
				}
			}
		}
	}
	check("Renew", s.Renew)
	check("Release", s.Release)
	unlock()
	grants[1].Attempt = store.NewAttempt()
	if results, err := s.Renew(bounded(t), grants[1:2]); err != nil || results[0].Err != nil {
		t.Errorf("renewal after the stranger left: %v, %v", err, results)
	}
}

// TestGrantIsSynchronous: a grant raises synchronous_commit for its own
// transaction, and only raises it.
func TestGrantIsSynchronous(t *testing.T) {
	t.Parallel()
	_, pool := fresh(t)
	for set, want := range map[string]string{"off": "on", "local": "on", "remote_write": "on", "on": "on", "remote_apply": "remote_apply"} {
		for _, operation := range []string{
			"tenure_acquire('a', 'h', 1000000, 'x', '', 0, '', 0, '', 0, '')",
			"tenure_renew('{a}', '{1}', '{1000000}', '{y}', '{x}')",
			"tenure_release('{a}', '{1}', '{z}', '{y}', '{\"\"}', 0)",
		} {
			tx := begin(t, pool, pgx.ReadCommitted)
			exec(t, tx, "SET LOCAL synchronous_commit = "+set)
			exec(t, tx, "SELECT * FROM "+operation)
			var got string
			if err := tx.QueryRow(bounded(t), "SHOW synchronous_commit").Scan(&got); err != nil {
				t.Fatal(err)
			}
			if got != want {
				t.Errorf("synchronous_commit %s: %s commits with %s, want %s", set, operation, got, want)
			}
			if err := tx.Rollback(bounded(t)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestDefaultsDoNotMatter: the settings of a database that change what
// statements mean change nothing here.
func TestDefaultsDoNotMatter(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{
		"default_transaction_isolation = 'serializable'", "standard_conforming_strings = off", "bytea_output = 'escape'",
		"search_path = ''", "DateStyle = 'German'", "TimeZone = 'Asia/Kolkata'", "TimeZone = 'America/St_Johns'", "array_nulls = off",
	} {
		t.Run(strings.NewReplacer(" ", "", "'", "", "/", "_").Replace(setting), func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			admin := openPool(t, url)
			if err := open(t, admin, postgres.Config{}).Migrate(bounded(t)); err != nil {
				t.Fatal(err)
			}
			exec(t, admin, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET "+strings.ReplaceAll(setting, "'", "''")+"', current_database()); END $$")
			s := open(t, openPool(t, url), postgres.Config{TakeoverWait: limit})
			req := request("null") // not the NULL of an array
			req.Meta = map[string]string{"quote": `a'b"c\d{e},%`, "é": "\u202e\n$$"}
			g := hold(t, s, req)

			// A wait behind another transaction must end in a fresh look.
			tx := begin(t, admin, pgx.ReadCommitted)
			exec(t, tx, "UPDATE public.tenure_lease SET why = 'x' WHERE name = 'null'")
			revoked := make(chan error, 1)
			why := `it's "odd" \ $$ ☃`
			go func() {
				revoked <- s.Revoke(context.Background(), "null", g.Token, store.Revocation{Why: why, By: "ann", Now: true})
			}()
			blocked(t, admin, "tenure_revoke")
			if err := tx.Commit(bounded(t)); err != nil {
				t.Fatal(err)
			}
			if err := <-revoked; err != nil {
				t.Fatalf("revoke after a wait: %v", err)
			}
			rec, err := s.Get(bounded(t), "null")
			if err != nil {
				t.Fatal(err)
			}
			if rec.Why != why || rec.RevokedBy != "ann" || rec.Status != store.Released {
				t.Errorf("got reason %q by %q, status %s, want %q", rec.Why, rec.RevokedBy, rec.Status, why)
			}
			for k, v := range req.Meta {
				if rec.Meta[k] != v {
					t.Errorf("meta %q: got %q, want %q", k, rec.Meta[k], v)
				}
			}
			if off := time.Since(rec.AcquiredAt); off < -time.Minute || off > time.Minute {
				t.Errorf("acquired at %s, %s ago by this host's clock", rec.AcquiredAt, off)
			}
		})
	}
}

// TestC34ExpiryAfterTheWait: the term lives a full TTL from after the wait for
// the row, whatever the time zone of the session.
func TestC34ExpiryAfterTheWait(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"Asia/Kolkata", "America/St_Johns"} {
		t.Run(strings.ReplaceAll(zone, "/", "_"), func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			admin := openPool(t, url)
			s := open(t, openPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["timezone"] = zone }), postgres.Config{TakeoverWait: limit})
			if err := s.Migrate(bounded(t)); err != nil {
				t.Fatal(err)
			}
			old := request("job")
			old.TTL = 50 * time.Millisecond
			hold(t, s, old)
			eventually(t, "the term has lapsed", func() bool {
				rec, err := s.Get(bounded(t), "job")
				return err == nil && rec.Status == store.Lapsed
			})
			unlock := lockRow(t, admin, "job")
			type answer struct {
				rec store.Record
				err error
			}
			answers := make(chan answer, 1)
			req := request("job")
			req.TTL = 2 * time.Second
			go func() {
				rec, err := s.Acquire(context.Background(), req)
				answers <- answer{rec, err}
			}()
			blocked(t, admin, "tenure_acquire")
			var released time.Time
			if err := admin.QueryRow(bounded(t), "SELECT clock_timestamp()").Scan(&released); err != nil {
				t.Fatal(err)
			}
			unlock()
			a := <-answers
			if a.err != nil {
				t.Fatal(a.err)
			}
			if a.rec.AcquiredAt.Before(released) || a.rec.ExpiresAt.Sub(a.rec.AcquiredAt) != req.TTL {
				t.Errorf("term from %s to %s, row was free at %s, want %s from after that", a.rec.AcquiredAt, a.rec.ExpiresAt, released, req.TTL)
			}
			var shown time.Time
			if err := admin.QueryRow(bounded(t), "SELECT expires_at FROM tenure_status").Scan(&shown); err != nil || !shown.Equal(a.rec.ExpiresAt) {
				t.Errorf("the view shows expiry %s, error %v, want %s", shown, err, a.rec.ExpiresAt)
			}
		})
	}
}

// TestC04DeadConnection: a renewal that ran into a dead connection is followed
// by one on a fresh connection, whatever has become of the pool.
func TestC04DeadConnection(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	admin := openPool(t, url)
	proxy, err := storetest.NewProxy("tcp", fmt.Sprintf("%s:%d", admin.Config().ConnConfig.Host, admin.Config().ConnConfig.Port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	s := open(t, openPool(t, url, func(c *pgxpool.Config) {
		var port uint16
		if _, err := fmt.Sscanf(proxy.Addr(), "127.0.0.1:%d", &port); err != nil {
			t.Fatal(err)
		}
		c.ConnConfig.Port, c.MaxConns = port, 2
	}), postgres.Config{})
	if err := s.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	grants := []store.Grant{hold(t, s, request("job"))}
	renewAll(t, s, grants)
	proxy.HoldExisting()
	grants[0].Attempt = store.NewAttempt()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.Renew(ctx, grants); !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("renewal on a dead connection: got error %v, want one matching %q", err, store.ErrUnavailable)
	}
	grants[0].Known = append(grants[0].Known, grants[0].Attempt)
	renewAll(t, s, grants)
	// The pool's connections are dead too; each is used once more at most.
	failures := 0
	eventually(t, "the pool has live connections only", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := s.Get(ctx, "job")
		if err != nil {
			failures++
		}
		return err == nil
	})
	if failures > 2 {
		t.Errorf("%d requests failed on a pool of 2, want 2 at most", failures)
	}
}

// TestRenewWithoutThePool: an exhausted pool costs no term.
func TestRenewWithoutThePool(t *testing.T) {
	t.Parallel()
	pool := openPool(t, pgtest.Database(t), func(c *pgxpool.Config) { c.MaxConns = 1 })
	s := open(t, pool, postgres.Config{})
	if err := s.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	grants := []store.Grant{hold(t, s, request("job"))}
	conn, err := pool.Acquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	renewAll(t, s, grants)
}

// TestCloseLeavesThePool: Close ends the store's own connections only.
func TestCloseLeavesThePool(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool, admin := openPool(t, url), openPool(t, url)
	s := open(t, pool, postgres.Config{})
	if err := s.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	renewAll(t, s, []store.Grant{hold(t, s, request("job"))})
	events, err := s.Watch(context.Background(), "job") // so that only Close can end it
	if err != nil {
		t.Fatal(err)
	}
	own := func() (n int) {
		if err := admin.QueryRow(bounded(t), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'tenure %'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := own(); n != 2 {
		t.Errorf("got %d connections of the store's own, want 2", n)
	}
	s.Close()
	if _, open := <-events; open {
		t.Error("got an event after Close, want the channel closed")
	}
	eventually(t, "the store's own connections end", func() bool { return own() == 0 })
	if err := pool.Ping(bounded(t)); err != nil {
		t.Errorf("the caller's pool after Close: %v", err)
	}
}

// TestFloorMeetsNewNames: of a floor for all and a new name, one sees the other.
func TestFloorMeetsNewNames(t *testing.T) {
	t.Parallel()
	s, _ := fresh(t, many)
	var group sync.WaitGroup
	const rounds = 20
	for i := range rounds {
		floor := fence.Token(1000 * (i + 1))
		records := make([]store.Record, 8)
		for j := range records {
			group.Go(func() {
				var err error
				if records[j], err = s.Acquire(bounded(t), request(fmt.Sprintf("r%d/n%d", i, j))); err != nil {
					t.Error(err)
				}
			})
		}
		group.Go(func() {
			if err := s.RaiseFloor(bounded(t), "", floor); err != nil {
				t.Error(err)
			}
		})
		group.Wait()
		for _, rec := range records {
			now, err := s.Get(bounded(t), rec.Name)
			if err != nil {
				t.Fatal(err)
			}
			if now.Floor != floor || (now.Token <= floor) != now.Revoked {
				t.Errorf("%q: token %s, floor %s, revoked %t after the floor was raised to %s", rec.Name, now.Token, now.Floor, now.Revoked, floor)
			}
		}
	}
}

// TestOneWinner: contenders for new and for lapsed names, over several clients.
func TestOneWinner(t *testing.T) {
	t.Parallel()
	s, pool := fresh(t, many)
	other := open(t, pool, postgres.Config{})
	for round := range 10 {
		name := fmt.Sprint("job/", round/2) // each twice: new, then released
		var group sync.WaitGroup
		var mu sync.Mutex
		var won []store.Grant
		for i := range 30 {
			group.Go(func() {
				st := []*postgres.Store{s, other}[i%2]
				req := request(name)
				rec, err := st.Acquire(bounded(t), req)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					won = append(won, store.Grant{Name: name, Token: rec.Token, Attempt: store.NewAttempt(), Known: []store.Attempt{req.Attempt}})
				case !errors.Is(err, store.ErrHeld):
					t.Error(err)
				}
			})
		}
		group.Wait()
		if len(won) != 1 || won[0].Token != fence.Token(round%2+1) {
			t.Fatalf("round %d: got winners %v, want one with token %d", round, won, round%2+1)
		}
		if results, err := s.Release(bounded(t), won); err != nil || results[0].Err != nil {
			t.Fatal(err, results)
		}
	}
}

// TestReleaseMany: more terms than one statement takes.
func TestReleaseMany(t *testing.T) {
	t.Parallel()
	s, pool := fresh(t)
	const n = 2500
	attempt := store.NewAttempt()
	exec(t, pool, `INSERT INTO tenure_lease (name, token, holder, attempt, ttl_us, acquired_us, renewed_us, expires_us)
		SELECT 'job/' || i, 1, 'host', $1, 60000000, tenure_clock(), tenure_clock(), tenure_clock() + 60000000 FROM generate_series(1, $2) i`, attempt.String(), n)
	grants := make([]store.Grant, n)
	for i := range grants {
		grants[i] = store.Grant{Name: fmt.Sprint("job/", i+1), Token: 1, Attempt: store.NewAttempt(), Known: []store.Attempt{attempt}}
	}
	results, err := s.Release(bounded(t), grants)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		if r.Err != nil || r.Record.Name != grants[i].Name || r.Record.Status != store.Released {
			t.Fatalf("release %d: got %+v", i, r)
		}
	}
	listed := 0
	last := ""
	for rec, err := range s.List(bounded(t), "job/") {
		if err != nil {
			t.Fatal(err)
		}
		if rec.Name <= last {
			t.Fatalf("%q is listed after %q", rec.Name, last)
		}
		last = rec.Name
		listed++
	}
	if listed != n {
		t.Errorf("listed %d records, want %d", listed, n)
	}
}

// TestHistoryIsBounded: terms are kept for 30 days, the newest 100 for longer, and no
// more than 10,000.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	s, pool := fresh(t)
	g := hold(t, s, request("job"))
	for range 109 {
		g = hold(t, s, replacing(g))
	}
	check := func(what string, n int, newest, oldest fence.Token) {
		t.Helper()
		var tokens []fence.Token
		for term, err := range s.History(bounded(t), "job") {
			if err != nil {
				t.Fatal(err)
			}
			tokens = append(tokens, term.Token)
		}
		if len(tokens) != n || tokens[0] != newest || tokens[n-1] != oldest {
			t.Errorf("%s: got %d terms from %s to %s, want %d from %s to %s", what, len(tokens), tokens[0], tokens[len(tokens)-1], n, newest, oldest)
		}
	}
	exec := func(statement string) {
		t.Helper()
		if _, err := pool.Exec(bounded(t), statement); err != nil {
			t.Fatal(err)
		}
	}
	check("young terms", 110, 110, 1)
	exec("UPDATE tenure_term SET ended_us = ended_us - 31 * 86400000000 WHERE token <= 5")
	g = hold(t, s, replacing(g))
	check("five are old", 106, 111, 6)
	exec("UPDATE tenure_term SET ended_us = ended_us - 31 * 86400000000")
	g = hold(t, s, replacing(g))
	check("all are old", 100, 112, 13)
	exec("INSERT INTO tenure_term SELECT 'job', n, 'h', 1, (extract(epoch FROM now()) * 1000000)::bigint, 'released', '' FROM generate_series(200, 10299) n")
	if _, err := s.Release(bounded(t), []store.Grant{g}); err != nil {
		t.Fatal(err)
	}
	if err := s.RaiseFloor(bounded(t), "job", 10_299); err != nil {
		t.Fatal(err)
	}
	g = hold(t, s, request("job"))
	hold(t, s, replacing(g))
	check("many are young", 10_000, 10_301, 302)
}
