package storetest_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/store/storetest"
)

const bound = 10 * time.Second // for what must happen

// echo answers every line, and counts the lines that reached it.
type echo struct {
	net.Listener
	lines atomic.Int64
}

func newEcho(t *testing.T) *echo {
	t.Helper()
	return newEchoAt(t, "tcp", "127.0.0.1:0")
}

func newEchoAt(t *testing.T, network, address string) *echo {
	t.Helper()
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{Listener: listener}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					e.lines.Add(1)
					if _, err := io.WriteString(conn, lines.Text()+"\n"); err != nil {
						return
					}
				}
			}()
		}
	}()
	return e
}

func newProxy(t *testing.T, e *echo) *storetest.Proxy {
	t.Helper()
	p, err := storetest.NewProxy(e.Addr().Network(), e.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return p
}

type peer struct {
	*testing.T
	net.Conn
	replies *bufio.Reader
}

func dial(t *testing.T, p *storetest.Proxy) *peer {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &peer{T: t, Conn: conn, replies: bufio.NewReader(conn)}
}

func (c *peer) say(line string) {
	c.Helper()
	if _, err := io.WriteString(c.Conn, line+"\n"); err != nil {
		c.Fatal(err)
	}
}

// hear reads one line within d.
func (c *peer) hear(d time.Duration) (string, error) {
	_ = c.SetReadDeadline(time.Now().Add(d))
	line, err := c.replies.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

func (c *peer) answered(line string) {
	c.Helper()
	if got, err := c.hear(bound); err != nil || got != line {
		c.Fatalf("got %q and error %v, want %q", got, err, line)
	}
}

func (c *peer) silent() {
	c.Helper()
	if got, err := c.hear(50 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.Fatalf("got %q and error %v, want nothing", got, err)
	}
}

func TestProxyPasses(t *testing.T) {
	t.Parallel()
	p := newProxy(t, newEcho(t))
	for i := range 3 {
		c := dial(t, p)
		c.say("hello")
		c.answered("hello")
		if got := p.Accepted(); got != i+1 {
			t.Errorf("accepted: got %d, want %d", got, i+1)
		}
		if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if _, err := c.hear(bound); !errors.Is(err, io.EOF) {
			t.Errorf("after the end of input: got error %v, want the server's end", err)
		}
	}
}

func TestProxyToUnixSocket(t *testing.T) {
	t.Parallel()
	p := newProxy(t, newEchoAt(t, "unix", filepath.Join(t.TempDir(), "s")))
	c := dial(t, p)
	c.say("hello")
	c.answered("hello")
	p.Reset()
	if got, err := c.hear(bound); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after a reset: got %q and error %v, want the connection to be cut", got, err)
	}
}

func TestProxyHoldExisting(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	p := newProxy(t, e)
	old := dial(t, p)
	old.say("before")
	old.answered("before")
	p.HoldExisting()
	old.say("held")
	old.silent()
	fresh := dial(t, p)
	fresh.say("fresh")
	fresh.answered("fresh")
	if got := e.lines.Load(); got != 2 {
		t.Errorf("lines at the server: got %d, want 2", got)
	}
	p.Pass()
	old.answered("held")
}

func TestProxyHoldNew(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	p := newProxy(t, e)
	old := dial(t, p)
	old.say("before")
	old.answered("before")
	p.HoldNew()
	fresh := dial(t, p)
	fresh.say("held")
	fresh.silent()
	old.say("after")
	old.answered("after")
	p.Pass()
	fresh.answered("held")
}

func TestProxyHoldReplies(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	p := newProxy(t, e)
	c := dial(t, p)
	p.HoldReplies()
	c.say("applied")
	for deadline := time.Now().Add(bound); e.lines.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the request did not reach the server")
		}
	}
	c.silent()
	// A connection that is cut loses what was held.
	p.Reset()
	p.Pass()
	if got, err := c.hear(bound); err == nil {
		t.Errorf("got %q, want the lost reply to stay lost", got)
	}
	c = dial(t, p)
	c.say("again")
	c.answered("again")
}

func TestProxyHoldRequests(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	p := newProxy(t, e)
	c := dial(t, p)
	p.HoldReplies()
	c.say("under way")
	for deadline := time.Now().Add(bound); e.lines.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the request did not reach the server")
		}
	}
	p.Pass()
	p.HoldRequests()
	c.answered("under way") // an answer passes
	c.say("late")
	c.silent()
	fresh := dial(t, p)
	fresh.say("late too")
	fresh.silent()
	if got := e.lines.Load(); got != 1 {
		t.Errorf("lines at the server: got %d, want 1", got)
	}
	p.Pass()
	c.answered("late")
	fresh.answered("late too")
}

func TestProxyDelay(t *testing.T) {
	t.Parallel()
	p := newProxy(t, newEcho(t))
	c := dial(t, p)
	p.Delay(30 * time.Millisecond)
	start := time.Now()
	c.say("slow")
	c.answered("slow")
	if took := time.Since(start); took < 60*time.Millisecond {
		t.Errorf("a delay of 30ms in each direction took %s", took)
	}
	p.Pass()
	c.say("fast")
	c.answered("fast")
}

// A request that was on the wire arrives, although its sender has gone.
func TestProxyLateRequest(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	p := newProxy(t, e)
	c := dial(t, p)
	c.say("before")
	c.answered("before")
	p.HoldExisting()
	c.say("late")
	_ = c.Close()
	p.Pass()
	for deadline := time.Now().Add(bound); e.lines.Load() < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the request did not reach the server")
		}
	}
}

func TestProxyTargetGone(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	p := newProxy(t, e)
	_ = e.Close()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		return // cut before the dial was done
	}
	c := &peer{T: t, Conn: conn, replies: bufio.NewReader(conn)}
	defer func() { _ = conn.Close() }()
	if got, err := c.hear(bound); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %q and error %v, want the connection to be cut", got, err)
	}
}

// Close ends everything, whatever is held, and may be called twice. It does not
// run beside other tests, since it counts goroutines.
func TestProxyClose(t *testing.T) {
	e := newEcho(t)
	before := runtime.NumGoroutine()
	for _, fault := range []func(*storetest.Proxy){
		func(*storetest.Proxy) {},
		(*storetest.Proxy).HoldExisting,
		(*storetest.Proxy).HoldNew,
		(*storetest.Proxy).HoldReplies,
		func(p *storetest.Proxy) { p.Delay(time.Hour) },
	} {
		p, err := storetest.NewProxy("tcp", e.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		old := dial(t, p)
		old.say("before")
		old.answered("before")
		fault(p)
		old.say("held")
		dial(t, p).say("held too")
		for range 2 {
			if err := p.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
		if _, err := net.Dial("tcp", p.Addr()); err == nil {
			t.Error("the proxy still accepts")
		}
	}
	for deadline := time.Now().Add(bound); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
	}
}
