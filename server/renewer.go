package server

import (
	"context"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/store"
)

// renewer sends the renewals of many agents as one request, so that they share
// a commit. One request is under way at a time: while it is, those that come in
// gather for the next.
type renewer struct {
	st      store.Store
	window  time.Duration // how long the first of a request waits for others
	timeout time.Duration // of a request
	most    int           // grants of a request
	in      chan *renewal
	ended   chan struct{} // closed when run has returned
}

// renewal is some grants on their way. The results belong to the renewer until
// done is closed, so that a sender that went away blocks nobody.
type renewal struct {
	ctx     context.Context // of the sender, for what it carries: a trace
	grants  []store.Grant
	results []store.Result
	left    int // grants without a result
	done    chan struct{}
}

// pending is one grant of a renewal.
type pending struct {
	of    *renewal
	index int
}

func (p pending) grant() *store.Grant { return &p.of.grants[p.index] }

func newRenewer(st store.Store, window, timeout time.Duration) *renewer {
	return &renewer{st: st, window: window, timeout: timeout, most: 2000, in: make(chan *renewal, 1024), ended: make(chan struct{})}
}

// errEnded says that nobody sends any more.
var errEnded = fmt.Errorf("%w: this replica is shutting down", store.ErrUnavailable)

// renew sends g with others and returns the store's answer. The error is that of
// renewAll.
func (r *renewer) renew(ctx context.Context, g store.Grant) (store.Result, error) {
	results, err := r.renewAll(ctx, []store.Grant{g})
	if err != nil {
		return store.Result{}, err
	}
	return results[0], nil
}

// renewAll sends grants, and maybe others with them, and returns the store's
// answer to each. Two of one name are sent one after the other. The error is
// ctx's, and leaves the outcome of all unknown, or matches store.ErrUnavailable
// if run ended before they were sent.
func (r *renewer) renewAll(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	if len(grants) == 0 {
		return nil, nil
	}
	n := &renewal{ctx: ctx, grants: grants, results: make([]store.Result, len(grants)), left: len(grants), done: make(chan struct{})}
	select {
	case r.in <- n:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-r.ended:
		return nil, errEnded
	}
	select {
	case <-n.done:
		return n.results, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-r.ended:
	}
	select {
	case <-n.done:
		return n.results, nil
	default:
		return nil, errEnded
	}
}

// run sends until ctx ends, once. A request that is under way then is finished.
func (r *renewer) run(ctx context.Context) {
	defer close(r.ended)
	var left []pending // of names that the last batch had already, or beyond its size
	for ctx.Err() == nil {
		batch, names := make([]pending, 0, 64), map[string]bool{}
		var later []pending
		add := func(p pending) {
			if name := p.grant().Name; len(batch) < r.most && !names[name] {
				names[name] = true
				batch = append(batch, p)
			} else {
				later = append(later, p)
			}
		}
		addAll := func(n *renewal) {
			for i := range n.grants {
				add(pending{n, i})
			}
		}
		for _, p := range left {
			add(p)
		}
		if len(batch) == 0 {
			select {
			case n := <-r.in:
				addAll(n)
			case <-ctx.Done():
				return
			}
		}
		window := time.NewTimer(r.window)
	gather:
		for len(batch) < r.most {
			select {
			case n := <-r.in:
				addAll(n)
			case <-window.C:
				break gather
			case <-ctx.Done():
				break gather
			}
		}
		window.Stop()
		left = later
		r.send(batch)
	}
}

// send sends one request. Whoever came first has it in its trace.
func (r *renewer) send(batch []pending) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(batch[0].of.ctx), r.timeout)
	defer cancel()
	grants := make([]store.Grant, len(batch))
	for i, p := range batch {
		grants[i] = *p.grant()
	}
	results, err := r.st.Renew(ctx, grants)
	for i, p := range batch {
		if err != nil {
			p.of.results[p.index] = store.Result{Err: err}
		} else {
			p.of.results[p.index] = results[i]
		}
		if p.of.left--; p.of.left == 0 {
			close(p.of.done)
		}
	}
}
