package server

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tenurehq/tenure/fleet"
)

// metrics serves what this replica counts, in the format of Prometheus. A code
// "ok" stands for a yes.
func (h *handler) metrics() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		newMetrics(h.Server, h.opts.Version),
	)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError, MaxRequestsInFlight: 4})
}

// metrics reads a replica when it is asked; nothing is counted for it alone.
type metrics struct {
	s       *Server
	version string

	build, ready, active, brake                  *prometheus.Desc
	counters                                     map[string]*prometheus.Desc // by Count.What
	refusals, gaps                               *prometheus.Desc
	liveness, lease, intent, exclusions          *prometheus.Desc
	age, oldest, work, stuck, withheld, duration *prometheus.Desc
}

func newMetrics(s *Server, version string) *metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("tenure_"+name, help, labels, nil)
	}
	return &metrics{
		s: s, version: version,
		build:  desc("build_info", "The program; always 1.", "version", "server"),
		ready:  desc("ready", "Whether this replica can serve."),
		active: desc("reconciler_active", "Whether this replica reconciles."),
		brake:  desc("brake_engaged", "Whether the brake of a failure domain holds; domain \"all\" is the whole fleet.", "domain", "code"),
		counters: map[string]*prometheus.Desc{
			"beat":      desc("beats_total", "Heartbeats that came to this replica.", "code"),
			"renewal":   desc("renewals_total", "Renewals that came in heartbeats.", "code"),
			"work":      desc("work_reports_total", "Reports of owners on their work.", "code"),
			"placement": desc("placements_total", "Placements that were asked for.", "code"),
			"candidate": desc("placement_candidates_total", "Nodes that were chosen on a snapshot and refused by the registry.", "code"),
			"takeover":  desc("takeovers_total", "Takeovers that this replica tried.", "code"),
			"probe":     desc("probes_total", "Probes of nodes that cannot call out.", "code"),
		},
		refusals:   desc("refusals_total", "Writes to the registry that changed nothing.", "code"),
		gaps:       desc("observer_gaps_total", "Gaps in which this replica could not have heard a node."),
		liveness:   desc("nodes_by_liveness", "Nodes by whether they are heard.", "liveness"),
		lease:      desc("nodes_by_lease", "Nodes by the state of their lease.", "lease"),
		intent:     desc("nodes_by_intent", "Nodes by what operators want of them.", "intent"),
		exclusions: desc("node_exclusions", "Nodes that get no new work, by reason; one node may have several.", "code"),
		age:        desc("heartbeat_age_seconds", "Listened time since the last beat, over the nodes as they are now."),
		oldest:     desc("heartbeat_age_max_seconds", "Listened time since the last beat of the node that is silent for longest."),
		work:       desc("work_owned", "Work items that nodes own."),
		stuck:      desc("work_stuck", "Of them, those without progress."),
		withheld:   desc("takeovers_withheld", "Takeovers that this replica holds back now, by reason.", "code"),
		duration:   desc("refresh_age_seconds", "Time since this replica last read the registry."),
	}
}

// Describe is of prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		m.build, m.ready, m.active, m.brake, m.refusals, m.gaps, m.liveness, m.lease, m.intent, m.exclusions,
		m.age, m.oldest, m.work, m.stuck, m.withheld, m.duration,
	} {
		ch <- d
	}
	for _, d := range m.counters {
		ch <- d
	}
}

// Collect is of prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	s := m.s
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(m.build, 1, m.version, s.cfg.Name)
	gauge(m.ready, truth(s.Ready() == nil))
	gauge(m.active, truth(s.active.Load()))
	gauge(m.duration, s.refreshAge().Seconds())
	for c, n := range s.Counts() {
		if d := m.counters[c.What]; d != nil {
			count(d, n, orOK(c.Code))
		}
	}
	for code, n := range s.reg.Refusals() {
		count(m.refusals, n, string(code))
	}
	count(m.gaps, s.in.gaps.Load())
	for _, b := range *s.brakes.Load() {
		code := string(b.Code)
		if b.Reason != "" {
			code += ":" + b.Reason
		}
		gauge(m.brake, truth(b.Engaged), b.Domain, code)
	}
	for code, n := range *s.heldBack.Load() {
		gauge(m.withheld, float64(n), string(code))
	}
	m.nodes(ch, gauge)
}

func (m *metrics) nodes(ch chan<- prometheus.Metric, gauge func(*prometheus.Desc, float64, ...string)) {
	nodes := m.s.Nodes()
	liveness := zeros(fleet.Observing, fleet.Alive, fleet.Late, fleet.Suspect)
	lease := zeros(fleet.LeaseNone, fleet.LeaseHeld, fleet.LeaseRevoked, fleet.LeaseLapsed, fleet.LeaseReleased)
	intent := zeros(fleet.Active, fleet.Cordoned, fleet.Draining, fleet.Drained)
	interval := m.s.cfg.Interval.Seconds()
	buckets := map[float64]uint64{}
	for _, intervals := range []float64{0.5, 1, 1.5, 2, 3, 6} {
		buckets[intervals*interval] = 0
	}
	var sum, oldest float64
	var work, stuck int
	for i := range nodes {
		n := &nodes[i]
		liveness[n.Liveness]++
		lease[n.Lease.State]++
		intent[n.Intent.State()]++
		work, stuck = work+n.Work, stuck+n.Stuck
		age := n.Age.Seconds()
		sum, oldest = sum+age, max(oldest, age)
		for le := range buckets {
			if age <= le {
				buckets[le]++
			}
		}
	}
	for state, n := range liveness {
		gauge(m.liveness, n, string(state))
	}
	for state, n := range lease {
		gauge(m.lease, n, string(state))
	}
	for state, n := range intent {
		gauge(m.intent, n, string(state))
	}
	_, counts := fleet.Rank(nodes, fleet.Request{}, m.s.conditions())
	for code, n := range counts {
		gauge(m.exclusions, float64(n), string(code))
	}
	ch <- prometheus.MustNewConstHistogram(m.age, uint64(len(nodes)), sum, buckets)
	gauge(m.oldest, oldest)
	gauge(m.work, float64(work))
	gauge(m.stuck, float64(stuck))
}

// zeros has an entry for each state, so that a count that fell to 0 is shown as 0.
func zeros[K comparable](states ...K) map[K]float64 {
	m := make(map[K]float64, len(states))
	for _, s := range states {
		m[s] = 0
	}
	return m
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func orOK(code string) string {
	if code == "" {
		return "ok"
	}
	return code
}
