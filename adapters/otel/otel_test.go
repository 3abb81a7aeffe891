package otel_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/adapters/otel"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
	"github.com/tenurehq/tenure/store/storetest"
)

// values returns the data points of one collection, by instrument and attributes.
func values(t *testing.T, reader sdkmetric.Reader) map[string]float64 {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	key := func(name string, set attribute.Set) string {
		for _, kv := range set.ToSlice() {
			name += " " + kv.Value.String()
		}
		return name
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Gauge[float64]:
				for _, p := range d.DataPoints {
					all[key(m.Name, p.Attributes)] = p.Value
				}
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					all[key(m.Name, p.Attributes)] = float64(p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					all[key(m.Name, p.Attributes)] = float64(p.Count)
				}
			default:
				t.Errorf("%s is a %T", m.Name, d)
			}
		}
	}
	return all
}

// TestInstruments reads the instruments through the life of a holder.
func TestInstruments(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	i, err := otel.New(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	if err != nil {
		t.Fatal(err)
	}
	renewed := make(chan tenure.Renewal, 100)
	st := storetest.NewFaulty(memory.New())
	k, err := i.NewKeeper(st, tenure.Config{TTL: time.Second, OnRenewal: func(r tenure.Renewal) { renewed <- r }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	term, err := k.TryAcquire(ctx, "job")
	if err != nil {
		t.Fatal(err)
	}
	<-renewed
	got := values(t, reader)
	for name, want := range map[string]float64{
		"tenure.lease.held job": 1, "tenure.lease.doubt job": 0, "tenure.lease.token job": 1, "tenure.lease.acquired job": 1,
		"tenure.keeper.events acquired ": 1, "tenure.keeper.renewal.duration ok": 1,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("held: %s is %v (%v), want %v", name, v, ok, want)
		}
	}
	if age, trust := got["tenure.lease.confirmed_age job"], got["tenure.lease.trust job"]; age < 0 || trust <= 0 || age+trust > 0.81 {
		t.Errorf("confirmed %v s ago with %v s left, want 0.8 s together", age, trust)
	}
	st.Rule(func(storetest.Op) storetest.Fault { return storetest.Fault{DropRequest: true} })
	<-term.Context().Done() // at TrustedUntil
	got = values(t, reader)
	if got["tenure.lease.held job"] != 0 || got["tenure.keeper.events lost no_contact"] != 1 || got["tenure.keeper.renewal.duration no_contact"] < 1 {
		t.Errorf("lost: got %v", got)
	}
	if _, ok := got["tenure.lease.confirmed_age job"]; ok {
		t.Errorf("lost: the age of a confirmation is shown, got %v", got)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := i.Close(); err != nil {
		t.Error(err)
	}
	if got := values(t, reader); len(got) > 2 { // what was recorded stays
		t.Errorf("closed: got %v, want no observation", got)
	}
}

// TestConformance: a store that is traced keeps what the store behind it keeps.
func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) storetest.Harness {
		return storetest.Harness{Store: otel.Trace(memory.New(), sdktrace.NewTracerProvider()), MinTTL: 20 * time.Millisecond}
	})
}

// TestSpans: a request is a span of its sender's trace that says what the store
// answered, and only what was not decided is an error.
func TestSpans(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	faulty := storetest.NewFaulty(memory.New())
	st := otel.Trace(faulty, provider)
	ctx, parent := provider.Tracer("test").Start(t.Context(), "parent")
	first := store.NewAttempt()
	req := store.Request{Name: "job", Holder: "h", TTL: time.Minute, Attempt: first}
	rec, err := st.Acquire(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	req.Attempt = store.NewAttempt()
	if _, err := st.Acquire(ctx, req); !errors.Is(err, store.ErrHeld) {
		t.Fatalf("got %v, want ErrHeld", err)
	}
	grant := store.Grant{Name: "job", Token: rec.Token, TTL: time.Minute, Attempt: store.NewAttempt(), Known: []store.Attempt{first}}
	if _, err := st.Renew(ctx, []store.Grant{grant}); err != nil {
		t.Fatal(err)
	}
	faulty.Script(storetest.OpRenew, storetest.Fault{DropRequest: true, Err: store.ErrReadOnly})
	if _, err := st.Renew(ctx, []store.Grant{grant}); !errors.Is(err, store.ErrReadOnly) {
		t.Fatalf("got %v, want ErrReadOnly", err)
	}
	for range st.List(ctx, "") {
		break
	}
	if _, err := st.Slot(ctx, "job", "s"); !errors.Is(err, store.ErrUnsupported) { // Faulty keeps none
		t.Fatalf("got %v, want ErrUnsupported", err)
	}
	parent.End()
	var got []string
	for _, s := range spans.Ended() {
		if s.Name() == "parent" {
			continue
		}
		if s.Parent().SpanID() != parent.SpanContext().SpanID() {
			t.Errorf("%s is not of its sender's trace", s.Name())
		}
		line := s.Name()
		for _, kv := range s.Attributes() {
			line += " " + string(kv.Key) + "=" + kv.Value.String()
		}
		if s.Status().Code == codes.Error {
			line += " ERROR"
		}
		got = append(got, line)
	}
	want := []string{
		"tenure.store/acquire tenure.lease=job tenure.token=1 tenure.code=ok",
		"tenure.store/acquire tenure.lease=job tenure.code=held",
		"tenure.store/renew tenure.terms=1 tenure.lease=job tenure.token=1 tenure.refused=0 tenure.code=ok",
		"tenure.store/renew tenure.terms=1 tenure.lease=job tenure.token=1 tenure.refused=0 tenure.code=read_only ERROR",
		"tenure.store/list tenure.prefix= tenure.records=1 tenure.code=ok",
		"tenure.store/slot tenure.lease=job tenure.code=unsupported",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}
