package server

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
)

// Limits of a beat.
const (
	maxBeatWork   = 4096
	maxBeatDoubts = 16
	maxText       = 1024 // bytes of a text or a progress marker
	maxLateMS     = 24 * 3600 * 1000
)

// checkBeat returns an error matching store.ErrInvalid that names the field.
func checkBeat(b *api.Beat) error {
	if err := fleet.CheckID("node", b.Node); err != nil {
		return err
	}
	if err := fleet.CheckID("incarnation", b.Incarnation); err != nil {
		return err
	}
	bad := func(field string, value any, rule string) error {
		return &store.InvalidError{Field: field, Value: fmt.Sprint(value), Rule: rule}
	}
	switch {
	case b.Seq == 0:
		return bad("seq", b.Seq, "must be 1 or more")
	case b.LateMS < 0 || b.LateMS > maxLateMS:
		return bad("late_ms", b.LateMS, "must be from 0 to a day")
	case len(b.Doubts) > maxBeatDoubts:
		return bad("doubts", len(b.Doubts), fmt.Sprintf("at most %d", maxBeatDoubts))
	case len(b.Work) > maxBeatWork:
		return bad("work", len(b.Work), fmt.Sprintf("at most %d items a beat", maxBeatWork))
	}
	for _, d := range b.Doubts {
		if len(d) > maxText {
			return bad("doubts", len(d), fmt.Sprintf("at most %d bytes each", maxText))
		}
	}
	for i := range b.Work {
		w := &b.Work[i]
		if err := fleet.CheckID("work", w.Work); err != nil {
			return err
		}
		if len(w.Progress) > maxText || len(w.Text) > maxText {
			return bad("work", w.Work, fmt.Sprintf("progress and text have at most %d bytes", maxText))
		}
	}
	if b.Facts != nil {
		if err := b.Facts.Check(); err != nil {
			return err
		}
	}
	if b.Renew != nil {
		if g, err := grant(b); err != nil {
			return err
		} else if err := g.CheckRenew(time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// grant returns what a beat shows to renew the lease of its node.
func grant(b *api.Beat) (*store.Grant, error) {
	if b.Renew.TTLMS < 1 || b.Renew.TTLMS > store.MaxTTL.Milliseconds() {
		return nil, &store.InvalidError{Field: "renew.ttl_ms", Value: fmt.Sprint(b.Renew.TTLMS), Rule: fmt.Sprintf("must be from 1 to %d", store.MaxTTL.Milliseconds())}
	}
	return &store.Grant{
		Name: fleet.LeaseName(b.Node), Token: b.Renew.Token, TTL: time.Duration(b.Renew.TTLMS) * time.Millisecond,
		Attempt: b.Renew.Attempt, Known: b.Renew.Known,
	}, nil
}

// Beat takes in one heartbeat. An error matches store.ErrInvalid and nothing was
// taken in, or it is a store's or ctx's and the reply is lost: that the node was
// heard counts in any case.
func (s *Server) Beat(ctx context.Context, b *api.Beat) (api.BeatReply, error) {
	if err := checkBeat(b); err != nil {
		s.counts.add("beat", "invalid")
		return api.BeatReply{}, err
	}
	reply := api.BeatReply{Node: b.Node, IntervalMS: s.cfg.Interval.Milliseconds(), Leftovers: true}
	n := s.in.find(b.Node)
	if n == nil {
		// Nobody has joined under this name. To keep it would let anybody fill the memory.
		if b.Facts == nil {
			reply.NeedFacts = true
			s.counts.add("beat", "")
			return reply, nil
		}
		n = s.in.slot(b.Node)
		defer s.in.forgetUnjoined(n)
	}
	now := clock.Now().Boot
	at := s.in.atBoot(now)
	lateness := time.Duration(b.LateMS) * time.Millisecond

	n.mu.Lock()
	stands := n.standing(b.Incarnation, now)
	if stands == present {
		n.hear(at, lateness, now)
		if n.liveness == fleet.Observing || n.liveness == fleet.Late {
			n.judge(at)
		}
		if b.Seq <= n.seq {
			reply.Code, reply.Text = fleet.CodeOldSequence, fmt.Sprintf("beat %d came after beat %d", b.Seq, n.seq)
		} else {
			n.seq = b.Seq
		}
	}
	n.mu.Unlock()
	if stands == rival && b.Renew != nil {
		// The lease decides which of two that use one name is the node.
		if err := s.renew(ctx, b, n, &reply); err != nil {
			return reply, err
		}
		if reply.Renewed.Code == "" {
			stands = newcomer
		}
	}
	var err error
	switch stands {
	case replaced:
		reply.Code, reply.Text = fleet.CodeReplaced, "a later incarnation of this node has taken over its name"
	case rival:
		n.mu.Lock()
		n.duplicate, n.duplicateAt = b.Incarnation, now
		reply.Code, reply.Text = fleet.CodeDuplicateNode, fmt.Sprintf("incarnation %s uses this name now", n.incarnation)
		n.mu.Unlock()
	case newcomer:
		err = s.join(ctx, b, n, at, lateness, &reply)
	case present:
		if reply.Code == "" {
			err = s.facts(ctx, b, n, &reply)
		}
	}
	s.counts.add("beat", string(reply.Code))
	if err != nil || reply.Code != "" || reply.NeedFacts && stands == newcomer {
		return reply, err
	}
	if b.Renew != nil && reply.Renewed == nil {
		if err := s.renew(ctx, b, n, &reply); err != nil {
			return reply, err
		}
	}
	if len(b.Work) > 0 {
		if err := s.reports(ctx, b, &reply); err != nil {
			return reply, err
		}
	}
	n.mu.Lock()
	row := n.row
	n.mu.Unlock()
	if row != nil {
		reply.Intent = row.Intent.State()
		if row.Orders != b.Orders {
			orders, err := s.orders(ctx, b.Node)
			if err != nil {
				return reply, err
			}
			reply.Orders = orders
		}
	}
	return reply, nil
}

// join makes an incarnation the node's, if the registry agrees: it remembers
// those that were replaced, which this replica may not have seen.
func (s *Server) join(ctx context.Context, b *api.Beat, n *slot, at, lateness time.Duration, reply *api.BeatReply) error {
	if b.Facts == nil {
		reply.NeedFacts = true
		return nil
	}
	n.mu.Lock()
	wanted := n.wanted()
	n.mu.Unlock()
	v, err := s.reg.Join(ctx, registry.Report{Node: b.Node, Incarnation: b.Incarnation, Facts: durable(b.Facts), Intent: wanted})
	if err != nil {
		return err
	}
	if v.Code != "" {
		reply.Code, reply.Text = v.Code, v.Text
		return nil
	}
	n.mu.Lock()
	n.become(b.Incarnation)
	n.seq, n.facts, n.version = max(n.seq, b.Seq), b.Facts, b.FactsVersion
	n.hear(at, lateness, clock.Now().Boot)
	n.judge(at)
	n.mu.Unlock()
	s.log.Info("node joined", "node", b.Node, "incarnation", b.Incarnation)
	s.touch(ctx, b.Node)
	return nil
}

// facts keeps what the present incarnation of a node says of itself, and the
// durable part of it in the registry if that changed.
func (s *Server) facts(ctx context.Context, b *api.Beat, n *slot, reply *api.BeatReply) error {
	n.mu.Lock()
	if b.Facts != nil {
		n.facts, n.version = b.Facts, b.FactsVersion
	}
	facts := n.facts
	reply.NeedFacts = facts == nil || n.version != b.FactsVersion
	known := facts == nil || n.row != nil && n.row.Incarnation == b.Incarnation && n.agrees()
	wanted := n.wanted()
	n.mu.Unlock()
	if known {
		return nil
	}
	v, err := s.reg.Join(ctx, registry.Report{Node: b.Node, Incarnation: b.Incarnation, Facts: durable(facts), Intent: wanted})
	if err != nil {
		return err
	}
	if v.Code != "" {
		reply.Code, reply.Text = v.Code, v.Text
		return nil
	}
	s.touch(ctx, b.Node)
	return nil
}

// renew sends the renewal of a beat and notes what comes of it.
func (s *Server) renew(ctx context.Context, b *api.Beat, n *slot, reply *api.BeatReply) error {
	g, err := grant(b)
	if err != nil {
		return err
	}
	began := clock.Now().Boot
	result, err := s.renewer.renew(ctx, *g)
	if err != nil {
		return err
	}
	n.noteRenewal(&result, reply, began, clock.Now().Boot)
	s.counts.add("renewal", string(reply.Renewed.Code))
	return nil
}

// noteRenewal notes what came of a renewal that was asked for and is answered at
// these instants of the boot clock.
func (s *slot) noteRenewal(result *store.Result, reply *api.BeatReply, began, now time.Duration) {
	reply.Renewed = new(api.NewResult(*result))
	if result.Record.Name != "" {
		s.mu.Lock()
		s.see(fleetLease(&result.Record), now)
		if result.Err == nil {
			s.extended = extension{now, now - began}
		}
		s.mu.Unlock()
	}
}

// fleetLease is a record as the lease of a node.
func fleetLease(r *store.Record) fleet.Lease {
	l := fleet.Lease{Token: r.Token, Holder: r.Holder, Remaining: r.Remaining}
	switch {
	case r.Status == store.Held && r.Revoked:
		l.State = fleet.LeaseRevoked
	case r.Status == store.Held:
		l.State = fleet.LeaseHeld
	case r.Status == store.Released:
		l.State, l.Over = fleet.LeaseReleased, r.Now.Sub(r.EndedAt)
	case r.Status == store.Lapsed:
		l.State, l.Over = fleet.LeaseLapsed, r.Now.Sub(r.ExpiresAt)
	default:
		l.State = fleet.LeaseNone
	}
	return l
}

// reports applies what a node says of its work.
func (s *Server) reports(ctx context.Context, b *api.Beat, reply *api.BeatReply) error {
	changes := make([]registry.Change, len(b.Work))
	for i, w := range b.Work {
		changes[i] = registry.Change{
			Work: w.Work, Node: b.Node, Token: w.Token, Lease: w.Lease, State: w.State,
			Progress: w.Progress, ExitCode: w.ExitCode, Text: w.Text,
		}
	}
	verdicts, err := s.reg.Apply(ctx, changes)
	if err != nil {
		return err
	}
	reply.Work = make([]api.WorkVerdict, len(verdicts))
	for i, v := range verdicts {
		reply.Work[i] = api.WorkVerdict{Work: b.Work[i].Work, Code: v.Code, Owner: v.Owner, Current: v.Current}
		s.counts.add("work", string(v.Code))
	}
	if slices.ContainsFunc(verdicts, func(v registry.Verdict) bool { return v.Code == "" && v.Event.Seq != 0 }) {
		s.touch(ctx, b.Node)
	}
	return nil
}

// orders returns all that a node is to do.
func (s *Server) orders(ctx context.Context, node string) (*api.Orders, error) {
	kept, ok, err := s.reg.Orders(ctx, node)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, api.Refuse(fleet.CodeNoSuchNode, "no node %q has joined", node)
	}
	o := &api.Orders{Revision: kept.Revision, Intent: kept.Intent.State(), Work: make([]api.Order, len(kept.Work))}
	for i, w := range kept.Work {
		o.Work[i] = api.Order{Spec: w.Spec, Token: w.Token, Lease: w.Lease, Stop: w.State == fleet.Stopping, Why: w.Why, Progress: w.Progress}
	}
	return o, nil
}

// WaitOrders returns the orders of a node once their revision is another than
// after, or as they are when wait has passed.
func (s *Server) WaitOrders(ctx context.Context, node string, after uint64, wait time.Duration) (*api.Orders, error) {
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for n := s.in.find(node); n != nil; n = s.in.find(node) {
		n.mu.Lock()
		row, changed := n.orders()
		n.mu.Unlock()
		if row != nil && row.Orders != after {
			break
		}
		select {
		case <-changed:
			continue
		case <-timeout.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		break
	}
	return s.orders(ctx, node)
}
