package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	adapter "github.com/tenurehq/tenure/adapters/prometheus"
	"github.com/tenurehq/tenure/agent"
	"github.com/tenurehq/tenure/fleet"
)

// agentMetrics serves what an agent holds and does, to monitoring on this host.
type agentMetrics struct {
	*adapter.Collector
	listener net.Listener
	events   *prometheus.CounterVec
	server   *http.Server // once it answers
	served   sync.WaitGroup
}

// listenMetrics listens at a loopback address; nil without one. There is no
// credential, so nobody else may ask.
func listenMetrics(ctx context.Context, address, node string) (*agentMetrics, error) {
	if address == "" {
		return nil, nil
	}
	host, _, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, failf(exitUsage, "--metrics-addr %q: must be an address of this host alone, such as 127.0.0.1:7471: what asks there shows no credential", address)
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		code := exitUnavailable
		if errors.Is(err, os.ErrPermission) {
			code = exitPermission
		}
		return nil, failf(code, "--metrics-addr %s: %w", address, err)
	}
	return &agentMetrics{
		Collector: adapter.New(fleet.LeaseName(node)), listener: listener,
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tenure_agent_events_total", Help: "Changes of state of the agent, by kind and reason."}, []string{"kind", "code"}),
	}, nil
}

// hook has m follow the agent that cfg makes. A nil m follows none.
func (m *agentMetrics) hook(cfg agent.Config) agent.Config {
	if m == nil {
		return cfg
	}
	cfg.NewKeeper = m.NewKeeper
	cfg.OnEvent = func(e agent.Event) { m.events.WithLabelValues(string(e.Kind), e.Code).Inc() }
	return cfg
}

// handler serves /metrics, /livez (the agent comes round) and /readyz (the node may
// act).
func (m *agentMetrics) handler(a *agent.Agent) (http.Handler, error) {
	registry := prometheus.NewRegistry()
	gauge := func(name, help string, f func(agent.Status) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tenure_agent_" + name, Help: help}, func() float64 { return f(a.Status()) })
	}
	info := buildVersion()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tenure_build_info", Help: "The program; always 1.", ConstLabels: prometheus.Labels{"version": info.Version, "revision": info.Revision},
	})
	build.Set(1)
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), m.Collector, m.events, build,
		gauge("work", "Work items that this agent knows of.", func(s agent.Status) float64 { return float64(len(s.Work)) }),
		gauge("orders_stale", "Whether the orders may be out of date.", func(s agent.Status) float64 { return truth(s.Stale != "") }),
		gauge("duplicate", "Whether another incarnation uses the node's name.", func(s agent.Status) float64 { return truth(s.Duplicate) }),
		gauge("fenced", "Whether another incarnation has replaced this one for good.", func(s agent.Status) float64 { return truth(s.Replaced) }),
	} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	answer := func(check func(context.Context) error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Header().Set("Cache-Control", "no-store")
			if err := check(r.Context()); err != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
				fmt.Fprintln(w, err)
				return
			}
			fmt.Fprintln(w, "ok")
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	mux.HandleFunc("GET /livez", answer(a.Alive))
	mux.HandleFunc("GET /readyz", answer(func(context.Context) error {
		if _, may := a.MayAct(); !may {
			return errors.New("the node may not act: it holds no lease that is confirmed")
		}
		return nil
	}))
	return mux, nil
}

// serve begins to answer.
func (m *agentMetrics) serve(a *agent.Agent, log *slog.Logger) error {
	if m == nil {
		return nil
	}
	h, err := m.handler(a)
	if err != nil {
		return err
	}
	m.server = &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10}
	m.served.Go(func() {
		if err := m.server.Serve(m.listener); !errors.Is(err, http.ErrServerClosed) {
			log.Warn("metrics are not served any more", "err", err)
		}
	})
	log.Info("metrics", "address", m.listener.Addr())
	return nil
}

// close ends the answering.
func (m *agentMetrics) close() {
	if m == nil {
		return
	}
	if m.server != nil {
		_ = m.server.Close()
	}
	m.listener.Close()
	m.served.Wait()
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
