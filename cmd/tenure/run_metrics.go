package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/push"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"

	adapter "github.com/tenurehq/tenure/adapters/prometheus"
)

const metricsHelp = `With --metrics-textfile or --metrics-push monitoring sees that COMMAND runs, and how
it ended: tenure_lease_held is 1 while COMMAND may act, and 0 after; tenure_run_exit_code
and tenure_run_success_timestamp_seconds tell of the last end. The file is written and
the gateway told at each change and several times in a TTL. If tenure itself is killed
the last values stay: do not believe them after tenure_lease_trusted_until_timestamp_seconds.
With --success-within monitoring knows how old the last success of all hosts may be, and
says when it is older. Neither can hold up or end the job.`

const (
	pushTime  = 5 * time.Second // of one push
	pushAtEnd = 3 * time.Second // of the last one, which the caller waits for

	successes     = "tenure_run_success_timestamp_seconds"
	gatewayOutlet = "metrics gateway"
)

// jobMetrics shows to monitoring what "tenure run" holds and how it ended.
type jobMetrics struct {
	*adapter.Collector
	lease, host string
	gateway     string // "" for none
	period      time.Duration
	note        *notebook
	outlets     []*outlet
	registry    *prometheus.Registry
	begun       prometheus.Gauge
	ended       *prometheus.GaugeVec // while there is an end to tell of
	code        *prometheus.GaugeVec
	success     *prometheus.GaugeVec
}

// outlet is where metrics go. One that hangs holds up no other.
type outlet struct {
	what    string
	show    func(context.Context) error
	changed chan struct{}
	told    bool // that it does not work
}

// checkMetrics checks the flags that say where metrics go.
func (f *runFlags) checkMetrics(cmd *cobra.Command) error {
	for _, name := range []string{"metrics-textfile", "metrics-push"} {
		if flag := cmd.Flags().Lookup(name); flag.Changed && flag.Value.String() == "" {
			return failf(exitUsage, "--%s \"\": is set and empty; leave it out to have none", name)
		}
	}
	if f.metricsFile != "" && filepath.Ext(f.metricsFile) != ".prom" {
		return failf(exitUsage, "--metrics-textfile %q: the name must end in .prom, or the node exporter does not read it", f.metricsFile)
	}
	if f.successWithin > 0 && f.metricsFile == "" && f.metricsPush == "" {
		return failf(exitUsage, "--success-within is told to monitoring: add --metrics-textfile or --metrics-push")
	}
	if f.metricsPush == "" {
		return nil
	}
	u, err := url.Parse(f.metricsPush)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return failf(exitUsage, "--metrics-push %q: must be the URL of a Pushgateway, such as http://pushgateway.example:9091", redact(f.metricsPush))
	}
	return nil
}

// newJobMetrics returns what the flags ask for, nil if nothing. It writes the file
// once, so that one which cannot be written is known before the lease is asked for.
func newJobMetrics(f *runFlags, note *notebook) (*jobMetrics, error) {
	if f.metricsFile == "" && f.metricsPush == "" {
		return nil, nil
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unnamed"
	}
	m := &jobMetrics{
		Collector: adapter.New(f.name), lease: f.name, host: host, gateway: strings.TrimSuffix(f.metricsPush, "/"), note: note,
		period:   min(max(f.ttl/6, 250*time.Millisecond), 15*time.Second),
		registry: prometheus.NewRegistry(),
	}
	options := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: prometheus.Labels{"lease": f.name}}
	}
	m.begun = prometheus.NewGauge(options("tenure_run_start_timestamp_seconds", "When this run of tenure began."))
	m.ended = prometheus.NewGaugeVec(options("tenure_run_end_timestamp_seconds", "When it ended; not there before."), nil)
	m.code = prometheus.NewGaugeVec(options("tenure_run_exit_code", "Its exit code: that of the command, or one of tenure's own, with --skip-ok too; not there before its end."), nil)
	m.success = prometheus.NewGaugeVec(options(successes, "When a run last ended with code 0."), nil)
	m.begun.SetToCurrentTime()
	within := prometheus.NewGaugeVec(options("tenure_run_success_within_seconds", "How long ago the last success may be at most; not there if nobody said."), nil)
	if f.successWithin > 0 {
		within.WithLabelValues().Set(f.successWithin.Seconds())
	}
	for _, c := range []prometheus.Collector{m.Collector, m.begun, m.ended, m.code, m.success, within} {
		if err := m.registry.Register(c); err != nil {
			return nil, err
		}
	}
	add := func(what string, show func(context.Context) error) {
		m.outlets = append(m.outlets, &outlet{what: what, show: show, changed: make(chan struct{}, 1)})
	}
	if file := f.metricsFile; file != "" {
		if last, ok := lastSuccess(file, m.lease); ok {
			m.success.WithLabelValues().Set(last)
		}
		write := func(context.Context) error { return prometheus.WriteToTextfile(file, m.registry) }
		if err := write(context.Background()); err != nil {
			return nil, fileError("metrics file", file, err)
		}
		add("metrics file", write)
	}
	if m.gateway != "" {
		add(gatewayOutlet, func(ctx context.Context) error { return m.push(ctx, m.registry, "last") })
	}
	return m, nil
}

// lastSuccess reads from the file of a former run when one last succeeded.
func lastSuccess(path, lease string) (at float64, ok bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return 0, false
	}
	for _, metric := range families[successes].GetMetric() {
		for _, l := range metric.GetLabel() {
			if l.GetName() == "lease" && l.GetValue() == lease {
				return metric.GetGauge().GetValue(), true
			}
		}
	}
	return 0, false
}

// nudge says that something has changed.
func (m *jobMetrics) nudge() {
	for _, o := range m.outlets {
		select {
		case o.changed <- struct{}{}:
		default: // it will be seen
		}
	}
}

// run shows what there is until ctx ends.
func (m *jobMetrics) run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, o := range m.outlets {
		all.Go(func() {
			tick := time.NewTicker(m.period)
			defer tick.Stop()
			for {
				m.show(ctx, o, pushTime)
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				case <-o.changed:
				}
			}
		})
	}
}

// show brings an outlet up to date. What does not work is said once, and is no
// reason to end a job.
func (m *jobMetrics) show(ctx context.Context, o *outlet, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := o.show(ctx); err != nil && !o.told && !errors.Is(ctx.Err(), context.Canceled) {
		o.told = true
		m.note.line("%s: %s", o.what, redact(err.Error()))
	}
}

// end shows how it ended. Nothing is held any more.
func (m *jobMetrics) end(err error) {
	code := exitOK
	if err != nil {
		code = exitUsage // as report has it
		if coded, ok := errors.AsType[*exitError](err); ok {
			code = coded.code
		}
	}
	m.ended.WithLabelValues().SetToCurrentTime()
	m.code.WithLabelValues().Set(float64(code))
	if code == exitOK {
		m.success.WithLabelValues().SetToCurrentTime()
	}
	for _, o := range m.outlets {
		m.show(context.Background(), o, pushAtEnd)
		if code == exitOK && o.what == gatewayOutlet { // in a group of its own, which the next run does not replace
			m.show(context.Background(), &outlet{what: o.what, told: o.told, show: func(ctx context.Context) error {
				return m.push(ctx, m.success, "success")
			}}, pushAtEnd)
		}
	}
}

// push replaces one group of the gateway. The job is the lease, so that runs of
// different leases do not replace each other's.
func (m *jobMetrics) push(ctx context.Context, what prometheus.Collector, result string) error {
	return push.New(m.gateway, m.lease).Client(&http.Client{}).Grouping("instance", m.host).Grouping("result", result).Collector(what).PushContext(ctx)
}
