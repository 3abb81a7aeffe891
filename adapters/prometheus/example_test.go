package prometheus_test

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenurehq/tenure"
	adapter "github.com/tenurehq/tenure/adapters/prometheus"
	"github.com/tenurehq/tenure/store/memory"
)

func Example() {
	metrics := adapter.New()
	prometheus.MustRegister(metrics)
	keeper, err := metrics.NewKeeper(memory.New(), tenure.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- keeper.Run(ctx) }()
	term, err := keeper.Acquire(ctx, "nightly")
	if err != nil {
		fmt.Println(err)
		return
	}
	families, _ := prometheus.DefaultGatherer.Gather()
	for _, f := range families {
		if f.GetName() == "tenure_lease_held" {
			fmt.Println(f.GetName(), f.Metric[0].Label[0].GetValue(), f.Metric[0].GetGauge().GetValue())
		}
	}
	_ = term.Release(ctx)
	stop()
	fmt.Println(<-ended)
	// Output:
	// tenure_lease_held nightly 1
	// <nil>
}
