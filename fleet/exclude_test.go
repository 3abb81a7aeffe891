package fleet_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fleet"
)

// lost is a node with everything wrong, and demand a request that does not fit it.
func lost() fleet.Node {
	return with(good("n1"), func(n *fleet.Node) {
		n.Duplicate = "i2"
		n.Lease = fleet.Lease{State: fleet.LeaseLapsed, Token: 7, Over: time.Minute}
		n.Liveness, n.Since, n.Age = fleet.Suspect, t0.Add(-2*time.Minute), 150*time.Second
		n.Facts.Readiness = fleet.Readiness{Reason: "disk", Text: "no\x1b[31m space"}
		n.NotReady = t0.Add(-time.Hour)
		n.Probed = true
		n.Flapping, n.CalmAt = true, t0.Add(time.Hour)
		n.Work, n.Stuck = 3, 1
		n.Intent.Cordon = &fleet.Mark{Actor: "anna", Reason: "disk swap", At: t0.Add(-3 * time.Hour)}
		n.Intent.Drain = &fleet.Drain{Mark: fleet.Mark{Actor: "bert", Reason: "retire", At: t0.Add(-time.Hour)}, Deadline: t0.Add(-time.Minute)}
		n.Reserved["slots"] = 40
	})
}

func demand() fleet.Request {
	return fleet.Request{
		Node: "n2", Starts: true, Labels: map[string]string{"zone": "a", "gpu": "yes"}, Features: []string{"sgx", "kvm"}, Artifacts: []string{"img:2"},
		Resources: fleet.Resources{"slots": 1, "memory_mb": 5000, "gpus": 1},
	}
}

func silentBrake() fleet.BrakeState {
	return fleet.BrakeState{Domain: "zone=b", Engaged: true, Code: fleet.CodeStaleHeartbeat, Since: t0.Add(-time.Minute), From: t0.Add(-3 * time.Minute), Text: "3 of 4 nodes fell silent"}
}

// One node with every fault that can stand together: the list is complete, in the
// order of the registry, with since, words and what clears it.
func TestExclusionsAreComplete(t *testing.T) {
	t.Parallel()
	ex := fleet.Exclusions(lost(), demand(), t0, fleet.Conditions{Brakes: []fleet.BrakeState{silentBrake()}})
	same(t, "codes", codes(ex), []fleet.Code{
		"duplicate_node", "lease_lapsed", "stale_heartbeat", "brake", "not_ready", "flapping", "stuck", "draining", "cordoned",
		"other_node", "no_agent", "missing_label", "missing_label", "missing_feature", "missing_artifact",
		"insufficient_gpus", "insufficient_memory_mb", "insufficient_slots",
	})
	since := map[fleet.Code]time.Time{
		"lease_lapsed": t0.Add(-time.Minute), "stale_heartbeat": t0.Add(-2 * time.Minute), "brake": t0.Add(-time.Minute),
		"not_ready": t0.Add(-time.Hour), "draining": t0.Add(-time.Hour), "cordoned": t0.Add(-3 * time.Hour),
	}
	var text []string
	for _, e := range ex {
		if !e.Since.Equal(since[e.Code]) {
			t.Errorf("%s: got since %v, want %v", e.Code, e.Since, since[e.Code])
		}
		if e.Text == "" || e.Clears == "" || strings.ContainsAny(e.Text, "\x1b\n") {
			t.Errorf("%s: got text %q, clears %q: want both, in one printable line", e.Code, e.Text, e.Clears)
		}
		text = append(text, e.Text)
	}
	contains(t, "texts", strings.Join(text, "\n"),
		`"i2"`, "lapsed 1m ago", "not heard for 2m30s", "3 of 4", "disk", "1 of its 3 items", `"bert": "retire", overdue by 1m`, `"anna": "disk swap"`,
		`names node "n2"`, `no label gpu, "yes" needed`, `label zone is "b", "a" needed`, `"sgx"`, `"img:2"`,
		"gpus: none offered, 1 needed", "memory_mb: 0/4096 taken, 4096 free, 5000 needed", "slots: full 40/40, 1 needed")
}

func TestExclusions(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		what   string
		change func(*fleet.Node)
		req    fleet.Request
		want   []fleet.Code
	}{
		{"good", func(*fleet.Node) {}, fleet.Request{Resources: fleet.Resources{"slots": 40, "memory_mb": 4096}}, nil},
		{"late is heard", func(n *fleet.Node) { n.Liveness = fleet.Late }, fleet.Request{}, nil},
		{"observing", func(n *fleet.Node) { n.Liveness = fleet.Observing }, fleet.Request{}, []fleet.Code{"observing"}},
		{"liveness unknown", func(n *fleet.Node) { n.Liveness = "" }, fleet.Request{}, []fleet.Code{"observing"}},
		{"alive and fenced", func(n *fleet.Node) { n.Lease.State = fleet.LeaseRevoked }, fleet.Request{}, []fleet.Code{"lease_revoked"}},
		{"silent and holding", func(n *fleet.Node) { n.Liveness = fleet.Suspect }, fleet.Request{}, []fleet.Code{"stale_heartbeat"}},
		{"released", func(n *fleet.Node) { n.Lease = fleet.Lease{State: fleet.LeaseReleased} }, fleet.Request{}, []fleet.Code{"lease_released"}},
		{"no lease", func(n *fleet.Node) { n.Lease = fleet.Lease{State: fleet.LeaseNone} }, fleet.Request{}, []fleet.Code{"no_lease"}},
		{"lease not read", func(n *fleet.Node) { n.Lease = fleet.Lease{} }, fleet.Request{}, []fleet.Code{"no_lease"}},
		{"drained", func(n *fleet.Node) { n.Intent.Drain = &fleet.Drain{Done: t0} }, fleet.Request{}, []fleet.Code{"drained"}},
		{"excluded", func(*fleet.Node) {}, fleet.Request{Exclude: []string{"n0", "n1"}}, []fleet.Code{"other_node"}},
		{"probed, to start work", func(n *fleet.Node) { n.Probed = true }, fleet.Spec{Command: []string{"true"}}.Needs(), []fleet.Code{"no_agent"}},
		{"probed, for a load balancer", func(n *fleet.Node) { n.Probed = true }, fleet.Request{}, nil},
		{"named", func(*fleet.Node) {}, fleet.Request{Node: "n1"}, nil},
		{"empty label", func(n *fleet.Node) { n.Facts.Labels = map[string]string{"a": ""} }, fleet.Request{Labels: map[string]string{"a": ""}}, nil},
		{"label absent is not empty", func(*fleet.Node) {}, fleet.Request{Labels: map[string]string{"a": ""}}, []fleet.Code{"missing_label"}},
		{"41 of 40", func(n *fleet.Node) { n.Facts.Used = fleet.Resources{"slots": 41} }, fleet.Request{Resources: fleet.Resources{"slots": 1}}, []fleet.Code{"insufficient_slots"}},
		{"41 of 40, nothing asked", func(n *fleet.Node) { n.Facts.Used = fleet.Resources{"slots": 41} }, fleet.Request{}, nil},
		{"use counts", func(n *fleet.Node) {
			n.Facts.Used, n.Reserved = fleet.Resources{"slots": 39}, fleet.Resources{"slots": 2}
		},
			fleet.Request{Resources: fleet.Resources{"slots": 2}}, []fleet.Code{"insufficient_slots"}},
		{"use and reservation are not added", func(n *fleet.Node) {
			n.Facts.Used, n.Reserved = fleet.Resources{"slots": 20}, fleet.Resources{"slots": 30}
		},
			fleet.Request{Resources: fleet.Resources{"slots": 10}}, nil},
	} {
		n := with(good("n1"), tc.change)
		same(t, tc.what, codes(fleet.Exclusions(n, tc.req, t0, fleet.Conditions{})), tc.want)
	}
}

// What a brake doubts: readiness stays as it last was, and silence still gets no
// new work, with the brake named.
func TestExclusionsUnderBrake(t *testing.T) {
	t.Parallel()
	dep := fleet.BrakeState{Domain: fleet.DomainAll, Engaged: true, Code: fleet.CodeNotReady, Reason: "db", From: t0.Add(-time.Minute)}
	notReady := func(reason string, at time.Time, was bool) fleet.Node {
		return with(good("n1"), func(n *fleet.Node) {
			n.Facts.Readiness, n.NotReady, n.WasReady = fleet.Readiness{Reason: reason}, at, was
		})
	}
	for _, tc := range []struct {
		what  string
		brake fleet.BrakeState
		node  fleet.Node
		want  []fleet.Code
	}{
		{"same reason, in the event", dep, notReady("db", t0, true), nil},
		{"another reason", dep, notReady("disk", t0, true), []fleet.Code{"not_ready"}},
		{"since before the event", dep, notReady("db", t0.Add(-time.Hour), true), []fleet.Code{"not_ready"}},
		{"never was ready", dep, notReady("db", t0, false), []fleet.Code{"not_ready"}},
		{"let go", func() fleet.BrakeState { b := dep; b.Engaged = false; return b }(), notReady("db", t0, true), []fleet.Code{"not_ready"}},
		{"silent in the domain", silentBrake(), with(good("n1"), func(n *fleet.Node) { n.Liveness = fleet.Suspect }), []fleet.Code{"stale_heartbeat", "brake"}},
		{"heard in the domain", silentBrake(), good("n1"), nil},
		{"silent elsewhere", silentBrake(), with(good("n1"), func(n *fleet.Node) {
			n.Liveness, n.Facts.Labels = fleet.Suspect, map[string]string{"zone": "a"}
		}), []fleet.Code{"stale_heartbeat"}},
		{"silent without the label", silentBrake(), with(good("n1"), func(n *fleet.Node) {
			n.Liveness, n.Facts.Labels = fleet.Suspect, nil
		}), []fleet.Code{"stale_heartbeat"}},
	} {
		c := fleet.Conditions{Brakes: []fleet.BrakeState{tc.brake}}
		same(t, tc.what, codes(fleet.Exclusions(tc.node, fleet.Request{}, t0, c)), tc.want)
	}
}

func TestReasons(t *testing.T) {
	t.Parallel()
	grave := []fleet.Severity{fleet.Critical, fleet.Warning, fleet.Notice}
	seen := map[fleet.Code]bool{}
	last := 0
	for _, r := range fleet.Reasons() {
		if seen[r.Code] || r.Text == "" || r.Clears == "" {
			t.Errorf("%s: want one entry with text and what clears it, got %+v", r.Code, r)
		}
		seen[r.Code] = true
		s := slices.Index(grave, r.Severity)
		if s < last {
			t.Errorf("%s: %s comes after a lighter one", r.Code, r.Severity)
		}
		last = s
	}
	for _, c := range []fleet.Code{
		"stale_heartbeat", "observing", "no_lease", "lease_lapsed", "lease_released", "lease_revoked", "cordoned", "draining", "drained",
		"not_ready", "insufficient_", "missing_label", "missing_feature", "missing_artifact", "stuck", "flapping", "duplicate_node", "other_node", "no_agent", "brake",
	} {
		if !seen[c] {
			t.Errorf("%s: got no reason, want one", c)
		}
	}
	if r, ok := fleet.ReasonOf("insufficient_slots"); !ok || r.Code != fleet.CodeInsufficient {
		t.Errorf("insufficient_slots: got %+v, %v", r, ok)
	}
	if r, ok := fleet.ReasonOf("not_owner"); ok {
		t.Errorf("not_owner is no reason of exclusion: got %+v", r)
	}
}

// randomNode is a node with any mixture of facts.
func randomNode(r *rand.Rand, id string) fleet.Node {
	one := func(n int) bool { return r.IntN(n) == 0 }
	pick := func(all ...string) string { return all[r.IntN(len(all))] }
	return with(good(id), func(n *fleet.Node) {
		n.Probed = one(4)
		if one(4) {
			n.Liveness = fleet.Liveness(pick("observing", "late", "suspect", ""))
		}
		if one(4) {
			n.Lease.State = fleet.LeaseState(pick("none", "revoked", "lapsed", "released", ""))
		}
		if one(6) {
			n.Facts.Readiness = fleet.Readiness{Reason: pick("", "db")}
		}
		if one(6) {
			n.Intent.Cordon = &fleet.Mark{}
		}
		if one(6) {
			n.Intent.Drain = &fleet.Drain{}
		}
		n.Flapping, n.Stuck = one(8), r.IntN(5)/4
		n.Work = r.IntN(4)
		n.Reserved = fleet.Resources{"slots": r.Int64N(42)}
		n.Facts.Used = fleet.Resources{"memory_mb": r.Int64N(5000)}
		n.Facts.Labels = map[string]string{"zone": pick("a", "b")}
	})
}

func randomRequest(r *rand.Rand) fleet.Request {
	req := fleet.Request{Strategy: []fleet.Strategy{"", fleet.MostFree, fleet.Spread, fleet.BinPack}[r.IntN(4)]}
	if r.IntN(2) == 0 {
		req.Resources = fleet.Resources{"slots": 1 + r.Int64N(5), "memory_mb": 1 + r.Int64N(1000)}
	}
	if r.IntN(3) == 0 {
		req.Labels = map[string]string{"zone": "a"}
	}
	req.Starts = r.IntN(2) == 0
	return req
}

// For any nodes: who is ranked is exactly who has no exclusion; the order is that
// of the registry; own reasons do not depend on the request; the order of the
// nodes changes nothing.
func TestExclusionsAndRankAgree(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	place := map[fleet.Code]int{}
	for i, reason := range fleet.Reasons() {
		place[reason.Code] = i
	}
	for round := range 150 {
		var nodes []fleet.Node
		for i := range 1 + r.IntN(20) {
			nodes = append(nodes, randomNode(r, fmt.Sprintf("n%02d", i)))
		}
		req := randomRequest(r)
		ranked, counts := fleet.Rank(nodes, req, fleet.Conditions{})
		var got, want []string
		for _, c := range ranked {
			if nodes[c.Index].ID != c.Node {
				t.Fatalf("seed %d round %d: candidate %+v is not node %s", seed, round, c, nodes[c.Index].ID)
			}
			got = append(got, c.Node)
		}
		wantCounts := map[fleet.Code]int{}
		for _, n := range nodes {
			ex := fleet.Exclusions(n, req, t0, fleet.Conditions{})
			if len(ex) == 0 {
				want = append(want, n.ID)
			}
			own := false
			for i, e := range ex {
				reason, ok := fleet.ReasonOf(e.Code)
				if !ok {
					t.Fatalf("%s is in no registry", e.Code)
				}
				own = own || reason.Own
				if i > 0 {
					before, _ := fleet.ReasonOf(ex[i-1].Code)
					if place[before.Code] > place[reason.Code] {
						t.Errorf("seed %d round %d: %s comes before %s", seed, round, ex[i-1].Code, e.Code)
					}
				}
			}
			for _, c := range slices.Compact(codes(ex)) {
				wantCounts[c]++
			}
			if got := fleet.Eligible(n, fleet.Conditions{}); got == own {
				t.Errorf("seed %d round %d: %s: got eligible %v with %v", seed, round, n.ID, got, codes(ex))
			}
		}
		sorted := slices.Sorted(slices.Values(got))
		same(t, fmt.Sprintf("seed %d round %d: ranked", seed, round), sorted, want)
		equal(t, fmt.Sprintf("seed %d round %d: counts", seed, round), counts, wantCounts)

		r.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		again, _ := fleet.Rank(nodes, req, fleet.Conditions{})
		var shuffled []string
		for _, c := range again {
			shuffled = append(shuffled, c.Node)
		}
		same(t, fmt.Sprintf("seed %d round %d: shuffled", seed, round), shuffled, got)
	}
}
