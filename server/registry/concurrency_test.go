package registry_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
)

// Everything at once, on few nodes and items, under renewals: nothing waits in a
// circle, no node has more than its room, and who follows the ledger misses
// nothing.
func TestEverythingAtOnce(t *testing.T) {
	both(t, func(t *testing.T, b *bed) {
		const nodes, items, slots = 4, 12, 6
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		name := func(i int) string { return fmt.Sprintf("n%d", i) }
		for i := range nodes {
			b.node(name(i), slots)
		}
		var ids [items]atomic.Pointer[string] // of the items under way; one that has ended gives way to another
		for i := range items {
			id := fmt.Sprintf("w%d", i)
			ids[i].Store(&id)
			v, err := b.Submit(b.ctx, spec(id, i%4 != 0), "")
			b.code("", v, err)
		}
		ctx, cancel := context.WithTimeout(b.ctx, 5*time.Second)
		defer cancel()
		var wg, follower sync.WaitGroup
		fail := func(what string, err error) {
			if err != nil && ctx.Err() == nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		for k := range 8 {
			r := rand.New(rand.NewPCG(seed, uint64(k)))
			wg.Go(func() {
				for ctx.Err() == nil {
					node, other, item := name(r.IntN(nodes)), name(r.IntN(nodes)), r.IntN(items)
					id := *ids[item].Load()
					w, _, err := b.Work(ctx, id)
					fail("work", err)
					if w.State.Ended() {
						next := fmt.Sprintf("w%d-%d", item, r.Uint64())
						_, err := b.Submit(ctx, spec(next, item%4 != 0), "")
						fail("submit", err)
						ids[item].Store(&next)
						continue
					}
					signs, err := b.Signs(ctx, []string{node, w.Owner})
					fail("signs", err)
					lease := map[string]fleet.Lease{}
					for _, s := range signs {
						lease[s.Node] = s.Lease
					}
					own := lease[w.Owner].Token
					switch r.IntN(12) {
					case 0, 1:
						_, err = b.Place(ctx, registry.Placement{Work: id, Token: w.Token, Node: node, Lease: lease[node].Token})
					case 2:
						_, err = b.Takeover(ctx, takeover(id, w.Owner, w.Token, own, node, lease[node].Token))
					case 3:
						_, err = b.ReleaseToPending(ctx, takeover(id, w.Owner, w.Token, own, "", 0))
					case 4:
						_, err = b.Move(ctx, registry.Fence{}, id, registry.Order{})
					case 5, 6:
						var changes []registry.Change
						for _, x := range r.Perm(items) {
							changes = append(changes, registry.Change{Work: *ids[x].Load(), Node: w.Owner, Token: w.Token, Lease: own, State: fleet.Running, Progress: fmt.Sprint(r.Uint32())})
						}
						_, err = b.Apply(ctx, changes)
					case 7:
						_, err = b.Apply(ctx, []registry.Change{{Work: id, Node: w.Owner, Token: w.Token, Lease: own, State: fleet.Stopped}})
					case 8:
						_, _, err = b.SetIntent(ctx, node, registry.Order{Actor: "a"}, func(i fleet.Intent, m fleet.Mark) (fleet.Intent, fleet.Code) {
							if i.Cordon != nil {
								i.Cordon = nil
								return i, ""
							}
							return cordon(i, m)
						})
					case 9:
						_, err = b.Flush(ctx, []registry.Seen{{Node: other, Incarnation: "i1"}, {Node: node, Incarnation: "i1"}})
					case 10: // a new term, or a release, or a lapse by revocation
						if l := lease[node]; l.Live() && r.IntN(4) > 0 {
							break
						} else if l.Live() {
							err = b.leases.Revoke(ctx, fleet.LeaseName(node), l.Token, store.Revocation{Why: "test", By: "test", Now: true})
						} else {
							_, err = b.leases.Acquire(ctx, store.Request{Name: fleet.LeaseName(node), Holder: "h", TTL: ttl, Attempt: store.NewAttempt()})
						}
						if errors.Is(err, store.ErrSuperseded) || errors.Is(err, store.ErrHeld) || errors.Is(err, store.ErrBusy) {
							err = nil
						}
					case 11:
						_, err = b.Join(ctx, report(node, "i1", slots))
					}
					fail("step", err)
				}
			})
		}
		followed := 0
		follow := func(after int64) int64 {
			events, err := b.Events(b.ctx, registry.EventFilter{After: after})
			if err != nil {
				t.Errorf("follow: %v", err)
				return after
			}
			if followed += len(events); len(events) > 0 {
				after = events[len(events)-1].Seq
			}
			return after
		}
		var after int64
		follower.Go(func() {
			for ctx.Err() == nil {
				after = follow(after)
			}
		})
		wg.Wait()
		follower.Wait()
		// What was broken off at the end may still be under way in the database.
		var events int
		for range 100 {
			after = follow(after)
			must(t, b.db.QueryRowContext(b.ctx, "SELECT count(*) FROM fleet_event").Scan(&events))
			if followed == events {
				break
			}
			<-time.After(20 * time.Millisecond)
		}
		if followed != events {
			t.Errorf("followed: got %d events, want %d", followed, events)
		}
		all, _, err := b.Nodes(b.ctx, 0)
		must(t, err)
		for _, n := range all {
			if n.Reserved["slots"] > slots {
				t.Errorf("node %s: got %d reserved, want at most %d", n.ID, n.Reserved["slots"], slots)
			}
		}
		t.Logf("%d events, refusals %v", events, b.Refusals())
	})
}

// A pooler in transaction mode gives each transaction another connection, so
// nothing may stay behind in one.
func TestNothingStaysInTheConnection(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cfg, err := pgxpool.ParseConfig(pgtest.Database(t))
	must(t, err)
	cfg.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	must(t, err)
	defer pool.Close()
	st, err := postgres.New(pool, postgres.Config{Schema: "fleet_a"})
	must(t, err)
	must(t, st.Migrate(ctx))
	st.Close()
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	r, err := registry.New(db, registry.Config{Dialect: registry.Postgres, Schema: "fleet_a"})
	must(t, err)
	must(t, r.Migrate(ctx))
	must(t, r.Check(ctx))
	_, err = r.Join(ctx, report("n1", "i1", 1))
	must(t, err)
	_, err = r.Submit(ctx, spec("w", false), "")
	must(t, err)
	_, err = r.Place(ctx, registry.Placement{Work: "w", Node: "n1", Lease: 1})
	must(t, err)
	for _, read := range []func() error{
		func() error { _, _, err := r.Nodes(ctx, 0); return err },
		func() error { _, err := r.Lapsed(ctx); return err },
		func() error { _, err := r.Events(ctx, registry.EventFilter{}); return err },
		func() error { _, err := r.Signs(ctx, nil); return err },
		func() error { _, err := r.Works(ctx, registry.Filter{}); return err },
	} {
		must(t, read())
	}
	conn, err := pool.Acquire(ctx)
	must(t, err)
	defer conn.Release()
	var prepared, locks int
	var path string
	must(t, conn.QueryRow(ctx, "SELECT (SELECT count(*) FROM pg_prepared_statements WHERE statement NOT LIKE '%pg_prepared_statements%'), (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()), current_setting('search_path')").
		Scan(&prepared, &locks, &path))
	if prepared != 0 || locks != 0 || path != `"$user", public` {
		t.Errorf("left behind: got %d prepared statements, %d locks and search_path %s", prepared, locks, path)
	}
}

// On Postgres transactions commit in another order than they began. What commits
// late is not passed over: not by who follows changes of nodes, and not by who
// follows the ledger.
func TestLateCommit(t *testing.T) {
	t.Parallel()
	b := newBed(t, registry.Postgres)
	must(t, b.Migrate(b.ctx))
	b.join("early", "i1", 4)
	b.join("late", "i1", 4)
	_, cursor, err := b.Nodes(b.ctx, 0)
	must(t, err)
	seq := b.lastSeq()

	// A writer that waits after it has drawn its Seq, and before it commits.
	b.exec(`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(77); RETURN NULL; END $$`)
	b.exec(`CREATE TRIGGER wait AFTER INSERT ON fleet_event FOR EACH ROW WHEN (NEW.actor = 'slow') EXECUTE FUNCTION wait()`)
	gate, err := b.db.BeginTx(b.ctx, nil)
	must(t, err)
	_, err = gate.ExecContext(b.ctx, "SELECT pg_advisory_xact_lock(77)")
	must(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, v, err := b.SetIntent(b.ctx, "late", registry.Order{Actor: "slow"}, cordon); err != nil || v.Code != "" {
			t.Errorf("the slow writer: got %+v, %v", v, err)
		}
	})
	for waiting := 0; waiting == 0; {
		must(t, b.db.QueryRowContext(b.ctx, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").Scan(&waiting))
	}
	_, v, err := b.SetIntent(b.ctx, "early", registry.Order{Actor: "quick"}, cordon) // overtakes it
	b.code("", v, err)

	events, err := b.Events(b.ctx, registry.EventFilter{After: seq})
	must(t, err)
	if len(events) != 0 {
		t.Errorf("events while the slow writer is under way: got %+v, want none yet", events)
	}
	delta, cursor, err := b.Nodes(b.ctx, cursor)
	must(t, err)
	if i := slices.IndexFunc(delta, func(n registry.Node) bool { return n.ID == "early" }); i < 0 || delta[i].Intent.State() != fleet.Cordoned {
		t.Errorf("changes while the slow writer is under way: got %+v, want early", delta)
	}
	must(t, gate.Rollback())
	wg.Wait()
	events, err = b.Events(b.ctx, registry.EventFilter{After: seq})
	must(t, err)
	if len(events) != 2 || events[0].Node != "late" || events[1].Node != "early" {
		t.Errorf("events: got %+v, want late and early", events)
	}
	delta, _, err = b.Nodes(b.ctx, cursor)
	must(t, err)
	if i := slices.IndexFunc(delta, func(n registry.Node) bool { return n.ID == "late" }); i < 0 || delta[i].Intent.State() != fleet.Cordoned {
		t.Errorf("changes after it: got %+v, want late", delta)
	}
}

// TestResumeLocksInOrder: the end of a drain locks what it lets come back in the order
// in which batches of reports lock it, however the rows lie.
func TestResumeLocksInOrder(t *testing.T) {
	t.Parallel()
	b := newBed(t, registry.Postgres)
	must(t, b.Migrate(b.ctx))
	l := b.node("n1", 9)
	for _, id := range []string{"b", "a"} { // as they lie in the table
		b.run(id, "n1", l, true)
	}
	set := func(change registry.IntentFunc) error {
		_, v, err := b.SetIntent(b.ctx, "n1", registry.Order{Actor: "ann", Reason: "test"}, change)
		if err == nil && v.Code != "" {
			err = errors.New(v.Text)
		}
		return err
	}
	must(t, set(func(i fleet.Intent, m fleet.Mark) (fleet.Intent, fleet.Code) {
		i, _ = i.WithDrain(m, time.Time{}, true)
		return i, ""
	}))
	b.exec("UPDATE fleet_work SET state = 'pending', moving = true")
	b.exec("DROP INDEX fleet_work_pending") // the planner may use it, and need not

	tx, err := b.db.BeginTx(b.ctx, nil)
	must(t, err)
	defer func() { _ = tx.Rollback() }()
	_, err = tx.ExecContext(b.ctx, "SELECT 1 FROM fleet_work WHERE id = 'a' FOR NO KEY UPDATE")
	must(t, err)
	resumed := make(chan error, 1)
	go func() {
		resumed <- set(func(i fleet.Intent, _ fleet.Mark) (fleet.Intent, fleet.Code) {
			i, _ = i.Resumed("all")
			return i, ""
		})
	}()
	for waits := 0; waits == 0; {
		must(t, b.db.QueryRowContext(b.ctx, "SELECT count(*) FROM pg_locks WHERE NOT granted").Scan(&waits))
	}
	if _, err := tx.ExecContext(b.ctx, "SELECT 1 FROM fleet_work WHERE id = 'b' FOR NO KEY UPDATE NOWAIT"); err != nil {
		t.Errorf("b was locked before a: %v", err)
	}
	must(t, tx.Rollback())
	must(t, <-resumed)
	for _, id := range []string{"a", "b"} {
		if w := b.work(id); w.Moving {
			t.Errorf("%s: got %+v, want it free to come back", id, w)
		}
	}
}
