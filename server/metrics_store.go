package server

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenurehq/tenure/store"
)

// meter holds what a replica measures while it works. To observe takes some atomic
// additions.
type meter struct {
	storeTime    *prometheus.HistogramVec // by op
	storeCodes   *prometheus.CounterVec   // by op and code
	tableTime    *prometheus.HistogramVec // by op
	tableCodes   *prometheus.CounterVec   // by op and code
	placeTime    prometheus.Histogram
	takeoverTime prometheus.Histogram
	texts        []metricText
}

func newMeter() *meter {
	m := &meter{}
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		m.texts = append(m.texts, metricText{"tenure_" + name, help})
		return prometheus.HistogramOpts{Name: "tenure_" + name, Help: help, Buckets: buckets}
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		m.texts = append(m.texts, metricText{"tenure_" + name, help})
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tenure_" + name, Help: help}, labels)
	}
	requests := []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	delays := []float64{.5, 1, 2.5, 5, 10, 15, 30, 60, 120, 300, 600, 1800}
	m.storeTime = prometheus.NewHistogramVec(histogram("store_request_duration_seconds", "Time that the store of leases took for a request; a renewal is that of many nodes.", requests), []string{"op"})
	m.storeCodes = counter("store_requests_total", "Requests to the store of leases. Code \"ok\" and those such as \"held\" are decisions; \"no_contact\", \"busy\", \"permission\", \"read_only\", \"schema\" and \"store_copied\" are failures.", "op", "code")
	m.tableTime = prometheus.NewHistogramVec(histogram("registry_transaction_duration_seconds", "Time that a transaction of the registry took, waiting for its turn included.", requests), []string{"op"})
	m.tableCodes = counter("registry_transactions_total", "Transactions of the registry by what became of them.", "op", "code")
	m.placeTime = prometheus.NewHistogram(histogram("placement_duration_seconds", "Time until a placement that was asked for was made or refused.", requests))
	m.takeoverTime = prometheus.NewHistogram(histogram("takeover_delay_seconds", "Time from the end of a node's lease until an item of it was given to another node.", delays))
	return m
}

func (m *meter) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.storeTime, m.storeCodes, m.tableTime, m.tableCodes, m.placeTime, m.takeoverTime}
}

// asked notes a request to the store that began at an instant.
func (m *meter) asked(op string, began time.Time, err error) {
	m.storeTime.WithLabelValues(op).Observe(time.Since(began).Seconds())
	m.storeCodes.WithLabelValues(op, outcome(err)).Inc()
}

// transacted notes a transaction of the registry.
func (m *meter) transacted(op string, took time.Duration, err error) {
	m.tableTime.WithLabelValues(op).Observe(took.Seconds())
	m.tableCodes.WithLabelValues(op, outcome(err)).Inc()
}

// outcome is the code of an error as a label. A request that its sender gave up is
// no failure of the store.
func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	return string(store.Classify(err))
}

// measured is a store whose requests are measured. What the store does not offer
// it answers with store.ErrUnsupported.
type measured struct {
	store.Store
	*meter
}

var (
	_ store.Watcher   = measured{}
	_ store.Historian = measured{}
	_ store.Slotter   = measured{}
	_ store.Cleaner   = measured{}
	_ store.Doctor    = measured{}
)

// Acquire is of store.Store.
func (m measured) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	began := time.Now()
	r, err := m.Store.Acquire(ctx, req)
	m.asked("acquire", began, err)
	return r, err
}

// Renew is of store.Store. What became of each grant is counted where it came from.
func (m measured) Renew(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	began := time.Now()
	results, err := m.Store.Renew(ctx, grants)
	m.asked("renew", began, err)
	return results, err
}

// Release is of store.Store.
func (m measured) Release(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	began := time.Now()
	results, err := m.Store.Release(ctx, grants)
	m.asked("release", began, err)
	return results, err
}

// Get is of store.Store.
func (m measured) Get(ctx context.Context, name string) (store.Record, error) {
	began := time.Now()
	r, err := m.Store.Get(ctx, name)
	m.asked("get", began, err)
	return r, err
}

// Done is of store.Slotter.
func (m measured) Done(ctx context.Context, grant store.Grant, slot string) error {
	s, ok := m.Store.(store.Slotter)
	if !ok {
		return unsupported("keeps no slots")
	}
	began := time.Now()
	err := s.Done(ctx, grant, slot)
	m.asked("done", began, err)
	return err
}

// Slot is of store.Slotter.
func (m measured) Slot(ctx context.Context, name, slot string) (store.Slot, error) {
	s, ok := m.Store.(store.Slotter)
	if !ok {
		return store.Slot{}, unsupported("keeps no slots")
	}
	began := time.Now()
	at, err := s.Slot(ctx, name, slot)
	m.asked("slot", began, err)
	return at, err
}

// History is of store.Historian.
func (m measured) History(ctx context.Context, name string) iter.Seq2[store.Term, error] {
	if h, ok := m.Store.(store.Historian); ok {
		return h.History(ctx, name)
	}
	return func(yield func(store.Term, error) bool) { yield(store.Term{}, unsupported("keeps no past terms")) }
}

// Clean is of store.Cleaner.
func (m measured) Clean(ctx context.Context, idle time.Duration) (int, error) {
	if c, ok := m.Store.(store.Cleaner); ok {
		return c.Clean(ctx, idle)
	}
	return 0, unsupported("cleans no records")
}

// Diagnose is of store.Doctor.
func (m measured) Diagnose(ctx context.Context) ([]store.Finding, error) {
	if d, ok := m.Store.(store.Doctor); ok {
		return d.Diagnose(ctx)
	}
	return nil, unsupported("has nothing to look at")
}

// Watch is of store.Watcher.
func (m measured) Watch(ctx context.Context, name string) (<-chan store.Event, error) {
	if w, ok := m.Store.(store.Watcher); ok {
		return w.Watch(ctx, name)
	}
	return nil, unsupported("cannot tell of starts and ends of terms")
}

// Features is of store.Store.
func (m measured) Features() store.Features {
	f := m.Store.Features()
	if _, ok := m.Store.(store.Watcher); !ok {
		f.Watch = false
	}
	return f
}
