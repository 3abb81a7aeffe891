package main

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/push"
	"github.com/spf13/cobra"

	adapter "github.com/tenurehq/tenure/adapters/prometheus"
	"github.com/tenurehq/tenure/store"
)

const metricsHelp = `With --metrics-textfile or --metrics-push monitoring sees that COMMAND runs, and how
it ended: tenure_lease_held is 1 while COMMAND may act, and 0 after; tenure_run_exit_code
and tenure_run_success_timestamp_seconds tell of the last end. The file is written and
the gateway told at each change and several times in a TTL. If tenure itself is killed
the last values stay: do not believe them after tenure_lease_trusted_until_timestamp_seconds.
With --success-within monitoring knows how old the last success of all hosts may be, and
says when it is older. Neither can hold up or end the job. Runs that overlap may share a
file: it belongs to the one that works under the lease until that has ended, and a run
that does not get its turn leaves it as it is. A run with nothing to do is no success.`

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
	last        float64     // what success shows; 0 for nothing
	working     atomic.Bool // under a term, or was until its end
	over        bool        // all has ended
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
	m.success = prometheus.NewGaugeVec(options(successes, "When a run last succeeded, as far as this host knows: with code 0, or elsewhere if it found its slot done."), nil)
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
	if f.metricsFile != "" {
		file := &metricsFile{path: f.metricsFile}
		if err := file.write(m.gather(file.path), false); err != nil && !errors.Is(err, errAtWork) {
			return nil, fileError("metrics file", file.path, err)
		}
		add("metrics file", func(ctx context.Context) error { return m.write(ctx, file) })
	}
	if m.gateway != "" {
		add(gatewayOutlet, func(ctx context.Context) error { return m.push(ctx, m.registry, "last") })
	}
	return m, nil
}

// write brings the file up to date, if another run does not work. Who works waits for
// those that only write.
func (m *jobMetrics) write(ctx context.Context, file *metricsFile) error {
	for {
		working := m.working.Load()
		err := file.write(m.gather(file.path), working && !m.over)
		if !errors.Is(err, errAtWork) {
			return err
		}
		if !working {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// gather returns a function that tells all, with the last success of other runs that
// the file at path knows of.
func (m *jobMetrics) gather(path string) func() ([]byte, error) {
	return func() ([]byte, error) {
		if last, ok := lastSuccess(path, m.lease); ok {
			m.succeeded(last)
		}
		return exposition(m.registry)
	}
}

// succeeded takes in that a run succeeded at that time.
func (m *jobMetrics) succeeded(at float64) {
	if at > m.last {
		m.last = at
		m.success.WithLabelValues().Set(at)
	}
}

// work says whether the run works under a term, so that the file is its own.
func (m *jobMetrics) work(is bool) {
	m.working.Store(is)
	m.nudge()
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
			showing := ctx
			if o.what == gatewayOutlet { // a push that is broken off might arrive after the one of the end
				var broken context.CancelFunc
				showing, broken = context.WithCancel(context.WithoutCancel(ctx))
				defer broken()
				defer context.AfterFunc(ctx, func() { time.AfterFunc(pushAtEnd, broken) })()
			}
			for {
				m.show(showing, o, pushTime)
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

// end shows how it ended. Nothing is held any more, and run has returned.
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
		m.succeeded(seconds(time.Now()))
	} else if done, ok := errors.AsType[*store.SlotError](err); ok {
		m.succeeded(seconds(done.Slot.DoneAt))
	}
	m.over = true
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

// seconds is t as Prometheus has it.
func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
