package server

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
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
	text := string(b.send("GET", "/metrics", nil).body)
	for _, want := range []string{
		`tenure_build_info{server="r\"1\\",version="1.2.3"} 1`,
		`tenure_beats_total{code="ok"} 1`,
		`tenure_beats_total{code="old_sequence"} 1`,
		`tenure_renewals_total{code="ok"} 1`,
		`tenure_work_reports_total{code="no_such_work"} 1`,
		`tenure_refusals_total{code="no_such_work"} 1`,
		`tenure_nodes_by_liveness{liveness="alive"} 1`,
		`tenure_nodes_by_lease{lease="held"} 1`,
		`tenure_nodes_by_lease{lease="lapsed"} 0`,
		`tenure_nodes_by_intent{intent="cordoned"} 1`,
		`tenure_node_exclusions{code="cordoned"} 1`,
		`tenure_heartbeat_age_seconds_count 1`,
		`tenure_heartbeat_age_max_seconds`,
		`tenure_observer_gaps_total`,
		`tenure_reconciler_active`,
		`tenure_ready 1`,
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
	// Every state and code of the brake fits as a label.
	b.brakes.Store(&[]fleet.BrakeState{{Domain: "zone=\"b\"\n", Engaged: true, Code: fleet.CodeNotReady, Reason: "disk"}, {Domain: "all", Code: fleet.CodeStaleHeartbeat}})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(newMetrics(b.Server, "v"))
	if _, err := registry.Gather(); err != nil {
		t.Error(err)
	}
}
