//go:build linux

package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// receiver takes in traces as a collector of OpenTelemetry does.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	spans map[string]seenSpan // by trace and span
}

type seenSpan struct{ trace, parent, service, name string }

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{spans: map[string]seenSpan{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		var export collector.ExportTraceServiceRequest
		if err != nil || req.URL.Path != "/v1/traces" || proto.Unmarshal(body, &export) != nil {
			t.Errorf("%s: not traces in protobuf: %v", req.URL.Path, err)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, of := range export.ResourceSpans {
			service := ""
			for _, kv := range of.Resource.Attributes {
				if kv.Key == "service.name" {
					service = kv.Value.GetStringValue()
				}
			}
			for _, scope := range of.ScopeSpans {
				for _, s := range scope.Spans {
					id := string(s.TraceId)
					r.spans[id+string(s.SpanId)] = seenSpan{id, string(s.ParentSpanId), service, s.Name}
				}
			}
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// has reports whether a trace goes from its beginning along these spans, each the
// child of the one before it.
func (r *receiver) has(want ...seenSpan) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		var way []seenSpan
		for ok := true; ok; s, ok = r.spans[s.trace+s.parent] {
			way = append(way, seenSpan{service: s.service, name: s.name})
			if s.parent == "" {
				slices.Reverse(way)
				if slices.Equal(way, want) {
					return true
				}
				break
			}
		}
	}
	return false
}

// TestTraces: a beat that renews and a request of the agent's store are one trace
// each, over agent, server and store, if the environment asks for traces.
func TestTraces(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	traced := func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, "OTEL_EXPORTER_OTLP_ENDPOINT="+r.URL, "OTEL_BSP_SCHEDULE_DELAY=100")
	}
	srv := startWith(t, traced, append([]string{"server", "--listen", "127.0.0.1:0", "--store", fileStore(t)}, quickTimes...)...)
	url := servedURL(t, srv)
	agent := startWith(t, func(cmd *exec.Cmd) {
		traced(cmd)
		cmd.Env = append(cmd.Env, "OTEL_SERVICE_NAME=my-agent")
	}, "agent", "--server", url, "--node", unique("n"), "--state-dir", t.TempDir())
	for _, tc := range []struct{ request, store string }{
		{"POST /v1/leases/acquire", "tenure.store/acquire"},
		{"POST /v1/beat", "tenure.store/renew"},
	} {
		until(t, "a trace of "+tc.request, func() bool {
			return r.has(seenSpan{service: "my-agent", name: tc.request}, seenSpan{service: "tenure-server", name: tc.request}, seenSpan{service: "tenure-server", name: tc.store})
		})
	}
	// What streams goes through as without traces.
	follow := start(t, "events", "--follow", "--server", url, "--limit", "10")
	until(t, "an event in a stream", func() bool { return strings.Contains(follow.read("out"), "node_joined") })
	agent.signal(syscall.SIGTERM)
	agent.wait()
	srv.signal(syscall.SIGTERM)
	srv.wait()
	for _, p := range []*program{agent, srv} {
		if strings.Contains(p.stderr(), "traces are not sent") {
			t.Errorf("stderr: %q", p.stderr())
		}
	}
}

// TestTracingWanted: traces are made only if the standard variables ask for them.
func TestTracingWanted(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		env    string
		wanted bool
		fails  string
	}{
		{"", false, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://a:4318", true, ""},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://a:4318", true, ""},
		{"OTEL_TRACES_EXPORTER=otlp", true, ""},
		{"OTEL_TRACES_EXPORTER=none OTEL_EXPORTER_OTLP_ENDPOINT=http://a:4318", false, ""},
		{"OTEL_SDK_DISABLED=true OTEL_TRACES_EXPORTER=otlp", false, ""},
		{"OTEL_SDK_DISABLED=false OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", true, ""},
		{"OTEL_TRACES_EXPORTER=zipkin", false, "OTEL_TRACES_EXPORTER=zipkin: must be otlp or none"},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=grpc", false, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc: must be http/protobuf"},
		{"OTEL_EXPORTER_OTLP_PROTOCOL=grpc", false, ""},
	} {
		env := map[string]string{}
		for kv := range strings.FieldsSeq(tc.env) {
			key, value, _ := strings.Cut(kv, "=")
			env[key] = value
		}
		wanted, err := tracingWanted(func(key string) string { return env[key] })
		got := ""
		if err != nil {
			got = err.Error()
		}
		if wanted != tc.wanted || got != tc.fails {
			t.Errorf("%q: got %v, %q, want %v, %q", tc.env, wanted, got, tc.wanted, tc.fails)
		}
	}
}

func TestSpanName(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/v1/beat": "GET /v1/beat", "/v1/nodes/n1/eligible": "GET /v1/nodes", "/v1/leases/acquire": "GET /v1/leases/acquire", "/v1/leases": "GET /v1/leases", "/v1/": "GET /v1/",
	} {
		if got := spanName(httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}
