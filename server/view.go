package server

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/server/registry"
)

// Nodes returns the fleet as this replica knows it. A yes that is drawn from it
// is confirmed by the statement that acts on it; a no needs authoritative.
func (s *Server) Nodes() []fleet.Node {
	at, now := s.in.at(), clock.Now().Boot
	slots := s.in.all()
	nodes := make([]fleet.Node, 0, len(slots))
	for _, n := range slots {
		n.mu.Lock()
		if n.row != nil {
			nodes = append(nodes, n.node(at, now, time.Duration(s.skew.Load()), s.cfg.Flap))
		}
		n.mu.Unlock()
	}
	return nodes
}

// authoritative returns the fleet as the registry knows it now, with what any
// replica has heard (P8).
func (s *Server) authoritative(ctx context.Context) ([]fleet.Node, error) {
	began := clock.Now().Boot
	rows, _, err := s.reg.Nodes(ctx, 0)
	if err != nil {
		return nil, err
	}
	s.takeAll(rows, began)
	began = clock.Now().Boot
	signs, err := s.reg.Signs(ctx, nil)
	if err != nil {
		return nil, err
	}
	s.takeSigns(signs, began)
	at := s.in.at()
	for _, n := range s.in.all() {
		n.mu.Lock()
		n.judge(at)
		n.mu.Unlock()
	}
	return s.Nodes(), nil
}

// authoritativeNode is authoritative for one node. If the registry cannot be read
// it returns that error: what was read before answers nothing.
func (s *Server) authoritativeNode(ctx context.Context, id string) (fleet.Node, error) {
	began := clock.Now().Boot
	row, ok, err := s.reg.Node(ctx, id)
	if err != nil {
		return fleet.Node{}, err
	}
	if !ok {
		s.lost(id, began)
		return fleet.Node{}, api.Refuse(fleet.CodeNoSuchNode, "no node %q has joined", id)
	}
	s.take(&row, began)
	began = clock.Now().Boot
	signs, err := s.reg.Signs(ctx, []string{id})
	if err != nil {
		return fleet.Node{}, err
	}
	s.takeSigns(signs, began)
	n := s.in.slot(id)
	at, now := s.in.at(), clock.Now().Boot
	n.mu.Lock()
	defer n.mu.Unlock()
	n.judge(at)
	if n.row == nil {
		return fleet.Node{}, api.Refuse(fleet.CodeNoSuchNode, "no node %q has joined", id)
	}
	return n.node(at, now, time.Duration(s.skew.Load()), s.cfg.Flap), nil
}

// conditions are what the rules need beside the nodes.
func (s *Server) conditions() fleet.Conditions {
	return fleet.Conditions{Brakes: *s.brakes.Load()}
}

// Observing says for how long every node has been watched without a break, and
// whether that is too short to conclude anything from silence.
func (s *Server) Observing() (watched time.Duration, tooShort bool) {
	o := s.in.observer.Load()
	watched = o.At(clock.Now().Boot) - o.Since()
	return watched, watched <= s.cfg.suspect()
}

// Node returns a node as the interface shows it.
func (s *Server) wireNode(n *fleet.Node) api.Node {
	return api.Node{
		ID: n.ID, Incarnation: n.Incarnation, Facts: n.Facts, NotReady: n.NotReady,
		Liveness: n.Liveness, AgeMS: n.Age.Milliseconds(), Since: n.Since, Lease: wireLease(n.Lease),
		Intent: n.Intent.State(), IntentMarks: n.Intent, Reserved: n.Reserved, Work: n.Work, Stuck: n.Stuck,
		Flapping: n.Flapping, Duplicate: n.Duplicate,
		Stale: stale(n), Fenced: fenced(n), Draining: draining(n),
		Exclusions: nonNil(fleet.Exclusions(*n, fleet.Request{}, time.Now(), s.conditions())),
	}
}

func nonNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func wireLease(l fleet.Lease) api.NodeLease {
	return api.NodeLease{State: l.State, Token: l.Token, Holder: l.Holder, RemainingMS: l.Remaining.Milliseconds(), OverMS: l.Over.Milliseconds()}
}

// wireNodes returns nodes as the interface shows them, oldest beat first.
func (s *Server) wireNodes(nodes []fleet.Node) []api.Node {
	slices.SortFunc(nodes, func(a, b fleet.Node) int {
		return cmp.Or(cmp.Compare(b.Age, a.Age), cmp.Compare(a.ID, b.ID))
	})
	wire := make([]api.Node, len(nodes))
	for i := range nodes {
		wire[i] = s.wireNode(&nodes[i])
	}
	return wire
}

// brakeStates reads what the active replica saved of the brake, with instants by
// the database's clock.
func brakeStates(b registry.Brake) ([]fleet.BrakeState, error) {
	var states []fleet.BrakeState
	if b.State == nil {
		return states, nil
	}
	if err := json.Unmarshal(b.State, &states); err != nil {
		return nil, fmt.Errorf("state of the brake: %w", err)
	}
	return states, nil
}

// shiftBrakes moves the instants of the brake from one clock to another.
func shiftBrakes(states []fleet.BrakeState, by time.Duration) {
	for i := range states {
		b := &states[i]
		for _, at := range []*time.Time{&b.Since, &b.From, &b.LetAt, &b.By.At} {
			if !at.IsZero() {
				*at = at.Add(by)
			}
		}
	}
}
