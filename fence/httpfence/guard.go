package httpfence

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/tenurehq/tenure/fence"
)

// Guard is an http.Handler that passes a request to Next only under a token that
// is not stale. GET, HEAD and OPTIONS pass unguarded. Make it with NewGuard. It is
// safe for concurrent use.
type Guard struct {
	marks fence.Marks
	next  http.Handler
	cfg   Config
	turns turns
}

// Config sets a Guard. The zero value of each field means its default.
type Config struct {
	// ResourceFunc names the resource that a request writes to; "" lets it pass
	// unguarded. A client that names another one is answered 400. Nil: the
	// client's word is taken, which is right where all that a client may write is
	// one resource to it.
	ResourceFunc func(*http.Request) string
	// GuardReads also guards GET, HEAD and OPTIONS.
	GuardReads bool
}

// NewGuard returns a Guard of next. Marks are to be as durable as what next
// writes; sqlfence keeps them beside it.
func NewGuard(marks fence.Marks, next http.Handler, cfg Config) *Guard {
	return &Guard{marks: marks, next: next, cfg: cfg}
}

// ServeHTTP answers 412 with the current token in TokenHeader if the request's is
// stale, 428 if it has none, 400 if a header is not what it should be, and 503,
// to be tried again, if the marks do not answer or a handler of an older term does
// not return before the request's context ends. Each has a problem as its body.
func (g *Guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var want string
	if g.cfg.ResourceFunc != nil {
		want = g.cfg.ResourceFunc(r)
	}
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
	if reads && !g.cfg.GuardReads || want == "" && g.cfg.ResourceFunc != nil {
		g.next.ServeHTTP(w, r)
		return
	}
	resource, token, refusal := stated(r, want)
	if refusal != nil {
		refusal.write(w)
		return
	}
	ctx, cancel := context.WithCancelCause(context.WithValue(r.Context(), key{}, guarded{resource, token}))
	defer cancel(nil)
	v := g.turns.arrive(resource, token, cancel)
	defer v.leave()
	if p := g.admit(ctx, v); p != nil {
		p.write(w)
		return
	}
	g.next.ServeHTTP(w, r.WithContext(ctx))
}

// admit returns nil when the visit may begin, and otherwise what to answer.
func (g *Guard) admit(ctx context.Context, v *visit) *problem {
	p := &problem{Status: http.StatusServiceUnavailable, Resource: v.resource, Token: v.token}
	_, err := g.marks.Raise(ctx, v.resource, v.token)
	p.Code, p.Detail = CodeUnavailable, "the marks could not be asked; try again" // their own words are not for clients
	if err == nil {
		err = v.begin(ctx)
		p.Code, p.Detail = CodeBusy, "the work of an older term has not ended; try again"
	}
	if err == nil {
		return nil
	}
	var stale *fence.StaleError
	switch {
	case errors.As(err, &stale), errors.As(context.Cause(ctx), &stale): // a newer term came while this one was asking
		p.Status, p.Code, p.Detail, p.Current = http.StatusPreconditionFailed, CodeStale, stale.Error(), stale.Current
	case errors.Is(err, fence.ErrMark): // these marks take fewer names than others
		p.Status, p.Code, p.Detail = http.StatusBadRequest, CodeInvalid, err.Error()
	}
	return p
}

// stated returns what the headers say, or why they cannot be taken.
func stated(r *http.Request, want string) (resource string, token fence.Token, refusal *problem) {
	resources, tokens := r.Header.Values(ResourceHeader), r.Header.Values(TokenHeader)
	invalid := func(format string, args ...any) (string, fence.Token, *problem) {
		return "", 0, &problem{Status: http.StatusBadRequest, Code: CodeInvalid, Detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case len(resources) == 0 && len(tokens) == 0:
		return "", 0, &problem{Status: http.StatusPreconditionRequired, Code: CodeMissing, Resource: want,
			Detail: fmt.Sprintf("this is guarded: send %s and %s", ResourceHeader, TokenHeader)}
	case len(resources) != 1 || len(tokens) != 1:
		return invalid("send each of %s and %s once", ResourceHeader, TokenHeader)
	case want != "" && resources[0] != want:
		return invalid("%s is %q, but this writes to %q", ResourceHeader, resources[0], want)
	}
	token, err := fence.ParseToken(tokens[0])
	if err != nil {
		return invalid("%s: %v", TokenHeader, err)
	}
	if err := fence.CheckMark(token, resources[0]); err != nil {
		return invalid("%s: %v", ResourceHeader, err)
	}
	return resources[0], token, nil
}
