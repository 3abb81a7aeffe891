package endpoint

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// KeepAlive is after how long without an event a stream sends a comment, by
// which its reader sees that it is still connected.
const KeepAlive = 5 * time.Second

// writeTime is how long a reader may leave a stream unread.
const writeTime = 10 * time.Second

// Event is one event of a stream. ID is what a reader shows to go on after it; 0: none.
type Event[E any] struct {
	ID   int64
	Data E
}

// Stream adds op to api as a stream of server-sent events. open is called with
// what was decoded, and returns once nothing is missed any more; its error is
// answered as a problem. The stream ends with its channel or its reader, whose
// going ends the context.
func Stream[I, E any](a huma.API, op huma.Operation, open func(context.Context, *I) (<-chan Event[E], error), log *slog.Logger) {
	in := describe[I](a, &op)
	respond(&op, http.StatusOK, "text/event-stream", a.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[E](), true, ""))
	add(a, &op, log, func(w http.ResponseWriter, r *http.Request) error {
		input := new(I)
		if err := in.decode(w, r, reflect.ValueOf(input).Elem()); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		events, err := open(ctx, input)
		if err != nil {
			return err
		}
		h := w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no") // asks a proxy not to hold events back
		s := stream{w: w, ctl: http.NewResponseController(w)}
		defer func() { _ = s.ctl.SetWriteDeadline(time.Time{}) }() // the connection may go on
		if !s.send(": open\n\n") {
			return nil
		}
		quiet := time.NewTimer(KeepAlive)
		defer quiet.Stop()
		for {
			text := ": still here\n\n"
			select {
			case <-ctx.Done():
				return nil
			case e, ok := <-events:
				if !ok {
					return nil
				}
				if text, err = format(e); err != nil {
					panic(http.ErrAbortHandler) // the reader sees the stream end, and asks
				}
			case <-quiet.C:
			}
			if !s.send(text) {
				return nil
			}
			quiet.Reset(KeepAlive)
		}
	})
}

func format[E any](e Event[E]) (string, error) {
	data, err := json.Marshal(e.Data)
	if err != nil {
		return "", fmt.Errorf("endpoint: event: %w", err)
	}
	id := ""
	if e.ID != 0 {
		id = "id: " + strconv.FormatInt(e.ID, 10) + "\n"
	}
	return id + "data: " + string(data) + "\n\n", nil
}

type stream struct {
	w   http.ResponseWriter
	ctl *http.ResponseController
}

// send reports whether the reader is still there.
func (s *stream) send(text string) bool {
	_ = s.ctl.SetWriteDeadline(time.Now().Add(writeTime)) // a writer that cannot has the server's own limit
	if _, err := s.w.Write([]byte(text)); err != nil {
		return false
	}
	return s.ctl.Flush() == nil
}
