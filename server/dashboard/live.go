package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/api"
)

const (
	// Tick is how often a page that is looked at is brought up to date when nothing
	// happens.
	Tick = 2 * time.Second
	// leastTurn is the least time between two turns when much happens.
	leastTurn = 500 * time.Millisecond
	// maxViewers bounds how many pages are kept up to date.
	maxViewers = 256
	writeTime  = 10 * time.Second // for which a viewer may leave a turn unread
)

// live tells all viewers when to look again: at each tick, and soon after the
// ledger has grown. It asks for the ledger once for all of them, and only while
// there are some.
type live struct {
	d    *Dashboard
	turn atomic.Uint64

	mu      sync.Mutex
	viewers map[chan struct{}]*viewer
	stop    context.CancelFunc // ends run; nil while it does not run
}

// join adds a viewer, whose channel gets a value at each turn. false: there are
// too many.
func (l *live) join(v *viewer) (chan struct{}, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.viewers) >= maxViewers {
		return nil, false
	}
	if l.viewers == nil {
		l.viewers = map[chan struct{}]*viewer{}
	}
	turns := make(chan struct{}, 1)
	l.viewers[turns] = v
	if l.stop == nil {
		var ctx context.Context
		ctx, l.stop = context.WithCancel(context.Background())
		go l.run(ctx)
	}
	return turns, true
}

func (l *live) leave(turns chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.viewers, turns)
	if len(l.viewers) == 0 && l.stop != nil {
		l.stop()
		l.stop = nil
	}
}

// run takes turns until ctx ends.
func (l *live) run(ctx context.Context) {
	grown := make(chan struct{}, 1)
	go l.follow(ctx, grown)
	tick, least := time.NewTicker(Tick), time.NewTicker(leastTurn)
	defer tick.Stop()
	defer least.Stop()
	for pending := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-grown:
			pending = true
			continue
		case <-least.C:
			if !pending {
				continue
			}
			tick.Reset(Tick)
		case <-tick.C:
		}
		pending = false
		l.next()
	}
}

// next tells all viewers to look again.
func (l *live) next() {
	l.turn.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	for turns := range l.viewers {
		select {
		case turns <- struct{}{}:
		default: // it has not looked yet
		}
	}
}

// follow tells when the ledger grows, until ctx ends. It reads it with the
// credential of one of the viewers: all of them may.
func (l *live) follow(ctx context.Context, grown chan<- struct{}) {
	retry := time.NewTicker(Tick)
	defer retry.Stop()
	for {
		if v := l.anyone(); v != nil {
			var q api.EventQuery
			if last, err := v.client.Events(ctx, api.EventQuery{Last: true, Limit: 1}); err == nil {
				q.After = last.Next
				for _, err := range v.client.FollowEvents(ctx, q) {
					if err != nil {
						break
					}
					select {
					case grown <- struct{}{}:
					default:
					}
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-retry.C:
		}
	}
}

func (l *live) anyone() *viewer {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.viewers {
		return v
	}
	return nil
}

// serve streams the turns to one viewer, as events named "tick".
func (l *live) serve(w http.ResponseWriter, r *http.Request, v *viewer) {
	turns, ok := l.join(v)
	if !ok {
		w.Header().Set("Retry-After", "10")
		http.Error(w, fmt.Sprintf("%d pages are kept up to date, which is the most.", maxViewers), http.StatusServiceUnavailable)
		return
	}
	defer l.leave(turns)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // asks a proxy not to hold turns back
	ctl := http.NewResponseController(w)
	_ = ctl.SetReadDeadline(time.Time{})                     // a connection that cannot has no deadline
	defer func() { _ = ctl.SetWriteDeadline(time.Time{}) }() // it may go on
	text := ": open\n\n"
	for {
		_ = ctl.SetWriteDeadline(time.Now().Add(writeTime)) // a writer that cannot has the server's own limit
		if _, err := w.Write([]byte(text)); err != nil || ctl.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-turns:
			text = fmt.Sprintf("event: tick\ndata: %d\n\n", l.turn.Load())
		}
	}
}
