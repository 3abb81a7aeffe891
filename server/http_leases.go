package server

import (
	"context"
	"iter"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// guarded is the store as requests may use it: an agent's holds the lease of its
// own node and no other. What the store does not offer it answers with
// store.ErrUnsupported.
type guarded struct{ store.Store }

var (
	_ store.Watcher   = guarded{}
	_ store.Historian = guarded{}
	_ store.Slotter   = guarded{}
	_ store.Cleaner   = guarded{}
	_ store.Doctor    = guarded{}
)

// check returns why the sender of a request may not hold a lease.
func (guarded) check(ctx context.Context, name string) error {
	switch id := identity(ctx); {
	case id.Role == Operator, id.Role == Agent && name == fleet.LeaseName(id.Node):
		return nil
	case id.Role == Agent:
		return api.Refuse(api.CodeForbidden, "this token is bound to node %q, and holds the lease %q only", id.Node, fleet.LeaseName(id.Node))
	default:
		return api.Refuse(api.CodeForbidden, "the role %s holds no leases", id.Role)
	}
}

func (g guarded) checkAll(ctx context.Context, grants []store.Grant) error {
	for i := range grants {
		if err := g.check(ctx, grants[i].Name); err != nil {
			return err
		}
	}
	return nil
}

// Acquire is of store.Store, for whoever may hold the lease.
func (g guarded) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	if err := g.check(ctx, req.Name); err != nil {
		return store.Record{}, err
	}
	return g.Store.Acquire(ctx, req)
}

// Renew is of store.Store, for whoever may hold all of the leases.
func (g guarded) Renew(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	if err := g.checkAll(ctx, grants); err != nil {
		return nil, err
	}
	return g.Store.Renew(ctx, grants)
}

// Release is of store.Store, for whoever may hold all of the leases.
func (g guarded) Release(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	if err := g.checkAll(ctx, grants); err != nil {
		return nil, err
	}
	return g.Store.Release(ctx, grants)
}

// Done is of store.Slotter, for whoever may hold the lease.
func (g guarded) Done(ctx context.Context, grant store.Grant, slot string) error {
	if err := g.check(ctx, grant.Name); err != nil {
		return err
	}
	if s, ok := g.Store.(store.Slotter); ok {
		return s.Done(ctx, grant, slot)
	}
	return unsupported("keeps no slots")
}

// Slot is of store.Slotter.
func (g guarded) Slot(ctx context.Context, name, slot string) (store.Slot, error) {
	if s, ok := g.Store.(store.Slotter); ok {
		return s.Slot(ctx, name, slot)
	}
	return store.Slot{}, unsupported("keeps no slots")
}

// History is of store.Historian.
func (g guarded) History(ctx context.Context, name string) iter.Seq2[store.Term, error] {
	if h, ok := g.Store.(store.Historian); ok {
		return h.History(ctx, name)
	}
	return func(yield func(store.Term, error) bool) { yield(store.Term{}, unsupported("keeps no past terms")) }
}

// Clean is of store.Cleaner.
func (g guarded) Clean(ctx context.Context, idle time.Duration) (int, error) {
	if c, ok := g.Store.(store.Cleaner); ok {
		return c.Clean(ctx, idle)
	}
	return 0, unsupported("cleans no records")
}

// Diagnose is of store.Doctor.
func (g guarded) Diagnose(ctx context.Context) ([]store.Finding, error) {
	if d, ok := g.Store.(store.Doctor); ok {
		return d.Diagnose(ctx)
	}
	return nil, unsupported("has nothing to look at")
}

// Watch is of store.Watcher.
func (g guarded) Watch(ctx context.Context, name string) (<-chan store.Event, error) {
	if w, ok := g.Store.(store.Watcher); ok {
		return w.Watch(ctx, name)
	}
	return nil, unsupported("cannot tell of starts and ends of terms")
}

// Features is of store.Store.
func (g guarded) Features() store.Features {
	f := g.Store.Features()
	if _, ok := g.Store.(store.Watcher); !ok {
		f.Watch = false
	}
	return f
}

func unsupported(what string) error {
	return api.Refuse(store.CodeUnsupported, "this server's store %s", what)
}
