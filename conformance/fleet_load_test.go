//go:build linux

package conformance_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/agent"
	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store/storetest"
)

// The times are those of a fleet that says nothing else. A program of 64 busy
// goroutines on 2 processors looks for what has come from the network after each
// 61st of their turns of 10 ms, and another process takes its share of those: an
// answer to a beat may wait a second or some for its reader.
const (
	busyInterval   = 10 * time.Second
	busyTTL        = 6 * busyInterval
	busyGoroutines = 64
)

// busyConfig is what a program with an agent in it is told.
type busyConfig struct {
	Server, Upload string
	StateDir       string
}

// playFleetBusy is a program that embeds the agent, computes on many goroutines,
// and sends as much as its connections take.
func playFleetBusy(config []byte) error {
	var cfg busyConfig
	if err := json.Unmarshal(config, &cfg); err != nil {
		return err
	}
	c, err := api.NewClient(api.Config{Servers: []string{cfg.Server}})
	if err != nil {
		return err
	}
	a, err := agent.New(agent.Config{Node: "busy", Server: c, Store: api.NewStore(c), StateDir: cfg.StateDir, TTL: busyTTL, Interval: busyInterval})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- a.Run(context.Background()) }()
	for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
		if _, may := a.MayAct(); may {
			break
		}
	}
	var sum atomic.Uint64
	for range busyGoroutines {
		go func() {
			for n := uint64(1); ; n++ {
				if n%(1<<20) == 0 {
					sum.Add(n)
				}
			}
		}()
	}
	for range 4 {
		go func() {
			for {
				conn, err := net.Dial("tcp", cfg.Upload)
				if err != nil {
					return // the test is over
				}
				_, _ = io.Copy(conn, endless{}) // until it is over
			}
		}()
	}
	return <-ended
}

// endless is a file without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// A node whose program is as busy as can be, with an upload that takes all that the
// wire gives and every slow place of the server taken, is heard all the same: the
// age of its last beat stays below two intervals in 99 of 100 looks, and it keeps
// its lease. It runs beside no other test, whose processors it would take.
func TestFleetBeatsUnderLoad(t *testing.T) {
	b := newFleetBed(t, "sqlite", 1, 0, "--interval", busyInterval.String(), "--node-ttl", busyTTL.String(), "--reconcile", "5s", "--reconciler-ttl", "15s")
	sink, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sink.Close() })
	var uploaded atomic.Int64
	go func() {
		for {
			conn, err := sink.Accept()
			if err != nil {
				return
			}
			go func() {
				for buf := make([]byte, 1<<20); ; {
					n, err := conn.Read(buf)
					uploaded.Add(int64(n))
					if err != nil {
						_ = conn.Close()
						return
					}
				}
			}()
		}
	}()
	// One way for both, as from one host.
	h := &fleetHost{node: "busy", dir: filepath.Join(b.dir, "busy")}
	b.hosts = append(b.hosts, h)
	var addrs []string
	for _, target := range []string{b.servers[0].addr, sink.Addr().String()} {
		p, err := storetest.NewProxy("tcp", target)
		if err != nil {
			t.Fatal(err)
		}
		h.proxies = append(h.proxies, p)
		addrs = append(addrs, p.Addr())
	}
	config, err := json.Marshal(busyConfig{Server: "tenure://" + addrs[0], Upload: addrs[1], StateDir: h.dir})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h.fleetChild = startFleetChild(t, filepath.Join(b.dir, "busy.log"), []string{envRole + "=fleet-busy", envConfig + "=" + string(config)}, self)
	b.eligible("busy")
	streams, polls := b.takeSlowPlaces()

	first := b.node("busy")
	var ages []time.Duration
	worst := time.Duration(0)
	begun, sent := clock.Boot(), uploaded.Load()
	long := times(fleetNumber("TENURE_FLEET_LOAD_BEATS", 3), busyInterval)
	b.eventuallyWithin(long+fleetSoon, "the time under load", func() bool {
		n, err := b.client.Node(t.Context(), "busy")
		if err != nil {
			t.Fatal(err)
		}
		age := time.Duration(n.AgeMS) * time.Millisecond
		ages, worst = append(ages, age), max(worst, age)
		return clock.Boot()-begun >= long
	})
	last := b.node("busy")
	slices.Sort(ages)
	p99 := ages[len(ages)*99/100]
	t.Logf("%d looks in %s: beat age p50 %s, p99 %s, max %s (interval %s); %d streams and %d long polls open, %d MB/s uploaded",
		len(ages), long, ages[len(ages)/2], p99, worst, busyInterval, streams, polls, (uploaded.Load()-sent)/int64(long.Seconds())>>20)
	if p99 >= 2*busyInterval {
		t.Errorf("beat age p99 %s, want below 2 intervals of %s", p99, busyInterval)
	}
	if last.Lease.Token != first.Lease.Token || last.Lease.State != fleet.LeaseHeld {
		t.Errorf("the lease is %s with token %s, and had token %s before; want it kept", last.Lease.State, last.Lease.Token, first.Lease.Token)
	}
	events, err := b.client.Events(t.Context(), api.EventQuery{Node: "busy"})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events.Events {
		if e.Kind == fleet.EventLapsed || e.Kind == fleet.EventSuspect {
			t.Errorf("the ledger has %s: %s", e.Kind, e.Text)
		}
	}
}

// takeSlowPlaces opens streams of events until the server takes no more, and long
// polls beside them. They end with the test.
func (b *fleetBed) takeSlowPlaces() (streams, polls int) {
	t := b.t
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	transport := &http.Transport{}
	var open sync.WaitGroup
	t.Cleanup(func() { cancel(); open.Wait(); transport.CloseIdleConnections() })
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.servers[0].addr+"/v1/events/stream", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusOK {
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusServiceUnavailable && resp.StatusCode != http.StatusTooManyRequests {
				t.Fatalf("stream %d: status %s", streams, resp.Status)
			}
			break
		}
		streams++
		t.Cleanup(func() { _ = resp.Body.Close() })
	}
	for range 200 {
		polls++
		open.Go(func() {
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/v1/nodes/busy/orders?after=%d&wait_ms=60000", b.servers[0].addr, b.revision()), nil)
				if err != nil {
					return
				}
				resp, err := transport.RoundTrip(req)
				if err != nil {
					if !errors.Is(err, context.Canceled) && ctx.Err() == nil {
						time.Sleep(time.Second) // a server without room is asked again
					}
					continue
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		})
	}
	return streams, polls
}

// revision is that of the busy node's orders.
func (b *fleetBed) revision() (n int64) {
	_ = b.fleetDB.QueryRowContext(b.t.Context(), "SELECT orders FROM fleet_node WHERE id = 'busy'").Scan(&n) // 0 waits for none
	return n
}
