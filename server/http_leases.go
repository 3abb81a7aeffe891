package server

import (
	"context"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// guarded is the store as requests may use it: an agent's holds the lease of its
// own node and no other.
type guarded struct{ measured }

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
	return g.measured.Acquire(ctx, req)
}

// Renew is of store.Store, for whoever may hold all of the leases.
func (g guarded) Renew(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	if err := g.checkAll(ctx, grants); err != nil {
		return nil, err
	}
	return g.measured.Renew(ctx, grants)
}

// Release is of store.Store, for whoever may hold all of the leases.
func (g guarded) Release(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	if err := g.checkAll(ctx, grants); err != nil {
		return nil, err
	}
	return g.measured.Release(ctx, grants)
}

// Done is of store.Slotter, for whoever may hold the lease.
func (g guarded) Done(ctx context.Context, grant store.Grant, slot string) error {
	if err := g.check(ctx, grant.Name); err != nil {
		return err
	}
	return g.measured.Done(ctx, grant, slot)
}

func unsupported(what string) error {
	return api.Refuse(store.CodeUnsupported, "this server's store %s", what)
}
