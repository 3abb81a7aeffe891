package server

import (
	"context"
	"errors"
)

// Alive returns nil once the loop that keeps this replica's lease as the reconciler
// has answered, and otherwise the cause of ctx's end; see tenure.Keeper.Alive. A
// database that cannot be reached is no reason to start a replica anew: see Ready.
func (s *Server) Alive(ctx context.Context) error {
	k := s.keeper.Load()
	if k == nil {
		return errors.New("the replica does not run yet")
	}
	return k.Alive(ctx)
}
