//go:build linux

package conformance_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
)

// entry is a line of a process's journal.
type entry struct {
	Kind string        `json:"kind"` // what the constants below name
	At   time.Duration `json:"at"`   // on CLOCK_BOOTTIME

	ID      string          `json:"id,omitempty"` // of an operation, unique
	Op      string          `json:"op,omitempty"`
	Token   fence.Token     `json:"token,omitempty"`
	Attempt store.Attempt   `json:"attempt,omitzero"`
	Known   []store.Attempt `json:"known,omitempty"`
	TTL     time.Duration   `json:"ttl,omitempty"`

	Code string      `json:"code,omitempty"` // of the answer; "" if it was accepted
	Seen fence.Token `json:"seen,omitempty"` // the token that the answer showed
	Now  int64       `json:"now,omitempty"`  // the store's clock in the answer, in microseconds
}

const (
	kindCall   = "call"   // an operation is about to leave
	kindAnswer = "answer" // and was answered; without one its outcome is unknown
	kindAct    = "act"    // At was read, then MayAct answered true
	kindAlive  = "alive"  // a worker read At, and it was within the trust that it was told
	kindLost   = "lost"   // a term was lost, Code says why

	opAcquire, opRenew, opRelease = "acquire", "renew", "release"
	opMarked, opJoined            = "marked", "joined"
)

// journal is the file of one process. Each entry is one write, so that a kill
// leaves whole lines.
type journal struct {
	file *os.File
	name string // of the process: a long run sees process ids twice
	next atomic.Int64
}

func openJournal(path string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	return &journal{file: f, name: strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))}, err
}

func (j *journal) write(e entry) {
	b, err := json.Marshal(e)
	if err == nil {
		_, err = j.file.Write(append(b, '\n'))
	}
	if err != nil {
		panic(err) // a history with holes proves nothing
	}
}

// call notes an operation that is about to leave, and returns what notes its answer.
func (j *journal) call(e entry) (id string, answer func(code string, seen fence.Token, now time.Time)) {
	e.ID = fmt.Sprintf("%s-%d", j.name, j.next.Add(1))
	e.Kind, e.At = kindCall, clock.Boot()
	j.write(e)
	return e.ID, func(code string, seen fence.Token, now time.Time) {
		a := entry{Kind: kindAnswer, ID: e.ID, At: clock.Boot(), Code: code, Seen: seen}
		if !now.IsZero() {
			a.Now = now.UnixMicro()
		}
		j.write(a)
	}
}

// recorded is a store whose operations are noted.
type recorded struct {
	*postgres.Store
	j *journal
}

func (r *recorded) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	_, answer := r.j.call(entry{Op: opAcquire, Attempt: req.Attempt, Known: req.Known, TTL: req.TTL})
	rec, err := r.Store.Acquire(ctx, req)
	code, shown := string(store.Classify(err)), rec
	var held *store.HeldError
	if errors.As(err, &held) {
		code, shown = held.Reason, held.Record
	}
	answer(code, shown.Token, shown.Now)
	return rec, err
}

func (r *recorded) Renew(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	return r.batch(opRenew, grants, func() ([]store.Result, error) { return r.Store.Renew(ctx, grants) })
}

func (r *recorded) Release(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	return r.batch(opRelease, grants, func() ([]store.Result, error) { return r.Store.Release(ctx, grants) })
}

// batch notes a request that carries one grant, as all of a contender's do.
func (r *recorded) batch(op string, grants []store.Grant, apply func() ([]store.Result, error)) ([]store.Result, error) {
	if len(grants) != 1 {
		panic("a contender has one lease")
	}
	g := grants[0]
	_, answer := r.j.call(entry{Op: op, Token: g.Token, Attempt: g.Attempt, Known: g.Known, TTL: g.TTL})
	results, err := apply()
	if err != nil {
		answer(string(store.Classify(err)), 0, time.Time{})
		return results, err
	}
	answer(string(store.Classify(results[0].Err)), results[0].Record.Token, results[0].Record.Now)
	return results, nil
}

// contenderConfig is what a contender is told.
type contenderConfig struct {
	URL, Lease, Journal string
	TTL                 time.Duration
	Seed                uint64
	Quick               int // so many of 100 terms are
}

// contender is one process that holds the lease again and again.
type contender struct {
	cfg    contenderConfig
	j      *journal
	pool   *pgxpool.Pool
	random *rand.Rand

	mu     sync.Mutex
	worker io.Writer // of the present term; nil if it has none
}

func playContender(config []byte) error {
	var c contender
	if err := json.Unmarshal(config, &c.cfg); err != nil {
		return err
	}
	c.random = rand.New(rand.NewPCG(c.cfg.Seed, 0))
	var err error
	if c.j, err = openJournal(c.cfg.Journal); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	pc, err := pgxpool.ParseConfig(c.cfg.URL)
	if err != nil {
		return err
	}
	pc.MaxConns = 4
	pc.ConnConfig.ConnectTimeout = c.cfg.TTL
	if c.pool, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
		return err
	}
	st, err := postgres.New(c.pool, postgres.Config{})
	if err != nil {
		return err
	}
	k, err := tenure.NewKeeper(&recorded{st, c.j}, tenure.Config{TTL: c.cfg.TTL, OnEvent: func(e tenure.Event) {
		if e.Kind == tenure.EventLost {
			c.j.write(entry{Kind: kindLost, At: clock.Boot(), Token: e.Token, Code: string(e.Reason)})
		}
	}})
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is time to end
		cancel()
	}()
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	for ctx.Err() == nil {
		var token fence.Token
		// A failure of one term is a fact of the journal, and no reason to end.
		_ = tenure.Do(ctx, k, c.cfg.Lease, func(ctx context.Context, t *tenure.Term) error {
			token = t.Token()
			return c.term(ctx, t)
		}, tenure.WithConfirm(c.confirmed))
		if token > 0 && c.random.IntN(10) == 0 { // a part of the program that never asks: the fence is for it
			c.pause(ctx, c.cfg.TTL/10)
			c.write(token, guardPause)
		}
		if c.random.IntN(2) == 0 { // else it has the next term too, before anybody else wakes
			c.pause(ctx, c.cfg.TTL/30)
		}
	}
	if err := <-ended; err != nil && !errors.Is(err, tenure.ErrNotReleased) {
		return err
	}
	return nil
}

// term is the work under one term, of either kind, and sometimes once more after the end.
func (c *contender) term(ctx context.Context, t *tenure.Term) error {
	if c.random.IntN(100) < c.cfg.Quick {
		c.quick(t)
	} else if err := c.paced(ctx, t); err != nil {
		return err
	}
	if t.Err() != nil { // again the part that does not ask
		c.pause(context.Background(), c.cfg.TTL/4)
		c.write(t.Token(), guardPause)
	}
	return nil
}

// quick is a write or two at once: terms follow each other as fast as the store
// hands them over.
func (c *contender) quick(t *tenure.Term) {
	for range 1 + c.random.IntN(2) {
		if !c.mayAct(t) {
			return
		}
		c.write(t.Token(), 0)
	}
	c.mayAct(t)
}

// paced is a few writes with pauses, sometimes for several TTLs, and sometimes
// beside a worker.
func (c *contender) paced(ctx context.Context, t *tenure.Term) error {
	r := c.random
	if r.IntN(8) == 0 {
		ended, err := c.work(ctx, t)
		if err != nil {
			return err
		}
		defer ended()
	}
	watched, stop := context.WithCancel(ctx)
	defer stop()
	go func() { // another part of the program, which does not wait for the store
		for ticker := time.NewTicker(4 * time.Millisecond); c.mayAct(t); {
			select {
			case <-ticker.C:
			case <-watched.Done():
				ticker.Stop()
				return
			}
		}
	}()
	writes := 1 + r.IntN(4)
	var until time.Duration
	if r.IntN(25) == 0 {
		until = clock.Boot() + time.Duration(r.Float64()*2*float64(c.cfg.TTL))
	}
	for i := 0; i < writes || clock.Boot() < until; i++ {
		if !c.mayAct(t) {
			break
		}
		c.write(t.Token(), guardPause)
		c.pause(ctx, 5*time.Millisecond)
	}
	return nil
}

func (c *contender) pause(ctx context.Context, most time.Duration) {
	select {
	case <-time.After(time.Duration(c.random.Float64() * float64(most))):
	case <-ctx.Done():
	}
}

func (c *contender) mayAct(t *tenure.Term) bool {
	at := clock.Boot()
	token, ok := t.MayAct()
	if ok {
		c.j.write(entry{Kind: kindAct, At: at, Token: token})
	}
	return ok
}

// guardPause is the longest pause between the steps of a joined write, unless it is quick.
const guardPause = 20 * time.Millisecond

// write makes one guarded write of either kind, with pauses of at most so long.
func (c *contender) write(token fence.Token, most time.Duration) {
	// A write on its way is not called back when the term ends.
	ctx, cancel := context.WithTimeout(context.Background(), 2*c.cfg.TTL)
	defer cancel()
	if c.random.IntN(2) == 0 {
		c.marked(ctx, token)
	} else {
		c.joined(ctx, token, most)
	}
}

const (
	codeUnknown = string(store.CodeNoContact)
	codeStale   = string(store.CodeStale)
	codeAborted = string(store.CodeBusy) // it changed nothing
)

// marked is a write to a resource that remembers the largest token (fence.Mark's rule).
func (c *contender) marked(ctx context.Context, token fence.Token) {
	id, answer := c.j.call(entry{Op: opMarked, Token: token})
	tag, err := c.pool.Exec(ctx, `WITH w AS (UPDATE marked SET token = $1, n = n + 1 WHERE token <= $1 RETURNING n)
		INSERT INTO marked_history (n, token, id) SELECT n, $1, $2 FROM w`, int64(token), id)
	switch {
	case err != nil:
		answer(codeUnknown, 0, time.Time{})
	case tag.RowsAffected() == 0:
		answer(codeStale, 0, time.Time{})
	default:
		answer("", token, time.Time{})
	}
}

// joined is a write in the lease's own database, with a pause between check and
// commit. It touches no row that another does, so that only the guard protects it.
func (c *contender) joined(ctx context.Context, token fence.Token, most time.Duration) {
	levels := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}
	level := levels[c.random.IntN(len(levels))]
	id, answer := c.j.call(entry{Op: opJoined, Token: token})
	tx, err := c.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
	if err != nil {
		answer(codeAborted, 0, time.Time{})
		return
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // committed, or the connection is gone
	if c.random.IntN(2) == 0 {                    // takes the snapshot before the guard
		if _, err := tx.Exec(ctx, "SELECT count(*) FROM marked"); err == nil {
			c.pause(ctx, most)
		}
	}
	err = postgres.Guard(ctx, tx, "", c.cfg.Lease, token)
	var stale *fence.StaleError
	switch {
	case errors.As(err, &stale):
		answer(codeStale, stale.Current, time.Time{})
		return
	case err != nil:
		answer(codeAborted, 0, time.Time{})
		return
	}
	c.pause(ctx, most)
	if _, err := tx.Exec(ctx, "INSERT INTO joined_history (token, id) VALUES ($1, $2)", int64(token), id); err != nil {
		answer(codeAborted, 0, time.Time{})
		return
	}
	c.pause(ctx, most)
	if err := tx.Commit(ctx); err != nil {
		answer(codeUnknown, 0, time.Time{})
		return
	}
	answer("", token, time.Time{})
}

// workerConfig is what a worker is told. Its input is the instants until which
// it may work, one a line, and an empty line to end.
type workerConfig struct {
	Journal string
	Token   fence.Token
}

// work starts a worker: another process, that works until the trust that it was
// told last ends, whatever becomes of this one. ended returns once it is gone.
func (c *contender) work(ctx context.Context, t *tenure.Term) (ended func(), err error) {
	w, err := spawn("worker", false, workerConfig{Journal: c.cfg.Journal, Token: t.Token()})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.worker = w.in
	c.mu.Unlock()
	c.confirmed(t)
	end := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.worker != nil {
			fmt.Fprintln(c.worker) // one that has ended does not mind
			c.worker = nil
		}
	}
	stop := context.AfterFunc(ctx, end)
	return func() {
		stop()
		end()
		<-w.ended
	}, nil
}

func (c *contender) confirmed(t *tenure.Term) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.worker != nil {
		fmt.Fprintln(c.worker, int64(t.TrustedUntil())) // as above
	}
}

func playWorker(config []byte) error {
	var cfg workerConfig
	if err := json.Unmarshal(config, &cfg); err != nil {
		return err
	}
	j, err := openJournal(cfg.Journal)
	if err != nil {
		return err
	}
	var until atomic.Int64
	ended := make(chan struct{})
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			d, err := strconv.ParseInt(in.Text(), 10, 64)
			if err != nil {
				close(ended)
				return
			}
			until.Store(d)
		}
		// Its holder was killed, and it has what it was told, or nothing.
		until.CompareAndSwap(0, 1)
	}()
	for {
		// Until the first word from its holder it does nothing.
		at, told := clock.Boot(), time.Duration(until.Load())
		switch {
		case told == 0:
		case at >= told:
			return nil
		default:
			j.write(entry{Kind: kindAlive, At: at, Token: cfg.Token})
		}
		select {
		case <-ended:
			return nil
		case <-time.After(2 * time.Millisecond):
		}
	}
}
