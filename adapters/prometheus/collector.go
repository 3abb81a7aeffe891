package prometheus

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/holding"
	"github.com/tenurehq/tenure/store"
)

// Collector is a prometheus.Collector of the keepers that its NewKeeper made. It is
// safe for concurrent use.
type Collector struct {
	watch holding.Watch

	held, doubt, token, age, trust, until, acquired, events *prometheus.Desc

	renewals *prometheus.CounterVec
	took     prometheus.Histogram
}

var _ prometheus.Collector = (*Collector)(nil)

// New returns a Collector of no keeper. Register it once. The leases that are named
// are shown as not held before they ever were, for rules that ask who holds them.
func New(leases ...string) *Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("tenure_"+name, help, labels, nil)
	}
	c := &Collector{
		held:     desc("lease_held", "Whether this process may act under the lease; 0 for one that it has held.", "lease"),
		doubt:    desc("lease_doubt", "Whether this process has a term under which it may not act until a renewal confirms it.", "lease"),
		token:    desc("lease_token", "Fencing token of the term.", "lease"),
		age:      desc("lease_confirmed_age_seconds", "Time since the last confirmed renewal of the term was sent.", "lease"),
		trust:    desc("lease_trust_seconds", "Time for which the holder may act at most if no renewal is confirmed.", "lease"),
		until:    desc("lease_trusted_until_timestamp_seconds", "When that time ends, by this host's wall clock: a value of tenure_lease_held tells nothing after it.", "lease"),
		acquired: desc("lease_acquired_total", "Terms of the lease that began here.", "lease"),
		events:   desc("keeper_events_total", "What happened to terms, by kind and reason; no renewal that was confirmed is among them.", "kind", "reason"),
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tenure_keeper_renewals_total", Help: "Requests that renewed terms: code \"ok\" if each term got an answer, else the first reason for one that did not.",
		}, []string{"code"}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tenure_keeper_renewal_duration_seconds", Help: "Time until those requests were answered or given up, as their holder measures it.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
	}
	c.watch.Expect(leases...)
	return c
}

// NewKeeper is tenure.NewKeeper for a keeper whose terms c shows. The hooks of cfg
// are called as well. Keepers of one Collector should hold leases of different
// names: of two terms of one name the one with the larger token is shown.
func (c *Collector) NewKeeper(st store.Store, cfg tenure.Config) (*tenure.Keeper, error) {
	return c.watch.NewKeeper(st, cfg, func(r tenure.Renewal) {
		code := "ok"
		if r.Failed > 0 {
			code = string(r.Reason)
		}
		c.renewals.WithLabelValues(code).Inc()
		c.took.Observe(r.Took.Seconds())
	})
}

// Describe is of prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.held, c.doubt, c.token, c.age, c.trust, c.until, c.acquired, c.events} {
		ch <- d
	}
	c.renewals.Describe(ch)
	c.took.Describe(ch)
}

// Collect is of prometheus.Collector. It reads the clocks and asks no store.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, lease string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, lease)
	}
	for _, l := range c.watch.Leases() {
		gauge(c.held, truth(l.Held), l.Name)
		gauge(c.doubt, truth(l.Doubt), l.Name)
		ch <- prometheus.MustNewConstMetric(c.acquired, prometheus.CounterValue, float64(l.Acquired), l.Name)
		if l.Token == 0 {
			continue
		}
		gauge(c.token, float64(l.Token), l.Name)
		gauge(c.age, l.Confirmed.Seconds(), l.Name)
		gauge(c.trust, l.Left.Seconds(), l.Name)
		if l.Held {
			gauge(c.until, float64(time.Now().Add(l.Left).UnixMilli())/1e3, l.Name)
		}
	}
	for count, n := range c.watch.Counts() {
		ch <- prometheus.MustNewConstMetric(c.events, prometheus.CounterValue, float64(n), string(count.Kind), string(count.Reason))
	}
	c.renewals.Collect(ch)
	c.took.Collect(ch)
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
