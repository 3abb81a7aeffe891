package server

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store"
)

// metrics serves what this replica counts, in the format of Prometheus. A code
// "ok" stands for a yes.
func (h *handler) metrics() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		newMetrics(h.Server, h.opts.Version), newTables(h.opts.Tables),
	)
	registry.MustRegister(h.st.collectors()...)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError, MaxRequestsInFlight: 4})
}

// maxDomains bounds the failure domains that are shown, since agents name them.
// Those whose brake holds come first.
const maxDomains = 100

// metrics reads a replica when it is asked; nothing is counted for it alone. No
// label holds the name of a node, a lease, a work item or a holder.
type metrics struct {
	s       *Server
	version string
	descs   []*prometheus.Desc
	texts   []metricText

	build, ready, active, failed, brake, braked  *prometheus.Desc
	counters                                     map[string]*prometheus.Desc // by Count.What
	writes, gaps, missed, lag, watched           *prometheus.Desc
	late, brief, suspicions, unfounded, evidence *prometheus.Desc
	liveness, lease, intent, exclusions          *prometheus.Desc
	eligible, age, oldest, work, stuck, withheld *prometheus.Desc
	refreshed, limit                             *prometheus.Desc
}

// metricText says in words what a metric is.
type metricText struct{ name, help string }

// expected are the answers that are shown as 0 before they were first given, so
// that the first one shows as an increase.
var expected = map[string][]fleet.Code{
	"beat":      {"", fleet.Code(store.CodeInvalid), fleet.CodeOldSequence, fleet.CodeDuplicateNode, fleet.CodeReplaced},
	"renewal":   {"", fleet.Code(store.CodeSuperseded), fleet.Code(store.CodeExpired), fleet.Code(store.CodeRevoked), fleet.Code(store.CodeNoContact), fleet.Code(store.CodeBusy)},
	"work":      {"", fleet.CodeStaleToken, fleet.CodeNotOwner},
	"placement": {"", fleet.CodeNoCapacity},
	"takeover":  {"", fleet.CodeNoCapacity},
	"withheld":  {fleet.CodeBrake, fleet.CodeObserving, fleet.CodeFlapping, fleet.CodeRateLimited, fleet.CodeNoCapacity, fleet.CodeHostGone},
}

func newMetrics(s *Server, version string) *metrics {
	m := &metrics{s: s, version: version}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		d := prometheus.NewDesc("tenure_"+name, help, labels, nil)
		m.descs, m.texts = append(m.descs, d), append(m.texts, metricText{"tenure_" + name, help})
		return d
	}
	m.build = desc("build_info", "The program; always 1.", "version", "server")
	m.ready = desc("ready", "Whether this replica can serve.")
	m.active = desc("reconciler_active", "Whether this replica reconciles.")
	m.failed = desc("reconciler_failing", "Whether this replica's last step as reconciler failed; stays 1 after it gave the lease back for that, until a step of its own succeeds.")
	m.brake = desc("brake_engaged", "Whether the brake of a failure domain holds; domain \"all\" is the whole fleet. At most 100 domains are shown, those that hold first.", "domain", "code")
	m.braked = desc("brakes_engaged", "Brakes that hold.")
	m.counters = map[string]*prometheus.Desc{
		"beat":      desc("beats_total", "Heartbeats that came to this replica, by what became of them.", "code"),
		"renewal":   desc("renewals_total", "Renewals that came in heartbeats.", "code"),
		"work":      desc("work_reports_total", "Reports of owners on their work: writes that are guarded by its token.", "code"),
		"placement": desc("placements_total", "Placements that were asked for.", "code"),
		"candidate": desc("placement_candidates_refused_total", "Nodes that were chosen on a snapshot and refused by the registry.", "code"),
		"takeover":  desc("takeovers_total", "Takeovers that this replica tried.", "code"),
		"withheld":  desc("takeovers_withheld_total", "Times that this replica held a takeover back, by reason; code \"brake\" is the brake's.", "code"),
		"probe":     desc("probes_total", "Probes of nodes that cannot call out.", "code"),
	}
	m.writes = desc("guarded_writes_total", "Conditional writes to the registry, by token, owner, term and state: code \"ok\" was made, any other changed nothing.", "code")
	m.gaps = desc("observer_gaps_total", "Gaps in which this replica could not have heard a node.")
	m.missed = desc("observer_missed_seconds_total", "Time in those gaps, which counts as no node's silence.")
	m.lag = desc("observer_lag_seconds", "Time since this replica could last have heard every node; about a second if it is well.")
	m.watched = desc("observer_watched_seconds", "Time for which every node has been watched without a break.")
	m.late = desc("beats_late_total", "Beats, as this replica knew of them, that came later after the one before than a node may be silent before it is late.")
	m.suspicions = desc("suspicions_total", "Nodes that became suspect.")
	m.unfounded = desc("suspicions_unfounded_total", "Of the suspicions, those after which the same incarnation of the node was heard again.")
	m.brief = desc("exclusions_brief_total", "Nodes that were left out of placement and back within the time in which silence makes a node suspect, by the first reason.", "code")
	m.evidence = desc("takeovers_made_total", "Takeovers that this replica made, by its evidence: the state of the former owner's lease, and whether that node was heard.", "lease", "liveness")
	m.liveness = desc("nodes_by_liveness", "Nodes by whether they are heard.", "liveness")
	m.lease = desc("nodes_by_lease", "Nodes by the state of their lease.", "lease")
	m.intent = desc("nodes_by_intent", "Nodes by what operators want of them.", "intent")
	m.exclusions = desc("node_exclusions", "Nodes that get no new work, by reason; one node may have several.", "code")
	m.eligible = desc("nodes_eligible", "Nodes of which nothing of their own keeps new work.")
	m.age = desc("heartbeat_age_seconds", "Listened time since the last beat, over the nodes as they are now that have not given their lease back.")
	m.oldest = desc("heartbeat_age_max_seconds", "Listened time since the last beat of the one of them that is silent for longest.")
	m.work = desc("work_owned", "Work items that nodes own.")
	m.stuck = desc("work_stuck", "Of them, those without progress.")
	m.withheld = desc("takeovers_withheld", "Takeovers that this replica holds back now, by reason.", "code")
	m.limit = desc("suspect_after_seconds", "Silence after which a node is suspect.")
	m.refreshed = desc("refresh_age_seconds", "Time since this replica last read the registry.")
	return m
}

// Describe is of prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range m.descs {
		ch <- d
	}
}

// sink sends values on their way.
type sink chan<- prometheus.Metric

func (ch sink) gauge(d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (ch sink) count(d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

// Collect is of prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	ch, s := sink(out), m.s
	ch.gauge(m.build, 1, m.version, s.cfg.Name)
	ch.gauge(m.ready, truth(s.Ready() == nil))
	ch.gauge(m.active, truth(s.active.Load()))
	ch.gauge(m.failed, truth(s.failed.Load() != nil))
	ch.gauge(m.refreshed, s.refreshAge().Seconds())
	ch.gauge(m.limit, (time.Duration(s.cfg.SuspectAfter) * s.cfg.Interval).Seconds())
	counted := s.Counts()
	for what, codes := range expected {
		for _, code := range codes {
			counted[Count{what, string(code)}] += 0
		}
	}
	for c, n := range folded(counted, func(c Count) Count { return Count{c.What, label(c.Code)} }) {
		if d := m.counters[c.What]; d != nil {
			ch.count(d, float64(n), c.Code)
		}
	}
	writes := s.reg.Refusals()
	writes[""] = s.reg.Accepted()
	writes[fleet.CodeStaleToken] += 0
	for code, n := range folded(writes, label) {
		ch.count(m.writes, float64(n), code)
	}
	for code, n := range *s.heldBack.Load() {
		ch.gauge(m.withheld, float64(n), string(code))
	}
	m.observer(ch)
	m.brakes(ch)
	m.nodes(ch)
}

// observer is how well this replica can judge, and how its judgements lasted.
func (m *metrics) observer(ch sink) {
	h, o, now := m.s.hindsight, m.s.in.observer.Load(), clock.Now().Boot
	_, missed := o.Missed()
	watched, _ := m.s.Observing()
	ch.count(m.gaps, float64(m.s.in.gaps.Load()))
	ch.count(m.missed, missed.Seconds())
	ch.gauge(m.lag, o.Lag(now).Seconds())
	ch.gauge(m.watched, watched.Seconds())
	ch.count(m.late, float64(h.late.Load()))
	ch.count(m.suspicions, float64(h.suspicions.Load()))
	ch.count(m.unfounded, float64(h.unfounded.Load()))
	brief := h.brief.all()
	brief[fleet.CodeStaleHeartbeat] += 0
	for code, n := range brief {
		ch.count(m.brief, float64(n), string(code))
	}
	made := h.evidence.all()
	made[evidence{fleet.LeaseLapsed, fleet.Suspect}] += 0
	for e, n := range made {
		ch.count(m.evidence, float64(n), string(e.lease), string(e.liveness))
	}
}

func (m *metrics) brakes(ch sink) {
	type brake struct {
		domain string
		code   fleet.Code
	}
	engaged := map[brake]bool{} // a domain may have several for the reasons that its nodes give, in words of their own
	holding := 0
	for _, b := range *m.s.brakes.Load() {
		key := brake{b.Domain, b.Code}
		engaged[key] = engaged[key] || b.Engaged
		if b.Engaged {
			holding++
		}
	}
	shown := slices.SortedFunc(maps.Keys(engaged), func(a, b brake) int {
		return cmp.Or(cmp.Compare(truth(engaged[b]), truth(engaged[a])), cmp.Compare(a.domain, b.domain), cmp.Compare(a.code, b.code))
	})
	for _, b := range shown[:min(len(shown), maxDomains)] {
		ch.gauge(m.brake, truth(engaged[b]), b.domain, string(b.code))
	}
	ch.gauge(m.braked, float64(holding))
}

func (m *metrics) nodes(ch sink) {
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
	var beating uint64
	var work, stuck int
	for i := range nodes {
		n := &nodes[i]
		liveness[n.Liveness]++
		lease[n.Lease.State]++
		intent[n.Intent.State()]++
		work, stuck = work+n.Work, stuck+n.Stuck
		if !mustBeat(n) {
			continue
		}
		age := n.Age.Seconds()
		beating, sum, oldest = beating+1, sum+age, max(oldest, age)
		for le := range buckets {
			if age <= le {
				buckets[le]++
			}
		}
	}
	for state, n := range liveness {
		ch.gauge(m.liveness, n, string(state))
	}
	for state, n := range lease {
		ch.gauge(m.lease, n, string(state))
	}
	for state, n := range intent {
		ch.gauge(m.intent, n, string(state))
	}
	ranked, counts := fleet.Rank(nodes, fleet.Request{}, m.s.conditions())
	for code, n := range counts {
		ch.gauge(m.exclusions, float64(n), string(code))
	}
	ch.gauge(m.eligible, float64(len(ranked)))
	ch <- prometheus.MustNewConstHistogram(m.age, beating, sum, buckets)
	ch.gauge(m.oldest, oldest)
	ch.gauge(m.work, float64(work))
	ch.gauge(m.stuck, float64(stuck))
}

// folded adds up the counts whose keys become one.
func folded[K, L comparable](counts map[K]uint64, become func(K) L) map[L]uint64 {
	m := make(map[L]uint64, len(counts))
	for k, n := range counts {
		m[become(k)] += n
	}
	return m
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

// label is a code as the value of a label: "ok" for none, and without the name of
// the resource of which there is not enough.
func label[C ~string](code C) string {
	switch c := string(code); {
	case c == "":
		return "ok"
	case strings.HasPrefix(c, string(fleet.CodeInsufficient)):
		return strings.TrimSuffix(string(fleet.CodeInsufficient), "_")
	default:
		return c
	}
}
