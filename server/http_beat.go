package server

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/server/endpoint"
)

// Limits of the bodies that bring beats, in bytes.
const (
	maxBeat  = 1 << 20
	maxRelay = 8 << 20
)

// Paths of the operations that are not served through package endpoint: they are
// most of what a server does.
const (
	beatPath  = "/v1/beat"
	beatsPath = "/v1/beats"
)

// bodies are buffers for bodies and answers. A large one is not kept.
var bodies = sync.Pool{New: func() any { return new([]byte) }}

func keepBody(buf *[]byte) {
	if cap(*buf) <= 256<<10 {
		*buf = (*buf)[:0]
		bodies.Put(buf)
	}
}

// beat serves POST beat.
func (h *handler) beat(w http.ResponseWriter, r *http.Request, id Identity) error {
	var b api.Beat
	if err := h.takeBeats(r, maxBeat, &b); err != nil {
		return err
	}
	if err := id.speaksFor(b.Node); err != nil {
		return err
	}
	reply, err := h.Beat(r.Context(), &b)
	if err != nil {
		return err
	}
	return answerBeats(w, func(e *encoder) { e.reply(&reply) })
}

// beats serves POST beats.
func (h *handler) beats(w http.ResponseWriter, r *http.Request, id Identity) error {
	var b api.Beats
	if err := h.takeBeats(r, maxRelay, &b); err != nil {
		return err
	}
	for i := range b.Beats {
		if err := id.speaksFor(b.Beats[i].Node); err != nil {
			return err
		}
	}
	if len(b.Beats) == 0 {
		if err := id.speaksFor(""); err != nil {
			return err
		}
	}
	if b.Beats == nil {
		return api.RefuseInvalid("beats", "", "a list, which may be empty")
	}
	replies := h.Beats(r.Context(), b.Beats)
	return answerBeats(w, func(e *encoder) { e.replies(replies) })
}

// takeBeats decodes the body of r into v once this replica knows the nodes.
func (h *handler) takeBeats(r *http.Request, most int64, v any) error {
	if !h.loaded.Load() {
		return notReady(errors.New("the registry has not been read yet"))
	}
	if t := r.Header.Get("Content-Type"); t != "application/json" {
		if mediaType, _, err := mime.ParseMediaType(t); err != nil || mediaType != "application/json" {
			return api.Refuse(api.CodeMediaType, "the body must be declared as Content-Type: application/json")
		}
	}
	buf := bodies.Get().(*[]byte)
	defer keepBody(buf)
	if err := readBody(r, most, buf); err != nil {
		return err
	}
	err := jsonv2.Unmarshal(*buf, v, jsonv2.RejectUnknownMembers(true))
	if err == nil {
		return nil
	}
	// The usual decoder words refusals as everywhere else. What it would let
	// through has a name twice, or in other letters.
	if err := endpoint.Decode(*buf, v); err != nil {
		return err
	}
	return api.RefuseInvalid("body", "", err.Error())
}

// readBody appends the body of r to buf. A slow one ends with the server's
// ReadTimeout.
func readBody(r *http.Request, most int64, buf *[]byte) error {
	if r.ContentLength > most {
		return tooLarge(most)
	}
	b := slices.Grow(*buf, int(min(max(r.ContentLength, 0), 64<<10))+512)
	for {
		n, err := r.Body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		*buf = b
		switch {
		case int64(len(b)) > most:
			return tooLarge(most)
		case err == io.EOF:
			return nil
		case err != nil:
			return api.RefuseInvalid("body", "", "a whole body within "+readTimeout.String())
		case len(b) == cap(b):
			b = slices.Grow(b, len(b))
		}
	}
}

func tooLarge(most int64) error {
	return api.Refuse(api.CodeTooLarge, "the body is larger than %d bytes", most)
}

func notReady(err error) error {
	e := api.Refuse(api.CodeNotReady, "this replica is not ready: %v", err)
	e.RetryAfter = time.Second
	return e
}

func answerBeats(w http.ResponseWriter, encode func(*encoder)) error {
	buf := bodies.Get().(*[]byte)
	defer keepBody(buf)
	e := encoder{b: *buf}
	encode(&e)
	e.b = append(e.b, '\n')
	*buf = e.b
	if e.err != nil {
		return fmt.Errorf("answer: %w", e.err)
	}
	header := w.Header()
	header["Content-Type"] = jsonType
	header["Cache-Control"] = noStore
	header["X-Content-Type-Options"] = noSniff
	header["Content-Length"] = []string{strconv.Itoa(len(e.b))}
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(e.b) // a reader that has gone needs no answer
	return nil
}

// Values of headers, which net/http does not change.
var (
	jsonType = []string{"application/json"}
	noStore  = []string{"no-store"}
	noSniff  = []string{"nosniff"}
)
