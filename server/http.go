package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/server/endpoint"
	"github.com/tenurehq/tenure/server/leasehttp"
)

// Times of a connection. A beat comes each interval on a connection that is kept
// open between.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 15 * time.Second // of a whole request
	writeTimeout  = 30 * time.Second // of a whole answer, from the end of the request's head
	idleTimeout   = 5 * time.Minute
	maxHeader     = 16 << 10 // bytes
)

// HTTPConfig says how the interface is served.
type HTTPConfig struct {
	// Tokens are the credentials that are taken. Nil lets in everybody who asks for
	// a name of this host, as an operator; see Listen.
	Tokens Tokens
	// Version is the program's, for GET config and the metric tenure_build_info.
	Version string
	// Sources says where settings come from, by the names that GET config shows:
	// flag, environment or file. A setting that is not in it is a default.
	Sources map[string]string
	// Tables, if set, reads the guarded tables of applications for the metrics. It is
	// called when they are asked for, at most once each 15 s, and has 2 s.
	Tables func(context.Context) ([]TableRefusals, error)
}

// handler serves a replica over HTTP.
type handler struct {
	*Server
	opts    HTTPConfig
	routes  http.Handler
	streams chan struct{} // holds a value for each stream that is open
}

// Handler returns the interface of the replica: all of /v1 with its document
// /v1/openapi.json, and /livez, /readyz and /metrics. It is to be served with
// HTTPServer, whose timeouts it relies on, and while Run runs.
//
// Every answer but a stream, the metrics and the probes of health is JSON.
// Refusals are an api.Problem.
func (s *Server) Handler(cfg HTTPConfig) http.Handler {
	h := &handler{Server: s, opts: cfg, streams: make(chan struct{}, maxStreams)}
	mux := http.NewServeMux()
	a := h.document(mux)
	a.UseMiddleware(h.gate)
	leasehttp.Register(a, guarded{s.st}, s.log)
	h.registerNodes(a)
	h.registerWork(a)
	h.registerWhy(a)
	h.registerBrake(a)
	h.registerEvents(a)
	h.registerConfig(a)
	h.registerObserve(a)
	h.describeBeats(a)
	h.describeMetrics(a)
	for _, path := range []string{beatPath, beatsPath} { // which ServeHTTP serves; for the other methods
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) { h.serveBeats(w, r, identity(r.Context())) })
	}
	mux.Handle("GET /v1/openapi.json", h.plain(serveDocument(a)))
	mux.Handle("GET /metrics", h.metrics())
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { health(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { health(w, s.Ready()) })
	h.routes = endpoint.Router(mux)
	return h
}

// HTTPServer returns a server for a Handler, with limits against readers and
// writers that are slow.
func (s *Server) HTTPServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header()["X-Content-Type-Options"] = noSniff
	switch r.URL.Path {
	case "/livez", "/readyz":
		h.routes.ServeHTTP(w, r)
		return
	}
	id, err := h.opts.Tokens.of(r)
	if err != nil {
		if e, ok := errors.AsType[*api.Error](err); ok && e.Code == api.CodeUnauthorized {
			w.Header().Set("WWW-Authenticate", `Bearer realm="tenure"`)
		}
		endpoint.Problem(w, err)
		return
	}
	if r.Method == http.MethodPost && (r.URL.Path == beatPath || r.URL.Path == beatsPath) {
		h.serveBeats(w, r, id) // the way of most requests
		return
	}
	h.routes.ServeHTTP(w, r.WithContext(withIdentity(r.Context(), id)))
}

// serveBeats serves POST beat and beats.
func (h *handler) serveBeats(w http.ResponseWriter, r *http.Request, id Identity) {
	defer h.recover(w, r)
	take := h.beat
	if r.URL.Path == beatsPath {
		take = h.beats
	}
	if err := take(w, r, id); err != nil {
		endpoint.Problem(w, err)
	}
}

// recover answers for a handler that failed by a defect.
func (h *handler) recover(w http.ResponseWriter, r *http.Request) {
	fault := recover()
	if fault == nil {
		return
	}
	if err, ok := fault.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(fault) // net/http's own way to cut a connection
	}
	h.log.Error("request failed by a defect", "path", r.URL.Path, "err", fmt.Sprint(fault), "stack", string(debug.Stack()))
	endpoint.Problem(w, api.Refuse(api.CodeFault, "the server failed at %s by a defect of its own; its log says more", r.URL.Path))
}

// plain returns a handler that answers errors and defects of serve as package
// endpoint does.
func (h *handler) plain(serve func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		defer h.recover(w, r)
		if err := serve(w, r); err != nil {
			endpoint.Problem(w, err)
		}
	}
}

// health answers a probe of health in one line of text.
func health(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if err != nil {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, err)
		return
	}
	fmt.Fprintln(w, "ok")
}

// always is in the Metadata of an operation that needs nothing which a replica
// has to load first.
const always = "always"

// gate lets an operation go on if its sender may and this replica can.
func (h *handler) gate(ctx huma.Context, next func(huma.Context)) {
	op := ctx.Operation()
	r, w := humago.Unwrap(ctx)
	if err := identity(r.Context()).allows(op.Metadata[leasehttp.Access]); err != nil {
		endpoint.Problem(w, err)
		return
	}
	if op.Metadata[always] == nil && !strings.HasPrefix(op.Path, leasehttp.Prefix) {
		if err := h.Ready(); err != nil {
			endpoint.Problem(w, notReady(err))
			return
		}
	}
	if ok := op.Responses["200"]; ok != nil && ok.Content["text/event-stream"] != nil {
		select {
		case h.streams <- struct{}{}:
			defer func() { <-h.streams }()
		default:
			e := api.Refuse("busy", "%d streams are open, which is the most", maxStreams)
			e.RetryAfter = 5 * time.Second
			endpoint.Problem(w, e)
			return
		}
		// A stream has its own time for each event, and is read until it ends.
		ctl := http.NewResponseController(w)
		_ = ctl.SetReadDeadline(time.Time{}) // a connection that cannot has no deadline
	}
	next(huma.WithContext(ctx, context.WithValue(ctx.Context(), lastEventKey{}, r.Header.Get("Last-Event-ID"))))
}

// operation describes an operation for package endpoint.
func operation(method, path, id, access, summary string) huma.Operation {
	tag, _, _ := strings.Cut(strings.TrimPrefix(path, "/v1/"), "/")
	return huma.Operation{
		OperationID: id, Method: method, Path: path, Tags: []string{tag}, Summary: summary,
		Metadata: map[string]any{leasehttp.Access: access},
	}
}

// of is a body.
type of[T any] struct{ Body T }

//nolint:unparam // a handler returns what this returns
func answer[T any](v T) (*of[T], error) { return &of[T]{v}, nil }
