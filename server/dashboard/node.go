package dashboard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// nodePage says how one node stands: its four facts, each with since when and
// where that comes from.
type nodePage struct {
	Why      *api.NodeWhy
	Node     *api.Node
	Facts    []fact
	Uses     []use
	Beats    *api.Timeline
	Gap      *api.BeatMark // the longest gap of Beats
	Renewals int           // beats of Beats with a renewal
	Took     []mark        // how many seconds renewals took, while somebody looked
	Lease    *api.Record   // nil if it has none
	Bands    *bands
	Work     []api.Work
	Taken    []api.Takeover
	Events   []fleet.Event
}

// fact is one of the four, which are never merged into one.
type fact struct {
	Name   string
	State  string
	Good   bool
	Grave  bool
	Since  time.Time
	Text   string
	Source string
}

func (d *Dashboard) showNode(ctx context.Context, q *question) (view, error) {
	why, err := q.WhyNode(ctx, q.id())
	if err != nil {
		return view{}, err
	}
	n := &why.Node
	p := nodePage{Why: why, Node: n, Uses: uses(n), Events: slices.Clone(why.Events)}
	slices.Reverse(p.Events)
	if p.Beats, err = q.Timeline(ctx, n.ID); err != nil {
		return view{}, err
	}
	for i := range p.Beats.Beats {
		b := &p.Beats.Beats[i]
		if p.Gap == nil || b.GapMS > p.Gap.GapMS {
			p.Gap = b
		}
		if b.Renewed {
			p.Renewals++
		}
	}
	if at := p.Beats.RenewedAt; !at.IsZero() {
		p.Took = d.rates.note(nodeURL(n.ID), n.Lease.Token, mark{at, float64(p.Beats.RenewUS) / 1e6})
	}
	leases := api.NewStore(q.Client)
	rec, err := leases.Get(ctx, fleet.LeaseName(n.ID))
	switch {
	case err == nil:
		p.Lease = new(api.NewRecord(rec))
		if p.Bands, err = readBands(ctx, leases, p.Lease); err != nil {
			return view{}, err
		}
	case !errors.Is(err, store.ErrNotFound):
		return view{}, err
	}
	works, err := q.Works(ctx, api.WorkQuery{Owner: n.ID, States: []fleet.WorkState{fleet.Placed, fleet.Running, fleet.Stopping}, Limit: 200})
	if err != nil {
		return view{}, err
	}
	p.Work = works.Work
	taken, err := q.Takeovers(ctx, api.TakeoverQuery{Node: n.ID, Last: true, Limit: 10})
	if err != nil {
		return view{}, err
	}
	p.Taken = taken.Takeovers
	p.Facts = p.facts()
	return view{title: "Node " + n.ID, template: "node", data: p}, nil
}

func (p *nodePage) facts() []fact {
	n := p.Node
	live := fact{
		Name: "Liveness", State: string(n.Liveness), Good: n.Liveness == fleet.Alive, Grave: n.Stale, Since: n.Since,
		Text:   fmt.Sprintf("last beat %s of listening ago; suspect after %s", spanMS(p.Beats.SilentMS), spanMS(p.Beats.LimitMS)),
		Source: "heartbeats, as replica " + p.Beats.Server + " and the registry heard them",
	}
	lease := fact{Name: "Lease", State: string(n.Lease.State), Good: n.Lease.State == fleet.LeaseHeld, Grave: n.Fenced, Source: "the store's clock"}
	switch n.Lease.State {
	case fleet.LeaseHeld:
		lease.Text = fmt.Sprintf("%s left of token %s", spanMS(n.Lease.RemainingMS), n.Lease.Token)
	case fleet.LeaseRevoked:
		lease.Text = fmt.Sprintf("token %s is over in %s at the latest, and cannot be renewed", n.Lease.Token, spanMS(n.Lease.RemainingMS))
	case fleet.LeaseLapsed, fleet.LeaseReleased:
		lease.Text = fmt.Sprintf("token %s, %s ago", n.Lease.Token, spanMS(n.Lease.OverMS))
	default:
		lease.Text = "there is no lease of its name"
	}
	if r := p.Lease; r != nil {
		switch n.Lease.State {
		case fleet.LeaseHeld, fleet.LeaseRevoked:
			lease.Since = r.AcquiredAt
		case fleet.LeaseLapsed:
			lease.Since = r.ExpiresAt
		default:
			lease.Since = r.EndedAt
		}
		if r.Holder != "" {
			lease.Source += "; holder " + r.Holder
		}
	}
	intent := fact{Name: "Intent", State: string(n.Intent), Good: n.Intent == fleet.Active, Text: "it may get work", Source: "nobody has ordered anything"}
	if c := n.IntentMarks.Cordon; c != nil {
		intent.Since, intent.Text, intent.Source = c.At, c.Reason, "operator "+c.Actor
	}
	if d := n.IntentMarks.Drain; d != nil {
		intent.Since, intent.Text, intent.Source = d.At, d.Reason, "operator "+d.Actor
		if !d.Deadline.IsZero() {
			intent.Text += "; to be done by " + when(d.Deadline)
		}
		if !d.Done.IsZero() {
			intent.Since = d.Done
		}
	}
	ready := fact{Name: "Readiness", State: "ready", Good: true, Text: "it takes new work", Source: "the node itself, incarnation " + n.Incarnation}
	if r := n.Facts.Readiness; !r.Ready {
		ready.State, ready.Good, ready.Since, ready.Text = "not ready", false, n.NotReady, r.Reason
		if r.Text != "" {
			ready.Text += ": " + r.Text
		}
	}
	return []fact{live, lease, intent, ready}
}
