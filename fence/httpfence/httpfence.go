// Package httpfence lets an HTTP service refuse the writes of a holder whose term
// is over.
//
// The client sends each request through a [Transport], which adds two headers:
//
//	Tenure-Resource: invoices
//	Tenure-Token: 42
//
// The server wraps its handler in a [Guard], which checks and raises the mark of
// the resource before the handler sees the request, and answers 412 with the
// current token if the request's is stale.
//
// # Promised
//
// A request with a stale token reaches no handler, and none of its body is read. The
// same request gets the same answer again. When the handler sees a request, no
// handler behind the same Guard still works on one of an older term of that
// resource: the contexts of those end with *fence.StaleError, and the newer
// request waits for their return.
//
// # Not promised
//
// The Guard orders the requests of its own process. Where several replicas share
// their marks, another replica may still be in a handler that it entered before
// the mark was raised. Such a handler checks the mark once more where it writes,
// with the token of [Token]:
//
//	resource, token, _ := httpfence.Token(r.Context())
//	_, err := marks.In(tx).Raise(ctx, resource, token)
//
// A mark protects as long as it is kept: use Marks that are as durable as what the
// handler writes. The headers are no proof of identity: authenticate clients as
// before.
package httpfence

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/tenurehq/tenure/fence"
)

// The headers of a request. An answer has TokenHeader too where a token was
// refused: the current one.
const (
	ResourceHeader = "Tenure-Resource"
	TokenHeader    = "Tenure-Token"
)

// Codes of the answers of a Guard, in the field "code" of a problem (RFC 9457).
const (
	CodeStale       = "stale_token" // 412
	CodeMissing     = "no_token"    // 428: the request has none of the headers
	CodeInvalid     = "invalid"     // 400: a header is not what it should be
	CodeUnavailable = "no_marks"    // 503: the marks could not be asked
	CodeBusy        = "busy"        // 503: the work of an older term did not end
)

// problem is the body of a refusal.
type problem struct {
	Title    string      `json:"title"`
	Status   int         `json:"status"`
	Detail   string      `json:"detail"`
	Code     string      `json:"code"`
	Resource string      `json:"resource,omitempty"`
	Token    fence.Token `json:"token,omitempty"`
	Current  fence.Token `json:"current,omitempty"`
}

func (p problem) write(w http.ResponseWriter) {
	p.Title = http.StatusText(p.Status)
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if p.Status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	if p.Current != 0 {
		h.Set(ResourceHeader, p.Resource)
		h.Set(TokenHeader, p.Current.String())
	}
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // a client that has gone needs no answer
}

type key struct{}

type guarded struct {
	resource string
	token    fence.Token
}

// Token returns the resource and the token under which a handler behind a Guard
// works. ok is false for a request that the Guard let pass unguarded.
func Token(ctx context.Context) (resource string, token fence.Token, ok bool) {
	g, ok := ctx.Value(key{}).(guarded)
	return g.resource, g.token, ok
}

// ErrNoRight reports that a request was not sent, since the term is over or in
// doubt.
var ErrNoRight = errors.New("httpfence: no right to act")

// Stale returns *fence.StaleError if a Guard refused the request of resp for its
// token, and nil otherwise. It leaves the body alone. A 412 of the service's own,
// for If-Match say, has no token and is not stale.
func Stale(resp *http.Response) error {
	if resp.StatusCode != http.StatusPreconditionFailed {
		return nil
	}
	current, err := fence.ParseToken(resp.Header.Get(TokenHeader))
	if err != nil {
		return nil
	}
	stale := &fence.StaleError{Resource: resp.Header.Get(ResourceHeader), Current: current}
	if resp.Request != nil {
		stale.Token, _ = fence.ParseToken(resp.Request.Header.Get(TokenHeader)) // 0 if somebody took it out
	}
	return stale
}
