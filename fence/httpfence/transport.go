package httpfence

import (
	"fmt"
	"net/http"

	"github.com/tenurehq/tenure/fence"
)

// Transport is an http.RoundTripper that sends the resource and the token with
// each request, redirects included, and none once the right to act has ended. It
// is safe for concurrent use if its parts are.
type Transport struct {
	// Resource is what the requests write to.
	Resource string
	// TokenFunc returns the token, and whether its holder may act now:
	// Term.MayAct of package tenure. It is asked just before each request.
	TokenFunc func() (token fence.Token, ok bool)
	// Base sends the requests. Nil: http.DefaultTransport.
	Base http.RoundTripper
}

// RoundTrip sends a copy of req with the headers. The error matches ErrNoRight,
// and nothing was sent, if the holder may not act, and fence.ErrMark if resource
// or token is none. Otherwise it is Base's. Whether the answer is a refusal tells
// Stale.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	token, ok := t.TokenFunc()
	err := fence.CheckMark(token, t.Resource)
	if !ok {
		err = fmt.Errorf("%w: %q (token %s)", ErrNoRight, t.Resource, token)
	}
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // RoundTripper's duty, also on errors
		}
		return nil, err
	}
	sent := req.Clone(req.Context())
	sent.Header.Set(ResourceHeader, t.Resource)
	sent.Header.Set(TokenHeader, token.String())
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	return base.RoundTrip(sent)
}
