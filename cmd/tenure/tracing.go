package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	adapter "github.com/tenurehq/tenure/adapters/otel"
	"github.com/tenurehq/tenure/store"
)

const tracingHelp = `With OTEL_EXPORTER_OTLP_ENDPOINT, or OTEL_TRACES_EXPORTER=otlp, in its environment it
sends traces of its requests by OTLP over HTTP; the other variables of OpenTelemetry
(OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS, ...) count as well.`

// tracing is where spans of this process go. A nil tracing makes none.
type tracing struct {
	provider *sdktrace.TracerProvider
	options  []otelhttp.Option
}

// tracingWanted reports whether the environment asks for traces, by the variables of
// https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/.
func tracingWanted(getenv func(string) string) (bool, error) {
	if strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	wanted := getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
	switch exporter := getenv("OTEL_TRACES_EXPORTER"); exporter {
	case "":
	case "none":
		return false, nil
	case "otlp":
		wanted = true
	default:
		return false, failf(exitUsage, "OTEL_TRACES_EXPORTER=%s: must be otlp or none", exporter)
	}
	if !wanted {
		return false, nil
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if protocol := getenv(name); protocol != "" && protocol != "http/protobuf" {
			return false, failf(exitUsage, "%s=%s: must be http/protobuf", name, protocol)
		}
	}
	return true, nil
}

// startTracing returns nil unless the environment asks for traces. service is the
// name under which they are shown unless OTEL_SERVICE_NAME gives another.
func startTracing(ctx context.Context, service string, log *slog.Logger) (*tracing, error) {
	wanted, err := tracingWanted(os.Getenv)
	if !wanted {
		return nil, err
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, failf(exitUsage, "traces: %w", err)
	}
	of, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", service), attribute.String("service.version", buildVersion().Version)),
		resource.WithHost(), resource.WithFromEnv()) // the last one counts
	if err != nil {
		return nil, failf(exitUsage, "traces: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("traces are not sent", "err", redact(err.Error())) }))
	t := &tracing{provider: sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(of))}
	t.options = []otelhttp.Option{
		otelhttp.WithTracerProvider(t.provider), otelhttp.WithMeterProvider(noop.NewMeterProvider()),
		otelhttp.WithPropagators(propagation.TraceContext{}),
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return spanName(r) }),
		otelhttp.WithFilter(func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/v1/") }),
	}
	return t, nil
}

// spanName names a request without the ids in its path.
func spanName(r *http.Request) string {
	parts := strings.SplitN(strings.TrimPrefix(r.URL.Path, "/v1/"), "/", 3)
	name := parts[0]
	if name == "leases" && len(parts) > 1 { // whose names are no part of paths
		name += "/" + parts[1]
	}
	return fmt.Sprintf("%s /v1/%s", r.Method, name)
}

// transport traces what a client sends; as it is, if t is nil.
func (t *tracing) transport(base http.RoundTripper) http.RoundTripper {
	if t == nil {
		return base
	}
	return otelhttp.NewTransport(base, t.options...)
}

// handler traces what a server answers; as it is, if t is nil.
func (t *tracing) handler(h http.Handler) http.Handler {
	if t == nil {
		return h
	}
	return otelhttp.NewHandler(h, "tenure", t.options...)
}

// store traces what is asked of a store; as it is, if t is nil.
func (t *tracing) store(st store.Store) store.Store {
	if t == nil {
		return st
	}
	return adapter.Trace(st, t.provider)
}

// stop sends what is left, for a few seconds at most.
func (t *tracing) stop() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // what could not be sent was told of
}
