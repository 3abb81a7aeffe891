//go:build linux

package guardian

import (
	"encoding/gob"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// socketPair returns both ends of a connection like that of runner and guardian.
func socketPair(t *testing.T) (a, b *os.File) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b = os.NewFile(uintptr(pair[0]), "a"), os.NewFile(uintptr(pair[1]), "b")
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// A process that gets no processor between setting a timeout and writing finds
// the timeout over. What it had to say is late then, and not lost.
func TestSendLateIsNotLost(t *testing.T) {
	t.Parallel()
	a, b := socketPair(t)
	out := newOutbox(a)
	out.send(report{Pong: true}, -time.Second) // over before it begins
	out.send(report{Started: 7}, time.Minute)
	_ = b.SetReadDeadline(time.Now().Add(10 * time.Second))
	dec := gob.NewDecoder(b)
	var first, second report
	if err := dec.Decode(&first); err != nil || !first.Pong {
		t.Errorf("got %+v, %v; want the first message", first, err)
	}
	if err := dec.Decode(&second); err != nil || second.Started != 7 {
		t.Errorf("got %+v, %v; want the second message", second, err)
	}
}

// A peer that does not read for a while gets every message whole, once it does.
func TestSendToAFullSocket(t *testing.T) {
	t.Parallel()
	a, b := socketPair(t)
	out := newOutbox(a)
	text := strings.Repeat("x", 1<<20) // more than a socket holds
	out.send(report{Notice: &Notice{Detail: text}}, 10*time.Millisecond)
	out.send(report{Started: 7}, 10*time.Millisecond)
	read := make(chan error, 1)
	go func() {
		_ = b.SetReadDeadline(time.Now().Add(10 * time.Second))
		dec := gob.NewDecoder(b)
		var r report
		if err := dec.Decode(&r); err != nil || r.Notice == nil || r.Notice.Detail != text {
			t.Errorf("got another first message: %v", err)
		}
		r = report{}
		err := dec.Decode(&r)
		if r.Started != 7 {
			t.Errorf("got %+v, want the second message", r)
		}
		read <- err
	}()
	out.flush(10 * time.Second)
	if err := <-read; err != nil {
		t.Error(err)
	}
}
