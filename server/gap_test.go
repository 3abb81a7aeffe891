package server

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store/sqlite"
)

// gapped is a configuration for gaps that outlive every lease: half a minute's
// times in little, or with TENURE_FLEET_LONG the defaults and gaps of 60 s and more.
func gapped() (Config, time.Duration) {
	cfg := Config{
		Interval: sized(500*time.Millisecond, 5*time.Second), NodeTTL: sized(3*time.Second, 30*time.Second),
		Brake: fleet.BrakeConfig{Release: time.Hour},
	}
	return cfg, sized(6*time.Second, 61*time.Second)
}

// gap runs a fleet with work on every node through a gap and checks P9: nobody who
// lives becomes suspect by it, nothing is taken over, and who died inside it is
// found within twice the timeout after its end.
//
// Its work moves then, unless the caller has put off the end of its lease.
func gap(t *testing.T, b *bed, moves bool, during func(agents []*agent, d time.Duration)) {
	t.Helper()
	_, length := gapped()
	agents := b.crowd("n", 12, nil)
	for i, a := range agents {
		b.give(fmt.Sprintf("w%d", i), a.id)
		a.patience = i % 2 // not all win their leases back at once
	}
	b.observed()
	eventually(t, "settled", func() bool { return b.liveness()[fleet.Alive] >= 11 })
	done := make(chan struct{})
	dead := agents[11]
	go func() {
		defer close(done)
		timer := time.NewTimer(length / 2)
		defer timer.Stop()
		<-timer.C
		dead.stop()
	}()
	during(agents, length)
	ended := clock.Now().Boot
	<-done
	eventually(t, "read again", func() bool { return time.Duration(b.refreshed.Load()) > ended })
	over := time.Now()
	bound := 2*b.cfg.suspect() + b.cfg.tick()
	found := time.Duration(0)
	throughout(t, 2*b.cfg.NodeTTL, func() {
		for _, n := range b.Nodes() {
			switch {
			case n.ID != dead.id && n.Liveness == fleet.Suspect:
				t.Fatalf("%s is suspect %s after the gap, silent for %s", n.ID, time.Since(over), n.Age)
			case n.ID == dead.id && n.Liveness == fleet.Suspect && found == 0:
				found = time.Since(over)
			}
		}
	})
	if found == 0 || found > bound {
		t.Errorf("the node that died in the gap was found after %s, want within %s", found, bound)
	}
	for _, e := range b.ledger(fleet.EventSuspect) {
		if e.Node != dead.id {
			t.Errorf("event %+v", e)
		}
	}
	for i := range 11 {
		if w := b.work(fmt.Sprintf("w%d", i)); w.Token != 1 || w.Owner != agents[i].id {
			t.Errorf("got %s of %s with token %s, want that it stayed with %s", w.ID, w.Owner, w.Token, agents[i].id)
		}
	}
	if moves {
		eventually(t, "the work of the dead moves", func() bool { return b.work("w11").Token == 2 })
	}
	lost := 0
	for _, a := range agents {
		a.mu.Lock()
		lost += a.losses
		a.mu.Unlock()
	}
	t.Logf("gap of %s: the dead node was found %s after it, %d terms were lost by it", length, found.Round(time.Millisecond), lost)
}

// wait lets the gap pass.
func wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}

// TestGapOfTheServer: the control plane is away, and another replica starts.
func TestGapOfTheServer(t *testing.T) {
	both(t, func(t *testing.T, kind registry.Dialect) {
		cfg, _ := gapped()
		b := newDatabase(t, kind).replica(cfg)
		gap(t, b, true, func(agents []*agent, d time.Duration) {
			for _, a := range agents {
				a.home.Store(nil)
			}
			b.end()
			wait(d)
			b.replace()
			b.run()
			for _, a := range agents {
				a.home.Store(b)
			}
		})
	})
}

// TestGapOfPostgres: the database stands still.
func TestGapOfPostgres(t *testing.T) {
	t.Parallel()
	cfg, _ := gapped()
	d := newServer(t, pgtest.Options{})
	b := d.replica(cfg)
	gap(t, b, true, func(_ []*agent, length time.Duration) {
		d.pg.Pause()
		wait(length)
		d.pg.Resume()
	})
}

// TestGapOfPostgresOfTwo: the same with two replicas, of which nobody beats to one.
func TestGapOfPostgresOfTwo(t *testing.T) {
	t.Parallel()
	cfg, _ := gapped()
	d := newServer(t, pgtest.Options{})
	b := d.replica(cfg)
	d.replica(cfg)
	gap(t, b, true, func(_ []*agent, length time.Duration) {
		d.pg.Pause()
		wait(length)
		d.pg.Resume()
	})
}

// TestGapOfSQLite: another process holds the file's write lock. Reads go on, so
// that beats and silence are seen; renewals do not.
func TestGapOfSQLite(t *testing.T) {
	t.Parallel()
	for replicas := 1; replicas <= 2; replicas++ {
		t.Run(fmt.Sprintf("%d replicas", replicas), func(t *testing.T) {
			t.Parallel()
			cfg, _ := gapped()
			d := newDatabase(t, registry.SQLite)
			b := d.replica(cfg)
			if replicas == 2 {
				d.replica(cfg)
			}
			gap(t, b, true, func(_ []*agent, length time.Duration) {
				db, err := sql.Open("sqlite", sqlite.ModerncDSN(d.at))
				if err != nil {
					t.Fatal(err)
				}
				defer db.Close()
				conn, err := db.Conn(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				eventually(t, "the write lock", func() bool { _, err := conn.ExecContext(t.Context(), "BEGIN IMMEDIATE"); return err == nil })
				wait(length)
				if _, err := conn.ExecContext(t.Context(), "ROLLBACK"); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// TestGapOfTheClock: the database's host steps its clock far ahead, so that all
// leases are over, and far back, so that what was written before lies ahead.
// Silence is not judged by it, and no work moves because of it. A lease that was
// renewed before the step back lives until then (docs/STORES.md).
func TestGapOfTheClock(t *testing.T) {
	t.Parallel()
	cfg, _ := gapped()
	cfg.ReconcilerTTL = cfg.NodeTTL // it learns late that its own term is over
	d := newServer(t, pgtest.Options{StepClock: true})
	b := d.replica(cfg)
	gap(t, b, false, func(_ []*agent, length time.Duration) {
		d.pg.StepClock(t, 10*time.Minute)
		wait(length * 2 / 3)
		d.pg.StepClock(t, -10*time.Minute)
		wait(length / 3)
	})
}

// TestGapCutFromAll (C66): the control plane runs on, cut from all nodes, whose
// leases lapse. Nothing is taken over, then or when they are back.
func TestGapCutFromAll(t *testing.T) {
	both(t, func(t *testing.T, kind registry.Dialect) {
		cfg, length := gapped()
		b := newDatabase(t, kind).replica(cfg)
		nodes := sized(30, 100)
		agents := b.crowd("n", nodes, nil)
		for i, a := range agents {
			a.patience = i % 2 // not all win their leases back at once
			for j := range 3 {
				b.give(fmt.Sprintf("w%d-%d", i, j), a.id)
			}
		}
		b.observed()
		for _, a := range agents {
			a.home.Store(nil)
		}
		eventually(t, "engaged", func() bool { return len(b.engaged()) > 0 })
		throughout(t, length, func() {
			if n := b.takeovers(); n != 0 {
				t.Fatalf("%d takeovers by a control plane that hears nobody", n)
			}
		})
		for _, a := range agents {
			a.home.Store(b)
		}
		eventually(t, "all are back", func() bool { return b.liveness()[fleet.Alive]+b.liveness()[fleet.Late] == nodes })
		throughout(t, b.cfg.NodeTTL, func() {
			if n := b.takeovers(); n != 0 {
				t.Fatalf("%d takeovers after all were back", n)
			}
		})
		if b.brake().Engaged {
			t.Error("the brake is engaged although all are back")
		}
	})
}
