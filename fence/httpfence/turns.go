package httpfence

import (
	"context"
	"sync"

	"github.com/tenurehq/tenure/fence"
)

// turns keeps handlers of different terms of one resource apart. The zero value is
// ready. It knows a resource only while a request of it is here.
//
// A request arrives before it asks the marks, and begins after they accepted it.
// So of two, the older either has arrived when the newer begins, which then stops
// it and waits until it has left, or asks the marks later and is refused.
type turns struct {
	mu sync.Mutex
	at map[string]*turn
}

// turn is what goes on at one resource.
type turn struct {
	here    map[*visit]struct{}
	changed chan struct{} // closed and replaced when one leaves
}

// visit is one request.
type visit struct {
	ts       *turns
	turn     *turn
	resource string
	token    fence.Token
	stop     context.CancelCauseFunc
}

// arrive notes a request. Its leave must be called. stop ends its work.
func (ts *turns) arrive(resource string, token fence.Token, stop context.CancelCauseFunc) *visit {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.at[resource]
	if t == nil {
		t = &turn{here: map[*visit]struct{}{}, changed: make(chan struct{})}
		if ts.at == nil {
			ts.at = map[string]*turn{}
		}
		ts.at[resource] = t
	}
	v := &visit{ts, t, resource, token, stop}
	t.here[v] = struct{}{}
	return v
}

// begin stops the requests of older terms and waits until they have left, or
// returns the cause of ctx.
func (v *visit) begin(ctx context.Context) error {
	v.ts.mu.Lock()
	defer v.ts.mu.Unlock()
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		older := false
		for o := range v.turn.here {
			if o.token < v.token {
				older = true
				o.stop(&fence.StaleError{Resource: v.resource, Token: o.token, Current: v.token})
			}
		}
		if !older {
			return nil
		}
		changed := v.turn.changed
		v.ts.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		v.ts.mu.Lock()
	}
}

func (v *visit) leave() {
	v.ts.mu.Lock()
	defer v.ts.mu.Unlock()
	delete(v.turn.here, v)
	close(v.turn.changed)
	v.turn.changed = make(chan struct{})
	if len(v.turn.here) == 0 {
		delete(v.ts.at, v.resource)
	}
}
