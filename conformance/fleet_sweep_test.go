//go:build linux

package conformance_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// sweeper is a host that sweeps what is not its own. It holds its lease, so
// nothing but the scope of its writes is in the way.
type sweeper struct {
	*fleetBed
	beat  api.Beat
	lease fence.Token
}

// send sends a beat with reports, by itself or through a relay.
func (s *sweeper) send(relayed bool, reports ...api.WorkReport) []api.WorkVerdict {
	t := s.t
	t.Helper()
	s.beat.Seq++
	s.beat.Work = reports
	attempt := store.NewAttempt()
	renew := *s.beat.Renew
	renew.Attempt = attempt
	s.beat.Renew = &renew
	reply := &api.BeatReply{}
	var err error
	if relayed {
		var replies []api.BeatReply
		if replies, err = s.client.Beats(t.Context(), []api.Beat{s.beat}); err == nil {
			reply = &replies[0]
		}
	} else {
		reply, err = s.client.Beat(t.Context(), &s.beat)
	}
	if err != nil || reply.Code != "" || reply.Renewed == nil || reply.Renewed.Code != "" {
		t.Fatalf("beat of the sweeper: %+v, %v; want it accepted and its lease renewed", reply, err)
	}
	s.beat.Renew.Known = []store.Attempt{attempt}
	return reply.Work
}

// Two hosts share a database. A sweep from one, for what is "running and not
// updated for 10 minutes", goes over the other's items with every verb that an
// owner has, in every state and with every token it may have read. It changes
// 0 rows, and its own old item is the only one it can end.
func TestFleetDangerousSweep(t *testing.T) {
	t.Parallel()
	for _, backend := range fleetBackends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			b := newFleetBed(t, backend, 1, 1)
			const others = 3
			for i := range others {
				b.submit(fleet.Spec{ID: fmt.Sprintf("other-%d", i), Movable: i == 0}, false)
			}
			s := b.sweeper("host-b")
			own, err := b.client.Submit(t.Context(), api.SubmitRequest{Spec: fleet.Spec{ID: "own", Command: []string{"true"}, Request: fleet.Request{Node: "host-b"}}})
			if err != nil {
				t.Fatal(err)
			}
			if v := s.send(false, api.WorkReport{Work: "own", Token: own.Token, Lease: s.lease, State: fleet.Running}); len(v) != 1 || v[0].Code != "" {
				t.Fatalf("report of its own: %+v", v)
			}
			b.eventually("the items run", func() bool {
				n, err := b.old("running")
				return err == nil && n == others+1
			})
			age := (11 * time.Minute).Microseconds()
			if _, err := b.fleetDB.ExecContext(t.Context(), fmt.Sprintf("UPDATE fleet_work SET submitted_us = submitted_us - %[1]d, assigned_us = assigned_us - %[1]d, started_us = started_us - %[1]d, progress_us = progress_us - %[1]d", age)); err != nil {
				t.Fatal(err)
			}
			before := b.rows("host-a")
			tried := 0
			for i := range others {
				id := fmt.Sprintf("other-%d", i)
				for _, token := range []fence.Token{1, 2, 7} {
					for _, lease := range []fence.Token{s.lease, b.node("host-a").Lease.Token, s.lease + 1} {
						for _, state := range []fleet.WorkState{fleet.Running, fleet.Stopping, fleet.Succeeded, fleet.Failed, fleet.Stopped} {
							for _, relayed := range []bool{false, true} {
								v := s.send(relayed, api.WorkReport{Work: id, Token: token, Lease: lease, State: state, Progress: "swept", ExitCode: 1, Text: "not updated for 10 minutes"})
								tried++
								if len(v) != 1 || v[0].Code == "" {
									t.Errorf("%s with token %s, lease %s as %s: verdict %+v, want a refusal", id, token, lease, state, v)
								}
							}
						}
						for _, node := range []string{"host-b", "host-a"} {
							if node == "host-a" && lease == b.node("host-a").Lease.Token && token == 1 {
								continue // that would be the owner itself
							}
							v, err := b.client.Progress(t.Context(), id, api.ProgressRequest{Token: token, Lease: lease, Node: node, Marker: "swept"})
							tried++
							if err == nil && v.Code == "" {
								t.Errorf("progress of %s as %s with token %s, lease %s was taken", id, node, token, lease)
							}
						}
					}
				}
			}
			if after := b.rows("host-a"); after != before {
				t.Errorf("the sweep changed rows of the other host:\n%s\nbefore:\n%s", after, before)
			}
			// The same verbs do their work where they may: the test can fail.
			if v := s.send(false, api.WorkReport{Work: "own", Token: own.Token, Lease: s.lease, State: fleet.Failed, Text: "not updated for 10 minutes"}); len(v) != 1 || v[0].Code != "" {
				t.Errorf("its own old item: %+v, want it ended", v)
			}
			if w := b.work("own"); w.State != fleet.Failed {
				t.Errorf("its own old item is %s, want failed", w.State)
			}
			for i := range others {
				id := fmt.Sprintf("other-%d", i)
				pids := b.log(id).pids(1)
				if w := b.work(id); w.State != fleet.Running || w.Owner != "host-a" || len(pids) != 1 || !lives(pids[0]) {
					t.Errorf("%s is %s on %s in processes %v; want it to run on as before", id, w.State, w.Owner, pids)
				}
			}
			t.Logf("%d sweeping writes, 0 rows", tried)
		})
	}
}

// sweeper joins a host that is in this process.
func (b *fleetBed) sweeper(node string) *sweeper {
	b.t.Helper()
	attempt := store.NewAttempt()
	rec, err := api.NewStore(b.client).Acquire(b.t.Context(), store.Request{Name: fleet.LeaseName(node), Holder: node + "/sweeper", TTL: time.Minute, Attempt: attempt})
	if err != nil {
		b.t.Fatal(err)
	}
	s := &sweeper{fleetBed: b, lease: rec.Token, beat: api.Beat{
		Node: node, Incarnation: "sweeper", FactsVersion: 1,
		Facts: &fleet.Facts{Readiness: fleet.Readiness{Ready: true}, Capacity: fleet.Resources{"slots": 100}},
		Renew: &api.Renewal{Token: rec.Token, TTLMS: time.Minute.Milliseconds(), Known: []store.Attempt{attempt}},
	}}
	b.eventually(node+" is eligible", func() bool {
		s.send(false)
		e, err := b.client.Eligible(b.t.Context(), node)
		return err == nil && e.Eligible
	})
	return s
}

// old counts the items in a state.
func (b *fleetBed) old(state string) (n int, err error) {
	err = b.fleetDB.QueryRowContext(b.t.Context(), "SELECT count(*) FROM fleet_work WHERE state = $1", state).Scan(&n)
	return n, err
}

// rows returns all that the database says of a node's items, as text.
func (b *fleetBed) rows(node string) (text string) {
	b.t.Helper()
	rows, err := b.fleetDB.QueryContext(b.t.Context(), "SELECT * FROM fleet_work WHERE owner = $1 ORDER BY id", node)
	if err != nil {
		b.t.Fatal(err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		b.t.Fatal(err)
	}
	for rows.Next() {
		values, into := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			b.t.Fatal(err)
		}
		for i, v := range values {
			text += fmt.Sprintf("%s=%v ", columns[i], v)
		}
		text += "\n"
	}
	if err := rows.Err(); err != nil {
		b.t.Fatal(err)
	}
	return text
}
