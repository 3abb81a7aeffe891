package registry_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/registry"
)

// TestMigrateWithData: tables as they were at an earlier version, with data in them,
// become those of the present one. What was in them is there, and all goes on.
func TestMigrateWithData(t *testing.T) {
	t.Parallel()
	for _, kind := range []registry.Dialect{registry.SQLite, registry.Postgres} {
		for version := 1; version < registry.Version; version++ {
			t.Run(fmt.Sprintf("%s/%03d", kind, version), func(t *testing.T) {
				t.Parallel()
				b := newBed(t, kind)
				b.tablesOf(version)
				now := time.Now().UTC().Truncate(time.Microsecond)
				l := b.acquire(fleet.LeaseName("n1"))
				b.oldData(now)
				must(t, b.Migrate(b.ctx))
				must(t, b.Check(b.ctx))
				must(t, b.Migrate(b.ctx)) // nothing more
				b.keptData(now)

				// The item under way ends, a new one begins above the floor, and the node changes.
				b.code("", b.report("w1", "n1", 3, l, fleet.Succeeded), nil)
				v, err := b.SubmitTo(b.ctx, spec("w2", true), registry.Placement{Node: "n1", Lease: l, Actor: "test"})
				b.code("", b.resume("n1"), nil)
				if err != nil || v.Code != fleet.CodeCordoned {
					t.Errorf("placed on a cordoned node: got %+v, %v", v, err)
				}
				v, err = b.SubmitTo(b.ctx, spec("w2", true), registry.Placement{Node: "n1", Lease: l, Actor: "test"})
				b.code("", v, err)
				b.is("w2", fleet.Placed, "n1", 8)
				b.join("n1", "i1", 3)
				n, _, err := b.Node(b.ctx, "n1")
				must(t, err)
				if n.Version < 1 || n.Facts.Capacity["slots"] != 3 {
					t.Errorf("after new facts: got %+v", n)
				}
			})
		}
	}
}

// tablesOf makes the tables as a program of an earlier version did.
func (b *bed) tablesOf(version int) {
	b.t.Helper()
	prefix := ""
	if b.kind == registry.Postgres {
		prefix = `"public".`
	}
	files, err := filepath.Glob("migrations/" + string(b.kind) + "/*.sql")
	must(b.t, err)
	slices.Sort(files)
	b.exec("CREATE TABLE fleet_schema (version INTEGER PRIMARY KEY)")
	for i, file := range files[:version] {
		text, err := os.ReadFile(file)
		must(b.t, err)
		b.exec(strings.ReplaceAll(string(text), "{s}", prefix))
		b.exec(fmt.Sprintf("INSERT INTO fleet_schema (version) VALUES (%d)", i+1))
	}
}

// oldData writes what the first version had columns for.
func (b *bed) oldData(now time.Time) {
	b.t.Helper()
	at := now.UnixMicro()
	b.exec(`INSERT INTO fleet_node (id, incarnation, replaced, facts, capacity, intent, intent_state, ready, first_us, joined_us, orders, lapses, lapse_token, changed)
		VALUES ('n1', 'i1', '["i0"]', '{"address":"n1:80","capacity":{"slots":4},"readiness":{"ready":true}}', '{"slots":4}',
			'{"cordon":{"actor":"ann","reason":"look","at":"2026-01-02T03:04:05Z"}}', 'cordoned', true, $1, $1, $1, '[1767323045000000]', 1, 1)`, at)
	for _, w := range []struct{ id, state, owner, rest string }{
		{"w0", "succeeded", "n1", "5, 'page 9', 0"},
		{"w1", "running", "n1", "3, 'page 7', 1"},
		{"wp", "pending", "", "7, '', 0"},
	} {
		text := `{"id":"` + w.id + `","command":["true"],"request":{"resources":{"slots":1}},"movable":true,"on_loss":"stop"}`
		b.exec(`INSERT INTO fleet_work (id, spec, resources, movable, stuck_after_us, state, owner, submitted_us, started_us, token, progress, takeovers)
			VALUES ($1, $2, '{"slots":1}', true, 0, $3, $4, $5, $5, `+w.rest+`)`, w.id, text, w.state, w.owner, at)
	}
	for _, kind := range []fleet.EventKind{fleet.EventJoined, fleet.EventSubmitted, fleet.EventTakeover} {
		b.exec("INSERT INTO fleet_event (at_us, kind, node, work, token, code, actor, text, fields) VALUES ($1, $2, 'n1', 'w1', 3, '', 'test', 'old', '')", at, string(kind))
	}
	b.exec("DELETE FROM fleet_event WHERE seq = 1") // as old history was pruned
	b.exec(`INSERT INTO fleet_takeover (work, actor, from_node, from_token, to_node, to_token, lease_token, lease_state, progress, silence_us, suspect_us, lapse_us, recorded_us)
		VALUES ('w1', 'test', 'n0', 2, 'n1', 3, 1, 'lapsed', 'page 6', $1, $1, $1, $1)`, at)
	b.exec("INSERT INTO fleet_brake_order (domain, what, actor, reason, at_us) VALUES ('all', 'release', 'ann', 'test', $1)", at)
	b.exec("UPDATE fleet_single SET suspect_us = 7000000, brake = '[]', brake_us = $1", at)
	b.exec("UPDATE fleet_floor SET token = 7")
}

// keptData checks that all of it can be read.
func (b *bed) keptData(now time.Time) {
	b.t.Helper()
	t := b.t
	nodes, _, err := b.Nodes(b.ctx, 0)
	must(t, err)
	if len(nodes) != 1 || nodes[0].Incarnation != "i1" || nodes[0].Facts.Capacity["slots"] != 4 || nodes[0].Intent.Cordon == nil || nodes[0].Intent.Cordon.Actor != "ann" ||
		len(nodes[0].Lapses) != 1 || !nodes[0].FirstSeen.Equal(now) || nodes[0].Work != 1 || nodes[0].Reserved["slots"] != 1 {
		t.Errorf("nodes: got %+v", nodes)
	}
	b.code(fleet.CodeReplaced, b.join("n1", "i0", 4), nil)
	b.is("w0", fleet.Succeeded, "n1", 5)
	if w := b.is("w1", fleet.Running, "n1", 3); w.Progress != "page 7" || w.Takeovers != 1 || !w.Started.Equal(now) || !w.Movable {
		t.Errorf("work: got %+v", w)
	}
	b.is("wp", fleet.Pending, "", 7)
	orders, found, err := b.Orders(b.ctx, "n1")
	must(t, err)
	if !found || len(orders.Work) != 1 || orders.Work[0].ID != "w1" || orders.Work[0].Lease != 0 || orders.Revision != uint64(now.UnixMicro()) {
		t.Errorf("orders: got %+v, want w1, of a term that is not known", orders)
	}
	page, err := b.EventPage(b.ctx, registry.EventFilter{})
	must(t, err)
	if len(page.Events) != 2 || page.Events[0].Seq != 2 || page.Events[1].Kind != fleet.EventTakeover || page.Pruned != 1 {
		t.Errorf("events: got %+v, want those from 2 on, and that 1 was pruned", page)
	}
	taken, err := b.Takeovers(b.ctx, registry.TakeoverFilter{})
	must(t, err)
	if len(taken) != 1 || taken[0].From != "n0" || taken[0].ToToken != 3 || taken[0].Progress != "page 6" {
		t.Errorf("takeovers: got %+v", taken)
	}
	brake, err := b.Brake(b.ctx)
	must(t, err)
	if string(brake.State) != "[]" || len(brake.Orders) != 1 || brake.Orders[0].Actor != "ann" {
		t.Errorf("brake: got %+v", brake)
	}
}

// resume ends the cordon of a node.
func (b *bed) resume(node string) registry.Verdict {
	b.t.Helper()
	_, v, err := b.SetIntent(b.ctx, node, registry.Order{Actor: "ann", Reason: "done"}, func(i fleet.Intent, _ fleet.Mark) (fleet.Intent, fleet.Code) {
		i, _ = i.Resumed("all")
		return i, ""
	})
	must(b.t, err)
	return v
}
