//go:build linux

package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store/postgres"
	"github.com/tenurehq/tenure/store/storetest"
)

const (
	tortureLease      = "torture"
	tortureContenders = 8
	tortureTTL        = 1500 * time.Millisecond
)

// The tables that the contenders write to, and those that see what came of it.
// pg_xact_commit_timestamp then tells when a row's transaction was committed.
const tortureTables = `
	CREATE TABLE marked (token bigint NOT NULL, n bigint NOT NULL);
	INSERT INTO marked VALUES (0, 0);
	CREATE TABLE marked_history (n bigint PRIMARY KEY, token bigint NOT NULL, id text NOT NULL);
	CREATE TABLE joined_history (token bigint NOT NULL, id text NOT NULL);
	CREATE TABLE audit (seq bigserial PRIMARY KEY, token bigint NOT NULL, attempt text NOT NULL, acquired_us bigint NOT NULL, renewed_us bigint NOT NULL, ended_us bigint NOT NULL);
	CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO public.audit (token, attempt, acquired_us, renewed_us, ended_us) VALUES (NEW.token, NEW.attempt, NEW.acquired_us, NEW.renewed_us, NEW.ended_us);
		RETURN NULL;
	END $$;
	CREATE TRIGGER audit AFTER INSERT OR UPDATE ON tenure_lease FOR EACH ROW WHEN (NEW.token > 0) EXECUTE FUNCTION audit()`

// TestTorture lets processes contend for one lease in a real PostgreSQL while
// they are stopped, killed and cut off, and the server is killed too, and then
// judges the history: no two act at once, tokens grow, no stale write was
// accepted, nothing acknowledged is missing, and the whole is linearizable.
//
// TENURE_TORTURE_TERMS (default 1000) says for how many terms, of which so many
// of 100 are quick ones (TENURE_TORTURE_QUICK; by default the more, the longer
// the run is), and TENURE_TORTURE_SEED repeats the faults of a run. Faults come
// at a rate in time. It does not run in parallel with other tests, which measure time.
func TestTorture(t *testing.T) {
	terms := environmentNumber(t, "TENURE_TORTURE_TERMS", 1000)
	quick := environmentNumber(t, "TENURE_TORTURE_QUICK", quickShare(terms))
	seed := environmentNumber(t, "TENURE_TORTURE_SEED", rand.Uint64N(1_000_000))
	faults := max(200, terms/50)
	t.Logf("TENURE_TORTURE_SEED=%d TENURE_TORTURE_TERMS=%d TENURE_TORTURE_QUICK=%d", seed, terms, quick)
	began := time.Now()
	tt := newTorture(t, seed, int(quick))
	tt.run(terms, faults)
	h := tt.history()
	problems, figures := h.check()
	t.Logf("seed %d: %d terms, %s; %s in %s", seed, len(h.grants), tt.faultCounts(), figures, time.Since(began).Round(time.Second))
	if uint64(len(h.grants)) < terms {
		t.Errorf("got %d terms in the history, want at least %d", len(h.grants), terms)
	}
	for i, p := range problems {
		if i == 20 {
			t.Errorf("and %d more", len(problems)-i)
			break
		}
		t.Error(p)
	}
}

// quickShare returns how many of 100 terms are quick by default: about 800 paced
// ones are left, and not less than three in a hundred.
func quickShare(terms uint64) uint64 {
	return 100 - min(max(100*800/max(terms, 1), 3), 80)
}

func environmentNumber(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// torture is one run: the server, its contenders, each behind a network of its
// own, and what befalls them.
type torture struct {
	t      *testing.T
	random *rand.Rand
	quick  int // so many of 100 terms are
	dir    string
	server *pgtest.Server
	url    string
	pool   *pgxpool.Pool // past the proxies
	slots  [tortureContenders]*slot
	faults map[string]int
	under  sync.WaitGroup // faults that go on
	offset time.Duration  // of the wall clock from the boot clock
}

// slot is a place for a contender, and for the one that follows it if it is killed.
type slot struct {
	number, lives int
	proxy         *storetest.Proxy
	url           string // through it
	process       *process
	// troubled: a fault goes on, to which the rest then belongs. Only fault sets it.
	troubled atomic.Bool
}

func newTorture(t *testing.T, seed uint64, quick int) *torture {
	t.Helper()
	tt := &torture{t: t, random: rand.New(rand.NewPCG(seed, 0)), quick: quick, faults: map[string]int{}}
	now := clock.Now()
	tt.offset = now.Wall - now.Boot
	tt.server = pgtest.Start(t, pgtest.Options{Settings: []string{"max_connections=200", "track_commit_timestamp=on", "idle_in_transaction_session_timeout=10s"}})
	tt.url = tt.server.Database(t)
	var err error
	if tt.dir, err = os.MkdirTemp("", "tenure-torture"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the journals are in %s", tt.dir)
			return
		}
		_ = os.RemoveAll(tt.dir)
	})
	tt.pool = openPool(t, tt.url)
	st, err := postgres.New(tt.pool, postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	if err := st.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := tt.pool.Exec(t.Context(), tortureTables); err != nil {
		t.Fatal(err)
	}
	for i := range tt.slots {
		proxy := newProxy(t, tt.server)
		tt.slots[i] = &slot{number: i, proxy: proxy, url: through(t, tt.url, proxy)}
		tt.begin(tt.slots[i])
	}
	return tt
}

// begin starts the next contender of a slot.
func (tt *torture) begin(s *slot) {
	s.lives++
	p, err := spawn("contender", true, contenderConfig{
		URL:     s.url,
		Lease:   tortureLease,
		Journal: filepath.Join(tt.dir, fmt.Sprintf("%d.%d.jsonl", s.number, s.lives)),
		TTL:     tortureTTL,
		Seed:    uint64(s.number*100_000 + s.lives),
		Quick:   tt.quick,
	})
	if err != nil {
		tt.t.Error(err)
		return
	}
	s.process = p
	tt.t.Cleanup(p.kill)
}

// run makes faults until there were enough of them and of terms, then lets all
// that goes on come to its end.
func (tt *torture) run(terms, faults uint64) {
	const (
		stuck = 90 * time.Second
		tell  = 30 * time.Second
		calm  = 700 * time.Millisecond // between two faults, on average
	)
	began, told, moved := time.Now(), time.Now(), time.Now()
	last, before := uint64(0), uint64(0)
	for {
		n, _ := tt.current()
		if n > last {
			last, moved = n, time.Now()
		}
		total := uint64(0)
		for _, count := range tt.faults {
			total += uint64(count)
		}
		if last >= terms && total >= faults {
			break
		}
		if time.Since(moved) > stuck {
			tt.t.Errorf("no new term for %s", stuck)
			break
		}
		if d := time.Since(told); d > tell {
			tt.t.Logf("after %s: %d of %d terms, %d faults; %.1f terms a second, lately %.1f", time.Since(began).Round(time.Second),
				last, terms, total, float64(last)/time.Since(began).Seconds(), float64(last-before)/d.Seconds())
			told, before = time.Now(), last
		}
		select {
		case <-time.After(time.Duration(tt.random.ExpFloat64() * float64(calm))):
		case <-tt.t.Context().Done():
			tt.t.Fatal(context.Cause(tt.t.Context()))
		}
		tt.fault()
	}
	tt.under.Wait()
	var all sync.WaitGroup
	for _, s := range tt.slots {
		all.Go(func() {
			if err := s.process.stop(30 * time.Second); err != nil {
				tt.t.Errorf("contender %d-%d: %v", s.number, s.lives, err)
			}
		})
	}
	all.Wait()
	for _, s := range tt.slots {
		if err := s.proxy.Close(); err != nil {
			tt.t.Error(err)
		}
	}
}

// current returns how many terms there were and the process that holds the
// present one; 0 if nobody does, or the server is down.
func (tt *torture) current() (terms uint64, pid int) {
	ctx, cancel := context.WithTimeout(tt.t.Context(), 5*time.Second)
	defer cancel()
	var holder string
	err := tt.pool.QueryRow(ctx, "SELECT token, CASE WHEN ended_us = 0 THEN holder ELSE '' END FROM tenure_lease WHERE name = $1", tortureLease).Scan(&terms, &holder)
	if err != nil {
		return 0, 0
	}
	_, run, _ := strings.Cut(holder, "/")
	digits, _, _ := strings.Cut(run, "-")
	pid, _ = strconv.Atoi(digits)
	return terms, pid
}

// victim returns a slot that no fault has at present, more often than not the
// holder's; nil if there is none.
func (tt *torture) victim() *slot {
	_, holder := tt.current()
	preferHolder := tt.random.IntN(10) < 6
	var found *slot
	for _, i := range tt.random.Perm(len(tt.slots)) {
		s := tt.slots[i]
		if s.troubled.Load() {
			continue
		}
		if found = s; !preferHolder || s.process.pid() == holder {
			break
		}
	}
	if found != nil {
		found.troubled.Store(true)
	}
	return found
}

// fault makes one.
func (tt *torture) fault() {
	between := func(low, high float64) time.Duration {
		return time.Duration((low + tt.random.Float64()*(high-low)) * float64(tortureTTL))
	}
	choice := tt.random.IntN(100)
	if choice < 3 {
		tt.faults["server killed"]++
		tt.server.Kill()
		tt.server.Restart(tt.t)
		return
	}
	s := tt.victim()
	if s == nil {
		return
	}
	begin := func(name string, fault func()) {
		tt.faults[name]++
		tt.under.Go(func() {
			defer s.troubled.Store(false)
			fault()
		})
	}
	after := tt.random.IntN(2) == 0 // what was held arrives late, or never
	heal := func() {
		if after {
			s.proxy.Reset()
		}
		s.proxy.Pass()
	}
	switch d := between(0.05, 0.6); {
	case choice < 30:
		begin("stopped shortly", func() { tt.halt(s, d) })
	case choice < 42:
		d = between(1, 2)
		begin("stopped longer than the TTL", func() { tt.halt(s, d) })
	case choice < 55:
		begin("killed", func() {
			s.process.kill()
			tt.begin(s)
		})
	case choice < 72:
		begin("connections cut", s.proxy.Reset)
	case choice < 80:
		begin("connections dead", func() {
			s.proxy.HoldExisting()
			tt.wait(d)
			heal()
		})
	case choice < 85:
		d = between(0.5, 1.5)
		begin("network dead", func() {
			s.proxy.HoldExisting()
			s.proxy.HoldNew()
			tt.wait(d)
			heal()
		})
	case choice < 94:
		begin("replies lost", func() {
			s.proxy.HoldReplies()
			tt.wait(d)
			heal()
		})
	default:
		begin("network slow", func() {
			s.proxy.Delay(d / 10)
			tt.wait(d)
			s.proxy.Pass()
		})
	}
}

func (tt *torture) halt(s *slot, d time.Duration) {
	s.process.signal(syscall.SIGSTOP)
	tt.wait(d)
	s.process.signal(syscall.SIGCONT)
}

func (tt *torture) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-tt.t.Context().Done():
	}
}

func (tt *torture) faultCounts() string {
	total, parts := 0, []string{}
	for _, name := range slices.Sorted(maps.Keys(tt.faults)) {
		total += tt.faults[name]
		parts = append(parts, fmt.Sprintf("%s %d", name, tt.faults[name]))
	}
	return fmt.Sprintf("%d faults (%s)", total, strings.Join(parts, ", "))
}

// newProxy returns a network in front of a server.
func newProxy(t *testing.T, server *pgtest.Server) *storetest.Proxy {
	t.Helper()
	proxy, err := storetest.NewProxy("tcp", server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	return proxy
}

// through returns the URL of a database by way of the proxy.
func through(t *testing.T, database string, proxy *storetest.Proxy) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = proxy.Addr()
	return u.String()
}

// testName is what the server knows the connections of openPool by.
const testName = "conformance test"

// openPool opens a pool that is closed when the test ends.
func openPool(t *testing.T, database string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(database)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = max(cfg.MaxConns, 8)
	cfg.ConnConfig.RuntimeParams["application_name"] = testName
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// eventually polls until done, for at most half a minute.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	const limit = 30 * time.Second
	for start := time.Now(); !done(); {
		if time.Since(start) > limit {
			t.Fatalf("still not so after %s: %s", limit, what)
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal(context.Cause(t.Context()))
		}
	}
}

// history reads what the processes noted and what the server knows, once
// nothing can change it any more.
func (tt *torture) history() *history {
	t := tt.t
	t.Helper()
	eventually(t, "the contenders' connections are gone", func() bool {
		var n int
		err := tt.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND backend_type = 'client backend' AND application_name <> $1`, testName).Scan(&n)
		return err == nil && n == 0
	})
	now := clock.Now()
	h := &history{offset: tt.offset, slew: 2*time.Millisecond + (now.Wall - now.Boot - tt.offset).Abs()}
	paths, err := filepath.Glob(filepath.Join(tt.dir, "*.jsonl"))
	if err == nil {
		err = h.readJournals(paths)
	}
	err = errors.Join(err, h.readTables(t.Context(), tt.pool))
	if err != nil {
		t.Fatal(err)
	}
	return h
}
