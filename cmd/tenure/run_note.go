package main

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/cmd/tenure/guardian"
	"github.com/tenurehq/tenure/store"
)

// notebook is what "tenure run" tells a person on standard error: while it
// waits, one live line on a terminal, else a line for each new holder; and what
// cannot be left unsaid. It says nothing when all goes well.
type notebook struct {
	con     console
	lease   string
	verbose bool

	mu    sync.Mutex
	held  *store.HeldError // what is waited for; nil when nothing is
	since time.Time        // when the answer came
	begun time.Time        // when the waiting began
	quit  chan struct{}    // ends the live line
	done  chan struct{}
	shown bool // a live line stands on the terminal
}

func newNotebook(con console, lease string, verbose bool) *notebook {
	return &notebook{con: con, lease: lease, verbose: verbose}
}

// line prints one line.
func (n *notebook) line(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wipe()
	fmt.Fprintln(n.con.err, "tenure: "+plain(fmt.Sprintf(format, args...)))
}

// waiting takes in an answer that the lease is not free.
func (n *notebook) waiting(held *store.HeldError) {
	n.mu.Lock()
	defer n.mu.Unlock()
	old := n.held
	n.held, n.since = held, time.Now()
	if old == nil {
		n.begun = n.since
	}
	if n.con.interactive {
		if n.quit == nil {
			n.quit, n.done = make(chan struct{}), make(chan struct{})
			go n.live(n.quit, n.done)
		}
		return
	}
	if old == nil || old.Record.Token != held.Record.Token || old.Reason != held.Reason {
		fmt.Fprintln(n.con.err, "tenure: "+n.text())
	}
}

// text says who holds the lease, since when and for how long still; on a terminal
// short enough for 80 columns if the names are not long. n.mu is held.
func (n *notebook) text() string {
	r := &n.held.Record
	still := left(max(n.held.Remaining-time.Since(n.since), 0))
	if still == "" {
		still = "0s"
	}
	switch n.held.Reason {
	case store.HeldByMinHold:
		return escape(fmt.Sprintf("waiting for %q: kept free for another %s after token %s", n.lease, still, r.Token))
	case store.HeldReserved:
		return escape(fmt.Sprintf("waiting for %q: reserved for %s for another %s", n.lease, r.ReservedFor, still))
	}
	held := r.Now.Sub(r.AcquiredAt) + time.Since(n.since)
	if n.con.interactive {
		since := clockTime(r.AcquiredAt)
		if _, clock, ok := strings.Cut(since, "T"); ok && held < 24*time.Hour {
			since = clock
		}
		return escape(fmt.Sprintf("waiting for %q: held by %s since %s, %s left", n.lease, r.Holder, since, still))
	}
	return escape(fmt.Sprintf("waiting for %q: held by %s (token %s) since %s (%s), for another %s unless renewed",
		n.lease, r.Holder, r.Token, clockTime(r.AcquiredAt), held.Round(time.Second), still))
}

// live rewrites one line each second.
func (n *notebook) live(quit, done chan struct{}) {
	defer close(done)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		n.mu.Lock()
		// Wrapping is off while it is written: a second row would stay behind.
		fmt.Fprintf(n.con.err, "\r\x1b[K\x1b[?7l%s\x1b[?7h", n.text())
		n.shown = true
		n.mu.Unlock()
		select {
		case <-tick.C:
		case <-quit:
			n.mu.Lock()
			n.wipe()
			n.mu.Unlock()
			return
		}
	}
}

// wipe removes the live line. n.mu is held.
func (n *notebook) wipe() {
	if n.shown {
		fmt.Fprint(n.con.err, "\r\x1b[K")
		n.shown = false
	}
}

// stop ends the waiting.
func (n *notebook) stop() {
	n.mu.Lock()
	quit, done := n.quit, n.done
	n.quit, n.done = nil, nil
	n.mu.Unlock()
	if quit != nil {
		close(quit)
		<-done
	}
	n.mu.Lock()
	n.held = nil
	n.mu.Unlock()
}

// event says what is wrong with the store while it is. Everything else is in
// the log of --verbose.
func (n *notebook) event(e tenure.Event) {
	if n.verbose {
		return
	}
	switch e.Kind {
	case tenure.EventFailing:
		n.line("%q could not be renewed: %v", n.lease, e.Err)
	case tenure.EventRefused:
		n.line("waiting for %q: %v", n.lease, e.Err)
	case tenure.EventClockStep:
		if e.Step == 0 {
			n.line("the clock of the store of %q has stepped: the record is watched for a full TTL", n.lease)
			return
		}
		n.line("the store's clock went %s further than this host's", e.Step.Round(time.Millisecond))
	}
}

// notice tells of what the guardian does, with --verbose.
func (n *notebook) notice(e guardian.Notice) {
	if !n.verbose {
		return
	}
	n.line("guardian: %s pid=%d why=%s %s %s", e.Event, e.PID, e.Why, e.Comm, e.Detail)
}
