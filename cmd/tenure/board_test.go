package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// boardPanel is a panel of the Grafana board. A query is an expression and what its
// series are called.
type boardPanel struct {
	title, kind, unit, about string
	queries                  [][2]string
}

// believed is tenure_lease_held where it counts: what was written by a process that
// was killed or stopped since does not.
const believed = "tenure_lease_held and on (instance, job, lease) tenure_lease_trusted_until_timestamp_seconds > time()"

// board is the Grafana board, row by row: what tells whether the fleet may be
// trusted comes first, then who may not act, then why.
var board = []struct {
	title  string
	panels []boardPanel
}{
	{"May the fleet be trusted?", []boardPanel{
		{"Brake", "stat", "none", "Failure domains whose brake holds takeovers back. 0 is well.", [][2]string{{"max(tenure_brakes_engaged)", "engaged"}}},
		{"Reconcilers", "stat", "none", "Replicas that reconcile. 1 is well.", [][2]string{{"sum(tenure_reconciler_active)", "active"}}},
		{"Replicas ready", "stat", "none", "", [][2]string{{"sum(tenure_ready)", "ready"}}},
		{"Stuck work", "stat", "none", "Items that make no progress.", [][2]string{{"max(tenure_work_stuck)", "stuck"}}},
		{"Observer lag", "timeseries", "s", "Time since a replica could last have heard every node.", [][2]string{{"tenure_observer_lag_seconds", "{{instance}}"}}},
		{"Gaps", "timeseries", "none", "Gaps an hour in which a replica could not have heard a node.", [][2]string{{"increase(tenure_observer_gaps_total[1h])", "{{instance}}"}}},
	}},
	{"Heartbeats", []boardPanel{
		{"Age of the last beat", "timeseries", "s", "Over the nodes, as the replica sees them that sees them oldest.", [][2]string{
			{"histogram_quantile(0.5, min by (le) (tenure_heartbeat_age_seconds_bucket))", "p50"},
			{"histogram_quantile(0.95, min by (le) (tenure_heartbeat_age_seconds_bucket))", "p95"},
			{"histogram_quantile(0.99, min by (le) (tenure_heartbeat_age_seconds_bucket))", "p99"},
			{"max(tenure_heartbeat_age_max_seconds)", "most"},
			{"max(tenure_suspect_after_seconds)", "suspect after"},
		}},
		{"Beats", "timeseries", "reqps", "Beats a second, by what became of them.", [][2]string{{"sum by (code) (rate(tenure_beats_total[5m]))", "{{code}}"}, {"sum(rate(tenure_beats_late_total[5m]))", "late"}}},
		{"Suspicions", "timeseries", "none", "An hour; unfounded are those whose node was heard again as it was.", [][2]string{
			{"sum(increase(tenure_suspicions_total[1h]))", "all"}, {"sum(increase(tenure_suspicions_unfounded_total[1h]))", "unfounded"},
		}},
	}},
	{"Who gets no new work, and who may not act", []boardPanel{
		{"Nodes by heartbeat", "timeseries", "none", "", [][2]string{{"max by (liveness) (tenure_nodes_by_liveness)", "{{liveness}}"}}},
		{"Nodes by lease", "timeseries", "none", "", [][2]string{{"max by (lease) (tenure_nodes_by_lease)", "{{lease}}"}}},
		{"Nodes by intent", "timeseries", "none", "", [][2]string{{"max by (intent) (tenure_nodes_by_intent)", "{{intent}}"}}},
		{"Reasons", "timeseries", "none", "Nodes that get no new work, by reason; one node may have several.", [][2]string{{"max by (code) (tenure_node_exclusions) > 0", "{{code}}"}, {"max(tenure_nodes_eligible)", "eligible"}}},
		{"Left out and back", "timeseries", "none", "An hour: nodes left out for less than the time of a suspicion.", [][2]string{{"sum by (code) (increase(tenure_exclusions_brief_total[1h])) > 0", "{{code}}"}}},
	}},
	{"Work", []boardPanel{
		{"Takeovers", "timeseries", "none", "An hour, by evidence.", [][2]string{{"sum by (lease, liveness) (increase(tenure_takeovers_made_total[1h])) > 0", "lease {{lease}}, node {{liveness}}"}}},
		{"Withheld", "timeseries", "none", "Takeovers held back now, by reason.", [][2]string{{"max by (code) (tenure_takeovers_withheld) > 0", "{{code}}"}}},
		{"Guarded writes that changed nothing", "timeseries", "reqps", "A second, by reason.", [][2]string{{`sum by (code) (rate(tenure_guarded_writes_total{code!="ok"}[5m])) > 0`, "{{code}}"}}},
		{"Placements", "timeseries", "reqps", "", [][2]string{{"sum by (code) (rate(tenure_placements_total[5m]))", "{{code}}"}}},
		{"Placement, p99", "timeseries", "s", "", [][2]string{{"histogram_quantile(0.99, sum by (le) (rate(tenure_placement_duration_seconds_bucket[5m])))", "p99"}}},
		{"Delay of takeovers, p99", "timeseries", "s", "From the end of a node's lease to the new owner.", [][2]string{{"histogram_quantile(0.99, sum by (le) (rate(tenure_takeover_delay_seconds_bucket[1h])))", "p99"}}},
	}},
	{"Holders: programs with the adapter, and tenure run", []boardPanel{
		{"Who holds", "timeseries", "none", "Processes that may act under each lease. More than 1 is a copy.", [][2]string{{"sum by (lease) (" + believed + ") or 0 * sum by (lease) (tenure_lease_held)", "{{lease}}"}}},
		{"Last confirmed renewal", "timeseries", "s", "", [][2]string{{"max by (lease) (tenure_lease_confirmed_age_seconds and on (instance, job, lease) tenure_lease_trusted_until_timestamp_seconds > time())", "{{lease}}"}}},
		{"Last success of a run", "timeseries", "s", "How long it is ago, by lease; it has to be within --success-within.", [][2]string{
			{"time() - max by (lease) (tenure_run_success_timestamp_seconds)", "{{lease}}"}, {"max by (lease) (tenure_run_success_within_seconds)", "{{lease}} within"},
		}},
		{"Renewals, p99", "timeseries", "s", "As the holders measure them.", [][2]string{{"histogram_quantile(0.99, sum by (le) (rate(tenure_keeper_renewal_duration_seconds_bucket[5m])))", "p99"}}},
		{"What happened to terms", "timeseries", "none", "An hour.", [][2]string{{"sum by (kind, reason) (increase(tenure_keeper_events_total[1h])) > 0", "{{kind}} {{reason}}"}}},
	}},
	{"The store", []boardPanel{
		{"Requests, p99", "timeseries", "s", "", [][2]string{{"histogram_quantile(0.99, sum by (op, le) (rate(tenure_store_request_duration_seconds_bucket[5m])))", "{{op}}"}}},
		{"Requests", "timeseries", "reqps", "", [][2]string{{"sum by (op, code) (rate(tenure_store_requests_total[5m]))", "{{op}} {{code}}"}}},
		{"Registry, p99", "timeseries", "s", "", [][2]string{{"histogram_quantile(0.99, sum by (op, le) (rate(tenure_registry_transaction_duration_seconds_bucket[5m])))", "{{op}}"}}},
	}},
}

// boardJSON is the board as Grafana imports it.
func boardJSON() []byte {
	source := map[string]any{"type": "prometheus", "uid": "${source}"}
	var panels []any
	id, y := 1, 0
	for _, row := range board {
		panels = append(panels, map[string]any{"id": id, "type": "row", "title": row.title, "collapsed": false, "gridPos": map[string]int{"x": 0, "y": y, "w": 24, "h": 1}, "panels": []any{}})
		id, y = id+1, y+1
		x, h := 0, 0
		for _, p := range row.panels {
			width, height := 8, 8
			if p.kind == "stat" {
				width, height = 3, 8
			}
			if x+width > 24 {
				x, y, h = 0, y+h, 0
			}
			var targets []any
			for i, q := range p.queries {
				targets = append(targets, map[string]any{"refId": string(rune('A' + i)), "datasource": source, "expr": q[0], "legendFormat": q[1]})
			}
			panels = append(panels, map[string]any{
				"id": id, "type": p.kind, "title": p.title, "description": p.about, "datasource": source, "targets": targets,
				"gridPos":     map[string]int{"x": x, "y": y, "w": width, "h": height},
				"fieldConfig": map[string]any{"defaults": map[string]any{"unit": p.unit, "min": 0}, "overrides": []any{}},
			})
			id, x, h = id+1, x+width, max(h, height)
		}
		y += h
	}
	b, err := json.MarshalIndent(map[string]any{
		"title": "tenure", "uid": "tenure", "schemaVersion": 39, "version": 1, "editable": true, "refresh": "30s", "tags": []string{"tenure"},
		"time":       map[string]string{"from": "now-6h", "to": "now"},
		"templating": map[string]any{"list": []any{map[string]any{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}}},
		"panels":     panels,
	}, "", "  ")
	must(err)
	return append(b, '\n')
}

// TestBoard: the Grafana board is what this file says.
func TestBoard(t *testing.T) {
	t.Parallel()
	path := filepath.Join(deploy, "grafana", "tenure.json")
	want := boardJSON()
	if *update {
		must(os.MkdirAll(filepath.Dir(path), 0o755))
		must(os.WriteFile(path, want, 0o644))
		return
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != string(want) {
		t.Errorf("%s is not what this file makes, error %v: run make generate", path, err)
	}
}
