package storetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Proxy is a TCP proxy on a free port of 127.0.0.1, in front of a server, with
// the faults of a network. A new Proxy passes everything.
//
// TCP loses nothing on the way: what is held arrives when it may pass again,
// late, even if its sender has gone, unless Reset or Close cuts the connection
// first. It is safe for concurrent use.
type Proxy struct {
	network, target string
	listener        net.Listener
	ctx             context.Context // ends with Close
	cancel          context.CancelFunc
	running         sync.WaitGroup

	mu           sync.Mutex
	links        map[*link]struct{}
	accepted     int
	holdNew      bool
	holdRequests bool
	holdReplies  bool
	delay        time.Duration
	changed      chan struct{} // closed and replaced when what is held may have changed
}

// link is one connection of a client, with its connection to the server.
type link struct {
	ctx    context.Context // ends when the link is cut
	cancel context.CancelFunc
	client net.Conn
	server net.Conn // nil until it was dialled
	held   bool     // guarded by Proxy.mu
}

// NewProxy listens and passes connections on to target, a host and port for
// network "tcp" or a path for "unix".
func NewProxy(network, target string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("storetest: proxy for %q: %w", target, err)
	}
	p := &Proxy{network: network, target: target, listener: listener, links: make(map[*link]struct{}), changed: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.running.Go(p.accept)
	return p, nil
}

// Addr returns the host and port on which the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Accepted returns how many connections were accepted so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Close ends all connections and returns when nothing of the proxy runs any more.
func (p *Proxy) Close() error {
	p.cancel()
	err := p.listener.Close()
	p.Reset()
	p.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil // closed before
	}
	return err
}

// HoldExisting makes a black hole of the connections that are open. Those that
// are opened later are not affected.
func (p *Proxy) HoldExisting() {
	p.change(func() {
		for l := range p.links {
			l.held = true
		}
	})
}

// HoldNew makes a black hole of connections that are opened from now on: they
// are accepted, and nothing comes back.
func (p *Proxy) HoldNew() { p.change(func() { p.holdNew = true }) }

// HoldRequests holds what clients say, and lets through what the server says, on
// all connections.
func (p *Proxy) HoldRequests() { p.change(func() { p.holdRequests = true }) }

// HoldReplies lets requests pass and holds what the server says, on all
// connections.
func (p *Proxy) HoldReplies() { p.change(func() { p.holdReplies = true }) }

// Delay holds every piece of data up by d, in each direction. 0 ends that.
func (p *Proxy) Delay(d time.Duration) { p.change(func() { p.delay = d }) }

// Pass ends every fault. What was held on connections that are still open is
// passed on now.
func (p *Proxy) Pass() {
	p.change(func() {
		p.holdNew, p.holdRequests, p.holdReplies, p.delay = false, false, false, 0
		for l := range p.links {
			l.held = false
		}
	})
}

// Reset cuts all open connections, on both sides, with a reset.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.reset()
	}
}

func (p *Proxy) change(apply func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	apply()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (l *link) reset() {
	l.cancel()
	for _, conn := range []net.Conn{l.client, l.server} {
		if conn == nil {
			continue
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // so that Close sends a reset; a closed connection is as good
		}
		_ = conn.Close()
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		l := &link{client: client}
		l.ctx, l.cancel = context.WithCancel(p.ctx)
		p.mu.Lock()
		p.accepted++
		l.held = p.holdNew
		p.links[l] = struct{}{}
		p.mu.Unlock()
		p.running.Go(func() { p.serve(l) })
	}
}

func (p *Proxy) serve(l *link) {
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.links, l)
		l.cancel()
		_ = l.client.Close()
		if l.server != nil {
			_ = l.server.Close()
		}
	}()
	if !p.await(l, false) {
		return
	}
	server, err := new(net.Dialer).DialContext(l.ctx, p.network, p.target)
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		l.reset()
		return
	}
	p.mu.Lock()
	l.server = server
	cut := l.ctx.Err() != nil
	p.mu.Unlock()
	if cut {
		return
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { p.pump(l, server, l.client, false) })
	pumps.Go(func() { p.pump(l, l.client, server, true) })
	pumps.Wait()
}

// pump copies from src to dst until src ends, and then ends dst's input. An
// error cuts the link.
func (p *Proxy) pump(l *link, dst, src net.Conn, reply bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if !p.await(l, reply) {
				return
			}
			if _, err := dst.Write(buf[:n]); err != nil {
				p.cut(l)
				return
			}
		}
		if errors.Is(err, io.EOF) {
			if !p.await(l, reply) {
				return
			}
			if half, ok := dst.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite()
			}
			return
		}
		if err != nil {
			p.cut(l)
			return
		}
	}
}

func (p *Proxy) cut(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.reset()
}

// await returns true when data of l may pass, and false when the link was cut.
func (p *Proxy) await(l *link, reply bool) bool {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.ctx.Done():
			return false
		}
	}
	for {
		p.mu.Lock()
		held, changed := l.held || reply && p.holdReplies || !reply && p.holdRequests, p.changed
		p.mu.Unlock()
		if !held {
			return l.ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-l.ctx.Done():
			return false
		}
	}
}
