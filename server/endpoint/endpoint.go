// Package endpoint puts typed functions behind HTTP, and describes them in the
// OpenAPI document of a huma API.
//
// # Promised
//
// A function is called only with what was decoded whole: one JSON object of a
// bounded size, declared as application/json (so that no web page can send it to
// a server on loopback), without unknown fields, in valid UTF-8, each number a
// whole one within the range that the document tells. Whatever else comes is
// answered with an api.Problem that names the field and the rule, and so is every
// error that a function returns. A function that panics is answered with the code
// fault and goes to the log; the reply holds nothing of it.
//
// # Not promised
//
// Who may call an operation is decided before it, by the middlewares of the API.
//
// # How
//
// The types of a function say what it takes, in the tags that huma reads: an
// input is a struct with fields tagged `path` or `query` and a field Body; an
// output is one with a field Body and, if it varies, Status. huma keeps the
// document and the routes. Its own decoding is not used: it lets numbers wrap
// through floating point, answers 422, and decodes each body twice.
package endpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"runtime/debug"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/tenurehq/tenure/api"
)

// MaxBody is the limit of a body in bytes where the operation states none.
const MaxBody = 64 << 10

// Register adds op to api: handle is called with what was decoded. log gets
// faults; nil discards them. The API must be one of package humago.
func Register[I, O any](a huma.API, op huma.Operation, handle func(context.Context, *I) (*O, error), log *slog.Logger) {
	in, out := describe[I](a, &op), reflect.TypeFor[O]()
	body, ok := out.FieldByName("Body")
	if !ok {
		panic(fmt.Sprintf("endpoint: %s has no field Body", out)) // a defect of the caller, seen at start
	}
	status, varies := out.FieldByName("Status")
	respond(&op, http.StatusOK, "application/json", a.OpenAPI().Components.Schemas.Schema(body.Type, true, body.Type.Name()))
	add(a, &op, log, func(w http.ResponseWriter, r *http.Request) error {
		input := new(I)
		if err := in.decode(w, r, reflect.ValueOf(input).Elem()); err != nil {
			return err
		}
		output, err := handle(r.Context(), input)
		if err != nil {
			return err
		}
		v, code := reflect.ValueOf(output).Elem(), http.StatusOK
		if varies {
			if s := int(v.FieldByIndex(status.Index).Int()); s != 0 {
				code = s
			}
		}
		return write(w, code, "application/json", v.FieldByIndex(body.Index).Interface())
	})
}

// add puts serve behind the route of op, and op into the document.
func add(a huma.API, op *huma.Operation, log *slog.Logger, serve func(http.ResponseWriter, *http.Request) error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	problem := a.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[api.Problem](), true, "Problem")
	if op.Responses == nil {
		op.Responses = map[string]*huma.Response{}
	}
	op.Responses["default"] = &huma.Response{
		Description: "a refusal: its code says why",
		Content:     map[string]*huma.MediaType{api.ProblemType: {Schema: problem}},
	}
	a.OpenAPI().AddOperation(op)
	handler := func(ctx huma.Context) {
		r, w := humago.Unwrap(ctx)
		r = r.WithContext(ctx.Context()) // what the middlewares added
		defer func() {
			fault := recover()
			if fault == nil {
				return
			}
			if err, ok := fault.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(fault) // net/http's own way to cut a connection
			}
			log.Error("request failed by a defect", "operation", op.OperationID, "err", fmt.Sprint(fault), "stack", string(debug.Stack()))
			Problem(w, api.Refuse(api.CodeFault, "the server failed at %s by a defect of its own; its log says more", op.OperationID))
		}()
		if err := serve(w, r); err != nil {
			Problem(w, err)
		}
	}
	a.Adapter().Handle(op, a.Middlewares().Handler(op.Middlewares.Handler(handler)))
}

func respond(op *huma.Operation, status int, mediaType string, schema *huma.Schema) {
	if op.Responses == nil {
		op.Responses = map[string]*huma.Response{}
	}
	op.Responses[strconv.Itoa(status)] = &huma.Response{
		Description: http.StatusText(status),
		Content:     map[string]*huma.MediaType{mediaType: {Schema: schema}},
	}
}

// Problem answers err; see api.NewError.
func Problem(w http.ResponseWriter, err error) {
	e := api.NewError(err)
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((e.RetryAfter.Seconds())+0.999), 10))
	}
	_ = write(w, e.Status, api.ProblemType, e.Problem()) // a reader that has gone needs no answer
}

// write answers with a body of known length, so that one that was cut off is
// seen as such.
func write(w http.ResponseWriter, status int, mediaType string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("endpoint: answer: %w", err)
	}
	h := w.Header()
	h.Set("Content-Type", mediaType)
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
	return nil
}
