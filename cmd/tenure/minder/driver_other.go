//go:build !linux

package minder

import (
	"context"

	"github.com/tenurehq/tenure/agent"
)

// Main does nothing on this system.
func Main() {}

// Driver runs nothing on this system.
type Driver struct{}

var _ agent.Driver = (*Driver)(nil)

// New returns [ErrUnsupported].
func New(Config) (*Driver, error) { return nil, ErrUnsupported }

// Start returns [ErrUnsupported].
func (*Driver) Start(context.Context, agent.Task) (agent.Run, error) { return nil, ErrUnsupported }

// Attach returns [ErrUnsupported].
func (*Driver) Attach(context.Context, agent.Instance) (agent.Run, error) { return nil, ErrUnsupported }

// List returns [ErrUnsupported].
func (*Driver) List() ([]agent.Instance, error) { return nil, ErrUnsupported }

// Forget returns [ErrUnsupported].
func (*Driver) Forget(agent.Instance) error { return ErrUnsupported }
