package loadgen

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
)

// OpenFunc opens the leases and the fleet in a database that is set up.
type OpenFunc func(ctx context.Context, database string) (st store.Store, reg *registry.Registry, closeDB func(), err error)

// replicaConfig says what a replica is to be.
type replicaConfig struct {
	Database     string        `json:"database"`
	Name         string        `json:"name"`
	Listen       string        `json:"listen"`
	Interval     time.Duration `json:"interval_ns"`
	SuspectAfter int           `json:"suspect_after"`
	NodeTTL      time.Duration `json:"node_ttl_ns"`
}

// serve is a replica, until ctx ends.
func serve(ctx context.Context, cfg replicaConfig, open OpenFunc, orders <-chan order, out *speaker) error {
	st, reg, closeDB, err := open(ctx, cfg.Database)
	if err != nil {
		return err
	}
	defer closeDB()
	srv, err := server.New(st, reg, server.Config{
		Name: cfg.Name, Interval: cfg.Interval, SuspectAfter: cfg.SuspectAfter, NodeTTL: cfg.NodeTTL,
		Logger: slog.New(livenessLog{out}),
	})
	if err != nil {
		return err
	}
	listener, tokens, err := server.Listen(ctx, server.ListenConfig{Address: cfg.Listen})
	if err != nil {
		return err
	}
	web := srv.HTTPServer(srv.Handler(server.HTTPConfig{Tokens: tokens}))
	web.BaseContext = func(net.Listener) context.Context { return context.WithoutCancel(ctx) }
	var all sync.WaitGroup
	defer all.Wait()
	defer func() { _ = web.Close() }()
	all.Go(func() {
		if err := web.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			out.say(event{Trouble: err.Error()})
		}
	})
	ran := make(chan error, 1)
	all.Go(func() { ran <- srv.Run(ctx) })
	all.Go(func() {
		ready := time.NewTicker(5 * time.Millisecond)
		defer ready.Stop()
		for srv.Ready() != nil {
			select {
			case <-ready.C:
			case <-ctx.Done():
				return
			}
		}
		out.say(event{Listening: listener.Addr().String()})
	})
	stopProfile := func() {}
	defer func() { stopProfile() }()
	for {
		select {
		case o := <-orders:
			switch o.Do {
			case doMemory:
				heap, err := readHeap(o.File)
				out.say(event{Answer: true, Heap: &heap, Trouble: troubleOf(err)})
			case doProfile:
				stopProfile()
				stopProfile, err = startProfile(o.File)
				out.say(event{Answer: true, Trouble: troubleOf(err)})
			}
		case err := <-ran:
			return err
		}
	}
}

// readHeap collects, and writes a profile of what is left to file unless that is "".
func readHeap(file string) (h heapState, err error) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	h = heapState{Live: m.HeapAlloc, Stacks: m.StackInuse, Goroutines: runtime.NumGoroutine()}
	if file == "" {
		return h, nil
	}
	f, err := os.Create(file)
	if err != nil {
		return h, err
	}
	defer f.Close()
	return h, pprof.WriteHeapProfile(f)
}

// startProfile writes a CPU profile to file until stop is called; none if file is "".
func startProfile(file string) (stop func(), err error) {
	if file == "" {
		return func() {}, nil
	}
	f, err := os.Create(file)
	if err != nil {
		return func() {}, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		f.Close()
		return func() {}, err
	}
	return func() { pprof.StopCPUProfile(); f.Close() }, nil
}

func troubleOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// livenessLog is the log of a replica: it tells the conductor of suspicions, and
// of what is wrong.
type livenessLog struct{ out *speaker }

// Enabled implements slog.Handler.
func (livenessLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

// WithAttrs implements slog.Handler; what it adds is not needed.
func (l livenessLog) WithAttrs([]slog.Attr) slog.Handler { return l }

// WithGroup implements slog.Handler likewise.
func (l livenessLog) WithGroup(string) slog.Handler { return l }

// Handle implements slog.Handler.
func (l livenessLog) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	s := sighting{At: r.Time}
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "node":
			s.Node = a.Value.String()
		case "is":
			s.Is = a.Value.String()
		}
		text += " " + a.String()
		return true
	})
	switch {
	case r.Message == "liveness" && (s.Is == string(fleet.Suspect) || s.Is == string(fleet.Late)):
		l.out.say(event{Liveness: &s})
	case r.Level >= slog.LevelWarn:
		l.out.say(event{Trouble: text})
	}
	return nil
}
