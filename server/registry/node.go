package registry

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

const (
	nodeColumns = `n.id, n.incarnation, n.facts, n.not_ready_us, n.first_us, n.joined_us, coalesce(s.seen_us, 0), {age}, n.intent, n.orders, n.lapses, n.removed_us, n.version, {lease}`
	nodeTables  = `{s}fleet_node n LEFT JOIN {s}fleet_seen s ON s.node = n.id {join} 'node/' || n.id{of}`
)

func scanNode(row scanner) (Node, error) {
	var n Node
	var facts, intent, lapses string
	var notReady, first, joined, seen, age, orders, removed int64
	var l leaseRow
	into := []any{&n.ID, &n.Incarnation, &facts, &notReady, &first, &joined, &seen, &age, &intent, &orders, &lapses, &removed, &n.Version}
	if err := row.Scan(append(into, l.into()...)...); err != nil {
		return Node{}, err
	}
	var at []int64
	if err := errors.Join(json.Unmarshal([]byte(facts), &n.Facts), json.Unmarshal([]byte(intent), &n.Intent), json.Unmarshal([]byte(lapses), &at)); err != nil {
		return Node{}, fmt.Errorf("node %q: %w", n.ID, err)
	}
	for _, us := range at {
		n.Lapses = append(n.Lapses, instant(us))
	}
	n.NotReady, n.FirstSeen, n.LastSeen, n.Age = instant(notReady), instant(first), instant(max(joined, seen)), microseconds(age)
	n.Lease, n.Orders, n.Removed = l.lease(), uint64(max(orders, 0)), removed != 0
	return n, nil
}

// Cursor says up to where changes were read. The zero Cursor is before all.
type Cursor int64

// Nodes returns the nodes that changed since a cursor, and the cursor for the
// next call; from the zero Cursor, all nodes that were not removed. A change is
// one of facts, incarnation, intent, lapses or work; beats and renewals are none,
// see Signs. A change may be returned twice and is never left out, except that
// after a failover which lost writes only a full read is sure. Stuck is as of the
// call.
//
// On Postgres a row carries the number of the transaction that changed it, and the
// cursor is the oldest transaction that was still running: whatever commits later
// has that number or a larger one. On SQLite changes are counted.
func (r *Registry) Nodes(ctx context.Context, since Cursor) ([]Node, Cursor, error) {
	var nodes []Node
	var next int64
	err := r.read(ctx, "read nodes", func(t *tx) error {
		query := "SELECT changed FROM fleet_single"
		newer := "n.changed > $1"
		if t.name == Postgres {
			query = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
			newer = "n.changed >= $1"
		}
		if err := t.row(query).Scan(&next); err != nil {
			return err
		}
		if since <= 0 || int64(since) > next { // a larger one is of another history of this database
			since, newer = 0, "n.removed_us = $1"
		}
		err := t.each(func(row scanner) error {
			n, err := scanNode(row)
			nodes = append(nodes, n)
			return err
		}, "SELECT "+nodeColumns+" FROM "+nodeTables+" WHERE "+newer, int64(since))
		if err != nil || len(nodes) == 0 {
			return err
		}
		// Not by the database, which would read all rows in order to sort none.
		slices.SortFunc(nodes, func(a, b Node) int { return strings.Compare(a.ID, b.ID) })
		return t.addWork(nodes, since == 0)
	})
	if err != nil {
		return nil, 0, err
	}
	return nodes, Cursor(next), nil
}

// Node returns one node, and whether there is one that was not removed.
func (r *Registry) Node(ctx context.Context, id string) (Node, bool, error) {
	nodes := make([]Node, 1)
	err := r.read(ctx, "read a node", func(t *tx) (err error) {
		nodes[0], err = scanNode(t.row("SELECT "+nodeColumns+" FROM "+nodeTables+" WHERE n.id = $1 AND n.removed_us = 0", id))
		if err != nil {
			return err
		}
		return t.addWork(nodes, false)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return Node{}, false, nil
	}
	return nodes[0], err == nil, err
}

// addWork fills in what nodes, which are in order of id, owe to the work they own.
func (t *tx) addWork(nodes []Node, all bool) error {
	where, args := "", []any(nil)
	if !all {
		ids := make([]string, len(nodes))
		for i := range nodes {
			ids[i] = nodes[i].ID
		}
		where, args = " AND w.owner {in} "+t.set("$1"), []any{t.list(ids)}
	}
	amounts := map[string]fleet.Resources{} // by their text: many items need the same
	return t.each(func(row scanner) error {
		var owner, resources string
		var stuck bool
		if err := row.Scan(&owner, &resources, &stuck); err != nil {
			return err
		}
		i, found := slices.BinarySearchFunc(nodes, owner, func(n Node, id string) int { return strings.Compare(n.ID, id) })
		if !found {
			return nil
		}
		n := &nodes[i]
		n.Work++
		if stuck {
			n.Stuck++
		}
		if n.Reserved == nil {
			n.Reserved = fleet.Resources{}
		}
		more, known := amounts[resources]
		if !known {
			if err := json.Unmarshal([]byte(resources), &more); err != nil {
				return err
			}
			amounts[resources] = more
		}
		addResources(n.Reserved, more)
		return nil
	}, "SELECT w.owner, w.resources, "+isStuck+" FROM {s}fleet_work w WHERE w.{owned}"+where, args...)
}

// Sign is what changes of a node at each beat.
type Sign struct {
	Node        string
	Incarnation string
	LastSeen    time.Time
	Age         time.Duration // of LastSeen, as in Node
	Lease       fleet.Lease
}

// Signs returns the signs of life of some nodes, or of all if nodes is nil, in
// order of id. Removed nodes have none.
func (r *Registry) Signs(ctx context.Context, nodes []string) ([]Sign, error) {
	var signs []Sign
	err := r.read(ctx, "read signs of life", func(t *tx) error {
		where, args := "", []any(nil)
		if nodes != nil {
			where, args = " AND n.id {in} "+t.set("$1"), []any{t.list(nodes)}
		}
		return t.each(func(row scanner) error {
			var s Sign
			var seen, age int64
			var l leaseRow
			if err := row.Scan(append([]any{&s.Node, &s.Incarnation, &seen, &age}, l.into()...)...); err != nil {
				return err
			}
			s.LastSeen, s.Age, s.Lease = instant(seen), microseconds(age), l.lease()
			signs = append(signs, s)
			return nil
		}, "SELECT n.id, n.incarnation, {greatest}(n.joined_us, coalesce(s.seen_us, 0)), {age}, {lease} FROM "+nodeTables+" WHERE n.removed_us = 0"+where+" ORDER BY n.id", args...)
	})
	return signs, err
}

// nodeRow is a node as a writing transaction needs it.
type nodeRow struct {
	id       string
	capacity fleet.Resources
	intent   fleet.Intent
	removed  bool
}

// lockNodes locks the rows of nodes, in byte order, and returns those there are.
func (t *tx) lockNodes(ids ...string) (map[string]*nodeRow, error) {
	found := map[string]*nodeRow{}
	return found, t.each(func(row scanner) error {
		var n nodeRow
		var capacity, intent string
		var removed int64
		if err := row.Scan(&n.id, &capacity, &intent, &removed); err != nil {
			return err
		}
		n.removed = removed != 0
		found[n.id] = &n
		return errors.Join(json.Unmarshal([]byte(capacity), &n.capacity), json.Unmarshal([]byte(intent), &n.intent))
	}, "SELECT id, capacity, intent, removed_us FROM {s}fleet_node WHERE id {in} "+t.set("$1")+" ORDER BY id{lock}", t.list(ids))
}

// lockNode is lockNodes for one; it answers nil if there is none.
func (t *tx) lockNode(id string) (*nodeRow, error) {
	nodes, err := t.lockNodes(id)
	if n := nodes[id]; n != nil && !n.removed {
		return n, err
	}
	return nil, err
}

func noSuchNode(id string) Verdict {
	return refused(fleet.CodeNoSuchNode, "there is no node %q", id)
}

// newOrders is the next revision of orders. It is not below the clock, so that it
// grows also past a restored backup and past the removal of a node.
const newOrders = "orders = {greatest}(orders + 1, {now}), version = version + 1, changed = {changed}"

// touch gives nodes, which are locked, a new revision of orders.
func (t *tx) touch(ids ...string) error {
	if err := t.change(); err != nil {
		return err
	}
	_, err := t.exec("UPDATE {s}fleet_node SET "+newOrders+" WHERE id {in} "+t.set("$1"), t.list(ids))
	return err
}

// encode returns v as JSON that both databases can hold and read.
func encode(what string, v any) (string, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return "", &store.InvalidError{Field: what, Value: fmt.Sprintf("%T", v), Rule: "representable in JSON"}
	}
	if bytes.Contains(b, []byte(`\u0000`)) {
		return "", &store.InvalidError{Field: what, Value: "a text with a zero byte", Rule: "free of zero bytes"}
	}
	return string(b), nil
}

// maxReplaced is how many incarnations of a node are known as replaced.
const maxReplaced = 16

// Join records a new incarnation of a node, or changed facts of the present one.
// The intent for the node stays; only a node of which there is no row gets that of the
// report. An incarnation that was replaced by a later Join
// gets code incarnation_replaced. Whether a new one may take the name, the caller
// decides. If nothing changed, nothing is written.
func (r *Registry) Join(ctx context.Context, rep Report) (Verdict, error) {
	facts, err := encode("facts", rep.Facts)
	if err != nil {
		return Verdict{}, r.failure("join", err)
	}
	capacity, err := encode("capacity", rep.Facts.Capacity)
	if err != nil {
		return Verdict{}, r.failure("join", err)
	}
	if rep.Facts.Capacity == nil {
		capacity = "{}"
	}
	intent, err := encode("intent", rep.Intent)
	if err != nil {
		return Verdict{}, r.failure("join", err)
	}
	return r.decide(ctx, "join", Fence{}, "", func(t *tx) (Verdict, error) {
		var incarnation, oldReplaced, oldFacts string
		var wasReady, created bool
		var notReady, removed int64
		load := func() error {
			return t.row("SELECT incarnation, replaced, facts, ready, not_ready_us, removed_us FROM {s}fleet_node WHERE id = $1{lock}", rep.Node).
				Scan(&incarnation, &oldReplaced, &oldFacts, &wasReady, &notReady, &removed)
		}
		err := load()
		if errors.Is(err, sql.ErrNoRows) {
			if err := t.change(); err != nil {
				return Verdict{}, err
			}
			n, err := t.exec("INSERT INTO {s}fleet_node (id, intent, intent_state, first_us, orders, changed) VALUES ($1, $2, $3, {now}, {now}, {changed}) ON CONFLICT (id) DO NOTHING",
				rep.Node, intent, string(rep.Intent.State()))
			if err != nil {
				return Verdict{}, err
			}
			created = n > 0
			if err := load(); err != nil {
				return Verdict{}, err
			}
		} else if err != nil {
			return Verdict{}, err
		}
		var replaced []string
		if err := json.Unmarshal([]byte(oldReplaced), &replaced); err != nil {
			return Verdict{}, err
		}
		if slices.Contains(replaced, rep.Incarnation) {
			return refused(fleet.CodeReplaced, "incarnation %q of node %q was replaced by %q", rep.Incarnation, rep.Node, incarnation), nil
		}
		joins := incarnation != rep.Incarnation || removed != 0
		if !joins && oldFacts == facts {
			return Verdict{}, nil
		}
		if incarnation != "" && incarnation != rep.Incarnation {
			replaced = append(replaced, incarnation)
			replaced = replaced[max(0, len(replaced)-maxReplaced):]
		}
		list, err := encode("incarnations", replaced)
		if err != nil {
			return Verdict{}, err
		}
		if err := t.change(); err != nil {
			return Verdict{}, err
		}
		ready := rep.Facts.Readiness.Ready
		switch {
		case ready:
			notReady = 0
		case wasReady || notReady == 0:
			notReady = t.wall
		}
		set := ""
		if joins {
			set = ", removed_us = 0, joined_us = {now}"
		}
		_, err = t.exec("UPDATE {s}fleet_node SET incarnation = $2, replaced = $3, facts = $4, capacity = $5, ready = $6, not_ready_us = $7, version = version + 1, changed = {changed}"+set+" WHERE id = $1",
			rep.Node, rep.Incarnation, list, facts, capacity, ready, notReady)
		if err != nil {
			return Verdict{}, err
		}
		if joins {
			if err := t.see(rep.Node); err != nil {
				return Verdict{}, err
			}
			v := Verdict{Event: fleet.Event{Kind: fleet.EventJoined, Node: rep.Node, Text: "incarnation " + rep.Incarnation}}
			if state := rep.Intent.State(); created && state != fleet.Active {
				v.Event.Text += ": its row was lost, and it is " + string(state) + " as before"
			}
			if err := t.append(&v.Event); err != nil || ready == wasReady || created && ready {
				return v, err
			}
			return v, t.append(&fleet.Event{Kind: readyKind(ready), Node: rep.Node, Actor: rep.Node, Code: fleet.Code(rep.Facts.Readiness.Reason), Text: rep.Facts.Readiness.Text})
		}
		if ready == wasReady {
			return Verdict{}, nil
		}
		v := Verdict{Event: fleet.Event{Kind: readyKind(ready), Node: rep.Node, Actor: rep.Node, Code: fleet.Code(rep.Facts.Readiness.Reason), Text: rep.Facts.Readiness.Text}}
		return v, t.append(&v.Event)
	})
}

func readyKind(ready bool) fleet.EventKind {
	if ready {
		return fleet.EventReady
	}
	return fleet.EventNotReady
}

// see records that a node was heard just now.
func (t *tx) see(node string) error {
	columns, values := "node, seen_us", "$1, {now}"
	set := "seen_us = excluded.seen_us"
	if t.name == SQLite {
		columns, values, set = columns+", domain, seen_ns", values+", {domain}, {boot}", set+", domain = excluded.domain, seen_ns = excluded.seen_ns"
	}
	_, err := t.exec("INSERT INTO {s}fleet_seen ("+columns+") VALUES ("+values+") ON CONFLICT (node) DO UPDATE SET "+set, node)
	return err
}

const (
	flushPostgres = `INSERT INTO {s}fleet_seen AS s (node, seen_us)
SELECT n.id, {now} - a.age FROM unnest($1::text[], $2::text[], $3::bigint[]) a(node, incarnation, age)
	JOIN {s}fleet_node n ON n.id = a.node AND n.incarnation = a.incarnation AND n.removed_us = 0 ORDER BY n.id
ON CONFLICT (node) DO UPDATE SET seen_us = excluded.seen_us WHERE s.seen_us < excluded.seen_us OR s.seen_us > {now}`

	// Each element is one text, "age in µs (19) length of the node (3) node
	// incarnation", because SQLite parses nested JSON again for each field.
	flushSQLite = `INSERT INTO fleet_seen AS s (node, seen_us, domain, seen_ns)
SELECT n.id, {now} - CAST(substr(a.value, 1, 19) AS INTEGER), {domain}, {boot} - 1000 * CAST(substr(a.value, 1, 19) AS INTEGER)
FROM json_each($1) a JOIN fleet_node n ON n.id = substr(a.value, 23, CAST(substr(a.value, 20, 3) AS INTEGER))
	AND n.incarnation = substr(a.value, 23 + CAST(substr(a.value, 20, 3) AS INTEGER)) AND n.removed_us = 0
WHERE true
ON CONFLICT (node) DO UPDATE SET seen_us = excluded.seen_us, domain = excluded.domain, seen_ns = excluded.seen_ns
	WHERE s.domain <> excluded.domain OR s.seen_ns < excluded.seen_ns OR s.seen_ns > {boot}`
)

// Flush records in one statement when nodes were last heard. What is older than
// what is known, unless the clock was set back since, or of another incarnation
// than the node's present one, is left. It returns the nodes of which the registry
// knows nothing, not even that they were removed.
func (r *Registry) Flush(ctx context.Context, seen []Seen) (lost []string, err error) {
	if len(seen) == 0 {
		return nil, nil
	}
	seen = slices.Clone(seen)
	slices.SortStableFunc(seen, func(a, b Seen) int {
		if c := strings.Compare(a.Node, b.Node); c != 0 {
			return c
		}
		return strings.Compare(a.Incarnation, b.Incarnation)
	})
	seen = slices.CompactFunc(seen, func(a, b Seen) bool { return a.Node == b.Node && a.Incarnation == b.Incarnation })
	err = r.transact(ctx, "flush", writing, func(t *tx) (bool, error) {
		var flushed int64
		var err error
		if t.name == Postgres {
			nodes, incarnations, ages := make([]string, len(seen)), make([]string, len(seen)), make([]int64, len(seen))
			for i, s := range seen {
				nodes[i], incarnations[i], ages[i] = s.Node, s.Incarnation, max(s.Age, 0).Microseconds()
			}
			flushed, err = t.exec(flushPostgres, nodes, incarnations, ages)
		} else {
			list := make([]string, len(seen))
			for i, s := range seen {
				list[i] = fmt.Sprintf("%019d%03d%s%s", max(s.Age, 0).Microseconds(), len(s.Node), s.Node, s.Incarnation)
			}
			flushed, err = t.exec(flushSQLite, t.list(list))
		}
		if err != nil || flushed == int64(len(seen)) {
			return true, err
		}
		lost, err = t.unknown(seen)
		return true, err
	})
	if err != nil {
		return nil, err
	}
	return lost, nil
}

// unknown returns the nodes of seen, which is in their order, that have no row.
func (t *tx) unknown(seen []Seen) ([]string, error) {
	ids := make([]string, len(seen))
	for i, s := range seen {
		ids[i] = s.Node
	}
	ids = slices.Compact(ids)
	known := map[string]bool{}
	err := t.each(func(row scanner) error {
		var id string
		err := row.Scan(&id)
		known[id] = true
		return err
	}, "SELECT id FROM {s}fleet_node WHERE id {in} "+t.set("$1"), t.list(ids))
	return slices.DeleteFunc(ids, func(id string) bool { return known[id] }), err
}

// IntentFunc returns what an intent becomes by the wish of mark's actor, or the
// code for why not. It must not keep or change what i points to.
type IntentFunc func(i fleet.Intent, mark fleet.Mark) (fleet.Intent, fleet.Code)

// SetIntent changes the intent for a node by change, under the node's row lock,
// and returns the intent after it. If change leaves it as it is, nothing is
// written. What it changed tells the kind of the event.
func (r *Registry) SetIntent(ctx context.Context, node string, o Order, change IntentFunc) (fleet.Intent, Verdict, error) {
	var after fleet.Intent
	v, err := r.decide(ctx, "set the intent", Fence{}, "", func(t *tx) (Verdict, error) {
		n, err := t.lockNode(node)
		if n == nil || err != nil {
			return noSuchNode(node), err
		}
		next, code := change(n.intent, fleet.Mark{Actor: o.Actor, Reason: o.Reason, At: instant(t.wall)})
		if code != "" {
			after = n.intent
			return refused(code, "the intent for node %q is %s", node, n.intent.State()), nil
		}
		after = next
		return t.saveIntent(n, next, o.Actor, o.Reason)
	})
	return after, v, err
}

func (t *tx) saveIntent(n *nodeRow, next fleet.Intent, actor, reason string) (Verdict, error) {
	before, err := encode("intent", n.intent)
	if err != nil {
		return Verdict{}, err
	}
	after, err := encode("intent", next)
	if err != nil || before == after {
		return Verdict{}, err
	}
	if err := t.change(); err != nil {
		return Verdict{}, err
	}
	if _, err := t.exec("UPDATE {s}fleet_node SET intent = $2, intent_state = $3, "+newOrders+" WHERE id = $1", n.id, after, string(next.State())); err != nil {
		return Verdict{}, err
	}
	kind := fleet.EventCordoned
	switch was := n.intent; {
	case was.Drain != nil && next.Drain == nil, was.Cordon != nil && next.Cordon == nil:
		kind = fleet.EventResumed
	case next.Drain != nil && !next.Drain.Done.IsZero() && (was.Drain == nil || was.Drain.Done.IsZero()):
		kind = fleet.EventDrained
	case next.Drain != nil && (was.Drain == nil || *was.Drain != *next.Drain):
		kind = fleet.EventDraining
	}
	if n.intent.Drain != nil && next.Drain == nil {
		if err := t.letReturn(n.id); err != nil {
			return Verdict{}, err
		}
	}
	v := Verdict{Event: fleet.Event{Kind: kind, Node: n.id, Actor: actor, Text: reason}}
	return v, t.append(&v.Event)
}

// letReturn lets what was moved away from a node, which is locked, and found no other
// come back.
func (t *tx) letReturn(node string) error {
	var ids []string
	err := t.each(func(row scanner) error {
		var id string
		err := row.Scan(&id)
		ids = append(ids, id)
		return err
	}, "SELECT id FROM {s}fleet_work WHERE owner = $1 AND state = 'pending' AND moving ORDER BY id{lock}", node)
	if err != nil || len(ids) == 0 {
		return err
	}
	_, err = t.exec("UPDATE {s}fleet_work SET moving = false WHERE id {in} "+t.set("$1"), t.list(ids))
	return err
}

// CompleteDrain records that the drain of a node is done, if the node owns
// nothing any more and has nothing left over: code wrong_state if it does, or if no
// drain is under way.
func (r *Registry) CompleteDrain(ctx context.Context, f Fence, node, actor string) (Verdict, error) {
	return r.decide(ctx, "complete a drain", f, "", func(t *tx) (Verdict, error) {
		n, err := t.lockNode(node)
		if n == nil || err != nil {
			return noSuchNode(node), err
		}
		if n.intent.Drain == nil {
			return refused(fleet.CodeWrongState, "node %q is %s", node, n.intent.State()), nil
		}
		if !n.intent.Drain.Done.IsZero() {
			return Verdict{}, nil
		}
		owned, err := t.countOwned(node)
		if err != nil || owned > 0 {
			return refused(fleet.CodeWrongState, "node %q still owns %s", node, items(owned)), err
		}
		left, err := t.countLeftovers(node)
		if err != nil || left > 0 {
			return refused(fleet.CodeWrongState, "copies of %s live on node %q and are not its own any more", items(left), node), err
		}
		next, drain := n.intent, *n.intent.Drain
		drain.Done = instant(t.wall)
		next.Drain = &drain
		return t.saveIntent(n, next, actor, "nothing is left")
	})
}

// countOwned counts what a node, which is locked, owns.
func (t *tx) countOwned(node string) (n int, err error) {
	err = t.row("SELECT count(*) FROM {s}fleet_work WHERE owner = $1 AND {owned}", node).Scan(&n)
	return n, err
}

// countLeftovers counts what lives on a node, which is locked and owns nothing.
func (t *tx) countLeftovers(node string) (int, error) {
	var text string
	if err := t.row("SELECT facts FROM {s}fleet_node WHERE id = $1", node).Scan(&text); err != nil {
		return 0, err
	}
	var facts fleet.Facts
	err := json.Unmarshal([]byte(text), &facts)
	return len(facts.Leftovers), err
}

// maxLapses is how many lapses a node remembers.
const maxLapses = 8

// NoteLapse records once for a term of a node's lease that it is over, for
// Node.Lapses: code stale_token if the lease has another term, wrong_state if it
// is not over. A term that was released is over, and no lapse.
func (r *Registry) NoteLapse(ctx context.Context, f Fence, node string, lease fence.Token, actor string) (Verdict, error) {
	return r.decide(ctx, "note a lapse", f, "", func(t *tx) (Verdict, error) {
		leases, err := t.holdLeases(node)
		if err != nil {
			return Verdict{}, err
		}
		n, err := t.lockNode(node)
		if n == nil || err != nil {
			return noSuchNode(node), err
		}
		l := leases[node]
		if l.Token != lease {
			return refused(fleet.CodeStaleToken, "the lease of node %q has token %s, not %s", node, l.Token, lease), nil
		}
		if l.State != fleet.LeaseLapsed {
			return refused(fleet.CodeWrongState, "the lease of node %q is %s", node, l.State), nil
		}
		var list string
		var noted int64
		if err := t.row("SELECT lapses, lapse_token FROM {s}fleet_node WHERE id = $1", node).Scan(&list, &noted); err != nil || noted >= int64(lease) {
			return Verdict{}, err
		}
		var lapses []int64
		if err := json.Unmarshal([]byte(list), &lapses); err != nil {
			return Verdict{}, err
		}
		lapses = append(lapses, t.wall-l.Over.Microseconds())
		if list, err = encode("lapses", lapses[max(0, len(lapses)-maxLapses):]); err != nil {
			return Verdict{}, err
		}
		if err := t.change(); err != nil {
			return Verdict{}, err
		}
		if _, err := t.exec("UPDATE {s}fleet_node SET lapses = $2, lapse_token = $3, version = version + 1, changed = {changed} WHERE id = $1", node, list, int64(lease)); err != nil {
			return Verdict{}, err
		}
		v := Verdict{Event: fleet.Event{Kind: fleet.EventLapsed, Node: node, Token: lease, Code: fleet.CodeLeaseLapsed, Actor: actor, Text: fmt.Sprintf("the lease of node %q lapsed", node)}}
		return v, t.append(&v.Event)
	})
}

// Remove forgets a node and the intent for it: code wrong_state while its lease is
// live, or while it owns work. With gone, somebody vouches that the host never comes
// back, and its pinned work ends as failed. A node that reports again joins anew.
func (r *Registry) Remove(ctx context.Context, node string, o Order, gone bool) (Verdict, error) {
	return r.decide(ctx, "remove a node", Fence{}, "", func(t *tx) (Verdict, error) {
		leases, err := t.holdLeases(node) // its next term waits
		if err != nil {
			return Verdict{}, err
		}
		n, err := t.lockNode(node)
		if n == nil || err != nil {
			return noSuchNode(node), err
		}
		if l := leases[node]; l.Live() {
			return refused(fleet.CodeWrongState, "node %q lives: its lease (token %s) lasts for another %s", node, l.Token, l.Remaining.Round(time.Millisecond)), nil
		}
		owned, err := t.countOwned(node)
		if err != nil || owned > 0 && !gone {
			return refused(fleet.CodeWrongState, "node %q owns %s: stop or move it first", node, items(owned)), err
		}
		if left, err := t.endAll(node, o); err != nil || left > 0 {
			return refused(fleet.CodeWrongState, "node %q still owns %s that can move: another node takes them over, unless the brake holds that back", node, items(left)), err
		}
		if err := t.change(); err != nil {
			return Verdict{}, err
		}
		if _, err := t.exec("UPDATE {s}fleet_node SET removed_us = {now}, intent = '{}', intent_state = 'active', lapses = '[]', "+newOrders+" WHERE id = $1", node); err != nil {
			return Verdict{}, err
		}
		if _, err := t.exec("DELETE FROM {s}fleet_seen WHERE node = $1", node); err != nil {
			return Verdict{}, err
		}
		v := Verdict{Event: fleet.Event{Kind: fleet.EventRemoved, Node: node, Actor: o.Actor, Text: o.Reason}}
		return v, t.append(&v.Event)
	})
}

func items(n int) string {
	if n == 1 {
		return "1 item"
	}
	return fmt.Sprintf("%d items", n)
}

// endAll ends as failed what a node owns that is gone for good, and returns how many
// items are to go on elsewhere instead, and were left. What ends gets a larger token, so
// that a copy which lives after all is refused where it writes.
func (t *tx) endAll(node string, o Order) (left int, err error) {
	pinned := map[string]fence.Token{}
	err = t.each(func(row scanner) error {
		var id string
		var token int64
		var moves bool
		if err := row.Scan(&id, &token, &moves); err != nil {
			return err
		}
		if moves {
			left++
		} else {
			pinned[id] = fence.Token(token)
		}
		return nil
	}, "SELECT id, token, moving OR movable AND state <> 'stopping' FROM {s}fleet_work WHERE owner = $1 AND {owned} ORDER BY id{lock}", node)
	if err != nil || left > 0 {
		return left, err
	}
	why := "its host is gone for good: " + o.Reason
	for _, id := range slices.Sorted(maps.Keys(pinned)) {
		if _, err := t.exec("UPDATE {s}fleet_work SET state = 'failed', token = token + 1, ended_us = {now}, exit_code = -1, result = $2 WHERE id = $1", id, why); err != nil {
			return 0, err
		}
		e := fleet.Event{Kind: fleet.EventEnded, Node: node, Work: id, Token: pinned[id], Code: fleet.Code(fleet.Failed), Actor: o.Actor, Text: why}
		if err := t.append(&e); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// Orders is all that a node is to do, at one revision.
type Orders struct {
	Revision uint64
	Intent   fleet.Intent
	Work     []Assignment // what it owns, in order of id
}

// Orders returns the orders of a node, and whether there is such a node.
func (r *Registry) Orders(ctx context.Context, node string) (Orders, bool, error) {
	var o Orders
	found := false
	err := r.read(ctx, "read orders", func(t *tx) error {
		// One statement, so that the revision is that of the list.
		return t.each(func(row scanner) error {
			var revision, lease int64
			var intent string
			var id sql.NullString
			w, err := scanWork(row, &revision, &intent, &id, &lease)
			if err != nil {
				return err
			}
			found, o.Revision = true, uint64(max(revision, 0))
			if id.Valid {
				o.Work = append(o.Work, Assignment{w, fence.Token(lease)})
			}
			return json.Unmarshal([]byte(intent), &o.Intent)
		}, "SELECT n.orders, n.intent, w.id, coalesce(w.lease_token, 0), "+workOrNone+" FROM {s}fleet_node n LEFT JOIN {s}fleet_work w ON w.owner = n.id AND w.{owned} WHERE n.id = $1 AND n.removed_us = 0 ORDER BY w.id", node)
	})
	return o, found && err == nil, err
}
