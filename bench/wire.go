package main

import (
	"context"
	"encoding/binary"
	"net"
	"sync"
	"time"
)

// wire counts what clients ask of PostgreSQL servers over the connections that
// it dials: messages that have something executed, Query and Execute. Preparing
// a statement is not counted.
type wire struct {
	mu          sync.Mutex
	n           int
	first, last time.Time
}

// reset begins a new count.
func (w *wire) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n = 0
}

func (w *wire) add(n int) {
	if n == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last = time.Now(); w.n == 0 {
		w.first = w.last
	}
	w.n += n
}

// asked returns how many requests there were since reset.
func (w *wire) asked() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n
}

// perMinute is the rate between the first and the last request since reset, so
// that it does not depend on where the beats lie in the window.
func (w *wire) perMinute() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n < 2 {
		return 0
	}
	return float64(w.n-1) / w.last.Sub(w.first).Minutes()
}

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &wireConn{Conn: conn, w: w}, nil
}

// Dial and DialTimeout make w a dialer for lib/pq.
func (w *wire) Dial(network, addr string) (net.Conn, error) {
	return w.dial(context.Background(), network, addr)
}

// DialTimeout is Dial within d.
func (w *wire) DialTimeout(network, addr string, d time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return w.dial(ctx, network, addr)
}

type wireConn struct {
	net.Conn
	w     *wire
	parse frontend
}

func (c *wireConn) Write(b []byte) (int, error) {
	c.w.add(c.parse.feed(b))
	return c.Conn.Write(b)
}

// frontend reads what a client sends, in whatever pieces. A message is a type
// and a length that counts itself; the first message has no type.
type frontend struct {
	started bool
	header  []byte
	left    int // of the message whose header was read
}

// feed returns how many requests begin in b.
func (p *frontend) feed(b []byte) (requests int) {
	for len(b) > 0 {
		if p.left > 0 {
			n := min(p.left, len(b))
			p.left -= n
			b = b[n:]
			continue
		}
		size := 5
		if !p.started {
			size = 4
		}
		n := min(size-len(p.header), len(b))
		p.header = append(p.header, b[:n]...)
		b = b[n:]
		if len(p.header) < size {
			continue
		}
		if p.started && (p.header[0] == 'Q' || p.header[0] == 'E') {
			requests++
		}
		p.left = int(binary.BigEndian.Uint32(p.header[size-4:])) - 4
		p.started = true
		p.header = p.header[:0]
	}
	return requests
}
