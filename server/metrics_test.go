package server

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
)

// TestMetrics: what is counted is shown, in a form that Prometheus reads and by
// its conventions.
func TestMetrics(t *testing.T) {
	t.Parallel()
	b := newBed(t, Config{Name: `r"1\`}, HTTPConfig{Version: "1.2.3"})
	n1 := b.join("n1")
	old := n1.beat
	old.Renew = nil
	must[api.BeatReply](b, "POST", "/v1/beat", old)
	must[api.WorkVerdict](b, "POST", "/v1/work/w1/progress", api.ProgressRequest{Token: 1, Lease: 1, Node: "n1"})
	must[api.Node](b, "POST", "/v1/nodes/n1/cordon", api.CordonRequest{Actor: "a", Reason: "r"})
	if a := b.send("POST", "/v1/leases/acquire", api.NewAcquireRequest(store.Request{Name: "node/n1", Holder: "other", TTL: time.Minute, Attempt: store.NewAttempt()})); a.status != http.StatusConflict {
		t.Fatalf("a lease that is held: got %d, want 409", a.status)
	}
	if a := b.send("POST", "/v1/work", api.SubmitRequest{Actor: "a", Spec: fleet.Spec{ID: "w1", Command: []string{"a"}, Request: fleet.Request{Resources: fleet.Resources{"memory_mb": 1e6}}}}); a.status == http.StatusOK {
		t.Fatal("work that fits nowhere was placed")
	}
	text := string(b.send("GET", "/metrics", nil).body)
	for _, want := range []string{
		`tenure_build_info{server="r\"1\\",version="1.2.3"} 1`,
		`tenure_beats_total{code="ok"} 1`,
		`tenure_beats_total{code="old_sequence"} 1`,
		`tenure_renewals_total{code="ok"} 1`,
		`tenure_work_reports_total{code="no_such_work"} 1`,
		`tenure_guarded_writes_total{code="no_such_work"} 1`,
		`tenure_guarded_writes_total{code="ok"} `,
		`tenure_guarded_writes_total{code="stale_token"} 0`,
		`tenure_beats_total{code="duplicate_node"} 0`,
		`tenure_beats_late_total 0`,
		`tenure_nodes_by_liveness{liveness="alive"} 1`,
		`tenure_nodes_by_lease{lease="held"} 1`,
		`tenure_nodes_by_lease{lease="lapsed"} 0`,
		`tenure_nodes_by_intent{intent="cordoned"} 1`,
		`tenure_node_exclusions{code="cordoned"} 1`,
		`tenure_heartbeat_age_seconds_count 1`,
		`tenure_heartbeat_age_max_seconds`,
		`tenure_heartbeat_age_seconds_bucket{le="+Inf"} 1`,
		`tenure_observer_gaps_total`,
		`tenure_observer_missed_seconds_total`,
		`tenure_observer_lag_seconds`,
		`tenure_observer_watched_seconds`,
		`tenure_suspicions_total 0`,
		`tenure_suspicions_unfounded_total 0`,
		`tenure_exclusions_brief_total{code="stale_heartbeat"} 0`,
		`tenure_takeovers_total{code="ok"} 0`,
		`tenure_takeovers_made_total{lease="lapsed",liveness="suspect"} 0`,
		`tenure_takeovers_withheld_total{code="brake"} 0`,
		`tenure_brakes_engaged 0`,
		`tenure_nodes_eligible 0`,
		`tenure_work_stuck 0`,
		`tenure_placements_total{code="no_capacity"} 1`,
		`tenure_placement_duration_seconds_count 1`,
		`tenure_store_request_duration_seconds_count{op="renew"} 1`,
		`tenure_store_requests_total{code="ok",op="renew"} 1`,
		`tenure_store_requests_total{code="held",op="acquire"} 1`,
		`tenure_registry_transaction_duration_seconds_count{op="read"}`,
		`tenure_registry_transactions_total{code="ok",op="write"}`,
		`tenure_reconciler_active`,
		`tenure_ready 1`,
		`tenure_suspect_after_seconds 30`,
		`go_goroutines`,
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("no line %s", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}

// TestMetricsBounded: no words of nodes become labels, and what they name is
// bounded.
func TestMetricsBounded(t *testing.T) {
	t.Parallel()
	b := newIdleBed(t, Config{}, HTTPConfig{})
	states := []fleet.BrakeState{
		{Domain: "zone=\"b\"\n", Engaged: true, Code: fleet.CodeNotReady, Reason: "disk"},
		{Domain: "zone=\"b\"\n", Code: fleet.CodeNotReady, Reason: "net"},
		{Domain: fleet.DomainAll, Code: fleet.CodeStaleHeartbeat},
	}
	for i := range 2 * maxDomains {
		states = append(states, fleet.BrakeState{Domain: fmt.Sprint("zone", i), Code: fleet.CodeStaleHeartbeat})
	}
	b.brakes.Store(&states)
	b.counts.add("placement", "insufficient_a")
	b.counts.addN("placement", "insufficient_b", 2)
	pedantic := prometheus.NewPedanticRegistry()
	pedantic.MustRegister(newMetrics(b.Server, "v"))
	families, err := pedantic.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var domains int
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			key := f.GetName()
			for _, l := range m.Label {
				key += " " + l.GetValue()
			}
			values[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
		if f.GetName() == "tenure_brake_engaged" {
			domains = len(f.Metric)
		}
	}
	if domains != maxDomains {
		t.Errorf("%d domains are shown, want %d", domains, maxDomains)
	}
	for key, want := range map[string]float64{
		"tenure_brake_engaged not_ready zone=\"b\"\n": 1, "tenure_brakes_engaged": 1, "tenure_placements_total insufficient": 3,
	} {
		if got, ok := values[key]; !ok || got != want {
			t.Errorf("%q: got %v (%v), want %v", key, got, ok, want)
		}
	}
}

// TestUnfoundedSuspicion: a node that falls silent and is heard again was suspected
// without a cause and left out for a short time; one that comes back as another
// incarnation had died.
func TestUnfoundedSuspicion(t *testing.T) {
	t.Parallel()
	b := newBed(t, Config{Interval: 100 * time.Millisecond, NodeTTL: 30 * time.Second}, HTTPConfig{})
	n := b.join("n1")
	eventually(t, "suspect", func() bool { return b.hindsight.suspicions.Load() == 1 })
	if got := b.hindsight.unfounded.Load(); got != 0 {
		t.Errorf("while it is silent: %d suspicions are unfounded, want 0", got)
	}
	n.next()
	eventually(t, "unfounded", func() bool { return b.hindsight.unfounded.Load() == 1 })
	eventually(t, "late", func() bool { return b.hindsight.late.Load() >= 1 })
	eventually(t, "suspect again", func() bool { return b.hindsight.suspicions.Load() == 2 })
	beat := n.beat
	beat.Incarnation, beat.Seq, beat.Renew = "i-later", 1, nil
	beat.Facts = &fleet.Facts{Readiness: fleet.Readiness{Ready: true}}
	if r := must[api.BeatReply](b, http.MethodPost, beatPath, beat); r.Code != "" {
		t.Fatalf("a later incarnation of a silent node: %s", r.Code)
	}
	eventually(t, "alive", func() bool {
		n := b.in.find("n1")
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.liveness == fleet.Alive || n.liveness == fleet.Suspect && n.incarnation == "i-later"
	})
	if got := b.hindsight.unfounded.Load(); got != 1 {
		t.Errorf("after a death: %d suspicions are unfounded, want 1", got)
	}
}

func TestBriefExclusions(t *testing.T) {
	t.Parallel()
	const window = 30 * time.Second
	good := fleet.Node{ID: "n", Liveness: fleet.Alive, Lease: fleet.Lease{State: fleet.LeaseHeld, Token: 1, Remaining: time.Minute}, Facts: fleet.Facts{Readiness: fleet.Readiness{Ready: true}}}
	silent, cordoned := good, good
	silent.Liveness = fleet.Suspect
	cordoned.Intent.Cordon = &fleet.Mark{}
	for _, tc := range []struct {
		name string
		was  []fleet.Node // one look each 20 s
		want map[fleet.Code]uint64
	}{
		{"back in time", []fleet.Node{good, silent, good}, map[fleet.Code]uint64{fleet.CodeStaleHeartbeat: 1}},
		{"back later", []fleet.Node{good, silent, silent, good}, map[fleet.Code]uint64{}},
		{"never there before", []fleet.Node{silent, good}, map[fleet.Code]uint64{}},
		{"for another reason meanwhile", []fleet.Node{good, silent, cordoned, good}, map[fleet.Code]uint64{}},
		{"cordoned", []fleet.Node{good, cordoned, good, silent, good}, map[fleet.Code]uint64{fleet.CodeCordoned: 1, fleet.CodeStaleHeartbeat: 1}},
	} {
		h, now := newHindsight(), time.Now()
		for _, n := range tc.was {
			h.look([]fleet.Node{n}, fleet.Conditions{}, now, window)
			now = now.Add(20 * time.Second)
		}
		if got := h.brief.all(); !maps.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
		h.look(nil, fleet.Conditions{}, now, window)
		if len(h.nodes) != 0 {
			t.Errorf("%s: %d nodes are remembered that are gone", tc.name, len(h.nodes))
		}
	}
}

// TestTables: refusals of guarded tables are read seldom, and are not shown while
// they cannot be read.
func TestTables(t *testing.T) {
	t.Parallel()
	var reads int
	var failing error
	tables := newTables(func(context.Context) ([]TableRefusals, error) {
		reads++
		return []TableRefusals{{Table: "public.jobs", Guarding: true, Refused: map[string]int64{"stale": 3}}}, failing
	})
	want := `
# HELP tenure_table_guarded Whether the guard of such a table is in force.
# TYPE tenure_table_guarded gauge
tenure_table_guarded{table="public.jobs"} 1
# HELP tenure_table_refusals_total Stale writes that a guarded table of an application refused, by reason; not there while the database does not tell.
# TYPE tenure_table_refusals_total counter
tenure_table_refusals_total{reason="stale",table="public.jobs"} 3
`
	for range 3 {
		if err := testutil.CollectAndCompare(tables, strings.NewReader(want)); err != nil {
			t.Error(err)
		}
	}
	if reads != 1 {
		t.Errorf("read %d times at once, want once", reads)
	}
	tables.at, failing = tables.at.Add(-tablesAge), store.ErrUnavailable
	if n := testutil.CollectAndCount(tables); n != 0 || reads != 2 {
		t.Errorf("unreadable: %d values after %d readings, want none after 2", n, reads)
	}
	if n := testutil.CollectAndCount(newTables(nil)); n != 0 {
		t.Errorf("without tables: %d values", n)
	}
}

// TestTally counts from many at once. It is not parallel: it counts allocations.
func TestTally(t *testing.T) {
	var c counts
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 1000 {
				c.add("beat", strconv.Itoa(i%10))
			}
		})
	}
	all.Wait()
	got := c.all()
	if len(got) != 10 || got[Count{"beat", "3"}] != 800 {
		t.Errorf("got %v, want 800 of each of 10", got)
	}
	if n := testing.AllocsPerRun(100, func() { c.add("beat", "3") }); n != 0 {
		t.Errorf("a count that is known takes %v allocations, want 0", n)
	}
}

// BenchmarkCount is what a beat pays for being counted.
func BenchmarkCount(b *testing.B) {
	var c counts
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			c.add("beat", "")
		}
	})
}

// BenchmarkScrape is one scrape of a fleet of 10,000.
func BenchmarkScrape(b *testing.B) {
	bed := newIdleBed(b, Config{}, HTTPConfig{})
	for i := range 10_000 {
		n := bed.in.slot(fmt.Sprint("n", i))
		n.row = &registry.Node{ID: n.id, Incarnation: "i", Facts: fleet.Facts{Readiness: fleet.Readiness{Ready: true}}}
		n.see(fleet.Lease{State: fleet.LeaseHeld, Token: 1, Remaining: time.Hour}, clock.Now().Boot)
	}
	h := bed.Handler(HTTPConfig{})
	size := 0
	for b.Loop() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(b.Context(), http.MethodGet, "http://localhost/metrics", nil))
		if w.Code != http.StatusOK {
			b.Fatalf("status %d", w.Code)
		}
		size = w.Body.Len()
	}
	b.ReportMetric(float64(size), "bytes/scrape")
}

// BenchmarkHindsight is one look at 10,000 nodes, of which there are ten in the time
// until suspicion.
func BenchmarkHindsight(b *testing.B) {
	nodes := make([]fleet.Node, 10_000)
	for i := range nodes {
		nodes[i] = fleet.Node{ID: fmt.Sprint("n", i), Liveness: fleet.Alive, Lease: fleet.Lease{State: fleet.LeaseHeld, Token: 1, Remaining: time.Hour}, Facts: fleet.Facts{Readiness: fleet.Readiness{Ready: true}}}
		if i%20 == 0 {
			nodes[i].Liveness = fleet.Suspect
		}
	}
	h := newHindsight()
	for b.Loop() {
		h.look(nodes, fleet.Conditions{}, time.Now(), 30*time.Second)
	}
}
