package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
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
var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func keepBody(buf *bytes.Buffer) {
	if buf.Cap() <= 256<<10 {
		buf.Reset()
		bodies.Put(buf)
	}
}

// beat serves POST beat.
func (h *handler) beat(w http.ResponseWriter, r *http.Request) error {
	var b api.Beat
	if err := h.takeBeats(r, maxBeat, &b); err != nil {
		return err
	}
	if err := identity(r.Context()).speaksFor(b.Node); err != nil {
		return err
	}
	reply, err := h.Beat(r.Context(), &b)
	if err != nil {
		return err
	}
	return answerBeats(w, func(e *encoder) { e.reply(&reply) })
}

// beats serves POST beats.
func (h *handler) beats(w http.ResponseWriter, r *http.Request) error {
	var b api.Beats
	if err := h.takeBeats(r, maxRelay, &b); err != nil {
		return err
	}
	id := identity(r.Context())
	for i := range b.Beats {
		if err := id.speaksFor(b.Beats[i].Node); err != nil {
			return err
		}
	}
	if len(b.Beats) == 0 {
		return id.speaksFor("")
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
	buf := bodies.Get().(*bytes.Buffer)
	defer keepBody(buf)
	if r.ContentLength > most {
		return tooLarge(most)
	}
	// One byte more than is allowed tells a body that is too large. A slow one ends
	// with the server's ReadTimeout.
	if _, err := buf.ReadFrom(io.LimitReader(r.Body, most+1)); err != nil {
		return api.RefuseInvalid("body", "", "a whole body within "+readTimeout.String())
	}
	if int64(buf.Len()) > most {
		return tooLarge(most)
	}
	err := jsonv2.Unmarshal(buf.Bytes(), v, jsonv2.RejectUnknownMembers(true))
	if err == nil {
		return nil
	}
	// The usual decoder words refusals as everywhere else. What it would let
	// through has a name twice, or in other letters.
	if err := endpoint.Decode(buf.Bytes(), v); err != nil {
		return err
	}
	return api.RefuseInvalid("body", "", err.Error())
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
	buf := bodies.Get().(*bytes.Buffer)
	defer keepBody(buf)
	e := encoder{b: buf.AvailableBuffer()}
	encode(&e)
	if e.err != nil {
		return fmt.Errorf("answer: %w", e.err)
	}
	e.b = append(e.b, '\n')
	buf.Write(e.b) // grows the buffer if the answer outgrew it, for the next one
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
