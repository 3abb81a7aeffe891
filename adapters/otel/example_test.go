package otel_test

import (
	"context"
	"fmt"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/adapters/otel"
	"github.com/tenurehq/tenure/store/memory"
)

func Example() {
	// A program's own providers, with the exporters that it uses.
	traces, meters := sdktrace.NewTracerProvider(), sdkmetric.NewMeterProvider()

	instruments, err := otel.New(meters)
	if err != nil {
		fmt.Println(err)
		return
	}
	keeper, err := instruments.NewKeeper(otel.Trace(memory.New(), traces), tenure.Config{})
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
	fmt.Println(term.Name(), term.Token())
	_ = term.Release(ctx)
	stop()
	fmt.Println(<-ended)
	// Output:
	// nightly 1
	// <nil>
}
