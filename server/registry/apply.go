package registry

import (
	"cmp"
	"context"
	"slices"

	"github.com/tenurehq/tenure/fleet"
)

// applyMost is how many changes share a transaction, so that none holds its rows
// for long.
const applyMost = 64

// Apply makes changes that owners report, and answers each at its index. Each is
// one statement scoped by the owner, the item's token and the owner's live term. A
// repeated report of an end answers "" again. The codes are no_such_work,
// not_owner, stale_token (of the item or of the lease, as the text says),
// wrong_state, no_lease, lease_lapsed, lease_released.
//
// Reports of running, stopping and placed carry progress; only an order makes an
// item stopping. A report of placed assigns the item to its owner anew: it was ended
// there for want of the right to act, or an earlier agent may have started it, and
// what it still has on the way carries the old token. Repeated, that gets
// stale_token, with the owner and the new token. An item that was to be moved becomes
// pending when its end is reported, unless it succeeded. After an error the changes
// before it may have been made; all can be sent again.
func (r *Registry) Apply(ctx context.Context, changes []Change) ([]Verdict, error) {
	order := make([]int, len(changes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(changes[a].Work, changes[b].Work) })
	verdicts := make([]Verdict, len(changes))
	for part := range slices.Chunk(order, applyMost) {
		err := r.transact(ctx, "apply reports", writing, func(t *tx) (bool, error) {
			nodes := make([]string, 0, len(part))
			for _, i := range part {
				nodes = append(nodes, changes[i].Node)
			}
			slices.Sort(nodes)
			nodes = slices.Compact(nodes)
			leases, err := t.holdLeases(nodes...)
			if err != nil {
				return false, err
			}
			var changing []string // their orders
			for _, i := range part {
				if s := changes[i].State; s.Ended() || s == fleet.Placed {
					changing = append(changing, changes[i].Node)
				}
			}
			if len(changing) > 0 {
				slices.Sort(changing)
				if _, err := t.lockNodes(slices.Compact(changing)...); err != nil {
					return false, err
				}
			}
			for _, i := range part {
				if verdicts[i], err = t.apply(changes[i], leases[changes[i].Node]); err != nil {
					return false, err
				}
				verdicts[i].Work = changes[i].Work
			}
			return true, nil
		})
		if err != nil {
			return nil, err
		}
		for _, i := range part {
			r.count(verdicts[i].Code, Fence{})
		}
	}
	return verdicts, nil
}

// apply makes one change. The owner's lease is held, and its row locked if its
// orders change.
func (t *tx) apply(c Change, l fleet.Lease) (Verdict, error) {
	w, found, err := t.lockWork(c.Work)
	if err != nil {
		return Verdict{}, err
	}
	if !found {
		return noSuchWork(c.Work), nil
	}
	if v, settled := judgeChange(w, c); settled {
		return v.with(w), nil
	}
	if v := judgeOwn(c.Node, l, c.Lease); v.Code != "" {
		return v.with(w), nil
	}

	// $1 to $4 are the scope.
	args := []any{c.Work, c.Node, int64(c.Token), int64(c.Lease), c.Progress}
	set := "progress_us = CASE WHEN $5 <> '' AND $5 <> progress THEN {now} ELSE progress_us END, progress = CASE WHEN $5 <> '' THEN $5 ELSE progress END"
	next, ended, restarts := w.State, c.State.Ended(), c.State == fleet.Placed
	switch {
	case ended && w.Moving && c.State != fleet.Succeeded:
		next = fleet.Pending // and still moving: away from this owner
	case ended:
		next = c.State
		set += ", ended_us = {now}, moving = false, exit_code = $7, result = $8"
	case restarts:
		next = fleet.Placed
		set += ", token = token + 1, lease_token = $4, assigned_us = {now}, started_us = 0"
	case w.State == fleet.Placed && c.State == fleet.Running:
		next = fleet.Running
	}
	starts := w.Started.IsZero() && c.State == fleet.Running
	if starts {
		set += ", started_us = {now}"
	}
	set += ", state = $6"
	args = append(args, string(next))
	if next.Ended() {
		args = append(args, int64(c.ExitCode), c.Text)
	}
	done, err := t.exec("UPDATE {s}fleet_work SET "+set+` WHERE id = $1 AND owner = $2 AND token = $3 AND {owned}
		AND EXISTS (SELECT 1 FROM {leases} WHERE l.name = 'node/' || $2 AND l.token = $4 AND {live})`, args...)
	if err != nil {
		return Verdict{}, err
	}
	if done == 0 {
		v, err := t.notLive(c.Node, c.Lease)
		return v.with(w), err
	}
	var v Verdict
	if starts {
		if _, err := t.exec("UPDATE {s}fleet_takeover SET started_us = {now} WHERE work = $1 AND to_token = $2 AND started_us = 0", c.Work, int64(c.Token)); err != nil {
			return Verdict{}, err
		}
		v.Event = fleet.Event{Kind: fleet.EventStarted, Node: c.Node, Work: c.Work, Token: c.Token}
	}
	if restarts {
		w.Token++
		v.Event = fleet.Event{Kind: fleet.EventRestarted, Node: c.Node, Work: c.Work, Token: w.Token, Text: c.Text}
	}
	if ended {
		v.Event = fleet.Event{Kind: fleet.EventEnded, Node: c.Node, Work: c.Work, Token: c.Token, Code: fleet.Code(next), Text: c.Text}
	}
	if ended || restarts {
		if err := t.touch(c.Node); err != nil {
			return Verdict{}, err
		}
	}
	if v.Event.Kind != "" {
		err = t.append(&v.Event)
	}
	return v.with(w), err
}

// judgeChange answers a change that needs no statement, because it may not be made
// or has been made already.
func judgeChange(w fleet.Work, c Change) (v Verdict, settled bool) {
	repeated := c.State.Ended() && w.Owner == c.Node && w.Token == c.Token &&
		(w.State == c.State || w.State == fleet.Pending && w.Moving && c.State != fleet.Succeeded)
	switch {
	case repeated:
		return Verdict{}, true
	case w.Owner != c.Node:
		return refused(fleet.CodeNotOwner, "work item %q is %s, owner %q", c.Work, w.State, w.Owner), true
	case w.State.Ended(): // by an operator's word, or by an earlier report of this owner
		return refused(fleet.CodeWrongState, "work item %q has %s", c.Work, w.State), true
	case w.Token != c.Token:
		return refused(fleet.CodeStaleToken, "work item %q has token %s, not %s", c.Work, w.Token, c.Token), true
	case w.State == fleet.Pending:
		return refused(fleet.CodeNotOwner, "work item %q is pending, and was taken from node %q", c.Work, w.Owner), true
	case !w.State.CanReport(c.State) && (w.State != fleet.Stopping || c.State != fleet.Running): // it may not have seen the order to stop yet
		return refused(fleet.CodeWrongState, "work item %q is %s and cannot become %s", c.Work, w.State, c.State), true
	}
	return Verdict{}, false
}
