package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/store"
)

// writer does all writing on one connection. Operations that arrive while it is
// at work, or while another process has the file locked, wait in a queue and
// then share one transaction, and so one sync.
type writer struct {
	store *Store

	mu      sync.Mutex
	queue   []*operation
	running chan struct{} // closed when the goroutine that empties the queue has ended; nil if there is none
	closed  bool

	blocked atomic.Bool // the write lock is asked for: by far most of the time because another connection has it

	// Of the running goroutine alone.
	conn       *sql.Conn
	statements map[string]*sql.Stmt
	settled    bool // the file is known to be of this host and this domain
}

// operation is one write. Its function runs inside a transaction that holds the
// write lock, possibly again after the transaction was rolled back; it returns
// an error only if the database failed, and hands decisions out by itself.
type operation struct {
	run   func(*transaction) error
	raw   bool // before the tables or the host were checked
	state atomic.Int32
	done  chan struct{}
	err   error
}

// States of an operation.
const (
	waiting int32 = iota
	begun
	abandoned
)

// transaction is an immediate transaction. Its statements run without the
// caller's context: they take no longer than the disk does, and a caller whose
// context ends does not wait for them.
type transaction struct {
	w      *writer
	wake   bool // a term started or ended
	failed error
}

// write runs run in a transaction that holds the write lock, and returns when it
// is committed. If ctx ends before it began, nothing was done: the error matches
// store.ErrBusy if somebody else had the file locked. If ctx ends later, the
// outcome is unknown, and run may still be at work: what it uses must not be
// the caller's, and what it sets is to be read only if write returned nil.
func (s *Store) write(ctx context.Context, doing string, raw bool, run func(*transaction) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("sqlite: %s: not begun: %w", doing, err)
	}
	op := &operation{run: run, raw: raw, done: make(chan struct{})}
	if err := s.writer.enqueue(op); err != nil {
		return fmt.Errorf("sqlite: %s: %w", doing, err)
	}
	select {
	case <-op.done:
		return s.classify(doing, op.err)
	case <-ctx.Done():
	}
	if !op.state.CompareAndSwap(waiting, abandoned) {
		select {
		case <-op.done:
			return s.classify(doing, op.err)
		default:
			return fmt.Errorf("sqlite: %s: the write had begun, its outcome is unknown: %w", doing, ctx.Err())
		}
	}
	if s.writer.blocked.Load() && !errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("sqlite: %s: %w: retried until the time was up", doing, &store.BusyError{Blockers: lockHolders(s.path)})
	}
	return fmt.Errorf("sqlite: %s: not begun: %w", doing, ctx.Err())
}

var errClosed = fmt.Errorf("%w: the store is closed", store.ErrUnavailable)

func (w *writer) enqueue(op *operation) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return errClosed
	}
	w.queue = append(w.queue, op)
	if w.running == nil {
		w.running = make(chan struct{})
		go w.empty(w.running)
	}
	return nil
}

// maxShared bounds how many operations share a transaction, so that none of
// them waits for many others.
const maxShared = 128

// next returns the operations at the head of the queue that still have a
// caller, without taking them off.
func (w *writer) next() (ops []*operation, closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	live := w.queue[:0]
	for _, op := range w.queue {
		if op.state.Load() == waiting {
			live = append(live, op)
		}
	}
	clear(w.queue[len(live):])
	w.queue = live
	return live[:min(len(live), maxShared)], w.closed
}

// take takes at most maxShared operations off the queue that their callers have
// not abandoned, and marks them begun.
func (w *writer) take() []*operation {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ops []*operation
	i := 0
	for ; i < len(w.queue) && len(ops) < maxShared; i++ {
		if op := w.queue[i]; op.state.CompareAndSwap(waiting, begun) {
			ops = append(ops, op)
		}
	}
	w.queue = append(w.queue[:0], w.queue[i:]...)
	return ops
}

// empty works until the queue is empty.
func (w *writer) empty(ended chan struct{}) {
	pause := time.Millisecond
	for {
		w.mu.Lock()
		if len(w.queue) == 0 {
			w.running = nil
			w.mu.Unlock()
			close(ended)
			return
		}
		w.mu.Unlock()

		ops, closed := w.next()
		if len(ops) == 0 {
			continue
		}
		w.blocked.Store(true)
		err := w.begin()
		if !isBusy(err) {
			w.blocked.Store(false)
		}
		switch {
		case err == nil:
			pause = time.Millisecond
			w.transact(w.take())
		case isBusy(err) && !closed:
			<-time.After(pause)
			pause = min(2*pause, 25*time.Millisecond)
		default:
			if closed {
				err = errClosed
			}
			finish(w.take(), err)
		}
	}
}

func finish(ops []*operation, err error) {
	for _, op := range ops {
		op.err = err
		close(op.done)
	}
}

// begin takes the write lock.
func (w *writer) begin() error {
	ctx := context.Background()
	if w.conn == nil {
		conn, err := w.store.db.Conn(ctx)
		if err != nil {
			return err
		}
		if err := checkConnection(ctx, conn); err != nil {
			return errors.Join(err, conn.Close())
		}
		w.conn, w.statements, w.settled = conn, map[string]*sql.Stmt{}, false
	}
	_, err := w.conn.ExecContext(ctx, "BEGIN IMMEDIATE")
	if err != nil && !isBusy(err) {
		w.drop()
	}
	if err == nil && w.store.file.lost() {
		w.rollback()
		return errGone
	}
	return err
}

// transact runs ops in the transaction that was begun and commits. If the
// database failed in one of them, each of the others gets a transaction of its
// own, so that one operation never fails another.
func (w *writer) transact(ops []*operation) {
	if len(ops) == 0 {
		w.rollback()
		return
	}
	tx := &transaction{w: w}
	culprit := -1
	for i, op := range ops {
		op.err = nil
		if err := tx.start(op); err != nil {
			op.err = err
			if tx.failed != nil {
				culprit = i
				break
			}
		}
	}
	if culprit >= 0 {
		w.rollback()
		finish(ops[culprit:culprit+1], ops[culprit].err)
		for i, op := range ops {
			if i == culprit {
				continue
			}
			err := w.begin()
			for isBusy(err) {
				<-time.After(5 * time.Millisecond)
				err = w.begin()
			}
			if err != nil {
				finish(ops[i:i+1], err)
				continue
			}
			w.transact([]*operation{op})
		}
		return
	}
	if _, err := w.conn.ExecContext(context.Background(), "COMMIT"); err != nil {
		w.rollback()
		finish(ops, fmt.Errorf("commit: %w", err))
		return
	}
	if tx.wake {
		touch(w.store.wakePath())
	}
	for _, op := range ops {
		close(op.done)
	}
}

// start runs op after the checks that every write needs. tx.failed is set if
// the transaction cannot go on.
func (tx *transaction) start(op *operation) error {
	if !op.raw && !tx.w.settled {
		if err := tx.settle(); err != nil {
			return err
		}
		tx.w.settled = true
	}
	if err := op.run(tx); err != nil {
		tx.failed = err
		return err
	}
	return nil
}

// rollback gives up the transaction, and the connection if even that fails.
func (w *writer) rollback() {
	if w.conn == nil {
		return
	}
	if _, err := w.conn.ExecContext(context.Background(), "ROLLBACK"); err != nil {
		// After some failures SQLite has rolled back by itself, and answers
		// with an error; a fresh connection is right in either case.
		w.drop()
	}
}

// drop discards the write connection: it does not go back to the pool.
func (w *writer) drop() {
	for _, st := range w.statements {
		_ = st.Close()
	}
	_ = w.conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = w.conn.Close()
	w.conn, w.statements = nil, nil
}

func (w *writer) close() error {
	w.mu.Lock()
	w.closed = true
	running := w.running
	w.mu.Unlock()
	if running != nil {
		<-running
	}
	if w.conn == nil {
		return nil
	}
	for _, st := range w.statements {
		_ = st.Close()
	}
	err := w.conn.Close()
	w.conn, w.statements = nil, nil
	return err
}

// checkConnection refuses a connection on which an acknowledged write could be
// lost.
func checkConnection(ctx context.Context, conn *sql.Conn) error {
	var mode string
	if err := conn.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("%w: journal_mode is %q and must be wal: open the database with _pragma=journal_mode(WAL) (see ModerncDSN), or once run PRAGMA journal_mode=WAL", store.ErrSchema, mode)
	}
	var sync int
	if err := conn.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&sync); err != nil {
		return err
	}
	if sync < 2 {
		return fmt.Errorf("%w: synchronous is %d and must be 2 (FULL) or 3 (EXTRA), or a power loss takes back terms: open the database with _pragma=synchronous(FULL) (see ModerncDSN)", store.ErrSchema, sync)
	}
	return nil
}

// exec runs a statement, prepared once per connection.
func (tx *transaction) exec(query string, args ...any) error {
	_, err := tx.change(query, args...)
	return err
}

// change is exec that says how many rows it changed.
func (tx *transaction) change(query string, args ...any) (int64, error) {
	st, err := tx.prepare(query)
	if err != nil {
		return 0, err
	}
	result, err := st.ExecContext(context.Background(), args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (tx *transaction) query(query string, args ...any) (*sql.Rows, error) {
	st, err := tx.prepare(query)
	if err != nil {
		return nil, err
	}
	return st.QueryContext(context.Background(), args...)
}

func (tx *transaction) prepare(query string) (*sql.Stmt, error) {
	if st := tx.w.statements[query]; st != nil {
		return st, nil
	}
	st, err := tx.w.conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, err
	}
	tx.w.statements[query] = st
	return st, nil
}

// QueryContext lets the functions that read rows read inside the transaction.
func (tx *transaction) QueryContext(_ context.Context, query string, args ...any) (*sql.Rows, error) {
	return tx.query(query, args...)
}

// settle checks, at the first write on a connection, that the file is this
// host's, and at the first in a new domain begins to watch the open terms.
func (tx *transaction) settle() error {
	s := tx.w.store
	m, err := readMeta(context.Background(), tx)
	if err != nil {
		return err
	}
	if err := s.judgeMeta(m); err != nil {
		return err
	}
	if m["domain"] == s.host.Domain && m["host"] == s.host.id(m) {
		return nil
	}
	if err := tx.enter(m); err != nil {
		tx.failed = err
		return err
	}
	return nil
}

// enter notes the host and its domain in the file, and each open term of
// another domain as seen from now on.
func (tx *transaction) enter(m meta) error {
	s := tx.w.store
	if err := tx.exec(watchAll, s.host.Domain, s.now().boot); err != nil {
		return err
	}
	return tx.setMeta(map[string]string{"host": s.host.id(m), "domain": s.host.Domain})
}

// setMeta sets keys of tenure_meta.
func (tx *transaction) setMeta(values map[string]string) error {
	for key, value := range values {
		if err := tx.exec("INSERT INTO tenure_meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value", key, value); err != nil {
			return err
		}
	}
	return nil
}

// unknownFloor returns the floor of names that have no record.
func (tx *transaction) unknownFloor() (int64, error) {
	m, err := readMeta(context.Background(), tx)
	if err != nil {
		return 0, err
	}
	return m.floor(), nil
}

func (m meta) floor() int64 {
	n, _ := strconv.ParseInt(m["floor"], 10, 64)
	return n
}
