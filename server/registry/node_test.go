package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
)

func fenceToken(n int64) fence.Token { return fence.Token(n) }

func storeRevocation(why string) store.Revocation { return store.Revocation{Why: why, By: "test"} }

func cordon(i fleet.Intent, m fleet.Mark) (fleet.Intent, fleet.Code) { i.Cordon = &m; return i, "" }

func drain(i fleet.Intent, m fleet.Mark) (fleet.Intent, fleet.Code) {
	i.Drain = &fleet.Drain{Mark: m}
	return i, ""
}

func resumeDrain(i fleet.Intent, _ fleet.Mark) (fleet.Intent, fleet.Code) {
	i.Drain = nil
	return i, ""
}

func resumeAll(fleet.Intent, fleet.Mark) (fleet.Intent, fleet.Code) { return fleet.Intent{}, "" }

// restart lets a node's agent be another one, with a new term.
func (b *bed) restart(node string) fence.Token {
	rec, err := b.leases.Acquire(b.ctx, store.Request{Name: "node/" + node, Holder: "h", TTL: ttl, Attempt: store.NewAttempt()})
	if err != nil {
		b.t.Errorf("acquire: %v", err)
	}
	return rec.Token
}

// lapseOf is lapse by a statement of its own goroutine.
func (b *bed) lapseOf(node string) {
	q := "UPDATE tenure_lease SET expires_us = tenure_clock() - 1000 WHERE name = $1"
	if b.kind == registry.SQLite {
		q = "UPDATE tenure_lease SET expires_ns = expires_ns - ttl_ns, ttl_ns = 1 WHERE name = $1"
	}
	for {
		_, err := b.db.ExecContext(b.ctx, q, "node/"+node)
		if err == nil {
			return
		}
		if b.kind == registry.Postgres || b.ctx.Err() != nil || !strings.Contains(err.Error(), "locked") {
			b.t.Errorf("lapse: %v", err)
			return
		}
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	for _, kind := range []registry.Dialect{registry.SQLite, registry.Postgres} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			b := newBed(t, kind)
			if err := b.Check(b.ctx); !errors.Is(err, store.ErrSchema) || !strings.Contains(err.Error(), "tenure migrate") {
				t.Errorf("check of nothing: got %v, want ErrSchema and the next step", err)
			}
			must(t, b.Migrate(b.ctx))
			must(t, b.Migrate(b.ctx))
			must(t, b.reopen().Check(b.ctx))
			b.exec("INSERT INTO fleet_schema (version) VALUES (99)")
			for _, err := range []error{b.Check(b.ctx), b.Migrate(b.ctx)} {
				if !errors.Is(err, store.ErrSchema) || !strings.Contains(err.Error(), "newer program") {
					t.Errorf("tables of the future: got %v, want ErrSchema", err)
				}
			}
			b.exec("DELETE FROM fleet_schema WHERE version = 99")
			b.exec("ALTER TABLE fleet_takeover RENAME COLUMN lease_state TO other")
			if err := b.Check(b.ctx); !errors.Is(err, store.ErrSchema) {
				t.Errorf("a column is missing: got %v, want ErrSchema", err)
			}
		})
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, cfg := range []registry.Config{{}, {Dialect: "oracle"}, {Dialect: registry.SQLite}, {Dialect: registry.Postgres, Schema: `a"b`}} {
		if _, err := registry.New(nil, cfg); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%+v: got %v, want ErrInvalid", cfg, err)
		}
	}
}

func TestJoin(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		v := b.join("n1", "i1", 4)
		if v.Event.Kind != fleet.EventJoined || v.Event.Seq == 0 {
			t.Errorf("joined: got %+v", v)
		}
		b.code("", b.join("n1", "i1", 4), nil)
		n, found, err := b.Node(b.ctx, "n1")
		must(t, err)
		if !found || n.Incarnation != "i1" || n.Facts.Capacity["slots"] != 4 || n.FirstSeen.IsZero() || n.LastSeen.Before(n.FirstSeen) || n.Age > time.Minute || n.Lease.State != fleet.LeaseNone {
			t.Errorf("node: got %+v", n)
		}
		rep := report("n1", "i1", 4)
		rep.Facts.Readiness = fleet.Readiness{Reason: "disk", Text: "full"}
		v, err = b.Join(b.ctx, rep)
		b.code("", v, err)
		n, _, err = b.Node(b.ctx, "n1")
		must(t, err)
		if v.Event.Kind != fleet.EventNotReady || v.Event.Code != "disk" || n.NotReady.IsZero() {
			t.Errorf("not ready: got %+v and %+v", v, n)
		}
		b.code("", b.join("n1", "i1", 4), nil)
		b.code("", b.join("n1", "i2", 4), nil)
		b.code(fleet.CodeReplaced, b.join("n1", "i1", 4), nil)
		want := []fleet.EventKind{fleet.EventJoined, fleet.EventNotReady, fleet.EventReady, fleet.EventJoined}
		if got := b.kinds(registry.EventFilter{Node: "n1"}); !slices.Equal(got, want) {
			t.Errorf("events: got %v, want %v", got, want)
		}
		rep.Facts.Config = "a\x00b"
		if _, err := b.Join(b.ctx, rep); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("a zero byte: got %v, want ErrInvalid", err)
		}
	})
}

// C54: a name comes back as another incarnation within a second.
func TestC54SameNameNewMachine(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		old := b.node("n1", 4)
		for i := range 3 {
			b.run(fmt.Sprintf("w%d", i), "n1", old, false)
		}
		flush(b.ctx, t, b, []registry.Seen{{Node: "n1", Incarnation: "i1"}})
		b.release("node/n1")
		b.code("", b.join("n1", "i2", 4), nil)
		l := b.acquire("node/n1")
		r := b.reopen() // the control plane restarts in between
		// The three items are still its own; they end under the new term.
		for i := range 3 {
			b.code("", b.report(fmt.Sprintf("w%d", i), "n1", 1, l, fleet.Stopped), nil)
		}
		for i := range 4 {
			v, err := r.SubmitTo(b.ctx, spec(fmt.Sprintf("v%d", i), false), registry.Placement{Node: "n1", Lease: l})
			b.code("", v, err)
		}
		v, err := r.SubmitTo(b.ctx, spec("v4", false), registry.Placement{Node: "n1", Lease: l})
		b.code("insufficient_slots", v, err)
		seen, _, err := r.Node(b.ctx, "n1")
		must(t, err)
		// What the old incarnation still says.
		b.code(fleet.CodeReplaced, b.join("n1", "i1", 9), nil)
		flush(b.ctx, t, r, []registry.Seen{{Node: "n1", Incarnation: "i1", Age: -time.Hour}})
		b.code(fleet.CodeStaleToken, b.report("v0", "n1", 1, old, fleet.Stopped), nil)
		n, _, err := r.Node(b.ctx, "n1")
		must(t, err)
		all, _, err := r.Nodes(b.ctx, 0)
		must(t, err)
		if n.Work != 4 || n.Reserved["slots"] != 4 || n.Incarnation != "i2" || !n.LastSeen.Equal(seen.LastSeen) || len(all) != 1 || all[0].Reserved["slots"] != 4 {
			t.Errorf("node: got %+v and %+v, want 4 of 4 slots in use, and nothing of i1", n, all)
		}
	})
}

// C62: every order of wishes, with the control plane started again after each.
func TestC62IntentIsKept(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		longest := 4
		if b.kind == registry.Postgres && os.Getenv("TENURE_FLEET_LONG") != "1" {
			longest = 3 // each step is a commit to disk
		}
		replicas := [2]*registry.Registry{b.Registry, b.reopen()}
		o := registry.Order{Actor: "alice", Reason: "disk swap"}
		ops := map[string]func(*registry.Registry, string) (registry.Verdict, error){
			"cordon": func(r *registry.Registry, n string) (registry.Verdict, error) {
				_, v, err := r.SetIntent(b.ctx, n, o, cordon)
				return v, err
			},
			"drain": func(r *registry.Registry, n string) (registry.Verdict, error) {
				_, v, err := r.SetIntent(b.ctx, n, o, drain)
				return v, err
			},
			"cancel": func(r *registry.Registry, n string) (registry.Verdict, error) {
				_, v, err := r.SetIntent(b.ctx, n, o, resumeDrain)
				return v, err
			},
			"complete": func(r *registry.Registry, n string) (registry.Verdict, error) {
				return r.CompleteDrain(b.ctx, registry.Fence{}, n, "reconciler")
			},
			"agent restart": func(r *registry.Registry, n string) (registry.Verdict, error) {
				return r.Join(b.ctx, report(n, fmt.Sprint("i", time.Now().UnixNano()), 4))
			},
			"server restart": nil, // what follows is asked of another replica
		}
		names := []string{"cordon", "drain", "cancel", "complete", "agent restart", "server restart"}
		node := 0
		var walk func(path []string, cordoned, draining, drained bool)
		walk = func(path []string, cordoned, draining, drained bool) {
			if len(path) > 0 {
				node++
				id := fmt.Sprintf("n%d", node)
				b.join(id, "i0", 4)
				r, next := replicas[0], replicas[1]
				for _, name := range path {
					if ops[name] == nil {
						r, next = next, r
					} else if _, err := ops[name](r, id); err != nil {
						t.Fatal(err)
					}
				}
				n, _, err := r.Node(b.ctx, id)
				must(t, err)
				want := map[bool]fleet.IntentState{true: fleet.Cordoned, false: fleet.Active}[cordoned]
				if draining {
					want = fleet.Draining
				}
				if drained {
					want = fleet.Drained
				}
				if n.Intent.State() != want || (n.Intent.Cordon != nil) != cordoned {
					t.Errorf("%v: got %s, cordon %v, want %s, %t", path, n.Intent.State(), n.Intent.Cordon, want, cordoned)
				}
				if n.Intent.Cordon != nil && (n.Intent.Cordon.Actor != "alice" || n.Intent.Cordon.Reason != "disk swap" || n.Intent.Cordon.At.IsZero()) {
					t.Errorf("%v: got %+v, want actor, reason and time", path, n.Intent.Cordon)
				}
			}
			if len(path) == longest {
				return
			}
			for _, name := range names {
				c, d, done := cordoned, draining, drained
				switch name {
				case "cordon":
					c = true
				case "drain":
					d, done = true, false
				case "cancel":
					d, done = false, false
				case "complete":
					done = d
				}
				walk(append(slices.Clone(path), name), c, d, done)
			}
		}
		walk(nil, false, false, false)
		before, _, err := b.Nodes(b.ctx, 0)
		must(t, err)
		after, _, err := b.reopen().Nodes(b.ctx, 0)
		must(t, err)
		for i := range before {
			x, _ := json.Marshal(before[i].Intent)
			y, _ := json.Marshal(after[i].Intent)
			if string(x) != string(y) || before[i].Orders != after[i].Orders {
				t.Errorf("%s after a restart: got %s, want %s", before[i].ID, y, x)
			}
		}
	})
}

// Drained is never said while an item is the node's.
func TestDrainWaits(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		l := b.node("n1", 4)
		b.run("w", "n1", l, false)
		complete := func(want fleet.Code) {
			t.Helper()
			v, err := b.CompleteDrain(b.ctx, registry.Fence{}, "n1", "reconciler")
			b.code(want, v, err)
		}
		complete(fleet.CodeWrongState) // no drain is under way
		i, v, err := b.SetIntent(b.ctx, "n1", registry.Order{Actor: "a", Reason: "r"}, drain)
		b.code("", v, err)
		if v.Event.Kind != fleet.EventDraining || i.State() != fleet.Draining {
			t.Errorf("drain: got %+v and %s", v, i.State())
		}
		complete(fleet.CodeWrongState)
		v, err = b.Stop(b.ctx, "w", registry.Order{})
		b.code("", v, err)
		complete(fleet.CodeWrongState) // asked to stop is not stopped
		b.lapse("node/n1")
		complete(fleet.CodeWrongState)
		l = b.acquire("node/n1")
		b.code("", b.report("w", "n1", 1, l, fleet.Stopped), nil)
		left := report("n1", "i1", 4)
		left.Facts.Leftovers = []fleet.Leftover{{Work: "gone", Token: 3, PID: 7}}
		v, err = b.Join(b.ctx, left)
		b.code("", v, err)
		complete(fleet.CodeWrongState) // a copy of what is not the node's any more lives
		b.code("", b.join("n1", "i1", 4), nil)
		complete("")
		complete("")
		orders, _, err := b.Orders(b.ctx, "n1")
		must(t, err)
		if orders.Intent.State() != fleet.Drained {
			t.Errorf("orders: got %+v, want drained", orders)
		}
		_, v, err = b.SetIntent(b.ctx, "n1", registry.Order{}, func(i fleet.Intent, _ fleet.Mark) (fleet.Intent, fleet.Code) { return i, fleet.CodeWrongState })
		b.code(fleet.CodeWrongState, v, err)
		_, v, err = b.SetIntent(b.ctx, "n9", registry.Order{}, cordon)
		b.code(fleet.CodeNoSuchNode, v, err)
		want := []fleet.EventKind{fleet.EventJoined, fleet.EventPlaced, fleet.EventStarted, fleet.EventDraining, fleet.EventStopping, fleet.EventEnded, fleet.EventDrained}
		if got := b.kinds(registry.EventFilter{Node: "n1"}); !slices.Equal(got, want) {
			t.Errorf("events: got %v, want %v", got, want)
		}
	})
}

func TestRemove(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		l := b.node("n1", 4)
		b.run("w", "n1", l, false)
		_, cursor, err := b.Nodes(b.ctx, 0)
		must(t, err)
		v, err := b.Remove(b.ctx, "n1", registry.Order{Actor: "a", Reason: "sold"}, false)
		b.code(fleet.CodeWrongState, v, err)
		b.code("", b.report("w", "n1", 1, l, fleet.Stopped), nil)
		before, _, err := b.Orders(b.ctx, "n1")
		must(t, err)
		v, err = b.Remove(b.ctx, "n1", registry.Order{Actor: "a", Reason: "sold"}, true)
		b.code(fleet.CodeWrongState, v, err) // it lives
		b.lapse("node/n1")
		v, err = b.Remove(b.ctx, "n1", registry.Order{Actor: "a", Reason: "sold"}, false)
		b.code("", v, err)
		if _, found, err := b.Node(b.ctx, "n1"); found || err != nil {
			t.Errorf("removed: found %t, %v", found, err)
		}
		delta, _, err := b.Nodes(b.ctx, cursor)
		must(t, err)
		all, _, err := b.Nodes(b.ctx, 0)
		must(t, err)
		if len(delta) != 1 || !delta[0].Removed || len(all) != 0 {
			t.Errorf("removed: got %+v and %+v, want it in the delta and not in all", delta, all)
		}
		n, _, v, err := b.Prune(b.ctx, registry.Fence{}, registry.Retention{Removed: 1})
		b.code("", v, err)
		b.join("n1", "i1", 4)
		after, _, err := b.Orders(b.ctx, "n1")
		must(t, err)
		if n != 1 || after.Revision <= before.Revision {
			t.Errorf("joined again: got orders %d after %d (%d pruned), want a larger revision", after.Revision, before.Revision, n)
		}
	})
}

// TestLostRow: only a node of which there is no row gets the intent that whoever
// reports it knows. One that was removed is known, and gets none.
func TestLostRow(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		seen := []registry.Seen{{Node: "n1", Incarnation: "i1"}}
		rep := report("n1", "i1", 4)
		rep.Intent, _ = fleet.Intent{}.WithCordon(fleet.Mark{Actor: "ann", Reason: "look", At: time.Now().UTC()})
		join := func(want fleet.IntentState) {
			t.Helper()
			v, err := b.Join(b.ctx, rep)
			b.code("", v, err)
			n, found, err := b.Node(b.ctx, "n1")
			must(t, err)
			if got := n.Intent.State(); !found || got != want {
				t.Errorf("got %s, found %v; want %s", got, found, want)
			}
		}
		b.join("n1", "i1", 4)
		rep.Facts.Config = "changed"
		join(fleet.Active)
		flush(b.ctx, t, b, seen)
		b.exec("DELETE FROM fleet_node")
		flush(b.ctx, t, b, seen, "n1")
		join(fleet.Cordoned)
		flush(b.ctx, t, b, seen)
		v, err := b.Remove(b.ctx, "n1", registry.Order{Actor: "ann", Reason: "gone"}, false)
		b.code("", v, err)
		flush(b.ctx, t, b, seen)
		join(fleet.Active)
	})
}

// TestRemoveGone: what is pinned to a host that never comes back ends as failed by
// the word of an operator, and what can move is left to a takeover.
func TestRemoveGone(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		l := b.node("n1", 4)
		b.run("pinned", "n1", l, false)
		b.run("stopping", "n1", l, false)
		v, err := b.Stop(b.ctx, "stopping", registry.Order{})
		b.code("", v, err)
		b.run("movable", "n1", l, true)
		lost := registry.Order{Actor: "a", Reason: "burnt"}
		remove := func(gone bool, want fleet.Code) {
			t.Helper()
			v, err := b.Remove(b.ctx, "n1", lost, gone)
			b.code(want, v, err)
		}
		remove(true, fleet.CodeWrongState) // it lives
		b.lapse("node/n1")
		remove(false, fleet.CodeWrongState)
		remove(true, fleet.CodeWrongState)
		b.is("pinned", fleet.Running, "n1", 1)
		v, err = b.ReleaseToPending(b.ctx, registry.Takeover{Placement: registry.Placement{Work: "movable"}, Evidence: fleet.Evidence{From: "n1", FromToken: 1, LeaseToken: l}})
		b.code("", v, err)
		remove(false, fleet.CodeWrongState) // nobody said that it is gone
		b.is("pinned", fleet.Running, "n1", 1)
		remove(true, "")
		for _, id := range []string{"pinned", "stopping"} {
			if w := b.is(id, fleet.Failed, "n1", 2); w.Result != "its host is gone for good: burnt" {
				t.Errorf("%s: got %q", id, w.Result)
			}
		}
		// It was not lost: the item is over all the same, and its copy writes with an old token.
		for _, token := range []fence.Token{1, 2} {
			b.code(fleet.CodeWrongState, b.report("pinned", "n1", token, b.node("n1", 4), fleet.Running), nil)
			b.lapse("node/n1")
		}
		kinds := b.kinds(registry.EventFilter{Work: "pinned"})
		if kinds[len(kinds)-1] != fleet.EventEnded {
			t.Errorf("events: got %v, want the end last", kinds)
		}
	})
}

func TestNoteLapse(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		note := func(want fleet.Code, l fence.Token) {
			t.Helper()
			v, err := b.NoteLapse(b.ctx, registry.Fence{}, "n1", l, "r1")
			b.code(want, v, err)
		}
		l := b.node("n1", 4)
		note(fleet.CodeWrongState, l)
		for range 10 {
			b.lapse("node/n1")
			note("", l)
			note("", l)
			l = b.acquire("node/n1")
			note(fleet.CodeStaleToken, l-1)
		}
		b.release("node/n1")
		note(fleet.CodeWrongState, l)
		n, _, err := b.Node(b.ctx, "n1")
		must(t, err)
		if len(n.Lapses) != 8 || !slices.IsSortedFunc(n.Lapses, time.Time.Compare) {
			t.Errorf("lapses: got %v, want the last 8 in order", n.Lapses)
		}
	})
}

// A deposed reconciler changes nothing, whatever it tries.
func TestFence(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		l1, l2 := b.node("n1", 9), b.node("n2", 9)
		b.run("w", "n1", l1, true)
		b.run("placed", "n1", l1, true)
		v, err := b.Submit(b.ctx, spec("pending", true), "")
		b.code("", v, err)
		_, v, err = b.SetIntent(b.ctx, "n2", registry.Order{Actor: "a", Reason: "r"}, cordon)
		b.code("", v, err)
		_, v, err = b.SetIntent(b.ctx, "n2", registry.Order{Actor: "a", Reason: "r"}, func(i fleet.Intent, m fleet.Mark) (fleet.Intent, fleet.Code) {
			return fleet.Intent{Drain: &fleet.Drain{Mark: m}}, ""
		})
		b.code("", v, err)
		b.join("n3", "i1", 9)
		l3 := b.acquire("node/n3")
		b.lapse("node/n1")
		name := "tenure/reconciler"
		old := registry.Fence{Lease: name, Token: b.acquire(name)}
		b.lapse(name)
		current := registry.Fence{Lease: name, Token: b.acquire(name)}
		take := func(f registry.Fence, work, to string, lease fence.Token) registry.Takeover {
			tk := takeover(work, "n1", 1, l1, to, lease)
			tk.Fence = f
			return tk
		}
		writes := map[string]func(registry.Fence) (registry.Verdict, error){
			"takeover": func(f registry.Fence) (registry.Verdict, error) { return b.Takeover(b.ctx, take(f, "w", "n3", l3)) },
			"release": func(f registry.Fence) (registry.Verdict, error) {
				return b.ReleaseToPending(b.ctx, take(f, "placed", "", 0))
			},
			"place": func(f registry.Fence) (registry.Verdict, error) {
				return b.Place(b.ctx, registry.Placement{Work: "pending", Node: "n3", Lease: l3, Fence: f})
			},
			"submit": func(f registry.Fence) (registry.Verdict, error) {
				return b.SubmitTo(b.ctx, spec("new", true), registry.Placement{Node: "n3", Lease: l3, Fence: f})
			},
			"drain": func(f registry.Fence) (registry.Verdict, error) { return b.CompleteDrain(b.ctx, f, "n2", "r") },
			"lapse": func(f registry.Fence) (registry.Verdict, error) { return b.NoteLapse(b.ctx, f, "n1", l1, "r") },
			"append": func(f registry.Fence) (registry.Verdict, error) {
				return b.Append(b.ctx, f, fleet.Event{Kind: fleet.EventWithheld})
			},
			"brake": func(f registry.Fence) (registry.Verdict, error) {
				return b.SaveBrake(b.ctx, f, json.RawMessage(`{"a":1}`), 0)
			},
		}
		_, before, err := b.Nodes(b.ctx, 0)
		must(t, err)
		seq := b.lastSeq()
		for name, write := range writes {
			for _, f := range []registry.Fence{old, {Lease: "tenure/reconciler", Token: current.Token + 1}, {Lease: "none", Token: 1}} {
				v, err := write(f)
				if err != nil || v.Code != fleet.CodeStaleToken {
					t.Errorf("%s under %+v: got %+v, %v, want stale_token", name, f, v, err)
				}
			}
		}
		if b.lastSeq() != seq {
			t.Error("a fenced write left an event")
		}
		if delta, _, err := b.Nodes(b.ctx, before); err != nil || b.kind == registry.SQLite && len(delta) > 0 {
			t.Errorf("a fenced write changed %v, %v", delta, err)
		}
		for name, write := range writes {
			v, err := write(current)
			if err != nil || v.Code != "" {
				t.Errorf("%s under the current term: got %+v, %v", name, v, err)
			}
		}
		_ = l2
	})
}

func (b *bed) lastSeq() int64 {
	b.t.Helper()
	events, err := b.Events(b.ctx, registry.EventFilter{Last: true, Limit: 1})
	must(b.t, err)
	if len(events) == 0 {
		return 0
	}
	return events[0].Seq
}

func TestBrakeIsKept(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		k, err := b.Brake(b.ctx)
		must(t, err)
		if k.State != nil || len(k.Orders) != 0 {
			t.Errorf("at first: got %+v", k)
		}
		must(t, b.OrderBrake(b.ctx, registry.BrakeOrder{Domain: "all", What: "confirm", Order: registry.Order{Actor: "a", Reason: "r"}}))
		must(t, b.OrderBrake(b.ctx, registry.BrakeOrder{Domain: "zone=b", What: "release", Order: registry.Order{Actor: "a", Reason: "r"}}))
		k, err = b.Brake(b.ctx)
		must(t, err)
		if len(k.Orders) != 2 || k.Orders[0].Domain != "all" || k.Orders[0].Actor != "a" || k.Orders[0].At.IsZero() {
			t.Fatalf("orders: got %+v", k)
		}
		v, err := b.SaveBrake(b.ctx, registry.Fence{}, json.RawMessage(`{"engaged":true}`), k.Orders[0].Seq)
		b.code("", v, err)
		k, err = b.reopen().Brake(b.ctx)
		must(t, err)
		if string(k.State) != `{"engaged":true}` || k.Saved.IsZero() || len(k.Orders) != 1 || k.Orders[0].Domain != "zone=b" {
			t.Errorf("kept: got %+v", k)
		}
	})
}

// 10,000 nodes: a flush is one statement, and a delta holds what changed.
func TestTenThousandNodes(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		const n = 10_000
		seen := make([]registry.Seen, n)
		fill := `INSERT INTO fleet_node (id, incarnation, facts, capacity, ready, first_us, joined_us, orders, changed)
			SELECT 'n' || g, 'i1', '{"readiness":{"ready":true}}', '{"slots":4}', true, 1, 1, 1, 1 FROM `
		if b.kind == registry.Postgres {
			b.exec(fill + "generate_series(0, 9999) g")
		} else {
			b.exec("WITH RECURSIVE s(g) AS (SELECT 0 UNION ALL SELECT g + 1 FROM s WHERE g < 9999) " + fill + "s")
			b.exec("UPDATE fleet_single SET changed = 1")
		}
		for i := range seen {
			seen[i] = registry.Seen{Node: fmt.Sprintf("n%d", i), Incarnation: "i1", Age: time.Duration(i%7) * time.Second}
		}
		all, cursor, err := b.Nodes(b.ctx, 0)
		must(t, err)
		if len(all) != n {
			t.Fatalf("got %d nodes, want %d", len(all), n)
		}
		start := time.Now()
		flush(b.ctx, t, b, slices.Concat(seen, seen[:1], []registry.Seen{{Node: "unknown"}}), "unknown")
		flushed := time.Since(start)
		for i := range seen { // a replica that heard them earlier
			seen[i].Age += time.Hour
		}
		flush(b.ctx, t, b, seen)
		signs, err := b.Signs(b.ctx, nil)
		must(t, err)
		some, err := b.Signs(b.ctx, []string{"n5", "n9999", "unknown"})
		must(t, err)
		if len(signs) != n || len(some) != 2 || some[0].Node != "n5" {
			t.Errorf("signs: got %d and %+v, want %d and those of n5 and n9999", len(signs), some, n)
		}
		for _, s := range signs {
			if s.Age > time.Minute || s.LastSeen.IsZero() {
				t.Fatalf("sign: got %+v, want heard just now", s)
			}
		}
		start = time.Now()
		delta, cursor, err := b.Nodes(b.ctx, cursor)
		must(t, err)
		if len(delta) != 0 {
			t.Errorf("after beats: got %d changed nodes, want none", len(delta))
		}
		t.Logf("flush %s, empty delta %s", flushed, time.Since(start))
		lease := b.acquire("node/n7")
		v, err := b.SubmitTo(b.ctx, spec("w", false), registry.Placement{Node: "n7", Lease: lease})
		b.code("", v, err)
		_, v, err = b.SetIntent(b.ctx, "n8", registry.Order{Actor: "a", Reason: "r"}, cordon)
		b.code("", v, err)
		delta, cursor, err = b.Nodes(b.ctx, cursor)
		must(t, err)
		if len(delta) != 2 || delta[0].ID != "n7" || delta[0].Work != 1 || delta[0].Lease.State != fleet.LeaseHeld || delta[1].Intent.State() != fleet.Cordoned {
			t.Errorf("delta: got %d nodes, want n7 and n8", len(delta))
		}
		// Of Postgres's transactions those of other tests count too: what is older than
		// the oldest of them is returned no more.
		for len(delta) > 0 {
			delta, cursor, err = b.Nodes(b.ctx, cursor)
			must(t, err)
			if len(delta) > 2 || len(delta) > 0 && b.kind == registry.SQLite {
				t.Fatalf("again: got %d nodes, want none", len(delta))
			}
		}
		if future, _, err := b.Nodes(b.ctx, cursor+1<<40); err != nil || len(future) != n {
			t.Errorf("a cursor of another history: got %d, %v, want all", len(future), err)
		}
		must(t, b.SetSuspect(b.ctx, time.Hour)) // the test may take long
		query := "SELECT count(*) FROM tenure_nodes WHERE NOT stale AND work_owned = 1 AND NOT fenced"
		var count int
		must(t, b.db.QueryRowContext(b.ctx, query).Scan(&count))
		if count != 1 {
			t.Errorf("view: got %d, want n7", count)
		}
	})
}

// The on-call query, by hand.
func TestViews(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		l1 := b.node("n1", 4)
		l2 := b.node("n2", 4)
		b.run("w", "n1", l1, true)
		b.run("v", "n1", l1, false)
		_, v, err := b.SetIntent(b.ctx, "n1", registry.Order{Actor: "a", Reason: "disk"}, drain)
		b.code("", v, err)
		must(t, b.leases.Revoke(b.ctx, "node/n1", l1, storeRevocation("why")))
		var stale, fenced, draining bool
		var free, intent, reason, address string
		var age, remaining float64
		var owned, stuck int
		row := b.db.QueryRowContext(b.ctx, "SELECT age_s, lease_remaining_s, stale, fenced, draining, intent, reason, free, work_owned, work_stuck, address FROM tenure_nodes WHERE id = 'n1'")
		must(t, row.Scan(&age, &remaining, &stale, &fenced, &draining, &intent, &reason, &free, &owned, &stuck, &address))
		free = strings.ReplaceAll(free, " ", "")
		if stale || !fenced || !draining || intent != "draining" || reason != "disk" || free != `{"slots":2}` || owned != 2 || stuck != 0 || address != "n1:80" || age > 60 || remaining < 1 {
			t.Errorf("n1: got stale %t, fenced %t, draining %t, %s (%s), free %s, %d owned, %d stuck, %s, age %f, lease %f", stale, fenced, draining, intent, reason, free, owned, stuck, address, age, remaining)
		}
		b.lapse("node/n1")
		b.exec("UPDATE tenure_lease SET renewed_us = renewed_us - 3600000000 WHERE name = 'node/n1'") // as it would be
		v, err = b.Takeover(b.ctx, takeover("w", "n1", 1, l1, "n2", l2))
		b.code("", v, err)
		var from, to, owner string
		var leased bool
		must(t, b.db.QueryRowContext(b.ctx, "SELECT t.from_node, t.to_node, w.owner, w.owner_leased FROM tenure_takeovers t JOIN tenure_work w ON w.id = t.work").Scan(&from, &to, &owner, &leased))
		if from != "n1" || to != "n2" || owner != "n2" || !leased {
			t.Errorf("views: got %s, %s, %s, %t", from, to, owner, leased)
		}
		must(t, b.SetSuspect(b.ctx, time.Microsecond))
		must(t, b.db.QueryRowContext(b.ctx, "SELECT stale, fenced FROM tenure_nodes WHERE id = 'n2'").Scan(&stale, &fenced))
		if !stale || fenced {
			t.Errorf("n2: got stale %t, fenced %t, want true and false", stale, fenced)
		}
	})
}

// A write that waits for another ends with its context, and says so.
func TestBusy(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		b.node("n1", 4)
		conn, err := b.db.Conn(b.ctx)
		must(t, err)
		defer conn.Close()
		begin := "BEGIN IMMEDIATE"
		if b.kind == registry.Postgres {
			begin = "BEGIN; UPDATE fleet_node SET incarnation = incarnation"
		}
		_, err = conn.ExecContext(b.ctx, begin)
		must(t, err)
		ctx, cancel := context.WithTimeout(b.ctx, 300*time.Millisecond)
		defer cancel()
		_, _, err = b.SetIntent(ctx, "n1", registry.Order{}, cordon)
		if !errors.Is(err, store.ErrBusy) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want busy or the deadline", err)
		}
		_, err = conn.ExecContext(b.ctx, "ROLLBACK")
		must(t, err)
		_, v, err := b.SetIntent(b.ctx, "n1", registry.Order{}, cordon)
		b.code("", v, err)
	})
}
