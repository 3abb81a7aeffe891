package server

import (
	"context"
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
}

// renewal is one grant on its way. done has room for the answer, so that a
// sender that went away blocks nobody.
type renewal struct {
	grant store.Grant
	done  chan store.Result
}

func newRenewer(st store.Store, window, timeout time.Duration) *renewer {
	return &renewer{st: st, window: window, timeout: timeout, most: 2000, in: make(chan *renewal, 1024)}
}

// renew sends g with others and returns the store's answer. The error is
// ctx's, and leaves the outcome unknown.
func (r *renewer) renew(ctx context.Context, g store.Grant) (store.Result, error) {
	n := &renewal{grant: g, done: make(chan store.Result, 1)}
	select {
	case r.in <- n:
	case <-ctx.Done():
		return store.Result{}, context.Cause(ctx)
	}
	select {
	case result := <-n.done:
		return result, nil
	case <-ctx.Done():
		return store.Result{}, context.Cause(ctx)
	}
}

// run sends until ctx ends. A request that is under way then is finished.
func (r *renewer) run(ctx context.Context) {
	var left []*renewal // of names that the last batch had already
	for {
		batch, names := make([]*renewal, 0, 64), map[string]bool{}
		add := func(n *renewal) bool {
			if names[n.grant.Name] {
				return false
			}
			names[n.grant.Name] = true
			batch = append(batch, n)
			return true
		}
		var twice []*renewal
		for _, n := range left {
			if !add(n) {
				twice = append(twice, n)
			}
		}
		if len(batch) == 0 {
			select {
			case n := <-r.in:
				add(n)
			case <-ctx.Done():
				return
			}
		}
		window := time.NewTimer(r.window)
	gather:
		for len(batch) < r.most {
			select {
			case n := <-r.in:
				if !add(n) {
					twice = append(twice, n)
				}
			case <-window.C:
				break gather
			case <-ctx.Done():
				break gather
			}
		}
		window.Stop()
		left = twice
		r.send(ctx, batch)
	}
}

func (r *renewer) send(ctx context.Context, batch []*renewal) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.timeout)
	defer cancel()
	grants := make([]store.Grant, len(batch))
	for i, n := range batch {
		grants[i] = n.grant
	}
	results, err := r.st.Renew(ctx, grants)
	for i, n := range batch {
		if err != nil {
			n.done <- store.Result{Err: err}
		} else {
			n.done <- results[i]
		}
	}
}
