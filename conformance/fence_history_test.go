//go:build linux

package conformance_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
)

// What is written under a guard, and each grant, whoever makes it. The server's
// commit timestamps of their transactions order both.
const guardedTables = `
	CREATE TABLE written (name text NOT NULL, token bigint NOT NULL);
	CREATE TABLE granted (name text NOT NULL, token bigint NOT NULL);
	CREATE FUNCTION note_grant() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO public.granted VALUES (NEW.name, NEW.token); RETURN NULL;
	END $$;
	CREATE TRIGGER note_grant AFTER UPDATE ON tenure_lease FOR EACH ROW WHEN (NEW.token <> OLD.token) EXECUTE FUNCTION note_grant();
	CREATE TABLE account (name text PRIMARY KEY, n int NOT NULL DEFAULT 0);
	CREATE FUNCTION note_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO public.written VALUES (NEW.name, NEW.token); RETURN NULL;
	END $$`

// moment is a place in a guarded transaction at which others may act.
type moment int

const (
	beforeBegin moment = iota
	beforeSnapshot
	beforeGuard
	beforeWrite
	beforeCommit
	moments
)

// termEnd is what befalls the term. The last step of each is a grant of the next.
type termEnd struct {
	name  string
	steps []func(context.Context, *guardBed, store.Grant) error
}

var termEnds = []termEnd{
	{"replace", steps((*guardBed).replace)},
	{"release", steps((*guardBed).release, (*guardBed).acquire)},
	{"revoke", steps((*guardBed).revoke, (*guardBed).release, (*guardBed).acquire)},
	{"revoke at once", steps((*guardBed).revokeNow, (*guardBed).acquire)},
	// Whoever changes the token is to be kept out, also a restore or another program.
	{"update", steps((*guardBed).update)},
	{"upsert", steps((*guardBed).upsert)},
}

func steps(list ...func(*guardBed, context.Context, store.Grant) error) (all []func(context.Context, *guardBed, store.Grant) error) {
	for _, f := range list {
		all = append(all, func(ctx context.Context, b *guardBed, g store.Grant) error { return f(b, ctx, g) })
	}
	return all
}

// guardedTx is a guarded transaction of one history.
type guardedTx struct {
	Name      string
	Token     fence.Token
	Level     pgx.TxIsoLevel
	Snapshot  bool // it reads before the guard
	Savepoint savepoint
	Table     bool // by tenure_fence and a guarded table, not by Guard and an insert
}

type savepoint string

const (
	noSavepoint savepoint = "none"
	workUndone  savepoint = "work undone" // some work after the guard is rolled back
	guardKept   savepoint = "guard kept"  // the guard stands in one that is released
	workIn      savepoint = "work in one"
	// The guard stands in one that is rolled back. Guard cannot know; a guarded
	// table does, and refuses what follows.
	guardUndone savepoint = "guard undone"
)

// outcome of a guarded transaction.
type outcome string

const (
	committed  outcome = "committed"
	stale      outcome = "stale"
	serialized outcome = "serialization failure"
	nothing    outcome = "zero rows"
	cutOff     outcome = "connection lost"
)

// run plays the transaction and calls at when it reaches a moment.
func (x *guardedTx) run(ctx context.Context, conn *pgx.Conn, at func(moment)) (outcome, error) {
	at(beforeBegin)
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: x.Level})
	if err != nil {
		return "", err
	}
	result, err := x.write(ctx, tx, at)
	if err == nil && result == "" {
		at(beforeCommit)
		if err = tx.Commit(ctx); err == nil {
			return committed, nil
		}
	}
	if rollback := tx.Rollback(ctx); result != "" && rollback == nil {
		return result, nil
	}
	code := ""
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		code = pg.Code
	}
	switch {
	case errors.Is(err, fence.ErrStale), code == "TN001":
		return stale, nil
	case code == "40001":
		return serialized, nil
	case code == "57P01", conn.IsClosed():
		return cutOff, nil
	}
	return "", err
}

func (x *guardedTx) write(ctx context.Context, tx pgx.Tx, at func(moment)) (outcome, error) {
	statement := func(text string) error {
		_, err := tx.Exec(ctx, text)
		return err
	}
	at(beforeSnapshot)
	if x.Snapshot {
		if err := statement("SELECT count(*) FROM account WHERE name = 'none'"); err != nil {
			return "", err
		}
	}
	at(beforeGuard)
	if x.Savepoint == guardKept || x.Savepoint == guardUndone {
		if err := statement("SAVEPOINT s"); err != nil {
			return "", err
		}
	}
	var err error
	if x.Table {
		_, err = tx.Exec(ctx, "SELECT tenure_fence($1, $2)", x.Name, int64(x.Token))
	} else {
		err = postgres.Guard(ctx, tx, "", x.Name, x.Token)
	}
	if err == nil {
		switch x.Savepoint {
		case guardKept:
			err = statement("RELEASE s")
		case guardUndone:
			err = statement("ROLLBACK TO s")
		case workUndone:
			err = statement("SAVEPOINT s; UPDATE account SET n = -1 WHERE name = '" + x.Name + "'; ROLLBACK TO s")
		case workIn:
			err = statement("SAVEPOINT s")
		}
	}
	if err != nil {
		return "", err
	}
	at(beforeWrite)
	if !x.Table {
		_, err = tx.Exec(ctx, "INSERT INTO written VALUES ($1, $2)", x.Name, int64(x.Token))
	} else {
		var tag pgconn.CommandTag
		if tag, err = tx.Exec(ctx, "UPDATE account SET n = n + 1 WHERE name = $1", x.Name); err == nil && tag.RowsAffected() == 0 {
			return nothing, nil
		}
	}
	if err == nil && x.Savepoint == workIn {
		err = statement("RELEASE s")
	}
	return "", err
}

func randomTransaction(random *rand.Rand, g store.Grant) *guardedTx {
	x := &guardedTx{
		Name: g.Name, Token: g.Token, Snapshot: random.IntN(2) == 0, Table: random.IntN(3) == 0,
		Level:     []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}[random.IntN(3)],
		Savepoint: []savepoint{noSavepoint, workUndone, guardKept, workIn, guardUndone}[random.IntN(5)],
	}
	if x.Savepoint == guardUndone {
		x.Table = true
	}
	return x
}

// guardBed is a server and what happens on it.
type guardBed struct {
	t     *testing.T
	url   string
	pool  *pgxpool.Pool
	st    *postgres.Store // that waits for guarded transactions
	hasty *postgres.Store // that gives up soon
	next  atomic.Int64
	mu    sync.Mutex
	count map[string]int
}

func newGuardBed(t *testing.T) *guardBed {
	t.Helper()
	server := pgtest.Start(t, pgtest.Options{Settings: []string{"max_connections=100", "track_commit_timestamp=on", "fsync=off"}})
	b := &guardBed{t: t, url: server.Database(t), count: map[string]int{}}
	b.pool = openPool(t, b.url+"&pool_max_conns=40")
	b.st, b.hasty = b.store(20*time.Second), b.store(25*time.Millisecond)
	if err := b.st.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.exec(guardedTables)
	for _, plan := range []func() ([]postgres.FenceStep, error){
		func() ([]postgres.FenceStep, error) { return b.st.PlanFence(t.Context()) },
		func() ([]postgres.FenceStep, error) {
			return b.st.PlanGuard(t.Context(), postgres.TableGuard{Table: "account", AddColumns: true})
		},
	} {
		list, err := plan()
		if err == nil {
			err = b.st.RunFence(t.Context(), list)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	b.exec("CREATE TRIGGER note_write AFTER UPDATE ON account FOR EACH ROW EXECUTE FUNCTION note_write()")
	return b
}

func (b *guardBed) store(wait time.Duration) *postgres.Store {
	st, err := postgres.New(b.pool, postgres.Config{TakeoverWait: wait})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(st.Close)
	return st
}

func (b *guardBed) exec(statement string) {
	b.t.Helper()
	if _, err := b.pool.Exec(b.t.Context(), statement); err != nil {
		b.t.Fatalf("%s: %v", statement, err)
	}
}

func (b *guardBed) tell(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count[what]++
}

// begin starts the first term of a new name.
func (b *guardBed) begin(ctx context.Context) (store.Grant, error) {
	req := store.Request{Name: fmt.Sprintf("h%06d", b.next.Add(1)), Holder: "a/1", TTL: time.Hour, Attempt: store.NewAttempt()}
	rec, err := b.st.Acquire(ctx, req)
	if err != nil {
		return store.Grant{}, err
	}
	_, err = b.pool.Exec(ctx, "INSERT INTO account (name, owner) VALUES ($1, $1)", req.Name)
	return store.Grant{Name: req.Name, Token: rec.Token, TTL: req.TTL, Attempt: store.NewAttempt(), Known: []store.Attempt{req.Attempt}}, err
}

func guardRequest(g store.Grant) store.Request {
	return store.Request{Name: g.Name, Holder: "b/1", TTL: g.TTL, Attempt: store.NewAttempt()}
}

func (b *guardBed) acquire(ctx context.Context, g store.Grant) error {
	_, err := b.st.Acquire(ctx, guardRequest(g))
	return err
}

func (b *guardBed) replace(ctx context.Context, g store.Grant) error {
	req := guardRequest(g)
	req.Replace = &g
	_, err := b.st.Acquire(ctx, req)
	return err
}

func (b *guardBed) release(ctx context.Context, g store.Grant) error {
	results, err := b.st.Release(ctx, []store.Grant{g})
	if err == nil {
		err = results[0].Err
	}
	return err
}

func (b *guardBed) revoke(ctx context.Context, g store.Grant) error {
	return b.st.Revoke(ctx, g.Name, g.Token, store.Revocation{Why: "test", By: "test"})
}

func (b *guardBed) revokeNow(ctx context.Context, g store.Grant) error {
	return b.st.Revoke(ctx, g.Name, g.Token, store.Revocation{Why: "test", By: "test", Now: true})
}

func (b *guardBed) update(ctx context.Context, g store.Grant) error {
	_, err := b.pool.Exec(ctx, "UPDATE tenure_lease SET token = token + 1 WHERE name = $1", g.Name)
	return err
}

func (b *guardBed) upsert(ctx context.Context, g store.Grant) error {
	_, err := b.pool.Exec(ctx, `INSERT INTO tenure_lease AS l (name, token, attempt) VALUES ($1, 1, 'x')
		ON CONFLICT (name) DO UPDATE SET token = l.token + 1, holder = 'b/1'`, g.Name)
	return err
}

// play plays one history: a guarded transaction of the first term, with the
// changes to the term at random moments of it, and then one of the next term.
func (b *guardBed) play(ctx context.Context, conn *pgx.Conn, random *rand.Rand) error {
	g, err := b.begin(ctx)
	if err != nil {
		return err
	}
	x, c := randomTransaction(random, g), termEnds[random.IntN(len(termEnds))]
	when := make([]moment, len(c.steps))
	for i := range when {
		when[i] = moment(random.IntN(int(moments)))
	}
	slices.Sort(when)
	var reached [moments]chan struct{}
	for m := range reached {
		reached[m] = make(chan struct{})
	}
	done := make([]chan struct{}, len(c.steps))
	for i := range done {
		done[i] = make(chan struct{})
	}
	failed := make(chan error, 1)
	go func() {
		for i, step := range c.steps {
			<-reached[when[i]]
			if err := step(ctx, b, g); err != nil {
				failed <- fmt.Errorf("%s: %w", c.name, err)
				return
			}
			close(done[i])
		}
		failed <- nil
	}()
	var pause [moments]time.Duration
	for m := range pause {
		pause[m] = time.Duration(random.IntN(4000)) * time.Microsecond
	}
	arrived := moment(-1)
	at := func(m moment) {
		close(reached[m])
		arrived = m
		bound := time.After(pause[m])
		for i := range when { // a step that is in the way of the transaction waits for it
			if when[i] == m {
				select {
				case <-done[i]:
				case <-bound:
					return
				}
			}
		}
	}
	result, err := x.run(ctx, conn, at)
	for m := arrived + 1; m < moments; m++ {
		close(reached[m])
	}
	if changed := <-failed; err == nil {
		err = changed
	}
	if err != nil {
		return fmt.Errorf("%+v, %s at %v: %w", *x, c.name, when, err)
	}
	b.tell(fmt.Sprintf("%s: %s", x.Level, result))
	if result == committed && when[len(when)-1] >= beforeWrite {
		b.tell("waited for")
	}
	if x.Savepoint == guardUndone && result == committed {
		return fmt.Errorf("%+v: committed without its guard", *x)
	}
	return b.follow(ctx, conn, g)
}

// follow is a guarded write of the term after g's.
func (b *guardBed) follow(ctx context.Context, conn *pgx.Conn, g store.Grant) error {
	next := guardedTx{Name: g.Name, Token: g.Token + 1, Level: pgx.ReadCommitted, Savepoint: noSavepoint}
	if result, err := next.run(ctx, conn, func(moment) {}); err != nil || result != committed {
		return fmt.Errorf("write of the next term of %s: %s, error %w", g.Name, result, err)
	}
	return nil
}

// events are what was committed, in the order of the commits.
type guardEvent struct {
	at    time.Time
	grant bool
	name  string
	token fence.Token
}

// history reads the events. Of those with one timestamp the writes come first: a
// grant that waited for a write is committed after it.
func (b *guardBed) history() []guardEvent {
	b.t.Helper()
	rows, err := b.pool.Query(b.t.Context(), `SELECT pg_xact_commit_timestamp(xmin), false, name, token FROM written
		UNION ALL SELECT pg_xact_commit_timestamp(xmin), true, name, token FROM granted ORDER BY 1, 2`)
	if err != nil {
		b.t.Fatal(err)
	}
	events, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (e guardEvent, err error) {
		err = r.Scan(&e.at, &e.grant, &e.name, (*int64)(&e.token))
		return e, err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return events
}

// staleCommits returns the writes that were committed after the grant of a later
// token, and checks that tokens of grants grow.
func staleCommits(events []guardEvent) (problems []string) {
	current := map[string]fence.Token{}
	for _, e := range events {
		switch {
		case e.grant && e.token <= current[e.name]:
			problems = append(problems, fmt.Sprintf("%s: token %s granted after %s", e.name, e.token, current[e.name]))
		case e.grant:
			current[e.name] = e.token
		case e.token < current[e.name]:
			problems = append(problems, fmt.Sprintf("%s: write with token %s committed at %s, after the grant of %s", e.name, e.token, e.at.Format(time.StampMicro), current[e.name]))
		}
	}
	return problems
}

// runHistories plays n histories, eight at a time.
func (b *guardBed) runHistories(n int, seed uint64) {
	b.t.Helper()
	var (
		left  atomic.Int64
		group sync.WaitGroup
	)
	left.Store(int64(n))
	for worker := range 8 {
		group.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(worker)))
			conn, err := pgx.Connect(b.t.Context(), b.url)
			if err != nil {
				b.t.Error(err)
				return
			}
			defer conn.Close(context.WithoutCancel(b.t.Context()))
			for left.Add(-1) >= 0 {
				ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
				err := b.play(ctx, conn, random)
				cancel()
				if err != nil {
					b.t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
}

// TestGuardHistories plays randomised histories of guarded transactions and
// changes of their term, at every isolation level, and judges what the server
// committed in which order: no write of an older term after the grant of a later one.
//
// TENURE_FENCE_HISTORIES (default 300) says how many, TENURE_FENCE_SEED repeats
// the choices of a run.
func TestGuardHistories(t *testing.T) {
	t.Parallel()
	n := environmentNumber(t, "TENURE_FENCE_HISTORIES", 300)
	seed := environmentNumber(t, "TENURE_FENCE_SEED", rand.Uint64N(1_000_000))
	began := time.Now()
	b := newGuardBed(t)
	b.runHistories(int(n), seed)
	events := b.history()
	for _, p := range staleCommits(events) {
		t.Error(p)
	}
	t.Logf("seed %d: %d histories, %d events, %v in %s", seed, n, len(events), b.count, time.Since(began).Round(time.Second))
	for _, must := range []string{"read committed: stale", "repeatable read: serialization failure", "serializable: serialization failure", "repeatable read: stale",
		"read committed: committed", "repeatable read: committed", "serializable: committed", "read committed: zero rows", "waited for"} {
		if b.count[must] == 0 {
			t.Errorf("%s: not seen in %d histories, so they show nothing about it", must, n)
		}
	}
}

// TestGuardHistoriesNeedTheIndex: the same histories, without UNIQUE (name, token),
// hold stale commits. The guard stands on that index.
func TestGuardHistoriesNeedTheIndex(t *testing.T) {
	t.Parallel()
	b := newGuardBed(t)
	b.exec("ALTER TABLE tenure_lease DROP CONSTRAINT tenure_lease_name_token")
	b.runHistories(300, 1)
	problems := staleCommits(b.history())
	t.Logf("%d stale commits without the index", len(problems))
	if len(problems) == 0 {
		t.Error("got no stale commit without the index: either the histories or the checker miss what they look for")
	}
}

// TestStaleCommits: the checker sees what it looks for.
func TestStaleCommits(t *testing.T) {
	t.Parallel()
	write := func(token fence.Token) guardEvent { return guardEvent{name: "a", token: token} }
	grant := func(token fence.Token) guardEvent { return guardEvent{name: "a", token: token, grant: true} }
	for _, c := range []struct {
		events []guardEvent
		want   int
	}{
		{[]guardEvent{grant(1), write(1), grant(2), write(2)}, 0},
		{[]guardEvent{grant(1), grant(2), write(1)}, 1},
		{[]guardEvent{write(1), grant(3), write(2), write(1), write(3)}, 2},
		{[]guardEvent{grant(2), grant(2)}, 1},
		{[]guardEvent{grant(2), {name: "b", token: 1}}, 0},
	} {
		if got := staleCommits(c.events); len(got) != c.want {
			t.Errorf("%v: got %q, want %d problems", c.events, got, c.want)
		}
	}
}

// playGuardedWriter is a process that plays the transactions it is told on its
// input, a line each. It tells its server process and each moment, pauses there, and
// tells what came of it.
func playGuardedWriter(config []byte) error {
	var cfg struct {
		URL  string
		Seed uint64
	}
	if err := json.Unmarshal(config, &cfg); err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(cfg.Seed, 0))
	ctx := context.Background()
	var conn *pgx.Conn
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var x guardedTx
		if err := json.Unmarshal(in.Bytes(), &x); err != nil {
			return err
		}
		var err error
		if conn == nil || conn.IsClosed() {
			if conn, err = pgx.Connect(ctx, cfg.URL); err != nil {
				return err
			}
		}
		fmt.Println(conn.PgConn().PID())
		result, err := x.run(ctx, conn, func(m moment) {
			fmt.Println(int(m))
			time.Sleep(time.Duration(random.IntN(3000)) * time.Microsecond) // so that a stop may hit any moment
		})
		if err != nil {
			return err
		}
		fmt.Println(result)
	}
	return in.Err()
}

// TestGuardHistoriesOfProcesses: the writers are processes that are stopped at
// any moment of a guarded transaction. The takeover waits for a bounded time and
// then names whom it waits for; if that one's connection is ended, its write is not
// committed, and if it goes on, it is committed before the grant.
//
// TENURE_FENCE_PROCESS_HISTORIES (default 40) says how many histories.
func TestGuardHistoriesOfProcesses(t *testing.T) {
	t.Parallel()
	n := environmentNumber(t, "TENURE_FENCE_PROCESS_HISTORIES", 40)
	seed := environmentNumber(t, "TENURE_FENCE_SEED", rand.Uint64N(1_000_000))
	b := newGuardBed(t)
	var (
		left  atomic.Int64
		group sync.WaitGroup
	)
	left.Store(int64(n))
	for worker := range 4 {
		group.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(worker)))
			p, err := spawn("guarded-writer", true, map[string]any{"URL": b.url + "&application_name=guarded-writer", "Seed": random.Uint64()})
			if err != nil {
				t.Error(err)
				return
			}
			for left.Add(-1) >= 0 {
				if err := b.playProcess(p, random); err != nil {
					t.Error(err)
					break
				}
			}
			if err := p.stop(10 * time.Second); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	events := b.history()
	for _, p := range staleCommits(events) {
		t.Error(p)
	}
	t.Logf("seed %d: %d histories, %d events, %v", seed, n, len(events), b.count)
	for _, must := range []string{"named", "ended", "let go on", "free"} {
		if b.count[must] == 0 {
			t.Errorf("%s: not seen in %d histories, so they show nothing about it", must, n)
		}
	}
}

func (b *guardBed) playProcess(p *process, random *rand.Rand) error {
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	g, err := b.begin(ctx)
	if err != nil {
		return err
	}
	x := randomTransaction(random, g)
	line, err := json.Marshal(x)
	if err != nil {
		return err
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		return err
	}
	if !p.out.Scan() {
		return fmt.Errorf("writer ended: %w", p.out.Err())
	}
	pid, err := strconv.Atoi(p.out.Text())
	if err != nil {
		return err
	}
	target := strconv.Itoa(random.IntN(int(moments)))
	for p.out.Scan() && p.out.Text() != target && len(p.out.Text()) == 1 {
		continue // a moment before it
	}
	result := outcome(p.out.Text()) // if it ended before that
	select {
	case <-time.After(time.Duration(random.IntN(3000)) * time.Microsecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	p.signal(syscall.SIGSTOP)
	req := guardRequest(g)
	req.Replace = &g
	began := time.Now()
	_, err = b.hasty.Acquire(ctx, req)
	busy, blocked := errors.AsType[*store.BusyError](err)
	switch {
	case err == nil:
		b.tell("free")
	case !blocked:
		return err
	default:
		if waited := time.Since(began); waited < 25*time.Millisecond {
			return fmt.Errorf("takeover gave up after %s, want it to wait for 25ms", waited)
		}
		if len(busy.Blockers) == 0 { // it ended in between
			b.tell("unnamed")
			break
		}
		writer := fmt.Sprintf("pid %d (guarded-writer", pid)
		named := slices.ContainsFunc(busy.Blockers, func(b string) bool { return strings.HasPrefix(b, writer) })
		// The lock of a savepoint that was released cannot be told from those of
		// others who use the table, so these are named too.
		if !named || len(busy.Blockers) != 1 && x.Savepoint != guardKept {
			return fmt.Errorf("takeover of %s from %+v: got blockers %q, want %s", g.Name, *x, busy.Blockers, writer)
		}
		b.tell("named")
		if random.IntN(2) == 0 {
			if _, err := b.pool.Exec(ctx, "SELECT pg_terminate_backend($1)", pid); err != nil {
				return err
			}
			b.tell("ended")
		} else {
			p.signal(syscall.SIGCONT)
			b.tell("let go on")
		}
	}
	if blocked {
		if _, err := b.st.Acquire(ctx, req); err != nil {
			return fmt.Errorf("takeover of %s once more: %w", g.Name, err)
		}
	}
	conn, err := b.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	err = b.follow(ctx, conn.Conn(), g)
	conn.Release()
	p.signal(syscall.SIGCONT)
	if err != nil {
		return err
	}
	for len(result) <= 1 { // a moment
		if !p.out.Scan() {
			return fmt.Errorf("writer ended: %w", p.out.Err())
		}
		result = outcome(p.out.Text())
	}
	b.tell(strings.ToLower(string(x.Level)) + ": " + string(result))
	return nil
}
