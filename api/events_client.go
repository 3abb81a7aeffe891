package api

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"time"

	"github.com/tenurehq/tenure/fleet"
)

const (
	// streamQuiet is after how long without a byte a stream is taken for dead.
	// Servers send a comment every 5 s.
	streamQuiet = 20 * time.Second
	// maxEvent bounds one event in bytes.
	maxEvent = 1 << 20
	// maxRejoin bounds the wait before a stream is opened again.
	maxRejoin = 5 * time.Second
)

// stream is an open stream of server-sent events, after the specification of
// the WHATWG (HTML, "Server-sent events").
type stream struct {
	body   io.ReadCloser
	lines  *bufio.Scanner
	cancel context.CancelFunc
	dead   *time.Timer
}

// open opens a stream at one replica: the one in use, and the next one in the
// call after a failure. The stream ends with ctx.
func (c *Client) open(ctx context.Context, path string, query url.Values) (*stream, error) {
	r := call{lane: &c.streams, method: http.MethodGet, path: path, query: query}
	i := c.current.Load()
	base := c.replicas[int(i)%len(c.replicas)]
	streaming, cancel := context.WithCancel(ctx)
	dead := time.AfterFunc(c.timeout, cancel)
	resp, _, err := c.roundTrip(streaming, base, r, nil)
	if err == nil {
		err = c.streamHead(resp)
	}
	if err != nil {
		if resp != nil {
			_ = resp.Body.Close()
		}
		dead.Stop()
		cancel()
		if refusal, refused := errors.AsType[*Error](err); refused && !refusal.elsewhere() {
			return nil, err
		}
		if !errors.Is(ctx.Err(), context.Canceled) {
			c.current.CompareAndSwap(i, (i+1)%uint32(len(c.replicas)))
			r.lane.closeIdle()
		}
		return nil, c.failed(base, r, ctx, err)
	}
	dead.Reset(streamQuiet)
	s := &stream{body: resp.Body, cancel: cancel, dead: dead}
	s.lines = bufio.NewScanner(s)
	s.lines.Buffer(nil, maxEvent)
	return s, nil
}

func (c *Client) streamHead(resp *http.Response) error {
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode == http.StatusOK && mediaType == "text/event-stream" {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxEvent))
	if err != nil {
		return err
	}
	return refusal(resp.StatusCode, mediaType, body)
}

// Read passes what arrives on to the scanner, and notes that the stream lives.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	if n > 0 {
		s.dead.Reset(streamQuiet)
	}
	return n, err
}

// next returns the data of the next event. io.EOF says that the server ended
// the stream.
func (s *stream) next() ([]byte, error) {
	var data []byte
	some := false
	for s.lines.Scan() {
		line := s.lines.Bytes()
		if len(line) == 0 {
			if some {
				return data, nil
			}
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if string(name) != "data" {
			continue // a comment, or a field that is not used here
		}
		if some {
			data = append(data, '\n')
		}
		if data = append(data, bytes.TrimPrefix(value, []byte(" "))...); len(data) > maxEvent {
			return nil, fmt.Errorf("%w: an event is larger than %d bytes", errGarbled, maxEvent)
		}
		some = true
	}
	if err := s.lines.Err(); err != nil {
		return nil, err
	}
	return nil, io.EOF
}

func (s *stream) close() {
	s.dead.Stop()
	s.cancel()
	_ = s.body.Close()
}

// Events returns events of the ledger, in order of their numbers.
func (c *Client) Events(ctx context.Context, q EventQuery) (*Events, error) {
	var out Events
	err := c.send(ctx, call{lane: &c.calls, method: http.MethodGet, path: "/v1/events", query: q.values(), again: true}, &out, func() string {
		return missing(out.Events == nil, "events")
	})
	if err != nil {
		return nil, err
	}
	return &out, nil
}

// FollowEvents yields the events after q.After, and goes on as they happen until
// ctx ends or the loop does. When a stream breaks, it opens another one, at the
// next replica, after the last event that it yielded: none is lost or told
// twice. Where the server has dropped entries it yields an EventPruned. Before, Limit and Last are not used. It stops after the first error: a refusal,
// or the context's.
func (c *Client) FollowEvents(ctx context.Context, q EventQuery) iter.Seq2[fleet.Event, error] {
	return func(yield func(fleet.Event, error) bool) {
		q.Before, q.Limit, q.Last = 0, 0, false
		wait := 100 * time.Millisecond
		for {
			before := q.After
			again, err := c.follow(ctx, &q, yield)
			if !again {
				return
			}
			refusal, refused := errors.AsType[*Error](err)
			if ctx.Err() != nil || refused && !refusal.elsewhere() {
				if ctx.Err() != nil {
					err = fmt.Errorf("api: events: %w", ctx.Err())
				}
				yield(fleet.Event{}, err)
				return
			}
			if q.After != before {
				wait = 100 * time.Millisecond
			}
			if pause(ctx, jitter(wait)) == nil {
				wait = min(2*wait, maxRejoin)
			}
		}
	}
}

// follow yields the events of one stream. again is false if the loop ended.
func (c *Client) follow(ctx context.Context, q *EventQuery, yield func(fleet.Event, error) bool) (again bool, err error) {
	s, err := c.open(ctx, "/v1/events/stream", q.values())
	if err != nil {
		return true, err
	}
	defer s.close()
	for {
		data, err := s.next()
		if err != nil {
			return true, err
		}
		var e fleet.Event
		if err := whole(data, &e); err != nil {
			return true, err
		}
		if e.Seq <= q.After {
			continue
		}
		q.After = e.Seq
		if !yield(e, nil) {
			return false, nil
		}
	}
}

func (q *EventQuery) values() url.Values {
	v := url.Values{}
	numbers(v, map[string]int64{"after": q.After, "before": q.Before, "limit": int64(q.Limit)})
	for name, text := range map[string]string{"node": q.Node, "work": q.Work, "kind": string(q.Kind)} {
		if text != "" {
			v.Set(name, text)
		}
	}
	if q.Last {
		v.Set("last", "true")
	}
	return v
}
