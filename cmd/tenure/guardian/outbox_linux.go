package guardian

import (
	"bytes"
	"encoding/gob"
	"os"
	"time"
)

// outbox sends messages to the other end without waiting longer than it is told
// to, and without ever tearing the stream: what could not be written in time is
// kept, and goes out first the next time. That matters to a process that gets no
// processor for a while: it may find a timeout over before it has tried to write.
// Little waits: a guardian is found stalled after two seconds of silence, and
// says little itself unless it is asked.
// An outbox is for one goroutine at a time.
type outbox struct {
	conn *os.File
	buf  bytes.Buffer // encoded and not written yet
	enc  *gob.Encoder // into buf
}

func newOutbox(conn *os.File) *outbox {
	o := &outbox{conn: conn}
	o.enc = gob.NewEncoder(&o.buf)
	return o
}

// send queues m and writes what can be written within timeout.
func (o *outbox) send(m any, timeout time.Duration) {
	_ = o.enc.Encode(m) // into memory, and of types that gob knows: cannot fail
	o.flush(timeout)
}

// flush writes what waits. A failure means that the peer is gone, which the end
// of its stream says too, or that it does not read at present.
func (o *outbox) flush(timeout time.Duration) {
	_ = o.conn.SetWriteDeadline(time.Now().Add(timeout))
	_, _ = o.buf.WriteTo(o.conn)
}
