package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenurehq/tenure/store"
)

const (
	dialLimit     = 10 * time.Second
	registerLimit = 5 * time.Second
)

// hub serves all watchers of a Store over one connection, from the first Watch
// to the end of the last. The connection listens on the schema's channel and
// holds, for each name that is watched, a shared advisory lock of the session:
// that is how a releaser learns, without a table and so without a write, that
// somebody waits (see tenure_tell). An idle watch sends nothing; a dead
// connection shows by TCP's keep-alive.
type hub struct {
	store *Store

	mu          sync.Mutex
	topics      map[string]*topic
	cancel      context.CancelFunc // ends the running loop; nil if none runs
	ended       chan struct{}      // closed when that loop has ended
	interrupt   context.CancelFunc // wakes the loop from waiting
	changed     bool               // the loop has not seen the latest topics
	unsupported error              // found once, it stays
	closed      bool
}

type topic struct {
	watchers   map[*watcher]struct{}
	registered bool
}

type watcher struct {
	events chan store.Event
	ready  chan error // one value: registered, or why not
	told   bool       // ready has its value
}

// answer says once whether w is registered.
func (w *watcher) answer(err error) {
	if !w.told {
		w.told = true
		w.ready <- err
	}
}

// Watch implements store.Watcher. A slow reader gets the newest event only. Its
// error matches store.ErrUnsupported if a connection pooler stands between: a
// waiter then has to ask.
func (s *Store) Watch(ctx context.Context, name string) (<-chan store.Event, error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	h := &s.watch
	w, err := h.add(name)
	if err != nil {
		return nil, err
	}
	select {
	case err := <-w.ready:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		h.drop(name, w)
		return nil, failure("watch", nil, ctx.Err())
	}
	context.AfterFunc(ctx, func() { h.drop(name, w) })
	return w.events, nil
}

func (h *hub) add(name string) (*watcher, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, fmt.Errorf("postgres: watch: the store is closed: %w", store.ErrUnavailable)
	}
	if h.unsupported != nil {
		return nil, h.unsupported
	}
	if h.topics == nil {
		h.topics = make(map[string]*topic)
	}
	t := h.topics[name]
	if t == nil {
		t = &topic{watchers: make(map[*watcher]struct{})}
		h.topics[name] = t
	}
	w := &watcher{events: make(chan store.Event, 1), ready: make(chan error, 1)}
	t.watchers[w] = struct{}{}
	if t.registered {
		w.answer(nil)
		return w, nil
	}
	h.wake()
	if h.cancel == nil {
		ctx, cancel := context.WithCancel(context.Background())
		h.cancel, h.ended = cancel, make(chan struct{})
		go h.run(ctx, h.ended)
	}
	return w, nil
}

// wake lets the loop look at the topics. It is called with h locked.
func (h *hub) wake() {
	h.changed = true
	if h.interrupt != nil {
		h.interrupt()
	}
}

func (h *hub) drop(name string, w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[name]
	if t == nil {
		return
	}
	if _, there := t.watchers[w]; !there {
		return // the loop failed and has closed it
	}
	delete(t.watchers, w)
	close(w.events)
	if len(t.watchers) == 0 {
		h.wake()
	}
}

// run is the loop. It ends when there is nothing to watch or the connection is
// lost, which closes every channel.
func (h *hub) run(ctx context.Context, ended chan<- struct{}) {
	defer close(ended)
	conn, err := h.connect(ctx)
	for err == nil {
		var more bool
		if more, err = h.register(ctx, conn); err != nil || !more {
			break
		}
		err = h.wait(ctx, conn)
	}
	if conn != nil {
		discard(conn)
	}
	if err != nil {
		h.fail(err)
	}
}

func (h *hub) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	conn, err := dial(ctx, h.store.pool, "tenure watch")
	if err != nil {
		return nil, failure("watch", h.store.pool.Config().ConnConfig, err)
	}
	rows, err := h.store.query(ctx, conn.PgConn(), "SELECT pg_backend_pid()")
	if err == nil {
		if pid := rows[0].number(); pid != int64(conn.PgConn().PID()) {
			discard(conn)
			return nil, fmt.Errorf("postgres: watch: a connection pooler stands between (server process %d, %d on the wire), so notifications would be lost: %w",
				pid, conn.PgConn().PID(), store.ErrUnsupported)
		}
		_, err = h.store.query(ctx, conn.PgConn(), `LISTEN "`+h.store.channel()+`"`)
	}
	if err != nil {
		discard(conn)
		return nil, failure("watch", h.store.pool.Config().ConnConfig, err)
	}
	return conn, nil
}

// register makes the session's advisory locks those of the topics. It returns
// false if there are none; the loop is then over.
func (h *hub) register(ctx context.Context, conn *pgx.Conn) (bool, error) {
	h.mu.Lock()
	h.changed = false
	var c call
	var names []string
	for name, t := range h.topics {
		which := ""
		switch {
		case len(t.watchers) == 0 && t.registered:
			which = "pg_advisory_unlock_shared"
		case len(t.watchers) > 0 && !t.registered:
			which = "pg_advisory_lock_shared"
			names = append(names, name)
		}
		if which != "" {
			fmt.Fprintf(&c, "; SELECT %s(%d, hashtext(", which, h.store.space())
			c.quote(name)
			c.WriteString("))")
		}
		if len(t.watchers) == 0 {
			delete(h.topics, name)
		}
	}
	if len(h.topics) == 0 {
		h.cancel()
		h.cancel = nil
		h.mu.Unlock()
		return false, nil
	}
	h.mu.Unlock()
	if c.Len() == 0 {
		return true, nil
	}
	// A releaser holds the lock of a name until it has committed.
	limit, cancel := context.WithTimeout(ctx, registerLimit)
	defer cancel()
	if _, err := h.store.query(limit, conn.PgConn(), c.String()[len("; "):]); err != nil {
		return false, failure("watch", h.store.pool.Config().ConnConfig, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range names {
		t := h.topics[name] // only this loop deletes topics
		t.registered = true
		for w := range t.watchers {
			w.answer(nil)
		}
	}
	return true, nil
}

// wait delivers notifications until the topics change.
func (h *hub) wait(ctx context.Context, conn *pgx.Conn) error {
	until, cancel := context.WithCancel(ctx)
	defer cancel()
	h.mu.Lock()
	h.interrupt = cancel
	changed := h.changed
	h.mu.Unlock()
	for !changed {
		n, err := conn.WaitForNotification(until)
		if n != nil {
			changed = h.deliver(n.Payload)
		}
		if err != nil {
			if until.Err() != nil && ctx.Err() == nil && !conn.IsClosed() {
				return nil // interrupted; the connection is as before
			}
			return failure("watch", h.store.pool.Config().ConnConfig, err)
		}
	}
	return nil
}

// deliver gives an event to the watchers of its name, in place of one that was
// not read yet, and reports whether the topics have changed. Only it sends, and
// with h locked, so that the send after the drain cannot block.
func (h *hub) deliver(payload string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	e, ok := parseEvent(payload)
	if t := h.topics[e.Name]; ok && t != nil {
		// Others count as one each, for all that wait in their store.
		e.Waiters = max(e.Waiters-1, 0) + max(len(t.watchers), 1)
		for w := range t.watchers {
			select {
			case <-w.events:
			default:
			}
			w.events <- e
		}
	}
	return h.changed
}

// parseEvent reads what tenure_tell sends: name, held or ended, microseconds
// remaining, connections that wait.
func parseEvent(payload string) (store.Event, bool) {
	f := strings.Fields(payload)
	if len(f) != 4 {
		return store.Event{}, false
	}
	remaining, err1 := strconv.ParseInt(f[2], 10, 64)
	waiters, err2 := strconv.Atoi(f[3])
	return store.Event{Name: f[0], Held: f[1] == "held", Remaining: time.Duration(remaining) * time.Microsecond, Waiters: waiters}, errors.Join(err1, err2) == nil
}

// fail ends every watch: the loop is over.
func (h *hub) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if errors.Is(err, store.ErrUnsupported) {
		h.unsupported = err
	}
	for _, t := range h.topics {
		for w := range t.watchers {
			w.answer(err)
			close(w.events)
		}
	}
	clear(h.topics)
	h.cancel()
	h.cancel = nil
}

func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	ended := h.ended
	if h.cancel != nil {
		h.cancel()
	}
	h.mu.Unlock()
	if ended != nil {
		<-ended
	}
}
