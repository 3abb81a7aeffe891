package registry

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

const (
	workColumns = `w.spec, w.state, w.owner, w.token, w.moving, w.why, w.progress, w.progress_us, w.submitted_us, w.assigned_us, w.started_us, w.ended_us, w.exit_code, w.result, w.taken_from, w.takeovers`

	// as fleet.Work.StuckSince has it
	isStuck = "w.state = 'running' AND w.stuck_after_us > 0 AND {now} - {greatest}(w.progress_us, w.started_us) > w.stuck_after_us"

	// of a row that an outer join may have left empty
	workOrNone = `coalesce(w.spec, '{}'), coalesce(w.state, ''), coalesce(w.owner, ''), coalesce(w.token, 0), coalesce(w.moving, false), coalesce(w.why, ''), coalesce(w.progress, ''),
		coalesce(w.progress_us, 0), coalesce(w.submitted_us, 0), coalesce(w.assigned_us, 0), coalesce(w.started_us, 0), coalesce(w.ended_us, 0), coalesce(w.exit_code, 0), coalesce(w.result, ''),
		coalesce(w.taken_from, ''), coalesce(w.takeovers, 0)`
)

// scanWork reads the columns of a work item that follow those of before.
func scanWork(row scanner, before ...any) (fleet.Work, error) {
	var w fleet.Work
	var spec string
	var token, progress, submitted, assigned, started, ended int64
	err := row.Scan(append(before, &spec, (*string)(&w.State), &w.Owner, &token, &w.Moving, &w.Why, &w.Progress, &progress, &submitted, &assigned, &started, &ended, &w.ExitCode, &w.Result, &w.TakenFrom, &w.Takeovers)...)
	if err != nil {
		return fleet.Work{}, err
	}
	w.Token = fence.Token(token)
	w.ProgressAt, w.Submitted, w.Assigned, w.Started, w.EndedAt = instant(progress), instant(submitted), instant(assigned), instant(started), instant(ended)
	return w, json.Unmarshal([]byte(spec), &w.Spec)
}

// addResources adds more to sum.
func addResources(sum, more fleet.Resources) {
	for name, amount := range more {
		sum[name] = add(sum[name], amount)
	}
}

// add adds two amounts that are not negative, and stays at the largest.
func add(a, b int64) int64 {
	if sum := a + b; sum >= a {
		return sum
	}
	return 1<<63 - 1
}

// canonical returns a spec as it is kept: equal specs have equal texts.
func canonical(spec fleet.Spec) (text, resources string, err error) {
	if spec.ID == "" {
		return "", "", &store.InvalidError{Field: "id", Value: "", Rule: "not empty"}
	}
	text, err = encode("spec", spec)
	if err != nil {
		return "", "", err
	}
	var again fleet.Spec // what was empty is now absent
	if err := json.Unmarshal([]byte(text), &again); err != nil {
		return "", "", err
	}
	if text, err = encode("spec", again); err != nil {
		return "", "", err
	}
	if again.Request.Resources == nil {
		again.Request.Resources = fleet.Resources{}
	}
	resources, err = encode("resources", again.Request.Resources)
	return text, resources, err
}

// stuckAfter is a spec's StuckAfterMS in µs.
func stuckAfter(spec fleet.Spec) int64 { return min(spec.StuckAfterMS, 1<<50) * 1000 }

// Submit stores an item as pending. Submitting the same again, by id and content,
// answers as the first time, wherever the item stands; other content gets
// work_exists.
func (r *Registry) Submit(ctx context.Context, spec fleet.Spec, actor string) (Verdict, error) {
	text, resources, err := canonical(spec)
	if err != nil {
		return Verdict{}, r.failure("submit", err)
	}
	return r.decide(ctx, "submit", Fence{}, spec.ID, func(t *tx) (Verdict, error) {
		floor, err := t.floor()
		if err != nil {
			return Verdict{}, err
		}
		added, err := t.exec("INSERT INTO {s}fleet_work (id, spec, resources, movable, stuck_after_us, state, token, submitted_us) VALUES ($1, $2, $3, $4, $5, 'pending', $6, {now}) ON CONFLICT (id) DO NOTHING",
			spec.ID, text, resources, spec.Movable, stuckAfter(spec), floor)
		if err != nil {
			return Verdict{}, err
		}
		if added == 0 {
			v, _, err := t.submitted(spec.ID, text)
			return v, err
		}
		v := Verdict{Current: fence.Token(floor), Event: fleet.Event{Kind: fleet.EventSubmitted, Work: spec.ID, Actor: actor}}
		return v, t.append(&v.Event)
	})
}

// floor returns the token after which new items begin, and keeps it from being
// raised before the transaction ends.
func (t *tx) floor() (floor int64, err error) {
	err = t.row("SELECT token FROM {s}fleet_floor{share}").Scan(&floor)
	return floor, err
}

// submitted answers for an item that may be there already.
func (t *tx) submitted(id, text string) (v Verdict, found bool, err error) {
	var present, state, owner string
	var token int64
	err = t.row("SELECT spec, state, owner, token FROM {s}fleet_work WHERE id = $1", id).Scan(&present, &state, &owner, &token)
	if errors.Is(err, sql.ErrNoRows) {
		return Verdict{}, false, nil
	}
	if err == nil && present != text {
		v = refused(fleet.CodeWorkExists, "there is another work item %q, which is %s", id, state)
	}
	v.Owner, v.Current = owner, fence.Token(token)
	return v, true, err
}

// Work returns an item, and whether there is one.
func (r *Registry) Work(ctx context.Context, id string) (fleet.Work, bool, error) {
	var w fleet.Work
	err := r.read(ctx, "read work", func(t *tx) (err error) {
		w, err = scanWork(t.row("SELECT "+workColumns+" FROM {s}fleet_work w WHERE w.id = $1", id))
		return err
	})
	if errors.Is(err, sql.ErrNoRows) {
		return fleet.Work{}, false, nil
	}
	return w, err == nil, err
}

// Works returns the items that a filter chooses, in order of id.
func (r *Registry) Works(ctx context.Context, f Filter) ([]fleet.Work, error) {
	var works []fleet.Work
	err := r.read(ctx, "list work", func(t *tx) error {
		where, args := "w.id > $1", []any{f.After}
		if len(f.States) > 0 {
			states := make([]string, len(f.States))
			for i, s := range f.States {
				states[i] = string(s)
			}
			args = append(args, t.list(states))
			where += " AND w.state {in} " + t.set(fmt.Sprintf("$%d", len(args)))
		}
		if f.Owner != "" {
			args = append(args, f.Owner)
			where += fmt.Sprintf(" AND w.owner = $%d", len(args))
		}
		if f.Stuck {
			where += " AND " + isStuck
		}
		args = append(args, limit(f.Limit))
		return t.each(func(row scanner) error {
			w, err := scanWork(row)
			works = append(works, w)
			return err
		}, "SELECT "+workColumns+" FROM {s}fleet_work w WHERE "+where+fmt.Sprintf(" ORDER BY w.id LIMIT $%d", len(args)), args...)
	})
	return works, err
}

func limit(n int) int64 {
	if n <= 0 {
		return 1000
	}
	return int64(n)
}

// Location is an item with where it is to be found.
type Location struct {
	Work    fleet.Work
	Address string      // of the owner
	Lease   fleet.Lease // of the owner
}

// Locate answers a lookup in one read, and whether there is such an item. The
// owner's lease and address are there while the item is owned.
func (r *Registry) Locate(ctx context.Context, work string) (Location, bool, error) {
	at := Location{Lease: fleet.Lease{State: fleet.LeaseNone}}
	err := r.read(ctx, "locate work", func(t *tx) (err error) {
		var l leaseRow
		var facts string
		at.Work, err = scanWork(t.row("SELECT coalesce(n.facts, '{}'), {lease}, "+workColumns+
			" FROM {s}fleet_work w LEFT JOIN {s}fleet_node n ON n.id = w.owner {join} 'node/' || w.owner{of} WHERE w.id = $1", work), append([]any{&facts}, l.into()...)...)
		if err != nil || !at.Work.State.Owned() {
			return err
		}
		at.Lease = l.lease()
		var f fleet.Facts
		err = json.Unmarshal([]byte(facts), &f)
		at.Address = f.Address
		return err
	})
	if errors.Is(err, sql.ErrNoRows) {
		return Location{}, false, nil
	}
	return at, err == nil, err
}

// Lapsed returns the items in owned states whose node's lease is over, in order
// of id.
func (r *Registry) Lapsed(ctx context.Context) ([]Owned, error) {
	var lapsed []Owned
	err := r.read(ctx, "find lapsed work", func(t *tx) error {
		return t.each(func(row scanner) error {
			var l leaseRow
			w, err := scanWork(row, l.into()...)
			lapsed = append(lapsed, Owned{Work: w, Lease: l.lease()})
			return err
		}, "SELECT {lease}, "+workColumns+" FROM {s}fleet_work w {join} 'node/' || w.owner{of} WHERE w.{owned} AND {over} AND w.owner {in} "+
			// Each owner's lease is judged once, however many items it has.
			t.subset("SELECT d.owner FROM (SELECT DISTINCT owner FROM {s}fleet_work WHERE {owned}) d {join} 'node/' || d.owner{of} WHERE {over}")+" ORDER BY w.id")
	})
	return lapsed, err
}

// lockOwned locks an item and, before it, the row of the node that owns it. It
// reports moved if the item got another owner meanwhile, whose row cannot be locked
// any more in the right order: the transaction must begin again.
func (t *tx) lockOwned(id string) (w fleet.Work, found, moved bool, err error) {
	var state, owner string
	err = t.row("SELECT state, owner FROM {s}fleet_work WHERE id = $1", id).Scan(&state, &owner)
	if errors.Is(err, sql.ErrNoRows) {
		return fleet.Work{}, false, false, nil
	}
	if err != nil {
		return fleet.Work{}, false, false, err
	}
	owned := fleet.WorkState(state).Owned()
	if owned {
		if _, err := t.lockNodes(owner); err != nil {
			return fleet.Work{}, false, false, err
		}
	}
	w, found, err = t.lockWork(id)
	return w, found, w.State.Owned() && (!owned || w.Owner != owner), err
}

// lockWork locks an item.
func (t *tx) lockWork(id string) (fleet.Work, bool, error) {
	w, err := scanWork(t.row("SELECT "+workColumns+" FROM {s}fleet_work w WHERE w.id = $1{lock}", id))
	if errors.Is(err, sql.ErrNoRows) {
		return fleet.Work{}, false, nil
	}
	return w, err == nil, err
}

func noSuchWork(id string) Verdict {
	return refused(fleet.CodeNoSuchWork, "there is no work item %q", id)
}

// with adds who has the item to a verdict.
func (v Verdict) with(w fleet.Work) Verdict {
	v.Owner, v.Current = w.Owner, w.Token
	return v
}

// Stop orders that an item be ended for good. A pending one ends at once. Stopping
// what is stopping or stopped changes nothing more.
func (r *Registry) Stop(ctx context.Context, work string, o Order) (Verdict, error) {
	return r.reorder(ctx, "stop work", Fence{}, work, func(t *tx, w fleet.Work) (Verdict, error) {
		switch {
		case w.State == fleet.Pending:
			if _, err := t.exec("UPDATE {s}fleet_work SET state = 'stopped', moving = false, why = $2, ended_us = {now} WHERE id = $1", work, o.Reason); err != nil {
				return Verdict{}, err
			}
			v := Verdict{Event: fleet.Event{Kind: fleet.EventEnded, Work: work, Token: w.Token, Code: fleet.Code(fleet.Stopped), Actor: o.Actor, Text: o.Reason}}
			return v, t.append(&v.Event)
		case w.State == fleet.Stopped, w.State == fleet.Stopping && !w.Moving:
			return Verdict{}, nil
		case w.State.Ended():
			return refused(fleet.CodeWrongState, "work item %q has %s", work, w.State), nil
		}
		return t.orderStop(w, false, o)
	})
}

// Move orders that a movable item be stopped and placed again elsewhere:
// host_gone if it is pinned, wrong_state if nobody has it or it is being stopped
// for good. A pending item that is Moving must not go back to its last Owner.
func (r *Registry) Move(ctx context.Context, f Fence, work string, o Order) (Verdict, error) {
	return r.reorder(ctx, "move work", f, work, func(t *tx, w fleet.Work) (Verdict, error) {
		switch {
		case !w.State.Owned(), w.State == fleet.Stopping && !w.Moving:
			return refused(fleet.CodeWrongState, "work item %q is %s", work, w.State), nil
		case !w.Movable:
			return refused(fleet.CodeWrongState, "work item %q is pinned to node %q: only what was submitted as movable moves", work, w.Owner), nil
		case w.State == fleet.Stopping:
			return Verdict{}, nil
		}
		return t.orderStop(w, true, o)
	})
}

// Forget deletes an item that has ended: wrong_state if it has not. Whoever submits its
// name again begins with a larger token.
func (r *Registry) Forget(ctx context.Context, work string, o Order) (Verdict, error) {
	return r.decide(ctx, "forget work", Fence{}, work, func(t *tx) (Verdict, error) {
		var floor int64 // locked before the item, as who submits and who prunes do
		if err := t.row("SELECT token FROM {s}fleet_floor{lock}").Scan(&floor); err != nil {
			return Verdict{}, err
		}
		w, found, err := t.lockWork(work)
		switch {
		case err != nil:
			return Verdict{}, err
		case !found:
			return noSuchWork(work), nil
		case !w.State.Ended():
			return refused(fleet.CodeWrongState, "work item %q is %s: only what has ended can be forgotten", work, w.State).with(w), nil
		}
		if _, err := t.exec("UPDATE {s}fleet_floor SET token = $1", max(floor, int64(w.Token))); err != nil {
			return Verdict{}, err
		}
		if _, err := t.exec("DELETE FROM {s}fleet_work WHERE id = $1", work); err != nil {
			return Verdict{}, err
		}
		v := Verdict{Event: fleet.Event{Kind: fleet.EventForgotten, Work: work, Token: w.Token, Actor: o.Actor, Text: o.Reason}}
		return v, t.append(&v.Event)
	})
}

func (r *Registry) reorder(ctx context.Context, doing string, f Fence, work string, change func(*tx, fleet.Work) (Verdict, error)) (Verdict, error) {
	for range 10 {
		var moved bool
		v, err := r.decide(ctx, doing, f, work, func(t *tx) (Verdict, error) {
			var w fleet.Work
			var found bool
			var err error
			w, found, moved, err = t.lockOwned(work)
			if err != nil || moved {
				return Verdict{}, err
			}
			if !found {
				return noSuchWork(work), nil
			}
			v, err := change(t, w)
			return v.with(w), err
		})
		if err != nil || !moved {
			return v, err
		}
	}
	return Verdict{}, fmt.Errorf("registry: %s: %w: work item %q gets one owner after another", doing, store.ErrBusy, work)
}

func (t *tx) orderStop(w fleet.Work, moving bool, o Order) (Verdict, error) {
	if _, err := t.exec("UPDATE {s}fleet_work SET state = 'stopping', moving = $2, why = $3 WHERE id = $1 AND owner = $4 AND token = $5 AND {owned}", w.ID, moving, o.Reason, w.Owner, int64(w.Token)); err != nil {
		return Verdict{}, err
	}
	if err := t.touch(w.Owner); err != nil {
		return Verdict{}, err
	}
	text := "to be stopped: "
	if moving {
		text = "to be moved: "
	}
	v := Verdict{Event: fleet.Event{Kind: fleet.EventStopping, Node: w.Owner, Work: w.ID, Token: w.Token, Actor: o.Actor, Text: strings.TrimSuffix(text+o.Reason, ": ")}}
	return v, t.append(&v.Event)
}
