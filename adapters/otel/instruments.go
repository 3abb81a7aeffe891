package otel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/holding"
	"github.com/tenurehq/tenure/store"
)

// scope names the instruments and spans of this package.
const scope = "github.com/tenurehq/tenure/adapters/otel"

// Instruments show the terms of the keepers that their NewKeeper made. They are
// safe for concurrent use.
type Instruments struct {
	watch        holding.Watch
	took         metric.Float64Histogram
	registration metric.Registration
}

// New makes the instruments of a provider. The error is the provider's.
func New(provider metric.MeterProvider) (*Instruments, error) {
	m := provider.Meter(scope)
	i := &Instruments{}
	var errs []error
	gauge := func(name, unit, description string) metric.Float64ObservableGauge {
		g, err := m.Float64ObservableGauge("tenure.lease."+name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = append(errs, err)
		return g
	}
	counter := func(name, unit, description string) metric.Int64ObservableCounter {
		c, err := m.Int64ObservableCounter("tenure."+name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = append(errs, err)
		return c
	}
	held := gauge("held", "1", "Whether this process may act under the lease; 0 for one that it has held.")
	doubt := gauge("doubt", "1", "Whether this process has a term under which it may not act until a renewal confirms it.")
	token := gauge("token", "1", "Fencing token of the term.")
	age := gauge("confirmed_age", "s", "Time since the last confirmed renewal of the term was sent.")
	trust := gauge("trust", "s", "Time for which the holder may act at most if no renewal is confirmed.")
	acquired := counter("lease.acquired", "{term}", "Terms of the lease that began here.")
	events := counter("keeper.events", "{event}", "What happened to terms, by kind and reason.")
	took, err := m.Float64Histogram("tenure.keeper.renewal.duration", metric.WithUnit("s"),
		metric.WithDescription("Time until a request that renewed terms was answered or given up, as its holder measures it."),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30))
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	i.took = took
	i.registration, err = m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, l := range i.watch.Leases() {
			of := metric.WithAttributes(attribute.String("tenure.lease", l.Name))
			o.ObserveFloat64(held, truth(l.Held), of)
			o.ObserveFloat64(doubt, truth(l.Doubt), of)
			o.ObserveInt64(acquired, int64(l.Acquired), of)
			if l.Token == 0 {
				continue
			}
			o.ObserveFloat64(token, float64(l.Token), of)
			o.ObserveFloat64(age, l.Confirmed.Seconds(), of)
			o.ObserveFloat64(trust, l.Left.Seconds(), of)
		}
		for c, n := range i.watch.Counts() {
			o.ObserveInt64(events, n, metric.WithAttributes(attribute.String("tenure.kind", string(c.Kind)), attribute.String("tenure.reason", string(c.Reason))))
		}
		return nil
	}, held, doubt, token, age, trust, acquired, events)
	if err != nil {
		return nil, err
	}
	return i, nil
}

// Close ends the observation: the provider forgets the instruments' callback.
func (i *Instruments) Close() error { return i.registration.Unregister() }

// NewKeeper is tenure.NewKeeper for a keeper whose terms i shows. The hooks of cfg
// are called as well. Keepers of one Instruments should hold leases of different
// names: of two terms of one name the one with the larger token is shown.
func (i *Instruments) NewKeeper(st store.Store, cfg tenure.Config) (*tenure.Keeper, error) {
	return i.watch.NewKeeper(st, cfg, func(r tenure.Renewal) {
		code := "ok"
		if r.Failed > 0 {
			code = string(r.Reason)
		}
		i.took.Record(context.Background(), r.Took.Seconds(), metric.WithAttributes(attribute.String("tenure.code", code)))
	})
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
