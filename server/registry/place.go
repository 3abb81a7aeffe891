package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
)

// judgeTarget says why a node, whose row is locked, may not get work that needs
// something, "" if it may.
func (t *tx) judgeTarget(id string, n *nodeRow, l fleet.Lease, token fence.Token, need fleet.Resources) (Verdict, error) {
	v, err := t.judgeNode(id, n, l, token, need)
	v.OfTarget = v.Code != ""
	return v, err
}

func (t *tx) judgeNode(id string, n *nodeRow, l fleet.Lease, token fence.Token, need fleet.Resources) (Verdict, error) {
	if n == nil || n.removed {
		return noSuchNode(id), nil
	}
	switch state := n.intent.State(); state {
	case fleet.Cordoned:
		return refused(fleet.CodeCordoned, "node %q is cordoned", id), nil
	case fleet.Draining:
		return refused(fleet.CodeDraining, "node %q is draining", id), nil
	case fleet.Drained:
		return refused(fleet.CodeDrained, "node %q is drained", id), nil
	}
	if v := judgeOwn(id, l, token); v.Code != "" {
		return v, nil
	}
	if l.State == fleet.LeaseRevoked {
		return refused(fleet.CodeLeaseRevoked, "the lease of node %q is revoked", id), nil
	}
	reserved := fleet.Resources{}
	err := t.each(func(row scanner) error {
		var resources string
		if err := row.Scan(&resources); err != nil {
			return err
		}
		var more fleet.Resources
		err := json.Unmarshal([]byte(resources), &more)
		addResources(reserved, more)
		return err
	}, "SELECT resources FROM {s}fleet_work WHERE owner = $1 AND {owned}", id)
	if err != nil {
		return Verdict{}, err
	}
	names := make([]string, 0, len(need))
	for name := range need {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if need[name] > 0 && add(reserved[name], need[name]) > n.capacity[name] {
			return refused(fleet.CodeInsufficient+fleet.Code(name), "node %q has %d %s, %d reserved, and %d are needed", id, n.capacity[name], name, reserved[name], need[name]), nil
		}
	}
	return Verdict{}, nil
}

// liveTarget is the condition that the lease of a node is live at this moment with
// a token, and not revoked. Both are given as parameters.
func liveTarget(node, token string) string {
	return "EXISTS (SELECT 1 FROM {leases} WHERE l.name = 'node/' || " + node + " AND l.token = " + token + " AND {live} AND NOT l.revoked)"
}

// SubmitTo stores an item and places it, or does neither. The Work and Token of p
// are not used. It is repeated like Submit.
func (r *Registry) SubmitTo(ctx context.Context, spec fleet.Spec, p Placement) (Verdict, error) {
	text, resources, err := canonical(spec)
	if err != nil {
		return Verdict{}, r.failure("submit", err)
	}
	return r.decide(ctx, "submit", p.Fence, spec.ID, func(t *tx) (Verdict, error) {
		if v, found, err := t.submitted(spec.ID, text); found || err != nil {
			return v, err
		}
		floor, err := t.floor()
		if err != nil {
			return Verdict{}, err
		}
		leases, err := t.holdLeases(p.Node)
		if err != nil {
			return Verdict{}, err
		}
		nodes, err := t.lockNodes(p.Node)
		if err != nil {
			return Verdict{}, err
		}
		if v, err := t.judgeTarget(p.Node, nodes[p.Node], leases[p.Node], p.Lease, spec.Request.Resources); v.Code != "" || err != nil {
			return v, err
		}
		added, err := t.exec(`INSERT INTO {s}fleet_work (id, spec, resources, movable, stuck_after_us, state, owner, token, lease_token, submitted_us, assigned_us)
			SELECT $1, $2, $3, $4, $5, 'placed', $6, $7, $8, {now}, {now} WHERE `+liveTarget("$6", "$8")+` ON CONFLICT (id) DO NOTHING`,
			spec.ID, text, resources, spec.Movable, stuckAfter(spec), p.Node, floor+1, int64(p.Lease))
		if err != nil {
			return Verdict{}, err
		}
		if added == 0 { // somebody else submitted it at this moment, or the lease has just ended
			v, found, err := t.submitted(spec.ID, text)
			if !found && err == nil {
				v, err = t.notLive(p.Node, p.Lease)
				v.OfTarget = true
			}
			return v, err
		}
		if err := t.append(&fleet.Event{Kind: fleet.EventSubmitted, Work: spec.ID, Actor: p.Actor}); err != nil {
			return Verdict{}, err
		}
		return t.placed(spec.ID, p, fence.Token(floor+1))
	})
}

// placed does what follows from an assignment.
func (t *tx) placed(work string, p Placement, token fence.Token) (Verdict, error) {
	if err := t.touch(p.Node); err != nil {
		return Verdict{}, err
	}
	v := Verdict{Owner: p.Node, Current: token, Event: fleet.Event{Kind: fleet.EventPlaced, Node: p.Node, Work: work, Token: token, Actor: p.Actor}}
	return v, t.append(&v.Event)
}

// Place assigns a pending item. The codes say what failed: no_such_work,
// wrong_state (not pending), stale_token (of the item, of the node's lease, or of
// the fence, as the text says), no_such_node, cordoned, draining, drained,
// no_lease, lease_lapsed, lease_released, lease_revoked, insufficient_….
func (r *Registry) Place(ctx context.Context, p Placement) (Verdict, error) {
	return r.decide(ctx, "place work", p.Fence, p.Work, func(t *tx) (Verdict, error) {
		leases, err := t.holdLeases(p.Node)
		if err != nil {
			return Verdict{}, err
		}
		nodes, err := t.lockNodes(p.Node)
		if err != nil {
			return Verdict{}, err
		}
		w, found, err := t.lockWork(p.Work)
		if err != nil {
			return Verdict{}, err
		}
		switch {
		case !found:
			return noSuchWork(p.Work), nil
		case w.State.Owned() && w.Owner == p.Node && w.Token == p.Token+1: // this placement's reply was lost
			return Verdict{}.with(w), nil
		case w.State != fleet.Pending:
			return refused(fleet.CodeWrongState, "work item %q is %s", p.Work, w.State).with(w), nil
		case w.Token != p.Token:
			return refused(fleet.CodeStaleToken, "work item %q has token %s, not %s", p.Work, w.Token, p.Token).with(w), nil
		}
		if v, err := t.judgeTarget(p.Node, nodes[p.Node], leases[p.Node], p.Lease, w.Request.Resources); v.Code != "" || err != nil {
			return v.with(w), err
		}
		done, err := t.exec(`UPDATE {s}fleet_work SET owner = $2, token = token + 1, lease_token = $4, state = 'placed', moving = false, why = '', assigned_us = {now}, started_us = 0
			WHERE id = $1 AND token = $3 AND state = 'pending' AND `+liveTarget("$2", "$4"), p.Work, p.Node, int64(p.Token), int64(p.Lease))
		if err != nil {
			return Verdict{}, err
		}
		if done == 0 {
			v, err := t.notLive(p.Node, p.Lease)
			v.OfTarget = true
			return v.with(w), err
		}
		if _, err := t.exec("UPDATE {s}fleet_takeover SET to_node = $2, to_token = $3 WHERE work = $1 AND to_token = 0", p.Work, p.Node, int64(p.Token+1)); err != nil {
			return Verdict{}, err
		}
		return t.placed(p.Work, p, p.Token+1)
	})
}

// judgeSource says why an item may not be taken from its node, "" if it may. {over}
// is judged again by the statement that takes it.
func judgeSource(id string, w fleet.Work, found bool, from fleet.Lease, e fleet.Evidence) Verdict {
	switch {
	case !found:
		return noSuchWork(id)
	case w.State.Owned() && w.Owner != e.From, w.State == fleet.Pending && w.Token == e.FromToken:
		return refused(fleet.CodeNotOwner, "work item %q is %s, owner %q", id, w.State, w.Owner)
	case w.Token != e.FromToken:
		return refused(fleet.CodeStaleToken, "work item %q has token %s, not %s", id, w.Token, e.FromToken)
	case !w.State.Owned():
		return refused(fleet.CodeWrongState, "work item %q is %s", id, w.State)
	case !w.Movable:
		return refused(fleet.CodeHostGone, "work item %q is pinned to node %q, its host is gone", id, e.From)
	case from.Token != e.LeaseToken:
		return refused(fleet.CodeStaleToken, "the lease of node %q has token %s, not %s", e.From, from.Token, e.LeaseToken)
	case from.Live():
		return refused(fleet.CodeWrongState, "the lease of node %q is %s for another %s", e.From, from.State, from.Remaining)
	}
	return Verdict{}
}

// takeable is the condition under which an item is taken: its owner $2 and token
// $3 are what the evidence says, and the term $4 of the owner's lease is over.
const takeable = `id = $1 AND owner = $2 AND token = $3 AND {owned} AND movable
	AND coalesce((SELECT CASE WHEN {over} THEN l.token ELSE -1 END FROM {leases} WHERE l.name = 'node/' || $2), 0) = $4`

// Takeover moves an item from a node whose lease is over to tk.Node. Besides the
// codes of Place: not_owner, stale_token (the item or the lease of From has
// another one), wrong_state (the item is not owned, it is being stopped for good,
// or the lease of From is live), host_gone (it is pinned). The evidence is kept
// with the instant of the record, and returned with the event.
func (r *Registry) Takeover(ctx context.Context, tk Takeover) (Verdict, error) {
	e := tk.Evidence
	return r.decide(ctx, "take work over", tk.Fence, tk.Work, func(t *tx) (Verdict, error) {
		leases, err := t.holdLeases(e.From, tk.Node)
		if err != nil {
			return Verdict{}, err
		}
		nodes, err := t.lockNodes(e.From, tk.Node)
		if err != nil {
			return Verdict{}, err
		}
		w, found, err := t.lockWork(tk.Work)
		if err != nil {
			return Verdict{}, err
		}
		if found && w.State.Owned() && w.Owner == tk.Node && w.Token == e.FromToken+1 && w.TakenFrom == e.From { // this takeover's reply was lost
			return Verdict{}.with(w), nil
		}
		if v := judgeSource(tk.Work, w, found, leases[e.From], e); v.Code != "" {
			return v.with(w), nil
		}
		if w.State == fleet.Stopping && !w.Moving {
			return refused(fleet.CodeWrongState, "work item %q was to be stopped, and has", tk.Work).with(w), nil
		}
		if v, err := t.judgeTarget(tk.Node, nodes[tk.Node], leases[tk.Node], tk.Lease, w.Request.Resources); v.Code != "" || err != nil {
			return v.with(w), err
		}
		done, err := t.exec(`UPDATE {s}fleet_work SET owner = $5, token = token + 1, lease_token = $6, state = 'placed', moving = false, why = '', assigned_us = {now}, started_us = 0, taken_from = $2, takeovers = takeovers + 1
			WHERE `+takeable+` AND `+liveTarget("$5", "$6"), tk.Work, e.From, int64(e.FromToken), int64(e.LeaseToken), tk.Node, int64(tk.Lease))
		if err != nil {
			return Verdict{}, err
		}
		if done == 0 {
			v, err := t.notLive(tk.Node, tk.Lease)
			v.OfTarget = true
			return v.with(w), err
		}
		e.To, e.ToToken = tk.Node, e.FromToken+1
		return t.taken(w, tk, e, leases[e.From])
	})
}

// taken does what follows from a takeover.
func (t *tx) taken(w fleet.Work, tk Takeover, e fleet.Evidence, from fleet.Lease) (Verdict, error) {
	e.Recorded, e.LeaseState, e.Progress = instant(t.wall), from.State, w.Progress
	if e.Lapse.IsZero() {
		e.Lapse = instant(t.wall - from.Over.Microseconds())
	}
	if _, err := t.exec(`INSERT INTO {s}fleet_takeover (work, actor, from_node, from_token, to_node, to_token, lease_token, lease_state, progress, silence_us, suspect_us, lapse_us, recorded_us)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, {now})`,
		w.ID, tk.Actor, e.From, int64(e.FromToken), e.To, int64(e.ToToken), int64(e.LeaseToken), string(e.LeaseState), e.Progress, micro(e.Silence), micro(e.Suspect), micro(e.Lapse)); err != nil {
		return Verdict{}, err
	}
	touched := []string{e.From}
	if e.To != "" && e.To != e.From {
		touched = append(touched, e.To)
	}
	if err := t.touch(touched...); err != nil {
		return Verdict{}, err
	}
	text := fmt.Sprintf("from node %q, whose lease is %s, to node %q", e.From, e.LeaseState, e.To)
	if e.To == "" {
		text = fmt.Sprintf("from node %q, whose lease is %s; no node has it yet", e.From, e.LeaseState)
	}
	v := Verdict{Owner: e.To, Current: max(e.ToToken, e.FromToken), Event: fleet.Event{Kind: fleet.EventTakeover, Node: e.To, Work: w.ID, Token: e.ToToken, Actor: tk.Actor, Text: text, Fields: &e}}
	return v, t.append(&v.Event)
}

// ReleaseToPending takes an item from a node whose lease is over without giving
// it to another; tk.Node and tk.Lease are not used. An item that was being stopped
// for good ends as stopped. The codes are those of Takeover.
func (r *Registry) ReleaseToPending(ctx context.Context, tk Takeover) (Verdict, error) {
	e := tk.Evidence
	return r.decide(ctx, "release work", tk.Fence, tk.Work, func(t *tx) (Verdict, error) {
		leases, err := t.holdLeases(e.From)
		if err != nil {
			return Verdict{}, err
		}
		if _, err := t.lockNodes(e.From); err != nil {
			return Verdict{}, err
		}
		w, found, err := t.lockWork(tk.Work)
		if err != nil {
			return Verdict{}, err
		}
		if found && (w.State == fleet.Pending && w.TakenFrom == e.From || w.State == fleet.Stopped && w.Owner == e.From) && w.Token == e.FromToken { // this release's reply was lost
			return Verdict{}.with(w), nil
		}
		if v := judgeSource(tk.Work, w, found, leases[e.From], e); v.Code != "" {
			return v.with(w), nil
		}
		params := []any{tk.Work, e.From, int64(e.FromToken), int64(e.LeaseToken)}
		ends := w.State == fleet.Stopping && !w.Moving
		set := "state = 'pending', moving = false, why = '', started_us = 0, taken_from = $2, takeovers = takeovers + 1"
		if ends {
			set = "state = 'stopped', ended_us = {now}, result = 'ended with its node''s lease'"
		}
		done, err := t.exec("UPDATE {s}fleet_work SET "+set+" WHERE "+takeable, params...)
		if err != nil {
			return Verdict{}, err
		}
		if done == 0 {
			return refused(fleet.CodeWrongState, "work item %q has just changed", tk.Work).with(w), nil
		}
		if !ends {
			e.To, e.ToToken = "", 0
			return t.taken(w, tk, e, leases[e.From])
		}
		if err := t.touch(e.From); err != nil {
			return Verdict{}, err
		}
		v := Verdict{Event: fleet.Event{Kind: fleet.EventEnded, Node: e.From, Work: w.ID, Token: w.Token, Code: fleet.Code(fleet.Stopped), Actor: tk.Actor, Text: "it was to be stopped, and ended with its node's lease"}}.with(w)
		return v, t.append(&v.Event)
	})
}
