package prometheus_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"

	"github.com/tenurehq/tenure"
	adapter "github.com/tenurehq/tenure/adapters/prometheus"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
	"github.com/tenurehq/tenure/store/storetest"
)

const ttl = 2 * time.Second // margin 0.4 s, trust 1.6 s

// scrape returns the values of one lease by the names of their metrics, without
// tenure_lease_.
func scrape(t *testing.T, c *adapter.Collector, lease string) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		name, ok := strings.CutPrefix(f.GetName(), "tenure_lease_")
		for _, m := range f.Metric {
			if ok && m.Label[0].GetValue() == lease {
				values[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return values
}

// run runs k until the test ends or the returned function is called, which returns
// what Run did.
func run(t *testing.T, k *tenure.Keeper) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

func newKeeper(t *testing.T, c *adapter.Collector, st store.Store) *tenure.Keeper {
	t.Helper()
	k, err := c.NewKeeper(st, tenure.Config{TTL: ttl, DrainTimeout: 1})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestC77GaugeIsTheRight reads the gauge ten times a second through the life of a
// holder: no scrape shows it held when its holder may not act, nor the other way
// round, and what is not known is not there.
func TestC77GaugeIsTheRight(t *testing.T) {
	t.Parallel()
	st := storetest.NewFaulty(memory.New())
	c := adapter.New()
	k, other := newKeeper(t, c, st), newKeeper(t, adapter.New(), st)
	stop := run(t, k)
	run(t, other)
	ctx := t.Context()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()

	var term *tenure.Term
	may := func() bool {
		if term == nil {
			return false
		}
		_, may := term.MayAct()
		return may
	}
	// during scrapes until the time is over or check says so, and holds each value to
	// what MayAct says before and after it.
	during := func(what string, d time.Duration, check func(v map[string]float64) (over bool)) {
		t.Helper()
		over := false
		for begin := time.Now(); time.Since(begin) < d && !over; <-tick.C {
			before := may()
			v := scrape(t, c, "job")
			if after := may(); before == after && (v["held"] == 1) != before {
				t.Fatalf("%s: held is %v, and whether the holder may act: %v", what, v["held"], before)
			}
			over = check(v)
		}
	}
	nothing := func(acquired float64) func(map[string]float64) bool {
		return func(v map[string]float64) bool {
			t.Helper()
			if len(v) != 3 || v["acquired_total"] != acquired || v["held"] != 0 || v["doubt"] != 0 {
				t.Fatalf("got %v, want %v terms so far and no other value", v, acquired)
			}
			return false
		}
	}
	held := func(acquired, token float64) func(map[string]float64) bool {
		return func(v map[string]float64) bool {
			t.Helper()
			now := float64(time.Now().UnixMilli()) / 1e3
			if v["acquired_total"] != acquired || v["token"] != token || v["confirmed_age_seconds"] > ttl.Seconds() || v["trust_seconds"] <= 0 ||
				math.Abs(v["trusted_until_timestamp_seconds"]-now-v["trust_seconds"]) > 0.1 {
				t.Fatalf("got %v, want term %v with token %v", v, acquired, token)
			}
			return false
		}
	}

	theirs, err := other.TryAcquire(ctx, "job")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.TryAcquire(ctx, "job"); !errors.Is(err, store.ErrHeld) {
		t.Fatalf("got %v, want ErrHeld", err)
	}
	during("not acquired", ttl/4, func(v map[string]float64) bool {
		if len(v) > 0 {
			t.Fatalf("never held: got %v, want nothing", v)
		}
		return false
	})
	if err := theirs.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if term, err = k.TryAcquire(ctx, "job"); err != nil {
		t.Fatal(err)
	}
	during("acquired", 2*ttl, held(1, 2))

	st.Rule(func(storetest.Op) storetest.Fault { return storetest.Fault{DropRequest: true} })
	last, seen := 0.0, 0
	during("cut off", 10*ttl, func(v map[string]float64) bool {
		if v["held"] == 0 {
			return true
		}
		if seen++; seen > 5 && v["confirmed_age_seconds"] <= last { // a renewal may have been on its way at the cut
			t.Fatalf("the age of the confirmation went from %v to %v", last, v["confirmed_age_seconds"])
		}
		last = v["confirmed_age_seconds"]
		return false
	})
	if term.State() != tenure.StateLost {
		t.Fatalf("state %s, want lost", term.State())
	}
	if trust := (ttl - ttl/5).Seconds(); last < trust-0.2 || last > trust {
		t.Errorf("last shown as held %v s after the confirmed renewal, want up to 0.2 s before %v s", last, trust)
	}
	during("lost", ttl/4, nothing(1))
	st.Rule(nil)
	if term, err = k.Acquire(ctx, "job"); err != nil {
		t.Fatal(err)
	}
	during("acquired again", ttl, held(2, 3))
	if err := term.Release(ctx); err != nil {
		t.Fatal(err)
	}
	during("released", ttl/4, nothing(2))
	if term, err = k.TryAcquire(ctx, "job"); err != nil {
		t.Fatal(err)
	}
	k.Doubt(tenure.DoubtRestore, "test")
	during("restored", ttl/4, nothing(3))
	if err := stop(); err != nil {
		t.Error(err)
	}
	during("ended", ttl/4, nothing(3))
}

// TestExposition holds the text to the conventions of Prometheus.
func TestExposition(t *testing.T) {
	t.Parallel()
	st := storetest.NewFaulty(memory.New())
	c := adapter.New("never")
	told := make(chan tenure.Renewal, 100)
	k, err := c.NewKeeper(st, tenure.Config{TTL: time.Second, OnRenewal: func(r tenure.Renewal) { told <- r }})
	if err != nil {
		t.Fatal(err)
	}
	run(t, k)
	if _, err := k.TryAcquire(t.Context(), "job/a+b"); err != nil {
		t.Fatal(err)
	}
	<-told
	st.Script(storetest.OpRenew, storetest.Fault{DropRequest: true, Err: store.ErrReadOnly})
	for r := range told {
		if r.Failed > 0 {
			break
		}
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			t.Fatal(err)
		}
	}
	if problems, err := promlint.New(strings.NewReader(text.String())).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	for _, want := range []string{
		`tenure_lease_held{lease="job/a+b"} 1`,
		`tenure_lease_held{lease="never"} 0`,
		`tenure_lease_token{lease="job/a+b"} 1`,
		`tenure_keeper_renewals_total{code="ok"} `,
		`tenure_keeper_renewals_total{code="read_only"} 1`,
		`tenure_keeper_renewal_duration_seconds_count `,
		`tenure_keeper_events_total{kind="acquired",reason=""} 1`,
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %s in:\n%s", want, text.String())
		}
	}
}
